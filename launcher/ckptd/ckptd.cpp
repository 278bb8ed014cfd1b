/// The idea: one thread polls the workers' connections, reads words and slots, and does what the WriterMachine decides; each save has a thread of its own, which blocks in the storage
/// and in the store.

#include "launcher/ckptd/ckptd.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/staging/save_keys.hpp"
#include "checkpoint/staging/slot.hpp"
#include "checkpoint/staging/slot_messages.hpp"
#include "checkpoint/staging/slot_save.hpp"
#include "checkpoint/storage/token_bucket.hpp"
#include "launcher/ckptd/agent_store.hpp"
#include "launcher/ckptd/writer_machine.hpp"
#include "launcher/report/endings.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/files.hpp"
#include "lib/base/pass_descriptors.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/base/timed_files.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::size_t connections_max = 4096;
constexpr Duration store_word_wait = 5s;  // for the store to take a word about a part that will not come
constexpr Duration word_here_wait = 1s;   // likewise, where no thread can be started and all workers wait for it
constexpr Duration word_pause = 100ms;    // before the store is told again
constexpr Duration pace_look = 100ms;     // whether a save that waits for its bytes still goes on
constexpr unsigned writers = 2;           // threads of a save: one sums while the other waits for the storage
// A checkpoint may take its time, and a step may not: what trains on this node gets processors and disks first. So a save costs training nothing where a core is free, and little
// where none is. Threads inherit both.
constexpr int niceness = 10;
constexpr int io_idle = 3 << 13;  // IOPRIO_CLASS_IDLE; linux/ioprio.h is not everywhere

constexpr const char* no_memory = "there is no memory for it on this node";
const char* words_of(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? no_memory : error.what();
}

/// One save of one slot, on its thread.
struct RunningSave {
  WorkerLine line{};
  std::shared_ptr<const SlotView> slot;
  SlotRecord record;
  std::atomic<Instant> deadline;
  std::atomic<bool> hurries{false};         ///< Training waits for it: no bound on bytes per second holds.
  std::atomic<FenceNumber> replaced_by{0};  ///< A later start saves under this fence; 0: none does.
  SaveOutcome outcome{};
  std::atomic<bool> is_over{false};
  std::thread thread{};
};

struct Connection {
  WorkerLine line{};
  Fd socket{};
  std::shared_ptr<const SlotView> slot{};  ///< Mapped once for all saves: page by page that costs as much as a checksum.
  std::shared_ptr<const SlotView> came{};  ///< Until the machine has said that it is kept.
};

SlotSave described(const SlotRecord& record) { return {record.directory, noted_save(record), record.rank}; }

// Conducts: what comes from workers and saves goes to WriterMachine, which decides, and each of its actions has a `perform`. So there are more than 25 methods.
class Ckptd {
 public:
  Ckptd(Path agent, StorageLimits limits, const Clock& clock, const Log& log)
      : agent_{std::move(agent)},
        clock_{clock},
        log_{log},
        files_{std::make_shared<PosixFiles>([log](const std::string& note) { log.info(note); }), limits},
        save_ended_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {}

  int run() {
    if (!save_ended_) return exit_code::internal;
    for (;;) {
      try {
        if (!take_turn()) return exit_code::internal;
      } catch (const std::exception& error) {  // std::bad_alloc: what is not read yet is there in the next turn
        log_.warning(fmt::format("there is no memory for a turn, which is tried again: {}", error.what()));
        std::this_thread::sleep_for(100ms);
      }
    }
  }

 private:
  /// What has come since the turn before, or waits until something does. False: it cannot wait any more.
  bool take_turn() {
    std::vector<pollfd> looks{{STDIN_FILENO, POLLIN, 0}, {save_ended_.get(), POLLIN, 0}};
    for (const Connection& c : connections_) looks.push_back({c.socket.get(), POLLIN, 0});
    const int ready = ::poll(looks.data(), looks.size(), machine_.has_settled() ? 0 : -1);
    if (ready < 0) return errno == EINTR;
    if (ready == 0) return feed(AllIsRead{}), true;
    if (looks[1].revents != 0) finish_saves();
    auto connection = connections_.begin();
    for (std::size_t i = 2; i < looks.size(); ++i) {
      const auto here = connection++;
      if (looks[i].revents != 0 && !hear(*here)) hang_up(here);
    }
    if (looks[0].revents != 0) accept();
    return true;
  }

  void accept() {
    for (;;) {
      auto accepted = accept_one(STDIN_FILENO);
      if (!accepted.ok()) return std::this_thread::sleep_for(100ms);  // no descriptor is free: not at full speed
      if (!*accepted) return;
      ucred peer{};
      socklen_t size = sizeof peer;
      if (::getsockopt((*accepted)->get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != ::geteuid()) continue;
      if (connections_.size() >= connections_max) continue;
      connections_.push_back({.line = WorkerLine{++last_line_}, .socket = std::move(**accepted)});
      feed(LineOpened{connections_.back().line});
    }
  }

  /// False: this connection is over. Its worker sees that, and tells the others that its part will not come.
  bool hear(Connection& from) {
    try {
      return take_word(from);
    } catch (const std::exception& error) {  // std::bad_alloc: one save fails, and no other
      log_.warning(fmt::format("a worker's save is given up: {}", error.what()));
      return false;
    }
  }
  bool take_word(Connection& from) {
    std::array<std::byte, 1> packet{};
    std::array<Fd, 1> files;
    if (const auto got = receive_with(from.socket.get(), packet, files); !got.ok()) return false;
    const auto word = parse_slot_word(packet);
    if (!word) return false;
    switch (*word) {
      case SlotWord::slot: return take_slot(from, std::move(files[0]));
      case SlotWord::begin: return feed(SlotBegun{from.line});
      case SlotWord::sealed: return feed(SlotSealed{from.line, sealed(from)});
      case SlotWord::hurry: return feed(WorkerHurries{from.line});
      case SlotWord::settle: return feed(WorkerSettles{from.line, all_slots()});
    }
    return false;
  }

  bool take_slot(Connection& from, Fd file) {
    SlotCame came{.line = from.line, .has_file = static_cast<bool>(file)};
    if (file) {
      auto view = SlotView::open(std::move(file));
      if (view.ok()) from.came = std::make_shared<const SlotView>(std::move(view).value());
      else came.why_not = std::move(view).failure();
    }
    return feed(came);
  }

  Result<SlotSave> sealed(const Connection& from) {
    if (!from.slot) return Failure{Code::protocol, Remedy::retry, "there is no staging slot"};
    ELRUN_TRY_ASSIGN(read_, from.slot->record(SlotState::sealed));
    return described(read_);
  }
  /// What its slot says at the moment.
  SlotSeen look(const Connection& at) {
    const auto head = at.slot ? at.slot->prefix() : Result<SlotPrefix>{SlotPrefix{}};
    if (!head.ok()) return {};
    SlotSeen seen{.state = head->state, .owner = head->owner};
    if (seen.state != SlotState::filling && seen.state != SlotState::sealed) return seen;
    if (auto record = at.slot->record(seen.state); record.ok()) read_ = std::move(*record), seen.save = described(read_);
    else seen.trouble = message(record.failure());
    return seen;
  }
  std::vector<SlotSeen> all_slots() {
    std::vector<SlotSeen> all;
    for (const Connection& c : connections_) all.push_back(look(c));
    return all;
  }

  /// The worker is gone, or says what nobody says.
  void hang_up(std::list<Connection>::iterator connection) {
    try {
      feed(LineClosed{connection->line, look(*connection)});
    } catch (const std::exception& error) {  // std::bad_alloc
      log_.warning(fmt::format("what a worker that is gone was saving is given up: {}", error.what()));
    }
    connections_.erase(connection);
  }

  // --- what the machine says ---
  /// False: the connection of the event is over.
  bool feed(const WriterEvent& event) {
    bool goes_on = true;
    for (WriterAction& action : machine_.on(event, clock_.now())) {
      goes_on &= !std::holds_alternative<CloseLine>(action);
      std::visit([this](auto& a) { perform(a); }, action);
    }
    return goes_on;
  }
  static void perform(const CloseLine&) {}  // by who fed the event
  void perform(const KeepSlot& a) {
    Connection& at = *connection_of(a.line);
    at.slot = std::move(at.came);
  }
  void perform(const StartSave& a) {
    RunningSave* save = nullptr;
    try {
      std::unique_ptr<RunningSave> made{new RunningSave{.slot = {}, .record = {}, .deadline = a.deadline}};
      save = saves_.emplace(a.save, std::move(made)).first->second.get();
    } catch (const std::exception&) {  // std::bad_alloc: the machine knows of the save, so it has to hear of its end
      RunningSave none{.slot = {}, .record = std::move(read_), .deadline = a.deadline};
      give_up(none, no_memory, word_here_wait);
      feed(SaveEnded{a.save, std::move(none.outcome)});
      return;
    }
    RunningSave& it = *save;
    it.line = a.line;
    it.slot = connection_of(a.line)->slot;
    it.record = std::move(read_);
    it.hurries = a.hurries;
    it.replaced_by = a.replaced_by.value_or(0);
    try {
      it.thread = quiet_thread([this, &it] { write(it); });
    } catch (const std::exception& error) {  // std::system_error: no thread can be started
      give_up(it, words_of(error), word_here_wait);
    }
  }
  void perform(const EndSaveBy& a) { saves_.at(a.save)->deadline = a.deadline; }
  void perform(const HurrySave& a) { saves_.at(a.save)->hurries = true; }
  void perform(const ReplaceSave& a) { saves_.at(a.save)->replaced_by = a.by; }
  void perform(const ForgetBytes&) {
    const std::lock_guard lock{pace_mutex_};
    bucket_.forget(clock_.now());
  }
  void perform(const TellOutcome& a) { send(a.line, a.outcome); }
  void perform(const TellSettled& a) { send(a.line, std::nullopt); }
  void perform(const TellGone& a) {
    tell_beside([a](Store& store, Deadline deadline) { return tell_gone(store, a.save, a.rank, a.why, deadline); });
  }
  void perform(const TellBrokenPromise& a) {
    tell_beside([owner = a.owner](Store& store, Deadline deadline) { return tell_broken_promise(store, owner, deadline); });
  }
  void perform(const WarnOf& a) const { log_.warning(a.text); }

  [[nodiscard]] std::list<Connection>::iterator connection_of(WorkerLine line) {
    return std::find_if(connections_.begin(), connections_.end(), [&](const Connection& c) { return c.line == line; });
  }
  void send(WorkerLine line, const std::optional<SaveOutcome>& outcome) {
    const ByteVector packet = encode(outcome);
    if (const auto to = connection_of(line); to != connections_.end())
      (void)::send(to->socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // On the save's thread.
  void write(RunningSave& it) {
    try {
      it.outcome = outcome_of(it);
    } catch (const std::exception& error) {  // std::bad_alloc: one save fails, and no other
      return give_up(it, words_of(error), store_word_wait);
    }
    it.is_over = true;
    wake();
  }
  SaveOutcome outcome_of(RunningSave& it) {
    AgentStore store{clock_, agent_};
    const SlotSaveHost host{.files = files_,
                            .clock = clock_,
                            .log = log_,
                            .store = store,
                            .sleep = [](Duration time) { std::this_thread::sleep_for(time); },
                            .cancel = [&it] { return why_over(it); },
                            .deadline = [&it] { return it.deadline.load(); },
                            .acknowledged = [&store](const std::string& text) { store.tell(CheckpointSaved{text}); },
                            .voted =
                                [&store, &it](const PartVote& vote, Duration took) {
                                  std::uint64_t bytes = 0;
                                  for (const SlotFragment& f : it.record.fragments) bytes += f.bytes;
                                  store.tell(PartVoted{it.record.step, it.record.rank, bytes, took, vote.refusal});
                                },
                            .writing = {.threads = writers, .pace = [this, &it](std::uint64_t bytes) { return pace(it, bytes); }}};
    return save_slot(*it.slot, it.record, host);
  }

  [[nodiscard]] static std::optional<Failure> why_over(const RunningSave& it) {
    const FenceNumber newest = it.replaced_by;
    if (newest == 0) return {};
    return Failure{Code::generation_over, Remedy::rejoin, fmt::format("a later start of this job saves under fence {} by now", newest)};
  }

  /// On a thread that writes: until these bytes are within what this node may write.
  Result<void> pace(const RunningSave& it, std::uint64_t bytes) {
    const Instant until = [&] {
      const std::lock_guard lock{pace_mutex_};
      bucket_.set_rate(Bytes{it.hurries ? 0 : it.record.rate});
      const Instant now = clock_.now();
      return now + bucket_.take(bytes, now);
    }();
    for (Instant now = clock_.now(); now < until && !it.hurries; now = clock_.now()) {
      if (auto why = why_over(it)) return *std::move(why);
      if (now >= it.deadline.load())
        return Failure{
            Code::deadline_passed, Remedy::fix_config,
            fmt::format("the save was not over in time, for no more than {} bytes per second may be written (CheckpointOptions::rate)",
                        it.record.rate)};
      std::this_thread::sleep_for(std::min<Duration>(until - now, pace_look));
    }
    return {};
  }

  /// This part will not come: its worker hears that, and for `wait` at most it is tried to tell the writers of the other ranks, which would wait for it until the save's deadline.
  void give_up(RunningSave& it, const char* error, Duration wait) const {
    it.outcome =
        SaveOutcome{it.record.ownership.fence, it.record.step, {}, Failure{.code = Code::exhausted, .remedy = Remedy::retry, .what = {}}};
    try {
      Failure& why = *it.outcome.failure;
      why.rank = Rank{it.record.rank};
      why.what = fmt::format("elrun ckptd could not write the checkpoint: {}", error);
      AgentStore store{clock_, agent_};
      (void)tell_gone(store, noted_save(it.record), it.record.rank, why, Deadline::after(clock_.now(), wait));
    } catch (const std::exception&) {  // std::bad_alloc: the worker hears of it in any case
    }
    it.is_over = true;
    wake();
  }

  void finish_saves() {
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(save_ended_.get(), &count, sizeof count);
    for (auto save = saves_.begin(); save != saves_.end();) {
      RunningSave& it = *save->second;
      if (!it.is_over) {
        ++save;
        continue;
      }
      if (it.thread.joinable()) it.thread.join();
      try {
        feed(SaveEnded{save->first, std::move(it.outcome)});
      } catch (const std::exception&) {  // std::bad_alloc: its worker looks itself what became of the save, once the connection is over
        if (const auto to = connection_of(it.line); to != connections_.end()) hang_up(to);
      }
      save = saves_.erase(save);
    }
  }

  /// Until the store has it. Where the death of a worker ends its generation, the store answers again in the next one, and the others wait for the word until then.
  void tell_beside(const std::function<Result<void>(Store&, Deadline)>& word) const {
    const auto tell = [agent = agent_, word](Duration wait) {
      const SteadyClock clock;
      const Deadline until = Deadline::after(clock.now(), wait);
      for (bool is_told = false; !is_told;) {
        try {
          AgentStore store{clock, agent};
          while (!(is_told = word(store, until).ok()) && until.left(clock.now()) > Duration{0}) std::this_thread::sleep_for(word_pause);
        } catch (const std::exception&) {  // std::bad_alloc: tried again, as where the store does not answer
        }
        if (until.left(clock.now()) <= Duration{0}) return;
        if (!is_told) std::this_thread::sleep_for(word_pause);
      }
    };
    try {
      quiet_thread([tell] { tell(settle_wait); }).detach();
    } catch (const std::exception&) {  // no thread can be started, or there is no memory for one
      tell(word_here_wait);
    }
  }

  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = ::write(save_ended_.get(), &one, sizeof one);
  }

  const Path agent_;
  const Clock& clock_;
  const Log& log_;
  TimedFiles files_;     // one for all saves: as long as an operation is stuck all of them fail at once
  const Fd save_ended_;  // a save is over
  WriterMachine machine_;
  SlotRecord read_{};  // from a slot, for the event at hand: a save that it starts takes it
  std::list<Connection> connections_;
  std::uint64_t last_line_ = 0;
  std::map<SaveNumber, std::unique_ptr<RunningSave>> saves_;
  std::mutex pace_mutex_;
  TokenBucket bucket_;  // of all saves of this node
};

}  // namespace

int run_ckptd(const Variables& environment, const Clock& clock, LogStream& lines) {
  const Log log{lines, "elrun ckptd"};
  const auto agent = environment.find("ELRUN_SOCKET");
  if (agent == environment.end() || agent->second.empty()) {
    log.error("this is no command for people: an agent of elrun starts it for its workers (ELRUN_SOCKET is not set)");
    return exit_code::usage;
  }
  (void)::prctl(PR_SET_NAME, "elrun-ckptd");       // as `ps` shows it: it was executed by way of /proc
  (void)::setpriority(PRIO_PROCESS, 0, niceness);  // what trains comes first; refused: it writes as anybody
  (void)::syscall(SYS_ioprio_set, 1, 0, io_idle);
  const auto limit = environment.find("ELRUN_STORAGE_LIMIT");
  const auto limits = storage_limits(limit == environment.end() ? "" : limit->second);
  if (!limits.ok()) log.warning(message(limits.failure()));  // the workers end with it
  return Ckptd{agent->second, limits.ok() ? *limits : StorageLimits{}, clock, log}.run();
}

}  // namespace elrun::inline v0::launcher
