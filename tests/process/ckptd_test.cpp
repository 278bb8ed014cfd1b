// `elrun ckptd` as a process, between workers and an agent that are played here: who dies when, what is said to whom, what it may take, and what a storage that hangs
// costs.

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "checkpoint/staging/slot.hpp"
#include "checkpoint/staging/slot_messages.hpp"
#include "checkpoint/staging/slot_save.hpp"
#include "launcher/ckptd/last_minutes.hpp"
#include "lib/base/pass_descriptors.hpp"
#include "lib/link/message.hpp"
#include "lib/link/store_core.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/spawn.hpp"
#include "tests/support/temporary_directory.hpp"

extern char** environ;

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

namespace {

sockaddr_un address_of(const Path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.native().size() + 1);
  return address;
}

Fd listen_at(const Path& path, int type) {
  const sockaddr_un address = address_of(path);
  Fd socket{::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(socket.get(), 16) == 0);
  return socket;
}

/// Has the job's store, and hears what ckptd says. A thread of its own.
class Agent {
 public:
  explicit Agent(const Path& socket) : listener_{listen_at(socket, SOCK_STREAM)} {
    (void)store_.begin_generation(generation_);
    thread_ = std::thread{[this] { run(); }};
  }
  ~Agent() {
    ends_ = true;
    thread_.join();
  }
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
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
        if (refusals_ > 0 && request->op == StoreOp::set && request->keys.at(0).find("/promised/") != std::string::npos) {
          --refusals_;
          answer({{StoreCaller{line.number},
                   StoreReply{.id = request->id, .ok = false, .code = Code::generation_over, .what = "not now", .values = {}}}});
          continue;
        }
        answer(store_.call(StoreCaller{line.number}, std::move(*request), clock_.now()));
      } else if (auto* voted = std::get_if<PartVoted>(&**message)) {
        const std::lock_guard lock{mutex_};
        votes_.push_back(std::move(*voted));
      }
    }
  }
  void answer(std::vector<StoreAnswer> answers) {
    for (StoreAnswer& a : answers)
      for (const Line& line : lines_)
        if (line.number == a.to.value()) {
          const ByteVector frame = encode(Message{std::move(a.reply)});
          (void)::send(line.socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
        }
  }

  const Generation generation_{1, {{1, 2}}};
  const SteadyClock clock_;
  const Fd listener_;
  std::list<Line> lines_;
  std::uint64_t last_ = 0;
  StoreCore store_;
  std::mutex mutex_;
  std::vector<PartVoted> votes_;
  std::atomic<bool> ends_{false};
  std::atomic<int> refusals_{0};
  std::thread thread_;
};

/// The process, and a job that begins on a root of the real file system.
struct Node {
  explicit Node(std::uint32_t world, std::map<std::string, std::string> more = {}) : job{files, world, 3, small_model(), 1, "run", root} {
    REQUIRE(said(job.start()) == "");
    more["ELRUN_SOCKET"] = (place / "agent").string();
    for (const char* inherited : {"PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"})
      if (const char* value = std::getenv(inherited)) more[inherited] = value;
    std::vector<std::string> variables;
    for (const auto& [name, value] : more) variables.push_back(name + "=" + value);
    std::vector<char*> environment;
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    std::string program = program_path("elrun"), command = "ckptd";
    char* arguments[] = {program.data(), command.data(), nullptr};
    const Fd listener = listen_at(place / "ckptd", SOCK_SEQPACKET);
    posix_spawn_file_actions_t actions;
    REQUIRE(::posix_spawn_file_actions_init(&actions) == 0);
    REQUIRE(::posix_spawn_file_actions_adddup2(&actions, listener.get(), 0) == 0);
    REQUIRE(::posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments, environment.data()) == 0);
    (void)::posix_spawn_file_actions_destroy(&actions);
  }
  ~Node() {
    if (pid < 0) return;
    ::kill(pid, SIGKILL);
    (void)::waitpid(pid, nullptr, 0);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  [[nodiscard]] bool lives() const { return ::waitpid(pid, nullptr, WNOHANG) == 0; }

  TemporaryDirectory directory;
  Path place{directory.path()}, root = place / "root";
  PosixFiles files;
  Agent agent{place / "agent"};
  TestJob job;
  pid_t pid = -1;
};

/// One rank's worker, as far as ckptd knows it.
class Worker {
 public:
  Worker(Node& node, std::uint32_t rank, std::uint64_t step, std::uint64_t rate = 0, std::vector<Aux> aux = aux_of_step(1))
      : Worker{node, node.job, rank, step, rate, std::move(aux)} {}
  Worker(Node& node, TestJob& job, std::uint32_t rank, std::uint64_t step, std::uint64_t rate = 0, std::vector<Aux> aux = aux_of_step(1)) {
    fill(job.table, job.held[rank], step);
    record_ = {.run_id = job.leader.run_id,
               .generation = job.leader.generation,
               .rank = rank,
               .world = static_cast<std::uint32_t>(job.ranks.size()),
               .plan = job.leader.plan,
               .model = job.table,
               .directory = job.root.string(),
               .keep = 5,
               .rate = rate,
               .step = step,
               .ownership = job.ranks[0].ownership(),
               .fragments = {},
               .aux = rank == 0 ? std::move(aux) : std::vector<Aux>{}};
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
    const sockaddr_un address = address_of(node.place / "ckptd");
    REQUIRE(::connect(line_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    const auto word = static_cast<std::byte>(SlotWord::slot);
    const int file = slot_.file();
    REQUIRE(send_with(line_.get(), {&word, 1}, {&file, 1}).ok());
  }
  void say(SlotWord word) {
    const auto byte = static_cast<std::byte>(word);
    REQUIRE(::send(line_.get(), &byte, 1, MSG_NOSIGNAL) == 1);
  }
  void promise() { slot_.promise({record_.generation, record_.rank}); }
  std::span<std::byte> begin() { return slot_.begin(encoded_, layout_.data_bytes); }
  void save() {
    const std::span<std::byte> data = begin();
    say(SlotWord::begin);
    for (std::size_t i = 0; i < state_.size(); ++i)
      std::memcpy(data.data() + layout_.fragments[i].offset, state_[i].bytes.data(), state_[i].bytes.size());
    slot_.seal();
    say(SlotWord::sealed);
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

/// Within half a minute.
bool comes(const std::function<bool()>& there) {
  for (int looks = 0; looks < 3000; ++looks, std::this_thread::sleep_for(std::chrono::milliseconds{10}))
    if (there()) return true;
  return false;
}

std::string why(const std::optional<SaveOutcome>& outcome) {
  if (!outcome) return "no outcome";
  return outcome->failure ? message(*outcome->failure) : "";
}

}  // namespace

TEST_CASE("what all workers have sealed is saved, and the agent hears of each part", "[ckptd]") {
  Node node{2};
  Worker first{node, 0, 10}, second{node, 1, 10};
  first.save(), second.save();
  second.die();
  CHECK(why(first.outcome()) == "");
  const auto votes = node.agent.votes();
  REQUIRE(votes.size() == 2);
  for (const PartVoted& v : votes) {
    CHECK(v.step == 10);
    CHECK_FALSE(v.refusal);
    CHECK(v.bytes > 0);
  }
  CHECK(votes[0].rank + votes[1].rank == 1);
  TestJob next{node.files, 3, 9, small_model(), 1, "run", node.root};
  const Start start = next.start().value();
  CHECK(start.choice->step == 10);
}

TEST_CASE("a worker that dies while it fills its slot, also before it has said so, costs the others no wait", "[ckptd]") {
  Node node{2};
  Worker first{node, 0, 10}, second{node, 1, 10};
  first.save();
  (void)second.begin();
  SECTION("it had said so") { second.say(SlotWord::begin); }
  SECTION("it had not") {}
  second.die();
  CHECK_THAT(why(first.outcome()),
             Contains("this worker ended before its part of the checkpoint was in its staging slot") && Contains("rank 1"));
}

TEST_CASE("a worker that dies after it has promised to begin, and before it has begun, costs the others no wait", "[ckptd]") {
  Node node{2};
  Worker first{node, 0, 10}, second{node, 1, 10};
  first.save();
  second.promise();
  SECTION("it dies") {
    second.die();
    CHECK_THAT(why(first.outcome()), Contains("before it had begun its part") && Contains("rank 1"));
  }
  SECTION("it dies, and its generation with it, so that the store takes no word before the next one") {
    node.agent.refuse_words(3);
    second.die();
    CHECK_THAT(why(first.outcome()), Contains("before it had begun its part") && Contains("rank 1"));
    CHECK(node.agent.refusals_left() == 0);
  }
  SECTION("it begins after all") {
    second.save();
    CHECK(why(first.outcome()) == "");
  }
}

TEST_CASE("a save of a later generation has its own time and bound on bytes, although an old one settles", "[ckptd]") {
  Node node{2};
  Worker old{node, 0, 10};
  old.save();  // it waits for rank 1
  REQUIRE(comes([&] { return std::filesystem::exists(node.root / "ckpt/s000000000010.g00000001.a01"); }));
  Worker looks{node, 1, 10};
  looks.say(SlotWord::settle);
  TestJob next{node.files, 1, 5, small_model(), 1, "run", node.place / "other"};
  REQUIRE(said(next.start()) == "");
  const auto begun = std::chrono::steady_clock::now();
  Worker later{node, next, 0, 20, 20'000};
  later.save();
  CHECK(why(later.outcome()) == "");
  std::uint64_t bytes = 0;
  for (const PartVoted& v : node.agent.votes())
    if (v.step == 20) bytes += v.bytes;
  const double at_least = static_cast<double>(bytes) / 20'000 - 0.2;
  CHECK(at_least > 0.5);
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() >=
        at_least);  // it does not hurry as the old one does
}

TEST_CASE("a last minute is for saves with the fences that were known when their generation ended, root by root", "[ckptd]") {
  launcher::LastMinutes last;
  CHECK_FALSE(last.has("/ck", 1));
  last.settle("/ck", 3), last.settle("/ck", 2), last.settle("/other", 9);
  for (const FenceNumber fence : {1u, 2u, 3u}) CHECK(last.has("/ck", fence));
  CHECK_FALSE(last.has("/ck", 4));
  CHECK(last.has("/other", 9));
}

TEST_CASE("a save for which there is no memory fails alone: ckptd lives, and the next one succeeds", "[ckptd]") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  WARN("SKIPPED: a sanitizer needs its address space");
#else
  Node node{1};
  Worker small{node, 0, 10};
  small.save();
  REQUIRE(why(small.outcome()) == "");
  Worker large{node, 0, 20, 0, {{"large", ByteVector(100u << 20, std::byte{1})}}};
  std::ifstream status{"/proc/" + std::to_string(node.pid) + "/statm"};
  std::uint64_t pages = 0;
  status >> pages;
  rlimit before{}, tight{};
  REQUIRE(::prlimit(node.pid, RLIMIT_AS, nullptr, &before) == 0);
  tight = {pages * 4096 + (50u << 20), before.rlim_max};  // not for the slot and its record
  REQUIRE(::prlimit(node.pid, RLIMIT_AS, &tight, nullptr) == 0);
  large.save();
  const auto outcome = large.outcome();
  INFO(why(outcome));
  CHECK((!outcome || (outcome->failure && outcome->failure->code == Code::exhausted)));
  REQUIRE(node.lives());
  REQUIRE(::prlimit(node.pid, RLIMIT_AS, &before, nullptr) == 0);
  Worker next{node, 0, 30};
  next.save();
  CHECK(why(next.outcome()) == "");
#endif
}

TEST_CASE("no more bytes per second are written than the job allows, until training waits for the save", "[ckptd]") {
  Node node{2};
  SECTION("the bound is one for all ranks of the node") {
    const auto begun = std::chrono::steady_clock::now();
    Worker first{node, 0, 10, 20'000}, second{node, 1, 10, 20'000};
    first.save(), second.save();
    CHECK(why(first.outcome()) == "");
    std::uint64_t bytes = 0;
    for (const PartVoted& v : node.agent.votes()) bytes += v.bytes;
    const double at_least = static_cast<double>(bytes) / 20'000 - 0.2;
    CHECK(at_least > 0.5);
    CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() >= at_least);
  }
  SECTION("training waits") {
    Worker first{node, 0, 10, 1}, second{node, 1, 10, 1};  // for hours
    first.save(), second.save();
    first.say(SlotWord::hurry), second.say(SlotWord::hurry);
    CHECK(why(first.outcome()) == "");
  }
  SECTION("the generation is over") {
    Worker first{node, 0, 10, 1}, second{node, 1, 10, 1};
    first.save(), second.save();
    second.die();
    first.say(SlotWord::settle);
    CHECK(why(first.outcome()) == "");
  }
}

TEST_CASE("bytes that a save has not written are no debt of the save of the next start", "[ckptd]") {
  Node node{1};
  Worker before{node, 0, 10, 1};  // its first bytes are paid for in hours
  before.save();
  REQUIRE(comes([&] {
    std::error_code none;
    const auto file = node.root / "ckpt/s000000000010.g00000001.a01" / shard_name(0, 1);
    return std::filesystem::file_size(file, none) > 0 && !none;
  }));
  TestJob next{node.files, 1, 4, small_model(), 1, "run", node.root};
  REQUIRE(said(next.start()) == "");
  Worker after{node, next, 0, 20, 1'000'000};
  after.save();
  CHECK_THAT(why(before.outcome()), Contains("a later start of this job saves under fence 2 by now"));
  CHECK(why(after.outcome()) == "");
}

TEST_CASE("a newer fence ends the saves of its own root, and of no other", "[ckptd]") {
  Node node{1};
  TestJob other{node.files, 1, 5, small_model(), 1, "run", node.place / "other"};
  for (int starts = 0; starts < 3; ++starts) REQUIRE(said(other.start()) == "");
  Worker first{node, other, 0, 10}, second{node, 0, 10};
  first.save();
  CHECK(why(first.outcome()) == "");
  second.save();
  CHECK(why(second.outcome()) == "");
}

TEST_CASE("where no thread can be started the save fails with its rank, and nobody waits for that part", "[ckptd]") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  WARN("SKIPPED: a sanitizer needs its address space");
#else
  Node node{2};
  Worker first{node, 0, 10}, second{node, 1, 10};
  first.save();
  REQUIRE(comes([&] { return std::filesystem::exists(node.root / "ckpt/s000000000010.g00000001.a01"); }));  // it has its threads
  rlimit before{}, none{};
  REQUIRE(::prlimit(node.pid, RLIMIT_AS, nullptr, &before) == 0);
  none = {1, before.rlim_max};
  REQUIRE(::prlimit(node.pid, RLIMIT_AS, &none, nullptr) == 0);
  SECTION("of a worker that lives") {
    second.save();
    CHECK_THAT(why(second.outcome()), Contains("elrun ckptd could not write the checkpoint") && Contains("rank 1"));
  }
  SECTION("of a worker that died while it filled its slot") {
    (void)second.begin();
    second.die();
  }
  CHECK_THAT(why(first.outcome()), Contains("rank 1"));
  REQUIRE(::prlimit(node.pid, RLIMIT_AS, &before, nullptr) == 0);
  Worker again{node, 0, 20}, other{node, 1, 20};
  again.save(), other.save();
  CHECK(why(again.outcome()) == "");
#endif
}

TEST_CASE("a file system that writes nothing, and says nothing of it, fails the save", "[ckptd]") {
  const TemporaryDirectory below;
  std::map<std::string, std::string> nothing{
      {"LD_PRELOAD", test_program_path("libelrun_failing_storage.so")}, {"ELRUN_FAIL", "1 0 always"}, {"ELRUN_FAIL_BELOW", below.path()}};
  if (!std::filesystem::exists(nothing["LD_PRELOAD"])) {
    WARN("SKIPPED: " << nothing["LD_PRELOAD"] << " is not built");
    return;
  }
  Node node{1, nothing};
  TestJob job{node.files, 1, 3, small_model(), 1, "run", Path{below.path()} / "root"};
  REQUIRE(said(job.start()) == "");
  Worker worker{node, job, 0, 10};
  worker.save();
  CHECK_THAT(why(worker.outcome()), Contains("has written nothing") && Contains(below.path()));
}

TEST_CASE("who looks for a checkpoint hears that all is settled after what dead workers have sealed, and may have a larger slot then",
          "[ckptd]") {
  Node node{1};
  ::kill(node.pid, SIGSTOP);  // it hears all of this at one time
  Worker before{node, 0, 10, 1};
  before.save();
  before.die();
  Worker after{node, 0, 20, 0, {{"large", ByteVector(4u << 20, std::byte{1})}}};
  after.say(SlotWord::settle);
  ::kill(node.pid, SIGCONT);
  CHECK_FALSE(after.outcome());  // settled
  CHECK(std::filesystem::exists(node.root / "ckpt/s000000000010.g00000001.a01/COMMIT"));
  after.save();
  CHECK(why(after.outcome()) == "");
}

TEST_CASE("a storage that hangs fails the save with rank, file and operation, and the next one may go on when it answers", "[ckptd]") {
  const TemporaryDirectory elsewhere;
  const std::string answers = elsewhere.path() + "/answers";
  std::map<std::string, std::string> hangs{{"LD_PRELOAD", test_program_path("libelrun_failing_storage.so")},
                                           {"ELRUN_FAIL", "15 -1 once"},
                                           {"ELRUN_FAIL_UNTIL", answers},
                                           {"ELRUN_STORAGE_LIMIT", "1"}};
  if (!std::filesystem::exists(hangs["LD_PRELOAD"])) {
    WARN("SKIPPED: " << hangs["LD_PRELOAD"] << " is not built");
    return;
  }
  const TemporaryDirectory below;
  hangs["ELRUN_FAIL_BELOW"] = below.path();
  Node node{2, hangs};
  node.job.root = below.path() + "/root";
  node.job.ranks.clear();
  node.job.add_ranks(2);
  REQUIRE(said(node.job.start()) == "");
  Worker first{node, 0, 10}, second{node, 1, 10};
  first.save(), second.save();
  const std::string words = why(first.outcome());
  CHECK_THAT(words, Contains("the storage hangs") && Contains(below.path()) && Contains("rank ") && Contains("1.0 s"));
  CHECK_THAT(words, Contains("deadline_passed"));
  REQUIRE(second.outcome().has_value());
  Worker again{node, 0, 20}, other{node, 1, 20};
  again.save(), other.save();
  CHECK_THAT(why(again.outcome()), Contains("the storage hangs") && Contains("was not begun"));
  REQUIRE(other.outcome().has_value());
  std::ofstream{answers} << "yes";
  // The stuck call returns at some time after this.
  std::string last = "none";
  for (std::uint64_t step = 30; step <= 330 && !last.empty(); ++step) {
    Worker third{node, 0, step}, fourth{node, 1, step};
    third.save(), fourth.save();
    last = why(third.outcome());
    (void)fourth.outcome();
  }
  CHECK(last == "");
}
