#pragma once
/// \file Core: which fault of a plan begins or ends now. Facts and time in, actions out.
///
/// A fault that is due waits for what it hits: a worker that is just started again cannot be stopped, and a node that is away cannot be cut.
/// So every fault of a plan takes effect, unless the job ends before. What it waits for longer than `fault_patience` is left out, and said so.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "launcher/chaos/fault_plan.hpp"

namespace elrun::inline v0::launcher {

constexpr Duration fault_patience = 60s;

struct NodeAtRehearsal {
  bool has_agent = false;
  std::vector<bool> workers{};  ///< By local rank: whether that worker lives.
};

struct RehearsalFacts {
  Duration time{};                      ///< Since all workers ran for the first time.
  std::optional<std::uint64_t> step{};  ///< The newest that the program has said.
  std::vector<NodeAtRehearsal> nodes{};
  bool has_coordinator = false;      ///< It is known which process serves the rendezvous.
  bool is_served_elsewhere = false;  ///< A node that another `elrun chaos` started does.
};

struct FaultAction {
  enum class What : std::uint8_t { begin, end, leave_out, leave_to_others };
  What what = What::begin;
  std::size_t fault = 0;  ///< Its index in the plan.
  friend bool operator==(const FaultAction&, const FaultAction&) = default;
};

/// Whether it hits a node that another `elrun chaos` started. Of what hits the job that is not known before it is due.
[[nodiscard]] bool hits_other_node(const Fault& fault, const FaultWorld& world, std::optional<std::uint32_t> own_node);

/// What is to be done of a plan, and when. Each fault begins at most once, and each that lasts ends at most once.
class Rehearsal {
 public:
  /// With `own_node`, what hits other nodes has no actions, and it loses the coordinator only while a worker of it lives.
  Rehearsal(std::vector<Fault> faults, const FaultWorld& world, std::optional<std::uint32_t> own_node = {});

  /// Whether `on` may have an action at this time: facts need not be gathered before.
  [[nodiscard]] bool may_act(Duration time, std::optional<std::uint64_t> step) const;
  /// In the order in which they are to be done. Ends come before beginnings.
  [[nodiscard]] std::vector<FaultAction> on(const RehearsalFacts& facts);
  /// What a fault should hit has gone between the facts and its beginning: it waits as one that is due.
  void waits_again(std::size_t fault) { progress_[fault].state = State::due; }
  /// A part of the job has ended with success. What lasts still ends in its time.
  void begin_no_more();
  /// The job is over: ends whatever lasts. Nothing begins any more.
  [[nodiscard]] std::vector<FaultAction> finish();

  [[nodiscard]] const std::vector<Fault>& faults() const { return faults_; }

 private:
  enum class State : std::uint8_t { ahead, due, lasting, over };
  struct Progress {
    State state = State::ahead;
    Duration since{};  ///< When it came to be due, or began.
  };
  [[nodiscard]] static bool is_due(const Fault& fault, Duration time, std::optional<std::uint64_t> step);
  [[nodiscard]] bool can_begin(const Fault& fault, const RehearsalFacts& facts) const;

  std::vector<Fault> faults_;
  FaultWorld world_;
  std::optional<std::uint32_t> own_node_;
  std::vector<Progress> progress_;  // as long as faults_
};

}  // namespace elrun::inline v0::launcher
