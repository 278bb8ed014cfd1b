#include "lib/comm/connect/connector.hpp"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/system/system_error.hpp>

#include "lib/base/failure.hpp"
#include "lib/base/log.hpp"
#include "lib/base/pass_descriptors.hpp"
#include "lib/base/timeouts.hpp"
#include "lib/comm/connect/address.hpp"
#include "lib/comm/connect/handshake.hpp"
#include "lib/comm/connect/loss_policy.hpp"
#include "lib/comm/connect/peer_names.hpp"
#include "lib/link/roll_call.hpp"

namespace elrun::inline v0 {
namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

namespace {

constexpr std::size_t guests_max = 4096;  // accepted connections that have not proved the key
constexpr Duration guest_turn = 500ms;    // after that, one of them goes when another waits for its place
constexpr Duration redial_most = 500ms;
constexpr int refusals_most = 4;  // of a rank's descriptors for one peer: then it offers that peer no memory

/// What two ranks of one host send each other after they have proved the key. Then each says whether it can use the other's memory.
struct MemoryOffer {
  std::uint64_t magic = 0x3230'524d'454d'4c45;  // "ELMEMR02": the last two digits are the version
  std::uint64_t size = 0;                       // of the region that comes with it; 0: there is none
};
/// Guests leave descriptors to all else that this process does.
std::size_t most_guests() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return guests_max;
  return std::clamp<std::size_t>(limit.rlim_cur / 4, 1, guests_max);
}

enum class Verdict : std::uint8_t { unusable = 'n', usable = 'y' };

/// Both ends have the same address. Between two processes of one host this means that there is no wire between them. Between two hosts a
/// tunnel or a proxy can look like this.
bool is_to_own_address(int socket) {
  const SocketAddress here = local_address(socket);
  SocketAddress there;
  there.size = sizeof there.storage;
  if (here.family() == AF_UNIX) return true;
  return ::getpeername(socket, reinterpret_cast<sockaddr*>(&there.storage), &there.size) == 0 && here.host() == there.host();
}

}  // namespace

struct Connector::Pending {
  std::optional<StreamSocket> socket;
  asio::steady_timer timer;
  std::array<std::byte, introduction_size> introduction{};
  std::array<std::byte, proof_size> proof{};
  std::array<std::byte, answer_size> answer{};
  Introduction said{};
  Nonce nonce{};
  bool is_unix = false;
  Instant turn_ends{};   // of a guest
  bool expired = false;  // its time for the handshake was over
  Verdict mine = Verdict::unusable, theirs = Verdict::unusable;
};

Connector::Connector(asio::io_context& loop, Group group, PeerStates& states, Events events)
    : loop_{loop},
      group_{std::move(group)},
      states_{states},
      events_{std::move(events)},
      peers_(group_.me.world.value()),
      listeners_{loop},
      deadline_timer_{loop},
      silence_timer_{loop} {
  std::uint64_t seed = 0;
  random_bytes(std::as_writable_bytes(std::span{&seed, 1}));
  jitter_ = Rng{seed};
  for (std::uint32_t rank = 0; rank < peers_.size(); ++rank) peers_[rank].rank = Rank{rank};
}

Result<std::unique_ptr<Lanes>> Connector::publish(Session& session) {
  const Membership& me = group_.me;
  ELRUN_TRY_ASSIGN(const RankAddress mine, listeners_.open(session.place().address, group_.transport != Transport::tcp, group_.resolver));
  const std::string key = "elrun/comm/addresses" + (group_.name.empty() ? group_.name : "/" + group_.name);
  ELRUN_TRY_ASSIGN(const auto published, session.store().all_gather(key, me.rank, me.world, as_bytes(encode(mine)), group_.deadline));
  PeerNames names{clock_, group_.deadline, group_.resolver};
  std::vector<Rank> local;
  for (Peer& peer : peers_) {
    ELRUN_TRY_ASSIGN(const RankAddress its, decode_rank_address(peer.rank, as_text(published[peer.rank.value()])));
    peer.facts = {.wanted = group_.transport,
                  .same_boot = !mine.boot.empty() && its.boot == mine.boot,
                  .both_listen = !mine.socket.empty() && !its.socket.empty()};
    if (connects_by_unix_socket(peer.facts)) local.push_back(peer.rank);
    if (peer.rank < me.rank) {
      ELRUN_TRY_ASSIGN(peer.addresses, names.find(its));
      if (connects_by_unix_socket(peer.facts)) peer.unix_address = abstract_address(its.socket);
    }
  }
  if (local.size() < 2) return std::unique_ptr<Lanes>{};
  auto made = Lanes::make(me, std::move(local));
  if (!made.ok()) {
    no_lanes_ = made.failure().what;
    warn(fmt::format(
        "this rank has no shared memory: {} (a limit of the container's memory, or ulimit -n and -f); its bytes travel over sockets, which is "
        "slower, and in a group of three or more so do all reductions",
        no_lanes_));
  }
  return made.ok() ? std::move(*made) : std::unique_ptr<Lanes>{};
}

bool Connector::all_may_share_memory() const {
  return std::ranges::all_of(peers_, [](const Peer& peer) { return peer.facts.same_boot && peer.facts.both_listen; });
}

void Connector::begin(Lanes* lanes) {
  lanes_ = lanes;
  deadline_timer_.expires_after(std::min(group_.connect, group_.deadline.left(clock_.now())));
  deadline_timer_.async_wait([this](const ErrorCode& error) {
    if (!error && !stopped_ && !states_.missing().empty()) events_.failed(not_connected());
  });
  silence_timer_.expires_after(Timeouts{}.peer_silence);
  silence_timer_.async_wait([this](const ErrorCode& error) {
    if (!error && !stopped_) fail_for_the_unreachable();
  });
  listeners_.accept([this](Fd connection, int family) { hear(std::move(connection), family); },
                    [this](int family) { return make_room(family); });
  for (std::uint32_t rank = 0; rank < group_.me.rank.value(); ++rank) dial(peers_[rank]);
}

void Connector::stop() {
  stopped_ = true;
  deadline_timer_.cancel();
  silence_timer_.cancel();
  listeners_.close();
  for (const PendingHandle& pending : std::exchange(pending_, {})) dismiss(pending);
}

Failure Connector::not_connected() const {
  const std::vector<Rank> missing = states_.missing();
  std::string why;
  for (const Rank rank : missing)
    if (why.empty()) why = peers_[rank.value()].last_problem;
  if (why.empty()) why = unheard_;
  return {.code = Code::deadline_passed,
          .remedy = Remedy::rejoin,
          .what = fmt::format("not connected in time with {} of {} ranks: {}{}{}", missing.size(), peers_.size() - 1, list_ranks(missing),
                              why.empty() ? "" : "; ", why),
          .peer = missing.empty() ? std::nullopt : std::optional{missing.front()}};
}

/// A peer listens before it publishes its address. If not even a connection could be made after all this time, a cable, a switch or a
/// firewall lets nothing through. Such a peer is not waited for any longer: a slot's time can be long. What this process itself lacks (a
/// descriptor, say) is no reason to call a peer unreachable, for the peer's node would be excluded. Then the deadline ends the waiting.
void Connector::fail_for_the_unreachable() {
  std::vector<Rank> silent;
  for (std::uint32_t rank = 0; rank < group_.me.rank.value(); ++rank)
    if (states_.of(Rank{rank}) == PeerState::absent && peers_[rank].is_silent) silent.push_back(Rank{rank});
  if (silent.empty()) return;
  const Peer& first = peers_[silent.front().value()];
  events_.failed(
      unreachable_peer(first.rank, fmt::format("no connection to {} in {} s{}{}", to_string(first.addresses.front()),
                                               Timeouts{}.peer_silence / 1s, first.last_problem.empty() ? "" : ": ", first.last_problem) +
                                       (silent.size() > 1 ? "; nor to others: " + list_ranks(silent) : "")));
}

void Connector::complete_if_all_are_here() {
  if (stopped_ || !states_.missing().empty()) return;
  deadline_timer_.cancel();
  silence_timer_.cancel();
  listeners_.close();
  events_.complete();
}

// --- connections that have not proved the key ---

Result<Connector::PendingHandle> Connector::pend(Fd fd, int family) try {
  auto handle = std::make_shared<Pending>(
      Pending{.socket = adopt(loop_, std::move(fd), family), .timer = asio::steady_timer{loop_}, .is_unix = family == AF_UNIX});
  handle->timer.expires_after(group_.handshake);
  handle->timer.async_wait([handle](const ErrorCode& error) {
    ErrorCode ignored;
    if (error || !handle->socket) return;
    handle->expired = true;
    handle->socket->close(ignored);
  });
  pending_.insert(handle);
  return handle;
} catch (const boost::system::system_error& error) {
  return from_errno(error.code().value(), "watch a connection (fs.epoll.max_user_watches is one limit for all that a user runs)");
}

void Connector::dismiss(const PendingHandle& pending) {
  pending_.erase(pending);
  std::erase(guests(pending->is_unix), pending);
  pending->timer.cancel();
  pending->socket.reset();
}

/// For one more guest. The oldest one goes, if it has had its turn: it says nothing, or its rank dials again.
bool Connector::make_room(int family) {
  std::deque<PendingHandle>& waiting = guests(family == AF_UNIX);
  if (waiting.size() < most_guests()) return true;
  if (clock_.now() < waiting.front()->turn_ends) return false;
  ErrorCode ignored;
  waiting.front()->socket->close(ignored);  // what waits for it dismisses it
  waiting.pop_front();
  return true;
}

void Connector::hear(Fd fd, int family) {
  if (family != AF_UNIX) set_no_delay(fd.get());
  auto pended = pend(std::move(fd), family);
  if (!pended.ok()) {  // a rank dials again, and an outsider is not missed
    unheard_ = pended.failure().what;
    return;
  }
  const PendingHandle guest = *pended;
  guest->turn_ends = clock_.now() + guest_turn;
  guests(guest->is_unix).push_back(guest);
  asio::async_read(*guest->socket, asio::buffer(guest->introduction), [this, guest](const ErrorCode& error, std::size_t) {
    auto said = decode_introduction(guest->introduction);
    if (error || stopped_ || !guest->socket->is_open() || !said.ok()) return dismiss(guest);
    guest->said = *said;
    const Membership& me = group_.me;
    const bool expected = said->generation == me.generation && said->world == me.world && said->to == me.rank && said->from > me.rank &&
                          said->from.value() < me.world.value() && !states_.has_connected(said->from);
    if (!expected) return dismiss(guest);  // another generation, or a rank that would not dial this one
    // It knows the generation, as members alone do. With the answer its rank counts itself connected, and does not dial again.
    std::erase(guests(guest->is_unix), guest);
    random_bytes(guest->nonce);
    const Sha256 proof = proof_of(Role::listener, group_.key, guest->said, guest->nonce);
    std::ranges::copy(guest->nonce, guest->answer.begin());
    std::ranges::copy(proof, guest->answer.begin() + guest->nonce.size());
    asio::async_write(*guest->socket, asio::buffer(guest->answer), [this, guest](const ErrorCode& failed, std::size_t) {
      if (failed || stopped_) return dismiss(guest);
      asio::async_read(*guest->socket, asio::buffer(guest->proof), [this, guest](const ErrorCode& cut, std::size_t) {
        if (cut || stopped_ || !guest->socket->is_open()) return dismiss(guest);
        Peer& peer = peers_[guest->said.from.value()];
        if (!equal_constant_time(guest->proof, proof_of(Role::dialer, group_.key, guest->said, guest->nonce))) {
          peer.last_problem = "a process connected in its name without the generation's key";
          return dismiss(guest);
        }
        proved(guest, peer);
      });
    });
  });
}

// --- dialling lower ranks ---

void Connector::dial(Peer& peer) {
  const SocketAddress& to = connects_by_unix_socket(peer.facts) ? peer.unix_address : peer.addresses.front();
  auto fd = connect_begin(to);
  if (!fd.ok()) return not_reached(peer, fd.failure());
  if (to.family() != AF_UNIX) set_no_delay(fd->get());
  auto pended = pend(std::move(*fd), to.family());
  if (!pended.ok()) return not_reached(peer, pended.failure());
  const PendingHandle host = *pended;
  host->socket->async_wait(StreamSocket::wait_write, [this, host, &peer, to](const ErrorCode& error) {
    if (stopped_) return dismiss(host);
    const auto connected = error ? Failure{Code::deadline_passed, Remedy::retry, fmt::format("{} did not answer", to_string(to))}
                                 : connect_result(host->socket->native_handle(), to);
    if (!connected.ok()) {
      dismiss(host);
      return not_reached(peer, connected.failure());
    }
    states_.enter(peer.rank, PeerState::reached);
    introduce(host, peer);
  });
}

/// The peer listens before it publishes its address. If nobody listens at its Unix socket, the socket is in another network namespace of
/// this host, as between containers. (A full queue there is another failure: it empties again.)
void Connector::not_reached(Peer& peer, const Failure& why) {
  if (connects_by_unix_socket(peer.facts) && (why.code == Code::unreachable || why.code == Code::not_permitted))
    peer.facts.same_network = Known::no;
  else
    std::rotate(peer.addresses.begin(), peer.addresses.begin() + 1,
                peer.addresses.end());  // a name may lead to several, and the peer listen at one
  peer.is_silent = why.code == Code::unreachable || why.code == Code::deadline_passed;
  dial_later(peer, why.what);
}

void Connector::introduce(const PendingHandle& host, Peer& peer) {
  host->said = {group_.me.generation, group_.me.world, group_.me.rank, peer.rank, {}};
  random_bytes(host->said.nonce);
  host->introduction = encode(host->said);
  asio::async_write(*host->socket, asio::buffer(host->introduction), [this, host, &peer](const ErrorCode& error, std::size_t) {
    if (stopped_) return dismiss(host);
    if (error) return give_up(host, peer, "it closed the connection at once");
    asio::async_read(*host->socket, asio::buffer(host->answer), [this, host, &peer](const ErrorCode& cut, std::size_t) {
      if (stopped_) return dismiss(host);
      if (cut) return give_up(host, peer, "it closed the connection without an answer: it knows another generation, or has another key");
      std::ranges::copy(ByteSpan{host->answer}.first(host->nonce.size()), host->nonce.begin());
      if (!equal_constant_time(ByteSpan{host->answer}.subspan(host->nonce.size()),
                               proof_of(Role::listener, group_.key, host->said, host->nonce))) {
        dismiss(host);
        return events_.failed({.code = Code::refused,
                               .remedy = Remedy::abort_group,
                               .what = fmt::format("the process that answers as rank {} at {} does not have this generation's key",
                                                   peer.rank.value(), to_string(peer.addresses.front())),
                               .peer = peer.rank});
      }
      const Sha256 proof = proof_of(Role::dialer, group_.key, host->said, host->nonce);
      std::ranges::copy(proof, host->proof.begin());
      asio::async_write(*host->socket, asio::buffer(host->proof), [this, host, &peer](const ErrorCode& failed, std::size_t) {
        if (stopped_) return dismiss(host);
        // A write into a connection whose time was over succeeds all the same; so does what had waited in it. The other end has dismissed it.
        if (failed || host->expired) return give_up(host, peer, "it closed the connection");
        proved(host, peer);
      });
    });
  });
}

void Connector::dial_later(Peer& peer, std::string why) {
  peer.last_problem = std::move(why);
  const auto timer =
      std::make_shared<asio::steady_timer>(loop_, Duration{static_cast<Duration::rep>(jitter_.below(redial_most / 1ns)) + 1});
  timer->async_wait([this, timer, &peer](const ErrorCode& error) {
    if (!error && !stopped_) dial(peer);
  });
}

/// This connection is of no use. The rank that dialled it dials again.
void Connector::give_up(const PendingHandle& pending, Peer& peer, std::string why) {
  if (pending->expired)
    why = fmt::format("it is connected and has not answered within {} ms: its process is stopped or busy", group_.handshake / 1ms);
  dismiss(pending);
  if (peer.rank < group_.me.rank) return dial_later(peer, std::move(why));
  peer.last_problem = std::move(why);
}

// --- the transport, between two that have proved the key; both sides do the same ---

void Connector::proved(const PendingHandle& pending, Peer& peer) {
  if (states_.has_connected(peer.rank)) return dismiss(pending);
  if (pending->is_unix) offer_memory(pending, peer);
  else admit(peer, pending);
}

void Connector::offer_memory(const PendingHandle& proved, Peer& peer) {
  const bool offers = lanes_ != nullptr && peer.refusals < refusals_most;
  const auto offer = offers ? lanes_->offer(peer.rank) : Lanes::Offer{};
  const MemoryOffer words{.size = offer.size.value()};
  const std::array<int, 3> files{offer.region, offer.doorbell, offer.post};
  const auto sent =
      send_with(proved->socket->native_handle(), std::as_bytes(std::span{&words, 1}), std::span{files}.first(offers ? files.size() : 0));
  if (!sent.ok()) {
    if (sent.failure().code == Code::exhausted) note_refusal(peer, sent.failure().what);
    return give_up(proved, peer, sent.failure().what);
  }
  proved->socket->async_wait(StreamSocket::wait_read, [this, proved, &peer](const ErrorCode& error) {
    if (stopped_) return dismiss(proved);
    if (error) return give_up(proved, peer, "it closed the connection");
    look_at_memory(proved, peer);
  });
}

/// The last of them is told, once for all peers: frames are slower, and nothing fails that would say why.
void Connector::note_refusal(Peer& peer, const std::string& why) {
  peer.refused = why;
  if (++peer.refusals < refusals_most || std::ranges::count(peers_, refusals_most, &Peer::refusals) > 1) return;
  warn(fmt::format("rank {} is offered no shared memory: {}", peer.rank.value(), why));
}

void Connector::warn(const std::string& what) const { Log{clock_, fmt::format("elrun rank {}", group_.me.rank.value())}.warning(what); }

void Connector::look_at_memory(const PendingHandle& proved, Peer& peer) {
  MemoryOffer words;
  std::array<Fd, 3> files;
  const auto came = receive_with(proved->socket->native_handle(), std::as_writable_bytes(std::span{&words, 1}), files);
  if (!came.ok() || words.magic != MemoryOffer{}.magic) {
    return give_up(
        proved, peer,
        !came.ok() && came.failure().code == Code::exhausted ? came.failure().what : "it offered no memory, as a rank of this host would");
  }
  if (lanes_ == nullptr) {
    peer.last_problem = no_lanes_;
  } else if (lanes_->attached(peer.rank)) {  // an earlier connection came as far and broke: what was attached stays the same
    proved->mine = Verdict::usable;
  } else if (words.size > 0 && files[0]) {
    const auto attached = lanes_->attach(peer.rank, std::move(files[0]), Bytes{words.size}, std::move(files[1]), std::move(files[2]));
    if (attached.ok()) {
      proved->mine = Verdict::usable;
    } else {
      peer.last_problem = attached.failure().what;
      if (!std::exchange(told_unusable_, true))  // once for all peers
        warn(fmt::format("the shared memory of rank {} cannot be used: {}; bytes travel over sockets, which is slower", peer.rank.value(),
                         peer.last_problem));
    }
  } else {
    peer.last_problem = "it offers no memory; its own message says why";
  }
  asio::async_write(*proved->socket, asio::buffer(&proved->mine, 1), [this, proved, &peer](const ErrorCode& failed, std::size_t) {
    if (stopped_) return dismiss(proved);
    if (failed) return give_up(proved, peer, "it closed the connection");
    asio::async_read(*proved->socket, asio::buffer(&proved->theirs, 1), [this, proved, &peer](const ErrorCode& cut, std::size_t) {
      if (stopped_) return dismiss(proved);
      if (cut || proved->expired) return give_up(proved, peer, "it closed the connection");
      if (states_.has_connected(peer.rank)) return dismiss(proved);
      const bool both = proved->mine == Verdict::usable && proved->theirs == Verdict::usable;
      if (!both && proved->mine == Verdict::usable) {
        peer.last_problem = "it could not map this rank's memory";
        lanes_->forget(peer.rank);
      }
      peer.facts.same_network = Known::yes;
      peer.facts.memory = both ? Known::yes : Known::no;
      admit(peer, proved);
    });
  });
}

void Connector::admit(Peer& peer, const PendingHandle& proved) {
  if (!proved->is_unix) peer.facts.same_network = Known::no;  // also where the peer dialled, and found no Unix socket
  const std::optional<Transport> transport = choose(peer.facts);
  if (!transport) {
    const std::string& why = peer.refusals < refusals_most ? peer.last_problem : peer.refused;
    return events_.failed(
        {.code = Code::not_permitted,
         .remedy = Remedy::fix_config,
         .what = fmt::format("rank {} cannot be reached through shared memory{}{}; ELRUN_TRANSPORT=auto uses TCP for such ranks",
                             peer.rank.value(), why.empty() ? ": it runs on another host, or was told to use TCP" : ": ", why),
         .peer = peer.rank});
  }
  pending_.erase(proved);
  proved->timer.cancel();
  StreamSocket socket = std::move(*proved->socket);
  proved->socket.reset();
  keep_alive(socket.native_handle(), Timeouts{}.peer_silence);
  const bool checked = !(peer.facts.same_boot && is_to_own_address(socket.native_handle()));
  states_.enter(peer.rank, PeerState::connected);
  events_.connected({peer.rank, std::move(socket), *transport, checked});
  complete_if_all_are_here();
}

}  // namespace elrun::inline v0
