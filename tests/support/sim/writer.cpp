#include "tests/support/sim/writer.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "checkpoint/format/records.hpp"
#include "checkpoint/staging/save_keys.hpp"
#include "checkpoint/staging/slot_save.hpp"
#include "kernels/state_hash.hpp"
#include "lib/link/request_store.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/support/sim/simulation.hpp"
#include "tests/support/sim/turns.hpp"

namespace elrun::sim {
namespace {

using namespace launcher;

constexpr Duration word_pause = 100ms;  // as launcher/ckptd/ckptd.cpp has it

std::uint64_t hash_of(const SlotView& slot, const SlotRecord& record) {
  std::uint64_t sum = 0;
  if (const auto fragments = slot.fragments(record); fragments.ok())
    for (std::size_t i = 0; i < fragments->size(); ++i) sum += mix_sum((*fragments)[i].bytes, 0, i);
  return sum;
}

SlotSave described(const SlotRecord& record) { return {record.directory, noted_save(record), record.rank}; }

}  // namespace

// --- tasks --------------------------------------------------------------------------------------------------------

class Writer::Task {
 public:
  Task(Writer& writer, std::uint64_t number, std::function<void(Task&)> body)
      : writer_{writer}, number_{number}, body_{std::move(body)}, turns_{[this] { body_(*this); }} {}

  void look() {
    const Process& process = writer_.simulation_.process(writer_.id_);
    if (at_work_ || turns_.over() || !process.alive || process.paused || (ready_ != nullptr && !(*ready_)())) return;
    at_work_ = true;
    turns_.give();
    at_work_ = false;
  }
  void end() {
    if (!at_work_) turns_.end();
  }
  /// Until `ready`, at most for `time`. Whether it is.
  bool wait(const std::function<bool()>& ready, Duration time) {
    const Instant by = writer_.simulation_.now_ + time;
    writer_.simulation_.look_at_task(writer_.id_, number_, time);
    const std::function<bool()> looked_at = [&] { return ready() || writer_.simulation_.now_ >= by; };
    while (!looked_at()) {
      ready_ = &looked_at;
      turns_.wait();
      ready_ = nullptr;
    }
    return ready();
  }
  void sleep(Duration time) {
    wait([] { return false; }, time);
  }
  /// A point between two operations: here it may be that the process ends or stands still.
  void action() {
    switch (writer_.simulation_.writer_action(writer_.id_)) {
      case Simulation::AtAction::ends: throw Ended{};
      case Simulation::AtAction::is_paused:
        while (writer_.simulation_.process(writer_.id_).paused) sleep(1s);
        break;
      default: break;
    }
    sleep(writer_.simulation_.random(writer_.simulation_.profile_.job.storage_operation));
  }
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] bool over() const { return turns_.over(); }

 private:
  Writer& writer_;
  const std::uint64_t number_;
  std::function<void(Task&)> body_;
  const std::function<bool()>* ready_ = nullptr;
  bool at_work_ = false;
  Turns turns_;
};

class Writer::LocalClock final : public Clock {
 public:
  explicit LocalClock(const Writer& writer) : writer_{writer} {}
  [[nodiscard]] Instant now() const override { return writer_.simulation_.local(writer_.id_); }
  [[nodiscard]] std::int64_t wall_ns() const override { return now().time_since_epoch().count(); }

 private:
  const Writer& writer_;
};

// As launcher/ckptd/agent_store.cpp: a connection to the agent for one task.
class Writer::TaskStore final : public RequestStore {
 public:
  TaskStore(Writer& writer, Task& task, const Clock& clock)
      : RequestStore{clock, Generation{}}, writer_{writer}, task_{task}, connection_{writer.simulation_.connect_to_agent(writer.id_)} {}
  ~TaskStore() override {
    writer_.replies_.erase(connection_);
    if (!writer_.is_destroyed_) writer_.simulation_.hang_up_on_agent(writer_.id_, connection_);
  }
  void tell(Message message) { writer_.simulation_.writer_says(writer_.id_, connection_, std::move(message)); }

 protected:
  Result<StoreReply> ask(StoreRequest request, Deadline deadline) override {
    request.id = ++last_id_;
    auto& reply = writer_.replies_[connection_][request.id];
    const std::uint64_t id = request.id;
    tell(std::move(request));
    task_.wait([&] { return reply.has_value(); }, std::max(deadline.left(clock_.now()), Duration{0}));
    const auto taken = writer_.replies_.at(connection_).extract(id);
    if (taken.mapped()) return *taken.mapped();
    return Failure{Code::deadline_passed, Remedy::retry, "the job's store did not answer in time"};
  }
  [[nodiscard]] std::uint32_t rank() const override { return 0; }

 private:
  Writer& writer_;
  Task& task_;
  const std::uint64_t connection_;
  std::uint64_t last_id_ = 0;
};

struct Writer::Saving {
  SaveNumber number{};
  std::shared_ptr<const SlotView> slot;
  SlotRecord record;
  Instant deadline{};
  std::optional<FenceNumber> replaced_by{};
  std::uint64_t begun_with = 0;  // hash of the slot's data
  std::optional<SaveOutcome> outcome{};
  std::uint64_t task = 0;
};

// --- the process --------------------------------------------------------------------------------------------------

Writer::Writer(Simulation& simulation, ProcessId id, ProcessId agent, Instant begins)
    : simulation_{simulation}, id_{id}, agent_{agent}, begins_{begins} {}

Writer::~Writer() {
  is_destroyed_ = true;
  end();
}

void Writer::end() {
  for (auto& [number, task] : tasks_) task->end();
}

void Writer::hear(WorkerLine line, LineWord word, std::shared_ptr<const SlotView> slot) {
  if (word == LineWord::opened) {
    lines_[line];
    feed(LineOpened{line});
  } else if (!lines_.contains(line)) {
    return;  // it was closed here
  } else if (word == LineWord::slot) {
    lines_.at(line).came = std::move(slot);
    feed(SlotCame{.line = line});
  } else if (word == LineWord::begin) {
    feed(SlotBegun{line});
  } else if (word == LineWord::sealed) {
    auto record = lines_.at(line).slot ? lines_.at(line).slot->record(SlotState::sealed)
                                       : Result<SlotRecord>{Failure{Code::protocol, Remedy::retry, {}}};
    if (record.ok()) read_ = *record;
    feed(SlotSealed{line, record.ok() ? Result<SlotSave>{described(*record)} : Result<SlotSave>{record.failure()}});
  } else if (word == LineWord::hurry) {
    feed(WorkerHurries{line});
  } else if (word == LineWord::settle) {
    WorkerSettles settles{line, {}};
    for (const auto& [number, other] : lines_) settles.slots.push_back(look_into(other));
    feed(settles);
  } else {
    close(line);
  }
}

SlotSeen Writer::look_into(const Line& line) {
  const auto head = line.slot ? line.slot->prefix() : Result<SlotPrefix>{SlotPrefix{}};
  if (!head.ok()) return {};
  SlotSeen seen{.state = head->state, .owner = head->owner};
  if (seen.state != SlotState::filling && seen.state != SlotState::sealed) return seen;
  if (auto record = line.slot->record(seen.state); record.ok()) seen.save = described(*record), read_ = std::move(*record);
  return seen;
}

void Writer::close(WorkerLine line) {
  const SlotSeen seen = look_into(lines_.at(line));
  feed(LineClosed{line, seen});
  if (seen.state == SlotState::sealed && seen.save && simulation_.slot_lines_.at(line).is_filling)
    simulation_.see(SealedSlotLeft{id_, seen.save->save.root, seen.save->save.fence, seen.save->save.step, seen.save->rank});
  if (seen.state == SlotState::filling && seen.save)
    simulation_.see(FillingSlotLeft{id_, seen.save->save.root, seen.save->save.fence, seen.save->save.step, seen.save->rank});
  lines_.erase(line);
}

void Writer::answered(std::uint64_t connection, const StoreReply& reply) {
  const auto calls = replies_.find(connection);
  if (calls == replies_.end() || !calls->second.contains(reply.id)) return;
  calls->second.at(reply.id) = reply;
  look_at_all();
}

void Writer::look(std::uint64_t task) {
  if (const auto at = tasks_.find(task); at != tasks_.end()) at->second->look();
}

void Writer::look_at_all() {
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, task] : tasks_) numbers.push_back(number);
  for (const std::uint64_t number : numbers) look(number);
}

void Writer::read_all() {
  reads_all_ = false;
  if (machine_.has_settled()) feed(AllIsRead{});
}

void Writer::feed(const WriterEvent& event) {
  for (const WriterAction& action : machine_.on(event, simulation_.local(id_))) std::visit([this](const auto& a) { perform(a); }, action);
  if (machine_.has_settled() && !std::exchange(reads_all_, true)) simulation_.happen(simulation_.now_, id_, WriterReadsAll{});
  simulation_.see(SlotsHeld{id_, slots_held(), simulation_.agents_.at(agent_).workers});
}

std::uint64_t Writer::slots_held() const {
  std::vector<const SlotView*> all;
  for (const auto& [number, line] : lines_)
    for (const auto& slot : {line.slot, line.came})
      if (slot) all.push_back(slot.get());
  for (const auto& [number, saving] : saves_) all.push_back(saving->slot.get());
  std::sort(all.begin(), all.end());
  return static_cast<std::uint64_t>(std::unique(all.begin(), all.end()) - all.begin());
}

// --- what the machine says ------------------------------------------------------------------------------------------

void Writer::perform(const CloseLine& a) {
  simulation_.tell("{} closes line {}", simulation_.name(id_), a.line.value());
  simulation_.end_slot_line(a.line);
  close(a.line);
}

void Writer::perform(const KeepSlot& a) {
  Line& line = lines_.at(a.line);
  line.slot = std::move(line.came);
}

void Writer::perform(const StartSave& a) {
  auto saving = std::make_shared<Saving>(Saving{a.save, lines_.at(a.line).slot, std::move(read_), a.deadline, a.replaced_by});
  saving->begun_with = hash_of(*saving->slot, saving->record);
  saves_.emplace(a.save, saving);
  const NotedSave noted = noted_save(saving->record);
  simulation_.tell("{} writes rank {}'s part of step {} under fence {}", simulation_.name(id_), saving->record.rank, noted.step,
                   noted.fence);
  simulation_.slot_lines_.at(a.line).is_filling = false;
  simulation_.see(SaveStarted{id_, noted.root, noted.fence, noted.step, saving->record.rank});
  begin_task([this, saving](Task& task) { save(task, *saving); });
}

void Writer::perform(const EndSaveBy& a) { saves_.at(a.save)->deadline = a.deadline; }
void Writer::perform(const ReplaceSave& a) { saves_.at(a.save)->replaced_by = a.by; }
void Writer::perform(const TellOutcome& a) { simulation_.slot_packet(a.line, encode(std::optional{a.outcome})); }

void Writer::perform(const TellSettled& a) {
  simulation_.see(SettledReported{id_, saves_.size()});
  simulation_.slot_packet(a.line, encode(std::optional<SaveOutcome>{}));
}

void Writer::perform(const TellGone& a) {
  simulation_.tell("{} tells that rank {}'s part of step {} never comes", simulation_.name(id_), a.rank, a.save.step);
  simulation_.see(PartGivenUp{id_, a.save.root, a.save.fence, a.save.step, a.rank});
  tell_until_taken([a](Store& store, Deadline deadline) { return tell_gone(store, a.save, a.rank, a.why, deadline); });
}

void Writer::perform(const TellBrokenPromise& a) {
  tell_until_taken([owner = a.owner](Store& store, Deadline deadline) { return tell_broken_promise(store, owner, deadline); });
}

void Writer::perform(const WarnOf& a) { simulation_.tell("{}: {}", simulation_.name(id_), a.text); }

// --- on threads of their own ------------------------------------------------------------------------------------------

void Writer::begin_task(std::function<void(Task&)> body) {
  const std::uint64_t number = ++tasks_made_;
  tasks_.emplace(number, std::make_unique<Task>(*this, number, std::move(body)));
  simulation_.look_at_task(id_, number, Duration{0});
}

void Writer::tell_until_taken(std::function<Result<void>(Store&, Deadline)> word) {
  begin_task([this, word = std::move(word)](Task& task) {
    const LocalClock clock{*this};
    TaskStore store{*this, task, clock};
    for (const Deadline until = Deadline::after(clock.now(), settle_wait);
         !word(store, until).ok() && until.left(clock.now()) > Duration{0};)
      task.sleep(word_pause);
  });
}

void Writer::save(Task& task, Saving& saving) {
  const LocalClock clock{*this};
  TaskStore store{*this, task, clock};
  const Log log{"ckptd", [this](Level, std::string_view line) { simulation_.tell("{}: {}", simulation_.name(id_), line); }};
  test::ForwardingFiles files{*simulation_.storage_, [&](const char*, const Path&) -> Result<void> {
                                task.action();
                                return {};
                              }};
  const SlotSaveHost host{.files = files,
                          .clock = clock,
                          .log = log,
                          .store = store,
                          .sleep = [&](Duration time) { task.sleep(time); },
                          .cancel = [&]() -> std::optional<Failure> {
                            if (!saving.replaced_by) return {};
                            return Failure{Code::generation_over, Remedy::rejoin, "a later start of this job saves by now"};
                          },
                          .deadline = [&] { return saving.deadline; },
                          .acknowledged =
                              [&](const std::string& text) {
                                simulation_.acknowledged(id_, text);
                                store.tell(CheckpointSaved{text});
                              },
                          .operations_at_once = 1};
  saving.outcome = save_slot(*saving.slot, saving.record, host);
  saving.task = task.number();
  simulation_.happen(simulation_.now_, id_, SaveIsOver{task.number()});
}

void Writer::save_is_over(std::uint64_t task) {
  const auto at = std::find_if(saves_.begin(), saves_.end(), [&](const auto& one) { return one.second->task == task; });
  if (at == saves_.end()) return;
  const auto [number, saving] = *at;
  simulation_.tell("{} has written rank {}'s part of step {}: {}", simulation_.name(id_), saving->record.rank, saving->record.step,
                   saving->outcome->failure ? saving->outcome->failure->what : "acknowledged");
  simulation_.see(SaveOver{id_, saving->record.step, saving->record.rank, hash_of(*saving->slot, saving->record) == saving->begun_with,
                           saving->outcome->failure.has_value()});
  saves_.erase(at);
  tasks_.erase(task);
  feed(SaveEnded{number, *std::move(saving->outcome)});
}

}  // namespace elrun::sim
