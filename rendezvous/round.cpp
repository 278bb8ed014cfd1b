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

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/assert.hpp"
#include "lib/base/bytes.hpp"
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

std::string count_of(std::size_t n, std::string_view noun) { return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s"); }

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
  if (wake_ && now > *wake_ + setup_.timeouts.heartbeat) {
    for (auto& [number, stream] : streams_) stream.heard = now;
    for (auto& [id, node] : nodes_)
      if (!node.stream) node.broken = now;
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
  streams_[event.stream] = {.node = {}, .in_process = event.in_process, .heard = now};
  settle(now);
}

void Round::on(const StreamBroken& event, Instant now) {
  const auto stream = streams_.find(event.stream);
  if (stream == streams_.end()) return;
  if (stream->second.node) {
    const auto node = nodes_.find(*stream->second.node);
    node->second.stream.reset();
    node->second.broken = now;
    node->second.told.clear();
    if (verdict_) nodes_.erase(node);  // it has heard all there is to hear
  }
  streams_.erase(stream);
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
    if (here != there) all.push_back(fmt::format("{}: this node has {}, the round has {}", what, there, here));
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
    return refuse(stream, {Code::mismatch, Remedy::fix_config, fmt::format("node {} does not fit: {}", id.value(), fmt::join(all, "; "))});
  if (const auto replaced = replaced_.find(id); replaced != replaced_.end() && replaced->second.contains(join.who.number))
    return refuse(stream, {Code::already_exists, Remedy::fix_config,
                           fmt::format("another agent has joined as node {} since; each agent needs a name of its own", id.value())});
  if (const auto& old = streams_.at(stream).node; old && *old != id)
    return refuse(stream, {Code::protocol, Remedy::exit_process, fmt::format("one stream spoke for two nodes, {} and {}", old->value(), id.value())});
  if (verdict_ && !nodes_.contains(id)) return send(stream, *verdict_);
  if (!verdict_) {
    if (const auto known = nodes_.find(id); known != nodes_.end() && known->second.join.who.number != join.who.number) {
      std::set<std::uint64_t>& replaced = replaced_[id];
      if (replaced.size() >= replaced_max) replaced.erase(replaced.begin());
      replaced.insert(known->second.join.who.number);
      if (known->second.stream == stream) streams_.at(stream).node.reset(), known->second.stream.reset();
      lose(id, "another process has joined under its name", now);
    }
    if (!nodes_.contains(id) && nodes_.size() >= nodes_limit)
      return refuse(stream, {Code::exhausted, Remedy::retry, fmt::format("{} nodes are here already", nodes_.size())});
  }
  if (verdict_) return nodes_.contains(id) ? admit(stream, nodes_.at(id), join, now) : send(stream, *verdict_);
  if (!options_) options_ = join.options;
  if (run_.value().empty()) run_ = join.run;
  floor_ = std::max(floor_, join.last.number);
  const auto [node, fresh] = nodes_.try_emplace(id);
  if (fresh) {
    node->second.arrived = now;
    say(Level::info, fmt::format("node {} ({}, {}) joined{}", id.value(), join.address, count_of(join.workers, "worker"),
                                 lost_.contains(id) ? " again" : ""));
  }
  if (!forming_since_ && !runs()) forming_since_ = now;
  admit(stream, node->second, join, now);
}

// The node speaks on this stream from now on; what it is told depends on what became of the generation that it knows.
void Round::admit(StreamNumber stream, Node& node, const Join& join, Instant now) {
  if (node.stream && *node.stream != stream) {
    actions_.push_back(CloseStream{*node.stream});
    streams_.erase(*node.stream);
  }
  node.stream = stream;
  streams_.at(stream).node = join.who.node;
  if (verdict_) return send(node, *verdict_);

  const bool knows_it = join.last == generation_;
  if (node.member && runs()) {
    const auto me = std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.node == join.who.node; });
    if (knows_it && join.resuming) {
      node.join = join;
      return send(node, Resumed{generation_});
    }
    // The world and this Join crossed, or the stream broke before the world arrived: here it is again, if the node still
    // is what the others were told.
    if (!knows_it && !join.resuming && me->address == join.address && me->master_port == join.master_port && me->workers == join.workers) {
      const auto rank = static_cast<std::uint32_t>(me - members_.begin());
      return send(node, World{generation_, key_of(setup_.secret, generation_), rank, members_, restart_count_, cause_});
    }
    node.join = join;
    lost_[join.who.node] = "it gave the generation up";
    revoke({Code::peer_lost, Remedy::rejoin, fmt::format("node {} gave generation {} up", join.who.node.value(), to_string(generation_)), {}, {}, generation_, join.who.node.value()},
           true, now);
  }
  node.join = join;
  if (join.resuming) {  // its workers still run for a generation that is over, or of which nothing is known here
    node.ready = false;
    return send(node, Revoke{join.last, {Code::generation_over, Remedy::rejoin,
                                         fmt::format("generation {} is over; this coordinator's newest is {}", to_string(join.last), to_string(generation_)), {}, {}, join.last}});
  }
  node.owes = false;  // it joins only when the workers of the old generation are gone
  node.ready = true;
  node.told.clear();
}

void Round::said(Node& node, const NodeMessage& message, Instant now) {
  const NodeId id = node.join.who.node;
  const auto current = [&](const Generation& g) { return node.member && g == generation_ && !verdict_; };
  if (const auto* m = std::get_if<Acknowledge>(&message)) {
    if (current(m->generation) && revoked_) node.owes = false;
  } else if (const auto* failed = std::get_if<WorkerFailed>(&message)) {
    if (current(failed->generation) && runs()) worker_failed(node, *failed, now);  // else: a consequence of what ended it
  } else if (const auto* done = std::get_if<WorkersDone>(&message)) {
    if (!current(done->generation) || !runs()) return;
    done_.insert(id);
    if (all_done()) decide(0, {}, now);
  } else if (const auto* finished = std::get_if<JobFinished>(&message)) {
    // Also after the revocation: all members decided it before any of them acknowledged the end.
    if (current(finished->generation)) decide(0, {}, now);
  } else if (const auto* progress = std::get_if<Progress>(&message)) {
    if (!current(progress->generation)) return;
    if (progress->step <= newest_step_) return;  // done before, and again since: no further than at the last failure
    newest_step_ = progress->step;
    progressed_ = true;
    growths_ = 0;
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
  const std::int32_t budget = options().max_restarts >= 0 ? options().max_restarts : failed.is_job ? job_restarts : 0;
  if (failed.is_job && failed.exit_code == exit_code_configuration)
    return decide(failed.exit_code,
                  fmt::format("generation {}: {}; a wrong configuration is not restarted", to_string(generation_), why.what), now);
  const bool free_of_charge = failed.is_job && progressed_ && budget > 0;
  progressed_ = false;
  if (!free_of_charge && ++restarts_used_ > budget) {
    const std::string used = budget == 0 ? "no restart is allowed (--max_restarts)" : fmt::format("all {} restarts (--max_restarts) are used", budget);
    return decide(failed.exit_code == 0 ? 1 : failed.exit_code, fmt::format("generation {}: {}; {}", to_string(generation_), why.what, used), now);
  }
  revoke(std::move(why), true, now);
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
  if (!verdict_ && options_) {
    grow(now);
    form(now);
    give_up(now);
  }
  if (!verdict_ && options_) explain(now);
  wake(now);
}

// When the node is lost if nothing is heard of it; never for a stream of this process.
std::optional<Instant> Round::gone_at(const Node& node) const {
  if (!node.stream) return node.broken + setup_.timeouts.reconnect_grace;
  const Stream& stream = streams_.at(*node.stream);
  if (stream.in_process) return {};
  return stream.heard + setup_.timeouts.heartbeat_limit;
}

void Round::lose_the_silent(Instant now) {
  for (auto at = streams_.begin(); at != streams_.end();) {  // streams that no node speaks on
    const auto stream = at++;
    if (stream->second.node || stream->second.in_process || now < stream->second.heard + setup_.timeouts.heartbeat_limit) continue;
    actions_.push_back(CloseStream{stream->first});
    streams_.erase(stream);
  }
  std::vector<std::pair<NodeId, std::string>> gone;
  for (const auto& [id, node] : nodes_) {
    if (const auto at = gone_at(node); at && now >= *at) {
      gone.emplace_back(id, node.stream ? fmt::format("nothing was heard of it for {:.3g} s", seconds(setup_.timeouts.heartbeat_limit))
                                        : fmt::format("its stream broke and it did not return within {:.3g} s", seconds(setup_.timeouts.reconnect_grace)));
    } else if (revoked_ && !verdict_ && node.member && !node.ready && now >= return_by_) {
      gone.emplace_back(id, fmt::format("it did not end its workers of generation {} in time", to_string(generation_)));
    }
  }
  for (const auto& [id, why] : gone) lose(id, why, now);
}

void Round::lose(const NodeId& id, const std::string& why, Instant now) {
  const auto node = nodes_.find(id);
  const bool member = node->second.member, done = done_.contains(id);
  remove(node, true);
  if (verdict_) return;
  say(member ? Level::warning : Level::info, fmt::format("node {} is lost: {}", id.value(), why));
  if (!member) return;
  lost_[id] = why;
  if (runs() && !done)  // whoever has done its part may go
    revoke({Code::peer_lost, Remedy::rejoin, fmt::format("node {} is lost: {}", id.value(), why), {}, {}, generation_, id.value()}, true, now);
}

void Round::remove(Nodes::iterator node, bool close) {
  if (const auto stream = node->second.stream; stream && close) {
    actions_.push_back(CloseStream{*stream});
    streams_.erase(*stream);
  }
  nodes_.erase(node);
  if (!nodes_.empty()) return;
  forming_since_.reset();
  if (generation_.number == 0) {  // nothing was begun: the next node sets the options
    options_.reset();
    run_ = setup_.run;
  }
}

void Round::revoke(Failure why, bool failed, Instant now) {
  ELRUN_ASSERT(runs());
  revoked_ = true;
  cause_ = why.what;
  restart_count_ += failed ? 1 : 0;
  forming_since_ = now;
  if (nodes_.empty()) forming_since_.reset();
  enough_since_.reset();
  // Workers are asked, then killed; a node that is still silent about it after all that is not coming back.
  return_by_ = now + setup_.timeouts.revocation + setup_.timeouts.stop_grace + setup_.timeouts.heartbeat_limit;
  say(failed ? Level::warning : Level::info, fmt::format("generation {} is over: {}", to_string(generation_), why.what));
  actions_.push_back(EndGeneration{why.what});
  for (auto& [id, node] : nodes_) {
    if (!node.member) continue;
    node.owes = true;
    send(node, Revoke{generation_, why});
  }
}

// A newcomer and room for it: the generation ends, free of charge, to begin again with it. Not while a member is done,
// for its work would be done twice.
std::optional<Instant> Round::growth_at() const {
  if (!runs() || members_.size() >= options().nodes_max || !done_.empty()) return {};
  std::optional<Instant> first;
  for (const auto& [id, node] : nodes_)
    if (!node.member && node.ready && node.stream) first = first ? std::min(*first, node.arrived) : node.arrived;
  if (!first) return {};
  return std::max(*first + growth_gather, began_ + growth_settle * (1 << std::min(growths_, growth_doublings_max)));
}

void Round::grow(Instant now) {
  const auto at = growth_at();
  if (!at || now < *at) return;
  std::vector<std::string> names;
  for (const auto& [id, node] : nodes_)
    if (!node.member && node.ready && node.stream) names.push_back(id.value());
  ++growths_;
  revoke({Code::generation_over, Remedy::rejoin, fmt::format("the world grows by {}", fmt::join(names, ", ")), {}, {}, generation_}, false, now);
}

bool Round::living_members_all_ready() const {
  return std::all_of(nodes_.begin(), nodes_.end(), [](const auto& entry) {
    const Node& node = entry.second;
    return !node.member || (node.ready && !node.owes && node.stream);
  });
}

std::size_t Round::ready_count() const {
  return static_cast<std::size_t>(std::count_if(nodes_.begin(), nodes_.end(), [](const auto& entry) { return entry.second.ready && entry.second.stream; }));
}

bool Round::all_done() const {
  return std::all_of(members_.begin(), members_.end(), [&](const Member& m) { return done_.contains(m.node); });
}

void Round::form(Instant now) {
  if (runs()) return;
  const std::size_t count = ready_count();
  if (count < options().nodes_min) return enough_since_.reset();
  if (!enough_since_) enough_since_ = now;
  // The promise that the whole system rests on: nobody begins the next generation while a living member may still act
  // for the last one.
  if (!living_members_all_ready()) return;
  std::vector<NodeId> chosen, newcomers;
  for (const auto& [id, node] : nodes_)
    if (node.ready && node.stream) (node.member ? chosen : newcomers).push_back(id);
  const bool last_call = chosen.empty() && count < options().nodes_max;
  if (last_call && now < *enough_since_ + options().last_call) return;
  std::stable_sort(newcomers.begin(), newcomers.end(), [&](const NodeId& a, const NodeId& b) { return nodes_.at(a).arrived < nodes_.at(b).arrived; });
  for (const NodeId& id : newcomers)
    if (chosen.size() < options().nodes_max) chosen.push_back(id);
  begin(std::move(chosen), now);
}

void Round::begin(std::vector<NodeId> chosen, Instant now) {
  std::vector<Candidate> candidates;
  for (const NodeId& id : chosen) {
    const Join& join = nodes_.at(id).join;
    candidates.push_back({id, join.address, join.workers, join.master_port, join.hint});
  }
  // Only survivors keep their place: a node that was lost and has returned is a newcomer.
  std::erase_if(members_, [&](const Member& m) { return !nodes_.contains(m.node) || !nodes_.at(m.node).member; });
  members_ = assign(std::move(candidates), members_, options().nodes_min == options().nodes_max);
  generation_ = {++floor_, setup_.lineage};
  revoked_ = false;
  began_ = now;
  done_.clear();
  lost_.clear();
  enough_since_.reset();
  forming_since_.reset();
  actions_.push_back(BeginGeneration{generation_});
  for (auto& [id, node] : nodes_) node.member = false;
  std::size_t workers = 0;
  for (std::uint32_t rank = 0; rank < members_.size(); ++rank) {
    Node& node = nodes_.at(members_[rank].node);
    node.member = true;
    node.ready = node.owes = false;
    node.told.clear();
    workers += members_[rank].workers;
    send(node, World{generation_, key_of(setup_.secret, generation_), rank, members_, restart_count_, cause_});
  }
  say(Level::info, fmt::format("generation {} begins: {}, {}", to_string(generation_), count_of(members_.size(), "node"), count_of(workers, "worker")));
}

void Round::give_up(Instant now) {
  if (runs() || !forming_since_ || ready_count() >= options().nodes_min) return;
  if (now < *forming_since_ + setup_.timeouts.join) return;
  decide(generation_.number == 0 ? exit_never_formed : exit_too_few,
         fmt::format("{} of at least {} nodes were there within {:.3g} s; {}", ready_count(), options().nodes_min, seconds(setup_.timeouts.join), missing()), now);
}

void Round::decide(std::int32_t exit_code, std::string report, Instant now) {
  say(exit_code == 0 ? Level::info : Level::error, exit_code == 0 ? std::string{"the job is done"} : fmt::format("the job has failed: {}", report));
  verdict_ = Verdict{exit_code, std::move(report)};
  verdict_at_ = now;
  for (const auto& [id, node] : nodes_) send(node, *verdict_);
}

// --- what the waiting are told ------------------------------------------------------------------------------------

std::string Round::missing() const {
  const std::size_t count = ready_count();
  std::string text = count < options().nodes_min ? fmt::format("missing: at least {}", options().nodes_min - count)
                                                 : fmt::format("room for {} more", options().nodes_max - count);
  std::vector<std::string> lost;
  for (const auto& [id, why] : lost_)
    if (!nodes_.contains(id)) lost.push_back(fmt::format("{} ({})", id.value(), why));
  if (!lost.empty()) text += fmt::format("; gone: {}", fmt::join(lost, ", "));
  return text;
}

Round::Reason Round::reason() const {
  if (runs()) {
    if (const auto at = growth_at()) return {fmt::format("generation {} runs", to_string(generation_)), at, "it makes room for newcomers"};
    return {fmt::format("generation {} runs with {}; this node is a spare", to_string(generation_), count_of(members_.size(), "node")), {}, {}};
  }
  if (revoked_ && !living_members_all_ready()) {
    std::vector<std::string> late;
    for (const auto& [id, node] : nodes_)
      if (node.member && !(node.ready && node.stream)) late.push_back(id.value());
    return {fmt::format("waiting for {} to end the workers of generation {}", fmt::join(late, ", "), to_string(generation_)), return_by_, "they count as lost"};
  }
  const std::size_t count = ready_count();
  if (count < options().nodes_min)
    return {fmt::format("{} of {} nodes; {}", count, options().nodes_min, missing()),
            forming_since_ ? std::optional{*forming_since_ + setup_.timeouts.join} : std::nullopt, "the round is given up"};
  return {fmt::format("{} of {} nodes; {}", count, options().nodes_max, missing()), *enough_since_ + options().last_call, "last call ends"};
}

void Round::explain(Instant now) {
  const bool anybody = std::any_of(nodes_.begin(), nodes_.end(), [](const auto& entry) { return entry.second.ready && entry.second.stream; });
  if (!anybody) return;
  const Reason why = reason();
  const std::string key = fmt::format("{} {} {}", why.why, why.until ? why.until->time_since_epoch().count() : 0, why.then);
  std::string text = why.why;
  if (why.until) text += fmt::format("; {} in {:.0f} s", why.then, std::ceil(seconds(*why.until - now)));
  for (auto& [id, node] : nodes_) {
    if (!node.ready || !node.stream || node.told == key) continue;
    node.told = key;
    send(node, Waiting{text});
  }
}

void Round::wake(Instant now) {
  std::optional<Instant> next;
  const auto at = [&](std::optional<Instant> when) {
    if (when && *when > now && (!next || *when < *next)) next = when;  // what was due before, settle has seen to
  };
  for (const auto& [number, stream] : streams_)
    if (!stream.node && !stream.in_process) at(stream.heard + setup_.timeouts.heartbeat_limit);
  for (const auto& [id, node] : nodes_) at(gone_at(node));
  if (verdict_) {
    if (const Instant end = verdict_at_ + setup_.timeouts.verdict_linger; now < end) at(end);
  } else if (options_) {
    at(growth_at());
    if (revoked_ && !living_members_all_ready()) at(return_by_);
    if (!runs() && enough_since_ && living_members_all_ready()) at(*enough_since_ + options().last_call);
    if (!runs() && forming_since_ && ready_count() < options().nodes_min) at(*forming_since_ + setup_.timeouts.join);
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
  const auto at = streams_.find(stream);
  const std::optional<NodeId> node = at->second.node;
  streams_.erase(at);
  if (!node) return;
  nodes_.at(*node).stream.reset();
  nodes_.at(*node).broken = Instant{};  // no grace: it is not welcome back as it is
}

void Round::send(const Node& node, CoordinatorMessage message) {
  if (node.stream) send(*node.stream, std::move(message));
}

}  // namespace elrun::inline v0
