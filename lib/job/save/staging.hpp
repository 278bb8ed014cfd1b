#pragma once
/// \file Staging: this rank's staging slot, and its line to the process that writes it to the storage (`elrun ckptd`).

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <elrun/store.hpp>
#include <elrun/units.hpp>

#include "checkpoint/staging/slot.hpp"
#include "checkpoint/staging/slot_messages.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/files.hpp"
#include "lib/job/save/host_fragments.hpp"
#include "lib/job/save/slot_writer.hpp"

namespace elrun::inline v0 {

/// One slot is enough, for one save is under way at a time. It lives as long as the process: a save may outlive its generation. Called by the job's
/// thread; the copy runs on a thread of its own, and reads the state meanwhile.
class Staging {
 public:
  Staging(std::unique_ptr<SlotWriter> writer, const Clock& clock) : clock_{clock}, writer_{std::move(writer)} {}
  /// `socket`: of ckptd; empty: there is none.
  Staging(Path socket, const Clock& clock) : Staging{slot_writer_at(std::move(socket)), clock} {}
  ~Staging() { finish_copy(); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// There is one, of this version.
  [[nodiscard]] bool has_writer() const { return writer_->is_there(); }
  [[nodiscard]] bool has_room(std::uint64_t record_bytes, std::uint64_t data_bytes) const {
    return slot_.has_room(record_bytes, data_bytes);
  }
  [[nodiscard]] std::uint64_t bytes() const { return slot_.bytes(); }
  /// Takes another slot of this size. Not while a save is under way.
  Result<void> make_room(std::uint64_t record_bytes, std::uint64_t data_bytes);
  /// Connects to ckptd where it is not, and passes it the slot.
  Result<void> connect();

  /// A save was handed over, and its outcome has not come yet.
  [[nodiscard]] bool is_busy() const { return under_way_.has_value(); }
  /// And it has failed, for its ckptd has said nothing for longer than a save may take (`hear`).
  [[nodiscard]] bool is_overdue() const { return under_way_ && under_way_->is_overdue; }
  /// Connected, with room and not busy. The copy goes on after the call, and the state must not change before `finish_copy`. What a device was given
  /// before is done.
  Result<void> begin(const SlotRecord& record, const SlotLayout& layout, const HostFragments& state);
  /// Connected, with room and not busy, before the others hear that a save may begin here: if this worker ends now, ckptd tells them that its part never comes.
  void promise(const SlotOwner& owner);
  /// None began after all. Does nothing where one did, or nothing was promised.
  void withdraw() { (void)break_promise(); }
  /// The same, where others may have begun: what was promised; nothing: nothing was.
  std::optional<SlotOwner> break_promise();
  /// Until the state may change again. It waits for nobody but memory. A device of which the copy failed is told by `hear`.
  void finish_copy();

  /// The outcome, if it is there or has come by `deadline`. A ckptd that ended is one, too, unless the save's leader has told `store` another. One that says
  /// nothing for longer than a save may take has failed, once; this rank stays busy until it speaks or ends.
  std::optional<SaveOutcome> hear(Store& store, Deadline deadline);
  /// Training waits for the save under way.
  void hurry();
  /// The generation is over: what is under way there, of workers before this one too, gets a last minute. Does not wait.
  void settle();
  /// Until all of that is over; how this rank's own save ended, if it was heard here. A rank is not busy afterwards, unless the deadline has passed. Where ckptd is gone `store` is asked and
  /// told as by `hear`.
  std::optional<SaveOutcome> wait_until_settled(Store& store, Deadline deadline);

 private:
  struct UnderWay {
    NotedSave save{};
    std::uint32_t rank = 0;
    Instant begun{};
    bool is_overdue = false;  // and told so
  };
  std::optional<SaveOutcome> lost(Store& store);
  Failure why_lost(std::uint32_t rank);

  void hang_up();
  Result<void> say_settle();
  [[nodiscard]] bool is_last_settled();

  const Clock& clock_;
  StagingSlot slot_;
  const std::unique_ptr<SlotWriter> writer_;  // ckptd
  bool slot_is_there_ = false;                // with the ckptd of the line
  std::optional<UnderWay> under_way_;
  std::uint32_t unanswered_ = 0;        // words `settle` on this line, whose `settled` was not read
  std::optional<SlotOwner> promised_;   // and neither begun nor withdrawn
  std::optional<Failure> copy_failed_;  // written by the copy
};

}  // namespace elrun::inline v0
