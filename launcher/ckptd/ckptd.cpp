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
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/staging/slot.hpp"
#include "checkpoint/staging/slot_messages.hpp"
#include "checkpoint/staging/slot_save.hpp"
#include "launcher/ckptd/agent_store.hpp"
#include "launcher/report/endings.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/pass_descriptors.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::size_t connections_max = 4096;
constexpr Duration settle_wait = 60s;     // for a save whose generation is over: its slots are there by now, or never come
constexpr Duration store_word_wait = 5s;  // for the store to take a word about a worker that died
constexpr int niceness = 10;
constexpr int io_idle = 3 << 13;  // IOPRIO_CLASS_IDLE; linux/ioprio.h is not everywhere

/// One save of one slot, on its thread.
struct RunningSave {
  std::uint64_t connection = 0;
  SlotView slot;
  SlotRecord record;
  std::atomic<Instant> deadline;
  SaveOutcome outcome{};
  std::atomic<bool> is_over{false};
  std::thread thread{};
};

struct Connection {
  std::uint64_t number = 0;
  Fd socket{};
  std::optional<SlotView> slot{};  ///< Until it is given to a save; the descriptor is kept for the next one.
  Fd file{};
  bool is_filling = false, settles = false;
};

class Ckptd {
 public:
  Ckptd(Path agent, const Clock& clock, const Log& log)
      : agent_{std::move(agent)}, clock_{clock}, log_{log}, told_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {}

  int run() {
    if (!told_) return exit_code::internal;
    for (;;) {
      std::vector<pollfd> looks{{STDIN_FILENO, POLLIN, 0}, {told_.get(), POLLIN, 0}};
      for (const Connection& c : connections_) looks.push_back({c.socket.get(), POLLIN, 0});
      if (::poll(looks.data(), looks.size(), -1) < 0 && errno != EINTR) return exit_code::internal;
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

  /// False: this connection is over.
  bool hear(Connection& from) {
    std::array<std::byte, 1> packet{};
    std::array<Fd, 1> files;
    if (const auto got = receive_with(from.socket.get(), packet, files); !got.ok()) return false;
    const auto word = parse_slot_word(packet);
    if (!word) return false;
    switch (*word) {
      case SlotWord::slot: from.file = std::move(files[0]); return bool{from.file};
      case SlotWord::begin: return begin(from);
      case SlotWord::sealed: return start_save(from);
      case SlotWord::settle: settle(from); return true;
    }
    return false;
  }

  /// Why it is said on both sides: a worker that dies between the two has no save, and the others have to know.
  bool begin(Connection& from) {
    if (is_saving(from.number)) return false;
    auto view = view_of(from);
    if (!view.ok()) return refuse(view.failure());
    from.slot = std::move(view).value();
    from.is_filling = true;
    return true;
  }

  Result<SlotView> view_of(const Connection& of) const {
    Fd copy{::fcntl(of.file.get(), F_DUPFD_CLOEXEC, 3)};
    if (!copy) return from_errno(errno, "look at a staging slot");
    return SlotView::open(std::move(copy));
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
    newest_fence_.store(std::max(newest_fence_.load(), record->ownership.fence));
    std::unique_ptr<RunningSave> save{new RunningSave{
        .connection = from.number, .slot = std::move(*from.slot), .record = std::move(*record), .deadline = clock_.now() + save_deadline}};
    from.slot.reset();
    RunningSave& it = *save;
    saves_.push_back(std::move(save));
    try {
      it.thread = quiet_thread([this, &it] { write(it); });
    } catch (const std::system_error& error) {
      fail(it, error.what());
    }
    return true;
  }

  // On the save's thread.
  void write(RunningSave& it) {
    AgentStore store{clock_, agent_};
    PosixFiles files;
    const std::uint64_t fence = it.record.ownership.fence;
    const SlotSaveHost host{.files = files,
                            .clock = clock_,
                            .log = log_,
                            .store = store,
                            .sleep = [](Duration time) { std::this_thread::sleep_for(time); },
                            .cancel = [this, fence]() -> std::optional<Failure> {
                              if (newest_fence_.load() <= fence) return {};
                              return Failure{Code::generation_over, Remedy::rejoin,
                                             fmt::format("a later start of this job saves under fence {} by now", newest_fence_.load())};
                            },
                            .deadline = [&it] { return it.deadline.load(); },
                            .acknowledged = [&store](const std::string& text) { store.tell(CheckpointSaved{text}); },
                            .old_keys = it.record.rank == 0 ? &old_keys_ : nullptr};
    try {
      it.outcome = save_slot(it.slot, it.record, host);
    } catch (const std::exception& error) {  // std::bad_alloc: one save fails, and no other
      (void)tell_gone(store, {fence, it.record.step}, it.record.rank, Failure{Code::exhausted, Remedy::retry, error.what()},
                      Deadline::after(clock_.now(), store_word_wait));  // the others do not wait for it
      return fail(it, error.what());
    }
    it.is_over = true;
    wake();
  }
  void fail(RunningSave& it, const std::string& why) const {
    it.outcome = SaveOutcome{it.record.ownership.fence,
                             it.record.step,
                             {},
                             Failure{.code = Code::exhausted,
                                     .remedy = Remedy::retry,
                                     .what = "elrun ckptd could not write the checkpoint: " + why,
                                     .rank = Rank{it.record.rank}}};
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
    tell_settled();
  }

  static void send(const Connection& to, const std::optional<SaveOutcome>& outcome) {
    const ByteVector packet = encode(outcome);
    (void)::send(to.socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void settle(Connection& from) {
    from.settles = true;
    const Instant by = clock_.now() + settle_wait;
    for (const auto& save : saves_) save->deadline = std::min(save->deadline.load(), by);
    tell_settled();
  }
  void tell_settled() {
    if (!saves_.empty()) return;
    for (Connection& c : connections_)
      if (std::exchange(c.settles, false)) send(c, std::nullopt);
  }

  [[nodiscard]] bool is_saving(std::uint64_t connection) const {
    return std::any_of(saves_.begin(), saves_.end(), [&](const auto& save) { return save->connection == connection; });
  }

  /// The worker is gone. What it has sealed is saved; what it has not, others wait for in vain.
  void hang_up(std::list<Connection>::iterator connection) {
    if (connection->is_filling && connection->slot) {
      const auto head = connection->slot->prefix();
      if (head.ok() && head->state == SlotState::sealed) start_save(*connection);
      else tell_gone_of(*connection->slot);
    }
    connections_.erase(connection);
  }

  void tell_gone_of(const SlotView& slot) {
    auto record = slot.record(SlotState::filling);
    if (!record.ok()) return;
    quiet_thread([agent = agent_, rank = record->rank, fence = record->ownership.fence, step = record->step] {
      const SteadyClock clock;
      AgentStore store{clock, agent};
      (void)tell_gone(
          store, {fence, step}, rank,
          Failure{Code::peer_lost, Remedy::retry, "this worker ended before its part of the checkpoint was in its staging slot"},
          Deadline::after(clock.now(), store_word_wait));
    }).detach();
  }

  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = ::write(told_.get(), &one, sizeof one);
  }

  const Path agent_;
  const Clock& clock_;
  const Log& log_;
  const Fd told_;  // a save is over
  std::list<Connection> connections_;
  std::uint64_t last_connection_ = 0;
  std::list<std::unique_ptr<RunningSave>> saves_;
  std::atomic<FenceNumber> newest_fence_{0};
  std::vector<std::string> old_keys_;  // of the leader's saves, of which one runs at a time
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
  return Ckptd{agent->second, clock, log}.run();
}

}  // namespace elrun::inline v0::launcher
