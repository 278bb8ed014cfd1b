// Groups whose system has no room for another watch of a descriptor: the limit of a user is one for all containers of a host.

#include <elrun/process_group.hpp>

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <limits>
#include <string>

#include "tests/support/catch.hpp"
#include "tests/support/process_groups.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

std::atomic<int> watches{0}, first_refused{std::numeric_limits<int>::max()}, last_refused{0};

}  // namespace

/// In place of the C library's, for this program.
extern "C" int epoll_ctl(int epoll, int operation, int file, epoll_event* event) noexcept {
  if (operation == EPOLL_CTL_ADD) {
    const int number = watches++;
    if (number >= first_refused && number <= last_refused) return errno = ENOSPC, -1;
  }
  return static_cast<int>(::syscall(SYS_epoll_ctl, epoll, operation, file, event));
}

namespace {

/// Two ranks join, and make a call. Of the watches from `first` to `last` none is given.
std::string join_two(Transport transport, int first, int last) {
  LocalWorld local{2};
  watches = 0, first_refused = first, last_refused = last;
  Complaints complaints;
  local.run([&](std::uint32_t, Session& session) {
    auto group = ProcessGroup::join(session, {.connect = 4s, .collective = 10s, .transport = transport});
    if (!group.ok()) return complaints(false, message(group.failure()));
    complaints.must(group->barrier(), "barrier");
  });
  first_refused = std::numeric_limits<int>::max();
  return complaints.all();
}

}  // namespace

TEST_CASE("a group for which the system has no watch is a failure of both ranks, and not the end of their process", "[process_group]") {
  const Transport transport = GENERATE(Transport::automatic, Transport::tcp);
  CHECK(join_two(transport, 1000, 1000) == "");
  const int needed = watches;
  REQUIRE(needed > 4);
  for (int given = 0; given < needed; ++given) {
    INFO("watches that are given: " << given);
    CHECK_THAT(join_two(transport, given, 1'000'000), Catch::Contains("max_user_watches"));
  }
}

TEST_CASE("one connection that cannot be watched costs that connection: its rank dials again", "[process_group]") {
  const Transport transport = GENERATE(Transport::automatic, Transport::tcp);
  CHECK(join_two(transport, 1000, 1000) == "");
  const int needed = watches;
  int joined = 0;
  constexpr int of_the_loops = 6;  // before both ranks have published where they listen
  for (int refused = of_the_loops; refused < needed; ++refused) joined += join_two(transport, refused, refused).empty() ? 1 : 0;
  CHECK(joined >= 2);  // the dialler's end and the listener's
}
