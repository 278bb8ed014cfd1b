// Round: nodes that join, reconnect or are refused; and a generation that another coordinator began.
#include "rendezvous/round/round.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/planted.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"
#include "rendezvous/round/assign.hpp"

namespace elrun::inline v0 {
namespace {

std::optional<std::uint32_t> major_of(std::string_view version) {
  std::uint32_t major = 0;
  const auto [end, error] = std::from_chars(version.data(), version.data() + version.size(), major);
  if (error != std::errc{} || end == version.data() + version.size() || *end != '.') return {};
  return major;
}

}  // namespace

std::vector<std::string> Round::contradictions(const Join& join) const {
  std::vector<std::string> all = join.options.problems();
  const auto differ = [&](std::string_view what, const auto& here, const auto& there) {
    if (here != there) all.push_back(fmt::format("{}: this node has {}, the job has {}", what, there, here));
  };
  if (!run_.value().empty()) differ("run id (--rdzv_id)", run_.value(), join.run.value());
  if (const auto here = major_of(setup_.version), there = major_of(join.version); !here || here != there)
    all.push_back(
        fmt::format("version: this node runs elrun {}, the coordinator {}; the major versions must agree", join.version, setup_.version));
  if (join.workers > workers_per_node_limit)
    all.push_back(fmt::format("--nproc_per_node {}: needs 0 to {}", join.workers, workers_per_node_limit));
  if (join.who.node.value().empty()) all.push_back("the node has no name");
  // Names are shown in logs and told to others.
  for (const auto& [what, name] : {std::pair{"the node's name", &join.who.node.value()}, std::pair{"its address", &join.address},
                                   std::pair{"--rdzv_id", &join.run.value()}, std::pair{"--topology", &join.topology},
                                   std::pair{"--role", &join.role}, std::pair{"version", &join.version}})
    if (printable(*name) != *name) all.push_back(fmt::format("{} has characters that cannot be shown: {}", what, printable(*name)));
  // What nobody can have been told: a number that is believed stands for all generations below it.
  if (const std::uint64_t known = std::max(floor_, generation_.number), said = std::max(join.last.number, join.heard);
      said > generation_number_max || said > known + generation_jump_max)
    all.push_back(fmt::format("generation {} is out of bounds: the newest that this coordinator knows of is {}", said, known));
  if (setup_.nodes_max > 0) {
    differ("--nnodes MIN", setup_.nodes_min, join.options.nodes_min);
    differ("--nnodes MAX", setup_.nodes_max, join.options.nodes_max);
  } else if (options_) {
    differ("--nnodes MIN", options().nodes_min, join.options.nodes_min);
    differ("--nnodes MAX", options().nodes_max, join.options.nodes_max);
  }
  if (options_) {
    differ("last_call (seconds)", seconds(options().last_call), seconds(join.options.last_call));
    differ("--max_restarts (-1: not given)", options().max_restarts, join.options.max_restarts);
  }
  return all;
}

void Round::join(StreamNumber stream, const Join& join, Instant now) {
  const NodeId& id = join.who.node;
  if (const std::vector<std::string> all = contradictions(join); !all.empty())
    return refuse_misfit(stream, NodeId{printable(id.value())}, printable(fmt::format("{}", fmt::join(all, "; "))));
  if (const auto replaced = replaced_.find(id);
      replaced != replaced_.end() && replaced->second.contains(join.who.number) && !ELRUN_PLANTED(replaced_incarnation_returns))
    return refuse_replaced(stream, id);
  if (!verdict_ && outdated(stream, id)) return turn_away_outdated(stream, join);
  if (const auto former = former_.find(id); former != former_.end() && former->second.incarnation != join.who.number) {
    replace(id, former->second.incarnation);  // it was lost before its successor came, and may be back one day
    former_.erase(former);
  }
  if (const auto& old = nodes_.stream(stream).node; old && *old != id)
    return refuse(
        stream, {Code::protocol, Remedy::exit_process, fmt::format("one stream spoke for two nodes, {} and {}", old->value(), id.value())});
  if (verdict_ && !nodes_.has(id)) return send(stream, *verdict_);
  if (!verdict_) {
    if (Node* const known = nodes_.find(id); known != nullptr && known->join.who.number != join.who.number) {
      if (known->stream && known->stream != stream) return let_claim(stream, join, now);
      replace(id, known->join.who.number);
      if (known->stream == stream) {
        nodes_.set_speaker(stream, {});
        nodes_.change(*known, [](Node& n) { n.stream.reset(); });
      }
      lose(id, "another process has joined under its name", now);
    }
    if (!nodes_.has(id) && nodes_.all().size() >= nodes_limit)
      return refuse(stream, {Code::exhausted, Remedy::retry, fmt::format("{} nodes are here already", nodes_.all().size())});
  }
  if (ELRUN_PLANTED(oversubscription_is_an_error) && runs() && !nodes_.has(id) && members_.size() >= room())
    return refuse(stream, {Code::exhausted, Remedy::exit_process, "the round is complete"});
  if (verdict_) return nodes_.has(id) ? admit(stream, nodes_.at(id), join, now) : send(stream, *verdict_);
  if (!options_) options_ = join.options;
  if (run_.value().empty()) run_ = join.run;
  if (!ELRUN_PLANTED(floor_not_raised)) floor_ = std::max({floor_, join.last.number, join.heard});
  if (generation_.number == 0) {
    const bool may_run = join.heard > join.last.number || (setup_.floor_may_run && join.last.number < setup_.generation_floor);
    if (may_run && hold_until_ == Instant{}) hold_until_ = now + setup_.timeouts.recovery;
    // A member of the one on record that has ended it: nobody has to be waited for.
    if (setup_.floor_may_run && !join.resuming && join.last.number > 0 && join.last.number == floor_) hold_until_ = now;
    if (!join.resuming && join.seat && join.last.number > (ended_ ? ended_->number : 0))
      ended_ = join.last, ended_nodes_ = join.seat->nodes;
    budget_.count_on_from(join.restarts, options().max_restarts, static_cast<std::uint32_t>(generation_jump_max));
  }
  refused_.erase(id);
  Node* node = nodes_.find(id);
  if (node == nullptr) {
    open_record(join, now);
    Node fresh;
    fresh.join = join;
    fresh.arrived = now;
    fresh.excluded = is_kept_out(id, join.who.number);
    node = &nodes_.enter(id, std::move(fresh));
    say(Level::info,
        fmt::format("node {} ({}, {}) joined{}", id.value(), join.address, count_of(join.workers, "worker"),
                    lost_.contains(id) ? " again" : ""),
        true);
  }
  if (!forming_since_ && !runs()) forming_since_ = now;
  admit(stream, *node, join, now);
}

// A name proves nothing, so a live node keeps its name. An agent that is started again after a crash finds the old stream broken or silent.
void Round::let_claim(StreamNumber stream, const Join& join, Instant now) {
  const NodeId& id = join.who.node;
  std::vector<Claimant>& claimants = claimants_[id];
  if (const auto mine = std::find_if(claimants.begin(), claimants.end(), [&](const Claimant& c) { return c.stream == stream; });
      mine != claimants.end())
    return void(mine->join = join);
  if (claimants.size() >= claimants_max)
    return refuse(stream, {Code::already_exists, Remedy::fix_config,
                           fmt::format("{} other processes want to be node {} already; each agent needs a name of its own",
                                       claimants.size(), id.value())});
  claimants.push_back({stream, join, now});
  say(Level::warning,
      fmt::format("another process ({}) has joined as node {}, which is here: it waits until that is silent or gone, for {:.3g} s at most",
                  join.address, id.value(), seconds(setup_.timeouts.heartbeat_limit)),
      true);
  send(stream,
       Waiting{.why = fmt::format("a process that was heard of joined as node {} before; this one is let in once that is silent or gone",
                                  id.value()),
               .running = runs() ? generation_ : Generation{}});
}

void Round::settle_claims(Instant now) {
  for (auto at = claimants_.begin(); at != claimants_.end();) {
    const NodeId id = at->first;
    std::vector<Claimant>& claimants = at->second;
    std::erase_if(claimants, [&](const Claimant& c) { return !nodes_.is_open(c.stream); });
    const Node* const node = nodes_.find(id);
    std::optional<Claimant> heir;
    if (verdict_) {
      for (const Claimant& c : claimants) send(c.stream, *verdict_);
      claimants.clear();
    } else if (node == nullptr) {
      if (!claimants.empty()) heir = claimants.front(), claimants.erase(claimants.begin());
    } else if (node->stream) {
      const NodeTable::Stream& stream = nodes_.stream(*node->stream);
      while (!claimants.empty()) {
        const Claimant& first = claimants.front();
        // What was heard at once may have been said before this one was started.
        const bool lives = stream.in_process || stream.heard > first.since + setup_.timeouts.heartbeat;
        if (now < first.since + setup_.timeouts.heartbeat_limit || !lives) break;
        const StreamNumber number = first.stream;
        claimants.erase(claimants.begin());
        refuse(number, {Code::already_exists, Remedy::fix_config,
                        fmt::format("another process is node {}, and lives; each agent needs a name of its own", id.value())});
      }
    }
    for (Claimant& c : claimants)
      if (heir) c.since = now;
    at = claimants.empty() ? claimants_.erase(at) : std::next(at);
    if (heir) join(heir->stream, heir->join, now);
  }
}

void Round::refuse_misfit(StreamNumber stream, const NodeId& id, const std::string& why) {
  note_refused(id, why);
  refuse(stream, {Code::mismatch, Remedy::fix_config, fmt::format("node {} does not fit: {}", id.value(), why)});
}

// Waiting nodes are told which nodes were refused, and why.
void Round::note_refused(const NodeId& id, const std::string& why) {
  if (refused_.size() < refused_max || refused_.contains(id)) refused_[id] = why.substr(0, refused_text_max);
}

// A process opens a stream only after its predecessor has ended, and a node only after it gave up its last stream. So a message on an
// earlier stream than the newest was sent before, and only read later.
bool Round::outdated(StreamNumber stream, const NodeId& id) const {
  const Node* const node = nodes_.find(id);
  const auto former = former_.find(id);
  return (node != nullptr && stream < node->newest) || (former != former_.end() && stream < former->second.newest);
}

void Round::turn_away_outdated(StreamNumber stream, const Join& join) {
  const NodeId& id = join.who.node;
  const Node* const node = nodes_.find(id);
  const std::uint64_t newest = node != nullptr ? node->join.who.number : former_.at(id).incarnation;
  if (join.who.number != newest) {
    replace(id, join.who.number);
    return refuse_replaced(stream, id);
  }
  actions_.emplace_back(CloseStream{stream});  // not refused: the same process has another stream by now
  nodes_.close(stream);
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
    actions_.emplace_back(CloseStream{*node.stream});
    nodes_.close(*node.stream);
  }
  nodes_.change(node, [&](Node& n) {
    n.stream = stream;
    n.newest = std::max(n.newest, stream);
  });
  nodes_.set_speaker(stream, join.who.node);
  if (verdict_) return send(node, *verdict_);

  const bool knows_it = join.last == generation_;
  if (node.member && runs()) {
    if (knows_it && join.resuming && join.seat) {
      nodes_.change(node, [&](Node& n) { n.join = join; });
      return send(node, Resumed{generation_, generation_.lineage != setup_.lineage, own_place_});  // its replay may have been cut short
    }
    const auto me = std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.node == join.who.node; });
    // The world and this Join crossed, or the stream broke before the world arrived: here it is again, if the node still
    // is what the others were told, and the key is this coordinator's.
    if (!knows_it && !join.resuming && generation_.lineage == setup_.lineage && me->address == join.address &&
        me->master_port == join.master_port && me->workers == join.workers)
      return send(node, world_of(static_cast<std::uint32_t>(me - members_.begin()), key()));
    nodes_.change(node, [&](Node& n) { n.join = join; });
    lost_[join.who.node] = "it gave the generation up";
    revoke(EndCause::loss,
           {Code::peer_lost,
            Remedy::rejoin,
            fmt::format("node {} gave generation {} up", join.who.node.value(), to_string(generation_)),
            {},
            {},
            generation_,
            join.who.node.value()},
           now);
  }
  nodes_.change(node, [&](Node& n) {
    n.join = join;
    n.ready = !join.resuming;
    if (!join.resuming) n.owes = false;  // it joins only when the workers of the old generation are gone
    n.told = 0;
  });
  if (forming_since_) status_.put_off(*forming_since_, now);
  if (join.resuming) return claim(node, now);
  if (recovery_ && join.last == recovery_->generation()) end_recovery(fmt::format("node {} has ended it", join.who.node.value()), now);
}

// The node's workers still run for a generation that is over, or that another coordinator began.
void Round::claim(Node& node, Instant now) {
  const Join& join = node.join;
  // What is on record, or what another node has heard of, may be a later one: then this one is over.
  const bool nothing_begun = generation_.number == 0 && join.last.number >= floor_ && !ELRUN_PLANTED(fresh_coordinator_ends_what_runs);
  if (nothing_begun && join.seat && (!recovery_ || recovery_->generation().number < join.last.number)) {
    const std::optional<RecoveryWindow> older = std::exchange(recovery_, {});
    if (older)
      for (const auto& [rank, id] : older->seats()) is_over(nodes_.at(id), join.last);
    recovery_.emplace(join, setup_.timeouts.recovery, now);
    say(Level::info, fmt::format("generation {} was begun by another coordinator; waiting for its {}", to_string(join.last),
                                 count_of(join.seat->nodes, "node")));
  }
  if (!recovery_ || recovery_->generation() != join.last) return is_over(node, generation_);
  if (!join.seat) {
    end_recovery(fmt::format("node {} is ending it", join.who.node.value()), now);
    return is_over(node, generation_);
  }
  switch (recovery_->take(join, now)) {
    case RecoveryWindow::Taken::no: return is_over(node, generation_);
    case RecoveryWindow::Taken::yes:
      if (recovery_->only_its_coordinator_is_missing(setup_.elected, join_of()))
        end_recovery("the one that is missing coordinated it", now);
      return;
    case RecoveryWindow::Taken::complete: break;
  }
  if (recovery_->generation().number < floor_) return end_recovery("a later one was begun", now);
  adopt(now);
}

RecoveryWindow::JoinOf Round::join_of() const {
  return [this](const NodeId& id) -> const Join& { return nodes_.at(id).join; };
}

void Round::is_over(const Node& node, const Generation& newest) {
  const Generation& held = node.join.last;
  send(node, Revoke{held,
                    {Code::generation_over,
                     Remedy::rejoin,
                     fmt::format("generation {} is over; this coordinator's newest is {}", to_string(held), to_string(newest)),
                     {},
                     {},
                     held},
                    EndCause::stale});
}

// Every member of the generation is there: it goes on, as if nothing had happened.
void Round::adopt(Instant now) {
  hold_until_ = {};
  std::optional<std::vector<Member>> members = recovery_->all_members(join_of());
  if (!members) return end_recovery("its members do not agree on who they are", now);
  generation_ = recovery_->generation();
  roster_ = recovery_->roster();
  members_ = std::move(*members);
  recovery_.reset();
  note_own_place();
  revoked_ = false;
  growth_.begin();
  began_ = now;
  enough_since_.reset();
  forming_since_.reset();
  actions_.emplace_back(BeginGeneration{generation_, members_, true});
  say(Level::info, fmt::format("generation {} goes on: all of its {} are here", to_string(generation_), count_of(members_.size(), "node")));
  for (const Member& m : members_) {
    Node& node = nodes_.at(m.node);
    nodes_.change(node, [](Node& n) { n.member = true; });
    send(node, Resumed{generation_, true, own_place_});
  }
}

// The generation will not be whole again: those of its members that are here end it, and come first in the next one.
void Round::end_recovery(const std::string& why, Instant now) {
  const RecoveryWindow recovery = *std::exchange(recovery_, {});
  hold_until_ = {};
  generation_ = recovery.generation();
  for (Member& member : recovery.present_members(join_of())) members_.push_back(std::move(member));
  for (const Member& member : members_) nodes_.change(nodes_.at(member.node), [](Node& n) { n.member = true; });
  if (members_.empty()) return;
  revoke(EndCause::loss,
         {Code::peer_lost,
          Remedy::rejoin,
          fmt::format("its coordinator was lost, and {} of its {} did not come to this one: {}", recovery.nodes() - recovery.seats().size(),
                      count_of(recovery.nodes(), "node"), why),
          {},
          {},
          generation_},
         now);
}

}  // namespace elrun::inline v0
