#pragma once
/// \file CheckpointFailures: how workers of this node failed in generations that went on from a checkpoint. Pure.
///
/// The job's workers are told of it, and decide from all nodes' failures whether a checkpoint is suspect (checkpoint/commit/suspects.hpp). Only a generation that
/// has loaded a checkpoint counts. Signals that come from outside say nothing of a checkpoint: SIGKILL (a person, the kernel when memory runs out,
/// elrun itself), SIGTERM, SIGINT, SIGHUP, SIGQUIT. A step beyond the one after which a worker failed clears the checkpoint of that failure.

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include <elrun/session.hpp>

#include "launcher/report/endings.hpp"
#include "lib/base/planted.hpp"

namespace elrun::inline v0::launcher {

class CheckpointFailures {
 public:
  /// A generation begins. Its members may have the state in memory: that which came from a checkpoint before, if this node was there.
  void begin_generation(std::uint64_t number) {
    if (number != generation_ + 1) from_.clear();
    generation_ = number;
    loaded_ = false;
  }
  /// All members of this generation go on from this checkpoint, after so many steps. Empty: from nothing. One in memory is gone with its holders, so no later start could pass it over.
  void went_on_from(const std::string& checkpoint, std::uint64_t step) {
    step_ = step;
    if (checkpoint == in_memory_checkpoint) return;
    from_ = checkpoint;
    loaded_ = !checkpoint.empty();
  }
  void decided(std::uint64_t step) {
    step_ = std::max(step_, step);
    // The word of the last step may be lost with the worker that fails after it, so the one that follows the known one is not beyond it yet.
    std::erase_if(failures_, [&](const FailureAfter& f) { return f.checkpoint == from_ && step > f.step + 1; });
  }
  /// A worker of this node ended by itself, in this generation. `error`: "RuntimeError: no such device", out of its error record; empty: it has none. Every exception of Python's ends with
  /// exit code 1, and they are alike only where their type is, too; what follows it may name a time or a number.
  void failed(const Ending& ending, const std::string& error = {}) {
    if (!loaded_ || ending.ok() || is_from_outside(ending)) return;
    const std::string type = type_of(error);
    FailureAfter failure{from_, generation_, step_, type.empty() ? describe(ending) : describe(ending) + " (" + type + ")"};
    if (std::find(failures_.begin(), failures_.end(), failure) != failures_.end()) return;  // all workers of a node may fail alike
    if (failures_.size() == failures_max) failures_.erase(failures_.begin());
    failures_.push_back(std::move(failure));
  }
  /// Oldest first.
  [[nodiscard]] const std::vector<FailureAfter>& all() const { return failures_; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  static constexpr std::size_t failures_max = 32;
  static std::string type_of(const std::string& error) {
    constexpr std::size_t type_max = 100;
    const auto is_of_name = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
    };
    const auto end = std::ranges::find_if_not(error, is_of_name);
    const auto length = static_cast<std::size_t>(end - error.begin());
    return length > 0 && length <= type_max && (end == error.end() || *end == ':') ? error.substr(0, length) : std::string{};
  }
  static bool is_from_outside(const Ending& ending) {
    const int code = ending.code();
    return std::ranges::any_of(std::initializer_list<int>{SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGQUIT},
                               [&](int s) { return code == 128 + s; });
  }
  std::string from_;  // the checkpoint that the job's state came from, as far as this node knows
  std::uint64_t step_ = 0;
  std::uint64_t generation_ = 0;
  bool loaded_ = false;  // in this generation
  std::vector<FailureAfter> failures_;
};

}  // namespace elrun::inline v0::launcher
