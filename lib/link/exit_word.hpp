#pragma once
/// \file Exit words: how an agent sees that a worker's process is ending before the kernel has freed its memory.
///
/// Linux tells of a process's end (pidfd, wait, closed sockets) when its memory is free: after some 0.13 s for each GiB, and later where a
/// GPU's driver has to clean up. Before that it goes through the robust futexes of each thread that ends (set_robust_list(2)): where one is
/// held, it marks the word with FUTEX_OWNER_DIED and wakes who waits for it. So a thread of each worker holds a word of memory that it
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

/// The name of a node's words, beside the agent's socket.
constexpr const char* exit_words_name = "exit-words";

/// One word for each worker of a node, by local rank, in memory that the agent and its workers share. 0: nobody holds it, else the number of
/// the thread that does, with the kernel's flags of a futex. The agent believes no word: whoever may write to it is a process of its own user.
class ExitWords {
 public:
  using Word = std::atomic<std::uint32_t>;

  /// Makes them in a memory file that nobody can shrink, so no access fails later, and `link` to it. Its workers find it there as long as this lives.
  static Result<ExitWords> create(const Path& link, std::uint32_t workers);
  /// Those of an agent. Fails where it has none (an earlier version), and where its memory file is not to be had: another process namespace or user.
  static Result<ExitWords> open(const Path& link);
  ExitWords(ExitWords&& other) noexcept;
  ExitWords& operator=(ExitWords&&) = delete;
  ~ExitWords();

  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] Word& operator[](std::uint32_t worker) const { return slots_[worker].word; }

 private:
  struct alignas(64) Slot {
    Word word;
  };
  static_assert(sizeof(Slot) == 64 && Word::is_always_lock_free);
  ExitWords(Fd file, Slot* slots, std::uint32_t size) : file_{std::move(file)}, slots_{slots}, size_{size} {}
  static Result<ExitWords> map(Fd file, std::size_t bytes);

  Fd file_;  // of the agent's
  Slot* slots_;
  std::uint32_t size_;
};

/// The calling thread holds a word until the destructor, which has to run on the same thread. Where another one holds it, and where the kernel or
/// the agent has no part in this, it does nothing: the agent sees the end of the process a little later then. No other robust mutex may be locked on this thread meanwhile.
class ExitWordHold {
 public:
  ExitWordHold(const Path& link, std::uint32_t worker);
  ~ExitWordHold();
  ExitWordHold(const ExitWordHold&) = delete;
  ExitWordHold& operator=(const ExitWordHold&) = delete;

 private:
  std::optional<ExitWords> words_;
  ExitWords::Word* word_ = nullptr;  // none: nothing is held
  std::uint32_t thread_ = 0;
  robust_list entry_{};
  robust_list_head head_{};
  robust_list_head* before_ = nullptr;  // the C library's
};

/// Waits while somebody holds the word. True: the thread that held it has died with it; false: it was given up.
[[nodiscard]] bool wait_for_exit(ExitWords::Word& word);
/// Nobody holds it any more, and who waits for it goes on.
void clear_exit_word(ExitWords::Word& word);

}  // namespace elrun::inline v0
