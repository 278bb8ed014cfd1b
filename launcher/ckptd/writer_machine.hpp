#pragma once
/// \file Core: WriterMachine, what `elrun ckptd` decides: which slots it saves and until when, which parts never come, and who hears of what.
///
/// A slot belongs to its save from its seal until the save's outcome, so the death of its worker changes nothing. What a worker that is gone had not sealed, the writers of the other
/// ranks hear of at once. The shell (ckptd.cpp; in tests the simulator) reads the slots and the words, and does what it is told.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <elrun/failure.hpp>
#include <elrun/result.hpp>
#include <elrun/strong.hpp>
#include <elrun/units.hpp>

#include "checkpoint/staging/slot_messages.hpp"
#include "checkpoint/staging/slot_record.hpp"
#include "launcher/ckptd/last_minutes.hpp"
#include "lib/base/planted.hpp"

namespace elrun::inline v0::launcher {

constexpr Duration settle_wait = 60s;  ///< For a save whose generation is over: its slots are there by now, or never come.

using WorkerLine = Strong<struct WorkerLineTag, std::uint64_t>;  ///< A worker's connection; never used again.
using SaveNumber = Strong<struct SaveNumberTag, std::uint64_t>;  ///< One save of one slot.

/// For what a slot is being filled, or was sealed.
struct SlotSave {
  std::string root;
  NotedSave save;
  std::uint32_t rank = 0;
};

/// What the shell finds in a slot at the moment.
struct SlotSeen {
  SlotState state = SlotState::empty;
  SlotOwner owner{};               ///< Where one is promised.
  std::optional<SlotSave> save{};  ///< Filling or sealed, with a record that can be read.
  std::string trouble{};           ///< Sealed, but the record cannot be read: why.
};

// --- events -------------------------------------------------------------------------------------------------------

struct LineOpened {
  WorkerLine line{};
};
/// A word with a memory file, which the shell has opened; or why it could not.
struct SlotCame {
  WorkerLine line{};
  std::optional<Failure> why_not{};
  bool has_file = true;
};
struct SlotBegun {
  WorkerLine line{};
};
/// What the slot says once its worker has said that it is sealed.
struct SlotSealed {
  WorkerLine line{};
  Result<SlotSave> save;
};
struct WorkerHurries {
  WorkerLine line{};
};
/// What all slots say at that moment.
struct WorkerSettles {
  WorkerLine line{};
  std::vector<SlotSeen> slots{};
};
/// The worker is gone, or has said what nobody says.
struct LineClosed {
  WorkerLine line{};
  SlotSeen slot{};
};
struct SaveEnded {
  SaveNumber save{};
  SaveOutcome outcome{};
};
/// `has_settled` holds and no word is unread, also none of a worker that is gone.
struct AllIsRead {};
using WriterEvent =
    std::variant<LineOpened, SlotCame, SlotBegun, SlotSealed, WorkerHurries, WorkerSettles, LineClosed, SaveEnded, AllIsRead>;

// --- actions ------------------------------------------------------------------------------------------------------

/// The slot that came is the line's from now on.
struct KeepSlot {
  WorkerLine line{};
};
/// `LineClosed` follows.
struct CloseLine {
  WorkerLine line{};
};
/// Of the line's slot, with the record that the shell read for this event.
struct StartSave {
  SaveNumber save{};
  WorkerLine line{};
  Instant deadline{};
  bool hurries = false;                      ///< No bound on bytes per second holds.
  std::optional<FenceNumber> replaced_by{};  ///< It is over before it begins.
};
/// It may last until then, and no longer.
struct EndSaveBy {
  SaveNumber save{};
  Instant deadline{};
};
/// No bound on bytes per second holds for it any more.
struct HurrySave {
  SaveNumber save{};
};
/// A later start saves under this fence.
struct ReplaceSave {
  SaveNumber save{};
  FenceNumber by = 0;
};
/// What a save took from the bound on bytes per second, and has not written, is no debt of the next one.
struct ForgetBytes {};
struct TellOutcome {
  WorkerLine line{};
  SaveOutcome outcome{};
};
struct TellSettled {
  WorkerLine line{};
};
/// The writers of the other ranks: this part never comes.
struct TellGone {
  NotedSave save{};
  std::uint32_t rank = 0;
  Failure why{};
};
struct TellBrokenPromise {
  SlotOwner owner{};
};
struct WarnOf {
  std::string text;
};
using WriterAction = std::variant<KeepSlot, CloseLine, StartSave, EndSaveBy, HurrySave, ReplaceSave, ForgetBytes, TellOutcome, TellSettled,
                                  TellGone, TellBrokenPromise, WarnOf>;

// --- the machine --------------------------------------------------------------------------------------------------

class WriterMachine {
 public:
  [[nodiscard]] std::vector<WriterAction> on(const WriterEvent& event, Instant now);
  /// A worker waits for that, and no save is under way: `AllIsRead` is due once it holds.
  [[nodiscard]] bool has_settled() const { return is_settling() && (saves_.empty() || ELRUN_PLANTED(settled_before_saves_end)); }

 private:
  struct Line {
    bool has_slot = false;
    bool is_filling =
        false;  ///< The word before the seal came: a worker that dies without the seal has no save, and the others have to know.
    std::uint32_t settles = 0;  ///< Words that are not answered. Each gets an answer of its own, so a worker knows which answers are old.
  };
  struct Save {
    WorkerLine line{};
    SlotSave what{};
    Instant deadline{};
  };
  using Actions = std::vector<WriterAction>;

  void on(const LineOpened& e, Instant now);
  void on(const SlotCame& e, Instant now);
  void on(const SlotBegun& e, Instant now);
  void on(const SlotSealed& e, Instant now);
  void on(const WorkerHurries& e, Instant now);
  void on(const WorkerSettles& e, Instant now);
  void on(const LineClosed& e, Instant now);
  void on(const SaveEnded& e, Instant now);
  void on(const AllIsRead& e, Instant now);

  void start(WorkerLine line, const SlotSave& what, Instant now);
  void refuse(const std::string& why);
  [[nodiscard]] bool is_saving(WorkerLine line) const;
  [[nodiscard]] bool is_settling() const;

  std::map<WorkerLine, Line> lines_;
  std::map<SaveNumber, Save> saves_;
  std::uint64_t last_save_ = 0;
  LastMinutes last_minutes_;
  std::map<std::string, FenceNumber> newest_fences_;  // by checkpoint root: a program may save one job after another
  Actions actions_;                                   // of the event at hand
};

}  // namespace elrun::inline v0::launcher
