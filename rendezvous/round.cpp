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

#include "rendezvous/round.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/assert.hpp"
#include "lib/base/bytes.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"
#include "rendezvous/assign.hpp"

namespace elrun::inline v0 {
namespace {

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

std::optional<std::uint32_t> major_of(std::string_view version) {
  std::uint32_t major = 0;
  const auto [end, error] = std::from_chars(version.data(), version.data() + version.size(), major);
  if (error != std::errc{} || end == version.data() + version.size() || *end != '.') return {};
  return major;
}

Key256 key_of(const Key256& secret, const Generation& generation) {
  ByteWriter text;
  text.put_text("elrun generation");
  text.put(generation.number);
  text.put(generation.lineage.bits[0]);
  text.put(generation.lineage.bits[1]);
  return hmac_sha256(secret, text.bytes());
}

constexpr std::size_t names_max = 8;

// The first few of many names.
std::string some_of(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), names_max);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}


}  // namespace

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
    if (late > setup_.timeouts.heartbeat)
      for (auto& [number, stream] : streams_) stream.heard = now;
    std::set<std::pair<Instant, NodeId>> broken;
    for (const auto& [at, id] : broken_) nodes_.at(id).broken = now, broken.emplace(now, id);
    broken_ = std::move(broken);
    wake_ = now;  // once for all that came meanwhile, or each of many thousand words would cost a walk over many thousand nodes
  }
  std::visit([&](const auto& e) { on(e, now); }, event);
  return std::exchange(actions_, {});
}

bool Round::may_end(Instant now) const {
  if (!verdict_) return false;
  if (now >= verdict_at_ + setup_.timeouts.verdict_linger) return true;
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
    const std::optional<StreamNumber>& stream = entry.second.stream;
    return stream && streams_.at(*stream).in_process;
  });
}

bool Round::joined(StreamNumber stream) const {
  const auto at = streams_.find(stream);
  return at != streams_.end() && at->second.node.has_value();
}

std::optional<Generation> Round::running() const {
  if (!runs()) return {};
  return generation_;
}

// --- events -------------------------------------------------------------------------------------------------------

void Round::on(const StreamOpened& event, Instant now) {
  Stream& stream = streams_[event.stream];
  stream = {.node = {}, .in_process = event.in_process, .heard = now};
  if (!event.in_process) listen(event.stream, stream, now + setup_.timeouts.heartbeat_limit);
  settle(now);
}

void Round::on(const StreamBroken& event, Instant now) {
  const auto stream = streams_.find(event.stream);
  if (stream == streams_.end()) return;
  if (stream->second.node) {
    const auto node = nodes_.find(*stream->second.node);
    if (verdict_) {
      remove(node, false);  // it has heard all there is to hear
    } else {
      change(node->second, [&](Node& n) {
        n.stream.reset();
        n.broken = now;
      });
      // Nobody is left: that was this coordinator's own line. Its members have as long as with a fresh one.
      if (runs() && connected_ == 0) deserted_until_ = now + setup_.timeouts.recovery;
    }
  }
  forget(event.stream);
  settle(now);
}

void Round::on(const FromNode& event, Instant now) {
  const auto stream = streams_.find(event.stream);
  if (stream == streams_.end()) return;  // closed by us; what was on its way no longer counts
  stream->second.heard = now;
  if (std::holds_alternative<NodeAlive>(event.message)) return;
  if (const Join* message = std::get_if<Join>(&event.message)) {
    join(event.stream, *message, now);
  } else if (stream->second.node) {
    said(nodes_.at(*stream->second.node), event.message, now);
  }  // else: after Leave, or before Join; nothing that it says concerns a world
  settle(now);
}

void Round::on(const RoundTick&, Instant now) {
  wake_.reset();  // the timer has fired: the next one is announced, even for the same instant
  settle(now);
}

std::vector<std::string> Round::contradictions(const Join& join) const {
  std::vector<std::string> all = join.options.problems();
  const auto differ = [&](std::string_view what, const auto& here, const auto& there) {
    if (here != there) all.push_back(fmt::format("{}: this node has {}, the job has {}", what, there, here));
  };
  if (!run_.value().empty()) differ("run id (--rdzv_id)", run_.value(), join.run.value());
  if (const auto here = major_of(setup_.version), there = major_of(join.version); !here || here != there)
    all.push_back(fmt::format("version: this node runs elrun {}, the coordinator {}; the major versions must agree", join.version, setup_.version));
  if (join.workers > workers_per_node_limit)
    all.push_back(fmt::format("--nproc_per_node {}: needs 0 to {}", join.workers, workers_per_node_limit));
  if (join.who.node.value().empty()) all.push_back("the node has no name");
  if (join.last.number > generation_number_max) all.push_back(fmt::format("generation {} is out of bounds", join.last.number));
  if (options_) {
    differ("--nnodes MIN", options().nodes_min, join.options.nodes_min);
    differ("--nnodes MAX", options().nodes_max, join.options.nodes_max);
    differ("last_call (seconds)", seconds(options().last_call), seconds(join.options.last_call));
    differ("--max_restarts (-1: not given)", options().max_restarts, join.options.max_restarts);
  }
  return all;
}

void Round::join(StreamNumber stream, const Join& join, Instant now) {
  const NodeId& id = join.who.node;
  if (const std::vector<std::string> all = contradictions(join); !all.empty())
    return note_refused(id, fmt::format("{}", fmt::join(all, "; "))), refuse(stream, {Code::mismatch, Remedy::fix_config, fmt::format("node {} does not fit: {}", id.value(), fmt::join(all, "; "))});
  if (const auto replaced = replaced_.find(id); replaced != replaced_.end() && replaced->second.contains(join.who.number) && !ELRUN_PLANTED(replaced_incarnation_returns))
    return refuse_replaced(stream, id);
  if (!verdict_ && outdated(stream, id)) return turn_away_outdated(stream, join);
  if (const auto former = former_.find(id); former != former_.end() && former->second.incarnation != join.who.number) {
    replace(id, former->second.incarnation);  // it was lost before its successor came, and may be back one day
    former_.erase(former);
  }
  if (const auto& old = streams_.at(stream).node; old && *old != id)
    return refuse(stream, {Code::protocol, Remedy::exit_process, fmt::format("one stream spoke for two nodes, {} and {}", old->value(), id.value())});
  if (verdict_ && !nodes_.contains(id)) return send(stream, *verdict_);
  if (!verdict_) {
    if (const auto known = nodes_.find(id); known != nodes_.end() && known->second.join.who.number != join.who.number) {
      replace(id, known->second.join.who.number);
      if (known->second.stream == stream) {
        streams_.at(stream).node.reset();
        change(known->second, [](Node& n) { n.stream.reset(); });
      }
      lose(id, "another process has joined under its name", now);
    }
    if (!nodes_.contains(id) && nodes_.size() >= nodes_limit)
      return refuse(stream, {Code::exhausted, Remedy::retry, fmt::format("{} nodes are here already", nodes_.size())});
  }
  if (ELRUN_PLANTED(oversubscription_is_an_error) && runs() && !nodes_.contains(id) && members_.size() >= room())
    return refuse(stream, {Code::exhausted, Remedy::exit_process, "the round is complete"});
  if (verdict_) return nodes_.contains(id) ? admit(stream, nodes_.at(id), join, now) : send(stream, *verdict_);
  if (!options_) options_ = join.options;
  if (run_.value().empty()) run_ = join.run;
  if (!ELRUN_PLANTED(floor_not_raised)) floor_ = std::max({floor_, join.last.number, join.heard});
  if (generation_.number == 0) {
    const bool may_run = join.heard > join.last.number || (setup_.floor_may_run && join.last.number < setup_.generation_floor);
    if (may_run && hold_until_ == Instant{}) hold_until_ = now + setup_.timeouts.recovery;
    // A member of the one on record that has ended it: nobody has to be waited for.
    if (setup_.floor_may_run && !join.resuming && join.last.number > 0 && join.last.number == floor_) hold_until_ = now;
    restarts_.generations = std::max(restarts_.generations, join.restarts.generations);
    restarts_.used = std::max(restarts_.used, join.restarts.used);
  }
  const auto [node, fresh] = nodes_.try_emplace(id);
  refused_.erase(id);
  if (fresh) {
    node->second.join = join;
    node->second.arrived = now;
    count(node->second, true);
    say(Level::info, fmt::format("node {} ({}, {}) joined{}", id.value(), join.address, count_of(join.workers, "worker"),
                                 lost_.contains(id) ? " again" : ""));
  }
  if (!forming_since_ && !runs()) forming_since_ = now;
  admit(stream, node->second, join, now);
}

// Those who wait are told why somebody who is here is not with them.
void Round::note_refused(const NodeId& id, const std::string& why) {
  if (refused_.size() < refused_max || refused_.contains(id)) refused_[id] = why.substr(0, refused_text_max);
}

// No process opens a stream before the one that had its name has ended, and no node another one before it gave up the last:
// what comes on an earlier stream than the newest was said before, and read later.
bool Round::outdated(StreamNumber stream, const NodeId& id) const {
  const auto node = nodes_.find(id);
  const auto former = former_.find(id);
  return (node != nodes_.end() && stream < node->second.newest) || (former != former_.end() && stream < former->second.newest);
}

void Round::turn_away_outdated(StreamNumber stream, const Join& join) {
  const NodeId& id = join.who.node;
  const auto node = nodes_.find(id);
  const std::uint64_t newest = node != nodes_.end() ? node->second.join.who.number : former_.at(id).incarnation;
  if (join.who.number != newest) {
    replace(id, join.who.number);
    return refuse_replaced(stream, id);
  }
  actions_.push_back(CloseStream{stream});  // not refused: the same process has another stream by now
  forget(stream);
}

void Round::replace(const NodeId& id, std::uint64_t incarnation) {
  std::set<std::uint64_t>& replaced = replaced_[id];
  if (replaced.size() >= replaced_max) replaced.erase(replaced.begin());
  replaced.insert(incarnation);
}

void Round::refuse_replaced(StreamNumber stream, const NodeId& id) {
  refuse(stream, {Code::already_exists, Remedy::fix_config,
                  fmt::format("another agent has joined as node {} since; each agent needs a name of its own", id.value())});
}

// The node speaks on this stream from now on; what it is told depends on what became of the generation that it knows.
void Round::admit(StreamNumber stream, Node& node, const Join& join, Instant now) {
  if (node.stream && *node.stream != stream) {
    actions_.push_back(CloseStream{*node.stream});
    forget(*node.stream);
  }
  change(node, [&](Node& n) {
    n.stream = stream;
    n.newest = std::max(n.newest, stream);
  });
  streams_.at(stream).node = join.who.node;
  if (verdict_) return send(node, *verdict_);

  const bool knows_it = join.last == generation_;
  if (node.member && runs()) {
    if (knows_it && join.resuming && join.seat) {
      change(node, [&](Node& n) { n.join = join; });
      return send(node, Resumed{generation_, generation_.lineage != setup_.lineage});  // its replay may have been cut short
    }
    const auto me = std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.node == join.who.node; });
    // The world and this Join crossed, or the stream broke before the world arrived: here it is again, if the node still
    // is what the others were told, and the key is this coordinator's.
    if (!knows_it && !join.resuming && generation_.lineage == setup_.lineage && me->address == join.address &&
        me->master_port == join.master_port && me->workers == join.workers)
      return send(node, world_of(static_cast<std::uint32_t>(me - members_.begin()), key_of(setup_.secret, generation_)));
    change(node, [&](Node& n) { n.join = join; });
    lost_[join.who.node] = "it gave the generation up";
    revoke({Code::peer_lost, Remedy::rejoin, fmt::format("node {} gave generation {} up", join.who.node.value(), to_string(generation_)), {}, {}, generation_, join.who.node.value()},
           true, now);
  }
  change(node, [&](Node& n) {
    n.join = join;
    n.ready = !join.resuming;
    if (!join.resuming) n.owes = false;  // it joins only when the workers of the old generation are gone
    n.told = 0;
  });
  if (explain_at_ && forming_since_) explain_at_ = std::max(*explain_at_, std::min(now + explain_after, *forming_since_ + explain_put_off));
  if (join.resuming) return claim(node, now);
  if (recovery_ && join.last == recovery_->generation)
    end_recovery(fmt::format("node {} has ended it", join.who.node.value()), now);
}

// The node's workers still run for a generation that is over, or that another coordinator began.
void Round::claim(Node& node, Instant now) {
  const Join& join = node.join;
  // What is on record, or what another node has heard of, may be a later one: then this one is over.
  const bool nothing_begun = generation_.number == 0 && join.last.number >= floor_ && !ELRUN_PLANTED(fresh_coordinator_ends_what_runs);
  if (nothing_begun && join.seat && (!recovery_ || recovery_->generation.number < join.last.number)) {
    const std::optional<Recovery> older = std::exchange(recovery_, {});
    if (older)
      for (const auto& [rank, id] : older->seats) is_over(nodes_.at(id), join.last);
    recovery_ = Recovery{join.last, *join.seat, {}, now + setup_.timeouts.recovery, fmt::format("for {:.3g} s none of the others came", seconds(setup_.timeouts.recovery))};
    say(Level::info, fmt::format("generation {} was begun by another coordinator; waiting for its {}", to_string(join.last), count_of(join.seat->nodes, "node")));
  }
  if (recovery_ && recovery_->generation == join.last) {
    if (!join.seat) {
      end_recovery(fmt::format("node {} is ending it", join.who.node.value()), now);
    } else {
      Seat expected = recovery_->shape;
      expected.group_rank = join.seat->group_rank;
      expected.base_rank = join.seat->base_rank;
      const auto [seat, is_new] = expected == *join.seat ? recovery_->seats.try_emplace(join.seat->group_rank, join.who.node) : std::pair{recovery_->seats.end(), false};
      if (seat != recovery_->seats.end() && seat->second == join.who.node) {
        if (recovery_->seats.size() < recovery_->shape.nodes) {
          if (const Instant soon = now + returns_within; join.broken && soon < recovery_->until) {
            recovery_->until = soon;  // whoever is on its way back may still be in the next one
            recovery_->why = fmt::format("a worker of node {} has failed or lost a peer", join.who.node.value());
            recovery_->is_hopeless = true;
          }
          // As long as members arrive, the others may only be waiting for their turn: there may be 100,000 of them.
          if (is_new && !recovery_->is_hopeless) recovery_->until = now + setup_.timeouts.recovery;
          return;
        }
        if (recovery_->generation.number < floor_) return end_recovery("a later one was begun", now);
        return adopt(now);
      }
    }
  }
  is_over(node, generation_);
}

void Round::is_over(const Node& node, const Generation& newest) {
  const Generation& held = node.join.last;
  send(node, Revoke{held, {Code::generation_over, Remedy::rejoin,
                           fmt::format("generation {} is over; this coordinator's newest is {}", to_string(held), to_string(newest)), {}, {}, held}});
}

// Every member of the generation is there: it goes on, as if nothing had happened.
void Round::adopt(Instant now) {
  const Recovery recovery = *std::exchange(recovery_, {});
  hold_until_ = {};
  std::vector<Member> members;
  std::uint32_t base_rank = 0;
  bool fits = true;
  for (const auto& [rank, id] : recovery.seats) {
    const Join& join = nodes_.at(id).join;
    fits = fits && join.seat->base_rank == base_rank;
    members.push_back({id, join.address, join.workers, base_rank, join.master_port});
    base_rank += join.workers;
  }
  if (!fits || base_rank != recovery.shape.world_size || roster_hash(members) != recovery.shape.roster) {
    recovery_ = recovery;
    return end_recovery("its members do not agree on who they are", now);
  }
  generation_ = recovery.generation;
  members_ = std::move(members);
  roster_ = recovery.shape.roster;
  revoked_ = false;
  began_ = now;
  enough_since_.reset();
  forming_since_.reset();
  actions_.push_back(BeginGeneration{generation_, members_, true});
  say(Level::info, fmt::format("generation {} goes on: all of its {} are here", to_string(generation_), count_of(members_.size(), "node")));
  for (const Member& m : members_) {
    Node& node = nodes_.at(m.node);
    change(node, [](Node& n) { n.member = true; });
    send(node, Resumed{generation_, true});
  }
}

// The generation will not be whole again: those of its members that are here end it, and come first in the next one.
void Round::end_recovery(const std::string& why, Instant now) {
  const Recovery recovery = *std::exchange(recovery_, {});
  hold_until_ = {};
  generation_ = recovery.generation;
  for (const auto& [rank, id] : recovery.seats) {
    Node& node = nodes_.at(id);
    members_.push_back({id, node.join.address, node.join.workers, 0, node.join.master_port});
    change(node, [](Node& n) { n.member = true; });
  }
  if (members_.empty()) return;
  revoke({Code::peer_lost, Remedy::rejoin,
          fmt::format("its coordinator was lost, and {} of its {} did not come to this one: {}", recovery.shape.nodes - recovery.seats.size(), count_of(recovery.shape.nodes, "node"), why),
          {}, {}, generation_}, true, now);
}

// Every change of a node that the counts depend on goes through here.
template <class Change>
void Round::change(Node& node, Change change) {
  count(node, false);
  change(node);
  count(node, true);
}

void Round::count(const Node& node, bool in) {
  const NodeId& id = node.join.who.node;
  const std::size_t one = in ? 1 : static_cast<std::size_t>(-1);
  if (is_waiting(node)) waiting_ += one;
  if (is_late(node)) late_ += one;
  if (node.stream) (node.join.workers > 0 ? connected_ : observers_) += one;
  const auto put = [&](auto& index, Instant at) { in ? void(index.emplace(at, id)) : void(index.erase({at, id})); };
  if (is_newcomer(node)) put(newcomers_, node.arrived);
  if (!node.stream) put(broken_, node.broken);
}

void Round::said(Node& node, const NodeMessage& message, Instant now) {
  const NodeId id = node.join.who.node;
  const auto current = [&](const Generation& g) { return node.member && g == generation_ && !verdict_; };
  if (const auto* m = std::get_if<Acknowledge>(&message)) {
    if (current(m->generation) && revoked_) change(node, [](Node& n) { n.owes = false; });
  } else if (const auto* failed = std::get_if<WorkerFailed>(&message)) {
    // After the end of the generation only what may have failed before the worker that ended it.
    if (current(failed->generation) && (runs() || !deaths_.empty())) worker_failed(node, *failed, now);
  } else if (const auto* done = std::get_if<WorkersDone>(&message)) {
    if (!current(done->generation) || !runs()) return;
    done_.insert(id);
    if (all_done()) decide(0, {}, now);
  } else if (const auto* finished = std::get_if<JobFinished>(&message)) {
    // Also after the revocation, and for a generation of another coordinator: all members decided it before any of them
    // acknowledged the end, and no later one was begun here.
    const Generation& last = finished->generation;
    if (!verdict_ && (last == generation_ || last.number > generation_.number)) decide(0, {}, now);
  } else if (const auto* progress = std::get_if<Progress>(&message)) {
    if (!current(progress->generation)) return;
    if (!progress_told_ || now - *progress_told_ >= progress_told_every) {
      say(Level::info, fmt::format("generation {}: step {} is decided", to_string(generation_), progress->step));
      progress_told_ = now;
    }
    if (progress->step <= newest_step_) return;  // done before, and again since: no further than at the last failure
    newest_step_ = progress->step;
    progressed_ = true;
    growths_ = 0;
    alike_ = 0;
  } else if (const auto* leaves = std::get_if<Leave>(&message)) {
    leave(id, leaves->why, now);
  }
}

void Round::worker_failed(Node& node, const WorkerFailed& failed, Instant now) {
  const auto me = std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.node == node.join.who.node; });
  ELRUN_ASSERT(me != members_.end());
  const Rank rank{me->base_rank + std::min(failed.local_rank, me->workers == 0 ? 0 : me->workers - 1)};
  Failure why{Code::peer_lost, Remedy::rejoin,
              fmt::format("worker {} (node {}, local rank {}) ended by {}", rank.value(), me->node.value(), failed.local_rank, failed.what),
              rank, {}, generation_, me->node.value()};
  Death death{std::max(now - failed.ago, began_), failed.exit_code == 0 ? 1 : failed.exit_code, why.what, failed.death};
  death.worker.node = me->node;
  death.worker.generation = generation_;
  death.worker.rank = rank.value();
  death.worker.local_rank = failed.local_rank;
  note_death(std::move(death));
  if (!runs()) return;
  const std::int32_t budget = options().max_restarts >= 0 ? options().max_restarts : failed.is_job ? job_restarts : 0;
  const bool wrong_configuration = failed.is_job && failed.exit_code == exit_code_configuration;
  const bool free_of_charge = failed.is_job && progressed_ && budget > 0;
  progressed_ = false;
  note_failure_at_start(failed, now);
  for (const auto& [at, id] : broken_)
    if (id != me->node && nodes_.at(id).member && !done_.contains(id)) suspects_.insert(id);
  if (wrong_configuration)
    failing_ = {now + deaths_heard, "a wrong configuration is not restarted"};
  else if (charged_ = !free_of_charge; charged_ && static_cast<std::int64_t>(++restarts_.used) > budget)
    failing_ = {now + deaths_heard,
                budget == 0 ? "no restart is allowed (--max_restarts)" : fmt::format("all {} restarts (--max_restarts) are used", budget)};
  why.what += failing_       ? fmt::format("; {}", failing_->why)
              : free_of_charge ? "; this restart is free: there was progress since the last one"
                               : fmt::format("; restart {} of {}{}", restarts_.used, budget,
                                             alike_ > 1 ? fmt::format(" after a pause of {:.0f} s, for it failed alike {} times soon after its start", seconds(pause_until_ - now), alike_) : "");
  revoke(std::move(why), true, now);
}

// A program that fails the same way whenever it starts would use up its restarts before what it needs (a file server, a
// device that is being reset) is back: each such attempt waits longer. Who was killed from outside did not fail by itself.
void Round::note_failure_at_start(const WorkerFailed& failed, Instant now) {
  const bool killed = failed.exit_code == 128 + SIGKILL || failed.exit_code == 128 + SIGTERM;
  const bool at_start = now - began_ < start_over_within && !killed;
  alike_ = !at_start ? 0 : failed.exit_code == alike_code_ ? alike_ + 1 : 1;
  alike_code_ = failed.exit_code;
  if (alike_ > 1) pause_until_ = now + start_pause * (1 << std::min(alike_ - 2, start_pause_doublings_max));
}

void Round::note_death(Death death) {
  const auto same = [&](const Death& d) { return d.worker.rank == death.worker.rank; };
  if (std::any_of(deaths_.begin(), deaths_.end(), same)) return;  // said again after a broken stream
  const auto later = [](const Death& a, const Death& b) { return a.at < b.at; };
  deaths_.insert(std::upper_bound(deaths_.begin(), deaths_.end(), death, later), std::move(death));
  for (std::size_t i = 1; i < deaths_.size(); ++i) deaths_[i].worker = bounded(std::move(deaths_[i].worker), death_beside_max, death_beside_max);
  if (deaths_.size() > deaths_max) deaths_.pop_back();
}

void Round::leave(const NodeId& id, const std::string& why, Instant now) {
  const auto node = nodes_.find(id);
  say(Level::info, fmt::format("node {} leaves: {}", id.value(), why));
  const bool ends_generation = node->second.member && runs() && !done_.contains(id) && !verdict_;
  if (ends_generation) lost_[id] = "it left: " + why;
  const StreamNumber stream = *node->second.stream;
  remove(node, false);
  streams_.at(stream).node.reset();  // it stays open while its workers end
  if (ends_generation)
    revoke({Code::peer_lost, Remedy::rejoin, fmt::format("node {} leaves: {}", id.value(), why), {}, {}, generation_, id.value()}, false, now);
}

// --- conclusions --------------------------------------------------------------------------------------------------

void Round::settle(Instant now) {
  lose_the_silent(now);
  if (failing_ && (living_members_all_ready() || now >= failing_->until)) fail(now);
  if (!verdict_ && !failing_ && options_) {
    if (recovery_ && now >= recovery_->until)
      end_recovery(std::string{recovery_->why}, now);
    grow(now);
    form(now);
    give_up(now);
  }
  if (!verdict_ && options_) explain(now);
  wake(now);
}

// Collectives fail within milliseconds when a peer's node dies, before the node is known to be lost. What a member's loss
// did is free of charge.
void Round::excuse(const NodeId& lost) {
  if (!suspects_.contains(lost) || deaths_.empty()) return;
  suspects_.clear();
  const bool would_fail = failing_.has_value() && charged_;
  if (!std::exchange(charged_, false)) return;
  --restarts_.used;
  alike_ = 0;
  pause_until_ = {};
  failing_.reset();
  say(Level::info, fmt::format("{}: after node {} was lost, and no failure of its own{}", deaths_.front().what, lost.value(), would_fail ? "; the job goes on" : ""));
}

void Round::lose_the_silent(Instant now) {
  if (ELRUN_PLANTED(torchrun_d6_lost_node_unnoticed)) return;
  std::vector<std::pair<NodeId, std::string>> gone;
  while (!silences_.empty() && silences_.begin()->first <= now) {
    const StreamNumber number = silences_.begin()->second;
    Stream& stream = streams_.at(number);
    if (const Instant limit = stream.heard + setup_.timeouts.heartbeat_limit; limit > now) {
      listen(number, stream, limit);  // it was heard since
    } else if (stream.node) {
      silences_.erase(silences_.begin());
      gone.emplace_back(*stream.node, fmt::format("nothing was heard of it for {:.3g} s", seconds(setup_.timeouts.heartbeat_limit)));
    } else {  // nobody speaks on it
      actions_.push_back(CloseStream{number});
      forget(number);
    }
  }
  if (!deserted(now))
    for (const auto& [at, id] : broken_) {
      if (at + setup_.timeouts.reconnect_grace > now && !ELRUN_PLANTED(no_grace_to_reconnect)) break;
      const Duration waited = now >= deserted_until_ && deserted_until_ > at ? deserted_until_ - at : setup_.timeouts.reconnect_grace;
      gone.emplace_back(id, fmt::format("its stream broke and it did not return within {:.3g} s", seconds(waited)));
    }
  if (revoked_ && !verdict_ && late_ > 0 && now >= return_by_)
    for (const auto& [id, node] : nodes_)
      if (is_late(node)) gone.emplace_back(id, fmt::format("it did not end its workers of generation {} in time", to_string(generation_)));
  for (const auto& [id, why] : gone)
    if (nodes_.contains(id)) lose(id, why, now);
}

void Round::listen(StreamNumber number, Stream& stream, Instant until) {
  silences_.erase({stream.look_again, number});
  stream.look_again = until;
  silences_.emplace(until, number);
}

void Round::forget(StreamNumber number) {
  const auto stream = streams_.find(number);
  silences_.erase({stream->second.look_again, number});
  streams_.erase(stream);
}

void Round::lose(const NodeId& id, const std::string& why, Instant now) {
  const auto node = nodes_.find(id);
  const bool member = node->second.member, done = done_.contains(id);
  const Former former{node->second.join.who.number, node->second.newest};
  remove(node, true);
  if (verdict_) return;
  say(member ? Level::warning : Level::info, fmt::format("node {} is lost: {}", id.value(), why));
  if (!member) return;
  lost_[id] = why;
  excuse(id);
  if (former_.size() >= former_max) former_.erase(former_.begin());
  former_.insert_or_assign(id, former);
  if (runs() && !done)  // whoever has done its part may go
    revoke({Code::peer_lost, Remedy::rejoin, fmt::format("node {} is lost: {}", id.value(), why), {}, {}, generation_, id.value()}, true, now);
}

void Round::remove(Nodes::iterator node, bool close) {
  if (const auto stream = node->second.stream; stream && close) {
    actions_.push_back(CloseStream{*stream});
    forget(*stream);
  }
  if (recovery_) std::erase_if(recovery_->seats, [&](const auto& seat) { return seat.second == node->first; });
  count(node->second, false);
  nodes_.erase(node);
  if (!nodes_.empty()) return;
  forming_since_.reset();
  recovery_.reset();
  if (generation_.number == 0) {  // nothing was begun: the next node sets the options
    options_.reset();
    run_ = setup_.run;
  }
}

void Round::revoke(Failure why, bool failed, Instant now) {
  ELRUN_ASSERT(runs());
  revoked_ = true;
  cause_ = why.what;
  restarts_.generations += failed ? 1 : 0;
  forming_since_ = now;
  if (nodes_.empty()) forming_since_.reset();
  enough_since_.reset();
  // Workers are asked, then killed; a node that is still silent about it after all that is not coming back.
  return_by_ = now + setup_.timeouts.revocation + setup_.timeouts.stop_grace + setup_.timeouts.heartbeat_limit;
  say(failed ? Level::warning : Level::info, fmt::format("generation {} is over: {}", to_string(generation_), why.what));
  actions_.push_back(EndGeneration{why.what});
  actions_.reserve(actions_.size() + members_.size() + 1);  // and when to wake
  for (auto& [id, node] : nodes_) {
    if (!node.member) continue;
    change(node, [](Node& n) { n.owes = !ELRUN_PLANTED(forms_before_acknowledged), n.ready = n.ready || !n.owes; });
    send(node, Revoke{generation_, why});
  }
}

// A newcomer and room for it: the generation ends, free of charge, to begin again with it. Not while a member is done,
// for its work would be done twice.
std::optional<Instant> Round::growth_at() const {
  if (!runs() || members_.size() >= room() || !done_.empty()) return {};
  if (newcomers_.empty()) return {};
  return std::max(newcomers_.begin()->first + growth_gather, began_ + growth_settle * (1 << std::min(growths_, growth_doublings_max)));
}

void Round::grow(Instant now) {
  const auto at = growth_at();
  if (!at || now < *at) return;
  std::vector<std::string> names;
  for (const auto& [arrived, id] : newcomers_) names.push_back(id.value());
  ++growths_;
  revoke({Code::generation_over, Remedy::rejoin, fmt::format("the world grows by {}", some_of(names)), {}, {}, generation_}, false, now);
}

void Round::form(Instant now) {
  if (runs() || recovery_ || now < hold_until_ || now < pause_until_) return;
  if (waiting_ < needed()) return enough_since_.reset();
  if (!enough_since_) enough_since_ = now;
  // The promise that the whole system rests on: nobody begins the next generation while a living member may still act
  // for the last one.
  if (!living_members_all_ready()) return;
  const bool first_formation = newcomers_.size() == waiting_;
  if (first_formation && waiting_ < room() && now < *enough_since_ + options().last_call) return;
  std::vector<NodeId> chosen;
  std::set<std::int32_t> hints;
  for (const auto& [id, node] : nodes_)
    if (node.member && is_waiting(node)) chosen.push_back(id), hints.insert(node.join.hint);
  // Of two incarnations of one place the later comes first: the earlier one is probably on its way out.
  std::vector<NodeId> others, twins;
  std::map<std::int32_t, NodeId> latest;
  for (const auto& [arrived, id] : newcomers_) latest.insert_or_assign(nodes_.at(id).join.hint, id);
  for (const auto& [arrived, id] : newcomers_) {
    const std::int32_t hint = nodes_.at(id).join.hint;
    const bool twin = hint >= 0 && (hints.contains(hint) || latest.at(hint) != id);
    (twin ? twins : others).push_back(id);
  }
  for (const auto* more : {&others, &twins})
    for (const NodeId& id : *more)
      if (chosen.size() < room() && !(ELRUN_PLANTED(spare_never_used) && !first_formation)) chosen.push_back(id);
  begin(std::move(chosen), now);
}

void Round::begin(std::vector<NodeId> chosen, Instant now) {
  progress_told_.reset();
  std::vector<Candidate> candidates;
  candidates.reserve(chosen.size());
  for (const NodeId& id : chosen) {
    const Join& join = nodes_.at(id).join;
    candidates.push_back({id, join.address, join.workers, join.master_port, join.hint, join.topology, join.role});
  }
  tell_of_same_hints(candidates);
  // Only survivors keep their place: a node that was lost and has returned is a newcomer.
  std::erase_if(members_, [&](const Member& m) { return !nodes_.contains(m.node) || !nodes_.at(m.node).member; });
  for (auto& [id, node] : nodes_)
    if (node.member) change(node, [](Node& n) { n.member = false; });
  members_ = assign(std::move(candidates), members_, options().nodes_min == options().nodes_max);
  roster_ = roster_hash(members_);
  generation_ = {ELRUN_PLANTED(generation_number_reused) ? std::max<std::uint64_t>(floor_, 1) : ++floor_, setup_.lineage};
  revoked_ = false;
  began_ = now;
  deserted_until_ = {};
  done_.clear();
  if (!deaths_.empty()) cause_ = deaths_.front().what;
  deaths_.clear();
  suspects_.clear();
  charged_ = false;
  lost_.clear();
  refused_.clear();
  enough_since_.reset();
  forming_since_.reset();
  actions_.push_back(BeginGeneration{generation_, members_});
  actions_.reserve(actions_.size() + members_.size() + 2);  // and what is said, and when to wake
  const Key256 key = key_of(setup_.secret, generation_);
  for (std::uint32_t rank = 0; rank < members_.size(); ++rank) {
    Node& node = nodes_.at(members_[rank].node);
    change(node, [](Node& n) {
      n.member = true;
      n.ready = n.owes = false;
      n.told = 0;
    });
    send(node, world_of(rank, key));
  }
  say(Level::info, fmt::format("generation {} begins: {}, {}", to_string(generation_), count_of(members_.size(), "node"), count_of(seat_of(0).world_size, "worker")));
}

// Where the number of nodes is fixed, a node's rank is meant to be its place.
void Round::tell_of_same_hints(const std::vector<Candidate>& candidates) {
  if (same_hints_told_ || options().nodes_min != options().nodes_max) return;
  std::map<std::int32_t, const NodeId*> nodes;
  for (const Candidate& c : candidates) {
    if (c.hint < 0) continue;
    const auto [other, fresh] = nodes.try_emplace(c.hint, &c.node);
    if (fresh) continue;
    say(Level::warning, fmt::format("nodes {} and {} both have the node rank {} (--node_rank, or the number in the host's name): they are ranked by name; give each its own",
                                    other->second->value(), c.node.value(), c.hint));
    same_hints_told_ = true;
    return;
  }
}

Seat Round::seat_of(std::uint32_t group_rank) const {
  return {group_rank, members_[group_rank].base_rank, static_cast<std::uint32_t>(members_.size()),
          members_.back().base_rank + members_.back().workers, roster_};
}

World Round::world_of(std::uint32_t group_rank, const Key256& key) const {
  World world{generation_, key, seat_of(group_rank), members_[group_rank].address,
              members_[0].address, members_[0].master_port, restarts_, cause_, members_[group_rank].role};
  if (ELRUN_PLANTED(torchrun_d1_replacement_gets_no_address) && !cause_.empty() && group_rank > 0) world.master_address.clear();
  if (ELRUN_PLANTED(torchrun_d2_split_brain) && !cause_.empty() && group_rank > 0) world.master_address = world.address;
  return world;
}

void Round::give_up(Instant now) {
  if (runs() || recovery_ || !forming_since_ || waiting_ >= needed()) return;
  if (now < *forming_since_ + setup_.timeouts.join) return;
  const bool never = generation_.number == 0 && floor_ == setup_.generation_floor;
  decide(never ? exit_never_formed : exit_too_few,
         fmt::format("{} of at least {} nodes were there within {:.3g} s; {}", waiting_, needed(), seconds(setup_.timeouts.join), missing()), now);
}

void Round::fail(Instant now) {
  const Failing failing = *std::exchange(failing_, {});
  const Death& first = deaths_.front();
  std::string report = fmt::format("generation {}: {}; {}", generation_.number, first.what, failing.why);
  std::vector<std::string> gone;
  for (const auto& [id, why] : lost_) gone.push_back(fmt::format("{} ({})", id.value(), why));
  if (!gone.empty()) report += fmt::format("; gone as well: {}", some_of(gone));
  std::vector<WorkerDeath> workers;
  for (const Death& death : deaths_) workers.push_back(death.worker);
  decide(first.exit_code, std::move(report), now, std::move(workers));
}

void Round::decide(std::int32_t exit_code, std::string report, Instant now, std::vector<WorkerDeath> deaths) {
  // Why, who coordinates says in its report.
  say(exit_code == 0 ? Level::info : Level::error, exit_code == 0 ? std::string{"the job is done"} : fmt::format("the job has failed, exit code {}", exit_code));
  verdict_ = Verdict{exit_code, std::move(report), std::move(deaths)};
  failing_.reset();
  verdict_at_ = now;
  for (const auto& [id, node] : nodes_) {
    send(node, *verdict_);
    if (ELRUN_PLANTED(torchrun_d18_others_go_on) && exit_code != 0) break;
  }
}

// --- what the waiting are told ------------------------------------------------------------------------------------

std::string Round::missing() const {
  std::string text = waiting_ < needed() ? fmt::format("missing: at least {}", needed() - waiting_)
                                                    : fmt::format("room for {} more", room() - waiting_);
  // Where every node says which one it is, the absent have names.
  std::set<std::int32_t> hints;
  for (const auto& [id, node] : nodes_)
    if (node.ready && node.stream) hints.insert(node.join.hint);
  const auto places = static_cast<std::int32_t>(options().nodes_max);
  if (!hints.empty() && *hints.begin() >= 0 && *hints.rbegin() < places && hints.size() == waiting_ + observers_) {
    std::vector<std::string> absent;
    for (std::int32_t rank = 0; rank < places && absent.size() <= names_max; ++rank)
      if (!hints.contains(rank)) absent.push_back(std::to_string(rank));
    if (!absent.empty()) text += fmt::format(" (node rank {})", some_of(absent));
  }
  std::vector<std::string> lost;
  for (const auto& [id, why] : lost_)
    if (!nodes_.contains(id)) lost.push_back(fmt::format("{} ({})", id.value(), why));
  if (!lost.empty()) text += fmt::format("; gone: {}", some_of(lost));
  std::vector<std::string> refused;
  for (const auto& [id, why] : refused_) refused.push_back(fmt::format("{} ({})", id.value(), why));
  if (!refused.empty()) text += fmt::format("; refused: {}", some_of(refused));
  return text;
}

Round::Reason Round::reason(Instant now) const {
  if (recovery_)
    return {fmt::format("generation {} of another coordinator: {} of {} nodes are here", to_string(recovery_->generation), recovery_->seats.size(), recovery_->shape.nodes),
            recovery_->until, "it ends unless all come"};
  if (runs()) {
    if (const auto at = growth_at()) return {fmt::format("generation {} runs", to_string(generation_)), at, "it makes room for newcomers"};
    if (deserted(now) && std::none_of(members_.begin(), members_.end(), [&](const Member& m) { return nodes_.contains(m.node) && nodes_.at(m.node).stream; }))
      return {fmt::format("generation {} lost all of its {} at once; they may come back", to_string(generation_), count_of(members_.size(), "node")), deserted_until_, "they count as lost"};
    return {fmt::format("generation {} runs with {}; this node is a spare", to_string(generation_), count_of(members_.size(), "node")), {}, {}};
  }
  if (revoked_ && !living_members_all_ready()) {
    std::vector<std::string> late;
    for (const auto& [id, node] : nodes_)
      if (is_late(node)) late.push_back(id.value());
    return {fmt::format("waiting for {} to end the workers of generation {}", some_of(late), to_string(generation_)), return_by_, "they count as lost"};
  }
  if (waiting_ < needed())
    return {fmt::format("{} of {} nodes; {}", waiting_, needed(), missing()),
            forming_since_ ? std::optional{*forming_since_ + setup_.timeouts.join} : std::nullopt, "the job is given up"};
  if (now < pause_until_)
    return {fmt::format("the workers failed {} times in a row with exit code {} within {:.0f} s of their start", alike_, alike_code_, seconds(start_over_within)), pause_until_, "they are started again"};
  if (!enough_since_) return {"a generation that another coordinator began may still run", hold_until_, "another one begins"};
  return {fmt::format("{} of {} nodes; {}", waiting_, room(), missing()), *enough_since_ + options().last_call, "last call ends"};
}

void Round::explain(Instant now) {
  if (!explain_at_) explain_at_ = now + explain_after;
  if (now < *explain_at_) return;
  explain_at_.reset();
  const Reason why = reason(now);
  const std::string key = fmt::format("{} {} {}", why.why, why.until ? why.until->time_since_epoch().count() : 0, why.then);
  if (explained_ != key) explained_ = key, ++explanation_;
  std::string text = why.why;
  if (why.until) text += fmt::format("; {} in {:.0f} s", why.then, std::ceil(seconds(*why.until - now)));
  std::size_t told = 0;
  for (auto& [id, node] : nodes_) {
    const bool waits = node.stream && (node.ready || recovery_) && !(node.member && runs());
    if (!waits || node.told == explanation_) continue;
    node.told = explanation_;
    send(node, Waiting{.why = node.join.workers == 0 && runs() ? fmt::format("generation {} runs with {}; this node has no workers, it only coordinates", to_string(generation_), count_of(members_.size(), "node")) : text,
                       .running = runs() ? generation_ : Generation{}});
    ++told;
  }
  if (told > 0) explain_at_ = now + explain_after + explain_per_node * static_cast<Duration::rep>(told);
}

void Round::wake(Instant now) {
  std::optional<Instant> next;
  const auto at = [&](std::optional<Instant> when) {
    if (when && *when > now && (!next || *when < *next)) next = when;  // what was due before, settle has seen to
  };
  if (!silences_.empty()) at(silences_.begin()->first);
  if (!broken_.empty()) at(deserted(now) ? deserted_until_ : broken_.begin()->first + setup_.timeouts.reconnect_grace);
  if (verdict_) {
    if (const Instant end = verdict_at_ + setup_.timeouts.verdict_linger; now < end) at(end);
  } else if (options_) {
    at(explain_at_);
    at(growth_at());
    if (recovery_) at(recovery_->until);
    if (failing_) at(failing_->until);
    at(hold_until_);
    at(pause_until_);
    if (revoked_ && !living_members_all_ready()) at(return_by_);
    if (!runs() && enough_since_ && living_members_all_ready()) at(*enough_since_ + options().last_call);
    if (!runs() && forming_since_ && waiting_ < needed()) at(*forming_since_ + setup_.timeouts.join);
  }
  // It looks at the clock as often as it expects to be heard of, or it would not notice that it was itself asleep.
  if (!streams_.empty()) {
    if (beat_at_ <= now) beat_at_ = now + setup_.timeouts.heartbeat;
    at(beat_at_);
  }
  if (next == wake_) return;
  wake_ = next;
  if (next) actions_.push_back(WakeAt{*next});
}

// --- words --------------------------------------------------------------------------------------------------------

void Round::refuse(StreamNumber stream, Failure why) {
  say(Level::warning, "refused: " + why.what);
  send(stream, Refused{std::move(why)});
  actions_.push_back(CloseStream{stream});
  const std::optional<NodeId> node = streams_.at(stream).node;
  forget(stream);
  if (!node) return;
  change(nodes_.at(*node), [](Node& n) {
    n.stream.reset();
    n.broken = Instant{};  // no grace: it is not welcome back as it is
  });
}

void Round::send(const Node& node, CoordinatorMessage message) {
  if (node.stream) send(*node.stream, std::move(message));
}

}  // namespace elrun::inline v0
