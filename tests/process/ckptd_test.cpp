// `elrun ckptd` as a process, between workers and an agent that are played here: who dies when, what is said to whom, what it may take, and what a storage that hangs
// costs.

#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/staging/slot_messages.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/ckptd_process.hpp"
#include "tests/support/spawn.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

namespace {

using Node = CkptdNode;

struct Worker : CkptdWorker {
  Worker(Node& node, std::uint32_t rank, std::uint64_t step, std::uint64_t rate = 0, std::vector<Aux> aux = aux_of_step(1))
      : Worker{node, node.job, rank, step, rate, std::move(aux)} {}
  Worker(const Node& node, TestJob& job, std::uint32_t rank, std::uint64_t step, std::uint64_t rate = 0,
         std::vector<Aux> aux = aux_of_step(1))
      : CkptdWorker{node.process, job, rank, {.step = step, .rate = rate, .aux = std::move(aux)}} {}
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
  Worker refused{node, 1, 10};
  refused.say(SlotWord::sealed);  // it has begun nothing: ckptd hangs up, and by then it has read the question, for this came later
  CHECK_FALSE(refused.outcome());
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

TEST_CASE("a save for which there is no memory fails alone: ckptd lives, and the next one succeeds", "[ckptd]") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  WARN("SKIPPED: a sanitizer needs its address space");
#else
  Node node{1};
  Worker small{node, 0, 10};
  small.save();
  REQUIRE(why(small.outcome()) == "");
  Worker large{node, 0, 20, 0, {{"large", ByteVector(100u << 20, std::byte{1})}}};
  std::ifstream status{"/proc/" + std::to_string(node.process.pid()) + "/statm"};
  std::uint64_t pages = 0;
  status >> pages;
  rlimit before{}, tight{};
  REQUIRE(::prlimit(node.process.pid(), RLIMIT_AS, nullptr, &before) == 0);
  tight = {pages * 4096 + (50u << 20), before.rlim_max};  // not for the slot and its record
  REQUIRE(::prlimit(node.process.pid(), RLIMIT_AS, &tight, nullptr) == 0);
  large.save();
  const auto outcome = large.outcome();
  INFO(why(outcome));
  CHECK((!outcome || (outcome->failure && outcome->failure->code == Code::exhausted)));
  REQUIRE(node.process.lives());
  REQUIRE(::prlimit(node.process.pid(), RLIMIT_AS, &before, nullptr) == 0);
  Worker next{node, 0, 30};
  next.save();
  CHECK(why(next.outcome()) == "");
#endif
}

TEST_CASE("memory that is refused once costs one save at most", "[ckptd]") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  WARN("SKIPPED: a sanitizer has its own allocator");
#else
  const std::string library = test_program_path("librefused_memory.so");
  // Of all some 250 only those that may be of the save itself, but for a full run.
  const std::string bytes = std::getenv("ELRUN_FULL") != nullptr ? "0" : "256";
  bool is_refused = true, is_told = false;
  for (int number = 1; is_refused; ++number) {
    INFO("allocation " << number << " of " << bytes << " bytes or more");
    TemporaryDirectory directory;
    const Path mark = Path{directory.path()} / "refused";
    Node node{1,
              {{"LD_PRELOAD", library},
               {"ELRUN_REFUSED_ALLOCATION", std::to_string(number)},
               {"ELRUN_REFUSED_BYTES", bytes},
               {"ELRUN_REFUSED_MARK", mark.string()}}};
    Worker refused{node, 0, 10}, asks{node, 0, 30};
    (void)refused.begin();
    refused.say(SlotWord::begin);
    const auto settles = [&] {
      asks.say(SlotWord::settle);
      const bool is_answered = comes([&] { return asks.has_outcome(); });
      CHECK_FALSE(asks.outcome());
      return is_answered && node.process.lives();
    };
    REQUIRE(settles());  // so it has read all that was said
    REQUIRE(::kill(node.process.pid(), SIGUSR1) == 0);
    refused.seal();
    const auto outcome = refused.outcome();
    is_refused = std::filesystem::exists(mark);
    if (outcome && outcome->failure) {
      CHECK(outcome->failure->code == Code::exhausted);
      CHECK_THAT(why(outcome), Contains("rank 0") && Contains("elrun ckptd could not write the checkpoint"));
      is_told |= why(outcome).find("there is no memory for it on this node") != std::string::npos;
    }
    REQUIRE(node.process.lives());
    if (!is_refused) break;
    REQUIRE(settles());
    Worker next{node, 0, 20};
    next.save();
    CHECK(why(next.outcome()) == "");
  }
  CHECK(is_told);
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
  REQUIRE(comes([&] { return node.agent.votes().size() == 1; }));  // its part is written, and needs no memory any more
  rlimit before{}, none{};
  REQUIRE(::prlimit(node.process.pid(), RLIMIT_AS, nullptr, &before) == 0);
  none = {1, before.rlim_max};
  REQUIRE(::prlimit(node.process.pid(), RLIMIT_AS, &none, nullptr) == 0);
  SECTION("of a worker that lives") {
    second.save();
    CHECK_THAT(why(second.outcome()), Contains("elrun ckptd could not write the checkpoint") && Contains("rank 1"));
  }
  SECTION("of a worker that died while it filled its slot") {
    (void)second.begin();
    second.die();
  }
  CHECK_THAT(why(first.outcome()), Contains("rank 1"));
  REQUIRE(::prlimit(node.process.pid(), RLIMIT_AS, &before, nullptr) == 0);
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

TEST_CASE("a start learns that saves are settled only after dead workers' sealed parts are, and may then get a larger slot", "[ckptd]") {
  Node node{1};
  ::kill(node.process.pid(), SIGSTOP);  // it hears all of this at one time
  Worker before{node, 0, 10, 1};
  before.save();
  before.die();
  Worker after{node, 0, 20, 0, {{"large", ByteVector(4u << 20, std::byte{1})}}};
  after.say(SlotWord::settle);
  ::kill(node.process.pid(), SIGCONT);
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

TEST_CASE("one job after another saves on its own root, though fence and step are those of the job before", "[ckptd]") {
  CkptdNode node{2};
  TestJob next{node.files, 2, 5, small_model(), 1, "other", node.place / "other"};
  REQUIRE(said(next.start()) == "");
  for (TestJob* job : {&node.job, &next}) {
    CAPTURE(job->root.string());
    CkptdWorker zero{node.process, *job, 0, {.step = 10}}, one{node.process, *job, 1, {.step = 10}};
    one.save();
    zero.save();
    for (CkptdWorker* worker : {&one, &zero}) {
      const auto outcome = worker->outcome();
      REQUIRE(outcome);
      CHECK(said(outcome->failure ? Result<void>{*outcome->failure} : Result<void>{}) == "");
      const auto record = decode_acknowledgement(as_bytes(outcome->acknowledgement), "it");
      REQUIRE(record.ok());
      CHECK(record->directory == job->root.string());
    }
  }
}

TEST_CASE("who waits for a writer that ended soon after its start, or later without any work, is turned away, and another one is started",
          "[ckptd]") {
  const auto life = GENERATE(0ms, 5500ms);
  CAPTURE(life.count());
  Job agent{{.arguments = {"--no_python", "--nproc_per_node", "1", "/bin/sh", "-c", "echo at $ELRUN_SOCKET.; exec sleep 60"}}};
  const auto line = agent.line("at /");
  REQUIRE(line);
  const std::size_t begin = line->find("at /") + 3;
  const Path socket = Path{line->substr(begin, line->rfind('.') - begin)}.parent_path() / ckptd_socket;
  const auto connects = [&] {
    const sockaddr_un address = address_of(socket);
    Fd worker{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    REQUIRE(::connect(worker.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    return worker;
  };
  std::vector<pid_t> writers;
  const auto has_writer = [&] { return !(writers = agent.children_named("elrun-ckptd")).empty(); };
  const Fd first = connects();
  REQUIRE(comes(has_writer));
  const pid_t writer = writers.front();
  REQUIRE(::kill(writer, SIGSTOP) == 0);
  const Fd second = connects();
  std::this_thread::sleep_for(life);
  REQUIRE(::kill(writer, SIGKILL) == 0);
  pollfd end{second.get(), POLLIN, 0};
  REQUIRE(::poll(&end, 1, 30'000) == 1);  // the next one would take it, and let it live
  std::byte nothing{};
  CHECK(::recv(second.get(), &nothing, 1, 0) <= 0);
  const Fd third = connects();
  CHECK(comes(has_writer));
}
