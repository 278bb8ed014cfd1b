#pragma once
/// \file StorageRetry: how all ranks of a world wait for a storage together. They try again at the same moments, and none of them looks as if it hung. When a try
/// is due is decided in storage_wait.hpp.
///
/// Called by the job's thread, on all ranks in the same order. A world that ends meanwhile leaves a call by `Revoked`.

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include <elrun/failure.hpp>
#include <elrun/job.hpp>

#include "lib/job/departure.hpp"
#include "lib/job/job_host.hpp"
#include "lib/job/save/saves.hpp"
#include "lib/job/save/storage_wait.hpp"
#include "lib/job/save/storage_wait_report.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// A start has waited long enough for the storage. A person has to look after it, and elrun does not restart the job.
class StorageIsAway : public Error {
 public:
  using Error::Error;
  static constexpr int exit_code = 78;
};

/// What the leader has, on all ranks: clocks differ, and all have to come to the same. `what`: for the failure when it cannot be read.
[[nodiscard]] Duration of_leader(JobWorld& world, Duration mine, std::string_view what);

class StorageRetry {
 public:
  /// All outlive it.
  StorageRetry(const JobHost& host, JobWorld& world, Departure& departure) : host_{host}, world_{world}, departure_{departure} {}

  /// Restores by `saves`. A storage that hangs or cannot be read is waited for: each restart would meet it, too, and use up what there are. What cannot be read after
  /// `wait` ends the job by `StorageIsAway`: a person knows whether the storage comes back, and a step back cannot be undone.
  [[nodiscard]] Saves::Loaded load(Saves& saves, Duration wait, StorageWaitReporter& reporter);
  /// After what `until_it_answers` returned.
  [[noreturn]] static void give_up(Failure why);
  /// Calls `once` until it does not fail as `may_pass` says. After `wait` such a failure is returned as any other one is, and begins with how often that was tried, in brackets. The wait is from the first
  /// failure on, or from `since`.
  [[nodiscard]] Result<void> until_it_answers(const std::function<Result<void>()>& once, Duration wait, StorageWaitReporter& reporter,
                                              std::optional<Instant> since = std::nullopt);
  /// Another try of `wait` has failed at `now`: the pause before the next one, or nothing when there is none. By the leader's clock, for all ranks have to try again, or none.
  [[nodiscard]] std::optional<Duration> pause_of_all(StorageWait& wait, const Failure& why, Instant now);
  /// `done`: the steps that the state in memory is of, where there is one.
  void pause(Duration time, std::optional<std::uint64_t> done);

 private:
  const JobHost& host_;
  JobWorld& world_;
  Departure& departure_;
};

}  // namespace elrun::inline v0
