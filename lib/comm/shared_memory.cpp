#include "lib/comm/shared_memory.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t descriptors_max = 4;  // in one message
constexpr std::size_t pages_at_once =
    1 << 20;                             // asked for between two signals: where one ends a call (before Linux 6.18), nothing is kept of it
constexpr int interruptions_max = 1000;  // of one such piece

Result<std::span<std::byte>> map(int file, std::size_t size, int protection, int pages = MAP_POPULATE) {
  void* const at = ::mmap(nullptr, size, protection, MAP_SHARED | pages, file, 0);
  if (at == MAP_FAILED) return from_errno(errno, fmt::format("map {} bytes of shared memory", size));
  return std::span{static_cast<std::byte*>(at), size};
}

/// All pages of a new file. Not ftruncate: its pages would be looked for at the first write, where their absence is a signal and no
/// error.
Result<void> get_pages(int file, std::size_t size) {
  int interruptions = 0;
  for (std::size_t at = 0; at < size;) {
    const std::size_t piece = std::min(pages_at_once, size - at);
    const int error = ::posix_fallocate(file, static_cast<off_t>(at), static_cast<off_t>(piece));
    if (error == EINTR && ++interruptions < interruptions_max) continue;
    if (error != 0) return from_errno(error, fmt::format("get {} bytes of shared memory", size));
    at += piece;
    interruptions = 0;
  }
  return {};
}

}  // namespace

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  file_ = std::move(other.file_);
  bytes_ = std::exchange(other.bytes_, {});
  return *this;
}

void SharedMemory::unmap() noexcept {
  if (!bytes_.empty()) (void)::munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
}

Result<SharedMemory> SharedMemory::make(Bytes size) { return make(size, false); }
Result<SharedMemory> SharedMemory::make_returnable(Bytes size) { return make(size, true); }

Result<SharedMemory> SharedMemory::make(Bytes size, bool returnable) {
  ELRUN_ASSERT(size > 0_B);
  Fd file{::memfd_create("elrun", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!file) return from_errno(errno, "make a memory file");
  ELRUN_TRY(get_pages(file.get(), size.value()));
  ELRUN_TRY_ASSIGN(const auto bytes, map(file.get(), size.value(), PROT_READ | PROT_WRITE));
  SharedMemory memory{std::move(file), bytes};
  if (::fcntl(memory.file(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return from_errno(errno, "seal shared memory");
  if (!returnable)
    (void)::fcntl(memory.file(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);  // older kernels do not have it: there a reader's honesty is all
  if (::fcntl(memory.file(), F_ADD_SEALS, F_SEAL_SEAL) != 0) return from_errno(errno, "seal shared memory");
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
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return refused("a file that is no memory, or may shrink while it is read");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return from_errno(errno, "look at shared memory");
  if (size == 0_B || static_cast<std::uint64_t>(status.st_size) != size.value()) {
    return refused(fmt::format("shared memory of {} bytes where {} were promised", status.st_size, size.value()));
  }
  ELRUN_TRY_ASSIGN(const auto bytes, map(file.get(), size.value(), PROT_READ, pages == Pages::now ? MAP_POPULATE : 0));
  return SharedMemory{Fd{}, bytes};  // a mapping needs no descriptor: they are few
}

Result<Bell> Bell::make() {
  Fd file{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!file) return from_errno(errno, "make an eventfd");
  return Bell{std::move(file)};
}

void Bell::ring() const noexcept {
  const std::uint64_t once = 1;
  (void)!::write(file_.get(), &once, sizeof once);  // full only when it was rung 2^64 times: then it is heard anyway
}

void Bell::wait(Duration most) const noexcept {
  pollfd heard{file_.get(), POLLIN, 0};
  const timespec limit{static_cast<std::time_t>(most / 1s), static_cast<long>((most % 1s).count())};
  if (::ppoll(&heard, 1, &limit, nullptr) != 1) return;
  std::uint64_t rings = 0;
  (void)!::read(file_.get(), &rings, sizeof rings);
}

Result<void> send_with(int socket, std::span<const std::byte> bytes, std::span<const int> files) {
  ELRUN_ASSERT(files.size() <= descriptors_max);
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * descriptors_max)> room{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!files.empty()) {
    message.msg_control = room.data();
    message.msg_controllen = CMSG_SPACE(files.size_bytes());
    cmsghdr* const control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(files.size_bytes());
    std::memcpy(CMSG_DATA(control), files.data(), files.size_bytes());
  }
  const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return from_errno(errno, "pass a descriptor");
  if (static_cast<std::size_t>(sent) != bytes.size()) return from_errno(EMSGSIZE, "pass a descriptor");
  return {};
}

Result<void> receive_with(int socket, std::span<std::byte> bytes, std::span<Fd> files) {
  const auto broken = [](const char* what) { return Failure{Code::protocol, Remedy::abort_group, what}; };
  ELRUN_ASSERT(files.size() <= descriptors_max);
  iovec piece{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * descriptors_max)> room{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = room.data();
  message.msg_controllen = room.size();
  const ssize_t received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (received < 0) return from_errno(errno, "take a descriptor");
  std::size_t count = 0;
  bool too_many = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t here = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < here; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(control) + i * sizeof(int), sizeof number);
      Fd file{number};  // whatever comes is ours to close
      if (count < files.size()) files[count++] = std::move(file);
      else too_many = true;
    }
  }
  if (static_cast<std::size_t>(received) != bytes.size()) return broken("a message that is cut short");
  if (too_many || (count != 0 && count != files.size())) return broken("another number of descriptors than belongs to the message");
  return {};
}

}  // namespace elrun::inline v0
