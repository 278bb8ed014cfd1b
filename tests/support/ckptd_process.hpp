#pragma once
/// \file `elrun ckptd` as a process, between workers and an agent that are played here.

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/staging/slot.hpp"
#include "checkpoint/staging/slot_messages.hpp"
#include "lib/base/pass_descriptors.hpp"
#include "lib/link/message.hpp"
#include "lib/link/store_core.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/spawn.hpp"
#include "tests/support/temporary_directory.hpp"

extern char** environ;

namespace elrun::test {

inline sockaddr_un address_of(const Path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.native().size() + 1);
  return address;
}

inline Fd listen_at(const Path& path, int type) {
  const sockaddr_un address = address_of(path);
  Fd socket{::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(socket.get(), 16) == 0);
  return socket;
}

/// Has the job's store, and hears what every ckptd says that connects. A thread of its own.
class PlayedAgent {
 public:
  explicit PlayedAgent(const Path& socket) : listener_{listen_at(socket, SOCK_STREAM)} {
    begin({1, {{1, 2}}});
    thread_ = std::thread{[this] { run(); }};
  }
  ~PlayedAgent() {
    ends_ = true;
    thread_.join();
  }
  PlayedAgent(const PlayedAgent&) = delete;
  PlayedAgent& operator=(const PlayedAgent&) = delete;
  /// Who waits in the store for the generation before hears that it is over.
  void begin(const Generation& generation) {
    const std::lock_guard lock{mutex_};
    generation_ = generation;
    answer(store_.begin_generation(generation_));
  }
  /// What the store holds under this key; empty: nothing.
  [[nodiscard]] std::string value(const std::string& key) {
    const StoreReply held = look(StoreOp::get, key);
    return held.values.empty() ? std::string{} : std::string{as_text(held.values.front())};
  }
  [[nodiscard]] std::int64_t num_keys(const std::string& prefix) { return look(StoreOp::num_keys, prefix).number; }
  [[nodiscard]] std::vector<PartVoted> votes() {
    const std::lock_guard lock{mutex_};
    return votes_;
  }
  /// So many words about a part that will not come are refused, as by a coordinator whose generation has ended.
  void refuse_words(int count) { refusals_ = count; }
  [[nodiscard]] int refusals_left() const { return refusals_; }

 private:
  struct Line {
    std::uint64_t number = 0;
    Fd socket;
    MessageReader reader{};
  };
  void run() {
    while (!ends_) {
      std::vector<pollfd> looks{{listener_.get(), POLLIN, 0}};
      for (const Line& line : lines_) looks.push_back({line.socket.get(), POLLIN, 0});
      (void)::poll(looks.data(), looks.size(), 20);
      const std::lock_guard lock{mutex_};
      auto line = lines_.begin();
      for (std::size_t i = 1; i < looks.size(); ++i) {
        const auto here = line++;
        if (looks[i].revents != 0 && !hear(*here)) lines_.erase(here);
      }
      if (looks[0].revents != 0)
        if (Fd accepted{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)}) lines_.push_back({++last_, std::move(accepted)});
      answer(store_.expire(clock_.now()));
    }
  }
  bool hear(Line& line) {
    std::array<std::byte, 65536> chunk{};
    const ssize_t got = ::recv(line.socket.get(), chunk.data(), chunk.size(), 0);
    if (got <= 0) return false;
    line.reader.feed(ByteSpan{chunk}.first(static_cast<std::size_t>(got)));
    for (;;) {
      auto message = line.reader.next();
      if (!message.ok()) return false;
      if (!*message) return true;
      if (auto* request = std::get_if<StoreRequest>(&**message)) {
        request->generation = generation_;
        if (refusals_ > 0 && request->op == StoreOp::compare_set && request->keys.at(0) == broken_promise_key) {
          --refusals_;
          answer({{StoreCaller{line.number},
                   StoreReply{.id = request->id, .ok = false, .code = Code::generation_over, .what = "not now", .values = {}}}});
          continue;
        }
        answer(store_.call(StoreCaller{line.number}, std::move(*request), clock_.now()));
      } else if (auto* voted = std::get_if<PartVoted>(&**message)) {
        votes_.push_back(std::move(*voted));
      }
    }
  }
  /// As a caller who has no connection.
  StoreReply look(StoreOp op, const std::string& key) {
    const std::lock_guard lock{mutex_};
    StoreRequest request{.id = 1, .op = op, .generation = generation_};
    request.keys = {key};
    for (StoreAnswer& a : store_.call(StoreCaller{0}, std::move(request), clock_.now()))
      if (a.to.value() == 0) return std::move(a.reply);
    store_.forget(StoreCaller{0});
    return {};
  }
  void answer(std::vector<StoreAnswer> answers) {
    for (StoreAnswer& a : answers)
      for (const Line& line : lines_)
        if (line.number == a.to.value()) {
          const ByteVector frame = encode(Message{std::move(a.reply)});
          (void)::send(line.socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
        }
  }

  const SteadyClock clock_;
  const Fd listener_;
  std::list<Line> lines_;
  std::uint64_t last_ = 0;
  std::mutex mutex_;  // of what follows, and of writes to the lines
  Generation generation_{};
  StoreCore store_;
  std::vector<PartVoted> votes_;
  std::atomic<bool> ends_{false};
  std::atomic<int> refusals_{0};
  std::thread thread_;
};

/// The process, killed with this. Workers connect at `socket`; its log goes to the file `log`, or where this process's goes.
class CkptdProcess {
 public:
  CkptdProcess(Path socket, const Path& agent, std::map<std::string, std::string> more = {}, const Path& log = {})
      : socket_{std::move(socket)} {
    more["ELRUN_SOCKET"] = agent.string();
    for (const char* inherited : {"PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"})
      if (const char* value = std::getenv(inherited)) more[inherited] = value;
    std::vector<std::string> variables;
    for (const auto& [name, value] : more) variables.push_back(name + "=" + value);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    std::string program = program_path("elrun"), command = "ckptd";
    char* arguments[] = {program.data(), command.data(), nullptr};
    const Fd listener = listen_at(socket_, SOCK_SEQPACKET);
    posix_spawn_file_actions_t actions;
    REQUIRE(::posix_spawn_file_actions_init(&actions) == 0);
    REQUIRE(::posix_spawn_file_actions_adddup2(&actions, listener.get(), 0) == 0);
    if (!log.empty())
      REQUIRE(::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666) == 0);
    REQUIRE(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environment.data()) == 0);
    (void)::posix_spawn_file_actions_destroy(&actions);
  }
  ~CkptdProcess() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    (void)::waitpid(pid_, nullptr, 0);
  }
  CkptdProcess(const CkptdProcess&) = delete;
  CkptdProcess& operator=(const CkptdProcess&) = delete;
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const Path& socket() const { return socket_; }
  [[nodiscard]] bool lives() const { return ::waitpid(pid_, nullptr, WNOHANG) == 0; }
  /// It has stopped itself since this was asked last.
  [[nodiscard]] bool has_stopped() const {
    int status = 0;
    return ::waitpid(pid_, &status, WUNTRACED | WNOHANG) == pid_ && WIFSTOPPED(status);
  }

 private:
  Path socket_;
  pid_t pid_ = -1;
};

/// A process with its agent, and a job that begins on a root of the real file system.
struct CkptdNode {
  explicit CkptdNode(std::uint32_t world, std::map<std::string, std::string> more = {})
      : job{files, world, 3, small_model(), 1, "run", root}, process{place / "ckptd", place / "agent", std::move(more)} {
    REQUIRE(said(job.start()) == "");
  }

  TemporaryDirectory directory;
  Path place{directory.path()}, root = place / "root";
  PosixFiles files;
  PlayedAgent agent{place / "agent"};
  TestJob job;
  CkptdProcess process;
};

/// One rank's worker, as far as ckptd knows it.
class CkptdWorker {
 public:
  struct Setting {
    std::uint64_t step = 0;
    std::uint64_t rate = 0;
    std::uint32_t keep = 5;
    std::vector<Aux> aux = aux_of_step(1);
  };
  CkptdWorker(const CkptdProcess& process, TestJob& job, std::uint32_t rank, Setting setting) {
    const std::uint64_t step = setting.step;
    fill(job.table, job.held[rank], step);
    record_ = {.run_id = job.leader.run_id,
               .generation = job.leader.generation,
               .rank = rank,
               .world = static_cast<std::uint32_t>(job.ranks.size()),
               .plan = job.leader.plan,
               .model = job.table,
               .directory = job.root.string(),
               .keep = setting.keep,
               .rate = setting.rate,
               .step = step,
               .ownership = job.ranks[0].ownership(),
               .fragments = {},
               .aux = rank == 0 ? std::move(setting.aux) : std::vector<Aux>{}};
    for (Fragment f : job.held[rank].fragments) {
      if (f.replicated) {
        const std::size_t element = f.begin == f.end ? 0 : f.bytes.size() / (f.end - f.begin);
        const auto [begin, end] = slice_of(f.begin, f.end, rank, record_.world);
        f.bytes = f.bytes.subspan((begin - f.begin) * element, (end - begin) * element);
        f.begin = begin, f.end = end, f.replicated = false;
      }
      if (f.begin != f.end) state_.push_back(f);
    }
    layout_ = lay_out_slot(job.table, state_);
    record_.fragments = layout_.fragments;
    encoded_ = encode(record_);
    slot_ = StagingSlot::make(encoded_.size(), layout_.data_bytes).value();
    line_ = Fd{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    const sockaddr_un address = address_of(process.socket());
    REQUIRE(::connect(line_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    const auto word = static_cast<std::byte>(SlotWord::slot);
    const int file = slot_.file();
    REQUIRE(send_with(line_.get(), {&word, 1}, {&file, 1}).ok());
  }
  /// Where ckptd has ended the connection, `outcome` says so.
  void say(SlotWord word) {
    const auto byte = static_cast<std::byte>(word);
    if (::send(line_.get(), &byte, 1, MSG_NOSIGNAL) != 1) REQUIRE(errno == EPIPE);
  }
  void promise() { slot_.promise({record_.generation, record_.rank}); }
  std::span<std::byte> begin() { return slot_.begin(encoded_, layout_.data_bytes); }
  void save() {
    const std::span<std::byte> data = begin();
    say(SlotWord::begin);
    for (std::size_t i = 0; i < state_.size(); ++i)
      std::memcpy(data.data() + layout_.fragments[i].offset, state_[i].bytes.data(), state_[i].bytes.size());
    seal();
  }
  void seal() {
    slot_.seal();
    say(SlotWord::sealed);
  }
  /// `outcome` does not wait.
  [[nodiscard]] bool has_outcome() const {
    pollfd look{line_.get(), POLLIN, 0};
    return ::poll(&look, 1, 0) == 1;
  }
  /// Nothing: ckptd has ended the connection, or said nothing in time.
  std::optional<SaveOutcome> outcome() {
    pollfd look{line_.get(), POLLIN, 0};
    if (::poll(&look, 1, 30'000) != 1) return {};
    ByteVector packet(outcome_packet_max);
    const ssize_t got = ::recv(line_.get(), packet.data(), packet.size(), 0);
    if (got <= 0) return {};
    packet.resize(static_cast<std::size_t>(got));
    return decode_save_outcome(packet).value();
  }
  void die() { line_ = Fd{}; }

 private:
  SlotRecord record_;
  std::vector<Fragment> state_;
  SlotLayout layout_;
  ByteVector encoded_;
  StagingSlot slot_;
  Fd line_;
};

}  // namespace elrun::test
