#pragma once
/// \file LoadGroup: the ranks that load a checkpoint together, as a Checkpointer sees them. The job's is made of its collectives.

#include <cstdint>
#include <span>
#include <vector>

#include <elrun/result.hpp>

#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

/// All calls on all ranks, in the same order. A failure, but one of `agree`, ends the world of these ranks.
class LoadGroup {
 public:
  virtual ~LoadGroup() = default;
  [[nodiscard]] virtual std::uint32_t rank() const = 0;
  [[nodiscard]] virtual std::uint32_t size() const = 0;
  /// Success if it is success everywhere; else the failure of the first rank that has one, with its rank, the same one on all ranks.
  virtual Result<void> agree(const Result<void>& mine) = 0;
  /// Everybody's bytes, in rank order; they may differ in length.
  virtual Result<std::vector<ByteVector>> all_gather(ByteSpan mine) = 0;
  /// List r of `sends` goes to rank r, list r of `receives` comes from rank r. This rank's own are empty.
  virtual Result<void> exchange(std::span<const std::vector<ByteSpan>> sends,
                                std::span<const std::vector<std::span<std::byte>>> receives) = 0;
};

/// A world of one.
class LoadsAlone final : public LoadGroup {
 public:
  [[nodiscard]] std::uint32_t rank() const override { return 0; }
  [[nodiscard]] std::uint32_t size() const override { return 1; }
  Result<void> agree(const Result<void>& mine) override { return mine; }
  Result<std::vector<ByteVector>> all_gather(ByteSpan mine) override { return std::vector<ByteVector>{{mine.begin(), mine.end()}}; }
  Result<void> exchange(std::span<const std::vector<ByteSpan>>, std::span<const std::vector<std::span<std::byte>>>) override { return {}; }
};

}  // namespace elrun::inline v0
