#pragma once
/// \file Core: which checkpoint a person means by what stands on a command line.

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "checkpoint/format/names.hpp"

namespace elrun::inline v0 {

struct Found;  // checkpoint/commit/fence.hpp

/// A root, and of its checkpoints one or none in particular.
struct CheckpointName {
  std::string root;
  std::optional<LossName> step{};    ///< STEP or STEP@FENCE
  std::optional<CheckpointId> id{};  ///< The whole name of its directory.
  std::string word{};                ///< `ROOT:STEP` as it was given: a root may have such a name, too. Empty: no such word.
  friend bool operator==(const CheckpointName&, const CheckpointName&) = default;
};

/// `ROOT`, `ROOT:STEP`, `ROOT:STEP@FENCE`, or a checkpoint's own directory, `ROOT/ckpt/s000000000040.g00000001.a01`.
[[nodiscard]] CheckpointName parse_checkpoint_name(std::string_view text);
/// `STEP`, `STEP@FENCE` or the name of a checkpoint's directory, of `root`; nothing for any other text.
[[nodiscard]] std::optional<CheckpointName> parse_checkpoint_name(std::string root, std::string_view which);

/// The checkpoint that `name` means among those that were found, or why it means none. Where several attempts were made at one step, it is the newest of the
/// timeline, else the newest that was committed. `name` names a step or an id.
[[nodiscard]] std::variant<CheckpointId, std::string> choose(const CheckpointName& name, const std::vector<Found>& found,
                                                             const std::vector<Found>& line);

}  // namespace elrun::inline v0
