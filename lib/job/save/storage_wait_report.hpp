#pragma once
/// \file What a worker says while it waits for the storage: it does not hang, and for what it waits.

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <elrun/ids.hpp>
#include <elrun/session.hpp>
#include <elrun/units.hpp>

#include "lib/base/clock.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0 {

/// Core: what there is to say. For `limit` after the last thing that moved: an operation that was begun, a try that failed, a `moved`. Each operation has a deadline of its
/// own and a start has its tries, so a storage that never answers has ended in a failure before that; what waits for longer is a hang.
class StorageWaitReport {
 public:
  StorageWaitReport(Rank rank, Duration limit, Instant now) : rank_{rank}, limit_{limit}, moved_{now} {}

  void moved(Instant now) { moved_ = now, why_.clear(); }
  /// A try failed, and the next one comes: for people.
  void between_tries(std::string why, Instant now) { moved_ = now, why_ = std::move(why); }
  /// Why this worker waits; empty: it knows of no trouble, and waits for the others. Nothing: it has waited for too long.
  [[nodiscard]] std::optional<std::string> text(const StorageActivity& storage, Instant now);

  static constexpr Duration trouble_after = 5s;  ///< A shorter operation is none.

 private:
  const Rank rank_;
  const Duration limit_;
  Instant moved_;
  std::uint64_t begun_ = 0;
  std::string why_;
};

/// Shell: while it lives a thread says that to the agent, once in `every`, for the job's own may be stuck in the storage. Nothing is said in the first `every`. Called by the
/// job's thread; all that it is made from outlives it.
class StorageWaitReporter {
 public:
  struct Terms {
    std::string directory;  ///< Of the checkpoints.
    Rank rank;
    Duration every = 1s;
    Duration wait{};  ///< Beyond what one operation may take: how long the storage is waited for, or a peer.
  };
  StorageWaitReporter(Session& session, Files& files, Terms terms);
  ~StorageWaitReporter();
  StorageWaitReporter(const StorageWaitReporter&) = delete;
  StorageWaitReporter& operator=(const StorageWaitReporter&) = delete;

  void moved();
  void between_tries(std::string why);

 private:
  void run();

  Session& session_;
  Files& files_;
  const Terms terms_;
  const SteadyClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  StorageWaitReport report_;
  std::thread thread_;
};

}  // namespace elrun::inline v0
