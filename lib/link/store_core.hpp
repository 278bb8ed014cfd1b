#pragma once
/// \file The store as a pure core: keys of one generation and of the job, with callers that wait.
///
/// The one state machine behind every store of elrun: in the coordinator, on rank 0 of an operator's job, and alone.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/planted.hpp"
#include "lib/link/store_adoption.hpp"
#include "lib/link/store_call.hpp"
#include "lib/link/store_keys.hpp"
#include "lib/link/store_rooms.hpp"
#include "lib/link/store_waiters.hpp"

namespace elrun::inline v0 {

/// Conducts the keys, those who wait, the rooms where they meet, and the adoption of a generation. A value; every call takes the time and returns
/// the answers that it sets free.
class StoreCore {
 public:
  /// Keys of the generation before vanish and its waiters get `generation_over`; what belongs to the job stays.
  [[nodiscard]] std::vector<StoreAnswer> begin_generation(const Generation& generation);
  /// The generation ran already, with a store that is gone: `nodes` of its nodes remember what their workers did. All
  /// other calls are put off until each of them has replayed that, and then `relearned`.
  [[nodiscard]] std::vector<StoreAnswer> adopt_generation(const Generation& generation, std::uint32_t nodes);
  /// The generation was revoked: its waiters and all its later calls get `generation_over`, with this reason.
  /// Where it was revoked before, the first reason stays: workers that end because of it are lost as well.
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
  [[nodiscard]] Bytes held() const { return Bytes{keys_.bytes() + waiters_.bytes() + rooms_.bytes() + adoption_.bytes()}; }
  /// What counts towards `store_kept_max`.
  [[nodiscard]] Bytes kept() const { return Bytes{rooms_.kept_bytes()}; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  using Answers = std::vector<StoreAnswer>;

  void serve(Answers& answers, const WaiterId& id, StoreRequest request, Instant now, StoreScope scope);
  [[nodiscard]] std::optional<StoreReply> refusal(const WaiterId& id, const StoreRequest& request, StoreScope scope) const;
  void replay(Answers& answers, StoreRequest request);
  void replay_arrival(Answers& answers, StoreRequest request);
  [[nodiscard]] Answers end_adoption();
  void put(Answers& answers, const std::string& key, ByteVector value);
  void take(Answers& answers, const std::string& key);
  void look_at(Answers& answers, const std::string& key);
  void wait_or_answer(Answers& answers, const WaiterId& id, StoreRequest request, Instant now, StoreScope scope);
  void arrive(Answers& answers, const WaiterId& id, StoreRequest request, Instant now, StoreScope scope);
  void finish(Answers& answers, const RoomName& name, FullRoom room);
  void dismiss(const WaiterId& id);
  [[nodiscard]] std::optional<StoreReply> ready(const StoreRequest& request) const;
  [[nodiscard]] std::string waited_for(const StoreRequest& request, StoreScope scope) const;
  [[nodiscard]] Answers dismiss_generation(const std::string& why);

  Generation generation_{};
  std::optional<std::string> over_;  // why generation_ is over
  StoreKeys keys_;
  StoreWaiters waiters_;
  StoreRooms rooms_;
  StoreAdoption adoption_;
  std::uint64_t version_ = 0;  // of the newest change
};

}  // namespace elrun::inline v0
