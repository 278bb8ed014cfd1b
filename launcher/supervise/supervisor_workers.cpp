// Supervisor: what happens to workers, and what they say.
//
// A worker joins the world when it has asked for its peers, which every Job does once its program has loaded what it needs. Until
// then the workers of all nodes wait for it.
//
// When some workers of a node go on in the next generation, the others are started beside it, and the generation does not wait for
// them. Such a pending worker starts with the environment of the worker that died. Its program runs until it needs its peers, which may
// take a minute. Then this node asks for a generation in which it has a place. If it dies before that, its successor starts with the
// next generation, which waits for it if other workers of the node stay. So a program that fails at its start again and again uses up the restarts.
//
// Where starts are quick, pending workers are started before this node joins the next generation, and it joins with them (`SuccessorWait`).
#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "launcher/supervise/supervisor.hpp"
#include "lib/base/assert.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration last_messages_timeout = 1s;  // of a worker that has ended: its connection ends with it, unless a child of its holds that
constexpr Duration broken_line_most = 10s;      // well before workers give up waiting for the word that their generation is over
constexpr Duration own_failure_most =
    500ms;  // nobody need have died, but NCCL may call a peer's death an error of the system: whoever died is known by then
constexpr Duration tell_starting_after = 10s;  // a start that takes longer is told to the coordinator

}  // namespace

void Supervisor::on_worker_ended(const WorkerEnded& e) {
  const std::size_t i = e.worker.value();
  ELRUN_ASSERT(i < workers_.size() && !workers_[i].ending);
  Worker& w = workers_[i];
  const auto after_the_end = [&] {
    return fmt::format(
        "{} ended by {} after the job was over; it does not count: the exit code of elrun is the job's. If it failed in its last work (an export), start the job again: it is over at once, and does that work again",
        workers_.name(i), describe(e.ending));
  };
  if (phase_ == Phase::running && e.ending.ok() && !job_.is_over() && w.owes_end()) return ends_early(i, e);
  w.ends(e, now_);
  judged_.push_back({e.worker, e.ending, w.cause(), is_own_failure(w), w.in_world()});
  hangs_.forget(e.worker);
  successors_.ended(e.worker);
  if (!w.in_world()) return on_pending_ended(i);
  if (phase_ == Phase::joining) {  // one that was to stay: the next world gets a fresh one
    act(workers_.collect_at_once(i));
    say(Level::warning, fmt::format("{} ended by {} between generations", workers_.name(i), describe(e.ending)));
    return fail_preparation(w);
  }
  if (phase_ == Phase::stopping) {
    // What failed beside the worker that ended the generation, or before it: the coordinator puts them in order.
    // Of one that was told of while it lived, the cause is known. What its program makes of elrun's signal (a handler that exits, an error out of a call) is none.
    const bool ended_by_elrun =
        w.signalled_to_end && (w.told_alive || e.ending.code() == 128 + SIGTERM || e.ending.code() == 128 + SIGKILL);
    if (is_own_failure(w)) fails_while_it_stays(i);
    if (stop_.rejoins() && !job_.is_over() && !e.ending.ok() && (!ended_by_elrun || w.failed_at < stop_.since())) tell_of_failure(i);
    if (!e.ending.ok() && !w.signalled_to_end && job_.is_over()) say(Level::error, after_the_end());
    judge_last_work(i);
    act(SignalGroup{e.worker, SIGKILL});  // what it started and left behind
    return stop_if_done();
  }
  if (!e.ending.ok() && job_.is_over()) {
    say(Level::error, after_the_end());
  } else if (!e.ending.ok()) {
    say(Level::error, fmt::format("{} ended by {}{} in generation {}{}", workers_.name(i), w.cause(),
                                  e.death.error.empty() ? "" : fmt::format(" ({})", e.death.error), generation_.last().number,
                                  e.death.evidence.empty() ? "" : ": " + e.death.evidence));
    generation_.fail_here();
    if (w.hung.empty())
      job_.worker_failed(e.ending, e.death.error);  // one that hung was ended by elrun, which says nothing of a checkpoint
    job_.recovery().lost(now_);
    tell_of_failure(i);
    join_as_broken();
  }
  if (all_ended_well(view())) act(tell_done(view()));
  act(tell_starting(line_, view()));
  end_without_coordinator();
}

// The node was asked to leave. What a worker was doing by itself after the end of the job, such as an export, is not done. Where this is the only node, whoever
// starts nodes hears of it by the exit code: another one goes on from the last checkpoint and does it again. One of several nodes would find no other there. A worker
// that was killed before it knew of the end had no such work.
void Supervisor::judge_last_work(std::size_t worker) {
  const Worker& w = workers_[worker];
  const bool waited_for_a_world = w.was_killed && !w.session.job_over;
  if (!job_.is_over() || departure_.signal() == 0 || w.ending->ok() || !w.signalled_to_end || !w.in_world() || waited_for_a_world) return;
  const bool is_alone = generation_.world().seat.nodes == 1;
  if (is_alone) stop_.cut_short(departure_.signal(), departure_.why());
  say(Level::warning,
      fmt::format("{} ended by {} in its last work, because of {}. The job is done, but what its program does after that (an export) is "
                  "not: {}",
                  workers_.name(worker), describe(w.ending.value()), departure_.why(),
                  is_alone ? fmt::format("this node ends with {}", 128 + departure_.signal())
                           : std::string{"start the whole job again to do it, for a node that is started again alone finds no other"}));
}

bool Supervisor::is_own_failure(const Worker& w) const {
  if (w.ending->ok() || job_.is_over() || w.life.was_dismissed()) return false;
  if (phase_ == Phase::joining && preparation_.beside) return true;
  return phase_ == Phase::running || (phase_ == Phase::stopping && stop_.rejoins() && w.in_world() && !w.signalled_to_end);
}

// A Job's worker says that the job is over before it ends with exit code 0. One that ends without it has left in the middle of
// the job: its program called exit or returned. Its peers wait for it, so this counts as a failure. So does the end of a pending worker: without
// it nobody would start another one. There is no message of its that could be waited for.
void Supervisor::ends_early(std::size_t worker, const WorkerEnded& e) {
  Worker& w = workers_[worker];
  if (w.in_world() && w.session.connection && !w.early.seen) {
    w.early.seen = e;
    w.early.judge_by = now_ + last_messages_timeout;
    return;
  }
  WorkerEnded failed = e;
  failed.ending = {.exit_code = 1};
  w.early.as = !w.in_world() ? "exit code 0"
               : generation_.step() > 0
                   ? fmt::format("exit code 0 after step {}, before the end of the job was decided", generation_.step())
                   : "exit code 0 with no step decided in this generation, before the end of the job was decided";
  failed.death.evidence =
      "the program left in the middle of the job: a Job's program goes on until next_step() returns nothing; job.stop() ends a job early, on all ranks";
  on_worker_ended(failed);
}

// Its generation was over, and it was to go on in the next one. Nobody asked it to end.
void Supervisor::fails_while_it_stays(std::size_t worker) {
  const Worker& w = workers_[worker];
  const bool closed_first = w.ending->signal == SIGKILL && !w.session.connection;  // the signal may be elrun's, which followed that
  say(Level::error,
      fmt::format("{} ended by {}{}{} when generation {} was over{}", workers_.name(worker), w.cause(),
                  w.death.error.empty() ? "" : fmt::format(" ({})", w.death.error), closed_first ? ", after the end of its session," : "",
                  generation_.last().number, w.death.evidence.empty() ? "" : ": " + w.death.evidence));
  job_.recovery().lost(now_);
  if (!generation_.failed_here()) job_.count_restart();  // else that was counted with the end of the generation
  generation_.fail_here();
}

void Supervisor::judge_early_end(std::size_t worker) {
  Worker& w = workers_[worker];
  w.early.judge_by.reset();
  if (!w.early.seen || w.ending) return;
  const WorkerEnded seen = *w.early.seen;
  on_worker_ended(seen);
}

void Supervisor::on_pending_ended(std::size_t worker) {
  act(workers_.collect_at_once(worker));
  const Worker& w = workers_[worker];
  if (!w.life.was_dismissed()) {
    say(Level::error, fmt::format("{} ended by {}{} before it was in a world{}", workers_.name(worker), w.cause(),
                                  w.death.error.empty() ? "" : fmt::format(" ({})", w.death.error),
                                  w.death.evidence.empty() ? "" : ": " + w.death.evidence));
    if (phase_ == Phase::running && !w.ending->ok()) generation_.fail_here(), tell_of_failure(worker);
    fail_preparation(w);
  }
  if (phase_ == Phase::stopping) stop_if_done();
  if (deadlines_.is_set(Wait::successors) && workers_.are_pending_ready()) join_next();
}

void Supervisor::tell_of_failure(std::size_t worker) {
  const bool is_signalled = phase_ == Phase::stopping && workers_[worker].signalled_to_end;
  const auto stopped_at = is_signalled ? std::optional{stop_.since()} : std::nullopt;
  act(Send{worker_failed(workers_, worker, generation_.last(), now_, stopped_at)});
}

// --- their start ---------------------------------------------------------------------------------------------------

// A worker that is started beside the new world is told of its place in the old one. Why it was started, and how often, is the new world's to say.
void Supervisor::start_workers(const World& before) {
  World over = before;
  over.restarts = generation_.world().restarts, over.cause = generation_.world().cause;
  for (const GivenPlace& given : workers_.give_places(generation_.places(), before.generation)) {
    const bool beside = given.kind == GivenPlace::Kind::start_beside;
    const bool is_connected = workers_[given.worker].session.connection.has_value();
    if (given.kind == GivenPlace::Kind::awaited) hangs_.forget_pending(local_rank(given.worker));
    if (given.kind == GivenPlace::Kind::welcome || (given.kind == GivenPlace::Kind::awaited && is_connected)) welcome(given.worker);
    else if (given.kind != GivenPlace::Kind::awaited) start_worker(given, beside ? over : generation_.world());
  }
}

void Supervisor::start_worker(const GivenPlace& given, const World& world) {
  act(workers_.start(given, world, job_.node_restarts()));
  successors_.starts(local_rank(given.worker), now_);
  if (given.kind == GivenPlace::Kind::start_beside) hangs_.starts_beside(local_rank(given.worker), now_);
}

// The generation is over, and no process of it acts for it any more. Where a start takes little time, the dead workers' successors are started now, and the wait
// is set: this node joins the next world when they are ready. Where none of its workers goes on, the coordinator begins it without this node otherwise.
void Supervisor::bring_successors_along(const World& revoked) {
  if (!generation_.world().takes_more || options_.round.max_restarts == 0) return;  // without restarts a failure ends the job
  const std::vector<GivenPlace> given = workers_.give_places_beside();
  const Duration wait = successors_.at_most(static_cast<std::uint32_t>(given.size()), generation_.world().seat.world_size);
  if (wait == Duration{0}) return;
  for (const GivenPlace& place : given) {
    start_worker(place, revoked);
    workers_[place.worker].brought_along = true;
  }
  deadlines_.set(Wait::successors, now_ + wait);
  say(Level::info, fmt::format("{} again; this node waits until {} ready, {} at most, and then joins the next generation",
                               given.size() == 1 ? "1 worker is started" : fmt::format("{} workers are started", given.size()),
                               given.size() == 1 ? "it is" : "they are", for_people(wait)));
}

void Supervisor::watch_starts() {
  line_.forget_starting();
  deadlines_.clear(Wait::tell_starting);
  hangs_.begin_generation(workers_.all(), now_);
  if (!any(workers_.all(), &Worker::is_starting) || !generation_.has_others()) return;
  Duration after = std::min(tell_starting_after, options_.timeouts.session / 2);
  if (options_.hang_timeout > Duration{0}) after = std::min(after, options_.hang_timeout / 2);
  deadlines_.set(Wait::tell_starting, now_ + after);
}

void Supervisor::welcome(std::size_t worker) {
  Worker& w = workers_[worker];
  w.enter_world(now_, options_.timeouts.returning);
  act(Answer{*w.session.connection, Welcome{workers_.place_in(worker, generation_.world()), job_.remembered()}});
}

void Supervisor::becomes_ready(std::size_t worker) {
  if (ELRUN_PLANTED(ready_is_forgotten) && phase_ != Phase::running) return;
  if (!workers_[worker].becomes_ready()) return;
  hangs_.forget_pending(local_rank(worker));
  successors_.has_started(local_rank(worker), now_);
  act(offer_more(line_, view()));
  if (deadlines_.is_set(Wait::successors) && workers_.are_pending_ready()) join_next();
  tell_prepared();
}

// Its peers have not answered: some of them are not in the world yet. Later in a generation an all_gather is the program's own.
bool Supervisor::waits_for_world(const Worker& w) const {
  return generation_.step() == 0 && w.in_world() && w.session.connection && calls_.is_gathering(*w.session.connection);
}

// --- what they say -------------------------------------------------------------------------------------------------

void Supervisor::refuse(ConnectionId connection, Failure why) {
  act(Answer{connection, Refusal{std::move(why)}});
  act(HangUp{connection});
}

void Supervisor::on_worker_message(ConnectionId from, const Hello& hello) {
  const auto i = worker_that_says(workers_.all(), hello);
  if (phase_ != Phase::running && !(i && workers_[*i].is_pending()))
    return refuse(from, {Code::generation_over, Remedy::exit_process, "this node's generation is over"});
  const Seat& seat = generation_.world().seat;
  if (!i)
    return refuse(
        from,
        {Code::refused, Remedy::fix_config,
         fmt::format("rank {} of {} is no worker of node {} (ranks {}-{} of {}); does the program change RANK or WORLD_SIZE?", hello.rank,
                     hello.world, options_.node.value(), seat.base_rank, seat.base_rank + generation_.places() - 1, seat.world_size)});
  Worker& w = workers_[*i];
  if (w.session.connection && !w.ending && hello.pid != 0 && w.session.pid == hello.pid)
    return refuse(from,
                  {Code::refused, Remedy::fix_config,
                   fmt::format("this process, rank {}, has a session already, and may have one: elrun::run opens its own, so a program "
                               "that calls it opens none beside it",
                               hello.rank)});
  if (w.ending || w.session.connection)
    return refuse(from,
                  {Code::already_exists, Remedy::fix_config,
                   fmt::format("rank {} is connected already or has ended: only one process per rank may open a session", hello.rank)});
  const bool is_awaited = w.is_awaited(generation_.last());
  w.opens(from, hello);
  if (hello.is_job) job_.know_as_job();
  if (w.is_pending() || is_awaited) {
    if (w.life.was_dismissed() || !hello.stays)
      return refuse(from, {Code::generation_over, Remedy::exit_process, "the generation of this worker is over"});
    act(workers_.tell_it_is_early(*i, preparation_.beside.value_or(generation_.world()), job_.remembered()));
  }
  if (w.is_pending()) {
    w.pending.says_ready = hello.says_ready;
    return hangs_.sign_pending(local_rank(*i), now_);
  }
  hangs_.opens_in_world(local_rank(*i), now_);
  act(tell_job(line_, view()));
  welcome(*i);
  act(tell_starting(line_, view()));
}

void Supervisor::on_worker_message(ConnectionId from, const CheckpointSaved& m) {
  if (worker_with(workers_.all(), from))
    job_.checkpoint_saved(m.acknowledgement);  // also when that generation is over: the checkpoint is there
}

void Supervisor::on_worker_message(ConnectionId from, const WentOnFrom& m) {
  const auto i = worker_with(workers_.all(), from);
  if (phase_ != Phase::running || m.generation != generation_.last() || !i) return;
  workers_[*i].session.waits_for_storage = false;
  job_.went_on_from(m.restoration);
}

// No hang: an operation on a storage has a deadline of its own, and the worker says this for no longer than the storage may take. The log has the first word of each wait.
void Supervisor::on_worker_message(ConnectionId from, const WaitsForStorage& m) {
  const auto i = worker_with(workers_.all(), from);
  if (phase_ != Phase::running || m.generation != generation_.last() || !i) return;
  hangs_.sign_in_world(local_rank(*i), now_);
  if (m.waiting.why.empty()) return;
  const bool is_known =
      std::any_of(workers_.all().begin(), workers_.all().end(), [](const Worker& w) { return w.runs() && w.session.waits_for_storage; });
  workers_[*i].session.waits_for_storage = true;
  if (!is_known)
    say(Level::warning, fmt::format("{} waits for the storage of its checkpoints, {}: {}. This is no hang, and uses up no restart",
                                    workers_.name(*i), m.waiting.directory, m.waiting.why));
}

void Supervisor::on_worker_message(ConnectionId from, const ReadyForPlace& m) {
  if (const auto i = worker_with(workers_.all(), from); i && workers_[*i].is_pending() && m.generation == workers_[*i].began_as->generation)
    becomes_ready(*i);
}

void Supervisor::on_worker_message(ConnectionId from, const Returned& m) {
  const auto i = worker_with(workers_.all(), from);
  if (!i || phase_ != Phase::running || m.generation != generation_.last()) return;
  workers_[*i].returns.by.reset();
  hangs_.comes_back(local_rank(*i), now_);
}

void Supervisor::on_worker_message(ConnectionId from, const StepDecided& m) {
  const auto worker = worker_with(workers_.all(), from);
  // A step that is decided stays so. The word of it may come behind the loss that ended its generation.
  if ((phase_ != Phase::running && phase_ != Phase::stopping) || !worker || m.generation != generation_.last()) return;
  if (phase_ == Phase::running) note_progress(*worker, m.step);
  if (!generation_.decide(m.step)) return;  // another worker of this node said so already
  successors_.decided(m.step, now_);
  job_.step_decided({StepNumber{m.step}, m.steps, m.loss});
  act(Send{Progress{m.generation, m.step}});
}

void Supervisor::note_progress(std::size_t worker, std::uint64_t step) {
  workers_[worker].session.decided = true;
  workers_[worker].session.waits_for_storage = false;
  if (const auto took = job_.recovery().recovered(now_))
    say(Level::info, fmt::format("recovered: step {} decided {} after the loss", step, for_people(*took)));
  hangs_.step_decided(workers_.all(), now_);
  workers_.have_joined();
  successors_.has_started(local_rank(worker), now_);
  act(tell_starting(line_, view()));
}

// A program that uses libelrun without its Job has no steps: it lives as long as its session says so.
void Supervisor::on_worker_message(ConnectionId from, const Alive&) {
  if (const auto i = worker_with(workers_.all(), from); i && !workers_[*i].session.is_job) hangs_.sign_in_world(local_rank(*i), now_);
}

void Supervisor::on_worker_wrote(LocalRank worker) {
  if (worker.value() >= workers_.size()) return;
  if (!workers_[worker.value()].session.is_job) hangs_.sign_in_world(worker, now_);
  hangs_.sign_pending(worker, now_);
}

void Supervisor::on_worker_message(ConnectionId from, const JobOver& m) {
  // Also when that generation is over: all its members decided it before.
  const auto i = worker_with(workers_.all(), from);
  if (!i || (m.generation != generation_.last() && m.generation != generation_.before())) return;
  if (!job_.is_over()) act(Send{JobFinished{generation_.last()}});
  job_.finish();
  workers_[*i].session.job_over = true;
  workers_.job_is_over();
  dismiss_pending();
  if (phase_ == Phase::joining) {  // there is no next generation for those who stayed
    phase_ = Phase::stopping;
    stop_.begin({}, now_);
  }
  if (phase_ == Phase::stopping && workers_.some_stay()) let_last_work();
  hangs_.end_generation();  // what they do now is work of their own
  deadlines_.clear(Wait::end_hung);
  act(Answer{from, JobOver{m.generation}});
}

void Supervisor::on_worker_message(ConnectionId from, const PrepareToLeave& m) {
  const auto i = worker_with(workers_.all(), from);
  if (!i || !deadlines_.is_set(Wait::leave) || m.generation != generation_.last()) return;
  workers_[*i].ready_to_leave = true;
  if (workers_.have_saved()) leave(departure_.signal(), departure_.why());
}

void Supervisor::on_worker_message(ConnectionId from, const GenerationOver& m) {
  const auto i = worker_with(workers_.all(), from);
  if (!i) return;
  Worker& w = workers_[*i];
  if (w.is_pending()) {
    if (!w.pending.says_ready && m.generation == w.began_as->generation) becomes_ready(*i);
    return;
  }
  if (m.generation != generation_.last()) return;
  if (phase_ == Phase::running && m.why.code == Code::peer_lost) {
    LostPeers& lost = generation_.lost_peers();
    if (w.peer_loss == PeerLoss::none) w.peer_loss = PeerLoss::said;
    hold_the_broken();
    if (m.unreachable && !ELRUN_PLANTED(unreachable_is_not_told) && m.why.peer &&
        lost.add_unreachable({m.generation, workers_.rank(*i), m.why.peer->value(), w.session.is_job, m.why.what}) && line_.can_report())
      act(Send{lost.unreachable().back()});
    // A worker that died or a node that fell silent is known by then, and is the better reason.
    const Duration known_within =
        m.own ? own_failure_most : std::min(options_.timeouts.heartbeat_limit + options_.timeouts.reconnect_grace, broken_line_most);
    if (const auto& at = deadlines_.at(Wait::broken_line); !at || now_ + known_within < *at)
      deadlines_.set(Wait::broken_line, now_ + known_within);
    if (lost.add({static_cast<std::uint32_t>(*i), m.why.what, m.own})) join_as_broken();
    return;
  }
  if (phase_ != Phase::stopping || m.why.code != Code::generation_over || !w.life.stays()) return;
  if (w.life.is(Life::leaving)) w.life.enter(Life::stayed);
  w.returns.within = std::clamp<Duration>(m.returns_within, Duration{0}, 24h);
  stop_if_done();
}

void Supervisor::on_worker_message(ConnectionId from, const StoreRequest& m) {
  const auto i = worker_with(workers_.all(), from);
  if (!i) return refuse(from, {Code::protocol, Remedy::exit_process, "a store call before Hello"});
  if (phase_ != Phase::running && !(phase_ == Phase::stopping && job_.is_over()))
    return act(Answer{from, failed_call(m, Code::generation_over, "the generation is over")});
  if (m.generation != generation_.last())
    return act(Answer{
        from, failed_call(m, Code::generation_over,
                          fmt::format("the call is for generation {}, this is {}", m.generation.number, generation_.last().number))});
  if (auto refused = calls_.add(from, m, now_)) return act(Answer{from, *std::move(refused)});
  if (line_.is_serving()) act(Send{StoreCall{from, m}});
  const bool joins = m.op == StoreOp::all_gather && phase_ == Phase::running && !std::exchange(workers_[*i].session.joined, true);
  if (!joins) return;
  successors_.has_started(local_rank(*i), now_);
  act(tell_starting(line_, view()));
}

// `elrun ckptd` outlives generations, and so do its keys. Its calls get the generation that this node is in.
void Supervisor::on_writer_message(const FromWriter& e) {
  if (const auto* saved = std::get_if<CheckpointSaved>(&e.message)) return job_.checkpoint_saved(saved->acknowledgement);
  const auto* call = std::get_if<StoreRequest>(&e.message);
  if (call == nullptr) return;
  if (phase_ != Phase::running) return act(Answer{e.from, failed_call(*call, Code::generation_over, "no generation runs on this node")});
  StoreRequest request = *call;
  request.generation = generation_.last();
  if (auto refused = calls_.add(e.from, request, now_)) return act(Answer{e.from, *std::move(refused)});
  if (line_.is_serving()) act(Send{StoreCall{e.from, std::move(request)}});
}

void Supervisor::on_hung_up(ConnectionId from) {
  calls_.forget(from);
  const auto i = worker_with(workers_.all(), from);
  if (!i) return;
  Worker& w = workers_[*i];
  w.session.connection.reset();
  act(Send{StoreCallerGone{from}});
  if (w.early.seen) return judge_early_end(*i);
  if (!w.life.stays() && !w.life.is(Life::ready)) return;
  if (w.life.stays()) w.give_up();                      // nobody can tell it its place
  add(actions_, SignalGroup{local_rank(*i), SIGKILL});  // not `act`: as a rule it is ending, and its end is its own
}

}  // namespace elrun::inline v0::launcher
