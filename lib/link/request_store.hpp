#pragma once
/// \file Store calls as requests: one translation for every store, whoever answers.

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include <elrun/store.hpp>

#include "lib/base/clock.hpp"
#include "lib/link/store_core.hpp"

namespace elrun::inline v0 {

/// Turns calls into requests and replies into results. Checks bounds before anything is sent.
class RequestStore : public Store {
 public:
  RequestStore(const Clock& clock, const Generation& generation);
  Result<void> set(std::string_view key, ByteSpan value, Deadline deadline) override;
  Result<Value> get(std::string_view key, Deadline deadline) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t amount, Deadline deadline) override;
  Result<Value> compare_set(std::string_view key, ByteSpan expected, ByteSpan desired, Deadline deadline) override;
  Result<void> wait(std::span<const std::string> keys, Deadline deadline) override;
  Result<bool> remove(std::string_view key, Deadline deadline) override;
  Result<std::optional<Value>> watch(std::string_view key, std::optional<ByteSpan> known, Deadline deadline) override;
  Result<std::uint64_t> num_keys(std::string_view prefix, Deadline deadline) override;
  Result<void> barrier(std::string_view name, WorldSize count, Deadline deadline) override;
  Result<std::vector<Value>> all_gather(std::string_view name, Rank rank, WorldSize count, ByteSpan value, Deadline deadline) override;

 protected:
  /// Asks and waits for the reply until `deadline`; the request has no id yet. A reply that is not ok may be given as one.
  virtual Result<StoreReply> ask(StoreRequest request, Deadline deadline) = 0;
  /// The rank that barriers are counted by.
  [[nodiscard]] virtual std::uint32_t rank() const = 0;
  const Clock& clock_;
  const Generation generation_;

 private:
  using GatheringName = std::tuple<StoreOp, std::string, std::uint32_t, std::uint32_t>;  // with count and rank
  Result<StoreReply> call(StoreRequest request, Deadline deadline);
  Result<StoreReply> gather(StoreRequest request, Deadline deadline);

  const std::uint64_t caller_;  // random: who this is, on whatever stream
  std::mutex mutex_;
  std::uint64_t turns_ = 0;
  std::map<GatheringName, std::uint64_t> unanswered_;  // turns whose answer did not come: the next call of the name asks for it
};

/// A store in this process: a StoreCore behind a lock. For a world of one, and for tests of several ranks in one process.
class SharedStore {
 public:
  SharedStore(const Clock& clock, const Generation& generation);
  /// The store as one rank sees it. Not to outlive this object.
  [[nodiscard]] std::unique_ptr<Store> of(Rank rank);
  /// Keys of the generation before vanish; its calls, also those that wait, fail with `generation_over`.
  void begin_generation(const Generation& generation);

 private:
  class Caller;
  Result<StoreReply> ask(Rank from, StoreRequest request, Deadline deadline);
  void deliver(std::vector<StoreAnswer> answers);
  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable answered_;
  StoreCore core_;
  Generation generation_;
  std::uint64_t last_id_ = 0;
  std::map<std::uint64_t, StoreReply> replies_;  // by request id, unique here over all ranks
};

}  // namespace elrun::inline v0
