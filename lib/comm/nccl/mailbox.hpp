#pragma once
/// \file OwnerMailbox: what the users of a communicator and its owner tell each other. The one place where their threads meet.
///
/// What always holds: a request is issued once, by the owner or by `end`; after `end` every wait returns at once, and nothing more is posted.

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "lib/comm/call_queue.hpp"
#include "lib/comm/nccl/communicator.hpp"

namespace elrun::inline v0 {

class OwnerMailbox {
 public:
  struct Request {
    std::string name;
    Stream stream;
    Duration limit;
    NcclCommunicator::Body body;
    WorkPromise promise{};
    bool issued = false;  ///< It is in its stream, or has failed. The mailbox's lock guards it.
  };
  struct Close {
    Deadline at;
    Duration limit;
  };

  // ---- users, on any thread

  /// Fails with the reason of the end, once that has come.
  Result<void> post(const std::shared_ptr<Request>& request);
  /// The caller waits no longer, and may free its buffers: what the owner has not begun is not begun any more. False: it was issued after all.
  bool withdraw(const std::shared_ptr<Request>& request);
  /// The generation is over, or the group was given up. The first reason counts.
  void revoke(const Failure& why);
  void ask_to_close(const Close& close);

  /// Each waits for `most` at the longest. Nothing: it passed, and the owner is lost inside NCCL.
  std::optional<Result<void>> wait_until_made(Duration most);
  std::optional<Result<void>> wait_until_issued(const Request& request, Duration most);
  std::optional<Result<void>> wait_until_ended(Duration most);

  // ---- the owner, and the thread that aborts

  struct Said {
    std::optional<Failure> over;
    bool abort_returned;
  };
  [[nodiscard]] Said said() const;
  struct Order {
    std::shared_ptr<Request> request{};
    std::optional<Close> close{};
  };
  /// The next request, else the order to close, which is taken away where `idle` says that no call is under way. Nothing once revoked.
  Order take(bool idle);
  void made();
  /// `failure`: of a call that did not come into its stream.
  void issued(Request& request, const std::optional<Failure>& failure);
  void abort_returned();
  /// What a resting owner gets up for.
  struct WakeUp {
    bool at_revocation, at_return_of_abort, at_request, at_close;
  };
  /// `most`: none waits until then, however long.
  void rest(const WakeUp& wake_up, std::optional<Duration> most);
  /// The last word: all that waits fails with this reason, and all that comes. `well`: the communicator was closed as it should be.
  void end(const Failure& why, bool well);

 private:
  [[nodiscard]] Result<void> outcome() const;
  template <class Condition>
  std::optional<Result<void>> wait(Duration most, const Condition& condition);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Request>> requests_;
  std::optional<Close> close_;
  std::optional<Failure> over_, failure_;
  bool made_ = false, ended_ = false, closed_well_ = false, abort_returned_ = false;
};

}  // namespace elrun::inline v0
