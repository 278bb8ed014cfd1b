#include "lib/comm/shm/doorbell.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <ctime>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {

Result<Doorbell> Doorbell::make() {
  Fd file{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!file) return from_errno(errno, "make an eventfd");
  return Doorbell{std::move(file)};
}

void Doorbell::ring() const noexcept {
  const std::uint64_t once = 1;
  (void)!::write(file_.get(), &once, sizeof once);  // it fails only after 2^64 rings; then the waiter wakes anyway
}

void Doorbell::wait(Duration most) const noexcept {
  pollfd heard{file_.get(), POLLIN, 0};
  const timespec limit{static_cast<std::time_t>(most / 1s), static_cast<long>((most % 1s).count())};
  if (::ppoll(&heard, 1, &limit, nullptr) != 1) return;
  std::uint64_t rings = 0;
  (void)!::read(file_.get(), &rings, sizeof rings);
}

}  // namespace elrun::inline v0
