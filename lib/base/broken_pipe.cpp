#include "lib/base/broken_pipe.hpp"

#include <cerrno>
#include <ctime>

namespace elrun::inline v0 {
namespace {

sigset_t only_broken_pipe() noexcept {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

NoBrokenPipeSignal::NoBrokenPipeSignal() noexcept {
  sigset_t pending;
  sigemptyset(&pending);
  was_pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
  const sigset_t pipe = only_broken_pipe();
  (void)pthread_sigmask(SIG_BLOCK, &pipe, &before_);
}

NoBrokenPipeSignal::~NoBrokenPipeSignal() {
  const int error = errno;
  if (!was_pending_) {
    const sigset_t pipe = only_broken_pipe();
    const timespec at_once{};
    while (sigtimedwait(&pipe, nullptr, &at_once) < 0 && errno == EINTR) {
    }
  }
  (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = error;
}

}  // namespace elrun::inline v0
