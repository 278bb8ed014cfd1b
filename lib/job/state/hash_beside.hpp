#pragma once
/// \file HashBeside: the hash of runs of a Memory, made on a thread of its own while the caller goes on.

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "lib/device/memory.hpp"

namespace elrun::inline v0 {

/// A run that begins on a border of 8 bytes, and how its first word counts (kernels/state_hash.hpp).
struct HashedRun {
  std::span<const std::byte> bytes;
  std::uint64_t first_word = 0;
};
/// In this thread. The salt is 0.
[[nodiscard]] std::uint64_t hash_of(Memory& memory, std::span<const HashedRun> runs);

/// One hash at a time. Called by one thread. A forked child may only destroy it: the thread is not there, and is not waited for.
class HashBeside {
 public:
  HashBeside() = default;
  HashBeside(const HashBeside&) = delete;
  HashBeside& operator=(const HashBeside&) = delete;
  ~HashBeside() { give_up(); }

  /// The runs must not change until `result` has returned a hash, or `finish` or `give_up` has returned. A hash that takes no longer than a thread's start is made at once. So is one of a
  /// device, in the order of its stream. `memory` outlives it.
  void begin(Memory& memory, std::vector<HashedRun> runs);
  /// The runs may change; the hash is kept.
  void finish();
  /// The hash that was begun. Nothing: `over` says that nobody needs it any more.
  [[nodiscard]] std::optional<std::uint64_t> result(const std::function<bool()>& over);
  /// Nobody needs it, and the runs may change. Does not wait for the rest of the hash.
  void give_up();

 private:
  std::thread thread_;
  pid_t owner_ = 0;  // of the thread
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::condition_variable made_;
  std::optional<std::uint64_t> hash_;  // under the mutex
  bool begun_ = false;
};

}  // namespace elrun::inline v0
