#pragma once
/// \file Nodes in a table, for tests of parts that look at one.

#include <string>

#include "rendezvous/round/node_table.hpp"

namespace elrun::test {

/// A table whose nodes have been put there by hand. Each has a stream with a number of its own, on which it spoke last at `heard`.
struct Table {
  NodeTable nodes;
  std::uint64_t streams = 0;

  /// A node that waits for a place. It arrived when it spoke.
  NodeTable::Node& wait(const std::string& name, Instant heard, std::int32_t hint = -1) {
    const StreamNumber stream{++streams};
    nodes.open(stream, false, Duration{5'000'000'000}, heard);
    nodes.set_speaker(stream, NodeId{name});
    NodeTable::Node node;
    node.join.who = {NodeId{name}, 1};
    node.join.workers = 2;
    node.join.hint = hint;
    node.join.confirms_verdict = true;
    node.stream = node.first = node.newest = stream;
    node.ready = true;
    node.arrived = heard;
    return nodes.enter(NodeId{name}, std::move(node));
  }
  /// One that was a member of the last generation, and waits for the next.
  NodeTable::Node& survive(const std::string& name, Instant heard, std::int32_t hint = -1) {
    NodeTable::Node& node = wait(name, heard, hint);
    nodes.change(node, [](NodeTable::Node& n) { n.member = true; });
    return node;
  }
};

}  // namespace elrun::test
