#pragma once
/// \file The store as a pure core: keys of one generation and of the job, with callers that wait.
///
/// The one state machine behind every store of elrun: in the coordinator, on rank 0 of an operator's job, and alone.

#include <cstdint>
#include <map>
#include <memory>
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
#include "lib/base/planted.hpp"

namespace elrun::inline v0 {

constexpr Bytes store_key_max = 4_KiB;
constexpr Bytes store_value_max = 16_MiB;             ///< Of one value; also of all that one reply carries.
constexpr Bytes store_total_max = 1_GiB;              ///< Keys, values and waiting calls together; beyond it calls are refused.
constexpr std::uint32_t store_waiters_max = 1 << 20;  ///< Callers that wait at one time.
constexpr std::uint32_t store_keys_per_call_max = 4096;
constexpr std::uint32_t store_count_max = 1 << 20;     ///< Callers of one barrier or all_gather.
constexpr Duration store_wait_max = 24h * 365;         ///< A longer wait is cut to this, so that no instant overflows.
constexpr Bytes store_kept_max = 64_MiB;               ///< Answers of finished gatherings, kept for who asks again; the oldest go first.
constexpr std::string_view store_job_prefix = "job/";  ///< Keys that outlive their generation.
static_assert(store_count_max <= store_waiters_max);

/// `relearned`: a node has said all that it remembers (see `StoreCore::adopt_generation`).
enum class StoreOp : std::uint8_t { set = 1, get, add, compare_set, wait, remove, num_keys, barrier, all_gather, watch, relearned };

/// A barrier or an all_gather.
[[nodiscard]] constexpr bool gathers(StoreOp op) { return op == StoreOp::barrier || op == StoreOp::all_gather; }

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

/// All keys and waiters. A value; every call takes the time and returns the answers that it sets free.
class StoreCore {
 public:
  /// Keys of the generation before vanish and its waiters get `generation_over`; what belongs to the job stays.
  [[nodiscard]] std::vector<StoreAnswer> begin_generation(const Generation& generation);
  /// The generation ran already, with a store that is gone: `nodes` of its nodes remember what their workers did. All
  /// other calls are put off until each of them has replayed that, and then `relearned`.
  [[nodiscard]] std::vector<StoreAnswer> adopt_generation(const Generation& generation, std::uint32_t nodes);
  /// The generation was revoked: its waiters and all its later calls get `generation_over`, with this reason.
  [[nodiscard]] std::vector<StoreAnswer> end_generation(std::string why);
  [[nodiscard]] std::vector<StoreAnswer> call(StoreCaller from, StoreRequest request, Instant now,
                                              StoreScope scope = StoreScope::generation);
  /// The caller is gone: its waits are dropped without an answer, and it counts in no barrier any more.
  void forget(StoreCaller caller);
  /// Answers the waits whose time is over.
  [[nodiscard]] std::vector<StoreAnswer> expire(Instant now);
  /// When `expire` has something to do next; nothing when nobody waits.
  [[nodiscard]] std::optional<Instant> next_expiry() const;
  /// What counts towards `store_total_max`.
  [[nodiscard]] Bytes held() const { return Bytes{bytes_}; }
  /// What counts towards `store_kept_max`.
  [[nodiscard]] Bytes kept() const { return Bytes{kept_bytes_}; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  using Answers = std::vector<StoreAnswer>;
  using Keys = std::map<std::string, ByteVector, std::less<>>;
  using WaiterId = std::pair<StoreCaller, std::uint64_t>;  // a caller and the id of its call
  struct Waiter {
    StoreRequest request;
    Instant until;
    StoreScope scope;
    std::string parked_at;  // get, wait, watch: when this key changes the waiter is looked at again
  };
  struct RoomName {  // where the callers of a barrier or all_gather meet
    StoreScope scope;
    StoreOp op;
    std::string name;
    std::uint32_t count;
    friend auto operator<=>(const RoomName&, const RoomName&) = default;
  };
  using Asker = std::pair<std::uint64_t, std::uint32_t>;  // StoreRequest::caller and rank
  struct Seat {                                           // of a caller that has arrived
    std::optional<WaiterId> waiter;                       // none: it has its answer, from a store that is gone
    Asker asker;
    std::uint64_t turn = 0;
    ByteVector value;  // of who does not wait
  };
  using Seats = std::map<Asker, Seat>;  // by rank alone ({0, rank}), but for a barrier of clients outside, who have none
  struct Finished {                     // the last gathering of a room, for a caller that lost its answer and asks again
    std::map<Asker, std::uint64_t> turns;
    std::shared_ptr<const StoreReply> reply;
    std::uint64_t weight = 0, order = 0;
  };
  struct Room {
    Seats past;  // a gathering that was finished in a store that is gone: some may not have its answer yet
    std::uint64_t past_version = 0;
    Seats open;
    std::optional<Finished> finished;
  };
  using Rooms = std::map<RoomName, Room>;
  struct PutOff {
    StoreCaller from;
    StoreRequest request;
    Instant since;
    StoreScope scope;
  };

  void serve(Answers& answers, const WaiterId& id, StoreRequest request, Instant now, StoreScope scope);
  [[nodiscard]] std::optional<StoreReply> refusal(const WaiterId& id, const StoreRequest& request, StoreScope scope) const;
  void replay(Answers& answers, StoreRequest request);
  void replay_arrival(Answers& answers, StoreRequest request);
  [[nodiscard]] Answers serve_put_off();
  void answer(Answers& answers, const WaiterId& to, StoreReply reply) const;
  void put(Answers& answers, const std::string& key, ByteVector value);
  void take(Answers& answers, Keys::iterator entry);
  void erase_key(Keys::iterator entry);
  void look_at(Answers& answers, const std::string& key);
  void wait_or_answer(Answers& answers, const WaiterId& id, StoreRequest request, Instant now, StoreScope scope);
  void arrive(Answers& answers, const WaiterId& id, StoreRequest request, Instant now, StoreScope scope);
  void finish(Answers& answers, Rooms::iterator room, Seats seats, std::uint64_t version);
  void keep(Rooms::iterator room, Finished finished);
  void drop_kept(Rooms::iterator room);
  void tidy(Rooms::iterator room);
  Waiter& enlist(const WaiterId& id, StoreRequest request, Instant now, StoreScope scope);
  void dismiss(const WaiterId& id);
  Waiter release(const WaiterId& id);
  [[nodiscard]] std::optional<StoreReply> ready(const StoreRequest& request) const;
  [[nodiscard]] const std::string* missing_key(const StoreRequest& request) const;
  [[nodiscard]] std::string waited_for(const Waiter& waiter) const;
  [[nodiscard]] Answers dismiss_generation(const std::string& why);

  Generation generation_{};
  std::optional<std::string> over_;  // why generation_ is over
  Keys keys_;
  std::map<WaiterId, Waiter> waiters_;
  std::set<std::pair<Instant, WaiterId>> expiries_;
  std::unordered_map<std::string, std::set<WaiterId>> parked_;
  Rooms rooms_;
  std::map<std::uint64_t, RoomName> kept_;  // rooms with a finished gathering, oldest first
  std::uint64_t bytes_ = 0, kept_bytes_ = 0, kept_made_ = 0;
  std::uint64_t version_ = 0;  // of the newest change
  // While a generation is adopted:
  std::uint32_t nodes_to_hear_ = 0;                // 0: it is not, or all have said what they remember
  std::set<std::uint32_t> heard_;                  // nodes that have, by group rank
  std::map<std::string, std::uint64_t> replayed_;  // versions of the keys that were replayed, also of those removed
  std::vector<PutOff> put_off_;
};

}  // namespace elrun::inline v0
