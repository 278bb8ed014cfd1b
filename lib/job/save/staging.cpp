#include "lib/job/save/staging.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/staging/save_words.hpp"
#include "checkpoint/staging/slot_save.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/pass_descriptors.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration overdue_after = save_deadline + 60s;  // ckptd itself ends a save at its deadline, unless it hangs
constexpr Duration look_wait = 200ms;                    // for the store to say how a save ended whose writer is gone

/// Nothing came; or the end of the connection, as a failure.
Result<std::optional<ByteVector>> packet_from(int socket) {
  ByteVector packet(outcome_packet_max);
  const ssize_t got = ::recv(socket, packet.data(), packet.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<ByteVector>{};
  if (got <= 0) return Failure{Code::peer_lost, Remedy::retry, "elrun ckptd of this node ended while it wrote the checkpoint"};
  packet.resize(static_cast<std::size_t>(got));
  return std::optional{std::move(packet)};
}

/// The other end is gone; what it had not read makes that an error, and no end of the stream.
bool has_ended(int socket) {
  std::byte peeked{};
  const ssize_t got = ::recv(socket, &peeked, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace

bool Staging::has_writer() const {
  std::error_code unknown;
  return !socket_.empty() && std::filesystem::exists(socket_, unknown);
}

void Staging::promise(const SlotOwner& owner) {
  slot_.promise(owner);
  promised_ = owner;
}

std::optional<SlotOwner> Staging::break_promise() {
  if (promised_) slot_.withdraw();
  return std::exchange(promised_, std::nullopt);
}

Result<void> Staging::make_room(std::uint64_t record_bytes, std::uint64_t data_bytes) {
  slot_ = {};                                              // before the new one
  if (std::exchange(slot_is_there_, false)) line_ = Fd{};  // ckptd lets go of it, too
  ELRUN_TRY_ASSIGN(slot_, StagingSlot::make(record_bytes, data_bytes));
  return {};
}

Result<void> Staging::connect() {
  if (line_ && has_ended(line_.get())) line_ = Fd{};  // another ckptd answers by now
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
  copy_failed_.reset();  // of a save that is over
  ELRUN_TRY(connect());
  const std::span<std::byte> data = slot_.begin(encode(record), layout.data_bytes);
  promised_.reset();
  ELRUN_TRY(say(SlotWord::begin));
  under_way_ = UnderWay{noted_save(record), record.rank, clock_.now()};
  const auto copy = [this, data, layout, state, rank = record.rank] {
    try {
      for (std::size_t i = 0; i < layout.fragments.size(); ++i)
        state.read_beside(i, data.subspan(layout.fragments[i].offset, layout.fragments[i].bytes));
    } catch (const Error& error) {  // of the device
      copy_failed_ = error.failure();
      copy_failed_->what = "the copy of the state for a checkpoint failed: " + copy_failed_->what;
      copy_failed_->rank = Rank{rank};
      return;
    }
    slot_.seal();
    (void)say(SlotWord::sealed);  // where ckptd is gone, `hear` says so
  };
  try {
    copy_ = quiet_thread(copy);
  } catch (const std::system_error&) {  // no thread: the copy is made here
    copy();
  }
  return {};
}

void Staging::finish_copy() {
  if (copy_.joinable()) copy_.join();
  if (!copy_failed_) return;
  line_ = Fd{};  // ckptd tells the others that this part never comes
  slot_is_there_ = false;
}

Failure Staging::why_lost(std::uint32_t rank) {
  if (copy_failed_) return *std::exchange(copy_failed_, std::nullopt);
  return {.code = Code::peer_lost,
          .remedy = Remedy::retry,
          .what = "elrun ckptd of this node ended while it wrote the checkpoint",
          .rank = Rank{rank}};
}

std::optional<SaveOutcome> Staging::lost(Store& store) {
  finish_copy();  // it says its last word on the line
  line_ = Fd{};
  slot_is_there_ = false;
  if (!under_way_) return {};
  const UnderWay was = *std::exchange(under_way_, std::nullopt);
  const Failure why = why_lost(was.rank);
  // It may have ended after the commit.
  const auto soon = [this] { return Deadline::after(clock_.now(), look_wait); };
  if (auto told = told_outcome(store, was.save, soon)) return told;
  (void)tell_gone(store, was.save, was.rank, why, soon());
  return SaveOutcome{was.save.fence, was.save.step, {}, why};
}

std::optional<SaveOutcome> Staging::hear(Store& store, Deadline deadline) {
  while (under_way_) {
    if (!line_) return lost(store);
    auto packet = packet_from(line_.get());
    if (!packet.ok()) return lost(store);
    if (*packet) {
      auto outcome = decode_save_outcome(**packet);
      if (!outcome.ok()) return lost(store);
      if (*outcome && (*outcome)->fence == under_way_->save.fence && (*outcome)->step == under_way_->save.step) {
        finish_copy();
        under_way_.reset();
        return std::move(*outcome);
      }
      continue;
    }
    if (!under_way_->is_overdue && clock_.now() - under_way_->begun > overdue_after) {
      under_way_->is_overdue = true;
      return SaveOutcome{
          under_way_->save.fence,
          under_way_->save.step,
          {},
          Failure{.code = Code::deadline_passed,
                  .remedy = Remedy::retry,
                  .what = fmt::format("elrun ckptd of this node has not said for {} how the save ended: does its storage hang?",
                                      for_people(clock_.now() - under_way_->begun)),
                  .rank = Rank{under_way_->rank}}};
    }
    const Duration left = deadline.left(clock_.now());
    if (left <= Duration{0}) return {};
    pollfd look{line_.get(), POLLIN, 0};
    (void)::poll(&look, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(std::min<Duration>(left, 1s)).count()));
  }
  return {};
}

void Staging::hurry() {
  if (under_way_) (void)say(SlotWord::hurry);  // where ckptd is gone, `hear` says so
}

void Staging::settle() {
  if (under_way_) (void)say(SlotWord::settle);  // where ckptd is gone, `hear` says so
}

std::optional<SaveOutcome> Staging::wait_until_settled(Store& store, Deadline deadline) {
  finish_copy();
  if (!has_writer()) return {};
  std::optional<SaveOutcome> own;
  const auto writer_ended = [&] {
    if (auto end = lost(store); end && !own) own = std::move(end);
    return own;
  };
  // Of a save under way only the ckptd that has it can tell the end; another one has none.
  if (under_way_ && (!line_ || has_ended(line_.get()))) (void)writer_ended();
  if (!connect().ok() || !say(SlotWord::settle).ok()) return writer_ended();
  for (;;) {
    const auto packet = packet_from(line_.get());
    if (!packet.ok()) return writer_ended();
    if (*packet) {
      auto outcome = decode_save_outcome(**packet);
      if (!outcome.ok()) return writer_ended();
      if (!*outcome) return under_way_.reset(), own;
      if (under_way_ && (*outcome)->fence == under_way_->save.fence) under_way_.reset(), own = std::move(*outcome);
      continue;
    }
    const Duration left = deadline.left(clock_.now());
    if (left <= Duration{0}) return own;
    pollfd look{line_.get(), POLLIN, 0};
    (void)::poll(&look, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(std::min<Duration>(left, 1s)).count()));
  }
}

}  // namespace elrun::inline v0
