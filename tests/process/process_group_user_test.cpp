// Groups of an ordinary user, whose processes may have only so many descriptors on their way to each other.

#include <elrun/process_group.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "lib/base/fd.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/process_groups.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

constexpr rlim_t descriptors = 450;  // also: how many may be on their way

/// In a process of a user who has no privileges and no other processes. `body` returns complaints.
template <class Body>
bool is_well_as_ordinary_user(Body body) {
  // Over TCP no descriptors are passed. What this would send counts against the same program beside it where both are of one user.
  if (std::getenv("ELRUN_TRANSPORT") != nullptr) return true;
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit few{descriptors, descriptors};
    const auto user = static_cast<uid_t>(100'000 + ::getpid());
    // Where root may not become another one, it is root of a user namespace alone, and has no privileges here.
    (void)!::setresuid(user, user, user);
    const std::string complaints = ::setrlimit(RLIMIT_NOFILE, &few) == 0 ? body() : "the limit stays";
    std::fputs(complaints.c_str(), stderr);
    ::_exit(complaints.empty() ? 0 : 1);
  }
  int status = -1;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

/// As many copies of one descriptor as a message takes, which nobody takes out of it.
void send_many(int socket) {
  std::array<int, 250> files{};
  files.fill(socket);
  std::byte word{};
  iovec piece{&word, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof files)> room{};
  msghdr message{.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room.data(), .msg_controllen = room.size()};
  cmsghdr* const control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof files);
  std::memcpy(CMSG_DATA(control), files.data(), sizeof files);
  (void)::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// The user has passed as many descriptors as may be under way, for as long as the result is there.
Fd use_up_passing() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return {};
  for (int i = 0; i < 2; ++i) send_many(ends[0]);
  ::close(ends[0]);  // what was sent waits at the other end
  return Fd{ends[1]};
}

}  // namespace

TEST_CASE("ranks share more buffers than a user may have descriptors under way, and split afterwards", "[process_group]") {
  CHECK(is_well_as_ordinary_user([] {
    return run_group(3, [](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
      std::vector<SharedBuffer> buffers;
      for (int i = 0; i < 90; ++i) buffers.push_back(SharedBuffer::make(64_KiB).value());
      for (const SharedBuffer& buffer : buffers) complaints.must(group.share(buffer), "share");
      const auto part = group.split(0, 0);
      complaints(part.ok(), part.ok() ? "" : message(part.failure()));
      for (const SharedBuffer& buffer : buffers) {
        std::ranges::fill(buffer.bytes(), static_cast<std::byte>(rank == 1 ? 7 : 0));
        complaints.must(group.broadcast(buffer.bytes(), Rank{1}), "broadcast");
        complaints(buffer.bytes().back() == std::byte{7}, "other bytes");
      }
    });
  }));
}

namespace {

/// A barrier of three ranks: what they complain of, and what they print on standard error.
std::pair<std::string, std::string> barrier_of_three() {
  const Fd usual{::dup(STDERR_FILENO)}, said{::memfd_create("said", 0)};
  (void)::fcntl(said.get(), F_SETFL, O_APPEND);  // else two lines that are written at once may have one place: memory files do not lock it
  (void)::dup2(said.get(), STDERR_FILENO);
  std::string complaints =
      run_group(3, [](std::uint32_t, ProcessGroup& group, Complaints& told) { told.must(group.barrier(), "barrier"); });
  (void)::dup2(usual.get(), STDERR_FILENO);
  std::string text(10'000, ' ');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::pread(said.get(), text.data(), text.size(), 0))));
  return {std::move(complaints), std::move(text)};
}

}  // namespace

TEST_CASE("ranks that can pass each other no descriptors use frames, and say why", "[process_group]") {
  CHECK(is_well_as_ordinary_user([] {
    const Fd passed = use_up_passing();
    auto [complaints, text] = barrier_of_three();
    for (const char* const who : {"[elrun rank 0 ", "[elrun rank 1 ", "[elrun rank 2 "}) {
      const auto at = text.find(who), limit = text.find("ulimit -n", at);
      if (at == std::string::npos || limit == std::string::npos || text.find(who, limit) != std::string::npos) complaints += text;
    }
    return complaints;
  }));
}

TEST_CASE("ranks that can make no shared memory use frames, and say why", "[process_group]") {
  CHECK(is_well_as_ordinary_user([] {
    const rlimit small{64 << 10, 64 << 10};
    std::signal(SIGXFSZ, SIG_IGN);
    if (::setrlimit(RLIMIT_FSIZE, &small) != 0) return std::string{"the limit stays\n"};
    auto [complaints, text] = barrier_of_three();
    for (const char* const who : {"[elrun rank 0 ", "[elrun rank 1 ", "[elrun rank 2 "}) {
      const auto at = text.find(who), why = text.find("has no shared memory", at);
      if (at == std::string::npos || why == std::string::npos || text.find(who, at + 1) != std::string::npos) complaints += text + "\n";
    }
    return complaints;
  }));
}

TEST_CASE("where frames are not allowed, both ranks name the limit that keeps their memory from being passed", "[process_group]") {
  CHECK(is_well_as_ordinary_user([] {
    const Fd passed = use_up_passing();
    LocalWorld local{2};
    Complaints complaints;
    local.run([&](std::uint32_t, Session& session) {
      const auto group = ProcessGroup::join(session, {.connect = 30s, .transport = Transport::shm});
      if (group.ok()) return complaints(false, "joined");
      complaints(group.failure().what.find("ulimit -n") != std::string::npos, message(group.failure()));
    });
    return complaints.all();
  }));
}
