// The writers of checkpoints, `elrun ckptd`, one a node: who starts and ends them, their lines to workers and to the agent, and what happens to them.

#include <csignal>
#include <utility>

#include "checkpoint/format/records.hpp"
#include "tests/support/sim/program.hpp"
#include "tests/support/sim/simulation.hpp"
#include "tests/support/sim/writer.hpp"

namespace elrun::sim {
namespace {

constexpr std::uint64_t first_connection = std::uint64_t{1} << 32;  // of writers to agents; those below are workers
constexpr Duration start_pause = 1s;                                // as launcher/ckptd/checkpoint_writer.cpp has it

Channel to_writer(ProcessId writer) { return {Channel::Kind::slot_words, writer.value()}; }
Channel to_worker(launcher::WorkerLine line) { return {Channel::Kind::slot_packets, line.value()}; }

}  // namespace

// --- lines of workers -----------------------------------------------------------------------------------------------

// The agent listens, and starts the process when the first worker connects.
std::optional<launcher::WorkerLine> Simulation::open_slot_line(ProcessId worker) {
  const ProcessId agent = workers_.at(worker).agent;
  if (!process(agent).alive) return {};
  const auto before = writer_of_.find(agent);
  ProcessId writer{};
  if (before != writer_of_.end() && process(before->second).alive) {
    writer = before->second;
  } else {
    writer = start_process(Process::Kind::writer, process(agent).host);
    const Instant begins = now_ + random(100ms) + (before == writer_of_.end() ? Duration{0} : start_pause);
    writers_.emplace(writer, std::make_shared<Writer>(*this, writer, agent, begins));
    writer_of_[agent] = writer;
    tell("{} is started", name(writer));
  }
  const launcher::WorkerLine line{++slot_lines_made_};
  slot_lines_.emplace(line, SlotLine{worker, writer});
  say_on_slot_line(line, LineWord::opened);
  return line;
}

// What is said can be read at once: a socket of the same system keeps it.
void Simulation::say_on_slot_line(launcher::WorkerLine line, LineWord word, std::shared_ptr<const SlotView> slot) {
  SlotLine& at = slot_lines_.at(line);
  if (!at.is_open) return;
  if (slot) at.passed.push_back(std::move(slot));
  if (word == LineWord::begin) at.is_filling = true;
  if (word == LineWord::closed) at.is_open = false;
  happen(writers_.at(at.writer)->begins(), at.writer, SlotLineSays{line.value(), word}, to_writer(at.writer));
}

// A worker that is killed when its slot is sealed, and before it could say so.
bool Simulation::dies_at_seal(ProcessId worker) {
  ++seals_;
  if (healed_ || seals_ != profile_.job.crash_at_seal) return false;
  note("crashes when its slot is sealed", worker);
  see(WorkerFailedByItself{worker, workers_.at(worker).generation});
  happen(now_, worker, WorkerExits{{.exit_code = 0, .signal = SIGKILL}});
  return true;
}

void Simulation::slot_packet(launcher::WorkerLine line, ByteVector packet) {
  const SlotLine& at = slot_lines_.at(line);
  if (at.is_open) happen_after(random(100us), at.worker, SlotPacket{line.value(), std::move(packet)}, to_worker(line));
}

// By the writer, or with it.
void Simulation::end_slot_line(launcher::WorkerLine line) {
  SlotLine& at = slot_lines_.at(line);
  if (std::exchange(at.is_open, false)) happen_after(random(100us), at.worker, SlotLineEnds{line.value()}, to_worker(line));
}

void Simulation::close_slot_lines_of(ProcessId worker) {
  for (auto& [line, at] : slot_lines_)
    if (at.worker == worker && at.is_open) {
      if (process(at.writer).alive) say_on_slot_line(line, LineWord::closed);
      at.is_open = false;
    }
}

void Simulation::on(ProcessId id, const SlotLineSays& e) {
  SlotLine& at = slot_lines_.at(launcher::WorkerLine{e.line});
  std::shared_ptr<const SlotView> slot;
  if (e.word == LineWord::slot && !at.passed.empty()) slot = std::move(at.passed.front()), at.passed.pop_front();
  writers_.at(id)->hear(launcher::WorkerLine{e.line}, e.word, std::move(slot));
}

void Simulation::on(ProcessId id, const SlotPacket& e) {
  programs_.at(id)->hear_slot_line(launcher::WorkerLine{e.line}, e.packet);
  look(id);
}

void Simulation::on(ProcessId id, const SlotLineEnds& e) {
  programs_.at(id)->hear_slot_line(launcher::WorkerLine{e.line}, {});
  look(id);
}

void Simulation::on(ProcessId id, const CopyIsMade& e) { programs_.at(id)->make_copy(e.copy); }
void Simulation::on(ProcessId id, const WriterLooks& e) { writers_.at(id)->look(e.task); }
void Simulation::on(ProcessId id, const WriterReadsAll&) { writers_.at(id)->read_all(); }
void Simulation::on(ProcessId id, const SaveIsOver& e) { writers_.at(id)->save_is_over(e.task); }

// --- the agent ------------------------------------------------------------------------------------------------------

std::uint64_t Simulation::connect_to_agent(ProcessId writer) {
  const std::uint64_t connection = first_connection + ++writer_connections_made_;
  writer_connections_.emplace(connection, writer);
  return connection;
}

void Simulation::writer_says(ProcessId writer, std::uint64_t connection, Message message) {
  if (auto* call = std::get_if<StoreRequest>(&message)) see(StoreCalled{writer, {}, *call}), writer_calls_[{connection, call->id}] = *call;
  happen_after(random(100us), writers_.at(writer)->agent(), FromWriter{connection, std::move(message)},
               {Channel::Kind::from_worker, connection});
}

void Simulation::hang_up_on_agent(ProcessId writer, std::uint64_t connection) {
  if (writer_connections_.erase(connection) > 0)
    happen_after(random(100us), writers_.at(writer)->agent(), WriterHangsUp{connection}, {Channel::Kind::from_worker, connection});
}

bool Simulation::answer_writer(ProcessId agent, const launcher::Answer& a) {
  if (a.to < first_connection) return false;
  const auto at = writer_connections_.find(a.to);
  const auto* reply = std::get_if<StoreReply>(&a.message);
  if (at == writer_connections_.end() || reply == nullptr) return true;
  happen_after(random(100us), at->second, WriterReply{a.to, *reply, agents_.at(agent).answers_from}, {Channel::Kind::to_worker, a.to});
  return true;
}

void Simulation::on(ProcessId id, const FromWriter& e) { feed(id, launcher::FromWriter{e.connection, e.message}); }
void Simulation::on(ProcessId id, const WriterHangsUp& e) { feed(id, launcher::WorkerHungUp{e.connection}); }
void Simulation::on(ProcessId id, const WriterReply& e) {
  if (const auto call = writer_calls_.extract({e.connection, e.reply.id}))
    see(StoreAnswered{id, e.answered_by.value_or(id), {}, call.mapped(), e.reply});
  writers_.at(id)->answered(e.connection, e.reply);
}

// --- what happens to it -----------------------------------------------------------------------------------------------

Simulation::AtAction Simulation::writer_action(ProcessId id) {
  if (!process(id).alive) return AtAction::ends;
  ++writer_actions_;
  const std::vector<std::uint64_t>& crashes = profile_.job.writer_crashes_at;
  if (!healed_ && std::find(crashes.begin(), crashes.end(), writer_actions_) != crashes.end()) {
    note(fmt::format("crashes at operation {}", writer_actions_), id);
    end_writer(id, false);
    return AtAction::ends;
  }
  if (interrupted(id)) return process(id).alive ? AtAction::is_paused : AtAction::ends;
  return AtAction::goes_on;
}

void Simulation::end_writer_of(ProcessId agent, bool with_host) {
  if (const auto writer = writer_of_.find(agent); writer != writer_of_.end()) end_writer(writer->second, with_host);
}

void Simulation::end_writer(ProcessId id, bool with_host) {
  if (!process(id).alive) return;
  tell("{} is gone", name(id));
  end_process(id);
  process(id).paused = false;
  writers_.at(id)->end();
  if (with_host) return;
  for (auto& [line, at] : slot_lines_)
    if (at.writer == id) end_slot_line(line);
  std::vector<std::uint64_t> connections;
  for (const auto& [connection, writer] : writer_connections_)
    if (writer == id) connections.push_back(connection);
  for (const std::uint64_t connection : connections) hang_up_on_agent(id, connection);
}

// COMMIT was there when it was said.
void Simulation::acknowledged(ProcessId by, const std::string& text) {
  const auto record = decode_acknowledgement(as_bytes(text), "what was acknowledged");
  if (!record.ok()) return differ(fmt::format("{} acknowledges what nobody can read: {}", name(by), record.failure().what));
  const Path commit = Path{record->directory} / "ckpt" / to_string(record->id) / "COMMIT";
  const std::vector<Path> files = storage_->all_files();
  const bool is_committed = std::find(files.begin(), files.end(), commit) != files.end();
  tell("{} acknowledges the checkpoint of step {} under fence {}", name(by), record->id.step, record->id.fence);
  see(CheckpointAcknowledged{by, record->id.fence, record->id.step, is_committed});
}

}  // namespace elrun::sim
