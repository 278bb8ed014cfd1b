#include "lib/comm/tcp/frame_connection.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

namespace elrun::inline v0 {
namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

namespace {

/// What a connection within this host holds that was not read yet; the system takes twice of it. Then one frame fits with the system's own
/// data about it, and what is under way stays in a cache. Left to itself the system takes many MiB: 256 MiB took half as long again.
constexpr Bytes unread_max = 272_KiB;
static_assert(2 * unread_max.value() > frame_payload_max.value() + frame_header_size && unread_max < frame_payload_max);

/// Asio's own `transfer_all` goes to the system in steps of 64 KiB.
constexpr auto everything = [](const ErrorCode& error, std::size_t) -> std::size_t {
  return error ? 0 : frame_payload_max.value() + frame_header_size;
};

using SendPiece = std::span<const std::byte>;
using ReceivePiece = std::span<std::byte>;

/// Asio copies buffer sequences by value; this one needs no allocation for that.
template <class Buffer>
class Buffers {
 public:
  using value_type = Buffer;
  using const_iterator = const Buffer*;
  Buffers(const std::array<Buffer, pieces_max>& all, std::size_t used) : all_{all}, used_{used} {}
  [[nodiscard]] const_iterator begin() const { return all_.data(); }
  [[nodiscard]] const_iterator end() const { return all_.data() + used_; }

 private:
  std::array<Buffer, pieces_max> all_;
  std::size_t used_;
};

Failure sent_by(Rank peer, Failure failure) {
  failure.what = fmt::format("rank {} sent {}", peer.value(), failure.what);
  failure.peer = peer;
  return failure;
}

}  // namespace

FrameConnection::FrameConnection(Rank peer, const Membership& me, StreamSocket socket, bool carries, bool checked, CallSides& sides,
                                 const FrameEvents& events)
    : peer_{peer}, me_{me}, socket_{std::move(socket)}, carries_{carries}, checked_{checked}, sides_{sides}, events_{events} {
  if (!checked_) limit_unread(socket_.native_handle(), unread_max);
}

void FrameConnection::begin(const SendList& out, const ReceiveList& in, const CallLabel& label) {
  ++call_;
  label_ = label;
  in_.list = Cursor<ReceivePiece>{in};
  out_.list = Cursor<SendPiece>{out};
  in_.total = in_.list.left();
  out_.total = out_.list.left();
  if (in_.total > 0) ++sides_.open;
  if (out_.total > 0) ++sides_.open;
  if (ended_) {
    if (in_.total > 0 || out_.total > 0) events_.missed(peer_);
    return;
  }
  if (in_.reading == Reading::call) match();
  if (out_.total > 0 && !closed_) write_frame();
}

void FrameConnection::end(const ErrorCode& error) {
  ended_ = true;
  events_.ended(peer_, error);
}

void FrameConnection::close() {
  closed_ = true;
  ErrorCode ignored;
  // A child that this process forked has a copy of the descriptor: without this, the peer would take the connection for open until the child ends.
  socket_.shutdown(StreamSocket::shutdown_both, ignored);
  socket_.close(ignored);
}

// --- the reading side ---

void FrameConnection::read_header() {
  in_.reading = Reading::header;
  asio::async_read(socket_, asio::buffer(in_.bytes), [this](const ErrorCode& error, std::size_t) {
    if (closed_) return;
    if (error) return end(error);
    auto frame = decode_frame_header(in_.bytes, me_.generation);
    if (!frame.ok()) return events_.failed(sent_by(peer_, frame.failure()));
    if (!carries_)
      return events_.failed(
          sent_by(peer_, {.code = Code::protocol, .remedy = Remedy::abort_group, .what = "a frame, though its bytes go through memory"}));
    in_.frame = *frame;
    in_.left = frame->length;
    in_.checksum = 0;
    in_.reading = Reading::call;
    match();
  });
}

/// A frame whose header is here meets its call, or waits for it, or belongs to none.
void FrameConnection::match() {
  const bool wanted = !in_.list.done();
  const std::uint64_t call = call_of(in_.frame.call);
  if (call > call_ && !wanted) return;  // the peer is ahead: its bytes wait in the socket
  if (const std::uint16_t theirs = label_of(in_.frame.call); theirs != label_.number) return events_.differed(peer_, theirs, label_.number);
  if (const CallKind theirs = kind_of(in_.frame.call); call == call_ && theirs != label_.kind)
    return events_.failed(differing_kinds(peer_, theirs, label_.kind));
  if (!wanted || call != call_ || in_.frame.total != in_.total || in_.frame.length > in_.list.left()) {
    return events_.failed(
        {.code = Code::protocol,
         .remedy = Remedy::abort_group,
         .what = fmt::format("rank {} sent {} bytes in its call {} where {} bytes belong in call {}: the ranks make different calls",
                             peer_.value(), in_.frame.total, call, wanted ? in_.total : 0, call_),
         .peer = peer_});
  }
  in_.reading = Reading::payload;
  read_payload();
}

void FrameConnection::read_payload() {
  const std::span<ReceivePiece> pieces = in_.list.take(in_.left, in_.pieces);
  std::array<asio::mutable_buffer, pieces_max> buffers;
  std::ranges::transform(pieces, buffers.begin(), [](ReceivePiece piece) { return asio::buffer(piece.data(), piece.size()); });
  asio::async_read(socket_, Buffers<asio::mutable_buffer>{buffers, pieces.size()}, everything,
                   [this, pieces](const ErrorCode& error, std::size_t count) {
                     if (closed_) return;
                     if (error) return end(error);
                     if (in_.frame.checked) in_.checksum = checksum_of(pieces, in_.checksum);
                     in_.left -= static_cast<std::uint32_t>(count);
                     if (in_.left > 0) return read_payload();
                     if (in_.checksum != in_.frame.checksum) {
                       return events_.failed({.code = Code::protocol,
                                              .remedy = Remedy::abort_group,
                                              .what = fmt::format("bytes from rank {} do not match their checksum", peer_.value()),
                                              .peer = peer_});
                     }
                     const bool done = in_.list.done();
                     read_header();
                     if (done) sides_.close();
                   });
}

// --- the writing side ---

void FrameConnection::write_frame() {
  out_.sending = true;
  const std::span<SendPiece> pieces = out_.list.take(frame_payload_max.value(), std::span{out_.pieces}.first(pieces_max - 1));
  std::uint32_t length = 0;
  for (const SendPiece piece : pieces) length += static_cast<std::uint32_t>(piece.size());
  out_.bytes = encode(FrameHeader{.generation = me_.generation.number,
                                  .lineage = lineage_word(me_.generation.lineage),
                                  .call = call_word(call_, label_),
                                  .total = out_.total,
                                  .length = length,
                                  .checksum = checked_ ? checksum_of(pieces) : 0,
                                  .checked = checked_});
  std::array<asio::const_buffer, pieces_max> buffers;
  buffers[0] = asio::buffer(out_.bytes);
  std::ranges::transform(pieces, buffers.begin() + 1, [](SendPiece piece) { return asio::buffer(piece.data(), piece.size()); });
  asio::async_write(socket_, Buffers<asio::const_buffer>{buffers, pieces.size() + 1}, everything,
                    [this](const ErrorCode& error, std::size_t) {
                      if (closed_) return;
                      if (error) return end(error);
                      out_.sending = false;
                      if (out_.list.done()) sides_.close();
                      else write_frame();
                    });
}

}  // namespace elrun::inline v0
