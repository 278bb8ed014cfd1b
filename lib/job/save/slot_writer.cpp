#include "lib/job/save/slot_writer.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/pass_descriptors.hpp"
#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0 {
namespace {

class CkptdLine final : public SlotWriter {
 public:
  explicit CkptdLine(Path socket) : socket_{std::move(socket)} {}
  ~CkptdLine() override { CkptdLine::finish_copy(); }
  CkptdLine(const CkptdLine&) = delete;
  CkptdLine& operator=(const CkptdLine&) = delete;

  [[nodiscard]] bool is_there() const override {
    std::error_code unknown;
    return !socket_.empty() && std::filesystem::exists(socket_, unknown);
  }

  Result<void> connect() override {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (socket_.native().size() >= sizeof address.sun_path)
      return invalid("the path of elrun ckptd's socket is too long: " + socket_.string());
    std::memcpy(address.sun_path, socket_.c_str(), socket_.native().size() + 1);
    Fd line{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!line) return from_errno(errno, "make a socket");
    if (::connect(line.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      return from_errno(errno, "connect to elrun ckptd at " + socket_.string());
    line_ = std::move(line);
    return {};
  }
  void hang_up() override { line_ = Fd{}; }
  [[nodiscard]] bool is_connected() const override { return static_cast<bool>(line_); }
  /// What the other end had not read makes its end an error, and no end of the stream.
  [[nodiscard]] bool has_ended() const override {
    std::byte peeked{};
    const ssize_t got = ::recv(line_.get(), &peeked, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
  }

  Result<void> pass(const StagingSlot& slot) override {
    const auto word = static_cast<std::byte>(SlotWord::slot);
    const int file = slot.file();
    return send_with(line_.get(), {&word, 1}, {&file, 1});
  }
  Result<void> say(SlotWord word) override {
    const auto byte = static_cast<std::byte>(word);
    if (line_ && ::send(line_.get(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) return {};
    return Failure{Code::peer_lost, Remedy::retry, "elrun ckptd of this node is gone"};
  }
  Result<std::optional<ByteVector>> packet() override {
    ByteVector packet(outcome_packet_max);
    const ssize_t got = ::recv(line_.get(), packet.data(), packet.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<ByteVector>{};
    if (got <= 0) return Failure{Code::peer_lost, Remedy::retry, "elrun ckptd of this node ended while it wrote the checkpoint"};
    packet.resize(static_cast<std::size_t>(got));
    return std::optional{std::move(packet)};
  }
  void wait_for_packet(Duration at_most) override {
    pollfd look{line_.get(), POLLIN, 0};
    (void)::poll(&look, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(std::min<Duration>(at_most, 1s)).count()));
  }

  void copy_beside(std::function<void()> copy) override {
    try {
      owner_ = ::getpid();
      copy_ = quiet_thread(copy);
    } catch (const std::system_error&) {  // no thread: the copy is made here
      copy();
    }
  }
  void finish_copy() override { join_or_leak(copy_, owner_); }

 private:
  const Path socket_;
  Fd line_;
  std::thread copy_;
  pid_t owner_ = 0;  // of the thread
};

}  // namespace

std::unique_ptr<SlotWriter> slot_writer_at(Path socket) { return std::make_unique<CkptdLine>(std::move(socket)); }

}  // namespace elrun::inline v0
