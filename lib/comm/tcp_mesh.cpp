/// The idea: each peer has one connection, with a reading and a writing side that go on by themselves. The reading side
/// always waits for the next frame's header, which is also how the end of a peer is seen; a frame that arrives before
/// its call stays in the socket behind its header. The writing side cuts the call's pieces into frames. Payload goes
/// between the caller's memory and the socket without a stop in between. A call is over when all its sides are done, or
/// when the mesh fails: then all sockets are closed first, so that nothing touches the caller's memory any more.

#include "lib/comm/tcp_mesh.hpp"

#include <unistd.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <elrun/philox.hpp>

#include "lib/base/assert.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/failure.hpp"
#include "lib/comm/frame.hpp"
#include "lib/comm/handshake.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/link/roll_call.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0 {
namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

namespace {

constexpr Duration handshake_max = 10s;      // for a whole handshake, so that a half-open connection costs little
constexpr std::size_t strangers_max = 4096;  // accepted connections that have proved nothing yet
constexpr Duration redial_most = 500ms;
constexpr Duration accept_pause = 50ms;
/// Between seeing a peer go and failing for it. Whoever fails closes its connections, and its peers would name it instead
/// of the one that went first; and the session, which knows the cause, mostly ends the generation within this.
constexpr Duration loss_grace = 100ms;

/// Asio's own `transfer_all` goes to the system in steps of 64 KiB.
constexpr auto everything = [](const ErrorCode& error, std::size_t) -> std::size_t { return error ? 0 : frame_payload_max.value() + frame_header_size; };

using SendPiece = std::span<const std::byte>;
using ReceivePiece = std::span<std::byte>;

}  // namespace

class TcpMesh::State : public std::enable_shared_from_this<State> {
 public:
  State(const Place& place, Duration connect)
      : me_{place.membership}, key_{place.key}, connect_deadline_{Deadline::after(clock_.now(), connect)}, peers_(me_.world.value()), timer_{loop_}, listen_pause_{loop_}, loss_timer_{loop_} {
    std::uint64_t seed = 0;
    random_bytes(std::as_writable_bytes(std::span{&seed, 1}));
    jitter_ = Rng{seed};
    for (std::uint32_t rank = 0; rank < peers_.size(); ++rank) peers_[rank].rank = Rank{rank};
  }

  // --- on the caller's thread ---

  Result<void> connect(Session& session) {
    if (me_.world == WorldSize{1}) return {};  // nobody to connect to: no socket, no thread
    ELRUN_TRY_ASSIGN(const auto addresses, resolve(session.place().address, 0));
    ELRUN_TRY_ASSIGN(Fd listener, listen_on(addresses.front()));
    SocketAddress mine = addresses.front();  // as peers reach it; a listener on all addresses does not know
    const std::string place = fmt::format("{} {}", local_address(listener.get()).port(), mine.host());
    ELRUN_TRY_ASSIGN(const auto places, session.store().all_gather("elrun/comm/addresses", me_.rank, me_.world, as_bytes(place), connect_deadline_));
    for (std::uint32_t rank = 0; rank < peers_.size(); ++rank) {
      const std::string text{as_text(places[rank]).substr(0, 300)};
      unsigned port = 0;
      char host[257] = "";
      if (std::sscanf(text.c_str(), "%u %256s", &port, host) != 2 || port == 0 || port > 65535) {
        return Failure{.code = Code::protocol, .remedy = Remedy::abort_group, .what = fmt::format("rank {} told no address: \"{}\"", rank, text), .peer = Rank{rank}};
      }
      if (Rank{rank} < me_.rank) {
        ELRUN_TRY_ASSIGN(const auto found, resolve(host, static_cast<std::uint16_t>(port)));
        peers_[rank].address = found.front();
      }
    }
    asio::post(loop_, [this, listener = std::make_shared<Fd>(std::move(listener))] { begin_connecting(std::move(*listener)); });
    thread_ = quiet_thread([self = shared_from_this()] { self->loop_.run(); });
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] { return connected_ || failure_; });  // the loop keeps the deadline
    if (connected_) return {};
    return *failure_;
  }

  void stop() {
    if (!thread_.joinable()) return;
    loop_.stop();
    thread_.join();
  }

  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom, Duration limit) {
    {
      const std::lock_guard lock{mutex_};
      if (failure_) return *failure_;
      call_done_ = false;
    }
    if (!thread_.joinable()) return {};  // a world of one moves nothing
    asio::post(loop_, [this, sends, receives, whom, limit] { begin_call(sends, receives, whom, limit); });
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] { return call_done_; });  // the loop keeps the deadline
    if (failure_ && !call_succeeded_) return *failure_;
    return {};
  }

  void revoke(const Failure& why) {
    Failure failure = why;
    failure.code = Code::generation_over;
    failure.what = fmt::format("the generation is over: {}", why.what);
    {
      const std::lock_guard lock{mutex_};
      if (!failure_) failure_ = located(std::move(failure));
    }
    asio::post(loop_, [this] { close_all(); });  // the loop lives in this object: a letter that owns it would keep both for ever
  }

  [[nodiscard]] const Membership& membership() const { return me_; }

 private:
  struct Peer {
    Rank rank{};
    SocketAddress address;                  // of lower ranks
    std::optional<StreamSocket> socket;     // once both have proved the key
    std::string last_problem;               // why it is not connected yet
    std::optional<Failure> lost;            // it is gone; fatal only to calls that still need it
    std::uint64_t call = 0;                 // number of the latest call with this peer

    FrameHeaderBytes header_in{};
    std::optional<FrameHeader> frame;       // whose payload is being read, or waits for its call
    std::uint32_t frame_left = 0, checksum = 0;
    bool reading = false;                   // of payload
    Cursor<ReceivePiece> in;
    std::uint64_t in_total = 0;
    std::array<ReceivePiece, pieces_max> in_pieces{};

    FrameHeaderBytes header_out{};
    Cursor<SendPiece> out;
    std::uint64_t out_total = 0;
    bool sending = false;
    std::array<SendPiece, pieces_max> out_pieces{};
  };
  struct Stranger {
    std::optional<StreamSocket> socket;
    asio::steady_timer timer;
    std::array<std::byte, introduction_size> introduction{};
    std::array<std::byte, proof_size> proof{};
    std::array<std::byte, answer_size> answer{};
    Introduction said{};
    Nonce nonce{};
    SocketAddress to;
  };
  using StrangerHandle = std::shared_ptr<Stranger>;

  // --- connecting; on the communication thread, as all that follows ---

  void begin_connecting(Fd listener) {
    if (over_) return;
    timer_.expires_after(connect_deadline_.left(clock_.now()));
    timer_.async_wait([this](const ErrorCode& error) {
      if (!error && !connected_) fail(not_connected());
    });
    listener_.emplace(loop_, listener.give_up());
    accept();
    for (std::uint32_t rank = 0; rank < me_.rank.value(); ++rank) dial(peers_[rank]);
    connect_if_complete();
  }

  Failure not_connected() {
    std::vector<Rank> missing;
    std::string why;
    for (const Peer& peer : peers_) {
      if (peer.rank == me_.rank || peer.socket) continue;
      missing.push_back(peer.rank);
      if (why.empty()) why = peer.last_problem;
    }
    return {.code = Code::deadline_passed,
            .remedy = Remedy::rejoin,
            .what = fmt::format("not connected in time with {} of {} ranks: {}{}{}", missing.size(), peers_.size() - 1, list_ranks(missing), why.empty() ? "" : "; ", why),
            .peer = missing.empty() ? std::nullopt : std::optional{missing.front()}};
  }

  StrangerHandle stranger(Fd fd, int family) {
    auto handle = std::make_shared<Stranger>(Stranger{.socket = adopt(loop_, std::move(fd), family), .timer = asio::steady_timer{loop_}});
    handle->timer.expires_after(handshake_max);
    handle->timer.async_wait([handle](const ErrorCode& error) {
      ErrorCode ignored;
      if (!error && handle->socket) handle->socket->close(ignored);
    });
    return handle;
  }

  void accept() {
    listener_->async_wait(asio::posix::stream_descriptor::wait_read, [this](const ErrorCode& error) {
      if (error || !listener_) return;
      for (;;) {
        auto accepted = accept_one(listener_->native_handle());
        if (!accepted.ok()) {  // no descriptor is free: the listener stays readable, so do not spin on it
          listen_pause_.expires_after(accept_pause);
          return listen_pause_.async_wait([this](const ErrorCode& stopped) {
            if (!stopped && listener_) accept();
          });
        }
        if (!*accepted) return accept();
        if (strangers_.size() < strangers_max) hear(std::move(**accepted));
      }
    });
  }

  void hear(Fd fd) {
    set_no_delay(fd.get());
    const StrangerHandle guest = stranger(std::move(fd), local_address(listener_->native_handle()).family());
    strangers_.insert(guest);
    asio::async_read(*guest->socket, asio::buffer(guest->introduction), [this, guest](const ErrorCode& error, std::size_t) {
      auto said = decode_introduction(guest->introduction);
      if (error || over_ || !said.ok()) return dismiss(guest);
      guest->said = *said;
      const bool expected = said->generation == me_.generation && said->world == me_.world && said->to == me_.rank &&
                            said->from > me_.rank && said->from.value() < me_.world.value() && !peers_[said->from.value()].socket;
      if (!expected) return dismiss(guest);  // another generation, or nobody who would dial this rank
      random_bytes(guest->nonce);
      const Sha256 proof = proof_of(Role::listener, key_, guest->said, guest->nonce);
      std::ranges::copy(guest->nonce, guest->answer.begin());
      std::ranges::copy(proof, guest->answer.begin() + guest->nonce.size());
      asio::async_write(*guest->socket, asio::buffer(guest->answer), [this, guest](const ErrorCode& failed, std::size_t) {
        if (failed || over_) return dismiss(guest);
        asio::async_read(*guest->socket, asio::buffer(guest->proof), [this, guest](const ErrorCode& cut, std::size_t) {
          if (cut || over_) return dismiss(guest);
          Peer& peer = peers_[guest->said.from.value()];
          if (!equal_constant_time(guest->proof, proof_of(Role::dialer, key_, guest->said, guest->nonce))) {
            peer.last_problem = "somebody dialled in its name without the generation's key";
            return dismiss(guest);
          }
          if (peer.socket) return dismiss(guest);
          admit(peer, *guest);
          strangers_.erase(guest);
        });
      });
    });
  }

  void dismiss(const StrangerHandle& guest) {
    strangers_.erase(guest);
    guest->timer.cancel();
    guest->socket.reset();
  }

  void dial(Peer& peer) {
    auto fd = connect_begin(peer.address);
    if (!fd.ok()) return dial_later(peer, fd.failure().what);
    set_no_delay(fd->get());
    const StrangerHandle host = stranger(std::move(*fd), peer.address.family());
    strangers_.insert(host);
    host->socket->async_wait(StreamSocket::wait_write, [this, host, &peer](const ErrorCode& error) {
      if (over_) return dismiss(host);
      if (error) return redial(host, peer, fmt::format("{} did not answer", to_string(peer.address)));
      if (const auto connected = connect_result(host->socket->native_handle(), peer.address); !connected.ok()) return redial(host, peer, connected.failure().what);
      introduce(host, peer);
    });
  }

  void introduce(const StrangerHandle& host, Peer& peer) {
    host->said = {me_.generation, me_.world, me_.rank, peer.rank, {}};
    random_bytes(host->said.nonce);
    host->introduction = encode(host->said);
    asio::async_write(*host->socket, asio::buffer(host->introduction), [this, host, &peer](const ErrorCode& error, std::size_t) {
      if (over_) return dismiss(host);
      if (error) return redial(host, peer, "it closed the connection at once");
      asio::async_read(*host->socket, asio::buffer(host->answer), [this, host, &peer](const ErrorCode& cut, std::size_t) {
        if (over_) return dismiss(host);
        if (cut) return redial(host, peer, "it closed the connection without an answer: it knows another generation, or has another key");
        std::ranges::copy(ByteSpan{host->answer}.first(host->nonce.size()), host->nonce.begin());
        if (!equal_constant_time(ByteSpan{host->answer}.subspan(host->nonce.size()), proof_of(Role::listener, key_, host->said, host->nonce))) {
          dismiss(host);
          return fail({.code = Code::refused, .remedy = Remedy::abort_group,
                       .what = fmt::format("who answers as rank {} at {} does not have this generation's key", peer.rank.value(), to_string(peer.address)),
                       .peer = peer.rank});
        }
        const Sha256 proof = proof_of(Role::dialer, key_, host->said, host->nonce);
        std::ranges::copy(proof, host->proof.begin());
        asio::async_write(*host->socket, asio::buffer(host->proof), [this, host, &peer](const ErrorCode& failed, std::size_t) {
          if (over_) return dismiss(host);
          if (failed) return redial(host, peer, "it closed the connection");
          admit(peer, *host);
          strangers_.erase(host);
        });
      });
    });
  }

  void redial(const StrangerHandle& host, Peer& peer, std::string why) {
    dismiss(host);
    dial_later(peer, std::move(why));
  }

  void dial_later(Peer& peer, std::string why) {
    peer.last_problem = std::move(why);
    const auto timer = std::make_shared<asio::steady_timer>(loop_, Duration{static_cast<Duration::rep>(jitter_.below(redial_most / 1ns)) + 1});
    timer->async_wait([this, timer, &peer](const ErrorCode& error) {
      if (!error && !over_) dial(peer);
    });
  }

  void admit(Peer& peer, Stranger& proved) {
    proved.timer.cancel();
    peer.socket = std::move(proved.socket);
    proved.socket.reset();
    read_header(peer);
    connect_if_complete();
  }

  void connect_if_complete() {
    if (over_) return;
    for (const Peer& peer : peers_) {
      if (peer.rank != me_.rank && !peer.socket) return;
    }
    timer_.cancel();
    listener_.reset();
    const std::lock_guard lock{mutex_};
    connected_ = true;
    changed_.notify_all();
  }

  // --- calls ---

  void begin_call(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom, Duration limit) {
    if (over_) return end_call(false);
    calling_ = true;
    sides_open_ = 1;  // this function's own hold, so that the call does not end while it begins
    timer_.expires_after(limit);
    timer_.async_wait([this, limit](const ErrorCode& error) {
      // A timer that had expired when it was set anew still calls: its time is over only if no later one stands.
      if (!error && calling_ && timer_.expiry() <= asio::steady_timer::clock_type::now()) fail(late(limit));
    });
    for (Peer& peer : peers_) {
      if (peer.rank == me_.rank || (whom && peer.rank != *whom)) continue;
      ++peer.call;
      peer.in = Cursor<ReceivePiece>{receives[peer.rank.value()]};
      peer.out = Cursor<SendPiece>{sends[peer.rank.value()]};
      peer.in_total = peer.in.left();
      peer.out_total = peer.out.left();
      if (peer.in_total > 0) ++sides_open_;
      if (peer.out_total > 0) ++sides_open_;
      if (peer.lost) {
        if (peer.in_total > 0 || peer.out_total > 0) miss(peer);
        continue;
      }
      if (peer.frame) match(peer);
      if (peer.out_total > 0 && !over_) write_frame(peer);
      if (over_) return;
    }
    close_side();
  }

  void close_side() {
    if (--sides_open_ == 0) end_call(true);
  }

  void end_call(bool success) {
    calling_ = false;
    timer_.cancel();
    const std::lock_guard lock{mutex_};
    call_done_ = true;
    call_succeeded_ = success;
    changed_.notify_all();
  }

  Failure late(Duration limit) {
    std::vector<Rank> missing;
    for (const Peer& peer : peers_) {
      if (peer.rank != me_.rank && (!peer.in.done() || !peer.out.done() || peer.sending)) missing.push_back(peer.rank);
    }
    return {.code = Code::deadline_passed,
            .remedy = Remedy::abort_group,
            .what = fmt::format("a collective call was not over within {} ms; missing: {}", limit / 1ms, list_ranks(missing)),
            .peer = missing.empty() ? std::nullopt : std::optional{missing.front()}};
  }

  // --- the reading side ---

  void read_header(Peer& peer) {
    asio::async_read(*peer.socket, asio::buffer(peer.header_in), [this, &peer](const ErrorCode& error, std::size_t) {
      if (over_) return;
      if (error) return lose(peer, error);
      auto frame = decode_frame_header(peer.header_in, me_.generation);
      if (!frame.ok()) return fail(of_peer(peer, frame.failure()));
      peer.frame = *frame;
      peer.frame_left = frame->length;
      peer.checksum = 0;
      match(peer);
    });
  }

  /// A frame that waits meets its call, or belongs to none.
  void match(Peer& peer) {
    const FrameHeader& frame = *peer.frame;
    if (peer.reading) return;
    const bool wanted = !peer.in.done();
    if (frame.call > peer.call && !wanted) return;  // the peer is ahead: its bytes wait in the socket
    if (!wanted || frame.call != peer.call || frame.total != peer.in_total || frame.length > peer.in.left()) {
      return fail({.code = Code::protocol,
                   .remedy = Remedy::abort_group,
                   .what = fmt::format("rank {} sent {} bytes in its call {} where {} bytes belong in call {}: the ranks make different calls", peer.rank.value(),
                                       frame.total, frame.call, wanted ? peer.in_total : 0, peer.call),
                   .peer = peer.rank});
    }
    peer.reading = true;
    read_payload(peer);
  }

  void read_payload(Peer& peer) {
    const std::span<ReceivePiece> pieces = peer.in.take(peer.frame_left, peer.in_pieces);
    std::array<asio::mutable_buffer, pieces_max> buffers;
    std::ranges::transform(pieces, buffers.begin(), [](ReceivePiece piece) { return asio::buffer(piece.data(), piece.size()); });
    asio::async_read(*peer.socket, Buffers<asio::mutable_buffer>{buffers, pieces.size()}, everything, [this, &peer, pieces](const ErrorCode& error, std::size_t count) {
      if (over_) return;
      if (error) return lose(peer, error);
      peer.checksum = checksum_of(pieces, peer.checksum);
      peer.frame_left -= static_cast<std::uint32_t>(count);
      if (peer.frame_left > 0) return read_payload(peer);
      if (peer.checksum != peer.frame->checksum) {
        return fail({.code = Code::protocol, .remedy = Remedy::abort_group, .what = fmt::format("bytes from rank {} do not match their checksum", peer.rank.value()), .peer = peer.rank});
      }
      peer.frame.reset();
      peer.reading = false;
      const bool done = peer.in.done();
      read_header(peer);
      if (done) close_side();
    });
  }

  // --- the writing side ---

  void write_frame(Peer& peer) {
    peer.sending = true;
    const std::span<SendPiece> pieces = peer.out.take(frame_payload_max.value(), std::span{peer.out_pieces}.first(pieces_max - 1));
    std::uint32_t length = 0;
    for (const SendPiece piece : pieces) length += static_cast<std::uint32_t>(piece.size());
    peer.header_out = encode(FrameHeader{.generation = me_.generation.number,
                                         .lineage = lineage_word(me_.generation.lineage),
                                         .call = peer.call,
                                         .total = peer.out_total,
                                         .length = length,
                                         .checksum = checksum_of(pieces)});
    std::array<asio::const_buffer, pieces_max> buffers;
    buffers[0] = asio::buffer(peer.header_out);
    std::ranges::transform(pieces, buffers.begin() + 1, [](SendPiece piece) { return asio::buffer(piece.data(), piece.size()); });
    asio::async_write(*peer.socket, Buffers<asio::const_buffer>{buffers, pieces.size() + 1}, everything, [this, &peer](const ErrorCode& error, std::size_t) {
      if (over_) return;
      if (error) return lose(peer, error);
      peer.sending = false;
      if (peer.out.done()) close_side();
      else write_frame(peer);
    });
  }

  /// Asio copies buffer sequences by value; this one has its own room.
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

  // --- the end ---

  /// A peer that has delivered what it owes may leave: only who still needs it fails.
  void lose(Peer& peer, const ErrorCode& error) {
    const bool in_order = error == asio::error::eof;
    if (!peer.lost) {
      peer.lost = Failure{.code = Code::peer_lost,
                          .remedy = Remedy::rejoin,
                          .what = fmt::format("rank {} is gone: {}", peer.rank.value(), in_order ? "it closed the connection" : error.message()),
                          .peer = peer.rank};
    }
    if (calling_ && (!peer.in.done() || peer.reading || !peer.out.done() || peer.sending)) miss(peer);
  }

  /// The call cannot be completed any more: its sides with this peer stay open until it fails.
  void miss(const Peer& peer) {
    if (std::exchange(missing_, true)) return;  // the first to go is the one to name
    loss_timer_.expires_after(loss_grace);
    loss_timer_.async_wait([this, &peer](const ErrorCode& error) {
      if (!error && !over_) fail(*peer.lost);
    });
  }

  Failure of_peer(const Peer& peer, Failure failure) const {
    failure.what = fmt::format("rank {} sent {}", peer.rank.value(), failure.what);
    failure.peer = peer.rank;
    return failure;
  }

  Failure located(Failure failure) const {
    failure.rank = me_.rank;
    failure.generation = me_.generation;
    return failure;
  }

  void fail(Failure failure) {
    {
      const std::lock_guard lock{mutex_};
      if (!failure_) failure_ = located(std::move(failure));
    }
    close_all();
  }

  /// Afterwards nothing of this object touches a caller's memory; then whoever waits may go.
  void close_all() {
    over_ = true;
    timer_.cancel();
    loss_timer_.cancel();
    listener_.reset();
    for (const StrangerHandle& stranger : std::exchange(strangers_, {})) dismiss(stranger);
    for (Peer& peer : peers_) {
      ErrorCode ignored;
      if (peer.socket) peer.socket->close(ignored);
    }
    if (calling_) end_call(false);
    const std::lock_guard lock{mutex_};
    changed_.notify_all();
  }

  SteadyClock clock_;
  const Membership me_;
  const Key256 key_;
  const Deadline connect_deadline_;
  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{loop_.get_executor()};

  // The communication thread's own.
  std::vector<Peer> peers_;
  asio::steady_timer timer_, listen_pause_, loss_timer_;
  std::optional<asio::posix::stream_descriptor> listener_;
  std::set<StrangerHandle> strangers_;
  Rng jitter_{0};
  bool over_ = false, calling_ = false, missing_ = false;
  std::size_t sides_open_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool connected_ = false, call_done_ = false, call_succeeded_ = false;
  std::optional<Failure> failure_;

  std::thread thread_;
};

TcpMesh::TcpMesh(std::shared_ptr<State> state) : state_{std::move(state)}, owner_{::getpid()} {}

TcpMesh::~TcpMesh() {
  if (::getpid() == owner_) state_->stop();
  else (void)new std::shared_ptr<State>{std::move(state_)};  // a forked child: thread, loop and sockets are the parent's
}

Result<std::unique_ptr<TcpMesh>> TcpMesh::join(Session& session, Duration connect) {
  const auto state = std::make_shared<State>(session.place(), connect);
  std::unique_ptr<TcpMesh> mesh{new TcpMesh{state}};
  // From the first moment: a generation that ends while its members connect ends their waiting too.
  session.on_generation_over([weak = std::weak_ptr<State>{state}](const Failure& why) {
    if (const auto alive = weak.lock()) alive->revoke(why);
  });
  ELRUN_TRY(state->connect(session));
  return mesh;
}

Result<void> TcpMesh::exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom, Duration limit) {
  if (::getpid() != owner_) {
    return Failure{.code = Code::refused, .remedy = Remedy::exit_process, .what = fmt::format("this process was forked from worker {} and has no process group", owner_)};
  }
  return state_->exchange(sends, receives, whom, limit);
}

void TcpMesh::revoke(const Failure& why) { state_->revoke(why); }

}  // namespace elrun::inline v0
