#pragma once
/// \file HangWatch: which workers have given no sign of progress for too long. Pure.

#include <algorithm>
#include <csignal>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "launcher/options/options.hpp"
#include "launcher/supervise/node_workers.hpp"
#include "lib/base/planted.hpp"

namespace elrun::inline v0::launcher {

class HangWatch {
 public:
  /// `limit` 0: nobody is watched.
  explicit HangWatch(Duration limit) : limit_{limit} {}

  void watch(LocalRank worker, Instant now) {
    if (limit_ > Duration{0}) last_sign_.insert_or_assign(worker, now);
  }
  /// Of a worker that is not watched it means nothing.
  void sign(LocalRank worker, Instant now) {
    if (const auto at = last_sign_.find(worker); at != last_sign_.end()) at->second = now;
  }
  void forget(LocalRank worker) { last_sign_.erase(worker); }
  void clear() { last_sign_.clear(); }

  /// Until `now` nobody could be heard for so long: it counts for no worker, and none is silent for too long before `at`.
  void excuse(Duration deaf, Instant now, Instant at) {
    for (auto& [worker, sign] : last_sign_) sign = std::max(std::min(sign + deaf, now), at - limit_);
  }

  /// When the first of them will have been silent for too long.
  [[nodiscard]] std::optional<Instant> due() const {
    const auto least =
        std::min_element(last_sign_.begin(), last_sign_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    return least == last_sign_.end() ? std::nullopt : std::optional{least->second + limit_};
  }
  [[nodiscard]] std::vector<LocalRank> silent(Instant now) const {
    std::vector<LocalRank> found;
    for (const auto& [worker, at] : last_sign_)
      if (now - at >= limit_) found.push_back(worker);
    return found;
  }

 private:
  Duration limit_;
  std::map<LocalRank, Instant> last_sign_;
};

/// Workers that hang, as they were found.
struct FoundHang {
  std::vector<LocalRank> silent;    ///< They gave no sign of progress for too long. Never empty.
  std::vector<LocalRank> suspects;  ///< They end: the silent ones, or all of this node, for any of them may be the one that hangs.
  bool is_forming = false;          ///< Some workers of a Job have not joined the world yet: the silent ones alone are suspects.
};

/// The watches of one node, and how far the end of those that hang has come. A worker in the world is watched from its session on, or
/// from its start by what it writes. A worker of a Job that opens no session is watched from its start, and a pending one until it is
/// ready.
class HangWatches {
 public:
  HangWatches(Duration limit, HangSign sign) : sign_{sign}, in_world_{limit}, pending_{limit}, unopened_{limit} {}

  // Who is watched
  /// A world begins. All that are in it without a session are watched, and with `HangSign::output` all that are in it.
  void begin_generation(const Workers& workers, Instant now);
  void starts_beside(LocalRank worker, Instant now) { pending_.watch(worker, now); }
  void opens_in_world(LocalRank worker, Instant now) { in_world_.watch(worker, now), unopened_.forget(worker); }
  void comes_back(LocalRank worker, Instant now) { in_world_.watch(worker, now); }
  void forget_pending(LocalRank worker) { pending_.forget(worker); }
  void forget(LocalRank worker) { in_world_.forget(worker), pending_.forget(worker), unopened_.forget(worker); }
  /// The generation is over, or its job is: what workers of the world do now is watched by nobody.
  void end_generation() { in_world_.clear(), unopened_.clear(); }

  /// Its process is there now. Until then it waited for the process before it to be gone, which is no hang.
  void has_process(LocalRank worker, Instant now) {
    for (HangWatch* watch : {&in_world_, &pending_, &unopened_}) watch->sign(worker, now);
  }

  // Signs of progress. Of a worker that is not watched they mean nothing.
  void sign_in_world(LocalRank worker, Instant now) { in_world_.sign(worker, now); }
  void sign_pending(LocalRank worker, Instant now) { pending_.sign(worker, now); }
  /// All members decide a step together.
  void step_decided(const Workers& workers, Instant now);
  void excuse(Duration deaf, Instant now, Instant at) {
    for (HangWatch* watch : {&in_world_, &pending_, &unopened_}) watch->excuse(deaf, now, at);
  }

  // Who hangs. A plain program opens no session ever; `is_job` says that this is a Job's.
  [[nodiscard]] std::optional<Instant> due_in_world(bool is_job) const;
  [[nodiscard]] std::optional<Instant> due_pending() const { return pending_.due(); }
  /// Those in the world that hang, who are watched no longer. Once all workers have joined the world, a worker that hangs and one that
  /// waits for it look the same, so all of this node are suspects. Before that they can be told apart: a worker for which `waits` is
  /// true waits for its peers, and does not hang.
  [[nodiscard]] std::optional<FoundHang> find_in_world(const Workers& workers, const std::function<bool(const Worker&)>& waits, bool is_job,
                                                       Instant now);
  /// Pending ones that hang. No other worker waits for them.
  [[nodiscard]] std::vector<LocalRank> find_pending(const Workers& workers, Instant now);
  /// With which signal those that hang end now. SIGABRT first: Python's faulthandler answers it with the stacks of all threads, others
  /// with a core dump where that is on. Then SIGKILL.
  [[nodiscard]] int next_signal() { return std::exchange(were_asked_, true) ? SIGKILL : SIGABRT; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  HangSign sign_;
  HangWatch in_world_;       // workers in the world
  HangWatch pending_;        // pending workers, until they are ready
  HangWatch unopened_;       // workers in the world that have opened no session yet
  bool were_asked_ = false;  // those that hang got SIGABRT
};

}  // namespace elrun::inline v0::launcher
