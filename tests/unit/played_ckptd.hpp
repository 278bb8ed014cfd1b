#pragma once
/// \file `elrun ckptd` as a worker meets it, played by a test.

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "checkpoint/staging/slot.hpp"
#include "checkpoint/staging/slot_messages.hpp"
#include "lib/base/files.hpp"
#include "lib/base/pass_descriptors.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temporary_directory.hpp"

namespace elrun::test {

/// Listens as ckptd does, and says what a test makes it say.
struct Writer {
  Writer() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.native().size() + 1);
    listener = Fd{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listener.get(), 4) == 0);
  }
  void accept() { line = Fd{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)}; }
  SlotWord hear() {
    pollfd look{line.get(), POLLIN, 0};
    REQUIRE(::poll(&look, 1, 10'000) == 1);
    std::array<std::byte, 1> packet{};
    std::array<Fd, 1> files;
    REQUIRE(receive_with(line.get(), packet, files).ok());
    if (files[0]) slot.emplace(SlotView::open(std::move(files[0])).value());
    return parse_slot_word(packet).value();
  }
  void say(const std::optional<SaveOutcome>& outcome) const {
    const ByteVector packet = encode(outcome);
    REQUIRE(::send(line.get(), packet.data(), packet.size(), 0) == static_cast<ssize_t>(packet.size()));
  }
  [[nodiscard]] bool has_lost_its_worker() const {
    pollfd look{line.get(), POLLIN, 0};
    std::byte packet{};
    return ::poll(&look, 1, 10'000) == 1 && ::recv(line.get(), &packet, 1, 0) <= 0;
  }
  TemporaryDirectory directory;
  Path path = Path{directory.path()} / ckptd_socket;
  Fd listener, line;
  std::optional<SlotView> slot;
};

}  // namespace elrun::test
