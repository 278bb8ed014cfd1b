#pragma once
/// \file FailureRecords: which nodes' workers keep failing, and which of these nodes are excluded until when. Pure.
///
/// An agent that is started again draws a new name, so a record is kept by the agent's place. A place is what agents say, and several may
/// say the same: the node that is there keeps it, and the others have a record by name. The place of a node whose stream is broken is
/// taken over. A decided step ends the row of failures of all nodes that had a part in it.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"

namespace elrun::inline v0 {

/// A node whose workers fail so often in a row, with no step decided between, is excluded while the others satisfy the minimum.
constexpr std::uint32_t exclude_after = 3;
/// An excluded node tries again after 1 s; doubled with each further exclusion, 256 s at most: each try may end a generation of the others.
/// Where its last try held them up for longer than that, it waits for as long, doubled as well, 30 min at most.
constexpr Duration exclusion_first = 1s;
/// One whose worker ended with 78 in a generation, while others train with what they have, tries again after 256 s from the beginning: a person has to change something there, and each try costs the
/// others two generations.
constexpr std::uint32_t exclusion_doublings_max = 8;
constexpr std::size_t histories_max = 1024;    ///< Nodes whose failures are remembered.
constexpr std::size_t failure_text_max = 256;  ///< Of how the last one ended

class FailureRecords {
 public:
  /// Under what a node's failures are remembered: its place, or its name.
  using Record = std::string;
  /// Failures of a node's workers since the last decided step that the node had a part in.
  struct History {
    std::uint32_t failures = 0;
    std::uint32_t exclusions = 0;
    bool at_start = true;            // all of them before the worker's session
    bool by_configuration = false;   // its last exclusion was for a worker that ended with 78 in a generation of others
    std::string last;                // how the last one ended
    std::optional<Instant> until{};  // excluded
  };
  using IsConnected = std::function<bool(const NodeId&)>;
  using IsMember = std::function<bool(const NodeId&)>;

  /// The node is here from now on. Returns the node whose place it took over, whose record is another from now on.
  std::optional<NodeId> open(const NodeId& node, const std::string& place, const IsConnected& is_connected);
  /// The node is gone. Its failures are remembered.
  void close(const NodeId& node);
  [[nodiscard]] Record record_of(const NodeId& node) const;
  /// The node that is here and has this record.
  [[nodiscard]] std::optional<NodeId> holder_of(const Record& record) const;

  /// A worker of the node failed. Where that ended the generation `blame` follows, and `take_back` is about it.
  const History& note(const NodeId& node, const std::string& what, bool at_start);
  void blame(const NodeId& node) { blamed_ = record_of(node); }
  /// The failure that ended this generation was the consequence of a lost node. Returns the node whose record is better now.
  std::optional<NodeId> take_back();
  /// A generation begins: no failure has ended it.
  void begin() { blamed_.reset(); }
  /// A step was decided that none had decided before: all members work.
  void forget(const IsMember& is_member);

  /// Excludes the node. `held_up`: how long its last try held the others up without a decided step; `longest`: no exclusion is longer; `by_configuration`: for an exit code that a person has to mend.
  void exclude(const NodeId& node, Duration held_up, Duration longest, Instant now, bool by_configuration = false);
  [[nodiscard]] bool is_excluded(const NodeId& node) const;
  /// For people; of a node that has failed.
  [[nodiscard]] std::string why_excluded(const NodeId& node, Instant now) const;
  void end_exclusion(const Record& record) { histories_.at(record).until.reset(); }
  /// Records whose exclusion is over.
  [[nodiscard]] std::vector<Record> due(Instant now) const;
  /// Excluded nodes that are here, and until when.
  [[nodiscard]] std::vector<std::pair<NodeId, Instant>> excluded() const;
  [[nodiscard]] const std::map<Record, History>& all() const { return histories_; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::map<Record, History> histories_;  // of nodes whose workers have failed
  std::map<Record, NodeId> holders_;     // of the records that are a place's: who is there
  std::map<NodeId, Record> records_;     // of the nodes that are here
  std::optional<Record> blamed_;         // whose failure ended the generation
};

}  // namespace elrun::inline v0
