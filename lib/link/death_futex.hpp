#pragma once
/// \file Death futexes: how an agent sees that a worker's process is ending before the kernel has freed its memory.
///
/// Linux tells of a process's end (pidfd, wait, closed sockets) when its memory is free: after some 0.13 s for each GiB, and later where a
/// GPU's driver has to clean up. Before that it goes through the robust futexes of each thread that ends (set_robust_list(2)): where one is
/// held, it marks the futex with FUTEX_OWNER_DIED and wakes who waits for it. So a thread of each worker holds a robust futex in memory that it
/// shares with its agent, and the agent waits for the mark. It is only a hint: what became of the process, the kernel is asked.

#include <linux/futex.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include <elrun/result.hpp>

#include "lib/base/fd.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0 {

/// The name of a node's futexes, beside the agent's socket.
constexpr const char* death_futexes_name = "exit-words";  // workers of another version look for it

/// One futex for each worker of a node, by local rank, in memory that the agent and its workers share. 0: nobody holds it, else the number of
/// the thread that does, with the kernel's flags of a futex. The agent believes no value: whoever may write to it is a process of its own user.
class DeathFutexes {
 public:
  using Futex = std::atomic<std::uint32_t>;

  /// Makes them in a memory file that nobody can shrink, so no access fails later, and `link` to it. Its workers find it there as long as this lives.
  static Result<DeathFutexes> create(const Path& link, std::uint32_t workers);
  /// Those of an agent. Fails where it has none (an earlier version), and where its memory file is not to be had: another process namespace or user.
  static Result<DeathFutexes> open(const Path& link);
  DeathFutexes(DeathFutexes&& other) noexcept;
  DeathFutexes& operator=(DeathFutexes&&) = delete;
  ~DeathFutexes();

  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] Futex& operator[](std::uint32_t worker) const { return slots_[worker].futex; }

 private:
  struct alignas(64) Slot {
    Futex futex;
  };
  static_assert(sizeof(Slot) == 64 && Futex::is_always_lock_free);
  DeathFutexes(Fd file, Slot* slots, std::uint32_t size) : file_{std::move(file)}, slots_{slots}, size_{size} {}
  static Result<DeathFutexes> map(Fd file, std::size_t bytes);

  Fd file_;  // of the agent's
  Slot* slots_;
  std::uint32_t size_;
};

/// The calling thread holds a futex until the destructor, which has to run on the same thread. Where another one holds it, and where the kernel or
/// the agent has no part in this, it does nothing: the agent sees the end of the process a little later then. No other robust mutex may be locked on this thread meanwhile.
class DeathFutexHold {
 public:
  DeathFutexHold(const Path& link, std::uint32_t worker);
  ~DeathFutexHold();
  DeathFutexHold(const DeathFutexHold&) = delete;
  DeathFutexHold& operator=(const DeathFutexHold&) = delete;

 private:
  std::optional<DeathFutexes> futexes_;
  DeathFutexes::Futex* futex_ = nullptr;  // none: nothing is held
  std::uint32_t thread_ = 0;
  robust_list entry_{};
  robust_list_head head_{};
  robust_list_head* before_ = nullptr;  // the C library's
};

/// Waits while somebody holds the futex. True: the thread that held it has died with it; false: it was given up.
[[nodiscard]] bool wait_for_exit(DeathFutexes::Futex& futex);
/// Nobody holds it any more, and who waits for it goes on.
void clear_death_futex(DeathFutexes::Futex& futex);

}  // namespace elrun::inline v0
