#pragma once
/// \file JobTerms: what all nodes of a job have to agree on, in what a node contradicts it, and which nodes were refused for that. Pure.
///
/// The first node sets the run id and the options, where the coordinator was not given them. Another node's are compared field by field. If
/// nothing has begun and nobody is here any more, the next node sets them again.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <elrun/ids.hpp>

#include "lib/base/planted.hpp"
#include "lib/base/timeouts.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0 {

/// Limits of what one may say; a generation's number leaves room above it for ever.
constexpr std::uint64_t generation_number_max = std::uint64_t{1} << 62;
/// So many generations at most may have begun where this coordinator did not see it: one each second for half a year. Who
/// tells of a later one is no node of this job, and must not use the numbers up.
constexpr std::uint64_t generation_jump_max = std::uint64_t{1} << 24;
constexpr std::size_t refused_max = 16;        ///< Nodes that were refused and are remembered by name, and
constexpr std::size_t refused_text_max = 256;  ///< how much of the reason.

class JobTerms {
 public:
  /// What the coordinator was given. Empty and 0: the first node says it.
  struct Given {
    RunId run;
    std::uint32_t nodes_min = 0, nodes_max = 0;
    std::string version;                                    ///< Of this coordinator; nodes of another major version are refused.
    Duration heartbeat_limit = Timeouts{}.heartbeat_limit;  ///< Who says nothing for this long is lost.
  };
  explicit JobTerms(Given given) : given_{std::move(given)}, run_{given_.run} {}

  /// All in which the node does not fit, each with both values. Empty: it fits. `newest`: the newest generation that is known here.
  [[nodiscard]] std::vector<std::string> contradictions(const Join& join, std::uint64_t newest) const;
  /// A node that fits is taken: what nobody has set yet is set by it. It is not among the refused any more.
  void agree(const Join& join);
  /// Nobody is here, and nothing has begun: the next node sets the terms.
  void forget() { options_.reset(), run_ = given_.run; }

  [[nodiscard]] bool are_known() const { return options_.has_value(); }
  /// Only where they are known.
  [[nodiscard]] const RoundOptions& options() const { return *options_; }
  /// So many nodes the job has room for; 0 where that is not known.
  [[nodiscard]] std::uint32_t nodes_max() const { return options_ ? options_->nodes_max : 0; }

  /// Nodes that were refused since a generation was begun here, and why: waiting nodes are told.
  void refuse(const NodeId& node, const std::string& why);
  [[nodiscard]] const std::map<NodeId, std::string>& refused() const { return refused_; }
  /// A generation begins.
  void begin() { refused_.clear(); }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  Given given_;
  RunId run_;
  std::optional<RoundOptions> options_;
  std::map<NodeId, std::string> refused_;
};

}  // namespace elrun::inline v0
