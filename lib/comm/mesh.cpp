/// The idea: each peer has one connection, with a reading and a writing side that go on by themselves. The reading side
/// always waits for the next frame's header, which is also how the end of a peer is seen; a frame that arrives before
/// its call stays in the socket behind its header. The writing side cuts the call's pieces into frames. Payload goes
/// between the caller's memory and the socket without a stop in between. A call is over when all its sides are done, or
/// when the mesh fails: then all sockets are closed first, so that nothing touches the caller's memory any more.
///
/// Peers of one host find each other at a Unix socket and prove the same key there. Then each offers its region of
/// memory (see lanes.cpp), looks at the other's, and says whether it can use it; only when both can do they, otherwise
/// frames go over that socket. The connection stays: its end tells of the peer's. Calls through memory run on the
/// caller's thread, beside the frames for other peers on the communication thread.

#include "lib/comm/mesh.hpp"

#include <sys/un.h>
#include <unistd.h>

#include <condition_variable>
#include <fstream>
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
#include "lib/base/quiet_thread.hpp"
#include "lib/base/timeouts.hpp"
#include "lib/comm/choose.hpp"
#include "lib/comm/connect/handshake.hpp"
#include "lib/comm/copy.hpp"
#include "lib/comm/shm/descriptors.hpp"
#include "lib/comm/shm/lanes.hpp"
#include "lib/comm/tcp/frame.hpp"
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
/// Wires are looked at this often. A peer of which so many looks in a row found no answer cannot be reached, though it may live.
constexpr Duration wire_look = 1s;
constexpr auto looks_max = static_cast<std::uint32_t>(Timeouts{}.peer_silence / wire_look), looks_of_suspicion = looks_max / 3;
/// Between seeing a peer go and failing for it. Whoever fails closes its connections, and its peers would name it instead
/// of the one that went first; and the session, which knows the cause, mostly ends the generation within this.
constexpr Duration loss_grace = 100ms;

/// What a connection within this host holds that was not read yet; the system takes twice of it. Then one frame fits with all that is
/// kept about it, and what is under way stays in a cache. Left to itself the system takes many MiB: 256 MiB took half as long again.
constexpr Bytes unread_max = 272_KiB;
static_assert(2 * unread_max.value() > frame_payload_max.value() + frame_header_size && unread_max < frame_payload_max);

/// Asio's own `transfer_all` goes to the system in steps of 64 KiB.
constexpr auto everything = [](const ErrorCode& error, std::size_t) -> std::size_t {
  return error ? 0 : frame_payload_max.value() + frame_header_size;
};

using SendPiece = std::span<const std::byte>;
using ReceivePiece = std::span<std::byte>;

/// What two ranks of one host tell each other after they have proved the key, and then whether they can use it.
struct MemoryOffer {
  std::uint64_t magic = 0x3230'524d'454d'4c45;  // "ELMEMR02": the last two digits are the version
  std::uint64_t size = 0;                       // of the region that comes with it; 0: there is none
};
enum class Verdict : std::uint8_t { unusable = 'n', usable = 'y' };

/// The host since it was started; nothing when the system does not tell. Two processes that read the same one, and reach
/// each other's abstract sockets, can share memory.
std::string boot_of_host() {
  std::string id;
  std::ifstream{"/proc/sys/kernel/random/boot_id"} >> id;
  return id.size() <= 40 ? id : std::string{};
}

/// A name in the system's memory and in no folder: nothing stays behind. Nobody can guess it, and who learns it has no key.
SocketAddress abstract_address(std::string_view name) {
  SocketAddress address;
  auto& un = reinterpret_cast<sockaddr_un&>(address.storage);
  ELRUN_ASSERT(name.size() + 1 < sizeof un.sun_path);
  un.sun_family = AF_UNIX;
  std::memcpy(un.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

/// Both ends have one address. Of two processes of one host that means that no wire is between them, and memory guards itself;
/// else a tunnel or a proxy may look like that.
bool is_to_own_address(int socket) {
  const SocketAddress here = local_address(socket);
  SocketAddress there;
  there.size = sizeof there.storage;
  if (here.family() == AF_UNIX) return true;
  return ::getpeername(socket, reinterpret_cast<sockaddr*>(&there.storage), &there.size) == 0 && here.host() == there.host();
}

}  // namespace

class Mesh::State : public std::enable_shared_from_this<State> {
 public:
  State(const Place& place, Transport transport, const std::string& name, Duration connect)
      : me_{place.membership},
        key_{name.empty() ? place.key : hmac_sha256(place.key, as_bytes("group " + name))},
        name_{name},
        transport_{transport},
        connect_deadline_{Deadline::after(clock_.now(), connect)},
        peers_(me_.world.value()),
        timer_{loop_},
        loss_timer_{loop_},
        wire_timer_{loop_},
        door_{loop_},
        local_door_{loop_} {
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
    std::string place = fmt::format("{} {}", local_address(listener.get()).port(), mine.host());
    Fd local_listener;
    const std::string boot = boot_of_host();
    if (!boot.empty()) place += " " + boot;
    if (!boot.empty() && transport_ != Transport::tcp) {
      std::array<std::byte, 16> bits{};
      random_bytes(bits);
      const std::string name = "elrun-" + to_hex(bits);
      if (auto opened = listen_on(abstract_address(name)); opened.ok()) {
        local_listener = std::move(*opened);
        place += " " + name;
      }
    }
    ELRUN_TRY_ASSIGN(const auto places, session.store().all_gather("elrun/comm/addresses" + (name_.empty() ? name_ : "/" + name_), me_.rank,
                                                                   me_.world, as_bytes(place), connect_deadline_));
    std::vector<Rank> local;
    for (std::uint32_t rank = 0; rank < peers_.size(); ++rank) {
      const std::string text{as_text(places[rank]).substr(0, 450)};
      unsigned port = 0;
      char host[257] = "", its_boot[41] = "", name[65] = "";
      const int told = std::sscanf(text.c_str(), "%u %256s %40s %64s", &port, host, its_boot, name);
      if (told < 2 || port == 0 || port > 65535) {
        return Failure{.code = Code::protocol,
                       .remedy = Remedy::abort_group,
                       .what = fmt::format("rank {} told no address: \"{}\"", rank, text),
                       .peer = Rank{rank}};
      }
      PairFacts& facts = peers_[rank].facts;
      facts.wanted = transport_;
      facts.same_boot = told >= 3 && !boot.empty() && its_boot == boot;
      facts.both_listen = told == 4 && local_listener;
      if (connects_by_unix_socket(facts)) local.push_back(Rank{rank});
      if (Rank{rank} < me_.rank) {
        ELRUN_TRY_ASSIGN(const auto found, resolve(host, static_cast<std::uint16_t>(port)));
        peers_[rank].address = found.front();
        if (connects_by_unix_socket(facts)) peers_[rank].local_address = abstract_address(name);
      }
    }
    if (local_listener && local.size() > 1) {
      auto made = Lanes::make(me_, std::move(local));
      const std::lock_guard lock{mutex_};
      if (made.ok()) lanes_ = std::move(*made);
      else no_lanes_ = made.failure().what;
    }
    asio::post(loop_,
               [this, listener = std::make_shared<Fd>(std::move(listener)), beside = std::make_shared<Fd>(std::move(local_listener))] {
                 begin_connecting(std::move(*listener), std::move(*beside));
               });
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

  Result<void> transfer(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom, Duration limit,
                        const CallLabel& label, const std::function<void()>& meanwhile) {
    const auto part = [&](bool local) {
      return std::ranges::any_of(
          peers_, [&](const Peer& peer) { return peer.rank != me_.rank && peer.shares == local && (!whom || peer.rank == *whom); });
    };
    const bool by_memory = part(true), by_frames = part(false);
    const std::size_t me = me_.rank.value();
    if (!by_memory) copy_lists(sends[me], receives[me]);
    {
      const std::lock_guard lock{mutex_};
      if (failure_) return *failure_;
      call_done_ = !by_frames;
      call_succeeded_ = true;
    }
    if (by_frames) asio::post(loop_, [this, sends, receives, whom, limit, label] { begin_call(sends, receives, whom, limit, label); });
    if (meanwhile) meanwhile();
    if (!thread_.joinable()) return {};  // a world of one moves nothing
    Result<void> through_memory;
    if (by_memory) {
      through_memory = lanes_->transfer(sends, receives, whom, limit, label);
      if (!through_memory.ok()) give_up(through_memory.failure());
    }
    return end_of_call(through_memory.ok());
  }

  Result<void> reduce(const std::byte* in, std::byte* out, std::size_t count, DType type, ReduceOp op, bool gather, Duration limit,
                      const CallLabel& label) {
    {
      const std::lock_guard lock{mutex_};
      if (failure_) return *failure_;
      call_done_ = call_succeeded_ = true;
    }
    const auto reduced = lanes_->reduce(in, out, count, type, op, gather, limit, label);
    if (!reduced.ok()) give_up(reduced.failure());
    return end_of_call(reduced.ok());
  }

  [[nodiscard]] bool all_local() const {
    return lanes_ && std::ranges::all_of(peers_, [&](const Peer& peer) { return peer.rank == me_.rank || peer.shares; });
  }

  Result<void> share(const SharedBuffer& buffer) {
    {
      const std::lock_guard lock{mutex_};
      if (failure_) return *failure_;
    }
    if (!lanes_) return {};
    const auto shared = lanes_->share(buffer);
    return shared.ok() ? shared : Result<void>{located(shared.failure())};
  }

  void revoke(const Failure& why) {
    Failure failure = why;
    failure.code = Code::generation_over;
    failure.what = fmt::format("the generation is over: {}", why.what);
    {
      const std::lock_guard lock{mutex_};
      if (!failure_) failure_ = located(std::move(failure));
      if (lanes_) lanes_->end();
    }
    asio::post(loop_, [this] { close_all(); });  // the loop lives in this object: a posted task that owns it would keep both for ever
  }

  [[nodiscard]] const Membership& membership() const { return me_; }

 private:
  struct Peer {
    Rank rank{};
    SocketAddress address;                       // of lower ranks
    std::optional<SocketAddress> local_address;  // the Unix socket of those of this host
    PairFacts facts;                             // by which the transport is chosen
    bool shares = false;                         // its bytes go through memory: the choice once it is connected
    bool checked = true;                         // frames for it have checksums
    std::optional<StreamSocket> socket;          // once both have proved the key
    std::string last_problem;                    // why it is not connected yet
    bool answers = false;                        // its host does: a connection was made, whoever took it
    std::uint32_t unanswered = 0;                // looks in a row that found no answer to what was sent
    std::optional<Failure> lost;                 // it is gone; fatal only to calls that still need it
    std::uint64_t call = 0;                      // number of the latest call with this peer

    FrameHeaderBytes header_in{};
    std::optional<FrameHeader> frame;  // whose payload is being read, or waits for its call
    std::uint32_t frame_left = 0, checksum = 0;
    bool reading = false;  // of payload
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
    bool local = false;  // over a Unix socket
    Verdict mine = Verdict::unusable, theirs = Verdict::unusable;
  };
  using StrangerHandle = std::shared_ptr<Stranger>;
  struct Door {
    explicit Door(asio::io_context& loop) : pause{loop} {}
    std::optional<asio::posix::stream_descriptor> listener;
    asio::steady_timer pause;
  };

  // --- connecting; on the communication thread, as all that follows ---

  void begin_connecting(Fd listener, Fd local_listener) {
    if (over_) return;
    timer_.expires_after(connect_deadline_.left(clock_.now()));
    timer_.async_wait([this](const ErrorCode& error) {
      if (!error && !connected_) fail(not_connected());
    });
    wire_timer_.expires_after(Timeouts{}.peer_silence);
    wire_timer_.async_wait([this](const ErrorCode& error) {
      if (!error && !over_) fail_for_the_unreachable();
    });
    open(door_, std::move(listener));
    if (local_listener) open(local_door_, std::move(local_listener));
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
            .what = fmt::format("not connected in time with {} of {} ranks: {}{}{}", missing.size(), peers_.size() - 1, list_ranks(missing),
                                why.empty() ? "" : "; ", why),
            .peer = missing.empty() ? std::nullopt : std::optional{missing.front()}};
  }

  /// Peers were listening before they told where. So whoever is not even connected to after all this time is behind a cable,
  /// a switch or a firewall that lets nothing through, and it is not waited for any longer: that could be a long slot's time.
  void fail_for_the_unreachable() {
    std::vector<Rank> silent;
    for (const Peer& peer : peers_)
      if (peer.rank < me_.rank && !peer.socket && !peer.answers) silent.push_back(peer.rank);
    if (silent.empty()) return;
    const Peer& first = peers_[silent.front().value()];
    fail(unreachable(first, fmt::format("no connection to {} in {} s{}{}", to_string(first.address), Timeouts{}.peer_silence / 1s,
                                        first.last_problem.empty() ? "" : ": ", first.last_problem) +
                                (silent.size() > 1 ? "; nor to others: " + list_ranks(silent) : "")));
  }

  static Failure unreachable(const Peer& peer, const std::string& why) {
    return {.code = Code::unreachable,
            .remedy = Remedy::rejoin,
            .what = fmt::format("rank {} cannot be reached: {}", peer.rank.value(), why),
            .peer = peer.rank};
  }

  StrangerHandle stranger(Fd fd, int family) {
    auto handle = std::make_shared<Stranger>(
        Stranger{.socket = adopt(loop_, std::move(fd), family), .timer = asio::steady_timer{loop_}, .local = family == AF_UNIX});
    handle->timer.expires_after(handshake_max);
    handle->timer.async_wait([handle](const ErrorCode& error) {
      ErrorCode ignored;
      if (!error && handle->socket) handle->socket->close(ignored);
    });
    return handle;
  }

  void open(Door& door, Fd listener) {
    door.listener.emplace(loop_, listener.give_up());
    accept(door);
  }

  void accept(Door& door) {
    door.listener->async_wait(asio::posix::stream_descriptor::wait_read, [this, &door](const ErrorCode& error) {
      if (error || !door.listener) return;
      for (;;) {
        auto accepted = accept_one(door.listener->native_handle());
        if (!accepted.ok()) {  // no descriptor is free: the listener stays readable, so do not spin on it
          door.pause.expires_after(accept_pause);
          return door.pause.async_wait([this, &door](const ErrorCode& stopped) {
            if (!stopped && door.listener) accept(door);
          });
        }
        if (!*accepted) return accept(door);
        if (strangers_.size() < strangers_max) hear(std::move(**accepted), local_address(door.listener->native_handle()).family());
      }
    });
  }

  void hear(Fd fd, int family) {
    if (family != AF_UNIX) set_no_delay(fd.get());
    const StrangerHandle guest = stranger(std::move(fd), family);
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
          if (guest->local) offer_memory(guest, peer);
          else admit(peer, guest);
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
    const SocketAddress& to = connects_by_unix_socket(peer.facts) ? *peer.local_address : peer.address;
    auto fd = connect_begin(to);
    if (!fd.ok()) return not_reached(peer, fd.failure());
    if (to.family() != AF_UNIX) set_no_delay(fd->get());
    const StrangerHandle host = stranger(std::move(*fd), to.family());
    strangers_.insert(host);
    host->socket->async_wait(StreamSocket::wait_write, [this, host, &peer, to](const ErrorCode& error) {
      if (over_) return dismiss(host);
      if (error) return redial(host, peer, fmt::format("{} did not answer", to_string(to)));
      if (const auto connected = connect_result(host->socket->native_handle(), to); !connected.ok()) {
        dismiss(host);
        return not_reached(peer, connected.failure());
      }
      peer.answers = true;
      introduce(host, peer);
    });
  }

  /// The peer listens before it tells where. So if nobody listens at its Unix socket, that is in another network
  /// namespace of this host, as between containers. (A full queue there is another failure: it empties again.)
  void not_reached(Peer& peer, const Failure& why) {
    if (connects_by_unix_socket(peer.facts) && (why.code == Code::unreachable || why.code == Code::not_permitted))
      peer.facts.same_network = Known::no;
    dial_later(peer, why.what);
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
        if (!equal_constant_time(ByteSpan{host->answer}.subspan(host->nonce.size()),
                                 proof_of(Role::listener, key_, host->said, host->nonce))) {
          dismiss(host);
          return fail({.code = Code::refused,
                       .remedy = Remedy::abort_group,
                       .what = fmt::format("who answers as rank {} at {} does not have this generation's key", peer.rank.value(),
                                           to_string(peer.address)),
                       .peer = peer.rank});
        }
        const Sha256 proof = proof_of(Role::dialer, key_, host->said, host->nonce);
        std::ranges::copy(proof, host->proof.begin());
        asio::async_write(*host->socket, asio::buffer(host->proof), [this, host, &peer](const ErrorCode& failed, std::size_t) {
          if (over_) return dismiss(host);
          if (failed) return redial(host, peer, "it closed the connection");
          if (host->local) offer_memory(host, peer);
          else admit(peer, host);
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
    const auto timer =
        std::make_shared<asio::steady_timer>(loop_, Duration{static_cast<Duration::rep>(jitter_.below(redial_most / 1ns)) + 1});
    timer->async_wait([this, timer, &peer](const ErrorCode& error) {
      if (!error && !over_) dial(peer);
    });
  }

  // --- memory, between two of one host that have proved the key; both do the same ---

  void offer_memory(const StrangerHandle& proved, Peer& peer) {
    const auto offer = lanes_ ? lanes_->offer(peer.rank) : Lanes::Offer{};
    const MemoryOffer words{.size = offer.size.value()};
    const std::array<int, 3> files{offer.region, offer.doorbell, offer.post};
    if (!send_with(proved->socket->native_handle(), std::as_bytes(std::span{&words, 1}), std::span{files}.first(lanes_ ? files.size() : 0))
             .ok()) {
      return part(proved, peer, "it closed the connection");
    }
    proved->socket->async_wait(StreamSocket::wait_read, [this, proved, &peer](const ErrorCode& error) {
      if (over_) return dismiss(proved);
      if (error) return part(proved, peer, "it closed the connection");
      look_at_memory(proved, peer);
    });
  }

  void look_at_memory(const StrangerHandle& proved, Peer& peer) {
    MemoryOffer words;
    std::array<Fd, 3> files;
    if (!receive_with(proved->socket->native_handle(), std::as_writable_bytes(std::span{&words, 1}), files).ok() ||
        words.magic != MemoryOffer{}.magic) {
      return part(proved, peer, "it offered no memory, as a rank of this host would");
    }
    if (!lanes_) {
      peer.last_problem = no_lanes_;
    } else if (lanes_->attached(peer.rank)) {  // an earlier connection got as far and broke: what was attached stays the same
      proved->mine = Verdict::usable;
    } else if (words.size > 0 && files[0]) {
      const auto attached = lanes_->attach(peer.rank, std::move(files[0]), Bytes{words.size}, std::move(files[1]), std::move(files[2]));
      if (attached.ok()) proved->mine = Verdict::usable;
      else peer.last_problem = attached.failure().what;
    }
    asio::async_write(*proved->socket, asio::buffer(&proved->mine, 1), [this, proved, &peer](const ErrorCode& failed, std::size_t) {
      if (over_) return dismiss(proved);
      if (failed) return part(proved, peer, "it closed the connection");
      asio::async_read(*proved->socket, asio::buffer(&proved->theirs, 1), [this, proved, &peer](const ErrorCode& cut, std::size_t) {
        if (over_) return dismiss(proved);
        if (cut) return part(proved, peer, "it closed the connection");
        if (peer.socket) return dismiss(proved);
        peer.facts.same_network = Known::yes;
        peer.facts.memory = proved->mine == Verdict::usable && proved->theirs == Verdict::usable ? Known::yes : Known::no;
        admit(peer, proved);
      });
    });
  }

  /// The connection is of no use. Who dialled it dials again.
  void part(const StrangerHandle& proved, Peer& peer, std::string why) {
    if (peer.rank < me_.rank) return redial(proved, peer, std::move(why));
    peer.last_problem = std::move(why);
    dismiss(proved);
  }

  void admit(Peer& peer, const StrangerHandle& proved) {
    if (!proved->local) peer.facts.same_network = Known::no;  // also when the peer dialled and found no Unix socket
    const std::optional<Transport> chosen = choose(peer.facts);
    if (!chosen) {
      return fail(
          {.code = Code::not_permitted,
           .remedy = Remedy::fix_config,
           .what = fmt::format("rank {} is not to be reached through shared memory{}{}; ELRUN_TRANSPORT=auto takes TCP where it is not",
                               peer.rank.value(), peer.last_problem.empty() ? ": it is of another host, or was told to use TCP" : ": ",
                               peer.last_problem),
           .peer = peer.rank});
    }
    strangers_.erase(proved);
    proved->timer.cancel();
    peer.shares = chosen == Transport::shm;
    peer.checked = !(peer.facts.same_boot && is_to_own_address(proved->socket->native_handle()));
    peer.socket = std::move(proved->socket);
    proved->socket.reset();
    keep_alive(peer.socket->native_handle(), Timeouts{}.peer_silence);
    if (!peer.checked) limit_unread(peer.socket->native_handle(), unread_max);
    read_header(peer);
    connect_if_complete();
  }

  void connect_if_complete() {
    if (over_) return;
    for (const Peer& peer : peers_) {
      if (peer.rank != me_.rank && !peer.socket) return;
    }
    timer_.cancel();
    watch_the_wires();
    door_.listener.reset();
    local_door_.listener.reset();
    const std::lock_guard lock{mutex_};
    connected_ = true;
    changed_.notify_all();
  }

  // --- calls ---

  void begin_call(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom, Duration limit,
                  const CallLabel& label) {
    if (over_) return end_call(false);
    label_ = label;
    calling_ = true;
    sides_open_ = 1;  // this function's own hold, so that the call does not end while it begins
    timer_.expires_after(limit);
    timer_.async_wait([this, limit](const ErrorCode& error) {
      // A timer that had expired when it was set anew still calls: its time is over only if no later one stands.
      if (!error && calling_ && timer_.expiry() <= asio::steady_timer::clock_type::now()) fail(late(limit));
    });
    for (Peer& peer : peers_) {
      if (peer.rank == me_.rank || peer.shares || (whom && peer.rank != *whom)) continue;
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

  /// What the lanes could not do, for the communication thread to judge.
  void give_up(const Failure& failure) {
    if (failure.code == Code::generation_over) return;  // it said so first
    asio::post(loop_, [this, failure] {
      if (over_) return;
      if (failure.code == Code::peer_lost) miss(peers_[failure.peer->value()], failure);
      else fail(failure);
    });
  }

  Result<void> end_of_call(bool succeeded_through_memory) {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] { return call_done_ && (succeeded_through_memory || failure_); });  // the loop keeps the deadline
    if (failure_ && !(succeeded_through_memory && call_succeeded_)) return *failure_;
    return {};
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
      if (peer.shares)
        return fail(
            of_peer(peer, {.code = Code::protocol, .remedy = Remedy::abort_group, .what = "a frame, though its bytes go through memory"}));
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
    const std::uint64_t call = call_of(frame.call);
    if (call > peer.call && !wanted) return;  // the peer is ahead: its bytes wait in the socket
    if (const std::uint16_t theirs = label_of(frame.call); theirs != label_.number)
      return fail(differing_labels(peer.rank, theirs, label_));
    if (!wanted || call != peer.call || frame.total != peer.in_total || frame.length > peer.in.left()) {
      return fail(
          {.code = Code::protocol,
           .remedy = Remedy::abort_group,
           .what = fmt::format("rank {} sent {} bytes in its call {} where {} bytes belong in call {}: the ranks make different calls",
                               peer.rank.value(), frame.total, call, wanted ? peer.in_total : 0, peer.call),
           .peer = peer.rank});
    }
    peer.reading = true;
    read_payload(peer);
  }

  void read_payload(Peer& peer) {
    const std::span<ReceivePiece> pieces = peer.in.take(peer.frame_left, peer.in_pieces);
    std::array<asio::mutable_buffer, pieces_max> buffers;
    std::ranges::transform(pieces, buffers.begin(), [](ReceivePiece piece) { return asio::buffer(piece.data(), piece.size()); });
    asio::async_read(*peer.socket, Buffers<asio::mutable_buffer>{buffers, pieces.size()}, everything,
                     [this, &peer, pieces](const ErrorCode& error, std::size_t count) {
                       if (over_) return;
                       if (error) return lose(peer, error);
                       if (peer.frame->checked) peer.checksum = checksum_of(pieces, peer.checksum);
                       peer.frame_left -= static_cast<std::uint32_t>(count);
                       if (peer.frame_left > 0) return read_payload(peer);
                       if (peer.checksum != peer.frame->checksum) {
                         return fail({.code = Code::protocol,
                                      .remedy = Remedy::abort_group,
                                      .what = fmt::format("bytes from rank {} do not match their checksum", peer.rank.value()),
                                      .peer = peer.rank});
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
                                         .call = call_word(peer.call, label_.number),
                                         .total = peer.out_total,
                                         .length = length,
                                         .checksum = peer.checked ? checksum_of(pieces) : 0,
                                         .checked = peer.checked});
    std::array<asio::const_buffer, pieces_max> buffers;
    buffers[0] = asio::buffer(peer.header_out);
    std::ranges::transform(pieces, buffers.begin() + 1, [](SendPiece piece) { return asio::buffer(piece.data(), piece.size()); });
    asio::async_write(*peer.socket, Buffers<asio::const_buffer>{buffers, pieces.size() + 1}, everything,
                      [this, &peer](const ErrorCode& error, std::size_t) {
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

  // --- wires ---

  /// TCP itself tries again for a quarter of an hour. Looks are counted, not time: a process that was stopped for a while has
  /// seen nothing.
  void watch_the_wires() {
    if (std::ranges::none_of(peers_, [](const Peer& peer) { return peer.socket && !peer.shares; })) return wire_timer_.cancel(), void();
    wire_timer_.expires_after(wire_look);
    wire_timer_.async_wait([this](const ErrorCode& error) {
      if (error || over_) return;
      for (Peer& peer : peers_) {
        if (!peer.socket || peer.shares || peer.lost) continue;
        peer.unanswered = calling_ && is_unanswered(peer.socket->native_handle()) ? peer.unanswered + 1 : 0;
        if (peer.unanswered >= looks_max) lose(peer, asio::error::timed_out);
      }
      watch_the_wires();
    });
  }

  /// Who gave up may have done so because of a peer that this rank cannot reach either: that one is to be named.
  [[nodiscard]] std::optional<Failure> suspicion() const {
    const auto least = std::ranges::max_element(peers_, {}, &Peer::unanswered);
    if (least->unanswered < looks_of_suspicion) return {};
    return unreachable(*least, fmt::format("nothing that was sent to it was answered in {} s", least->unanswered * (wire_look / 1s)));
  }

  // --- the end ---

  /// A peer that has delivered what it owes may leave: only who still needs it fails.
  void lose(Peer& peer, const ErrorCode& error) {
    const bool in_order = error == asio::error::eof;
    if (!peer.lost &&
        (error == asio::error::timed_out || error == asio::error::host_unreachable || error == asio::error::network_unreachable)) {
      peer.lost = unreachable(peer, fmt::format("its host answered nothing for {} s", Timeouts{}.peer_silence / 1s));
    } else if (!peer.lost) {
      peer.lost =
          Failure{.code = Code::peer_lost,
                  .remedy = Remedy::rejoin,
                  .what = fmt::format("rank {} is gone: {}", peer.rank.value(), in_order ? "it closed the connection" : error.message()),
                  .peer = peer.rank};
    }
    if (!first_lost_) first_lost_ = peer.lost;
    if (peer.shares) lanes_->lose(peer.rank);
    if (calling_ && (!peer.in.done() || peer.reading || !peer.out.done() || peer.sending)) miss(peer);
  }

  /// The call cannot be completed any more: its sides with this peer stay open until it fails.
  void miss(const Peer& peer, const Failure& otherwise = {}) {
    if (std::exchange(missing_, true)) return;  // the first to go is the one to name
    loss_timer_.expires_after(loss_grace);
    loss_timer_.async_wait([this, &peer, otherwise](const ErrorCode& error) {
      if (error || over_) return;
      if (const auto silent = suspicion()) return fail(*silent);
      // Who has only given up did so because of another, mostly.
      fail(peer.lost ? *peer.lost : first_lost_ ? *first_lost_ : otherwise);
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
    if (!name_.empty()) failure.what = fmt::format("in the group \"{}\": {}", name_, failure.what);
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
    // Before the peers see the connections end, and take this rank for gone: nobody may read then what they reuse.
    if (lanes_) lanes_->end();
    timer_.cancel();
    loss_timer_.cancel();
    wire_timer_.cancel();
    door_.listener.reset();
    local_door_.listener.reset();
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
  const std::string name_;
  const Transport transport_;
  const Deadline connect_deadline_;
  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{loop_.get_executor()};

  // The communication thread's own.
  std::vector<Peer> peers_;
  asio::steady_timer timer_, loss_timer_, wire_timer_;
  Door door_, local_door_;
  std::set<StrangerHandle> strangers_;
  Rng jitter_{0};
  bool over_ = false, calling_ = false, missing_ = false;
  CallLabel label_;  // of the latest call
  std::size_t sides_open_ = 0;
  std::optional<Failure> first_lost_;
  std::string no_lanes_;  // why there are none

  std::unique_ptr<Lanes> lanes_;  // made before the communication thread begins; the caller's then, but for what any thread may do

  std::mutex mutex_;
  std::condition_variable changed_;
  bool connected_ = false, call_done_ = false, call_succeeded_ = false;
  std::optional<Failure> failure_;

  std::thread thread_;
};

Mesh::Mesh(std::shared_ptr<State> state) : state_{std::move(state)}, owner_{::getpid()} {}

Mesh::~Mesh() {
  if (::getpid() == owner_) state_->stop();
  else (void)new std::shared_ptr<State>{std::move(state_)};  // a forked child: thread, loop and sockets are the parent's
}

Result<std::unique_ptr<Mesh>> Mesh::join(Session& session, Transport transport, const std::string& name, Duration connect) {
  const auto state = std::make_shared<State>(session.place(), transport, name, connect);
  std::unique_ptr<Mesh> mesh{new Mesh{state}};
  // From the first moment: a generation that ends while its members connect ends their waiting too.
  session.on_generation_over([weak = std::weak_ptr<State>{state}](const Failure& why) {
    if (const auto alive = weak.lock()) alive->revoke(why);
  });
  ELRUN_TRY(state->connect(session));
  return mesh;
}

Result<void> Mesh::check_owner() const {
  if (::getpid() == owner_) return {};
  return Failure{.code = Code::refused,
                 .remedy = Remedy::exit_process,
                 .what = fmt::format("this process was forked from worker {} and has no process group", owner_)};
}

Result<void> Mesh::transfer(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom,
                            Duration limit, const CallLabel& label, const std::function<void()>& meanwhile) {
  ELRUN_TRY(check_owner());
  return state_->transfer(sends, receives, whom, limit, label, meanwhile);
}

Result<void> Mesh::share(const SharedBuffer& buffer) {
  ELRUN_TRY(check_owner());
  return state_->share(buffer);
}

bool Mesh::all_local() const { return state_->all_local(); }

Result<void> Mesh::reduce(const std::byte* in, std::byte* out, std::size_t count, DType type, ReduceOp op, bool gather, Duration limit,
                          const CallLabel& label) {
  ELRUN_TRY(check_owner());
  return state_->reduce(in, out, count, type, op, gather, limit, label);
}

void Mesh::revoke(const Failure& why) { state_->revoke(why); }

}  // namespace elrun::inline v0
