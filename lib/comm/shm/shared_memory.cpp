#include "lib/comm/shm/shared_memory.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/memory_file.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t written_at_once = 64 << 10;   // zeros, which stay in the second cache
constexpr int interruptions_max = 1000;             // of one such piece
constexpr std::size_t unmapped_at_once = 16 << 20;  // some milliseconds on a busy machine

Result<std::span<std::byte>> map(int file, std::size_t size, int protection, int pages) {
  void* const at = ::mmap(nullptr, size, protection, MAP_SHARED | pages, file, 0);
  if (at == MAP_FAILED) return from_errno(errno, fmt::format("map {} bytes of shared memory", size));
  return std::span{static_cast<std::byte*>(at), size};
}

/// All pages of a new file, by writing them. Not ftruncate: its pages would be looked for at the first write, where their absence is a signal and no
/// error. Nor fallocate: its pages are cleared when they are touched first, each by a fault of its own.
Result<void> get_pages(int file, std::size_t size) {
  const std::vector<std::byte> zeros(std::min(size, written_at_once));
  int interruptions = 0;
  for (std::size_t at = 0; at < size;) {
    const ssize_t written = ::pwrite(file, zeros.data(), std::min(zeros.size(), size - at), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR && ++interruptions < interruptions_max) continue;
    if (written <= 0) return from_errno(written < 0 ? errno : ENOSPC, fmt::format("get {} bytes of shared memory", size));
    at += static_cast<std::size_t>(written);
    interruptions = 0;
  }
  return {};
}

/// So that no later access has to wait for a fault. Not by MAP_POPULATE, nor by an advice: while the kernel enters many pages, no other thread of the process
/// can map memory, or fork. A fault holds up nobody, and enters 16 pages that are there.
void enter_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (std::size_t at = 0; at < bytes.size(); at += page) (void)*static_cast<const volatile std::byte*>(&bytes[at]);
}

}  // namespace

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  file_ = std::move(other.file_);
  bytes_ = std::exchange(other.bytes_, {});
  return *this;
}

/// A piece at a time: while the kernel unmaps, and frees pages that nobody else has, no other thread of the process can map memory.
void SharedMemory::unmap() noexcept {
  while (!bytes_.empty()) {
    const std::span<std::byte> piece = bytes_.first(std::min(bytes_.size(), unmapped_at_once));
    (void)::munmap(piece.data(), piece.size());
    bytes_ = bytes_.subspan(piece.size());
  }
}

Result<SharedMemory> SharedMemory::make(Bytes size) { return make(size, false); }
Result<SharedMemory> SharedMemory::make_returnable(Bytes size) { return make(size, true); }

Result<SharedMemory> SharedMemory::make(Bytes size, bool returnable) {
  ELRUN_ASSERT(size > 0_B);
  ELRUN_TRY_ASSIGN(Fd file, memory_file("elrun", size));
  ELRUN_TRY(get_pages(file.get(), size.value()));
  ELRUN_TRY_ASSIGN(const auto bytes, map(file.get(), size.value(), PROT_READ | PROT_WRITE, 0));
  SharedMemory memory{std::move(file), bytes};
  memory.leave_out_of_children();  // as nobody knows of it yet: whoever makes it may want that none has it
  enter_pages(bytes);
  if (::fcntl(memory.file(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return from_errno(errno, "seal shared memory");
  if (!returnable)
    (void)::fcntl(memory.file(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);  // older kernels do not have it: there a reader's honesty is all
  if (::fcntl(memory.file(), F_ADD_SEALS, F_SEAL_SEAL) != 0) return from_errno(errno, "seal shared memory");
  (void)::madvise(bytes.data(), bytes.size(), MADV_DOFORK);
  return memory;
}

Result<Fd> SharedMemory::for_reading() const {
  Fd file{::open(fmt::format("/proc/self/fd/{}", file_.get()).c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file) return from_errno(errno, "open shared memory for reading (is /proc mounted?)");
  return file;
}

void SharedMemory::give_back() noexcept {
  (void)::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes_.size()));
}

Result<SharedMemory> SharedMemory::view(Fd file, Bytes size, Pages pages) {
  const auto refused = [](std::string what) { return Failure{Code::protocol, Remedy::abort_group, std::move(what)}; };
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return refused("a file that is not a memory file, or may shrink while it is read");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return from_errno(errno, "look at shared memory");
  if (size == 0_B || static_cast<std::uint64_t>(status.st_size) != size.value()) {
    return refused(fmt::format("shared memory of {} bytes where {} were promised", status.st_size, size.value()));
  }
  ELRUN_TRY_ASSIGN(const auto bytes, map(file.get(), size.value(), PROT_READ, pages == Pages::now ? MAP_POPULATE : 0));
  return SharedMemory{Fd{}, bytes};  // a mapping needs no descriptor: they are few
}

}  // namespace elrun::inline v0
