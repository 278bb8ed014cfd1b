#pragma once
/// \file What members bring into a new generation, and who gives the state to whom. All members work it out alike.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <elrun/result.hpp>

#include "lib/base/bytes.hpp"
#include "lib/job/commit.hpp"

namespace elrun::inline v0 {

/// What the votes for a decided step came to: with it, a member that voted can apply the step later.
struct Decision {
  float squares = 0;  ///< The sum of squares over the gradient.
  bool finite = true;
  float loss = 0;  ///< Mean over the slots.
  std::uint64_t tokens = 0;
  friend constexpr bool operator==(const Decision&, const Decision&) = default;
};

/// One member's part. A newcomer has no state.
struct Standing {
  bool has_state = false;
  bool has_begun = false;  ///< Its program has made or got initial values, or got parts of them: it cannot begin where it is.
  Knowledge knowledge{};
  Decision decision{};  ///< Of step `knowledge.decided - 1`, where this member decided it.
  std::uint64_t saved_step = 0;
  /// The shard that it holds of what is sharded, of a cut into `parts`: the same bits whenever it was cut, for the state of a
  /// step is one. Replicated state is one part, and everybody's.
  std::uint32_t parts = 1, part = 0;
  bool whole_parameters = true;  ///< Parameters outside of its shard are of the same step, too.
  friend bool operator==(const Standing&, const Standing&) = default;
};
[[nodiscard]] ByteVector encode(const Standing& standing);
[[nodiscard]] Result<Standing> decode_standing(ByteSpan bytes);

/// Who gives what, once every member that could has applied `step` - 1.
struct Heritage {
  bool found = false;     ///< Somebody has the state of `step`.
  bool complete = false;  ///< And together they have all of it; else it comes from a checkpoint.
  std::uint32_t parts = 0;
  std::vector<std::uint32_t> givers;                 ///< The rank that gives each part.
  std::vector<std::optional<std::uint32_t>> brings;  ///< By rank: the part that it brings; nothing: it gets everything.
  bool moves = false;                                ///< Some member lacks something.
};
/// `replicated`: every member that has state has all of it, and they share the work of giving it to the others.
/// `standings` in rank order, as they are after what `recover` found was done.
[[nodiscard]] Heritage heritage(std::span<const Standing> standings, std::uint64_t step, bool replicated);

}  // namespace elrun::inline v0
