#pragma once
/// \file CommunicatorLife: what the owner of an NCCL communicator may do, and when it gives the communicator up. Pure.
///
/// NCCL does not detect failures: with a dead peer a call never ends. So a communicator is given up when the generation is over, when a call's
/// deadline passes, when a peer's connection to the host's group has ended and a call still needs it, or when NCCL itself reports an error.
/// Once given up, it is aborted on another thread, for the abort may never return. The streams then run on over memory that holds garbage:
/// nothing tells that a call succeeded from then on, also no event.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <elrun/device.hpp>
#include <elrun/failure.hpp>
#include <elrun/ids.hpp>
#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "lib/comm/nccl/result.hpp"

namespace elrun::inline v0 {

enum class CommunicatorState : std::uint8_t {
  making,    ///< Its creation was begun; the ranks find each other.
  ready,     ///< A call may be begun. Earlier ones may still run in their streams.
  issuing,   ///< A call is on its way to its stream. Until NCCL has answered, no other may be begun.
  closing,   ///< Its orderly end was begun: all ranks have to come to it.
  revoked,   ///< Something failed. It is still with the owner, who makes no call any more.
  aborting,  ///< Given up: another thread aborts it.
  gone,      ///< It is freed, and nothing of it is left in a stream.
  stuck,     ///< The abort did not return in time. Only the end of this process frees the device.
};

struct CommunicatorTransition {
  CommunicatorState from, to;
};
inline constexpr CommunicatorTransition communicator_transitions[] = {
    {CommunicatorState::making, CommunicatorState::ready},    {CommunicatorState::ready, CommunicatorState::issuing},
    {CommunicatorState::issuing, CommunicatorState::ready},   {CommunicatorState::ready, CommunicatorState::closing},
    {CommunicatorState::closing, CommunicatorState::gone},    {CommunicatorState::making, CommunicatorState::revoked},
    {CommunicatorState::ready, CommunicatorState::revoked},   {CommunicatorState::issuing, CommunicatorState::revoked},
    {CommunicatorState::closing, CommunicatorState::revoked}, {CommunicatorState::revoked, CommunicatorState::aborting},
    {CommunicatorState::aborting, CommunicatorState::gone},   {CommunicatorState::aborting, CommunicatorState::stuck},
};
[[nodiscard]] constexpr bool may_follow(CommunicatorState from, CommunicatorState to) {
  for (const CommunicatorTransition& each : communicator_transitions)
    if (each.from == from && each.to == to) return true;
  return false;
}

struct CommunicatorLimits {
  /// An abort that takes longer never returns. It waits for NCCL's kernels, and until the other ranks of this machine have closed their connections to this process: they abort as well,
  /// or are dead, and Linux frees some 7 GB a second of a dead process before it closes them.
  Duration abort = std::chrono::seconds{5};
  /// How long the abort may wait for the program's own kernels that are ahead of a call in its stream: they are healthy, and may take seconds. A call whose own limit has passed waits no longer.
  /// With `abort` it is less than the 30 s after which the agent ends a worker that does not come to the next generation.
  Duration ahead = std::chrono::seconds{20};
  /// From the end of a peer's connection until a call that still runs fails. A peer that has done its part may leave, and what it has sent arrives
  /// within this.
  Duration loss = std::chrono::seconds{1};
};

/// Who is who, for failures.
struct CommunicatorPlace {
  Membership me{};
  Device device{};
  std::string group{};     ///< The group's name; may be empty.
  std::string settings{};  ///< NCCL's variables that the user has set, for failures; may be empty.
};

/// What the owner sees when it looks.
struct CommunicatorView {
  Instant now{};
  NcclResult answer = NcclResult::success;  ///< Of the communicator, asked just now.
  std::string_view detail{};                ///< NCCL's own words for an error.
  const Failure* over = nullptr;            ///< The generation is over, or somebody gave the group up.
  std::optional<Rank> lost{};               ///< A peer whose connection to the host's group has ended.
  bool abort_returned = false;
  bool drained = true;  ///< No call that was issued is left in a stream.
  bool ahead = false;   ///< What the program had put into the stream before a call is not over. Asked once it is aborted.
};

class CommunicatorLife {
 public:
  enum class Next : std::uint8_t {
    look_again,  ///< Something is under way: look again soon.
    rest,        ///< Nothing is under way.
    give_up,     ///< Give the communicator to a thread that aborts it. Said once.
    end,         ///< Gone or stuck: tell all callers.
  };

  CommunicatorLife(CommunicatorPlace place, const CommunicatorLimits& limits, Instant now, Duration make);

  [[nodiscard]] CommunicatorState state() const { return state_; }
  [[nodiscard]] bool has_failed() const { return failure_.has_value(); }

  /// A call is to be issued now. Only in `ready`; otherwise the failure, and no call of NCCL may be made. Returns its number.
  Result<std::uint64_t> begin_call(std::string name, Instant now, Duration limit);
  /// The orderly end is begun. Only in `ready` and with no call under way.
  Result<void> begin_close(Instant now, Duration limit);
  /// What NCCL answered to a call itself (`call` names it), before anything else is done with the communicator.
  void answered(std::string_view call, NcclResult result, std::string_view detail);
  /// The owner could not do its own part of a call (no event, another device).
  void fail(Failure why);

  /// Looks at everything, in the order in which causes are worth naming. Changes the state.
  Next look(const CommunicatorView& view);
  /// The event behind call `number` is over, and `answer` was asked after that. True: the call succeeded, and its results are good. A call that
  /// was under way when something failed never succeeds.
  [[nodiscard]] bool call_ended(std::uint64_t number, NcclResult answer);
  /// Why the communicator is not usable any more; once the abort is stuck, that this process has to end. Only after something failed.
  [[nodiscard]] Failure failure_so_far() const;

 private:
  struct Call {
    std::string name;
    Deadline deadline;
    Duration limit;
  };
  [[nodiscard]] Next go_on() const;
  void enter(CommunicatorState state);
  [[nodiscard]] bool usable() const { return state_ <= CommunicatorState::closing; }
  [[nodiscard]] std::string device() const;
  void look_for_trouble(const CommunicatorView& view);
  void look_for_loss(const CommunicatorView& view);
  void look_at_deadlines(Instant now);
  void look_at_abort(const CommunicatorView& view);

  const CommunicatorPlace place_;
  const CommunicatorLimits limits_;
  CommunicatorState state_ = CommunicatorState::making;
  Call whole_;                           // of making, then of closing
  std::map<std::uint64_t, Call> calls_;  // issued or being issued, not known to be over
  std::uint64_t last_call_ = 0;
  std::optional<Instant> lost_since_;
  Instant abort_counts_from_{};  // once nothing of the program is ahead
  Instant aborting_since_{};
  bool abort_returned_ = false;
  std::optional<Failure> failure_;
};

}  // namespace elrun::inline v0
