#include "lib/job/commit/commit.hpp"

#include <algorithm>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {

bool is_newer(const Generation& a, const Generation& b) { return a.number != b.number ? a.number > b.number : a.lineage > b.lineage; }

StepCommit::StepCommit(Membership me, std::uint64_t applied, Generation decided_in)
    : me_{me},
      known_{.applied = applied, .decided = applied, .voted = applied, .decided_in = decided_in},
      received_(me.world.value(), false) {}

Vote StepCommit::vote(bool finite) {
  ELRUN_ASSERT(known_.voted == known_.applied);
  ++known_.voted;
  known_.voted_in = me_.generation;
  if (ELRUN_PLANTED(own_vote_decides)) known_.decided = known_.voted;
  return {me_.generation, known_.applied, finite};
}

bool StepCommit::hear(Rank from, const Vote& vote) {
  if (vote.generation != me_.generation || vote.step != known_.applied || from.value() >= received_.size()) return false;
  if (received_[from.value()]) return false;
  received_[from.value()] = true;
  finite_ = finite_ && vote.finite;
  if (++received_count_ == received_.size()) {
    ELRUN_ASSERT(known_.voted > known_.applied);  // my own vote is one of them
    known_.decided = known_.applied + 1;
    known_.decided_in = me_.generation;
  }
  return true;
}

void StepCommit::applied() {
  if (known_.applied == known_.decided) return;
  known_.applied = known_.decided;
  std::fill(received_.begin(), received_.end(), false);
  received_count_ = 0;
  finite_ = true;
}

void StepCommit::learn(std::uint64_t decided, const Generation& in) {
  if (decided <= known_.decided) return;
  ELRUN_ASSERT(decided == known_.voted);
  known_.decided = decided;
  known_.decided_in = in;
}

std::vector<DecidedState> decided_states(std::span<const Knowledge> members, Sums sums) {
  std::vector<DecidedState> out;
  for (const Knowledge& m : members) {
    out.push_back({m.decided, m.decided_in});
    // `decided_in` is of the newest step that a member knows to be decided. Of the one before it, which it has applied, the generation is not known.
    if (m.applied < m.decided && sums == Sums::alike) out.push_back({m.applied, {}});
  }
  std::ranges::sort(
      out, [](const DecidedState& a, const DecidedState& b) { return a.steps != b.steps ? a.steps > b.steps : is_newer(a.in, b.in); });
  const auto same = [&](const DecidedState& a, const DecidedState& b) {
    return a.steps == b.steps && (sums == Sums::alike || a.in == b.in);
  };
  out.erase(std::unique(out.begin(), out.end(), same), out.end());
  return out;
}

Recovered recover(std::span<const Knowledge> members, Sums sums, const DecidedState& state) {
  Recovered out{.next_step = state.steps, .decided_in = state.in, .members = {}};
  const bool alike = sums == Sums::alike;
  for (const Knowledge& m : members) {
    const bool has = m.applied == state.steps && (alike || (m.decided == m.applied && m.decided_in == state.in));
    const bool can_apply = m.applied + 1 == state.steps && m.voted == state.steps && (alike || m.voted_in == state.in);
    out.members.push_back(has                                                     ? Recovery::go_on
                          : can_apply && !ELRUN_PLANTED(settle_forgets_who_voted) ? Recovery::apply
                                                                                  : Recovery::fetch);
  }
  return out;
}

Recovered recover(std::span<const Knowledge> members, Sums sums) {
  const auto states = decided_states(members, sums);
  return recover(members, sums, states.empty() ? DecidedState{} : states.front());
}

}  // namespace elrun::inline v0
