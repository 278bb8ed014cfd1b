#pragma once
/// \file Store: small keys shared by the workers of a job, c10d-like, answered by the coordinator.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/export.hpp>
#include <elrun/ids.hpp>
#include <elrun/result.hpp>
#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// Keys of one generation; they vanish with it, except those that begin with `job/`, which belong to the job. They last as long as its coordinator:
/// when that is lost, the next one has of them what workers changed in the generation that goes on, and nothing where none goes on.
/// Thread-safe. Every call ends by its deadline (`deadline_passed`, naming what it waited for) or with
/// `generation_over`. Keys have at most 4 KiB, values at most 16 MiB; more is `invalid_argument`, and nothing is sent.
class ELRUN_API Store {
 public:
  using Value = std::vector<std::byte>;
  virtual ~Store() = default;
  /// Whatever the key held before.
  virtual Result<void> set(std::string_view key, std::span<const std::byte> value, Deadline deadline) = 0;
  /// Waits until the key exists.
  virtual Result<Value> get(std::string_view key, Deadline deadline) = 0;
  /// Adds to a decimal counter (absent: 0) and returns the new value. `invalid_argument` when the key holds no number.
  virtual Result<std::int64_t> add(std::string_view key, std::int64_t amount, Deadline deadline) = 0;
  /// Stores `desired` if the key holds `expected` (or is absent and `expected` is empty). Returns what the key holds
  /// then; `expected` itself when the key is absent and `expected` is not empty (as torch's TCPStore does). Both values
  /// together have at most 16 MiB.
  virtual Result<Value> compare_set(std::string_view key, std::span<const std::byte> expected, std::span<const std::byte> desired,
                                    Deadline deadline) = 0;
  /// Waits until all keys exist.
  virtual Result<void> wait(std::span<const std::string> keys, Deadline deadline) = 0;
  /// True if the key existed.
  virtual Result<bool> remove(std::string_view key, Deadline deadline) = 0;
  /// Returns what the key holds as soon as that differs from `known`; nothing stands for an absent key, both ways. Of
  /// several changes between two calls it may see only the last, which it never misses: who passes on what it was last
  /// told is told at once if that is not how it is.
  virtual Result<std::optional<Value>> watch(std::string_view key, std::optional<std::span<const std::byte>> known, Deadline deadline) = 0;
  /// Keys that begin with `prefix`.
  virtual Result<std::uint64_t> num_keys(std::string_view prefix, Deadline deadline) = 0;
  Result<std::uint64_t> num_keys(Deadline deadline) { return num_keys({}, deadline); }
  /// Returns when `count` callers with this name have arrived; the name can be used again after that. Who failed with
  /// the remedy `retry` and calls again makes the same call: it never falls one barrier behind the others.
  virtual Result<void> barrier(std::string_view name, WorldSize count, Deadline deadline) = 0;
  /// Everybody's values in rank order, once all `count` ranks have called; the name can be used again after that. Who
  /// calls again as above gets what the others got, even if its value is another one now. All values together have at
  /// most 16 MiB, so each has at most 16 MiB divided by `count`.
  virtual Result<std::vector<Value>> all_gather(std::string_view name, Rank rank, WorldSize count, std::span<const std::byte> value,
                                                Deadline deadline) = 0;
};

/// `store` with `prefix` before every key and every name of a barrier or all_gather. `store` has to outlive it.
[[nodiscard]] ELRUN_API std::unique_ptr<Store> prefixed(Store& store, std::string prefix);

/// How a program that is no worker of the job comes to its store.
struct StoreClientOptions {
  std::string ca_file;           ///< PEM. With the two below: mutual TLS, as the store's side has it.
  std::string certificate_file;  ///< PEM
  std::string key_file;          ///< PEM
  std::string token_file;        ///< The shared token
  std::string token;             ///< The token itself, instead of a file.
};

/// A store that `elrun` or `elrun store` serves at `endpoint` ("host:port"). Needs no worker and no generation: its keys
/// are the job's (workers see `NAME` as `job/NAME`), and its barriers and all_gathers are among such clients. Calls of
/// many threads are under way at one time over one stream. A stream that breaks is opened again within a call's
/// deadline, and calls that may be done twice are sent again; `add`, `compare_set` and `remove` then fail with
/// `unreachable`, for whether they were done is not known. In the library elrun::store, which brings gRPC with it.
[[nodiscard]] ELRUN_API Result<std::unique_ptr<Store>> connect_store(const std::string& endpoint, const StoreClientOptions& options,
                                                                     Deadline deadline);

}  // namespace elrun::inline v0
