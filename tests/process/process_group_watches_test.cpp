// Groups whose system has no room for another watch of a descriptor: the limit of a user is one for all containers of a host.

#include <elrun/process_group.hpp>

#include <sys/epoll.h>
#include <sys/socket.h>
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

constexpr int never = std::numeric_limits<int>::max();

std::atomic<int> watches{0}, first_refused{never};
std::atomic<int> connections{0}, refused_connection{never};

/// Of the ends of TCP and Unix connections; what listens is none.
bool is_connection(int file) {
  int listens = 0;
  socklen_t length = sizeof listens;
  return ::getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens == 0;
}

bool is_refused(int file) {
  if (watches++ >= first_refused) return true;
  return is_connection(file) && connections++ == refused_connection;
}

}  // namespace

/// In place of the C library's, for this program.
extern "C" int epoll_ctl(int epoll, int operation, int file, epoll_event* event) noexcept {
  if (operation == EPOLL_CTL_ADD && is_refused(file)) return errno = ENOSPC, -1;
  return static_cast<int>(::syscall(SYS_epoll_ctl, epoll, operation, file, event));
}

namespace {

/// Two ranks join, and make a call.
std::string join_two(Transport transport, Duration connect = 30s) {
  LocalWorld local{2};
  watches = 0, connections = 0;
  Complaints complaints;
  local.run([&](std::uint32_t, Session& session) {
    auto group = ProcessGroup::join(session, {.connect = connect, .collective = 10s, .transport = transport});
    if (!group.ok()) return complaints(false, message(group.failure()));
    complaints.must(group->barrier(), "barrier");
  });
  first_refused = never, refused_connection = never;
  return complaints.all();
}

/// Of the watches from `first` on none is given.
std::string join_two_without(Transport transport, int first) {
  first_refused = first;
  return join_two(transport, 4s);  // a rank waits as long for a peer that has no watches
}

std::string join_two_without_connection(Transport transport, int number) {
  refused_connection = number;
  return join_two(transport);
}

}  // namespace

TEST_CASE("a group for which the system has no watch is a failure of both ranks, and not the end of their process", "[process_group]") {
  const Transport transport = GENERATE(Transport::automatic, Transport::tcp);
  CHECK(join_two(transport) == "");
  const int needed = watches;
  REQUIRE(needed > 4);
  for (int given = 0; given < needed; ++given) {
    INFO("watches that are given: " << given);
    CHECK_THAT(join_two_without(transport, given), Catch::Contains("max_user_watches"));
  }
}

TEST_CASE("one connection that cannot be watched costs that connection: its rank dials again", "[process_group]") {
  const Transport transport = GENERATE(Transport::automatic, Transport::tcp);
  CHECK(join_two(transport) == "");
  const int needed = connections;
  REQUIRE(needed >= 2);  // the dialler's end and the listener's
  for (int refused = 0; refused < needed; ++refused) {
    INFO("the connection's end that is refused: " << refused << " of " << needed);
    CHECK(join_two_without_connection(transport, refused) == "");
    CHECK(connections > needed);
  }
}
