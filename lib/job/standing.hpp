#pragma once
/// \file What members bring into a new generation, and who gives the state to whom. All members work it out alike.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <elrun/result.hpp>

#include "lib/base/bytes.hpp"
#include "lib/job/commit.hpp"
#include "lib/job/layout.hpp"
#include "lib/job/update_values.hpp"

namespace elrun::inline v0 {

/// What the votes for a decided step came to: with it, a member that voted can apply the step later.
struct Decision {
  float squares = 0;  ///< The sum of squares over the gradient.
  bool finite = true;
  float loss = 0;  ///< Mean over the slots.
  std::uint64_t tokens = 0;
  std::uint64_t count = 0;  ///< Decided steps, this one included; 0: this is none.
  UpdateValues update{};    ///< With which it was decided.
  bool stops = false;       ///< A member asked that the job end with this step.
  friend constexpr bool operator==(const Decision&, const Decision&) = default;
};

/// One member's part. A newcomer has no state.
struct Standing {
  bool has_state = false;      ///< Parameters and moments of `knowledge.applied` steps,
  bool has_host_state = true;  ///< and host state: who got the first from others has the second once all come to next_step().
  bool has_begun = false;      ///< Its program has made or got initial values, or got parts of them: it cannot begin where it is.
  Knowledge knowledge{};
  Decision decision{};          ///< The last one that this member made or heard of; `count` says whether it is that of `knowledge.decided`.
  UpdateValues voted_update{};  ///< For which it voted last, in step `knowledge.voted - 1`; not known where it did not vote for that step.
  std::uint64_t saved_step = 0;
  Cut cut{};                      ///< The shard that it holds of what is sharded. Of replicated state that is all.
  bool whole_parameters = true;   ///< Parameters outside of its shard are of the same step, too.
  std::string node;               ///< Where it runs.
  std::uint64_t evaluations = 0;  ///< Decided since its last step was applied,
  ByteVector evaluation{};        ///< and what the last of them came to; empty: there is none.
  friend bool operator==(const Standing&, const Standing&) = default;
};
[[nodiscard]] ByteVector encode(const Standing& standing);
[[nodiscard]] Result<Standing> decode_standing(ByteSpan bytes);

/// Who gives the state, once every member that could has applied `step` - 1.
struct Heritage {
  bool found = false;                    ///< Somebody has the state of `step`, host state too.
  bool complete = false;                 ///< And together they have all of it; else it comes from a checkpoint.
  std::vector<std::optional<Cut>> held;  ///< By rank: the shard that it brings; nothing: it gets everything.
  std::vector<bool> newcomers;           ///< By rank: it lacks host state, for its program has not come as far as the others'.
  std::uint32_t giver = 0;               ///< The first that brings a shard and host state. It gives what all have alike.
  bool moves = false;                    ///< Some member lacks something.
};
/// `standings` in rank order, as they are after what `recover` found was done. `cuts`: by rank, what it is to hold. Shards of
/// one step go together whatever world they were cut for: their bits are the same.
[[nodiscard]] Heritage heritage(const Layout& layout, std::span<const Standing> standings, std::uint64_t step, std::span<const Cut> cuts);

}  // namespace elrun::inline v0
