// The futexes by which an agent sees that a worker is ending: who holds one, who is told, and what is refused.

#include "lib/link/death_futex.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <optional>
#include <thread>

#include "tests/support/catch.hpp"
#include "tests/support/file_size_limit.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace elrun;
using elrun::test::TemporaryDirectory;

namespace {

struct Node {
  TemporaryDirectory folder;
  Path link = Path{folder.path()} / death_futexes_name;
  Result<DeathFutexes> futexes = DeathFutexes::create(link, 2);
};

std::uint32_t holder(const DeathFutexes& futexes, std::uint32_t worker) { return futexes[worker] & FUTEX_TID_MASK; }

}  // namespace

TEST_CASE("a death futex is held by one thread, and only that one gives it up", "[death_futex]") {
  const Node node;
  REQUIRE(node.futexes.ok());
  CHECK(holder(*node.futexes, 1) == 0);
  {
    const DeathFutexHold first{node.link, 1};
    CHECK(holder(*node.futexes, 1) == static_cast<std::uint32_t>(::gettid()));
    CHECK(holder(*node.futexes, 0) == 0);
    std::thread{[&] { const DeathFutexHold second{node.link, 1}; }}.join();  // it holds nothing, and so gives nothing up
    CHECK(holder(*node.futexes, 1) == static_cast<std::uint32_t>(::gettid()));
  }
  CHECK(holder(*node.futexes, 1) == 0);
  CHECK_FALSE(wait_for_exit((*node.futexes)[1]));
  const DeathFutexHold beyond{node.link, 2};  // does nothing
}

TEST_CASE("a wait for a death futex ends when its holder dies, gives it up, or the agent clears it", "[death_futex]") {
  const Node node;
  REQUIRE(node.futexes.ok());
  DeathFutexes::Futex& futex = (*node.futexes)[0];
  const bool dies = GENERATE(true, false);
  CAPTURE(dies);
  int go_on[2];
  REQUIRE(::pipe(go_on) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::optional<DeathFutexHold> hold{std::in_place, node.link, 0};
    char byte = 0;
    (void)!::read(go_on[0], &byte, 1);
    if (dies) ::kill(::getpid(), SIGKILL);
    hold.reset();
    ::_exit(0);
  }
  while (holder(*node.futexes, 0) != static_cast<std::uint32_t>(child)) std::this_thread::yield();
  std::optional<bool> died;
  std::thread waits{[&] { died = wait_for_exit(futex); }};
  while ((futex & FUTEX_WAITERS) == 0) std::this_thread::yield();
  REQUIRE(::write(go_on[1], "g", 1) == 1);
  waits.join();
  CHECK(died == dies);
  CHECK(::waitpid(child, nullptr, 0) == child);
  for (const int end : go_on) ::close(end);

  // The next process takes it over, and the agent can stop to wait for that one.
  const DeathFutexHold next{node.link, 0};
  CHECK(holder(*node.futexes, 0) == static_cast<std::uint32_t>(::gettid()));
  std::thread stops{[&] { died = wait_for_exit(futex); }};
  while ((futex & FUTEX_WAITERS) == 0) std::this_thread::yield();
  clear_death_futex(futex);
  stops.join();
  CHECK(died == false);
}

TEST_CASE("death futexes that are larger than files may be are a failure, and no signal", "[death_futex]") {
  const TemporaryDirectory folder;
  const elrun::test::FileSizeLimit limit{0_B};
  CHECK(DeathFutexes::create(Path{folder.path()} / death_futexes_name, 2).failure().code == Code::no_space);
}

TEST_CASE("what is no sealed memory file is not mapped, and that file cannot be made shorter", "[death_futex]") {
  const Node node;
  REQUIRE(node.futexes.ok());
  CHECK(node.futexes->size() == 2);
  CHECK(::truncate(node.link.c_str(), 0) == -1);
  CHECK(DeathFutexes::open(node.link).ok());
  const Path other = Path{node.folder.path()} / "other";
  CHECK_FALSE(DeathFutexes::open(other).ok());
  std::ofstream{other} << std::string(4096, 'x');
  CHECK_FALSE(DeathFutexes::open(other).ok());
  CHECK_FALSE(DeathFutexes::open(node.folder.path()).ok());
  CHECK_FALSE(DeathFutexes::create(node.link, 2).ok());  // something stands there
}
