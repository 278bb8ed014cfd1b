#include "lib/job/save/staging.hpp"

#include <utility>

#include <fmt/format.h>

#include "checkpoint/staging/save_keys.hpp"
#include "checkpoint/staging/slot_save.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"
#include "lib/device/current_device.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration overdue_after = save_deadline + 60s;  // ckptd itself ends a save at its deadline, unless it hangs
constexpr Duration look_wait = 200ms;                    // for the store to say how a save ended whose writer is gone

}  // namespace

void Staging::promise(const SlotOwner& owner) {
  slot_.promise(owner);
  promised_ = owner;
}

std::optional<SlotOwner> Staging::break_promise() {
  if (promised_) slot_.withdraw();
  return std::exchange(promised_, std::nullopt);
}

void Staging::hang_up() {
  writer_->hang_up();
  slot_is_there_ = false;
  unanswered_ = 0;
}

Result<void> Staging::say_settle() {
  ELRUN_TRY(writer_->say(SlotWord::settle));
  ++unanswered_;
  return {};
}

/// `settled` was read: whether it answers the newest word. An earlier one may have been left unread, and says nothing of what was begun after it.
bool Staging::is_last_settled() {
  if (unanswered_ > 0) --unanswered_;
  return unanswered_ == 0;
}

Result<void> Staging::make_room(std::uint64_t record_bytes, std::uint64_t data_bytes) {
  slot_ = {};                     // before the new one
  if (slot_is_there_) hang_up();  // ckptd lets go of it, too
  ELRUN_TRY_ASSIGN(slot_, writer_->take_memory(record_bytes, data_bytes));
  return {};
}

Result<void> Staging::connect() {
  if (writer_->is_connected() && writer_->has_ended()) hang_up();  // another ckptd answers by now
  if (!writer_->is_connected()) {
    ELRUN_TRY(writer_->connect());
    slot_is_there_ = false;
  }
  if (slot_is_there_ || slot_.bytes() == 0) return {};
  if (auto passed = writer_->pass(slot_); !passed.ok()) return hang_up(), passed;
  slot_is_there_ = true;
  return {};
}

Result<void> Staging::begin(const SlotRecord& record, const SlotLayout& layout, const HostFragments& state) {
  finish_copy();
  copy_failed_.reset();  // of a save that is over
  ELRUN_TRY(connect());
  const std::span<std::byte> data = slot_.begin(encode(record), layout.data_bytes);
  promised_.reset();
  ELRUN_TRY(writer_->say(SlotWord::begin));
  under_way_ = UnderWay{noted_save(record), record.rank, clock_.now()};
  const auto copy = [this, data, layout, state, rank = record.rank] {
    try {
      keep_current(state.device());  // the thread has device 0, another worker's, and each fragment would put it back
      for (std::size_t i = 0; i < layout.fragments.size(); ++i)
        state.read_beside(i, data.subspan(layout.fragments[i].offset, layout.fragments[i].bytes));
    } catch (const Error& error) {  // of the device
      copy_failed_ = error.failure();
      copy_failed_->what = "the copy of the state for a checkpoint failed: " + copy_failed_->what;
      copy_failed_->rank = Rank{rank};
      return;
    }
    if (ELRUN_PLANTED(sealed_before_it_is_copied)) return;
    slot_.seal();
    (void)writer_->say(SlotWord::sealed);  // where ckptd is gone, `hear` says so
  };
  if (ELRUN_PLANTED(sealed_before_it_is_copied)) slot_.seal(), (void)writer_->say(SlotWord::sealed);
  writer_->copy_beside(copy);
  return {};
}

void Staging::finish_copy() {
  if (ELRUN_PLANTED(update_overtakes_the_copy)) return;
  writer_->finish_copy();
  if (copy_failed_) hang_up();  // ckptd tells the others that this part never comes
}

Failure Staging::why_lost(std::uint32_t rank) {
  if (copy_failed_) return *std::exchange(copy_failed_, std::nullopt);
  return {.code = Code::peer_lost,
          .remedy = Remedy::retry,
          .what = "elrun ckptd of this node ended while it wrote the checkpoint",
          .rank = Rank{rank}};
}

std::optional<SaveOutcome> Staging::lost(Store& store) {
  finish_copy();  // it says its last word on the line
  hang_up();
  if (!under_way_) return {};
  const UnderWay was = *std::exchange(under_way_, std::nullopt);
  const Failure why = why_lost(was.rank);
  // It may have ended after the commit.
  const auto soon = [this] { return Deadline::after(clock_.now(), look_wait); };
  if (auto told = told_outcome(store, was.save, soon)) return told;
  (void)tell_gone(store, was.save, was.rank, why, soon());
  return SaveOutcome{was.save.fence, was.save.step, {}, why};
}

std::optional<SaveOutcome> Staging::hear(Store& store, Deadline deadline) {
  if (ELRUN_PLANTED(slot_reused_while_it_is_written)) finish_copy(), under_way_.reset();
  while (under_way_) {
    if (!writer_->is_connected()) return lost(store);
    auto packet = writer_->packet();
    if (!packet.ok()) return lost(store);
    if (*packet) {
      auto outcome = decode_save_outcome(**packet);
      if (!outcome.ok()) return lost(store);
      if (*outcome && (*outcome)->fence == under_way_->save.fence && (*outcome)->step == under_way_->save.step) {
        finish_copy();
        under_way_.reset();
        return std::move(*outcome);
      }
      if (!*outcome) (void)is_last_settled();
      continue;
    }
    if (!under_way_->is_overdue && clock_.now() - under_way_->begun > overdue_after) {
      under_way_->is_overdue = true;
      return SaveOutcome{
          under_way_->save.fence,
          under_way_->save.step,
          {},
          Failure{.code = Code::deadline_passed,
                  .remedy = Remedy::retry,
                  .what = fmt::format("elrun ckptd of this node has not said for {} how the save ended: does its storage hang?",
                                      for_people(clock_.now() - under_way_->begun)),
                  .rank = Rank{under_way_->rank}}};
    }
    const Duration left = deadline.left(clock_.now());
    if (left <= Duration{0}) return {};
    writer_->wait_for_packet(left);
  }
  return {};
}

void Staging::hurry() {
  if (under_way_) (void)writer_->say(SlotWord::hurry);  // where ckptd is gone, `hear` says so
}

void Staging::settle() {
  if (under_way_) (void)say_settle();  // where ckptd is gone, `hear` says so
}

std::optional<SaveOutcome> Staging::wait_until_settled(Store& store, Deadline deadline) {
  finish_copy();
  if (!has_writer()) return {};
  std::optional<SaveOutcome> own;
  const auto writer_ended = [&] {
    if (auto end = lost(store); end && !own) own = std::move(end);
    return own;
  };
  // Of a save under way only the ckptd that has it can tell the end; another one has none.
  if (under_way_ && (!writer_->is_connected() || writer_->has_ended())) (void)writer_ended();
  if (!connect().ok() || !say_settle().ok()) return writer_ended();
  for (;;) {
    const auto packet = writer_->packet();
    if (!packet.ok()) return writer_ended();
    if (*packet) {
      auto outcome = decode_save_outcome(**packet);
      if (!outcome.ok()) return writer_ended();
      if (!*outcome && !is_last_settled()) continue;
      if (!*outcome) return under_way_.reset(), own;
      if (under_way_ && (*outcome)->fence == under_way_->save.fence) under_way_.reset(), own = std::move(*outcome);
      continue;
    }
    const Duration left = deadline.left(clock_.now());
    if (left <= Duration{0}) return own;
    writer_->wait_for_packet(left);
  }
}

}  // namespace elrun::inline v0
