#pragma once
/// \file JobHost: what a job gets from its process. JobAccess: how `run` and tests start a job, and what tests may look at.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <elrun/job.hpp>
#include <elrun/session.hpp>

#include "checkpoint/format/names.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/files.hpp"
#include "lib/base/log.hpp"
#include "lib/job/arrays/array_meeting.hpp"
#include "lib/job/commit/update_values.hpp"
#include "lib/job/declare/memory_table.hpp"
#include "lib/job/state/shared_buffers.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

class LeafStream;
class PagedArena;
class SlotWriter;

/// What a job gets from its process; a test brings its own. All outlive the job. More than 15 fields: one for each thing that it gets.
struct JobHost {
  const Clock& clock;
  Files& files;
  Session& session;
  const Log& log;                             ///< Standard error.
  std::function<void(std::string_view)> out;  ///< One line to standard output.
  JoinPeers join;
  DeviceGroups device_groups{};  ///< Of memory on devices; none: what lies there is exchanged through the host's.
  SharedBuffers::Make share{};   ///< Memory that peers of this host can read; none: all of it is private.
  std::uint32_t threads = 1;     ///< See Job::compute_threads.
  Device device{};               ///< See Job::device.
  std::string device_model{};    ///< Of `device` (lib/device/facts.hpp); empty where bits do not depend on it.
  std::string why_on_host{};     ///< Why a program for devices computes on the CPU, where nobody asked for that; empty: it does not.
  Memory* arrays = nullptr;      ///< Where parameters, moments and gradients lie; none: the host's memory. Of `device`.
  std::uint64_t memory = 0;      ///< Bytes of this machine, with swap; 0: not known.
  std::optional<LossName> begin_anew{};  ///< `--begin_anew`: the lost checkpoint that a person gives up.
  Path checkpoint_writer{};              ///< The socket of `elrun ckptd`, which saves while workers train; empty: there is none.
  std::function<std::unique_ptr<SlotWriter>()> slot_writer{};  ///< Another process that does so; none: the one at that socket.
  unsigned readers = 4;   ///< Threads of this rank that read or write a checkpoint; 0: the calling one alone acts on the storage.
  bool must_end = false;  ///< A program that returns between its first step and the job's end has failed.
  Duration storage_report_every = 1s;     ///< How often this worker says that it waits for the storage.
  std::function<void(Duration)> sleep{};  ///< Between tries of the final save, and while this node leaves; none: the thread sleeps.
  bool one_thread = false;  ///< An exchange beside the program is made when the next one begins: a simulation has one thread for a process.
  std::uint64_t state_rate =
      2'000'000'000;  ///< Bytes per second at which state is expected to travel to one member; 0: at once. The same on all ranks.
  std::uint64_t loss_reserve_min = 1 << 20;  ///< Bytes; where a loss needs less new memory, none is reserved (recover/loss_reserve.hpp).
  Duration agree_wait = 30s;                 ///< How long a worker under elrun that cannot go on waits for its agent to say so, too.
};

struct JobAccess {
  /// Runs `program` with a job of its own, and again when it begins again. Failures are thrown as Error. An exception that leaves the
  /// program during a revoked step is replaced by the reason of the revocation.
  static void drive(const JobHost& job_host, const std::function<void(Job&)>& program);

  // For tests.
  [[nodiscard]] static const JobHost& host(const Job& job);
  [[nodiscard]] static std::uint32_t rank(const Job& job);
  [[nodiscard]] static std::uint32_t world_size(const Job& job);
  [[nodiscard]] static const PagedArena& parameters(const Job& job);
  [[nodiscard]] static const LeafStream& leaf_stream(const Job& job);
  /// This rank's memory of one of the optimizer's states: where a test flips a bit.
  [[nodiscard]] static std::span<float> moment(Job& job, std::size_t index);
  /// With what a decided step was updated, as far as this process knows.
  [[nodiscard]] static UpdateValues remembered(const Job& job, std::uint64_t step);
  /// What this rank holds. `in_use` is the highest value so far.
  [[nodiscard]] static RankBytes held(const Job& job);
  /// What it holds of in-memory checkpoints.
  [[nodiscard]] static std::uint64_t memory_checkpoint_bytes(const Job& job);
};

/// Of `run`: 78 for what a person must change, 1 for everything else.
[[nodiscard]] int exit_code(const Failure& failure);

}  // namespace elrun::inline v0
