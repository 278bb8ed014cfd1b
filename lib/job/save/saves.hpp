#pragma once
/// \file Saves and restores of a whole world: the Checkpointer's calls in order, its values carried between ranks.

#include <functional>
#include <optional>
#include <vector>

#include <elrun/plan.hpp>

#include "checkpoint/commit/checkpointer.hpp"
#include "checkpoint/commit/resume.hpp"
#include "lib/job/save/host_fragments.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// All calls on all ranks, in the same order. Results are the same on all ranks. The leader is rank 0.
class Saves {
 public:
  /// `files`, `clock`, `log`, `session` and `world` outlive it. `saved` and `loaded`: this rank's part of the state.
  Saves(Files& files, const Clock& clock, const Log& log, Session& session, JobWorld& world, CheckpointOptions options, Saver saver,
        HostFragments saved, HostFragments loaded);

  /// Loads the newest usable checkpoint and returns its host state; nothing when the root has none. `not_found` when one was
  /// acknowledged and is missing: resume.hpp.
  Result<std::optional<std::vector<Aux>>> restore();
  /// Commits a checkpoint; the first call claims the root where `restore` has not. `refused` says that a newer job owns the root; after any other failure the world can go on.
  Result<void> save(std::uint64_t step, std::span<const Aux> aux, const std::function<Result<void>()>& still_owner);

 private:
  template <class T>
  Result<T> leaders(const std::function<Result<T>()>& call, Result<T> (*decode)(ByteSpan));
  /// Only the leader's answer is whole.
  Result<Outside> ask_around();
  void hear(Outside& heard, std::string_view text, const std::string& who) const;
  [[nodiscard]] std::string of_store() const;
  void tell_store(const std::string& acknowledgement) const;

  const Clock& clock_;
  const Log& log_;
  Session& session_;
  JobWorld& world_;
  CheckpointOptions options_;
  std::string plan_;  // its hash
  Checkpointer checkpointer_;
  HostFragments saved_, loaded_;
  bool claimed_ = false;
};

}  // namespace elrun::inline v0
