#pragma once
/// \file Shell: two checkpoints, element by element, whatever worlds saved them. Memory does not grow with them.

#include <cstdint>
#include <string>
#include <vector>

#include <elrun/result.hpp>

#include "checkpoint/format/json.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/tools/difference.hpp"
#include "checkpoint/tools/read_root.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0 {

/// A checkpoint whose records were read.
struct Side {
  std::string name;  ///< For people.
  Path directory;
  Manifest manifest;
};

/// The side of a checkpoint that was found. Fails with `corrupt` where COMMIT does not vouch for its manifest, or where one of them is of another checkpoint: what is compared then
/// would not be the one that was named. Without a COMMIT the manifest is taken as it is.
[[nodiscard]] Result<Side> side_of(Files& files, const ReadCheckpoint& checkpoint);

struct Comparison {
  std::vector<TensorDifference> tensors;     ///< All, equal ones too.
  std::vector<TensorDifference> host_state;  ///< The same for the state of the host, as bytes.
  [[nodiscard]] bool equal() const;
};

/// Every block that is used is checked. A failure is damage, or a storage that does not answer.
[[nodiscard]] Result<Comparison> compare(Files& files, const Side& a, const Side& b);

[[nodiscard]] std::string comparison_text(const Comparison& all, const Side& a, const Side& b);
[[nodiscard]] Json comparison_json(const Comparison& all, const Side& a, const Side& b);

}  // namespace elrun::inline v0
