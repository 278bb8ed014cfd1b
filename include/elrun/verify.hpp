#pragma once
/// \file Whether all ranks of a job hold the same state: a check that a program makes when it wants to, and that finds
/// memory that was spoilt without anybody noticing.

#include <cstdint>
#include <optional>
#include <string>

#include <elrun/export.hpp>
#include <elrun/ids.hpp>

namespace elrun::inline v0 {

class Job;

/// What `verify` found; the same on all ranks.
struct Verification {
  /// The first tensor, in the order of declaration, of which not all ranks have the same bits.
  struct Difference {
    std::string tensor;  ///< With its unit's name: "block.0/qkv".
    std::string kind;    ///< "param", or a state of the optimizer: "exp_avg".
    Rank rank{};         ///< The first rank that differs from most; without a majority, from rank 0. Of a copy on several ranks, its first.
    bool outvoted = false;  ///< More ranks agree with each other than with any other: it is `rank` that is wrong.
    std::string what;       ///< All of that as a sentence.
  };
  bool decided = false;                  ///< False: the world changed meanwhile, and nothing is known; call again after `next_step()`.
  std::uint64_t state_hash = 0;          ///< Of the state as it is now, as Outcome::state_hash is of the last.
  std::uint64_t compared = 0;            ///< Tensors and moments of which every rank, or several ranks together, have a whole copy.
  std::optional<Difference> difference;  ///< Nothing: all copies are identical.
};

/// Hashes parameters and moments on every rank and compares what the placement keeps whole on all of them: parameters and
/// moments with zero(0), parameters with zero(1) and zero(2), frozen ones always. With hybrid(...) what the ranks of a node hold
/// together is compared with the other nodes', and with mirrored(...) one half of the world with the other. Of what is sharded over the world there is one copy, which only the state
/// hash covers. Nothing is changed.
///
/// Called on all ranks at the same place between steps, after `restore()`, on the job's thread. Costs one pass over this
/// rank's state at memory speed, and 8 or 16 bytes per tensor and kind to every rank.
[[nodiscard]] ELRUN_API Verification verify(Job& job);

}  // namespace elrun::inline v0
