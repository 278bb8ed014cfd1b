/// The idea: one thread polls the workers' connections; each save has a thread of its own, which blocks in the storage and in the store. A slot belongs to
/// the save from its seal until its outcome, so that the death of its worker changes nothing.

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
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/staging/save_words.hpp"
#include "checkpoint/staging/slot.hpp"
#include "checkpoint/staging/slot_messages.hpp"
#include "checkpoint/staging/slot_save.hpp"
#include "checkpoint/storage/token_bucket.hpp"
#include "launcher/ckptd/agent_store.hpp"
#include "launcher/ckptd/last_minutes.hpp"
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
constexpr Duration settle_wait = 60s;     // for a save whose generation is over: its slots are there by now, or never come
constexpr Duration store_word_wait = 5s;  // for the store to take a word about a part that will not come
constexpr Duration word_here_wait = 1s;   // likewise, where no thread can be started and all workers wait for it
constexpr Duration word_pause = 100ms;    // before the store is told again
constexpr Duration pace_look = 100ms;     // whether a save that waits for its bytes still goes on
constexpr unsigned writers = 2;           // threads of a save: one sums while the other waits for the storage
// A checkpoint may take its time, and a step may not: what trains on this node gets processors and disks first. So a save costs training nothing where a core is free, and little
// where none is. Threads inherit both.
constexpr int niceness = 10;
constexpr int io_idle = 3 << 13;  // IOPRIO_CLASS_IDLE; linux/ioprio.h is not everywhere

/// One save of one slot, on its thread.
struct RunningSave {
  std::uint64_t connection = 0;
  std::shared_ptr<const SlotView> slot;
  SlotRecord record;
  std::atomic<Instant> deadline;
  std::atomic<bool> hurries{false};  ///< Training waits for it: no bound on bytes per second holds.
  SaveOutcome outcome{};
  std::atomic<bool> is_over{false};
  std::thread thread{};
};

struct Connection {
  std::uint64_t number = 0;
  Fd socket{};
  std::shared_ptr<const SlotView> slot{};  ///< Mapped once for all saves: page by page that costs as much as a checksum.
  bool is_filling = false, settles = false;
};

class Ckptd {
 public:
  Ckptd(Path agent, StorageLimits limits, const Clock& clock, const Log& log)
      : agent_{std::move(agent)},
        clock_{clock},
        log_{log},
        files_{std::make_shared<PosixFiles>([log](const std::string& note) { log.info(note); }), limits},
        told_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {}

  int run() {
    if (!told_) return exit_code::internal;
    for (;;) {
      std::vector<pollfd> looks{{STDIN_FILENO, POLLIN, 0}, {told_.get(), POLLIN, 0}};
      for (const Connection& c : connections_) looks.push_back({c.socket.get(), POLLIN, 0});
      const bool settles = saves_.empty() && is_settling();
      const int ready = ::poll(looks.data(), looks.size(), settles ? 0 : -1);
      if (ready < 0 && errno != EINTR) return exit_code::internal;
      if (ready <= 0) {
        if (ready == 0) tell_settled();  // and no word is unread, also none of a worker that is gone
        continue;
      }
      if (looks[1].revents != 0) finish_saves();
      auto connection = connections_.begin();
      for (std::size_t i = 2; i < looks.size(); ++i) {
        const auto here = connection++;
        if (looks[i].revents != 0 && !hear(*here)) hang_up(here);
      }
      if (looks[0].revents != 0) accept();
    }
  }

 private:
  void accept() {
    for (;;) {
      auto accepted = accept_one(STDIN_FILENO);
      if (!accepted.ok()) return std::this_thread::sleep_for(100ms);  // no descriptor is free: not at full speed
      if (!*accepted) return;
      ucred peer{};
      socklen_t size = sizeof peer;
      if (::getsockopt((*accepted)->get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != ::geteuid()) continue;
      if (connections_.size() >= connections_max) continue;
      connections_.push_back({.number = ++last_connection_, .socket = std::move(**accepted)});
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
      case SlotWord::begin: return begin(from);
      case SlotWord::sealed: return start_save(from);
      case SlotWord::hurry: hurry(from.number); return true;
      case SlotWord::settle: settle(from); return true;
    }
    return false;
  }

  bool take_slot(Connection& from, Fd file) const {
    if (!file || is_saving(from.number)) return false;
    auto view = SlotView::open(std::move(file));
    if (!view.ok()) return refuse(view.failure());
    from.slot = std::make_shared<const SlotView>(std::move(view).value());
    return true;
  }

  /// Why it is said on both sides: a worker that dies between the two has no save, and the others have to know.
  bool begin(Connection& from) const {
    if (!from.slot || is_saving(from.number)) return false;
    from.is_filling = true;
    return true;
  }

  bool refuse(const Failure& why) const {
    log_.warning(fmt::format("a worker's staging slot is refused: {}", message(why)));
    return false;
  }

  bool start_save(Connection& from) {
    if (!from.slot || !from.is_filling) return false;
    auto record = from.slot->record(SlotState::sealed);
    if (!record.ok()) return refuse(record.failure());
    from.is_filling = false;
    // What a save has taken from the bound on bytes, and has not written, is no debt of the next one.
    if (note_fence(*record) || saves_.empty()) forget_bytes();
    std::unique_ptr<RunningSave> save{new RunningSave{
        .connection = from.number, .slot = from.slot, .record = std::move(*record), .deadline = clock_.now() + save_deadline}};
    RunningSave& it = *save;
    if (is_settling() && last_minutes_.has(it.record.directory, it.record.ownership.fence))
      it.deadline = clock_.now() + settle_wait, it.hurries = true;
    saves_.push_back(std::move(save));
    try {
      it.thread = quiet_thread([this, &it] { write(it); });
    } catch (const std::exception& error) {  // std::system_error: no thread can be started
      give_up(it, error.what(), word_here_wait);
    }
    return true;
  }

  // On the save's thread.
  void write(RunningSave& it) {
    try {
      it.outcome = outcome_of(it);
    } catch (const std::exception& error) {  // std::bad_alloc: one save fails, and no other
      return give_up(it, error.what(), store_word_wait);
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
                            .cancel = [this, &it] { return why_over(it.record); },
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

  /// True: no save of this root had so new a fence. Those with an older one are over.
  bool note_fence(const SlotRecord& record) {
    const std::lock_guard lock{fences_mutex_};
    FenceNumber& newest = newest_fences_[record.directory];
    return std::exchange(newest, std::max(newest, record.ownership.fence)) < record.ownership.fence;
  }
  [[nodiscard]] std::optional<Failure> why_over(const SlotRecord& record) {
    const std::lock_guard lock{fences_mutex_};
    const FenceNumber newest = newest_fences_[record.directory];
    if (newest <= record.ownership.fence) return {};
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
      if (auto why = why_over(it.record)) return *std::move(why);
      if (now >= it.deadline.load())
        return Failure{
            Code::deadline_passed, Remedy::fix_config,
            fmt::format("the save was not over in time, for no more than {} bytes per second may be written (CheckpointOptions::rate)",
                        it.record.rate)};
      std::this_thread::sleep_for(std::min<Duration>(until - now, pace_look));
    }
    return {};
  }

  void hurry(std::uint64_t connection) {
    for (const auto& save : saves_)
      if (save->connection == connection) save->hurries = true;
    forget_bytes();
  }
  void forget_bytes() {
    const std::lock_guard lock{pace_mutex_};
    bucket_.forget(clock_.now());
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
    [[maybe_unused]] const ssize_t got = ::read(told_.get(), &count, sizeof count);
    for (auto save = saves_.begin(); save != saves_.end();) {
      if (!(*save)->is_over) {
        ++save;
        continue;
      }
      if ((*save)->thread.joinable()) (*save)->thread.join();
      const auto to =
          std::find_if(connections_.begin(), connections_.end(), [&](const Connection& c) { return c.number == (*save)->connection; });
      if (to != connections_.end()) send(*to, (*save)->outcome);
      else if ((*save)->outcome.failure)
        log_.warning(fmt::format("the checkpoint of step {} of a worker that is gone could not be saved: {}", (*save)->outcome.step,
                                 message(*(*save)->outcome.failure)));
      save = saves_.erase(save);
    }
  }

  static void send(const Connection& to, const std::optional<SaveOutcome>& outcome) {
    const ByteVector packet = encode(outcome);
    (void)::send(to.socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void settle(Connection& from) {
    from.settles = true;
    for (const auto& save : saves_) last_minutes_.settle(save->record.directory, save->record.ownership.fence);
    for (const Connection& c : connections_) {  // what is being filled, and what was sealed and not said yet
      const auto head = c.slot ? c.slot->prefix() : Result<SlotPrefix>{SlotPrefix{}};
      if (!head.ok() || (head->state != SlotState::filling && head->state != SlotState::sealed)) continue;
      if (const auto record = c.slot->record(head->state); record.ok()) last_minutes_.settle(record->directory, record->ownership.fence);
    }
    const Instant by = clock_.now() + settle_wait;
    for (const auto& save : saves_) {
      save->deadline = std::min(save->deadline.load(), by);
      hurry(save->connection);  // nobody trains meanwhile
    }
  }
  [[nodiscard]] bool is_settling() const {
    return std::any_of(connections_.begin(), connections_.end(), [](const Connection& c) { return c.settles; });
  }
  void tell_settled() {
    for (Connection& c : connections_)
      if (std::exchange(c.settles, false)) send(c, std::nullopt);
  }

  [[nodiscard]] bool is_saving(std::uint64_t connection) const {
    return std::any_of(saves_.begin(), saves_.end(), [&](const auto& save) { return save->connection == connection; });
  }

  /// The worker is gone. What it has sealed is saved; what it has not, others wait for in vain. A slot says by itself that it is being filled, also where its worker died before it could.
  void hang_up(std::list<Connection>::iterator connection) {
    try {
      if (const auto head = connection->slot ? connection->slot->prefix() : Result<SlotPrefix>{SlotPrefix{}}; head.ok()) {
        if (head->state == SlotState::sealed && connection->is_filling) start_save(*connection);
        if (head->state == SlotState::filling) tell_gone_of(*connection->slot);
        if (head->state == SlotState::promised) tell_of_broken_promise(head->owner);
      }
    } catch (const std::exception& error) {  // std::bad_alloc
      log_.warning(fmt::format("what a worker that is gone was saving is given up: {}", error.what()));
    }
    connections_.erase(connection);
  }

  void tell_gone_of(const SlotView& slot) {
    auto record = slot.record(SlotState::filling);
    if (!record.ok()) return;
    tell_beside([rank = record->rank, save = noted_save(*record)](Store& store, Deadline deadline) {
      return tell_gone(
          store, save, rank,
          Failure{Code::peer_lost, Remedy::retry, "this worker ended before its part of the checkpoint was in its staging slot"}, deadline);
    });
  }
  void tell_of_broken_promise(const SlotOwner& owner) {
    tell_beside([owner](Store& store, Deadline deadline) { return tell_broken_promise(store, owner, deadline); });
  }

  /// Until the store has it. Where the death of a worker ends its generation, the store answers again in the next one, and the others wait for the word until then.
  void tell_beside(const std::function<Result<void>(Store&, Deadline)>& word) const {
    const auto tell = [agent = agent_, word](Duration wait) {
      const SteadyClock clock;
      AgentStore store{clock, agent};
      for (const Deadline until = Deadline::after(clock.now(), wait); !word(store, until).ok() && until.left(clock.now()) > Duration{0};)
        std::this_thread::sleep_for(word_pause);
    };
    try {
      quiet_thread([tell] { tell(settle_wait); }).detach();
    } catch (const std::system_error&) {  // no thread can be started
      tell(word_here_wait);
    }
  }

  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = ::write(told_.get(), &one, sizeof one);
  }

  const Path agent_;
  const Clock& clock_;
  const Log& log_;
  TimedFiles files_;  // one for all saves: as long as an operation is stuck all of them fail at once
  const Fd told_;     // a save is over
  std::list<Connection> connections_;
  std::uint64_t last_connection_ = 0;
  std::list<std::unique_ptr<RunningSave>> saves_;
  LastMinutes last_minutes_;
  std::mutex fences_mutex_;
  std::map<std::string, FenceNumber> newest_fences_;  // by checkpoint root: a program may save one job after another
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
