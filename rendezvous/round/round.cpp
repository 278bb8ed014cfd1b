// The idea: an event only changes what is known of its node; `advance` then looks at everything that is known, and draws
// the conclusions in one fixed order: who is lost, does a newcomer end the generation, can the next one form, is it time
// to give up, what are the waiting told, when to look again. So no event has to know the others, and a tick is an event
// that changes nothing.
//
//            form                          revoke
//   forming -------> running generation ------------> revoked: every living member acknowledges
//      ^                     |                               and joins again, or is lost
//      |                     | verdict                        |
//      +---------------------+--------------------------------+

#include "rendezvous/round/round.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {

Round::Round(RoundSetup setup)
    : setup_{std::move(setup)},
      terms_{{setup_.run, setup_.nodes_min, setup_.nodes_max, setup_.version, setup_.timeouts.heartbeat_limit}},
      earlier_{setup_.generation_floor, setup_.floor_may_run},
      succession_{setup_.elected} {}

std::vector<RoundAction> Round::step(const RoundEvent& event, Instant now) {
  // A coordinator that was itself stopped (paused, swapped out) heard nobody: that is nobody's silence but its own.
  // Who had a short time to come back may have done so: its words are behind this event.
  if (const Duration late = wake_up_.late(now);
      late > setup_.timeouts.reconnect_grace / 4 && !ELRUN_PLANTED(coordinator_blames_nodes_for_its_nap)) {
    nodes_.compensate_stall(late, setup_.timeouts, now);
    if (late > setup_.timeouts.heartbeat) excuse_stall({late, now});
    wake_up_.caught_up(now);  // once for all that came meanwhile, or each of many thousand words would cost a walk over many thousand nodes
  }
  std::visit([&](const auto& e) { on(e, now); }, event);
  return std::exchange(actions_, {});
}

// What others had to do by a certain time they may have done: their words are behind this event, too.
void Round::excuse_stall(const Stall& stall) {
  names_.begin_anew(stall.end);
  current_.excuse(stall);
  if (recovery_) recovery_->excuse(stall);
  earlier_.excuse(stall);
  forming_.excuse(stall);
  for (const NodeId& id : nodes_.preparations()) nodes_.at(id).preparation.since += stall.length;
}

bool Round::may_end(Instant now) const { return verdict_.may_end(nodes_, terms_.nodes_max(), setup_.timeouts.verdict_linger, now); }

bool Round::joined(StreamNumber stream) const { return nodes_.is_open(stream) && nodes_.stream(stream).node.has_value(); }

std::optional<Generation> Round::running() const {
  if (!generation().runs()) return {};
  return generation().id();
}

// --- events -------------------------------------------------------------------------------------------------------

void Round::on(const StreamOpened& event, Instant now) {
  nodes_.open(event.stream, event.in_process, setup_.timeouts.heartbeat_limit, now, event.from);
  advance(now);
}

void Round::on(const StreamBroken& event, Instant now) {
  if (!nodes_.is_open(event.stream)) return;
  ask_host(event.stream);
  end_stream(event.stream, now);
  advance(now);
}

// Only where the stream came from the very address at which the process listens. Behind a translator that address is another host's here, which
// would refuse the connection while the process lives.
void Round::ask_host(StreamNumber stream) {
  const NodeTable::Stream& broken = nodes_.stream(stream);
  if (!broken.node || verdict_.is_given()) return;
  const Join& join = nodes_.at(*broken.node).join;
  if (join.liveness && join.liveness->address == broken.from) actions_.emplace_back(AskHost{join.who, *join.liveness});
}

// Draws no conclusion: conclusions lead here, too.
void Round::end_stream(StreamNumber stream, Instant now) {
  if (const std::optional<NodeId> id = nodes_.stream(stream).node) {
    Node& node = nodes_.at(*id);
    if (verdict_.is_given() && verdict_.end_of_stream_confirms(node.join, nodes_.is_in_process(node))) {
      verdict_.confirmed(*id);
      remove(*id, false, now);
    } else {
      nodes_.change(node, [&](Node& n) {
        n.stream.reset();
        n.broken = n.broken_since = now;
      });
      // Nobody is left: that was this coordinator's own line. Its members have as long as with a fresh one.
      if (generation().runs() && nodes_.connected() == 0) current_.state.desert(now + setup_.timeouts.recovery);
    }
  }
  nodes_.close(stream);
}

void Round::on(const FromNode& event, Instant now) {
  if (!nodes_.is_open(event.stream)) return;  // closed by us; what was on its way no longer counts
  nodes_.heard(event.stream, now);
  if (std::holds_alternative<NodeAlive>(event.message)) return;
  if (const Join* message = std::get_if<Join>(&event.message)) {
    join(event.stream, *message, now);
  } else if (const std::optional<NodeId> speaker = nodes_.stream(event.stream).node) {
    said(nodes_.at(*speaker), event.message, now);
  }  // else: after Leave, or before Join; nothing that it says concerns a world
  advance(now);
}

void Round::on(const FromGuard& event, Instant now) {
  if (is_of_node_here(event.ended)) ended_.end(nodes_.at(event.ended.who.node).join.who, now + setup_.timeouts.reconnect_grace);
  advance(now);
}

// A process that came back on another stream lives, whatever its host seems to say.
void Round::on(const FromHost& event, Instant now) {
  if (const Node* const node = nodes_.find(event.ended.node); node != nullptr && node->join.who == event.ended && !node->stream)
    ended_.end(event.ended, now, EndedAgents::Witness::host);
  advance(now);
}

// It is believed only of the very process that is here: a guard may be late, and its node's next agent be here already; and who is no guard
// does not know the number. The process that coordinates lives. An agent that was in a later generation than this coordinator knows has
// another coordinator.
bool Round::is_of_node_here(const AgentEnded& ended) const {
  const Node* const node = nodes_.find(ended.who.node);
  if (node == nullptr || nodes_.is_in_process(*node)) return false;
  if (node->join.who != ended.who && !ELRUN_PLANTED(late_guard_is_believed)) return false;
  return ended.last.number <= std::max(generation().id().number, node->join.last.number);
}

void Round::on(const RoundTick&, Instant now) {
  wake_up_.fired();
  advance(now);
}

void Round::said(Node& node, const NodeMessage& message, Instant now) {
  const NodeId id = node.join.who.node;
  const auto current = [&](const Generation& g) { return node.member && g == generation().id() && !verdict_.is_given(); };
  if (const auto* m = std::get_if<Acknowledge>(&message)) {
    if (current(m->generation) && generation().is_revoked()) nodes_.change(node, [](Node& n) { n.owes = false; });
  } else if (const auto* failed = std::get_if<WorkerFailed>(&message)) {
    // After the end of the generation only what may have failed before the worker that ended it.
    if (current(failed->generation) && (generation().runs() || current_.root_cause.any())) worker_failed(node, *failed, now);
  } else if (const auto* done = std::get_if<WorkersDone>(&message)) {
    if (!current(done->generation) || !generation().runs()) return;
    current_.state.done(id, done->before_session);
    judge_done_before_session(now);
    if (generation().runs() && generation().all_done()) decide(0, {}, now);
  } else if (const auto* job = std::get_if<WorkersAreJob>(&message)) {
    if (!current(job->generation)) return;
    budget_.note_job();
    newcomers_prepare_ = newcomers_prepare_ || job->stays;
    judge_what_was_put_off(now);
    judge_done_before_session(now);
  } else if (const auto* more = std::get_if<MoreWorkers>(&message)) {
    if (!node.member || !generation().runs()) return prepared(node, now);
    if (!current(more->generation)) return;
    growth_.offer(id, more->count, now);
  } else if (const auto* failed_start = std::get_if<NotPrepared>(&message)) {
    not_prepared(node, *failed_start, now);
  } else if (const auto* unreachable = std::get_if<PeerUnreachable>(&message)) {
    if (current(unreachable->generation) && generation().runs()) note_unreachable(id, *unreachable, now);
  } else if (const auto* starting = std::get_if<WorkersStarting>(&message)) {
    if (current(starting->generation) && generation().runs()) {
      if (current_.start_watch.note(id, *starting, generation().began(), status_debounce, now))
        say(Level::info, fmt::format("all workers of generation {} have joined the world", to_string(generation().id())));
    }
  } else if (const auto* finished = std::get_if<JobFinished>(&message)) {
    // Also after the revocation, and for a generation of another coordinator: all members decided it before any of them
    // acknowledged the end, and no later one was begun here.
    const Generation& last = finished->generation;
    if (!verdict_.is_given() && knows_the_end_of(node, last)) decide(0, {}, now);
  } else if (const auto* progress = std::get_if<Progress>(&message)) {
    if (!current(progress->generation)) return;
    if (current_.state.decided(now))
      say(Level::info, fmt::format("generation {}: step {} is decided", to_string(generation().id()), progress->step));
    growth_.decided(progress->step, now);
    if (!budget_.decided(progress->step)) return;
    excluded_.progressed(nodes_);
    growth_.progressed();
  } else if (const auto* leaves = std::get_if<Leave>(&message)) {
    leave(id, leaves->why, now);
  } else if (std::holds_alternative<VerdictReceived>(message)) {
    if (verdict_.is_given()) verdict_.confirmed(id), remove(id, true, now);
  }
}

// Only a node that was in a generation knows that the job ended in it. While the members of this one are all here, a later one
// with which it could have ended elsewhere would have needed them.
bool Round::knows_the_end_of(const Node& node, const Generation& last) const {
  if (last == generation().id()) return node.member || node.join.last == last;
  const bool members_are_here = generation().runs() && nodes_.broken().empty();
  return last.number > generation().id().number && node.join.last == last && !members_are_here;
}

void Round::worker_failed(Node& node, const WorkerFailed& failed, Instant now) {
  const Member* const me = generation().member(node.join.who.node);
  ELRUN_ASSERT(me != nullptr);
  const auto& before = failed.successor_in;  // it has no rank in this world
  const Rank rank{failed.rank.value_or(me->base_rank + std::min(failed.local_rank, me->workers == 0 ? 0 : me->workers - 1))};
  Failure why{Code::peer_lost,
              Remedy::rejoin,
              fmt::format("{} (node {}, local rank {}) {} {}",
                          before ? fmt::format("the successor of rank {} of generation {}", rank.value(), before->number)
                                 : fmt::format("worker {}", rank.value()),
                          me->node.value(), failed.local_rank, failed.death.lived() ? "cannot go on:" : "ended by", failed.what),
              before ? std::nullopt : std::optional{rank},
              {},
              generation().id(),
              me->node.value()};
  RootCause::Death death{std::max(now - failed.ago, generation().began()), failed.exit_code == 0 ? 1 : failed.exit_code, why.what,
                         failed.death, failed.death.lived()};
  death.worker.node = me->node;
  death.worker.generation = before.value_or(generation().id());
  death.worker.rank = rank.value();
  death.worker.local_rank = failed.local_rank;
  current_.root_cause.report(std::move(death));
  if (!generation().runs()) return;
  budget_.note_job(failed.is_job);
  if (current_.unreachable.any()) return separate_unreachable(now);  // a program that only ends when it cannot reach a peer
  if (!put_off(*me, failed, now)) judge(*me, failed, std::move(why), now);
}

// A step was decided here, or under an earlier coordinator, as another member says. It is no number that the restart budget counts on: a Join that
// tells a lie changes nothing but what becomes of another node's wrong configuration. Of newcomers it is not believed.
bool Round::others_have_trained(const NodeId& id) const {
  return budget_.newest_step() > 0 || std::any_of(nodes_.all().begin(), nodes_.all().end(), [&](const auto& entry) {
           return entry.second.member && entry.first != id && entry.second.join.has_trained;
         });
}

// What the failure costs, and whether the job goes on: by the rules of the job, whatever the dead process had said of itself.
void Round::judge(const Member& member, const WorkerFailed& failed, Failure why, Instant now) {
  const NodeId id = member.node;
  const bool wrong_configuration = budget_.is_job() && failed.exit_code == exit_code_configuration;
  const FailureRecords::History& history = excluded_.failed(id, failed.what, failed.before_session);
  const bool dispensable = budget_.is_job() && others_suffice(nodes_, {id}, needed()) && !ELRUN_PLANTED(bad_node_ends_the_job);
  // Where others have trained with the same configuration, it is this node that is wrong.
  const bool wrong_here = wrong_configuration && others_have_trained(id) && !generation().has_decided();
  const bool excluded = dispensable && (history.failures >= exclude_after ||
                                        (failed.before_session && budget_.limit(options().max_restarts) == 0) || wrong_here);
  const bool harms_itself = excluded || (dispensable && failed.before_session && !wrong_configuration);
  if (!harms_itself && !budget_.belongs_to_last_failure(failed.exit_code, failed.before_return, now))
    budget_.note_failure(failed.exit_code, now - generation().began(), now);
  for (const auto& [at, broken] : nodes_.broken())
    if (broken != id && nodes_.at(broken).member && !generation().is_done(broken)) current_.root_cause.suspect(broken);
  if (harms_itself) {
    why.what += excluded
                    ? fmt::format("; node {} is excluded, and the others go on", id.value())
                    : fmt::format("; failure {} in a row (after {}, node {} is excluded). It uses no restart: the other nodes are enough",
                                  history.failures, exclude_after, id.value());
    revoke(EndCause::failure, std::move(why), now);
  } else {
    charge(EndCause::failure, std::move(why), failed.exit_code, now, failed.before_return);
  }
  excluded_.blame(id);
  if (excluded) exclude(id, now, wrong_here);
}

// The generation ends by a failure: what that costs.
void Round::charge(EndCause cause, Failure why, std::int32_t exit_code, Instant now, bool before_return) {
  RestartBudget::Charge charge = budget_.charge(exit_code, options().max_restarts, now, before_return);
  why.what += charge.note;
  if (charge.exhausted) current_.root_cause.fail(std::move(*charge.exhausted), now);
  revoke(cause, std::move(why), now);
}

void Round::leave(const NodeId& id, const std::string& why, Instant now) {
  const Node& node = nodes_.at(id);
  say(Level::info, fmt::format("node {} leaves: {}", id.value(), why), true);
  const bool ends_generation = node.member && generation().runs() && !generation().is_done(id) && !verdict_.is_given();
  if (ends_generation) current_.state.lost(id, "it left: " + why);
  const StreamNumber stream = *node.stream;
  if (nodes_.is_in_process(node)) succession_.own_node_leaves();
  remove(id, false, now);
  nodes_.set_speaker(stream, {});  // it stays open while its workers end
  if (ends_generation)
    revoke(EndCause::leave,
           {Code::peer_lost, Remedy::rejoin, fmt::format("node {} leaves: {}", id.value(), why), {}, {}, generation().id(), id.value()},
           now);
}

}  // namespace elrun::inline v0
