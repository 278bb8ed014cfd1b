#include "launcher/ckptd/writer_machine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lib/base/failure.hpp"

namespace elrun::inline v0::launcher {

std::vector<WriterAction> WriterMachine::on(const WriterEvent& event, Instant now) {
  actions_.clear();
  std::visit([&](const auto& e) { on(e, now); }, event);
  return std::exchange(actions_, {});
}

void WriterMachine::on(const LineOpened& e, Instant) { lines_.try_emplace(e.line); }

void WriterMachine::on(const SlotCame& e, Instant) {
  if (!e.has_file || is_saving(e.line)) return actions_.push_back(CloseLine{e.line});
  if (e.why_not) return refuse(message(*e.why_not)), actions_.push_back(CloseLine{e.line});
  lines_.at(e.line).has_slot = true;
  actions_.push_back(KeepSlot{e.line});
}

void WriterMachine::on(const SlotBegun& e, Instant) {
  Line& line = lines_.at(e.line);
  const bool is_free = !is_saving(e.line) || ELRUN_PLANTED(slot_reused_while_it_is_written);
  if (!line.has_slot || !is_free) return actions_.push_back(CloseLine{e.line});
  line.is_filling = true;
}

void WriterMachine::on(const SlotSealed& e, Instant now) {
  const Line& line = lines_.at(e.line);
  if (!line.has_slot || !line.is_filling) return actions_.push_back(CloseLine{e.line});
  if (!e.save.ok()) return refuse(message(e.save.failure())), actions_.push_back(CloseLine{e.line});
  start(e.line, *e.save, now);
}

void WriterMachine::on(const WorkerHurries& e, Instant) {
  for (const auto& [number, save] : saves_)
    if (save.line == e.line) actions_.push_back(HurrySave{number});
  actions_.push_back(ForgetBytes{});
}

void WriterMachine::on(const WorkerSettles& e, Instant now) {
  ++lines_.at(e.line).settles;
  for (const auto& [number, save] : saves_) last_minutes_.settle(save.what.root, save.what.save.fence);
  for (const SlotSeen& slot : e.slots)  // what is being filled, and what was sealed and not said yet
    if (slot.save) last_minutes_.settle(slot.save->root, slot.save->save.fence);
  for (auto& [number, save] : saves_) {
    save.deadline = std::min(save.deadline, now + settle_wait);
    actions_.push_back(EndSaveBy{number, save.deadline});
    actions_.push_back(HurrySave{number});  // nobody trains meanwhile
  }
  if (!saves_.empty()) actions_.push_back(ForgetBytes{});
}

void WriterMachine::on(const LineClosed& e, Instant now) {
  const auto line = lines_.find(e.line);
  if (line == lines_.end()) return;
  // What it has sealed is saved; what it has not, others wait for in vain. A slot says by itself that it is being filled, also where its worker died before it could.
  if (e.slot.state == SlotState::sealed && line->second.is_filling && !ELRUN_PLANTED(sealed_slot_goes_with_its_worker)) {
    if (e.slot.save) start(e.line, *e.slot.save, now);
    else refuse(e.slot.trouble);
  }
  if (e.slot.state == SlotState::filling && e.slot.save && !ELRUN_PLANTED(death_while_filling_is_not_told))
    actions_.push_back(
        TellGone{e.slot.save->save, e.slot.save->rank,
                 Failure{Code::peer_lost, Remedy::retry, "this worker ended before its part of the checkpoint was in its staging slot"}});
  if (e.slot.state == SlotState::promised) actions_.push_back(TellBrokenPromise{e.slot.owner});
  lines_.erase(line);
}

void WriterMachine::on(const SaveEnded& e, Instant) {
  const auto save = saves_.extract(e.save);  // it is over, also where there is no memory to say so
  if (save.empty()) return;
  if (const WorkerLine line = save.mapped().line; lines_.contains(line)) actions_.push_back(TellOutcome{line, e.outcome});
  else if (e.outcome.failure)
    actions_.push_back(WarnOf{fmt::format("the checkpoint of step {} of a worker that is gone could not be saved: {}", e.outcome.step,
                                          message(*e.outcome.failure))});
}

void WriterMachine::on(const AllIsRead&, Instant) {
  for (auto& [number, line] : lines_)
    for (; line.settles > 0; --line.settles) actions_.push_back(TellSettled{number});
}

void WriterMachine::start(WorkerLine line, const SlotSave& what, Instant now) {
  lines_.at(line).is_filling = false;
  FenceNumber& newest = newest_fences_[what.root];
  const bool is_first_of_fence = newest < what.save.fence;
  newest = std::max(newest, what.save.fence);
  if (is_first_of_fence)
    for (const auto& [number, other] : saves_)
      if (other.what.root == what.root) actions_.push_back(ReplaceSave{number, newest});
  if (is_first_of_fence || saves_.empty()) actions_.push_back(ForgetBytes{});
  StartSave begun{.save = SaveNumber{++last_save_}, .line = line, .deadline = now + save_deadline};
  if (newest > what.save.fence) begun.replaced_by = newest;
  if (is_settling() && last_minutes_.has(what.root, what.save.fence)) begun.deadline = now + settle_wait, begun.hurries = true;
  actions_.push_back(begun);
  saves_.emplace(begun.save, Save{line, what, begun.deadline});  // last: where there is no memory for it, there is neither save nor action
}

void WriterMachine::refuse(const std::string& why) {
  actions_.push_back(WarnOf{fmt::format("a worker's staging slot is refused: {}", why)});
}

bool WriterMachine::is_saving(WorkerLine line) const {
  return std::any_of(saves_.begin(), saves_.end(), [&](const auto& save) { return save.second.line == line; });
}

bool WriterMachine::is_settling() const {
  return std::any_of(lines_.begin(), lines_.end(), [](const auto& line) { return line.second.settles > 0; });
}

}  // namespace elrun::inline v0::launcher
