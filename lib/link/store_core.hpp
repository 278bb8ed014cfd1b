#pragma once
/// \file The store as a pure core: keys of one generation and of the job, with callers that wait.
///
/// The one state machine behind every store of elrun: in the coordinator, on rank 0 of an operator's job, and alone.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <elrun/failure.hpp>
#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

constexpr Bytes store_key_max = 4_KiB;
constexpr Bytes store_value_max = 16_MiB;             ///< Of one value; also of all that one reply carries.
constexpr Bytes store_total_max = 1_GiB;              ///< Keys, values and waiting calls together; beyond it calls are refused.
constexpr std::uint32_t store_waiters_max = 1 << 20;  ///< Callers that wait at one time.
constexpr std::uint32_t store_keys_per_call_max = 4096;
constexpr std::uint32_t store_count_max = 1 << 20;    ///< Callers of one barrier or all_gather.
constexpr Duration store_wait_max = 24h * 365;        ///< A longer wait is cut to this, so that no instant overflows.
constexpr std::string_view store_job_prefix = "job/";  ///< Keys that outlive their generation.
static_assert(store_count_max <= store_waiters_max);

enum class StoreOp : std::uint8_t { set = 1, get, add, compare_set, wait, remove, num_keys, barrier, all_gather };

/// One call of one worker. Which fields count follows from `op`.
struct StoreRequest {
  std::uint64_t id = 0;      ///< Chosen by the caller, unique among its calls that are under way.
  StoreOp op = StoreOp::get;
  Generation generation{};   ///< The caller's; a stale one is refused.
  Duration wait{};           ///< How long it may wait (get, wait, barrier, all_gather); the store answers `deadline_passed`.
  std::vector<std::string> keys;  ///< One, but for `wait`. The name of a barrier or all_gather.
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
  /// Keys of the generation before vanish and its waiters get `generation_over`; `job/` keys stay.
  [[nodiscard]] std::vector<StoreAnswer> begin_generation(const Generation& generation);
  /// The generation was revoked: its waiters and all its later calls get `generation_over`, with this reason.
  [[nodiscard]] std::vector<StoreAnswer> end_generation(std::string why);
  [[nodiscard]] std::vector<StoreAnswer> call(StoreCaller from, const StoreRequest& request, Instant now);
  /// The caller is gone: its waits are dropped without an answer, and it counts in no barrier any more.
  void forget(StoreCaller caller);
  /// Answers the waits whose time is over.
  [[nodiscard]] std::vector<StoreAnswer> expire(Instant now);
  /// When `expire` has something to do next; nothing when nobody waits.
  [[nodiscard]] std::optional<Instant> next_expiry() const;
  /// What counts towards `store_total_max`.
  [[nodiscard]] Bytes held() const { return Bytes{bytes_}; }

 private:
  using Answers = std::vector<StoreAnswer>;
  using WaiterId = std::pair<StoreCaller, std::uint64_t>;  // a caller and the id of its call
  struct Waiter {
    StoreRequest request;
    Instant until;
    std::string parked_at;  // get, wait: a key that is missing; when it appears the waiter is looked at again
  };
  struct Gathering {  // a barrier or all_gather under way; every rank in it waits
    std::uint32_t count = 0;
    std::map<std::uint32_t, WaiterId> arrived;  // by rank
  };
  using GatheringName = std::pair<StoreOp, std::string>;

  [[nodiscard]] std::optional<StoreReply> refusal(const WaiterId& id, const StoreRequest& request) const;
  void answer(Answers& answers, const WaiterId& to, StoreReply reply) const;
  void put(Answers& answers, const std::string& key, ByteVector value);
  void erase_key(std::map<std::string, ByteVector>::iterator entry);
  void wait_or_answer(Answers& answers, const WaiterId& id, const StoreRequest& request, Instant now);
  void arrive(Answers& answers, const WaiterId& id, const StoreRequest& request, Instant now);
  Waiter& enlist(const WaiterId& id, const StoreRequest& request, Instant now);
  Waiter dismiss(const WaiterId& id);
  [[nodiscard]] const std::string* missing_key(const StoreRequest& request) const;
  [[nodiscard]] std::string waited_for(const StoreRequest& request) const;
  [[nodiscard]] Answers dismiss_all(const std::string& why);

  Generation generation_{};
  std::optional<std::string> over_;  // why generation_ is over
  std::map<std::string, ByteVector> keys_;
  std::map<WaiterId, Waiter> waiters_;
  std::set<std::pair<Instant, WaiterId>> expiries_;
  std::unordered_map<std::string, std::set<WaiterId>> parked_;
  std::map<GatheringName, Gathering> gatherings_;
  std::uint64_t bytes_ = 0;
};

}  // namespace elrun::inline v0
