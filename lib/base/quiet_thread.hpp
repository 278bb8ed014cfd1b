#pragma once
/// \file A thread that blocks all signals: libelrun is a guest, and the process's signals belong to its host.

#include <signal.h>

#include <thread>
#include <utility>

namespace elrun::inline v0 {

template <class Body>
[[nodiscard]] std::thread quiet_thread(Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);  // the new thread inherits the mask, so there is no gap
  std::thread thread{std::move(body)};
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace elrun::inline v0
