#pragma once
/// \file A thread that blocks all signals: libelrun is a guest, and the process's signals belong to its host.

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <elrun/result.hpp>

namespace elrun::inline v0 {

/// The calling thread blocks all signals while this is there.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

/// Throws what std::thread throws where no thread can be started.
template <class Body>
[[nodiscard]] std::thread quiet_thread(Body body) {
  const SignalsBlocked blocked;  // the new thread inherits the mask, so there is no gap
  return std::thread{std::move(body)};
}

/// Joins a thread that process `owner` has started. In a forked child the thread does not exist, and the handle is leaked on purpose.
inline void join_or_leak(std::thread& thread, pid_t owner) {
  if (!thread.joinable()) return;
  if (::getpid() == owner) return thread.join();
  // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
  (void)new std::thread{std::move(thread)};
}

/// The same as a failure: `what` was to be done.
template <class Body>
[[nodiscard]] Result<std::thread> try_quiet_thread(std::string_view what, Body body) try {
  return quiet_thread(std::move(body));
} catch (const std::system_error& error) {
  return Failure{Code::exhausted, Remedy::fix_config,
                 fmt::format("{}: no thread could be started (pids.max, ulimit -u): {}", what, error.code().message())};
}

}  // namespace elrun::inline v0
