#pragma once
/// \file ProgramStreams: the streams in which a program works, and the one of the job's memory: who waits for whom. DeviceLosses: losses on their way to the host.
/// On the host there is one order, the program's, and nothing to do. Both are used by the job's thread.

#include <cstddef>
#include <span>

#include "lib/device/handles.hpp"
#include "lib/job/arrays/pinned_blocks.hpp"

namespace elrun::inline v0 {

class ProgramStreams {
 public:
  /// `jobs`: the stream of the job's memory, which outlives this. Throws Error.
  explicit ProgramStreams(Stream jobs) : jobs_{jobs}, event_{jobs.device()} {}
  [[nodiscard]] Stream jobs() const { return jobs_; }
  /// The stream that `wanted` means: Stream{} is the job's. Throws Error (`invalid_argument`) for one of another device, and for CUDA's default stream by any
  /// of its handles (lib/device/default_stream.hpp).
  [[nodiscard]] Stream checked(Stream wanted) const;
  /// What `programs` is given from now on sees what the job's stream was given so far. Throws Error.
  void begin(Stream programs) { order(jobs_, programs); }
  /// And the other way round.
  void end(Stream programs) { order(programs, jobs_); }

 private:
  void order(Stream before, Stream after);
  Stream jobs_;
  OwnedEvent event_;  // recorded anew each time: who waits, waits for what was recorded then
};

/// Words of pinned memory, one for each loss. One is fetched in the order of its own stream, and there once the job's stream has been waited for.
class DeviceLosses {
 public:
  /// `clock` outlives it. Throws Error.
  DeviceLosses(Device device, std::size_t count, const Clock& clock);
  /// `loss` is in the memory of its stream's device. What that stream is given from now on may change it. Throws Error.
  void fetch(std::size_t place, DeviceScalar loss, ProgramStreams& streams);
  [[nodiscard]] float at(std::size_t place) const;

 private:
  PinnedBlocks memory_;
  std::span<std::byte> words_;
};

}  // namespace elrun::inline v0
