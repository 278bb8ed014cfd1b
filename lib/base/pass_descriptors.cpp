#include "lib/base/pass_descriptors.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "lib/base/assert.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t descriptors_max = 4;  // in one message

}  // namespace

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
  if (sent < 0 && errno == ETOOMANYREFS)
    return Failure{
        Code::exhausted, Remedy::fix_config,
        "this user's processes have passed each other more descriptors that were not taken yet than one of them may open: raise the limit of open files (ulimit -n)"};
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
  std::size_t count = 0, came = 0;
  bool too_many = false;
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t here = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    came += here;
    for (std::size_t i = 0; i < here; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(control) + i * sizeof(int), sizeof number);
      Fd file{number};  // whatever comes is ours to close
      if (count < files.size()) files[count++] = std::move(file);
      else too_many = true;
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0 && came < descriptors_max) {  // there was room for more, but no number
    return Failure{Code::exhausted, Remedy::fix_config,
                   "this process has no descriptor free for memory that a peer shows it: raise its limit of open files (ulimit -n)"};
  }
  too_many = too_many || (message.msg_flags & MSG_CTRUNC) != 0;
  if (static_cast<std::size_t>(received) != bytes.size()) return broken("a message that is cut short");
  if (too_many || (count != 0 && count != files.size())) return broken("another number of descriptors than belongs to the message");
  return {};
}

}  // namespace elrun::inline v0
