#include "lib/job/commit/commit.hpp"

#include <algorithm>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

bool is_newer(const Generation& a, const Generation& b) { return a.number != b.number ? a.number > b.number : a.lineage > b.lineage; }

}  // namespace

StepCommit::StepCommit(Membership me, std::uint64_t applied, Generation decided_in)
    : me_{me},
      known_{.applied = applied, .decided = applied, .voted = applied, .decided_in = decided_in},
      heard_(me.world.value(), false) {}

Vote StepCommit::vote(bool finite) {
  ELRUN_ASSERT(known_.voted == known_.applied);
  ++known_.voted;
  known_.voted_in = me_.generation;
  if (ELRUN_PLANTED(own_vote_decides)) known_.decided = known_.voted;
  return {me_.generation, known_.applied, finite};
}

bool StepCommit::hear(Rank from, const Vote& vote) {
  if (vote.generation != me_.generation || vote.step != known_.applied || from.value() >= heard_.size()) return false;
  if (heard_[from.value()]) return false;
  heard_[from.value()] = true;
  finite_ = finite_ && vote.finite;
  if (++heard_count_ == heard_.size()) {
    ELRUN_ASSERT(known_.voted > known_.applied);  // my own vote is one of them
    known_.decided = known_.applied + 1;
    known_.decided_in = me_.generation;
  }
  return true;
}

void StepCommit::applied() {
  if (known_.applied == known_.decided) return;
  known_.applied = known_.decided;
  std::fill(heard_.begin(), heard_.end(), false);
  heard_count_ = 0;
  finite_ = true;
}

void StepCommit::learn(std::uint64_t decided, const Generation& in) {
  if (decided <= known_.decided) return;
  ELRUN_ASSERT(decided == known_.voted);
  known_.decided = decided;
  known_.decided_in = in;
}

Recovered recover(std::span<const Knowledge> members, Sums sums) {
  Recovered out;
  for (const Knowledge& m : members)
    if (m.decided > out.next_step || (m.decided == out.next_step && is_newer(m.decided_in, out.decided_in)))
      out.next_step = m.decided, out.decided_in = m.decided_in;
  const bool alike = sums == Sums::alike;
  for (const Knowledge& m : members) {
    const bool has = m.applied == out.next_step && (alike || m.decided_in == out.decided_in);
    const bool can_apply = m.applied + 1 == out.next_step && m.voted == out.next_step && (alike || m.voted_in == out.decided_in);
    out.members.push_back(has                                                     ? Recovery::go_on
                          : can_apply && !ELRUN_PLANTED(settle_forgets_who_voted) ? Recovery::apply
                                                                                  : Recovery::fetch);
  }
  return out;
}

}  // namespace elrun::inline v0
