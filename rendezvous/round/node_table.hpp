#pragma once
/// \file NodeTable, the round's membership: the nodes that are here, their streams, and how long nothing was heard on them. Pure.
///
/// What always holds:
///  * A stream belongs to one node at most, and a node has one stream at most.
///  * The counts and the lists (`waiting`, `late`, `newcomers`, ...) follow from the nodes. They are kept, so that an event among many
///    thousand nodes costs no walk over them all. So whatever they depend on is changed through `change` alone.
///
/// It is a table of values: most of its methods are look-ups of a line each. Streams and nodes are in one table, because each points at the
/// other.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "lib/base/timeouts.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0 {

/// One stream of one node, numbered by the shell in the order in which they were answered; a number is never used again.
using StreamNumber = Strong<struct StreamNumberTag, std::uint64_t>;

/// A newcomer starts its workers before it gets a place (`Prepare`).
struct Preparation {
  enum class State : std::uint8_t { none, under_way, done };
  State state = State::none;
  Generation beside;  ///< Which ran when it was told to
  std::uint32_t base_rank =
      0;            ///< Of its workers beside that generation. No other node that this coordinator told to prepare has the same.
  Instant since{};  ///< It was told
  Instant ready{};  ///< It has done so
};

/// More than 25 methods: streams, silence and nodes refer to each other, so each change of one is a method here that keeps the others true.
class NodeTable {
 public:
  struct Stream {
    std::optional<NodeId> node;  // none before Join and after Leave
    bool in_process = false;     // it lives on the same loop: its silence means nothing
    std::string from;            // the address it comes from
    Instant heard;
    Instant look_again{};  // its place among the silences
  };
  struct Node {
    Join join;
    std::optional<StreamNumber> stream;  // none: broken, in its grace
    StreamNumber first{}, newest{};      // of its streams
    Instant broken{};                    // when; later, where this coordinator was stopped itself
    Instant broken_since{};              // when indeed
    Instant arrived{};                   // when it became a newcomer; decides who of the spares is next
    bool member = false;                 // of the newest generation
    bool owes = false;                   // has to acknowledge the end of that generation
    bool ready = false;                  // waits for a world
    bool excluded = false;               // and gets none for a while: its workers fail, or it and another cannot reach each other
    std::uint64_t told = 0;              // number of the status message that it has
    Preparation preparation;
    [[nodiscard]] bool is_preparing() const { return preparation.state == Preparation::State::under_way; }
    /// It waits for a place in a world.
    [[nodiscard]] bool is_waiting() const { return ready && stream && join.workers > 0 && !excluded && !is_preparing(); }
    [[nodiscard]] bool is_coming() const { return ready && stream && join.workers > 0 && !excluded && is_preparing(); }
    /// A member whose workers of the newest generation may still be there.
    [[nodiscard]] bool is_late() const { return member && !(ready && !owes && stream); }
    [[nodiscard]] bool is_newcomer() const { return !member && is_waiting(); }
    /// It had a place in that generation, as it says.
    [[nodiscard]] bool comes_from(const Generation& generation) const { return join.seat && join.last == generation; }
  };
  using Nodes = std::map<NodeId, Node>;

  // Streams
  void open(StreamNumber number, bool in_process, Duration heartbeat_limit, Instant now, std::string from = {});
  [[nodiscard]] bool is_open(StreamNumber number) const { return streams_.contains(number); }
  [[nodiscard]] bool has_streams() const { return !streams_.empty(); }
  [[nodiscard]] const Stream& stream(StreamNumber number) const { return streams_.at(number); }
  void heard(StreamNumber number, Instant now) { streams_.at(number).heard = now; }
  /// Says who speaks on the stream; none: nobody any more.
  void set_speaker(StreamNumber number, std::optional<NodeId> node) { streams_.at(number).node = std::move(node); }
  void close(StreamNumber number);
  /// The node in this process speaks on this stream.
  [[nodiscard]] bool is_in_process(const Node& node) const { return node.stream && streams_.at(*node.stream).in_process; }
  [[nodiscard]] const Stream* stream_of(const NodeId& id) const;

  // Silence
  struct Silent {
    std::vector<NodeId> nodes;          ///< Nothing was heard of them for the limit.
    std::vector<StreamNumber> streams;  ///< On which nobody speaks: to be closed
  };
  /// What is silent, each once: nodes are to be lost, streams to be closed.
  [[nodiscard]] Silent silent(Duration heartbeat_limit, Instant now);
  [[nodiscard]] std::optional<Instant> next_silence() const;
  /// This process itself did not run for `stalled`, so it heard nobody. That is nobody's silence but its own. A node whose stream is broken
  /// gets its grace again, unless it is gone for longer than the heartbeat limit.
  void compensate_stall(Duration stalled, const Timeouts& timeouts, Instant now);

  // Nodes
  [[nodiscard]] const Nodes& all() const { return nodes_; }
  [[nodiscard]] bool has(const NodeId& id) const { return nodes_.contains(id); }
  /// nullptr: it is not here.
  [[nodiscard]] Node* find(const NodeId& id);
  [[nodiscard]] const Node* find(const NodeId& id) const;
  [[nodiscard]] Node& at(const NodeId& id) { return nodes_.at(id); }
  [[nodiscard]] const Node& at(const NodeId& id) const { return nodes_.at(id); }
  Node& enter(const NodeId& id, Node node);
  void erase(const NodeId& id);
  template <class Change>
  void change(Node& node, Change change) {
    count(node, false);
    change(node);
    count(node, true);
  }
  template <class Change>
  void change_members(Change change) {
    for (auto& [id, node] : nodes_)
      if (node.member) this->change(node, change);
  }

  [[nodiscard]] std::size_t waiting() const { return waiting_; }      ///< Nodes that wait for a world
  [[nodiscard]] std::size_t coming() const { return coming_; }        ///< Nodes that will wait for one, and are preparing
  [[nodiscard]] std::size_t late() const { return late_; }            ///< Living members that do not
  [[nodiscard]] std::size_t connected() const { return connected_; }  ///< Nodes with workers and a stream
  [[nodiscard]] std::size_t observers() const { return observers_; }  ///< Nodes without workers, with a stream
  /// Of the waiting, by arrival.
  [[nodiscard]] const std::set<std::pair<Instant, NodeId>>& newcomers() const { return newcomers_; }
  /// Nodes that were told to prepare, and those that have done so and have no place yet.
  [[nodiscard]] const std::set<NodeId>& preparations() const { return preparations_; }
  /// Nodes without a stream, by the time at which it broke.
  [[nodiscard]] const std::set<std::pair<Instant, NodeId>>& broken() const { return broken_; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  void count(const Node& node, bool in);
  void listen(StreamNumber number, Stream& stream, Instant until);

  std::map<StreamNumber, Stream> streams_;
  Nodes nodes_;
  std::size_t waiting_ = 0;
  std::size_t coming_ = 0;
  std::size_t late_ = 0;
  std::size_t connected_ = 0;
  std::size_t observers_ = 0;
  std::set<std::pair<Instant, NodeId>> newcomers_;
  std::set<NodeId> preparations_;
  std::set<std::pair<Instant, NodeId>> broken_;
  std::set<std::pair<Instant, StreamNumber>> silences_;  // when to look whether a stream is silent; never too late
};

}  // namespace elrun::inline v0
