#include "lib/link/death_futex.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/memory_file.hpp"

namespace elrun::inline v0 {
namespace {

constexpr off_t file_most = off_t{1} << 20;  // 16,384 workers
constexpr const char* memory_file_name = "elrun exit words";
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

long call_futex(DeathFutexes::Futex& futex, int operation, std::uint32_t value) {
  return ::syscall(SYS_futex, &futex, operation, value, nullptr, nullptr, 0);
}

}  // namespace

Result<DeathFutexes> DeathFutexes::create(const Path& link, std::uint32_t workers) {
  const auto bytes = static_cast<off_t>(workers * sizeof(Slot));
  ELRUN_TRY_ASSIGN(Fd file, memory_file(memory_file_name, Bytes{static_cast<std::uint64_t>(bytes)}));
  if (const int error = ::posix_fallocate(file.get(), 0, bytes); error != 0) return from_errno(error, "make room in a memory file");
  if (::fcntl(file.get(), F_ADD_SEALS, seals) != 0) return from_errno(errno, "seal a memory file");
  const std::string target = fmt::format("/proc/{}/fd/{}", ::getpid(), file.get());
  if (::symlink(target.c_str(), link.c_str()) != 0) return from_errno(errno, fmt::format("make the link {}", link.string()));
  return map(std::move(file), static_cast<std::size_t>(bytes));
}

Result<DeathFutexes> DeathFutexes::open(const Path& link) {
  // In another process namespace, or when the agent has died, something else may stand there.
  std::error_code error;
  const Path file_of_agent = std::filesystem::read_symlink(link, error);
  const Path target = error ? Path{} : std::filesystem::read_symlink(file_of_agent, error);
  if (error || !target.native().starts_with(fmt::format("/memfd:{}", memory_file_name)))
    return Failure{
        .code = Code::not_found, .remedy = Remedy::fix_config, .what = fmt::format("{} leads to no death futexes", link.string())};
  Fd file{::open(link.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  if (!file) return from_errno(errno, fmt::format("open {}", link.string()));
  struct stat info {};
  const int has = ::fcntl(file.get(), F_GET_SEALS);  // fails for what is no memory file
  if (has < 0 || (has & seals) != seals || ::fstat(file.get(), &info) != 0 || info.st_size < static_cast<off_t>(sizeof(Slot)) ||
      info.st_size > file_most)
    return Failure{.code = Code::corrupt, .remedy = Remedy::fix_config, .what = fmt::format("{} leads to no death futexes", link.string())};
  Result<DeathFutexes> futexes = map(std::move(file), static_cast<std::size_t>(info.st_size));
  if (futexes.ok()) futexes->file_ = Fd{};  // the mapping is enough, and a program may close all descriptors
  return futexes;
}

Result<DeathFutexes> DeathFutexes::map(Fd file, std::size_t bytes) {
  const auto size = bytes / sizeof(Slot);
  void* const at = ::mmap(nullptr, size * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) return from_errno(errno, "map a memory file");
  return DeathFutexes{std::move(file), static_cast<Slot*>(at), static_cast<std::uint32_t>(size)};
}

DeathFutexes::DeathFutexes(DeathFutexes&& other) noexcept
    : file_{std::move(other.file_)}, slots_{std::exchange(other.slots_, nullptr)}, size_{other.size_} {}

DeathFutexes::~DeathFutexes() {
  if (slots_ != nullptr) ::munmap(slots_, size_ * sizeof(Slot));
}

DeathFutexHold::DeathFutexHold(const Path& link, std::uint32_t worker) {
  Result<DeathFutexes> futexes = DeathFutexes::open(link);
  if (!futexes.ok() || worker >= futexes->size()) return;
  futexes_.emplace(std::move(*futexes));
  std::size_t size = 0;
  if (::syscall(SYS_get_robust_list, 0, &before_, &size) != 0) return;
  DeathFutexes::Futex& futex = (*futexes_)[worker];
  head_.list.next = &entry_;
  entry_.next = &head_.list;
  head_.futex_offset = reinterpret_cast<char*>(&futex) - reinterpret_cast<char*>(&entry_);
  if (::syscall(SYS_set_robust_list, &head_, sizeof head_) != 0) return;
  thread_ = static_cast<std::uint32_t>(::syscall(SYS_gettid));
  std::uint32_t now = futex.load(std::memory_order_relaxed);
  while (now == 0 || (now & FUTEX_OWNER_DIED) != 0)
    if (futex.compare_exchange_weak(now, thread_)) {
      futex_ = &futex;
      return;
    }
  ::syscall(SYS_set_robust_list, before_, sizeof head_);
}

DeathFutexHold::~DeathFutexHold() {
  if (futex_ == nullptr) return;
  std::uint32_t now = futex_->load(std::memory_order_relaxed);
  while ((now & FUTEX_TID_MASK) == thread_)
    if (futex_->compare_exchange_weak(now, 0)) {
      call_futex(*futex_, FUTEX_WAKE, INT_MAX);
      break;
    }
  ::syscall(SYS_set_robust_list, before_, sizeof head_);
}

// The kernel wakes only who is announced by FUTEX_WAITERS, and compares the futex before it lets a caller sleep, so no change is missed.
bool wait_for_exit(DeathFutexes::Futex& futex) {
  std::uint32_t now = futex.load(std::memory_order_acquire);
  while (true) {
    if ((now & FUTEX_OWNER_DIED) != 0) return true;
    if (now == 0) return false;
    if ((now & FUTEX_WAITERS) == 0 && !futex.compare_exchange_weak(now, now | FUTEX_WAITERS)) continue;
    if (call_futex(futex, FUTEX_WAIT, now | FUTEX_WAITERS) != 0 && errno != EAGAIN && errno != EINTR) return false;
    now = futex.load(std::memory_order_acquire);
  }
}

void clear_death_futex(DeathFutexes::Futex& futex) {
  futex.store(0, std::memory_order_release);
  call_futex(futex, FUTEX_WAKE, INT_MAX);
}

}  // namespace elrun::inline v0
