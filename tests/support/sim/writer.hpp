#pragma once
/// \file Writer: `elrun ckptd` of a node. What it decides (WriterMachine) and its saves (save_slot) are the product's; simulated are the lines to workers, its
/// agent, the storage and time. Each save, and each word that it tells until the store takes it, is a task that has its turn when what it waits for is there.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/staging/slot.hpp"
#include "launcher/ckptd/writer_machine.hpp"
#include "lib/base/clock.hpp"
#include "lib/link/message.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

class Simulation;

/// What comes from a worker on its line.
enum class LineWord : std::uint8_t { opened, slot, begin, sealed, hurry, settle, closed };

class Writer {
 public:
  Writer(Simulation& simulation, ProcessId id, ProcessId agent, Instant begins);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // What comes in. `slot`: with that word.
  void hear(launcher::WorkerLine line, LineWord word, std::shared_ptr<const SlotView> slot);
  void answered(std::uint64_t connection, const StoreReply& reply);
  void look(std::uint64_t task);
  void look_at_all();
  void read_all();
  void save_is_over(std::uint64_t task);
  /// The process is gone.
  void end();

  [[nodiscard]] ProcessId agent() const { return agent_; }
  [[nodiscard]] Instant begins() const { return begins_; }

 private:
  class Task;
  class TaskStore;
  class LocalClock;
  struct Saving;
  struct Line {
    std::shared_ptr<const SlotView> slot, came;
  };

  void feed(const launcher::WriterEvent& event);
  void perform(const launcher::CloseLine& a);
  void perform(const launcher::KeepSlot& a);
  void perform(const launcher::StartSave& a);
  void perform(const launcher::EndSaveBy& a);
  void perform(const launcher::HurrySave&) {}  // no save of this world has a bound on bytes
  void perform(const launcher::ReplaceSave& a);
  void perform(const launcher::ForgetBytes&) {}
  void perform(const launcher::TellOutcome& a);
  void perform(const launcher::TellSettled& a);
  void perform(const launcher::TellGone& a);
  void perform(const launcher::TellBrokenPromise& a);
  void perform(const launcher::WarnOf& a);
  void close(launcher::WorkerLine line);
  [[nodiscard]] launcher::SlotSeen look_into(const Line& line);
  [[nodiscard]] std::uint64_t slots_held() const;
  void begin_task(std::function<void(Task&)> body);
  void tell_until_taken(std::function<Result<void>(Store&, Deadline)> word);
  void save(Task& task, Saving& saving);

  Simulation& simulation_;
  const ProcessId id_, agent_;
  const Instant begins_;  // the first word is read then
  launcher::WriterMachine machine_;
  SlotRecord read_{};  // from a slot, for the event at hand
  std::map<launcher::WorkerLine, Line> lines_;
  std::map<launcher::SaveNumber, std::shared_ptr<Saving>> saves_;
  std::map<std::uint64_t, std::map<std::uint64_t, std::optional<StoreReply>>> replies_;  // by connection and call
  bool is_destroyed_ = false;                                                            // with the whole world
  bool reads_all_ = false;                                                               // `read_all` is due
  std::uint64_t tasks_made_ = 0;
  std::map<std::uint64_t, std::unique_ptr<Task>> tasks_;  // the last, for the first to go: they still end
};

}  // namespace elrun::sim
