#include "lib/job/commit.hpp"

#include <algorithm>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {

StepCommit::StepCommit(Membership me, std::uint64_t applied)
    : me_{me}, known_{applied, applied, applied}, heard_(me.world.value(), false) {}

Vote StepCommit::vote(bool finite) {
  ELRUN_ASSERT(known_.voted == known_.applied);
  ++known_.voted;
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

void StepCommit::learn(std::uint64_t decided) {
  if (decided <= known_.decided) return;
  ELRUN_ASSERT(decided == known_.voted);
  known_.decided = decided;
}

Recovered recover(std::span<const Knowledge> members) {
  Recovered out;
  for (const Knowledge& m : members) out.next_step = std::max(out.next_step, m.decided);
  for (const Knowledge& m : members)
    out.members.push_back(m.applied == out.next_step                                   ? Recovery::go_on
                          : m.applied + 1 == out.next_step && m.voted == out.next_step && !ELRUN_PLANTED(settle_forgets_who_voted) ? Recovery::apply
                                                                                       : Recovery::fetch);
  return out;
}

}  // namespace elrun::inline v0
