#pragma once
/// \file Writing where a reader may have gone away, without SIGPIPE.

#include <csignal>

namespace elrun::inline v0 {

/// While it lives, a write of this thread to a pipe or socket that nobody reads any more fails with EPIPE, and no signal ends the process. For code in a
/// program of others, whose handling of SIGPIPE stays as it is. Keeps errno.
class NoBrokenPipeSignal {
 public:
  NoBrokenPipeSignal() noexcept;
  ~NoBrokenPipeSignal();
  NoBrokenPipeSignal(const NoBrokenPipeSignal&) = delete;
  NoBrokenPipeSignal& operator=(const NoBrokenPipeSignal&) = delete;

 private:
  sigset_t before_{};         // the thread's mask
  bool was_pending_ = false;  // one of the program's own, which stays
};

}  // namespace elrun::inline v0
