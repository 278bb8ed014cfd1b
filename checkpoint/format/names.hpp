#pragma once
/// \file The names under a checkpoint root. A name is used once; fixed widths make names sort like their numbers.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace elrun::inline v0 {

/// The number that fences saves of one root: claimed on the storage, one above the highest found, never used twice.
using FenceNumber = std::uint64_t;

/// One attempt to save one step. Its directory is `s000000012000.g00000007.a01`.
struct CheckpointId {
  std::uint64_t step = 0;
  FenceNumber fence = 0;
  std::uint32_t attempt = 1;
  friend constexpr auto operator<=>(const CheckpointId&, const CheckpointId&) = default;  // newest step last
};

constexpr std::uint64_t step_max = 999'999'999'999;
constexpr FenceNumber fence_max = 99'999'999;
constexpr std::uint32_t attempt_max = 99;
constexpr std::uint32_t world_max = 99'999;

[[nodiscard]] std::string to_string(const CheckpointId& id);
/// The inverse; nothing for any other text, digits out of width among them.
[[nodiscard]] std::optional<CheckpointId> parse_checkpoint_id(std::string_view name);

[[nodiscard]] std::string claim_name(FenceNumber number);  ///< g00000007.claim
[[nodiscard]] std::string fence_name(FenceNumber number);  ///< g00000007.json
/// The number in a name of either kind.
[[nodiscard]] std::optional<FenceNumber> parse_fence_number(std::string_view name);

/// g00000007.s000000012000.a01.acknowledged, beside the fence under which the checkpoint was committed.
[[nodiscard]] std::string acknowledgement_name(const CheckpointId& id);
[[nodiscard]] std::optional<CheckpointId> parse_acknowledgement_name(std::string_view name);

/// Which lost checkpoint a person gives up (`--begin_anew`): `40@7` is the one of step 40 that was saved under fence 7. No later
/// checkpoint of that step has the same name. `40` alone leaves the fence open.
struct LossName {
  std::uint64_t step = 0;
  std::optional<FenceNumber> fence{};
  friend bool operator==(const LossName&, const LossName&) = default;
};
[[nodiscard]] std::string to_string(const LossName& name);
/// Nothing for any other text.
[[nodiscard]] std::optional<LossName> parse_loss_name(std::string_view text);

/// ckpt/s000000012000.g00000007.a01, below the root.
[[nodiscard]] std::string checkpoint_directory(const CheckpointId& id);

[[nodiscard]] std::string shard_name(std::uint32_t rank, std::uint32_t world);  ///< r00000-of-00016.safetensors
[[nodiscard]] std::string part_name(std::uint32_t rank, std::uint32_t world);   ///< r00000-of-00016.part.json

constexpr const char* run_file = "RUN.json";
constexpr const char* damaged_run_file = "RUN.json.damaged";  ///< What a rebuilt RUN.json replaced, for people.
constexpr const char* fences_directory = "gens";
constexpr const char* checkpoints_directory = "ckpt";
constexpr const char* trash_directory = "trash";
constexpr const char* manifest_file = "MANIFEST.json";
constexpr const char* commit_file = "COMMIT";
constexpr const char* quarantine_file = "QUARANTINE";

}  // namespace elrun::inline v0
