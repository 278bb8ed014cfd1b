#pragma once
/// \file How a part of the job leaves a call when the generation is over: by `Revoked`, which the conductor catches where the job goes on in the
/// next generation, or by Error, where there is none for this process.

#include <utility>

#include <elrun/result.hpp>

#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// The generation is over. Caught where the job goes on in the next one.
struct Revoked {};

/// Throws the reason why the generation is over, as the end of this process's part in the job.
[[noreturn]] void leave(const JobWorld& world, Failure why);
/// Throws where the generation ended because the ranks' programs make different calls: they would in the next generation, too.
void stop_if_ranks_differ(const JobWorld& world);
/// The generation is over: throws Revoked, or Error where no other generation comes.
[[noreturn]] void revoked(const JobWorld& world);

/// A call failed: as `revoked` where the generation is over, else throws the failure as Error.
[[noreturn]] void failed(const JobWorld& world, Failure why);

/// Nothing where `result` is a success, else as `failed`.
inline void expect(const JobWorld& world, Result<void> result) {
  if (!result.ok()) failed(world, std::move(result).failure());
}
template <class T>
T expect(const JobWorld& world, Result<T> result) {
  if (!result.ok()) failed(world, std::move(result).failure());
  return std::move(result).value();
}

}  // namespace elrun::inline v0
