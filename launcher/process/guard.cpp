// A group's number goes over the line as a positive pid when it is born and as a negative one when it was killed and
// collected: packets of four bytes. A longer one is the agent's death notice, behind eight bytes of its own. The line is a
// pair of packet sockets: messages of several processes do not mix, and none is answered by SIGPIPE when the guard itself
// was killed (a blocked one would stay pending, however ignored, and end the worker). The agent keeps dead workers as
// zombies until it has killed their groups: a number that the guard knows is never another's.
#include "launcher/process/guard.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "lib/base/assert.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0::launcher {
namespace {

// The first packet goes the other way: 'd' and the directory, or 'e' and why there is none.
constexpr std::size_t first_packet_max = 4096;

// Of what the guard has not read. New workers and death notices take a quarter of it at most (that is when the system calls it writable), so the numbers of 200 groups that
// were killed meanwhile still have room.
constexpr int line_bytes = 106'496;  // as Linux counts, some 130 packets and twice that

// In front of a death notice, so that none is as short as a group's number.
constexpr std::size_t death_notice_header = 8;

bool wait_for_end(pid_t child, int options) {
  siginfo_t info{};
  int got = 0;
  do got = ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | options);
  while (got < 0 && errno == EINTR);
  return got == 0;
}

bool say_forgotten(int line, pid_t group, int flags) {
  const std::int32_t packet = -group;
  return ::send(line, &packet, sizeof packet, MSG_NOSIGNAL | flags) >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

bool is_writable(int line, int wait_ms) {
  pollfd look{line, POLLOUT, 0};
  return ::poll(&look, 1, wait_ms) > 0;
}

[[noreturn]] void be_the_guard(int line, const Variables& environment, const Guard::Say& say) {
  ::setsid();  // signals to the agent's group or from its terminal are not for the guard
  ::prctl(PR_SET_NAME, "elrun-guard");
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2, SIGTSTP}) std::signal(number, SIG_IGN);
  if (const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      null >= 0)  // a reader of the agent's output sees its end when the agent ends, not the guard
    for (int fd = 0; fd <= 2; ++fd) ::dup2(null, fd);
  const auto directory = make_agent_directory(environment);  // only now: what ends the agent's group ends no guard that has one
  const std::string message_of_directory = directory ? "d" + directory->native() : "e" + directory.failure().what;
  [[maybe_unused]] const ssize_t told =
      ::send(line, message_of_directory.data(), std::min(message_of_directory.size(), first_packet_max), MSG_NOSIGNAL);
  if (!directory) ::_exit(0);
  [[maybe_unused]] const int ignored = ::chdir("/");
  std::vector<std::int32_t> groups;
  ByteVector packet(death_notice_header + death_notice_max), death_notice;
  while (true) {
    const ssize_t got = ::read(line, packet.data(), packet.size());
    if (got < 0 && errno == EINTR) continue;
    if (got >= static_cast<ssize_t>(death_notice_header)) {
      const ByteSpan word = ByteSpan{packet}.first(static_cast<std::size_t>(got)).subspan(death_notice_header);
      death_notice.assign(word.begin(), word.end());
      continue;
    }
    std::int32_t group = 0;
    if (got != sizeof group) break;
    std::memcpy(&group, packet.data(), sizeof group);
    if (group > 1) groups.push_back(group);
    else groups.erase(std::remove(groups.begin(), groups.end(), -group), groups.end());
  }
  for (const std::int32_t group : groups) ::kill(-group, SIGKILL);
  try {
    if (say && !death_notice.empty()) say(death_notice);
  } catch (...) {  // the directory is removed all the same
  }
  std::error_code error;
  std::filesystem::remove_all(*directory, error);
  ::_exit(0);
}

}  // namespace

Result<Guard> Guard::start(const Variables& environment, Say say) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return from_errno(errno, "make the line to the guard");
  Fd reading{ends[0]}, writing{ends[1]};
  ::setsockopt(writing.get(), SOL_SOCKET, SO_SNDBUF, &line_bytes, sizeof line_bytes);
  const pid_t pid = ::fork();
  if (pid < 0) return from_errno(errno, "start the guard");
  if (pid == 0) {
    writing = Fd{};
    be_the_guard(reading.get(), environment, say);
  }
  reading = Fd{};  // the guard's alone: its death is the end of the line
  std::string packet(first_packet_max, '\0');
  ssize_t got = 0;
  do got = ::read(writing.get(), packet.data(), packet.size());
  while (got < 0 && errno == EINTR);
  if (got > 1 && packet[0] == 'd') return Guard{std::move(writing), pid, packet.substr(1, static_cast<std::size_t>(got) - 1)};
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  return Failure{.code = Code::io,
                 .remedy = Remedy::fix_config,
                 .what = got > 1 ? packet.substr(1, static_cast<std::size_t>(got) - 1)
                                 : "the guard of this agent's workers ended before it had begun"};
}

Guard::~Guard() {
  if (!line_) return;       // moved from
  if (!say_what_waits()) {  // once it reads, these numbers may be others', and what it has to say is old
    ::kill(pid_, SIGKILL);
    for (const pid_t child : ended_) wait_for_end(child, 0);
    std::error_code error;
    std::filesystem::remove_all(directory_, error);
    return;
  }
  line_ = Fd{};
  if (const Fd watch{static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0))}) {
    pollfd p{watch.get(), POLLIN, 0};
    ::poll(&p, 1, 1000);
  }
  ::waitpid(pid_, nullptr, WNOHANG);
}

bool Guard::has_room() const {
  constexpr int wait_ms = 1000;
  const SignalsBlocked blocked;  // the end of a child does not cut the wait short
  const bool room = is_writable(line_.get(), was_full_ ? 0 : wait_ms) && say_what_waits() && is_writable(line_.get(), 0);
  was_full_ = !room;
  return room;
}

void Guard::collect(pid_t child) const {
  wait_for_end(child, WNOWAIT);
  ended_.insert(child);
  say_what_waits();
}

bool Guard::keeps(pid_t child) const { return ended_.contains(child); }

void Guard::set_death_notice(ByteSpan death_notice) const {
  ELRUN_ASSERT(death_notice.size() <= death_notice_max);
  unsaid_notice_.emplace(death_notice_header);
  unsaid_notice_->insert(unsaid_notice_->end(), death_notice.begin(), death_notice.end());
  say_what_waits();
}

bool Guard::say_what_waits() const {
  for (auto child = ended_.begin(); child != ended_.end(); child = ended_.erase(child)) {
    if (!say_forgotten(line_.get(), *child, MSG_DONTWAIT)) return false;
    wait_for_end(*child, 0);
  }
  if (!unsaid_notice_) return true;
  if (!is_writable(line_.get(), 0)) return false;
  if (::send(line_.get(), unsaid_notice_->data(), unsaid_notice_->size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EAGAIN) return false;
  unsaid_notice_.reset();
  return true;
}

void forget_in_guard(int line, pid_t group) noexcept { (void)say_forgotten(line, group, 0); }

void register_with_guard(int line) noexcept {
  const std::int32_t packet = ::getpid();
  [[maybe_unused]] const ssize_t ignored = ::send(line, &packet, sizeof packet, MSG_NOSIGNAL);
}

}  // namespace elrun::inline v0::launcher
