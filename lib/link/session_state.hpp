#pragma once
/// \file What the callers' threads and the link thread share: the place in the generation, whether it is over, store calls under way.

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include <elrun/result.hpp>
#include <elrun/session.hpp>

#include "lib/base/clock.hpp"
#include "lib/link/message.hpp"

namespace elrun::inline v0 {

/// All fields are under one mutex. The link thread only writes and never waits here; callers wait, each with a deadline.
class SessionState {
 public:
  /// `where`: the other end, for people. `rank`: of this worker, until it has a place.
  SessionState(const Clock& clock, std::string where, Rank rank) : clock_{clock}, where_{std::move(where)}, rank_{rank} {}

  // --- on callers' threads ---

  /// Waits until there is a place, or there will be none.
  Result<void> wait_until_ready(Deadline deadline);
  /// The agent asked to prepare to leave.
  [[nodiscard]] bool is_leaving() const;
  /// Once there is one. Only next_place() changes it, on the thread that calls this.
  [[nodiscard]] const Place& place() const { return *place_; }
  [[nodiscard]] Session::Remembered remembered() const;
  /// Why the generation is over, if it is.
  [[nodiscard]] std::optional<Failure> over() const;

  /// A store call begins; returns its number. Fails when the generation is over, or too many are under way.
  Result<std::uint64_t> begin_call();
  /// Waits for its answer and forgets the call. `key`: for the message, when none comes in time; empty: none.
  Result<StoreReply> wait_for_answer(std::uint64_t call, const std::string& key, Deadline deadline);

  /// Waits until the generation is over. True: the next place was told already.
  Result<bool> wait_until_over(Deadline deadline);
  /// Waits for the next place, as long as the other end lives, and takes it.
  Result<void> next_place();
  Result<void> wait_until_job_is_over(Deadline deadline);

  // --- on the link thread ---

  void remember(const Session::Remembered& remembered);
  /// The first place. `over`: its generation is over already.
  void welcome(Place place, std::optional<Failure> over);
  /// The program takes it when it is back from its own code. If the generation is over before that, it never was in it. False: the one at
  /// hand is not over.
  bool offer_next(const Place& place);
  void leave();
  void answer(const StoreReply& reply);
  void job_is_over();
  /// Nothing can be had from the other end any more. Returns the failure with this worker's rank and generation. end() is to follow.
  Failure lose(Failure why);
  void end(const Failure& why);

 private:
  [[nodiscard]] std::optional<Failure> over_failure() const;  // under the mutex

  const Clock& clock_;
  const std::string where_;
  const Rank rank_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Session::Remembered remembered_{};
  std::optional<Place> place_{};            // changed, and read without the lock, by the caller's thread alone once it is there
  std::optional<Place> next_{};             // told, and not taken yet
  std::optional<Failure> lost_{}, over_{};  // the connection; the generation
  std::map<std::uint64_t, std::optional<StoreReply>> calls_{};
  std::uint64_t last_call_ = 0;
  bool leaving_ = false, job_over_ = false;
};

}  // namespace elrun::inline v0
