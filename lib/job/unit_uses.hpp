#pragma once
/// \file UnitUses: what the program does with a unit's tensors: scopes in which it uses them, and copies to and from them. Checks when it may; UnitScopes counts the scopes.

#include <cstddef>
#include <functional>
#include <span>

#include <elrun/job.hpp>

#include "lib/job/declare/declarations.hpp"
#include "lib/job/job_parts.hpp"

namespace elrun::inline v0 {

/// Called by the job's thread.
class UnitUses {
 public:
  /// Outlives it.
  explicit UnitUses(JobParts& job) : job_{job} {}

  /// `stream`: as the program named it. Returns what it means.
  Stream begin_use(UnitState& unit, Stream stream);
  Stream begin_gradient(UnitState& unit, Stream stream);
  /// What fails in it comes out of the next call that may throw.
  void end_use(UnitState& unit, bool gradient, Stream stream) noexcept;
  void read(const UnitState& unit, std::span<const std::byte> run, std::span<std::byte> to);
  /// Waits for what reads parameters beside the program: a copy for a save, a hash.
  void write(const UnitState& unit, std::span<const std::byte> from, std::span<std::byte> run);
  void write_gradient(const UnitState& unit, std::span<const std::byte> from, std::span<std::byte> run);
  void write_rounded(const UnitState& unit, const TensorPlace& tensor, std::span<const float> values);

 private:
  void fetch_weights(std::uint32_t unit);
  /// `put` writes to a tensor of the unit: behind the program's kernels, and before those to come.
  void write_in_order(const UnitState& unit, const std::function<void()>& put);

  JobParts& job_;
};

}  // namespace elrun::inline v0
