#include "lib/link/exit_word.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <utility>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"

namespace elrun::inline v0 {
namespace {

constexpr off_t file_most = off_t{1} << 20;  // 16,384 workers

long futex(ExitWords::Word& word, int operation, std::uint32_t value) {
  return ::syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

}  // namespace

Result<ExitWords> ExitWords::create(const Path& file, std::uint32_t workers) { return map(file, O_RDWR | O_CREAT | O_TRUNC, workers); }

Result<ExitWords> ExitWords::open(const Path& file) { return map(file, O_RDWR, {}); }

Result<ExitWords> ExitWords::map(const Path& file, int flags, std::optional<std::uint32_t> workers) {
  const Fd fd{::open(file.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600)};
  if (!fd) return from_errno(errno, fmt::format("open {}", file.string()));
  if (workers)
    if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(*workers * sizeof(Slot))); error != 0)
      return from_errno(error, fmt::format("make room for {}", file.string()));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return from_errno(errno, fmt::format("look at {}", file.string()));
  if (!S_ISREG(info.st_mode) || info.st_size < static_cast<off_t>(sizeof(Slot)) || info.st_size > file_most)
    return Failure{.code = Code::corrupt, .remedy = Remedy::fix_config, .what = fmt::format("{} is no file of exit words", file.string())};
  const auto size = static_cast<std::size_t>(info.st_size) / sizeof(Slot);
  void* const at = ::mmap(nullptr, size * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return from_errno(errno, fmt::format("map {}", file.string()));
  return ExitWords{static_cast<Slot*>(at), static_cast<std::uint32_t>(size)};
}

ExitWords::ExitWords(ExitWords&& other) noexcept : slots_{std::exchange(other.slots_, nullptr)}, size_{other.size_} {}

ExitWords::~ExitWords() {
  if (slots_ != nullptr) ::munmap(slots_, size_ * sizeof(Slot));
}

ExitWordHold::ExitWordHold(const Path& file, std::uint32_t worker) {
  Result<ExitWords> words = ExitWords::open(file);
  if (!words.ok() || worker >= words->size()) return;
  words_.emplace(std::move(*words));
  std::size_t size = 0;
  if (::syscall(SYS_get_robust_list, 0, &before_, &size) != 0) return;
  ExitWords::Word& word = (*words_)[worker];
  head_.list.next = &entry_;
  entry_.next = &head_.list;
  head_.futex_offset = reinterpret_cast<char*>(&word) - reinterpret_cast<char*>(&entry_);
  if (::syscall(SYS_set_robust_list, &head_, sizeof head_) != 0) return;
  word_ = &word;
  word_->store(static_cast<std::uint32_t>(::syscall(SYS_gettid)), std::memory_order_release);
}

ExitWordHold::~ExitWordHold() {
  if (word_ == nullptr) return;
  clear_exit_word(*word_);
  ::syscall(SYS_set_robust_list, before_, sizeof head_);
}

// The kernel wakes only who is announced by FUTEX_WAITERS, and compares the word before it lets a caller sleep, so no change is missed.
bool wait_for_exit(ExitWords::Word& word) {
  std::uint32_t now = word.load(std::memory_order_acquire);
  while (true) {
    if ((now & FUTEX_OWNER_DIED) != 0) return true;
    if (now == 0) return false;
    if ((now & FUTEX_WAITERS) == 0 && !word.compare_exchange_weak(now, now | FUTEX_WAITERS)) continue;
    futex(word, FUTEX_WAIT, now | FUTEX_WAITERS);
    now = word.load(std::memory_order_acquire);
  }
}

void clear_exit_word(ExitWords::Word& word) {
  word.store(0, std::memory_order_release);
  futex(word, FUTEX_WAKE, INT_MAX);
}

}  // namespace elrun::inline v0
