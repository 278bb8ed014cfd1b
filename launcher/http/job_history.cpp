#include "launcher/http/job_history.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/format/records.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::size_t failure_text_max = 4096;   // of a failure's words
constexpr std::size_t straggler_text_max = 256;  // of a slow rank's node and device

CauseLabel label_of(EndCause cause) {
  switch (cause) {
    case EndCause::failure:
    case EndCause::hang:
    case EndCause::unreachable: return CauseLabel::worker;
    case EndCause::loss:
    case EndCause::leave: return CauseLabel::node;
    case EndCause::growth: return CauseLabel::growth;
    case EndCause::stale:
    case EndCause::other: break;
  }
  return CauseLabel::other;
}

}  // namespace

std::string_view word_of(CauseLabel label) {
  switch (label) {
    case CauseLabel::worker: return "worker";
    case CauseLabel::node: return "node";
    case CauseLabel::growth: return "growth";
    case CauseLabel::other: break;
  }
  return "other";
}

std::string_view word_of(Meeting meeting) {
  switch (meeting) {
    case Meeting::world: return "world";
    case Meeting::refused: return "refused";
    case Meeting::deadline: return "deadline";
    case Meeting::ended: break;
  }
  return "ended";
}

std::string_view word_of(WorkerRecord::State state) {
  switch (state) {
    case WorkerRecord::State::starting: return "starting";
    case WorkerRecord::State::running: return "running";
    case WorkerRecord::State::done: return "done";
    case WorkerRecord::State::failed: break;
  }
  return "failed";
}

std::string_view word_of(Supervisor::Phase phase) {
  switch (phase) {
    case Supervisor::Phase::joining: return "joining";
    case Supervisor::Phase::running: return "running";
    case Supervisor::Phase::stopping: return "stopping";
    case Supervisor::Phase::finished: break;
  }
  return "finished";
}

void JobHistory::saw(const Turn& turn) {
  note_event(turn);
  for (const JudgedEnd& ended : turn.supervisor.judged_ends()) note_end(ended, turn.now);
  note_time(turn);
  record_.node_restarts = turn.supervisor.node_restarts();
  for (const Action& action : turn.actions) note_action(turn, action);
  note_phases();
  record_.phase = turn.supervisor.phase();
  if (record_.phase == Supervisor::Phase::finished) record_.workers.clear();
  for (auto& [local, worker] : record_.workers)
    if (const auto rank = turn.supervisor.rank(LocalRank{local})) worker.rank = rank->value();
}

void JobHistory::note_event(const Turn& turn) {
  if (std::holds_alternative<LinkUp>(turn.event)) {
    record_.connected = true;
    record_.waiting_for.clear();
  } else if (const auto* down = std::get_if<LinkDown>(&turn.event)) {
    record_.connected = false;
    record_.waiting_for = "the coordinator: " + down->why.what.substr(0, failure_text_max);
  } else if (const auto* signal = std::get_if<SignalCame>(&turn.event)) {
    if (!std::exchange(record_.leaving, true)) record_.leaving_because = signal_name(signal->number);
  } else if (const auto* notice = std::get_if<NoticeCame>(&turn.event)) {
    if (!std::exchange(record_.leaving, true))
      record_.leaving_because = "preempt notice (" + notice->words.substr(0, failure_text_max) + ")";
  } else if (const auto* started = std::get_if<WorkerStarted>(&turn.event)) {
    if (const auto worker = record_.workers.find(started->worker.value()); worker != record_.workers.end())
      worker->second.pid = started->pid, worker->second.state = WorkerRecord::State::running;
  } else if (const auto* said = std::get_if<FromCoordinator>(&turn.event)) {
    if (const auto* world = std::get_if<World>(&said->message);
        world != nullptr && world->generation == turn.supervisor.last_generation() && world->generation != record_.world.generation)
      began_generation(turn, *world);
    else if (const auto* waiting = std::get_if<Waiting>(&said->message)) record_.waiting_for = waiting->why.substr(0, failure_text_max);
    else if (const auto* revoke = std::get_if<Revoke>(&said->message); revoke != nullptr && revoke->generation == record_.world.generation)
      note_revoke(*revoke, turn.now);
    else if (const auto* resumed = std::get_if<Resumed>(&said->message); resumed != nullptr && resumed->fresh)
      ++record_.coordinator_changes;
  } else if (const auto* worker = std::get_if<FromWorker>(&turn.event)) {
    if (std::holds_alternative<Hello>(worker->message))
      for (auto& [local, known] : record_.workers) known.is_job = turn.supervisor.is_job(LocalRank{local});
    note_checkpoint(worker->message, turn.now);
  } else if (const auto* writer = std::get_if<FromWriter>(&turn.event)) {
    note_checkpoint(writer->message, turn.now);
  }
}

/// What workers said. What the coordinator and this node did comes with the other notes.
void JobHistory::note_time(const Turn& turn) {
  const auto* worker = std::get_if<FromWorker>(&turn.event);
  if (worker == nullptr) return;
  Ledger& ledger = record_.ledger;
  if (const auto* hello = std::get_if<Hello>(&worker->message); hello != nullptr && hello->is_job) ledger.know_steps();
  if (const auto* step = std::get_if<StepDecided>(&worker->message)) note_time(turn, *step);
  if (record_.phase != Supervisor::Phase::running) return;
  if (const auto* went = std::get_if<WentOnFrom>(&worker->message); went != nullptr && went->generation == record_.world.generation)
    ledger.went_on_from(went->restoration.step, went->restoration.steps_again);
  if (const auto* slow = std::get_if<RankIsSlow>(&worker->message); slow != nullptr && slow->generation == record_.world.generation) {
    SlowRank named = slow->slow;
    for (std::string* text : {&named.node, &named.device}) text->resize(std::min(text->size(), straggler_text_max));
    ledger.rank_is_slow(slow->generation.number, named);
  }
  if (const auto* over = std::get_if<GenerationOver>(&worker->message); over != nullptr && over->generation == record_.world.generation)
    ledger.lost(turn.now, over->why.what);
}

/// Of an incident that has just come to its end. A program without steps tells of no phase after `agree`.
void JobHistory::note_phases() {
  const Ledger& ledger = record_.ledger;
  if (std::exchange(recovered_, ledger.recovered_count()) == ledger.recovered_count()) return;
  for (std::size_t i = 0; i < time_causes; ++i) {
    const auto cause = static_cast<TimeCause>(i);
    if (!is_recovery(cause) || (!ledger.knows_steps() && cause > TimeCause::agree)) continue;
    record_.phase_seconds.try_emplace(cause, phase_bounds).first->second.observe(seconds(ledger.incidents().back().spent[i]));
  }
}

/// The first worker that tells of a step tells for all: steps, and the waits in them, are the same for all.
void JobHistory::note_time(const Turn& turn, const StepDecided& step) {
  const bool is_new = std::any_of(turn.actions.begin(), turn.actions.end(), [](const Action& action) {
    const auto* send = std::get_if<Send>(&action);
    return send != nullptr && std::holds_alternative<Progress>(send->message);
  });
  const bool tells_more = step.times.step == Duration{0} && step.times.saves > Duration{0} && step.generation == record_.world.generation &&
                          StepNumber{step.step} == record_.last_step.decided;
  if (is_new || tells_more) record_.ledger.decided(turn.now, step.step, step.times);
}

/// All workers of a generation say the same.
void JobHistory::note_checkpoint(const Message& message, Instant now) {
  CheckpointRecord& record = record_.checkpoints;
  if (const auto* wait = std::get_if<WaitsForStorage>(&message)) return note_wait(*wait, now);
  if (const auto* went = std::get_if<WentOnFrom>(&message); went != nullptr && went->generation == record_.world.generation) {
    record.went_on_from = went->restoration;
    record.waiting.reset();
    if (went->restoration.checkpoint == in_memory_checkpoint) return;  // what is on the storage is as old as before
    loaded_ = went->restoration.checkpoint;
    record.safe_at = now;
  } else if (const auto* saved = std::get_if<CheckpointSaved>(&message)) {
    if (!is_newer(saved->acknowledgement)) return;
    acknowledged_ = saved->acknowledgement;
    record.safe_at = now;
    record.last_failure.reset();
    record.waiting.reset();
  } else if (const auto* failed = std::get_if<SaveFailed>(&message); failed != nullptr && failed->generation == record_.world.generation) {
    if (failed->count <= saves_failed_here_) return;
    saves_failed_here_ = failed->count;
    ++record.saves_failed;
    record.failed_step = failed->step;
    record.last_failure = failed->why;
    record.last_failure->what.resize(std::min(failed->why.what.size(), failure_text_max));
  } else if (const auto* left = std::get_if<SaveLeftOut>(&message); left != nullptr && left->generation == record_.world.generation) {
    if (left->count <= saves_left_out_here_) return;
    saves_left_out_here_ = left->count;
    ++record.saves_left_out;
    record.left_out_step = left->step;
  } else if (const auto* part = std::get_if<PartVoted>(&message)) {
    if (part->refusal) {
      ++record.parts.refused;
      return;
    }
    ++record.parts.written;
    record.parts.bytes += part->bytes;
    record.parts.rate = part->took > Duration{0} ? static_cast<double>(part->bytes) / seconds(part->took) : 0;
  }
}

/// Than what is known. All workers tell of a save, and a leader that was frozen tells late of an old one: neither makes the newest checkpoint younger.
bool JobHistory::is_newer(const std::string& acknowledgement) const {
  if (acknowledgement == acknowledged_ || was_acknowledged_before(acknowledgement, acknowledged_)) return false;
  const auto saved = decode_acknowledgement(as_bytes(acknowledgement), "what a worker says of a save");
  if (!saved.ok() || !loaded_.starts_with(saved->directory + "/")) return true;
  const auto known = parse_checkpoint_id(loaded_.substr(loaded_.rfind('/') + 1));
  return !known || std::tie(saved->id.fence, saved->id.step, saved->id.attempt) > std::tie(known->fence, known->step, known->attempt);
}

/// Of several workers the one that knows the trouble is shown.
void JobHistory::note_wait(const WaitsForStorage& wait, Instant now) {
  CheckpointRecord& record = record_.checkpoints;
  if (wait.generation != record_.world.generation || record_.phase != Supervisor::Phase::running) return;
  if (!record.waiting) record.waiting_since = now;
  if (record.waiting && wait.waiting.why.empty()) return;
  record.waiting = wait.waiting;
  for (std::string* text : {&record.waiting->directory, &record.waiting->why}) text->resize(std::min(text->size(), failure_text_max));
}

void JobHistory::began_generation(const Turn& turn, const World& world) {
  if (record_.world.generation.number != 0 && world.generation.lineage != record_.world.generation.lineage) ++record_.coordinator_changes;
  const bool again = record_.world.generation.number != 0;
  const CauseLabel cause = end_cause_.value_or(CauseLabel::other);
  record_.world = world;
  record_.ledger.world_began(turn.now, world.generation.number, world.seat.world_size);
  record_.waiting_for.clear();
  record_.last_step_at.reset();  // a step of another generation is not one step away
  ++record_.meetings[Meeting::world];
  if (waits_since_) record_.meeting_seconds.observe(seconds(turn.now - *waits_since_));
  if (lost_at_) record_.recovery_seconds.try_emplace(cause, recovery_bounds).first->second.observe(seconds(turn.now - *lost_at_));
  start_cause_ = again ? std::optional{cause} : std::nullopt;
  waits_since_.reset();
  lost_at_.reset();
  end_cause_.reset();
  saves_failed_here_ = saves_left_out_here_ = 0;
  record_.checkpoints.waiting.reset();
}

void JobHistory::note_end(const JudgedEnd& ended, Instant now) {
  ++record_.worker_exits[{ended.ending.exit_code, ended.ending.signal}];
  const auto found = record_.workers.find(ended.worker.value());
  if (found == record_.workers.end()) return;
  WorkerRecord& worker = found->second;
  worker.state = ended.ending.ok() ? WorkerRecord::State::done : WorkerRecord::State::failed;
  if (!ended.is_failure) return;
  if (!lost_at_) lost_at_ = now;
  if (!end_cause_ || end_cause_ == CauseLabel::growth) end_cause_ = CauseLabel::worker;
  if (start_cause_ == CauseLabel::growth && record_.phase == Supervisor::Phase::stopping) start_cause_ = end_cause_;
  const std::string who = fmt::format("{}rank {}", ended.was_in_world ? "" : "the successor of ", worker.rank);
  record_.last_failure = fmt::format("{} (local rank {}, pid {}) ended by {} in generation {}", who, found->first, worker.pid, ended.cause,
                                     record_.world.generation.number);
  record_.ledger.lost(now, fmt::format("{} ended by {}", who, ended.cause));
}

void JobHistory::note_revoke(const Revoke& revoke, Instant now) {
  const EndCause cause = end_cause_of(revoke);
  const bool is_planned = cause == EndCause::growth || cause == EndCause::stale || cause == EndCause::leave;
  record_.ledger.pushed(now, revoke.why.what, is_planned ? Ledger::Cut::without_failure : Ledger::Cut::by_failure);
  end_cause_ = start_cause_ = label_of(cause);
  if (cause == EndCause::growth || cause == EndCause::stale) return;  // nothing failed
  record_.last_failure = revoke.why.what.substr(0, failure_text_max);
  if (!lost_at_) lost_at_ = now;
}

void JobHistory::note_action(const Turn& turn, const Action& action) {
  if (const auto* finish = std::get_if<Finish>(&action)) {
    record_.ledger.finished(turn.now);
    return note_finish(*finish, turn.event);
  }
  if (const auto* spawn = std::get_if<Spawn>(&action)) {
    record_.workers.insert_or_assign(spawn->worker.value(), WorkerRecord{.rank = spawn->world.seat.base_rank + spawn->place});
    record_.worker_restarts[start_cause_.value_or(CauseLabel::other)] += start_cause_ ? 1 : 0;
    if (turn.supervisor.phase() == Supervisor::Phase::joining) record_.ledger.stopped(turn.now);  // it brings successors along
  }
  if (const auto* release = std::get_if<Release>(&action)) record_.workers.erase(release->worker.value());
  const auto* send = std::get_if<Send>(&action);
  if (send == nullptr) return;
  if (const auto* join = std::get_if<Join>(&send->message); join != nullptr && !join->resuming) {
    record_.ledger.stopped(turn.now);
    if (!waits_since_) waits_since_ = turn.now;
  }
  if (std::holds_alternative<JobFinished>(send->message)) record_.ledger.job_over(turn.now);
  if (!std::holds_alternative<Progress>(send->message)) return;
  record_.checkpoints.waiting.reset();
  ++record_.steps;
  if (record_.last_step_at) record_.step_seconds.observe(seconds(turn.now - *record_.last_step_at));
  record_.last_step = turn.supervisor.newest_step();
  record_.last_step_at = record_.last_decided_at = turn.now;
  record_.last_step_wall_ns = turn.wall_ns;
}

void JobHistory::note_finish(const Finish& finish, const Event& event) {
  if (!finish.first_failure.empty()) record_.last_failure = finish.first_failure.substr(0, failure_text_max);
  if (!waits_since_) return;
  const auto* said = std::get_if<FromCoordinator>(&event);
  const bool refused = said != nullptr && std::holds_alternative<Refused>(said->message);
  ++record_.meetings[refused ? Meeting::refused : finish.exit_code == exit_code::join_deadline ? Meeting::deadline : Meeting::ended];
  waits_since_.reset();
}

}  // namespace elrun::inline v0::launcher
