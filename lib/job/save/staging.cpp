#include "lib/job/save/staging.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "checkpoint/staging/slot_save.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/pass_descriptors.hpp"
#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration look_wait = 200ms;  // for the store to say how a save ended whose writer is gone

/// Nothing came; or the end of the connection, as a failure.
Result<std::optional<ByteVector>> packet_from(int socket) {
  ByteVector packet(outcome_packet_max);
  const ssize_t got = ::recv(socket, packet.data(), packet.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<ByteVector>{};
  if (got <= 0) return Failure{Code::peer_lost, Remedy::retry, "elrun ckptd of this node ended while it wrote the checkpoint"};
  packet.resize(static_cast<std::size_t>(got));
  return std::optional{std::move(packet)};
}

}  // namespace

Result<void> Staging::make_room(std::uint64_t record_bytes, std::uint64_t data_bytes) {
  slot_ = {};  // before the new one
  slot_is_there_ = false;
  ELRUN_TRY_ASSIGN(slot_, StagingSlot::make(record_bytes, data_bytes));
  return {};
}

Result<void> Staging::connect() {
  std::byte peeked{};
  if (line_ && ::recv(line_.get(), &peeked, 1, MSG_PEEK | MSG_DONTWAIT) == 0) line_ = Fd{};  // another ckptd answers by now
  if (!line_) {
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
    slot_is_there_ = false;
  }
  if (slot_is_there_ || slot_.bytes() == 0) return {};
  const auto word = static_cast<std::byte>(SlotWord::slot);
  const int file = slot_.file();
  if (auto sent = send_with(line_.get(), {&word, 1}, {&file, 1}); !sent.ok()) return line_ = Fd{}, sent;
  slot_is_there_ = true;
  return {};
}

Result<void> Staging::say(SlotWord word) {
  const auto byte = static_cast<std::byte>(word);
  if (line_ && ::send(line_.get(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) return {};
  return Failure{Code::peer_lost, Remedy::retry, "elrun ckptd of this node is gone"};
}

Result<void> Staging::begin(const SlotRecord& record, const SlotLayout& layout, const HostFragments& state) {
  finish_copy();
  ELRUN_TRY(connect());
  const std::span<std::byte> data = slot_.begin(encode(record), layout.data_bytes);
  ELRUN_TRY(say(SlotWord::begin));
  under_way_ = UnderWay{record.ownership.fence, record.step, record.rank};
  const auto copy = [this, data, layout, state] {
    for (std::size_t i = 0; i < layout.fragments.size(); ++i)
      state.read(i, data.subspan(layout.fragments[i].offset, layout.fragments[i].bytes));
    slot_.seal();
    (void)say(SlotWord::sealed);  // where ckptd is gone, `hear` says so
  };
  if (!state.on_host()) return copy(), Result<void>{};
  try {
    copy_ = quiet_thread(copy);
  } catch (const std::system_error&) {  // no thread: the copy is made here
    copy();
  }
  return {};
}

void Staging::finish_copy() {
  if (copy_.joinable()) copy_.join();
}

std::optional<SaveOutcome> Staging::lost(Store& store) {
  finish_copy();  // it says its last word on the line
  line_ = Fd{};
  slot_is_there_ = false;
  if (!under_way_) return {};
  const UnderWay was = *std::exchange(under_way_, std::nullopt);
  const Failure why{.code = Code::peer_lost,
                    .remedy = Remedy::retry,
                    .what = "elrun ckptd of this node ended while it wrote the checkpoint",
                    .rank = Rank{was.rank}};
  // It may have ended after the commit.
  const auto soon = [this] { return Deadline::after(clock_.now(), look_wait); };
  if (auto told = told_outcome(store, was.fence, was.step, soon)) return told;
  (void)tell_gone(store, {was.fence, was.step}, was.rank, why, soon());
  return SaveOutcome{was.fence, was.step, {}, why};
}

std::optional<SaveOutcome> Staging::hear(Store& store, Deadline deadline) {
  while (under_way_) {
    if (!line_) return lost(store);
    auto packet = packet_from(line_.get());
    if (!packet.ok()) return lost(store);
    if (*packet) {
      auto outcome = decode_save_outcome(**packet);
      if (!outcome.ok()) return lost(store);
      if (*outcome && (*outcome)->fence == under_way_->fence && (*outcome)->step == under_way_->step) {
        finish_copy();
        under_way_.reset();
        return std::move(*outcome);
      }
      continue;
    }
    const Duration left = deadline.left(clock_.now());
    if (left <= Duration{0}) return {};
    pollfd look{line_.get(), POLLIN, 0};
    (void)::poll(&look, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(std::min<Duration>(left, 1s)).count()));
  }
  return {};
}

void Staging::settle() {
  if (under_way_) (void)say(SlotWord::settle);  // where ckptd is gone, `hear` says so
}

void Staging::wait_until_settled(Deadline deadline) {
  finish_copy();
  if (!has_writer() || !connect().ok() || !say(SlotWord::settle).ok()) return;
  for (;;) {
    const auto packet = packet_from(line_.get());
    if (!packet.ok()) return;
    if (*packet) {
      const auto outcome = decode_save_outcome(**packet);
      if (!outcome.ok() || !*outcome) return;
      if (under_way_ && (*outcome)->fence == under_way_->fence) under_way_.reset();  // of a generation whose state is gone
      continue;
    }
    const Duration left = deadline.left(clock_.now());
    if (left <= Duration{0}) return;
    pollfd look{line_.get(), POLLIN, 0};
    (void)::poll(&look, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(std::min<Duration>(left, 1s)).count()));
  }
}

}  // namespace elrun::inline v0
