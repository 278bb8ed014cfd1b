#include "launcher/process/orphan_owner.hpp"

#include <pthread.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "launcher/process/answers_in_time.hpp"
#include "tests/support/catch.hpp"

namespace elrun::launcher {
namespace {

using Kind = OrphanOwner::Kind;
using namespace std::string_literals;

const std::string of_worker = "PATH=/bin\0ELRUN_SOCKET=/run/a\0ELRUN_LOCAL_RANK=3\0HOME=/\0"s;
const std::string_view own_socket = "/run/a";
const OrphanOwner worker_3{Kind::worker, LocalRank{3}}, a_worker{Kind::worker, {}}, unmarked{Kind::unmarked, {}}, not_known{};

}  // namespace

TEST_CASE("an orphan's environment tells whose it is", "[orphans]") {
  CHECK(owner_in(of_worker, own_socket) == worker_3);
  CHECK(owner_in(of_worker.substr(0, of_worker.size() - 1), own_socket) == worker_3);
  CHECK(owner_in("ELRUN_SOCKET=/run/a\0PATH=/bin\0"s, own_socket) == a_worker);
  CHECK(owner_in("ELRUN_LOCAL_RANK=x\0PATH=/bin\0"s, own_socket) == a_worker);
  CHECK(owner_in("PATH=/bin\0MY_ELRUN_LOCAL_RANK=3\0"s, own_socket) == unmarked);
  CHECK(owner_in("ELRUN_LOCAL_RANK=3\0PATH=/bin\0"s, own_socket) == worker_3);
  SECTION("a rank of a job that a worker runs itself is none of this one's") {
    CHECK(owner_in(of_worker, "/run/outer") == a_worker);
    CHECK(owner_in("ELRUN_LOCAL_RANK=3\0ELRUN_SOCKET=/run/ab\0"s, own_socket) == a_worker);
  }
  SECTION("one that cannot be read, or was overwritten by a title, tells nothing") {
    CHECK(owner_in({}, own_socket) == not_known);
    CHECK(owner_in(std::string(64, '\0'), own_socket) == not_known);
    CHECK(owner_in("er: reads data\0\0\0\0"s, own_socket) == not_known);
  }
}

TEST_CASE("a process that ends has no environment any more, and is waited for", "[orphans]") {
  CHECK(ends_already("7 (a) b) S) Z 1 7 7 0 -1 4227084 0 0"));
  CHECK(ends_already("7 (python3) R 1 7 7 0 -1 4194564 0 0"));  // 0x4 is in its flags
  CHECK(ends_already(""));
  CHECK_FALSE(ends_already("7 (python3) R 1 7 7 0 -1 4194560 0 0"));
  CHECK_FALSE(ends_already("7 (cut off) R 1"));
  const OrphanOwner ending{OrphanOwner::Kind::ending, {}};
  for (const bool inherits : {false, true}) CHECK(fate_of(ending, {LocalRank{0}}, inherits) == OrphanFate::ends);
}

TEST_CASE("what carries a dead worker's mark ends, and what carries none stays where others may have started it", "[orphans]") {
  const std::vector<LocalRank> none, others{LocalRank{0}, LocalRank{1}}, itself{LocalRank{0}, LocalRank{3}};
  for (const bool inherits : {false, true}) {
    CHECK(fate_of(worker_3, none, inherits) == OrphanFate::ends);
    CHECK(fate_of(worker_3, others, inherits) == OrphanFate::ends);
    CHECK(fate_of(worker_3, itself, inherits) == OrphanFate::stays);
    for (const OrphanOwner& unclear : {a_worker, not_known}) {
      CHECK(fate_of(unclear, none, inherits) == OrphanFate::ends);
      CHECK(fate_of(unclear, others, inherits) == OrphanFate::stays_unclear);
    }
  }
  CHECK(fate_of(unmarked, none, true) == OrphanFate::stays);
  CHECK(fate_of(unmarked, others, true) == OrphanFate::stays);
  CHECK(fate_of(unmarked, none, false) == OrphanFate::ends);
  CHECK(fate_of(unmarked, others, false) == OrphanFate::stays_unclear);
}

TEST_CASE("a call that hangs is waited for only so long, and the ones after it are asked all the same", "[orphans]") {
  auto hangs = std::make_shared<std::mutex>();
  std::unique_lock held{*hangs};
  const auto blocks = [hangs] {
    const std::lock_guard lock{*hangs};
    return 0;
  };
  const auto answers = [](int number) -> std::function<int()> { return [number] { return number; }; };
  using Answers = std::vector<std::optional<int>>;
  bool all_in_time = false;  // where a thread gets no processor for so long it is late, too
  for (int tries = 0; tries < 100 && !all_in_time; ++tries)
    all_in_time = answers_in_time<int>({answers(1), blocks, answers(2), blocks, answers(3)}, 50ms) == Answers{1, {}, 2, {}, 3};
  CHECK(all_in_time);
  CHECK(answers_in_time<int>({answers(1), answers(2)}, 10s) == Answers{1, 2});
  CHECK(answers_in_time<int>({}, 10s).empty());
  const auto calls = std::make_shared<std::atomic<int>>(0);
  const std::vector<std::function<int()>> many(50, [blocks, calls] { return ++*calls, blocks(); });  // all that one driver holds
  CHECK(answers_in_time<int>(many, 50ms) == Answers(50));
  CHECK(*calls <= late_calls_max);
}

TEST_CASE("a call is not late while its thread could run", "[orphans]") {
  const auto computes = [](Duration how_long) -> std::function<int()> {
    return [how_long] {
      for (const auto until = std::chrono::steady_clock::now() + how_long; std::chrono::steady_clock::now() < until;) continue;
      return 7;
    };
  };
  CHECK(answer_in_time(computes(500ms), 20ms) == 7);
  CHECK_FALSE(answer_in_time(computes(processor_max + 3s), 20ms));
}

TEST_CASE("one call is made on the thread that asks where no other can be started", "[orphans]") {
  const std::function<std::thread::id()> who = [] { return std::this_thread::get_id(); };
  const auto usual_answer = answer_in_time(who, 10s);
  REQUIRE(usual_answer);
  CHECK(*usual_answer != std::this_thread::get_id());
  pthread_attr_t usual, huge;
  REQUIRE(::pthread_getattr_default_np(&usual) == 0);
  REQUIRE(::pthread_attr_init(&huge) == 0);
  REQUIRE(::pthread_attr_setstacksize(&huge, std::size_t{1} << 50) == 0);  // no machine has room for it
  REQUIRE(::pthread_setattr_default_np(&huge) == 0);
  const auto answer = answer_in_time(who, 10s);
  REQUIRE(::pthread_setattr_default_np(&usual) == 0);
  REQUIRE(answer);
  CHECK(*answer == std::this_thread::get_id());
}

TEST_CASE("one call that hangs is not made again", "[orphans]") {
  const auto hangs = std::make_shared<std::mutex>();
  const auto calls = std::make_shared<std::atomic<int>>(0);
  const std::lock_guard held{*hangs};
  const std::function<int()> blocks = [hangs, calls] {
    ++*calls;
    const std::lock_guard lock{*hangs};
    return 0;
  };
  CHECK_FALSE(answer_in_time(blocks, 50ms));
  while (*calls == 0) std::this_thread::yield();  // its thread may begin late
  CHECK(*calls == 1);
}

}  // namespace elrun::launcher
