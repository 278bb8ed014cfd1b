#pragma once
/// \file A call of a store, its reply, and the bounds of both. Pure values.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/failure.hpp>
#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

constexpr Bytes store_key_max = 4_KiB;
constexpr Bytes store_value_max = 16_MiB;  ///< Of one value; also of all that one reply carries.
constexpr Bytes store_total_max = 1_GiB;   ///< Keys, values and waiting calls together; beyond it calls are refused.
constexpr std::uint64_t store_call_overhead =
    512;  ///< Bytes that count for each waiting call, beside its keys and values: it, and where it is found.
constexpr std::uint64_t store_key_overhead = 128;     ///< The same for each key that is there.
constexpr std::uint32_t store_waiters_max = 1 << 20;  ///< Callers that wait at one time.
constexpr std::uint32_t store_keys_per_call_max = 4096;
constexpr std::uint32_t store_count_max = 1 << 20;     ///< Callers of one barrier or all_gather.
constexpr Duration store_wait_max = 24h * 365;         ///< A longer wait is cut to this, so that no instant overflows.
constexpr Bytes store_kept_max = 64_MiB;               ///< Answers of finished gatherings, kept for who asks again; the oldest go first.
constexpr std::string_view store_job_prefix = "job/";  ///< Keys that outlive their generation.
static_assert(store_count_max <= store_waiters_max && store_waiters_max * store_call_overhead < store_total_max.value());

/// `relearned`: a node has said all that it remembers (see `StoreCore::adopt_generation`).
enum class StoreOp : std::uint8_t { set = 1, get, add, compare_set, wait, remove, num_keys, barrier, all_gather, watch, relearned };

/// A barrier or an all_gather.
[[nodiscard]] constexpr bool gathers(StoreOp op) { return op == StoreOp::barrier || op == StoreOp::all_gather; }

/// It may wait as long as `StoreRequest::wait` says.
[[nodiscard]] constexpr bool may_wait(StoreOp op) {
  return op == StoreOp::get || op == StoreOp::wait || op == StoreOp::watch || gathers(op);
}

/// One call of one worker. Which fields count follows from `op`.
struct StoreRequest {
  std::uint64_t id = 0;  ///< Chosen by the caller, unique among its calls that are under way.
  StoreOp op = StoreOp::get;
  Generation generation{};        ///< The caller's; a stale one is refused.
  Duration wait{};                ///< How long it may wait (get, wait, watch, barrier, all_gather); the store answers `deadline_passed`.
  std::vector<std::string> keys;  ///< One, but for `wait`. The name of a barrier or all_gather. num_keys: a prefix, or none.
  ByteVector value;               ///< set, compare_set (desired), all_gather
  ByteVector expected;            ///< compare_set; watch: what the caller knows
  std::int64_t amount = 0;        ///< add
  std::uint32_t rank = 0;         ///< barrier, all_gather
  std::uint32_t count = 0;        ///< barrier, all_gather: callers in all
  std::uint64_t caller = 0;       ///< barrier, all_gather: drawn by the caller at its start, the same on every stream; 0: never asks again
  std::uint64_t turn = 0;         ///< barrier, all_gather: the caller's number of this call, the same when it asks again
  bool absent = false;            ///< watch: what the caller knows is that the key is absent
  bool replay = false;            ///< Done already, in a store that is gone (set, remove, barrier, all_gather, relearned). No answer.
  std::uint64_t version = 0;      ///< replay: the reply's
};

struct StoreReply {
  std::uint64_t id = 0;
  bool ok = true;
  Code code = Code::internal;      ///< When not ok.
  std::string what;                ///< When not ok: names the key and who is missing.
  std::vector<ByteVector> values;  ///< get, compare_set: one; watch: one, or none when absent; all_gather: one per rank
  std::int64_t number = 0;         ///< add, remove (0/1), num_keys
  std::uint64_t version = 0;       ///< What changed a key, or finished a gathering: later ones have larger numbers.
};

/// Whose keys a caller means: a worker's are its generation's; those of a client outside are the job's, under `job/`.
enum class StoreScope : std::uint8_t { generation, job };

/// Who called: the coordinator numbers its callers (node and worker), a reply goes back to the same number.
using StoreCaller = Strong<struct StoreCallerTag, std::uint64_t>;

struct StoreAnswer {
  StoreCaller to;
  StoreReply reply;
};

/// What a call holds as long as it is kept: keys and values, and the memory around them.
[[nodiscard]] inline std::uint64_t held_by(const StoreRequest& request) {
  std::uint64_t bytes = store_call_overhead + request.keys.size() * sizeof(std::string) + request.value.size() + request.expected.size();
  for (const std::string& key : request.keys) bytes += key.size();
  return bytes;
}

}  // namespace elrun::inline v0
