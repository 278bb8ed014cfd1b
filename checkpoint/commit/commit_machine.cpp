#include "checkpoint/commit/commit_machine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {

using namespace commit;

namespace {

CommitPhase after(CommitPhase phase) { return static_cast<CommitPhase>(static_cast<int>(phase) + 1); }

/// Nobody was told of this save: there is nothing to remove but an empty directory, which is the next `retain`'s.
bool is_private(CommitPhase phase) { return phase < CommitPhase::collecting; }

template <class T>
const T& expected(const CommitAnswer& answer) {
  ELRUN_ASSERT(std::holds_alternative<T>(answer));
  return *std::get_if<T>(&answer);
}

std::string_view words(CommitPhase phase) {
  switch (phase) {
    case CommitPhase::looking_first:
    case CommitPhase::looking:
    case CommitPhase::looking_again: return "a look at the fences";
    case CommitPhase::asking_space: return "how much space is free";
    case CommitPhase::reading_run: return "RUN.json";
    case CommitPhase::naming: return "the list of checkpoints";
    case CommitPhase::making_directory: return "its directory";
    case CommitPhase::collecting: return "votes";
    case CommitPhase::merging: return "its manifest";
    case CommitPhase::asking_owner:
    case CommitPhase::asking_owner_again: return "the job to say who leads";
    case CommitPhase::publishing: return "its COMMIT";
    case CommitPhase::acknowledging: return "its acknowledgement";
    case CommitPhase::abandoning: return "the removal of what it left";
    case CommitPhase::committed:
    case CommitPhase::failed: return "nothing";
  }
  return "nothing";
}

}  // namespace

CommitMachine CommitMachine::begin(CommitTerms terms, Save save) {
  CommitMachine machine{std::move(terms), CommitPhase::looking_first, VoteCount{{}, 0}};
  machine.save_ = save;
  return machine;
}

CommitMachine CommitMachine::collect(CommitTerms terms, SaveTicket ticket) {
  const std::uint32_t world = terms.world;
  CommitMachine machine{std::move(terms), CommitPhase::collecting, VoteCount{ticket.id, world}};
  machine.ticket_ = std::move(ticket);
  return machine;
}

std::optional<CommitAction> CommitMachine::start(Instant now) {
  if (phase_ == CommitPhase::looking_first && save_.step > step_max)
    return fail({Code::invalid_argument, Remedy::fix_config, fmt::format("step {} is beyond {}", save_.step, step_max)}, now);
  return enter(phase_, now);
}

std::optional<CommitAction> CommitMachine::on(const CommitEvent& event, Instant now) {
  if (is_over()) return std::nullopt;
  if (const auto* answer = std::get_if<Answered>(&event)) return answered(*answer, now);
  if (const auto* vote = std::get_if<VoteArrived>(&event)) return hear(*vote, now);
  if (std::holds_alternative<NoMoreVotes>(event)) return phase_ == CommitPhase::collecting ? fail(votes_missing(), now) : std::nullopt;
  if (const auto* given_up = std::get_if<GiveUp>(&event))
    return published_ || phase_ == CommitPhase::abandoning ? std::nullopt : fail(given_up->why, now);
  return time_passed(now);
}

std::optional<CommitAction> CommitMachine::answered(const Answered& event, Instant now) {
  const bool is_current = event.number == number_ || ELRUN_PLANTED(late_answer_counts);
  if (!is_current || phase_ == CommitPhase::collecting) return std::nullopt;
  if (phase_ == CommitPhase::abandoning) return phase_ = CommitPhase::failed, until_ = Instant::max(), std::nullopt;
  if (auto accepted = accept(event.answer); !accepted.ok()) return fail(std::move(accepted).failure(), now);
  if (phase_ == CommitPhase::publishing && ELRUN_PLANTED(acknowledged_without_a_second_look)) return enter(CommitPhase::acknowledging, now);
  return enter(after(phase_), now);
}

/// Takes what the answer brings, or says why the save cannot go on.
Result<void> CommitMachine::accept(const CommitAnswer& answer) {
  if (const auto* failure = std::get_if<Failure>(&answer)) return *failure;
  switch (phase_) {
    case CommitPhase::looking_first:
    case CommitPhase::looking:
    case CommitPhase::looking_again: return may_save(expected<FencesSeen>(answer), terms_.fence, terms_.author, terms_.root);
    case CommitPhase::asking_space: return has_room(expected<SpaceLeft>(answer).bytes);
    case CommitPhase::reading_run: ticket_.root = expected<RunKnown>(answer).root; return {};
    case CommitPhase::naming: return name_attempt(expected<AttemptsFound>(answer));
    case CommitPhase::merging: manifest_ = expected<ManifestWritten>(answer); return {};
    default: (void)expected<Done>(answer); return {};
  }
}

Result<void> CommitMachine::has_room(Bytes left) const {
  if (left >= save_.needs) return {};
  return Failure{Code::no_space, Remedy::fix_config,
                 fmt::format("a checkpoint of step {} needs {} bytes under {}, {} bytes are free: free some space, "
                             "keep fewer checkpoints, or choose another directory",
                             save_.step, save_.needs.value(), terms_.root, left.value())};
}

/// A name is used once, also where what had it was removed since.
Result<void> CommitMachine::name_attempt(const AttemptsFound& found) {
  CheckpointId id{save_.step, terms_.fence, 1};
  const auto is_beyond = [&](const CheckpointId& taken) {
    if (taken.step == id.step && taken.fence == id.fence) id.attempt = std::max(id.attempt, taken.attempt + 1);
  };
  std::for_each(found.taken.begin(), found.taken.end(), is_beyond);
  if (id.attempt > attempt_max)
    return Failure{Code::exhausted, Remedy::fix_config, fmt::format("step {} was tried {} times", save_.step, attempt_max)};
  ticket_.id = id;
  votes_ = VoteCount{id, terms_.world};
  return {};
}

std::optional<CommitAction> CommitMachine::hear(const VoteArrived& event, Instant now) {
  if (phase_ != CommitPhase::collecting) return std::nullopt;
  if (auto counted = votes_.add(event.key, event.vote); !counted.ok()) return fail(std::move(counted).failure(), now);
  return votes_.is_complete() ? enter(CommitPhase::merging, now) : time_passed(now);
}

Failure CommitMachine::votes_missing() const {
  const std::vector<std::uint32_t> missing = votes_.missing();
  ELRUN_ASSERT(!missing.empty());
  return {.code = Code::protocol,
          .remedy = Remedy::abort_group,
          .what = fmt::format("checkpoint {}: {} did not vote", to_string(ticket_.id), ranks_for_people(missing)),
          .rank = Rank{missing.front()}};
}

std::optional<CommitAction> CommitMachine::time_passed(Instant now) {
  if (now < until_) return std::nullopt;
  switch (phase_) {
    case CommitPhase::collecting: {
      Failure why = votes_missing();
      why.code = Code::deadline_passed, why.remedy = Remedy::retry;
      why.what += fmt::format(" within {}", for_people(waits_));
      return fail(std::move(why), now);
    }
    case CommitPhase::asking_owner:
    case CommitPhase::asking_owner_again: return enter(after(phase_), now);
    case CommitPhase::abandoning: return phase_ = CommitPhase::failed, until_ = Instant::max(), std::nullopt;
    default: break;
  }
  failure_ = {Code::deadline_passed, Remedy::retry,
              fmt::format("the storage of checkpoint root {} has not answered for {}: the save waited for {}", terms_.root,
                          for_people(waits_), words(phase_))};
  phase_ = CommitPhase::failed, until_ = Instant::max();  // a removal would hang, too
  return std::nullopt;
}

std::optional<CommitAction> CommitMachine::fail(Failure why, Instant now) {
  const bool leaves_something = !is_private(phase_) && (!published_ || ELRUN_PLANTED(removed_after_commit));
  failure_ = std::move(why);
  return enter(leaves_something ? CommitPhase::abandoning : CommitPhase::failed, now);
}

std::optional<CommitAction> CommitMachine::enter(CommitPhase phase, Instant now) {
  phase_ = phase;
  const bool asks_owner = phase == CommitPhase::asking_owner || phase == CommitPhase::asking_owner_again;
  const std::optional<Duration> wait = is_over()                          ? std::nullopt
                                       : phase == CommitPhase::collecting ? terms_.limits.votes
                                       : asks_owner                       ? terms_.limits.owner
                                                                          : terms_.limits.storage;
  waits_ = wait.value_or(Duration{0});
  until_ = wait ? Deadline::after(now, *wait).at : Instant::max();
  CommitAction action{.number = ++number_, .ticket = ticket_, .what = {}};
  switch (phase) {
    case CommitPhase::looking_first:
    case CommitPhase::looking:
    case CommitPhase::looking_again: action.what = LookAtFences{}; break;
    case CommitPhase::asking_space: action.what = AskSpace{save_.step, save_.needs, save_.room}; break;
    case CommitPhase::reading_run: action.what = ReadRun{}; break;
    case CommitPhase::naming: action.what = ListAttempts{}; break;
    case CommitPhase::making_directory: action.what = MakeDirectory{}; break;
    case CommitPhase::merging: action.what = WriteManifest{votes_.votes()}; break;
    case CommitPhase::asking_owner:
    case CommitPhase::asking_owner_again: action.what = AskOwner{}; break;
    case CommitPhase::publishing: published_ = true, action.what = PublishCommit{manifest_}; break;
    case CommitPhase::acknowledging: action.what = Acknowledge{manifest_}; break;
    case CommitPhase::abandoning: action.what = Abandon{}; break;
    case CommitPhase::collecting:
    case CommitPhase::committed:
    case CommitPhase::failed: return std::nullopt;
  }
  return action;
}

std::string CommitMachine::waits_for() const {
  if (phase_ == CommitPhase::collecting)
    return fmt::format("the votes of {} on {}", ranks_for_people(votes_.missing()), to_string(ticket_.id));
  return std::string{words(phase_)};
}

}  // namespace elrun::inline v0
