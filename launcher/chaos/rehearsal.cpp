#include "launcher/chaos/rehearsal.hpp"

#include <utility>

namespace elrun::inline v0::launcher {
namespace {

/// Of one that hits a rank or a node.
std::uint32_t node_of(const Fault& fault, const FaultWorld& world) {
  return target_of(fault.kind) == FaultTarget::rank ? fault.target / world.workers : fault.target;
}

}  // namespace

bool hits_other_node(const Fault& fault, const FaultWorld& world, std::optional<std::uint32_t> own_node) {
  return own_node && target_of(fault.kind) != FaultTarget::job && node_of(fault, world) != *own_node;
}

Rehearsal::Rehearsal(std::vector<Fault> faults, const FaultWorld& world, std::optional<std::uint32_t> own_node)
    : faults_{std::move(faults)}, world_{world}, own_node_{own_node}, progress_(faults_.size()) {
  for (std::size_t i = 0; i < faults_.size(); ++i)
    if (hits_other_node(faults_[i], world_, own_node)) progress_[i].state = State::over;
}

bool Rehearsal::is_due(const Fault& fault, Duration time, std::optional<std::uint64_t> step) {
  return fault.step ? step >= fault.step : time >= fault.at;
}

bool Rehearsal::may_act(Duration time, std::optional<std::uint64_t> step) const {
  for (std::size_t i = 0; i < faults_.size(); ++i) {
    const auto& [state, since] = progress_[i];
    if (state == State::due || (state == State::ahead && is_due(faults_[i], time, step)) ||
        (state == State::lasting && time >= since + faults_[i].lasts))
      return true;
  }
  return false;
}

bool Rehearsal::can_begin(const Fault& fault, const RehearsalFacts& facts) const {
  const FaultTarget target = target_of(fault.kind);
  for (std::size_t i = 0; i < faults_.size(); ++i) {
    if (progress_[i].state != State::lasting) continue;
    const Fault& other = faults_[i];
    const FaultTarget others = target_of(other.kind);
    if (target == FaultTarget::job || others == FaultTarget::job) {
      if (target == others && fault.kind == other.kind) return false;  // one of each kind at a time
    } else if (node_of(fault, world_) == node_of(other, world_)) {
      const bool both_ranks = target == FaultTarget::rank && others == FaultTarget::rank;
      if (!both_ranks || fault.target == other.target) return false;
    }
  }
  if (fault.kind == FaultKind::fill) return true;
  if (fault.kind == FaultKind::coordinator && !(own_node_ && facts.has_coordinator)) return facts.has_coordinator;
  // An agent whose job is done serves for a moment still: its loss would begin the job anew, and other nodes' ends are not known here.
  const std::uint32_t node = fault.kind == FaultKind::coordinator ? *own_node_ : node_of(fault, world_);
  if (node >= facts.nodes.size() || !facts.nodes[node].has_agent) return false;
  const std::vector<bool>& workers = facts.nodes[node].workers;
  if (target == FaultTarget::rank) {
    const std::uint32_t local = fault.target % world_.workers;
    return local < workers.size() && workers[local];
  }
  // A node without workers has not come back yet: its loss would be no loss.
  for (const bool lives : workers)
    if (lives) return true;
  return false;
}

std::vector<FaultAction> Rehearsal::on(const RehearsalFacts& facts) {
  std::vector<FaultAction> actions;
  for (std::size_t i = 0; i < faults_.size(); ++i) {
    Progress& now = progress_[i];
    if (now.state != State::lasting || facts.time < now.since + faults_[i].lasts) continue;
    now.state = State::over;
    actions.push_back({FaultAction::What::end, i});
  }
  for (std::size_t i = 0; i < faults_.size(); ++i) {
    Progress& now = progress_[i];
    if (now.state == State::ahead && is_due(faults_[i], facts.time, facts.step)) now = {State::due, facts.time};
    if (now.state != State::due) continue;
    if (faults_[i].kind == FaultKind::coordinator && facts.is_served_elsewhere) {
      now.state = State::over;
      actions.push_back({FaultAction::What::leave_to_others, i});
      continue;
    }
    if (can_begin(faults_[i], facts)) {
      now = {faults_[i].lasts > Duration{0} ? State::lasting : State::over, facts.time};
      actions.push_back({FaultAction::What::begin, i});
      // What this one hits is not there for the next one: facts are gathered again first.
      return actions;
    }
    if (facts.time - now.since < fault_patience) continue;
    now.state = State::over;
    actions.push_back({FaultAction::What::leave_out, i});
  }
  return actions;
}

void Rehearsal::begin_no_more() {
  for (Progress& now : progress_)
    if (now.state == State::ahead || now.state == State::due) now.state = State::over;
}

std::vector<FaultAction> Rehearsal::finish() {
  std::vector<FaultAction> actions;
  for (std::size_t i = 0; i < faults_.size(); ++i) {
    if (progress_[i].state == State::lasting) actions.push_back({FaultAction::What::end, i});
    progress_[i].state = State::over;
  }
  return actions;
}

}  // namespace elrun::inline v0::launcher
