#pragma once
/// \file StoreCalls: calls of this node's workers to the coordinator's store that have no answer yet. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/supervise/events.hpp"
#include "lib/base/planted.hpp"
#include "lib/link/message.hpp"
#include "lib/link/store_memory.hpp"

namespace elrun::inline v0::launcher {

constexpr std::size_t store_calls_per_worker_max = 4096;  ///< Under way at one time; one more is refused.

/// The reply to a `call` that was not done, or of which it is not known whether it was.
[[nodiscard]] StoreReply failed_call(const StoreRequest& call, Code code, std::string what);

/// A call stays here until its answer comes or its caller is gone. It is sent again to each coordinator that serves the same
/// generation, so a call that must not be done twice fails when the coordinator is lost. What was answered is remembered, for a
/// coordinator whose store is empty.
class StoreCalls {
 public:
  /// Takes the call, or says why not.
  [[nodiscard]] std::optional<StoreReply> add(ConnectionId from, const StoreRequest& call, Instant now);
  /// What kind of call it was that is over with this; nothing where none was under way.
  [[nodiscard]] std::optional<StoreOp> answered(const StoreResult& result);
  /// The coordinator is lost: the answers for calls that must not be sent again.
  [[nodiscard]] std::vector<std::pair<ConnectionId, StoreReply>> coordinator_lost();
  void forget(ConnectionId caller);
  /// Its peers have not answered its all_gather yet.
  [[nodiscard]] bool is_gathering(ConnectionId caller) const;
  /// Before calls are sent again: the answers for those whose time to wait is over. Nobody waits for them, so they must hold no seat in a gathering.
  [[nodiscard]] std::vector<std::pair<ConnectionId, StoreReply>> end_late(Instant now);
  /// What a coordinator that serves this generation again has to hear; first what a `fresh` one, whose store is empty, lacks. Each call waits for
  /// what is left of its time.
  [[nodiscard]] std::vector<StoreCall> to_send_again(bool fresh, const World& world, Instant now) const;
  /// Some of what was done is not remembered: a coordinator whose store is empty cannot go on with the generation.
  [[nodiscard]] bool have_forgotten() const { return memory_.has_forgotten(); }
  /// No generation runs: open calls get no answer.
  void end_generation() { calls_.clear(); }
  /// Another generation begins: nothing of the last one is remembered.
  void begin_generation() { calls_.clear(), memory_.clear(); }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  using Call = std::pair<ConnectionId, std::uint64_t>;  // the caller, and its number for the call
  static Call first_of(ConnectionId caller) { return {caller, 0}; }
  static Call last_of(ConnectionId caller) { return {caller, ~std::uint64_t{0}}; }
  using Since = std::pair<StoreRequest, Instant>;  // when it came
  std::map<Call, Since> calls_;
  StoreMemory memory_;  // what this node's workers did to the store in this generation
};

}  // namespace elrun::inline v0::launcher
