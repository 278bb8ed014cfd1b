#include "lib/base/bounded_write.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>

#include "lib/base/broken_pipe.hpp"
#include "lib/base/clock.hpp"

namespace elrun::inline v0 {
namespace {

bool has_room_within(int fd, Duration most) {
  const SteadyClock clock;
  const Deadline end = Deadline::after(clock.now(), most);
  for (;;) {
    pollfd room{fd, POLLOUT, 0};
    const int got = ::poll(&room, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(end.left(clock.now())).count()));
    if (got == 0) return false;
    if (got > 0 || errno != EINTR) return true;  // where it cannot be asked (RLIMIT_NOFILE is 0), the write itself tells
  }
}

}  // namespace

bool write_within(int fd, std::string_view bytes, WriteTimeout timeout) {
  const NoBrokenPipeSignal no_signal;
  for (bool begun = false; !bytes.empty();) {
    if (!has_room_within(fd, begun ? timeout.next : timeout.first)) return false;
    const ssize_t n = ::write(fd, bytes.data(), std::min<std::size_t>(bytes.size(), PIPE_BUF));
    if (n < 0 && errno != EINTR && errno != EAGAIN) return true;
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n)), begun = true;
  }
  return true;
}

}  // namespace elrun::inline v0
