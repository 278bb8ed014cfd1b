// The idea: an event only changes what is known of its node; `settle` then looks at everything that is known, and draws
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
#include <cmath>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {

std::vector<std::string> RoundOptions::problems() const {
  std::vector<std::string> problems;
  if (nodes_min < 1 || nodes_min > nodes_max || nodes_max > nodes_limit)
    problems.push_back(fmt::format("--nnodes {}:{}: needs 1 <= MIN <= MAX <= {}", nodes_min, nodes_max, nodes_limit));
  if (last_call < Duration{0} || last_call > 24h) problems.push_back(fmt::format("last_call {} s: needs 0 to 86400", seconds(last_call)));
  if (max_restarts < -1) problems.push_back(fmt::format("--max_restarts {}: needs 0 or more", max_restarts));
  return problems;
}

Round::Round(RoundSetup setup) : setup_{std::move(setup)}, run_{setup_.run}, floor_{setup_.generation_floor} {}

std::vector<RoundAction> Round::step(const RoundEvent& event, Instant now) {
  // A coordinator that was itself stopped (paused, swapped out) heard nobody: that is nobody's silence but its own.
  // Who had a short time to come back may have done so: its words are behind this event.
  const Duration late = wake_ ? now - *wake_ : Duration{0};
  if (late > setup_.timeouts.reconnect_grace / 4 && !ELRUN_PLANTED(coordinator_blames_nodes_for_its_nap)) {
    nodes_.compensate_stall(late, setup_.timeouts, now);
    wake_ = now;  // once for all that came meanwhile, or each of many thousand words would cost a walk over many thousand nodes
  }
  std::visit([&](const auto& e) { on(e, now); }, event);
  return std::exchange(actions_, {});
}

bool Round::may_end(Instant now) const {
  if (!verdict_ || (now < verdict_at_ + late_linger && others_may_come())) return false;
  return now >= verdict_at_ + setup_.timeouts.verdict_linger || only_own_node_is_here();
}

bool Round::only_own_node_is_here() const {
  const NodeTable::Nodes& nodes = nodes_.all();
  return std::all_of(nodes.begin(), nodes.end(), [&](const auto& entry) { return nodes_.is_in_process(entry.second); });
}

// Others that would begin the job again, if they found nobody: it is done, and more nodes may be in it than have heard so.
bool Round::others_may_come() const {
  return verdict_->exit_code == 0 && options_ && told_.size() + nodes_.all().size() < options().nodes_max;
}

// Whoever watches this process is to know why it does not end yet.
void Round::tell_of_linger(Instant now) {
  if (linger_told_ || !others_may_come() || now >= verdict_at_ + late_linger || !only_own_node_is_here()) return;
  linger_told_ = true;
  const std::size_t more = options().nodes_max - told_.size() - nodes_.all().size();
  say(Level::info,
      fmt::format(
          "the job is done; the coordinator stays for another {:.0f} s: {} more may come (--nnodes), and would begin the job again if nobody told them",
          std::ceil(seconds(verdict_at_ + late_linger - now)), count_of(more, "node")));
}

bool Round::joined(StreamNumber stream) const { return nodes_.is_open(stream) && nodes_.stream(stream).node.has_value(); }

std::optional<Generation> Round::running() const {
  if (!runs()) return {};
  return generation_;
}

// --- events -------------------------------------------------------------------------------------------------------

void Round::on(const StreamOpened& event, Instant now) {
  nodes_.open(event.stream, event.in_process, setup_.timeouts.heartbeat_limit, now);
  settle(now);
}

void Round::on(const StreamBroken& event, Instant now) {
  if (!nodes_.is_open(event.stream)) return;
  if (const std::optional<NodeId> id = nodes_.stream(event.stream).node) {
    Node& node = nodes_.at(*id);
    // Whoever confirms a verdict may not have read it: it comes back, or the linger ends.
    if (verdict_ && (!node.join.confirms_verdict || nodes_.is_in_process(node) || ELRUN_PLANTED(verdict_is_not_confirmed))) {
      told_.insert(*id);
      remove(*id, false, now);
    } else {
      nodes_.change(node, [&](Node& n) {
        n.stream.reset();
        n.broken = n.broken_since = now;
      });
      // Nobody is left: that was this coordinator's own line. Its members have as long as with a fresh one.
      if (runs() && nodes_.connected() == 0) deserted_until_ = now + setup_.timeouts.recovery;
    }
  }
  nodes_.close(event.stream);
  settle(now);
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
  settle(now);
}

void Round::on(const RoundTick&, Instant now) {
  wake_.reset();  // the timer has fired: the next one is announced, even for the same instant
  settle(now);
}

void Round::said(Node& node, const NodeMessage& message, Instant now) {
  const NodeId id = node.join.who.node;
  const auto current = [&](const Generation& g) { return node.member && g == generation_ && !verdict_; };
  if (const auto* m = std::get_if<Acknowledge>(&message)) {
    if (current(m->generation) && revoked_) nodes_.change(node, [](Node& n) { n.owes = false; });
  } else if (const auto* failed = std::get_if<WorkerFailed>(&message)) {
    // After the end of the generation only what may have failed before the worker that ended it.
    if (current(failed->generation) && (runs() || root_cause_.any())) worker_failed(node, *failed, now);
  } else if (const auto* done = std::get_if<WorkersDone>(&message)) {
    if (!current(done->generation) || !runs()) return;
    done_.insert(id);
    if (done->before_session) unseen_.insert(id);
    workers_done_unseen(now);
    if (runs() && all_done()) decide(0, {}, now);
  } else if (const auto* job = std::get_if<WorkersAreJob>(&message)) {
    if (current(job->generation)) workers_are_job(now);
  } else if (const auto* more = std::get_if<MoreWorkers>(&message)) {
    if (!current(more->generation) || !runs()) return;
    growth_.offer(id, now);
  } else if (const auto* unreachable = std::get_if<PeerUnreachable>(&message)) {
    if (current(unreachable->generation) && runs()) note_apart(node, *unreachable, now);
  } else if (const auto* starting = std::get_if<WorkersStarting>(&message)) {
    if (current(starting->generation) && runs()) note_starting(id, *starting, now);
  } else if (const auto* finished = std::get_if<JobFinished>(&message)) {
    // Also after the revocation, and for a generation of another coordinator: all members decided it before any of them
    // acknowledged the end, and no later one was begun here.
    const Generation& last = finished->generation;
    if (!verdict_ && knows_the_end_of(node, last)) decide(0, {}, now);
  } else if (const auto* progress = std::get_if<Progress>(&message)) {
    if (!current(progress->generation)) return;
    stepped_ = true;
    if (!progress_told_ || now - *progress_told_ >= progress_told_every) {
      say(Level::info, fmt::format("generation {}: step {} is decided", to_string(generation_), progress->step));
      progress_told_ = now;
    }
    if (!budget_.decided(progress->step)) return;
    failures_.forget([this](const NodeId& known) { return nodes_.at(known).member; });
    growth_.progressed();
  } else if (const auto* leaves = std::get_if<Leave>(&message)) {
    leave(id, leaves->why, now);
  } else if (std::holds_alternative<VerdictHeard>(message)) {
    if (verdict_) told_.insert(id), remove(id, true, now);
  }
}

// Only a node that was in a generation knows that the job ended in it. While the members of this one are all here, a later one
// with which it could have ended elsewhere would have needed them.
bool Round::knows_the_end_of(const Node& node, const Generation& last) const {
  if (last == generation_) return node.member || node.join.last == last;
  const bool members_are_here = runs() && nodes_.broken().empty();
  return last.number > generation_.number && node.join.last == last && !members_are_here;
}

void Round::worker_failed(Node& node, const WorkerFailed& failed, Instant now) {
  const auto me = std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.node == node.join.who.node; });
  ELRUN_ASSERT(me != members_.end());
  const Rank rank{failed.rank.value_or(me->base_rank + std::min(failed.local_rank, me->workers == 0 ? 0 : me->workers - 1))};
  Failure why{Code::peer_lost,
              Remedy::rejoin,
              fmt::format("worker {} (node {}, local rank {}) ended by {}", rank.value(), me->node.value(), failed.local_rank, failed.what),
              rank,
              {},
              generation_,
              me->node.value()};
  RootCause::Death death{std::max(now - failed.ago, began_), failed.exit_code == 0 ? 1 : failed.exit_code, why.what, failed.death};
  death.worker.node = me->node;
  death.worker.generation = generation_;
  death.worker.rank = rank.value();
  death.worker.local_rank = failed.local_rank;
  root_cause_.report(std::move(death));
  if (!runs()) return;
  budget_.note_job(failed.is_job);
  if (apart_) return part(now);  // a program that only ends when it cannot reach a peer
  if (!put_off(*me, failed, now)) judge(*me, failed, std::move(why), now);
}

// What the failure costs, and whether the job goes on: by the rules of the job, whatever the dead process had said of itself.
void Round::judge(const Member& member, const WorkerFailed& failed, Failure why, Instant now) {
  const NodeId id = member.node;
  const bool wrong_configuration = budget_.is_job() && failed.exit_code == exit_code_configuration;
  const FailureRecords::History& history = failures_.note(id, failed.what, failed.before_session);
  const bool dispensable = budget_.is_job() && others_can_go_on({id}) && !ELRUN_PLANTED(bad_node_ends_the_job);
  // Where others have trained with the same configuration, it is this node that is wrong.
  const bool excluded = dispensable && (history.failures >= exclude_after || (failed.before_session && restart_limit() == 0) ||
                                        (wrong_configuration && budget_.newest_step() > 0 && !stepped_));
  const bool harms_itself = excluded || (dispensable && failed.before_session && !wrong_configuration);
  if (!harms_itself) budget_.note_failure(failed.exit_code, now - began_, now);
  for (const auto& [at, broken] : nodes_.broken())
    if (broken != id && nodes_.at(broken).member && !done_.contains(broken)) root_cause_.suspect(broken);
  if (harms_itself) {
    why.what +=
        excluded
            ? fmt::format("; node {} is excluded, and the others go on", id.value())
            : fmt::format("; failure {} of {} in a row, then node {} is excluded: it costs no restart, for the others can do without it",
                          history.failures, exclude_after, id.value());
    revoke(EndCause::failure, std::move(why), now);
  } else {
    charge(EndCause::failure, std::move(why), failed.exit_code, now);
  }
  failures_.blame(id);
  if (excluded) exclude(id, now);
}

// The generation ends by a failure: what that costs.
void Round::charge(EndCause cause, Failure why, std::int32_t exit_code, Instant now) {
  RestartBudget::Charge charge = budget_.charge(exit_code, options().max_restarts, now);
  why.what += charge.note;
  if (charge.exhausted) root_cause_.fail(std::move(*charge.exhausted), now);
  revoke(cause, std::move(why), now);
}

void Round::leave(const NodeId& id, const std::string& why, Instant now) {
  const Node& node = nodes_.at(id);
  say(Level::info, fmt::format("node {} leaves: {}", id.value(), why), true);
  const bool ends_generation = node.member && runs() && !done_.contains(id) && !verdict_;
  if (ends_generation) lost_[id] = "it left: " + why;
  const StreamNumber stream = *node.stream;
  own_node_left_ = own_node_left_ || nodes_.is_in_process(node);
  remove(id, false, now);
  nodes_.set_speaker(stream, {});  // it stays open while its workers end
  if (ends_generation)
    revoke(EndCause::leave,
           {Code::peer_lost, Remedy::rejoin, fmt::format("node {} leaves: {}", id.value(), why), {}, {}, generation_, id.value()}, now);
}

}  // namespace elrun::inline v0
