#pragma once
/// \file Core: what each rank of another world would read of a checkpoint.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <elrun/result.hpp>

namespace elrun::inline v0 {

struct Manifest;  // checkpoint/format/records.hpp

/// How the world that reads cuts its state.
struct ReadingWorld {
  std::uint32_t world = 1;
  std::uint32_t parts = 1;              ///< Of what is sharded: `world`, or the ranks of a node.
  std::uint32_t parts_each = 1;         ///< That a rank has: 2 of mirrored state.
  bool parameters_are_sharded = false;  ///< The kind `param`.
  bool others_are_sharded = false;      ///< All other kinds: moments of the optimizer.
};
/// `zero`: 0 to 3, hybrid2, hybrid3, mirrored1 to mirrored3, as the sample gpt has it. `per_node`: ranks of a node; 0: all are on one. Mirrored state is cut as
/// where no node has more than half of the ranks. Nothing for any other text.
[[nodiscard]] std::optional<ReadingWorld> reading_world(std::uint32_t world, std::string_view zero, std::uint32_t per_node);

struct ReaderShare {
  std::uint32_t rank = 0;
  std::uint64_t bytes = 0;   ///< That it needs; what it does not read, others send it.
  std::uint64_t read = 0;    ///< From storage: whole blocks, headers and block tables, each once.
  std::uint64_t files = 0;   ///< That it opens.
  std::uint64_t ranges = 0;  ///< Runs of blocks, next to each other in a file.
};
/// By rank. Frozen parameters count as sharded, too, for a checkpoint does not say which ones are.
[[nodiscard]] Result<std::vector<ReaderShare>> reader_shares(const Manifest& manifest, const ReadingWorld& as);

}  // namespace elrun::inline v0
