// A visitor is a connection that was accepted and not handed to gRPC yet. Its first bytes are only peeked at (MSG_PEEK), so gRPC
// still finds them. All visitors have the same time limit: the one that came first is due first, and one timer is enough.
#include "rendezvous/net/acceptor.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "lib/base/assert.hpp"
#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"
#include "lib/link/socket.hpp"
#include "rendezvous/net/admission_watch.hpp"
#include "rendezvous/net/tcp_facts.hpp"

namespace elrun::inline v0 {
namespace asio = boost::asio;
namespace {

constexpr std::string_view http2_preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
static_assert(http2_preface.size() == first_bytes_size);
constexpr std::string_view tls_record = "\x16\x03";  // a handshake, of any version that is still spoken
// For a client of the other kind, so that it can tell why it is turned away. HTTP/2: empty SETTINGS, then GOAWAY with the error code
// INADEQUATE_SECURITY. TLS: a fatal alert, "protocol version".
constexpr std::string_view no_without_tls{
    "\0\0\0\4\0\0\0\0\0"
    "\0\0\x10\7\0\0\0\0\0\0\0\0\0\0\0\0\x0c"
    "TLS only",
    9 + 9 + 16};
constexpr std::string_view no_tls_here{"\x15\3\1\0\2\2\x46", 7};
constexpr std::size_t tls_header_size = 5, http2_header_size = 9;
constexpr std::uint8_t http2_settings = 4;
static_assert(first_flight_header_max == http2_preface.size() + http2_header_size);

constexpr int accepts_per_turn = 16;             // then the event loop does its other work
constexpr Duration pause_without_means = 100ms;  // before the next try, when the system has no descriptor or memory left
constexpr Duration pause_without_room = 10ms;    // until connections are asked again which one is old enough to be ended

bool is_everywhere(const std::string& address) { return address.empty() || address == "0.0.0.0" || address == "::"; }

// One socket for both families, where there are both.
Result<Fd> listen_on(const SocketAddress& where, const std::string& what) {
  Fd socket{::socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!socket) return from_errno(errno, what);
  const int on = 1, off = 0;
  // Takes the port of a process that is gone, never of one that listens.
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (where.family() == AF_INET6) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&where.storage), where.size) == 0 && ::listen(socket.get(), SOMAXCONN) == 0)
    return socket;
  if (errno == EADDRINUSE)
    return Failure{.code = Code::already_exists,
                   .remedy = Remedy::fix_config,
                   .what = what + ": the port is in use, by a listener or by a connection of this machine"};
  return from_errno(errno, what);
}

Result<Fd> listen_at(const std::string& address, std::uint16_t port) {
  const bool everywhere = is_everywhere(address);
  const std::string what = fmt::format("listen on {} port {}", everywhere ? "all addresses" : address, port);
  std::optional<Failure> why;
  for (const char* host : everywhere ? std::vector<const char*>{"::", "0.0.0.0"} : std::vector<const char*>{address.c_str()}) {
    const auto found = resolve(host, port);
    if (!found.ok()) {
      why =
          Failure{.code = Code::invalid_argument, .remedy = Remedy::fix_config, .what = fmt::format("{}: {}", what, found.failure().what)};
      continue;
    }
    auto socket = listen_on(found->front(), what);
    if (socket.ok()) return socket;
    if (!why || socket.failure().code == Code::already_exists) why = socket.failure();
    if (why->code == Code::already_exists) break;  // the other address family would fail as well
  }
  return *why;
}

std::uint16_t port_of(int socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) != 0) return 0;
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<const sockaddr_in&>(own).sin_port);
}

std::optional<SocketAddress> peer_of(int socket) {
  SocketAddress peer;
  peer.size = sizeof peer.storage;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer.storage), &peer.size) != 0) return {};
  return peer;
}

std::string host_of(const SocketAddress& peer) {
  const std::string text = peer.host();
  constexpr std::string_view mapped = "::ffff:";  // a v4 address as a socket of both families sees it
  return text.starts_with(mapped) && text.find('.') != text.npos ? text.substr(mapped.size()) : text;
}

std::string address_of(int socket) {
  const auto peer = peer_of(socket);
  return peer ? host_of(*peer) : std::string{};
}

std::string peer_text(int socket) {
  const auto peer = peer_of(socket);
  if (!peer) return {};
  const std::string host = host_of(*peer);
  return host.find(':') == host.npos ? fmt::format("{}:{}", host, peer->port()) : fmt::format("[{}]:{}", host, peer->port());
}

std::uint64_t random_seed() {
  std::array<std::byte, 8> bytes;
  random_bytes(bytes);
  return std::bit_cast<std::uint64_t>(bytes);
}

bool descriptors_are_short(int newest) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
         static_cast<std::uint64_t>(newest) + std::min<std::uint64_t>(descriptor_reserve, limit.rlim_cur / 4) >= limit.rlim_cur;
}

class PosixAcceptor final : public GrpcAcceptor {
 public:
  PosixAcceptor(asio::io_context& loop, const Clock& clock, Fd listener, Options options, TurnedAway& turned_away, Enter enter)
      : loop_{loop},
        clock_{clock},
        options_{options},
        turned_away_{turned_away},
        enter_{std::move(enter)},
        port_{port_of(listener.get())},
        listener_{loop, listener.get()},
        pause_{loop},
        patience_{loop},
        room_{loop},
        admission_{clock,
                   2 * options.patience,
                   {.places = options.waiting_max, .age_longest = std::min(AdmissionLimits{}.age_longest, options.patience)},
                   random_seed(),
                   [this, open = std::weak_ptr{alive_}](std::string_view why, const std::string& peer) {
                     asio::post(loop_, [this, open, why, peer] {  // `why` is a literal
                       if (!open.expired()) tell(why, peer);
                     });
                   }} {
    (void)listener.give_up();
    wait_for_visitors();
  }
  [[nodiscard]] std::uint16_t port() const override { return port_; }
  void let_in(std::string_view peer) override { admission_.admitted(plain_peer(peer)); }

 private:
  struct Visitor;
  using Visitors = std::list<std::shared_ptr<Visitor>>;
  struct Visitor {
    asio::posix::stream_descriptor socket;
    ConnectionId id;
    Instant until;
    Visitors::iterator place{};
  };

  // Every callback may come after the acceptor is gone.
  template <class Call>
  auto guarded(Call call) {
    return [alive = std::weak_ptr{alive_}, call = std::move(call)](const boost::system::error_code& error) {
      if (!alive.expired() && !error) call();
    };
  }

  void wait_for_visitors() {
    listener_.async_wait(asio::posix::stream_descriptor::wait_read, guarded([this] { accept(); }));
  }
  void accept() {
    for (int i = 0; i < accepts_per_turn; ++i) {
      if (admission_.is_full() && !make_room()) {  // all places are taken, by connections that are too young to be ended
        room_.expires_after(pause_without_room);
        return room_.async_wait(guarded([this] { accept(); }));
      }
      Fd visitor{::accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
      if (visitor) {
        admit(std::move(visitor));
        continue;
      }
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        turned_away_.tell("connections that found no free descriptor (ulimit -n)", "anywhere");
        if (!visitors_.empty()) drop(*visitors_.front());
        pause_.expires_after(pause_without_means);
        return pause_.async_wait(guarded([this] { wait_for_visitors(); }));
      }
      break;  // no connection waits, or the one that did has been closed
    }
    wait_for_visitors();
  }
  void admit(Fd visitor) {
    if (descriptors_are_short(visitor.get())) {
      turned_away_.tell("connections while descriptors were short (ulimit -n)", address_of(visitor.get()));
      if (!make_room()) {
        if (visitors_.empty()) return;  // which closes the new connection
        drop(*visitors_.front());
      }
    }
    const ConnectionId id = admission_.accepted(counted_address(address_of(visitor.get())));
    const int on = 1;
    ::setsockopt(visitor.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (const auto peeked = read_ahead(visitor.get()); peeked && peeked->kind == welcome())
      return hand_over(std::move(visitor), id);  // its first flight came while it was in the backlog
    const auto known =
        std::make_shared<Visitor>(Visitor{asio::posix::stream_descriptor{loop_, visitor.get()}, id, clock_.now() + options_.patience});
    (void)visitor.give_up();
    known->place = visitors_.insert(visitors_.end(), known);
    listen_to(*known);
    if (visitors_.size() == 1) wait_for_the_first();
  }
  void listen_to(Visitor& visitor) {
    visitor.socket.async_wait(
        asio::posix::stream_descriptor::wait_read,
        [this, acceptor = std::weak_ptr{alive_}, known = std::weak_ptr{*visitor.place}](const boost::system::error_code& error) {
          const auto still_here = known.lock();
          if (!acceptor.expired() && still_here && !error) look_at(*still_here);
        });
  }
  struct Peeked {
    FirstBytes kind;
    std::size_t wake_at = 0;  // unfinished: it is known with so many bytes
  };
  // What the first bytes are; nothing when the peer has gone. It stays `unfinished` until the whole first flight is there, so a
  // peer that sends it byte by byte costs gRPC nothing.
  [[nodiscard]] std::optional<Peeked> read_ahead(int socket) const {
    std::array<std::byte, first_flight_header_max> bytes;
    const ssize_t size = ::recv(socket, bytes.data(), bytes.size(), MSG_PEEK);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return Peeked{FirstBytes::unfinished, 1};
    if (size <= 0) return {};
    const ByteSpan begin = ByteSpan{bytes}.first(static_cast<std::size_t>(size));
    const FirstBytes kind = first_bytes(begin);
    if (kind != FirstBytes::unfinished && kind != welcome()) return Peeked{kind};
    const auto wanted = kind == FirstBytes::unfinished ? std::optional{first_bytes_size} : first_flight_size(begin);
    int unread = 0;
    if (!wanted || ::ioctl(socket, FIONREAD, &unread) != 0 || static_cast<std::size_t>(unread) > first_flight_max.value())
      return Peeked{FirstBytes::other};
    if (kind != FirstBytes::unfinished && static_cast<std::size_t>(unread) >= *wanted) return Peeked{kind};
    if (const auto facts = tcp_facts(socket); !facts || !facts->is_open || facts->peer_is_done) return {};
    return Peeked{FirstBytes::unfinished, *wanted};
  }
  [[nodiscard]] FirstBytes welcome() const { return options_.tls ? FirstBytes::tls : FirstBytes::http2; }
  void look_at(Visitor& visitor) {
    const int socket = visitor.socket.native_handle();
    const auto peeked = read_ahead(socket);
    if (!peeked) return drop(visitor);
    if (peeked->kind == welcome()) return release_to_grpc(visitor);
    switch (peeked->kind) {
      case FirstBytes::unfinished: wake_at(socket, peeked->wake_at); return listen_to(visitor);
      case FirstBytes::http2:
        answer(socket, no_without_tls);
        turned_away_.tell("connections without TLS, which this rendezvous demands (cacert, cert and key)", address_of(socket));
        break;
      case FirstBytes::tls:
        answer(socket, no_tls_here);
        turned_away_.tell("connections with TLS, which this rendezvous does not have (cacert, cert and key)", address_of(socket));
        break;
      case FirstBytes::other: turned_away_.tell("connections that are not elrun's", address_of(socket)); break;
    }
    drop(visitor);
  }
  // Reads what the peer sent before it answers: closing a socket with unread bytes resets the connection, and the peer may
  // then see the reset instead of the answer.
  static void answer(int socket, std::string_view text) {
    std::array<std::byte, first_flight_max.value()> unread;
    (void)::recv(socket, unread.data(), unread.size(), 0);
    (void)::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
  }
  // The event loop is not woken for a visitor before so many bytes are there.
  static void wake_at(int socket, std::size_t bytes) {
    const int lowest = static_cast<int>(bytes);
    ::setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &lowest, sizeof lowest);
  }
  void release_to_grpc(Visitor& visitor) {
    const ConnectionId id = visitor.id;
    Fd socket{visitor.socket.release()};
    wake_at(socket.get(), 1);
    visitors_.erase(visitor.place);
    hand_over(std::move(socket), id);
  }
  void hand_over(Fd socket, ConnectionId id) {
    Fd watched{::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0)};
    if (!watched) {
      admission_.closed(id);
      return turned_away_.tell("connections that found no free descriptor (ulimit -n)", address_of(socket.get()));
    }
    admission_.watch_bytes(id, std::move(watched), peer_text(socket.get()));
    enter_(std::move(socket), [this, id, open = std::weak_ptr{alive_}, &loop = loop_] {  // this may be gone by then, the loop is not
      asio::post(loop, [this, id, open] {
        if (!open.expired()) admission_.handed_to_grpc(id);
      });
    });
  }
  bool make_room() {
    const auto room = admission_.make_room(backlog_length(listener_.native_handle()));
    if (room.to_close) {
      const auto visitor = std::find_if(visitors_.begin(), visitors_.end(), [&](const auto& v) { return v->id == *room.to_close; });
      ELRUN_ASSERT(visitor != visitors_.end());  // a connection that is neither in this list nor watched could not be ended
      tell(ended_for_others, {});
      drop(**visitor);
    }
    return room.made;
  }
  void tell(std::string_view why, const std::string& peer) {
    if (why != ended_for_others) turned_away_.tell(why, peer);
    else if (turned_away_.is_due(why)) turned_away_.tell(why, admission_.most_places());
  }
  void drop(Visitor& visitor) {
    admission_.closed(visitor.id);
    visitors_.erase(visitor.place);
  }

  void wait_for_the_first() {
    patience_.expires_after(visitors_.front()->until - clock_.now());
    patience_.async_wait(guarded([this] {
      const Instant now = clock_.now();
      while (!visitors_.empty() && visitors_.front()->until <= now) {
        turned_away_.tell("connections that said nothing", address_of(visitors_.front()->socket.native_handle()));
        drop(*visitors_.front());
      }
      if (!visitors_.empty()) wait_for_the_first();
    }));
  }

  asio::io_context& loop_;
  const Clock& clock_;
  Options options_;
  TurnedAway& turned_away_;
  Enter enter_;
  std::uint16_t port_;
  asio::posix::stream_descriptor listener_;
  asio::steady_timer pause_, patience_, room_;
  Visitors visitors_;                                           // oldest first
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // callbacks hold it weakly
  AdmissionWatch admission_;                                    // last: its thread tells of what it ends
};

}  // namespace

FirstBytes first_bytes(ByteSpan bytes) {
  const std::string_view text = as_text(bytes);
  const auto begins = [text](std::string_view words) { return words.starts_with(text.substr(0, words.size())); };
  if (begins(tls_record)) return text.size() >= tls_record.size() ? FirstBytes::tls : FirstBytes::unfinished;
  if (begins(http2_preface)) return text.size() >= http2_preface.size() ? FirstBytes::http2 : FirstBytes::unfinished;
  return FirstBytes::other;
}

std::optional<std::size_t> first_flight_size(ByteSpan bytes) {
  const auto at = [&](std::size_t i) { return std::to_integer<std::size_t>(bytes[i]); };
  const bool tls = first_bytes(bytes) == FirstBytes::tls;
  const std::size_t header = tls ? tls_header_size : http2_preface.size() + http2_header_size;
  if (bytes.size() < header) return header;
  const std::size_t frame = http2_preface.size();
  if (!tls && at(frame + 3) != http2_settings) return {};
  const std::size_t size = header + (tls ? at(3) << 8 | at(4) : at(frame) << 16 | at(frame + 1) << 8 | at(frame + 2));
  return size <= first_flight_max.value() ? std::optional{size} : std::nullopt;
}

bool TurnedAway::is_due(std::string_view what) {
  const auto known = kinds_.find(what);
  if (known == kinds_.end() || clock_.now() >= known->second.quiet_until) return true;
  ++known->second.untold;
  return false;
}

void TurnedAway::tell(std::string_view what, std::string_view whom) {
  Kind& kind = kinds_[std::string{what}];
  const Instant now = clock_.now();
  if (now < kind.quiet_until) return void(++kind.untold);
  kind.quiet_until = now + 60s;
  const std::uint64_t untold = std::exchange(kind.untold, 0);
  log_.warning(fmt::format("turned away: {}; from {}{}", what, whom,
                           untold == 0 ? "" : fmt::format(", and {} more since this was last said", untold)));
}

Result<std::unique_ptr<GrpcAcceptor>> GrpcAcceptor::open(asio::io_context& loop, const Clock& clock, const std::string& address,
                                                         std::uint16_t port, Options options, TurnedAway& turned_away, Enter enter) {
  ELRUN_TRY_ASSIGN(Fd listener, listen_at(address, port));
  return std::unique_ptr<GrpcAcceptor>{
      std::make_unique<PosixAcceptor>(loop, clock, std::move(listener), options, turned_away, std::move(enter))};
}

}  // namespace elrun::inline v0
