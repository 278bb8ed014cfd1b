#include "rendezvous/round/node_table.hpp"

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {

void NodeTable::open(StreamNumber number, bool in_process, Duration heartbeat_limit, Instant now, std::string from) {
  Stream& stream = streams_[number];
  stream = {.node = {}, .in_process = in_process, .from = std::move(from), .heard = now};
  if (!in_process) listen(number, stream, now + heartbeat_limit);
}

void NodeTable::close(StreamNumber number) {
  const auto stream = streams_.find(number);
  ELRUN_ASSERT(stream != streams_.end());
  silences_.erase({stream->second.look_again, number});
  streams_.erase(stream);
}

const NodeTable::Stream* NodeTable::stream_of(const NodeId& id) const {
  const Node* const node = find(id);
  return node == nullptr || !node->stream ? nullptr : &streams_.at(*node->stream);
}

void NodeTable::listen(StreamNumber number, Stream& stream, Instant until) {
  silences_.erase({stream.look_again, number});
  stream.look_again = until;
  silences_.emplace(until, number);
}

NodeTable::Silent NodeTable::silent(Duration heartbeat_limit, Instant now) {
  Silent silent;
  while (!silences_.empty() && silences_.begin()->first <= now) {
    const StreamNumber number = silences_.begin()->second;
    Stream& stream = streams_.at(number);
    if (const Instant limit = stream.heard + heartbeat_limit; limit > now) {
      listen(number, stream, limit);  // it was heard since
      continue;
    }
    silences_.erase(silences_.begin());
    if (stream.node) silent.nodes.push_back(*stream.node);
    else silent.streams.push_back(number);
  }
  return silent;
}

std::optional<Instant> NodeTable::next_silence() const {
  if (silences_.empty()) return {};
  return silences_.begin()->first;
}

void NodeTable::compensate_stall(Duration stalled, const Timeouts& timeouts, Instant now) {
  if (stalled > timeouts.heartbeat)
    for (auto& [number, stream] : streams_) stream.heard = now;
  std::set<std::pair<Instant, NodeId>> broken;
  for (const auto& [at, id] : broken_) {
    Node& node = nodes_.at(id);
    // A coordinator that is always a little late has to give up who is gone all the same.
    if (stalled > timeouts.heartbeat || now < node.broken_since + timeouts.heartbeat_limit) node.broken = now;
    broken.emplace(node.broken, id);
  }
  broken_ = std::move(broken);
}

NodeTable::Node* NodeTable::find(const NodeId& id) {
  const auto node = nodes_.find(id);
  return node == nodes_.end() ? nullptr : &node->second;
}

const NodeTable::Node* NodeTable::find(const NodeId& id) const {
  const auto node = nodes_.find(id);
  return node == nodes_.end() ? nullptr : &node->second;
}

NodeTable::Node& NodeTable::enter(const NodeId& id, Node node) {
  Node& here = nodes_.insert_or_assign(id, std::move(node)).first->second;
  count(here, true);
  return here;
}

void NodeTable::erase(const NodeId& id) {
  const auto node = nodes_.find(id);
  count(node->second, false);
  nodes_.erase(node);
}

void NodeTable::count(const Node& node, bool in) {
  const NodeId& id = node.join.who.node;
  const std::size_t one = in ? 1 : static_cast<std::size_t>(-1);
  if (node.is_waiting()) waiting_ += one;
  if (node.is_coming()) coming_ += one;
  if (node.is_late()) late_ += one;
  if (node.stream) (node.join.workers > 0 ? connected_ : observers_) += one;
  const auto put = [&](auto& index, Instant at) { in ? void(index.emplace(at, id)) : void(index.erase({at, id})); };
  if (node.is_newcomer()) put(newcomers_, node.arrived);
  if (!node.stream) put(broken_, node.broken);
  if (!node.member && node.preparation.state != Preparation::State::none)
    in ? void(preparations_.insert(id)) : void(preparations_.erase(id));
}

}  // namespace elrun::inline v0
