#include "lib/job/commit/decided_steps.hpp"

#include "lib/base/assert.hpp"
#include "lib/base/planted.hpp"

namespace elrun::inline v0 {

Vote DecidedSteps::vote(bool finite) {
  updates_.vote();
  return commit_.vote(finite);
}

void DecidedSteps::decide(const Votes& votes) {
  ELRUN_ASSERT(commit_.decided());
  decision_ = {.squares = votes.squares,
               .finite = commit_.finite(),
               .loss = votes.loss,
               .tokens = votes.tokens,
               .count = knowledge().decided,
               .update = updates_.voted(),
               .stops = votes.stops};
}

void DecidedSteps::apply() {
  loss_ = decision_.loss;
  skipped_ += decision_.skips();
  updates_.decided(applied());
  forget_evaluations();
  if (decision_.stops) stop_.decide();
  commit_.applied();
}

void DecidedSteps::learn(std::uint64_t decided, const Generation& in, const Decision& decision) {
  if (knowledge().decided < decided && !ELRUN_PLANTED(applies_with_its_last_decision)) decision_ = decision;
  commit_.learn(decided, in);
}

void DecidedSteps::begin_generation(const Membership& me) { commit_ = StepCommit{me, applied(), knowledge().decided_in}; }

void DecidedSteps::go_on_at(const Membership& me, std::uint64_t applied, const Generation& in) { commit_ = StepCommit{me, applied, in}; }

void DecidedSteps::take_decision(const Decision& decision) {
  decision_ = decision;
  forget_evaluations();
}

void DecidedSteps::begin_anew(const Membership& me) {
  updates_.set_from_checkpoint(false);
  stop_.set(false, false);
  decision_ = {};
  forget_evaluations();
  commit_ = StepCommit{me, 0};
}

void DecidedSteps::continue_from(const DecidedSteps& before, bool revoked) {
  commit_ = before.commit_;
  decision_ = before.decision_;
  updates_.set_voted(before.updates_.voted());
  loss_ = before.loss_, skipped_ = before.skipped_;
  evaluations_ = before.evaluations_, evaluation_ = before.evaluation_;
  stop_ = before.stop_;
  if (revoked) stop_.put_back();
}

JobProgress DecidedSteps::progress(std::uint64_t steps) const {
  const std::uint64_t done = applied();
  return {.applied = done,
          .loss = loss_,
          .skipped = skipped_,
          .first_update = done == 0 ? UpdateValues{} : updates_.memory().of(0),
          .last_update = done == 0 ? UpdateValues{} : updates_.memory().of(done - 1),
          .stop_asked = stop_.is_asked(),
          .stopped_of_steps = stop_.is_decided() ? steps : 0};
}

void DecidedSteps::load(const JobProgress& p, const Membership& me, std::uint64_t steps) {
  loss_ = p.loss, skipped_ = p.skipped;
  stop_.set(p.stop_asked, p.stopped_of_steps != 0 && p.stopped_of_steps == steps);  // more steps may be wanted since: they are done
  if (p.first_update.known()) updates_.memory().remember(0, p.first_update);
  if (p.last_update.known()) updates_.memory().remember(p.applied - 1, p.last_update);
  commit_ = StepCommit{me, p.applied, me.generation};
}

void DecidedSteps::remember(const Evaluation& evaluation) {
  ++evaluations_;
  evaluation_ = encode(evaluation);
}

void DecidedSteps::forget_evaluations() {
  evaluations_ = 0;
  evaluation_.clear();
}

}  // namespace elrun::inline v0
