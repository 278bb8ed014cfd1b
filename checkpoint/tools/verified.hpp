#pragma once
/// \file Core: what `elrun ckpt verify` found, and how people and programs read it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <elrun/failure.hpp>
#include <elrun/units.hpp>

#include "checkpoint/format/json.hpp"
#include "checkpoint/format/records.hpp"

namespace elrun::inline v0 {

struct Damage {
  std::string file;                      ///< Its name in the checkpoint's directory.
  std::optional<std::uint64_t> block{};  ///< Of the file; none: all of it, or one of its parts that is no block.
  std::string what;                      ///< Which bytes, what was expected, what was found.
  friend bool operator==(const Damage&, const Damage&) = default;
};

struct Verified {
  std::vector<Damage> damage;                      ///< By file and block, no more than are asked for.
  std::uint64_t unlisted = 0;                      ///< Damages beyond those.
  std::uint64_t files = 0, blocks = 0, bytes = 0;  ///< That were read.
  std::optional<Failure> cut_off{};                ///< Why it was not read to its end.
  [[nodiscard]] bool is_whole() const { return damage.empty() && !cut_off; }
};

/// One checkpoint of a root.
struct VerifiedCheckpoint {
  CheckpointId id;
  Verified found;
  Duration took{};
};

[[nodiscard]] std::string verified_text(const VerifiedCheckpoint& one);
/// All that was found, also where a checkpoint was cut off: `whole` is false then, and its `failure` says why.
[[nodiscard]] Json verified_json(const std::vector<VerifiedCheckpoint>& all);

}  // namespace elrun::inline v0
