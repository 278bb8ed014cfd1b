#pragma once
/// \file The store as a pure core: keys of one generation and of the job, with callers that wait.
///
/// The one state machine behind every store of elrun: in the coordinator, on rank 0 of an operator's job, and alone.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <elrun/failure.hpp>
#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

constexpr Bytes store_key_max = 4_KiB;
constexpr Bytes store_value_max = 16_MiB;
constexpr Bytes store_total_max = 1_GiB;              ///< All keys and values together; beyond it `set` is refused.
constexpr std::uint32_t store_waiters_max = 1 << 20;  ///< Callers that wait at one time.
constexpr std::uint32_t store_keys_per_call_max = 4096;

enum class StoreOp : std::uint8_t { set = 1, get, add, compare_set, wait, remove, num_keys, barrier, all_gather };

/// One call of one worker. Which fields count follows from `op`.
struct StoreRequest {
  std::uint64_t id = 0;      ///< Chosen by the caller, unique among its calls that are under way.
  StoreOp op = StoreOp::get;
  Generation generation{};   ///< The caller's; a stale one is refused.
  Duration wait{};           ///< How long it may wait (get, wait, barrier, all_gather); the store answers `deadline_passed`.
  std::vector<std::string> keys;  ///< One, but for `wait`.
  ByteVector value;          ///< set, compare_set (desired), all_gather
  ByteVector expected;       ///< compare_set
  std::int64_t amount = 0;   ///< add
  std::uint32_t rank = 0;    ///< barrier, all_gather
  std::uint32_t count = 0;   ///< barrier, all_gather: callers in all
};

struct StoreReply {
  std::uint64_t id = 0;
  bool ok = true;
  Code code = Code::internal;      ///< When not ok.
  std::string what;                ///< When not ok: names the key and who is missing.
  std::vector<ByteVector> values;  ///< get, compare_set: one; all_gather: one per rank
  std::int64_t number = 0;         ///< add, remove (0/1), num_keys
};

/// Who called: the coordinator numbers its callers (node and worker), a reply goes back to the same number.
using StoreCaller = Strong<struct StoreCallerTag, std::uint64_t>;

struct StoreAnswer {
  StoreCaller to;
  StoreReply reply;
};

/// All keys and waiters. A value; every call takes the time and returns the answers that it sets free.
class StoreCore {
 public:
  /// Keys of the generation before vanish and their waiters get `generation_over`; `job/` keys stay.
  [[nodiscard]] std::vector<StoreAnswer> begin_generation(const Generation& generation);
  [[nodiscard]] std::vector<StoreAnswer> call(StoreCaller from, const StoreRequest& request, Instant now);
  /// The caller is gone: its waits are dropped without an answer.
  void forget(StoreCaller caller);
  /// Answers the waits whose time is over.
  [[nodiscard]] std::vector<StoreAnswer> expire(Instant now);
  /// When `expire` has something to do next; nothing when nobody waits.
  [[nodiscard]] std::optional<Instant> next_expiry() const;

 private:
  struct Waiter {
    StoreCaller caller;
    StoreRequest request;
    Instant until;
  };
  struct Gathering {
    std::uint32_t count = 0;
    std::map<std::uint32_t, ByteVector> values;  // by rank
  };
  void put(const std::string& key, ByteVector value);
  [[nodiscard]] bool satisfied(const StoreRequest& request) const;
  [[nodiscard]] StoreReply answer(const StoreRequest& request) const;
  void wake(std::vector<StoreAnswer>& answers);
  Generation generation_{};
  std::map<std::string, ByteVector> keys_;
  std::map<std::string, Gathering> gatherings_;
  std::vector<Waiter> waiters_;
  std::uint64_t bytes_ = 0;
};

}  // namespace elrun::inline v0
