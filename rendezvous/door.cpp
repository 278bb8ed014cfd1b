// A visitor is looked at without being read from: what it said is still there for gRPC. All visitors wait equally long,
// so the first in the list is the next whose time is over, and one timer does for all.
#include "rendezvous/door.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "lib/base/failure.hpp"
#include "lib/link/socket.hpp"
#include "rendezvous/door_watch.hpp"

namespace elrun::inline v0 {
namespace asio = boost::asio;
namespace {

constexpr std::string_view http2_preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
static_assert(http2_preface.size() == first_words_size);
constexpr std::string_view tls_record = "\x16\x03";  // a handshake, of any version that is still spoken

constexpr int accepts_per_turn = 16;            // then others on the loop have theirs
constexpr Duration pause_without_means = 100ms;  // before the next try, when the system has no descriptor or memory left
constexpr Duration pause_without_room = 10ms;    // before the next look who may go

bool is_everywhere(const std::string& address) { return address.empty() || address == "0.0.0.0" || address == "::"; }

// One socket for both families, where there are both.
Result<Fd> listen_on(const SocketAddress& where, const std::string& what) {
  Fd socket{::socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!socket) return from_errno(errno, what);
  const int on = 1, off = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // of a process that is gone, never of one that listens
  if (where.family() == AF_INET6) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&where.storage), where.size) == 0 && ::listen(socket.get(), SOMAXCONN) == 0) return socket;
  if (errno == EADDRINUSE) return Failure{.code = Code::already_exists, .remedy = Remedy::fix_config, .what = what + ": somebody listens there already"};
  return from_errno(errno, what);
}

Result<Fd> listen_at(const std::string& address, std::uint16_t port) {
  const bool everywhere = is_everywhere(address);
  const std::string what = fmt::format("listen on {} port {}", everywhere ? "all addresses" : address, port);
  std::optional<Failure> why;
  for (const char* host : everywhere ? std::vector<const char*>{"::", "0.0.0.0"} : std::vector<const char*>{address.c_str()}) {
    const auto found = resolve(host, port);
    if (!found.ok()) {
      why = Failure{.code = Code::invalid_argument, .remedy = Remedy::fix_config, .what = fmt::format("{}: {}", what, found.failure().what)};
      continue;
    }
    auto socket = listen_on(found->front(), what);
    if (socket.ok()) return socket;
    if (!why || socket.failure().code == Code::already_exists) why = socket.failure();
    if (why->code == Code::already_exists) break;  // nor in the other family
  }
  return *why;
}

std::uint16_t port_of(int socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) != 0) return 0;
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port : reinterpret_cast<const sockaddr_in&>(own).sin_port);
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

bool descriptors_are_short(int newest) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
         static_cast<std::uint64_t>(newest) + std::min<std::uint64_t>(descriptor_reserve, limit.rlim_cur / 4) >= limit.rlim_cur;
}

class PosixDoor final : public Door {
 public:
  PosixDoor(asio::io_context& loop, const Clock& clock, Fd listener, Options options, TurnedAway& turned_away, std::function<void(Fd)> enter)
      : loop_{loop}, clock_{clock}, options_{options}, turned_away_{turned_away}, enter_{std::move(enter)}, port_{port_of(listener.get())}, listener_{loop, listener.get()}, pause_{loop}, patience_{loop}, room_{loop},
        inside_{clock, 2 * options.patience, [this, open = std::weak_ptr{alive_}](std::string_view why, const std::string& whom) {
                  asio::post(loop_, [this, open, why, whom] {  // `why` is a literal
                    if (!open.expired()) turned_away_.tell(why, whom);
                  });
                }} {
    (void)listener.give_up();
    wait_for_visitors();
  }
  [[nodiscard]] std::uint16_t port() const override { return port_; }
  void let_in(std::string_view peer) override { inside_.let_in(plain_peer(peer)); }

 private:
  struct Visitor;
  using Visitors = std::list<std::shared_ptr<Visitor>>;
  struct Visitor {
    asio::posix::stream_descriptor socket;
    Instant came, until;
    Visitors::iterator place{};
  };

  // Every callback may come after the door is gone.
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
      if (visitors_.size() + inside_.size() >= options_.waiting_max && !make_room()) {  // somebody waits, and goes on waiting
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
        if (!visitors_.empty()) visitors_.pop_front();
        pause_.expires_after(pause_without_means);
        return pause_.async_wait(guarded([this] { wait_for_visitors(); }));
      }
      break;  // nobody is there, or who was there has gone again
    }
    wait_for_visitors();
  }
  void admit(Fd visitor) {
    if (descriptors_are_short(visitor.get())) {
      turned_away_.tell("connections while descriptors were short (ulimit -n)", address_of(visitor.get()));
      if (visitors_.empty()) return;  // and with it the visitor
      visitors_.pop_front();
    }
    const int on = 1;
    ::setsockopt(visitor.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (const auto words = read_ahead(visitor.get()); words && *words == welcome()) return hand_over(std::move(visitor));  // it had to wait for us
    const Instant now = clock_.now();
    const auto known = std::make_shared<Visitor>(Visitor{asio::posix::stream_descriptor{loop_, visitor.get()}, now, now + options_.patience});
    (void)visitor.give_up();
    known->place = visitors_.insert(visitors_.end(), known);
    listen_to(*known);
    if (visitors_.size() == 1) wait_for_the_first();
  }
  void listen_to(Visitor& visitor) {
    visitor.socket.async_wait(asio::posix::stream_descriptor::wait_read, [this, door = std::weak_ptr{alive_}, known = std::weak_ptr{*visitor.place}](const boost::system::error_code& error) {
      const auto still_here = known.lock();
      if (!door.expired() && still_here && !error) look_at(*still_here);
    });
  }
  // Nothing: it has changed its mind.
  static std::optional<FirstWords> read_ahead(int socket) {
    std::array<std::byte, first_words_size> bytes;
    const ssize_t size = ::recv(socket, bytes.data(), bytes.size(), MSG_PEEK);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return FirstWords::unfinished;
    if (size <= 0) return {};
    return first_words(ByteSpan{bytes}.first(static_cast<std::size_t>(size)));
  }
  [[nodiscard]] FirstWords welcome() const { return options_.tls ? FirstWords::tls : FirstWords::http2; }
  void look_at(Visitor& visitor) {
    const int socket = visitor.socket.native_handle();
    const auto words = read_ahead(socket);
    if (!words) return drop(visitor);
    if (*words == welcome()) return show_in(visitor);
    switch (*words) {
      case FirstWords::unfinished: wake_at(socket, first_words_size); return listen_to(visitor);
      case FirstWords::http2:
        turned_away_.tell("connections without TLS, which this rendezvous demands (cacert, cert and key)", address_of(socket));
        break;
      case FirstWords::tls:
        turned_away_.tell("connections with TLS, which this rendezvous does not have (cacert, cert and key)", address_of(socket));
        break;
      case FirstWords::other: turned_away_.tell("connections that are not elrun's", address_of(socket)); break;
    }
    drop(visitor);
  }
  // Of what has begun well nothing more is heard before it is whole.
  static void wake_at(int socket, std::size_t bytes) {
    const int lowest = static_cast<int>(bytes);
    ::setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &lowest, sizeof lowest);
  }
  void show_in(Visitor& visitor) {
    Fd socket{visitor.socket.release()};
    wake_at(socket.get(), 1);
    drop(visitor);
    hand_over(std::move(socket));
  }
  void hand_over(Fd socket) {
    Fd watched{::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0)};
    if (!watched) return turned_away_.tell("connections that found no free descriptor (ulimit -n)", address_of(socket.get()));
    inside_.add(std::move(watched), peer_text(socket.get()));
    enter_(std::move(socket));
  }
  bool make_room() {
    if (visitors_.empty() || visitors_.front()->came + door_turn > clock_.now()) return inside_.make_room();
    turned_away_.tell("connections that said nothing, to make room for others", address_of(visitors_.front()->socket.native_handle()));
    visitors_.pop_front();
    return true;
  }
  void drop(Visitor& visitor) { visitors_.erase(visitor.place); }

  void wait_for_the_first() {
    patience_.expires_after(visitors_.front()->until - clock_.now());
    patience_.async_wait(guarded([this] {
      const Instant now = clock_.now();
      while (!visitors_.empty() && visitors_.front()->until <= now) {
        turned_away_.tell("connections that said nothing", address_of(visitors_.front()->socket.native_handle()));
        visitors_.pop_front();
      }
      if (!visitors_.empty()) wait_for_the_first();
    }));
  }

  asio::io_context& loop_;
  const Clock& clock_;
  Options options_;
  TurnedAway& turned_away_;
  std::function<void(Fd)> enter_;
  std::uint16_t port_;
  asio::posix::stream_descriptor listener_;
  asio::steady_timer pause_, patience_, room_;
  Visitors visitors_;  // oldest first
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // callbacks hold it weakly
  DoorWatch inside_;   // last: its thread tells of what it ends
};

}  // namespace

FirstWords first_words(ByteSpan bytes) {
  const std::string_view text = as_text(bytes);
  const auto begins = [text](std::string_view words) { return words.starts_with(text.substr(0, words.size())); };
  if (begins(tls_record)) return text.size() >= tls_record.size() ? FirstWords::tls : FirstWords::unfinished;
  if (begins(http2_preface)) return text.size() >= http2_preface.size() ? FirstWords::http2 : FirstWords::unfinished;
  return FirstWords::other;
}

void TurnedAway::tell(std::string_view what, std::string_view whom) {
  Kind& kind = kinds_[std::string{what}];
  const Instant now = clock_.now();
  if (now < kind.quiet_until) return void(++kind.untold);
  kind.quiet_until = now + 60s;
  const std::uint64_t untold = std::exchange(kind.untold, 0);
  log_.warning(fmt::format("turned away: {}; from {}{}", what, whom, untold == 0 ? "" : fmt::format(", and {} more since this was last said", untold)));
}

Result<std::unique_ptr<Door>> Door::open(asio::io_context& loop, const Clock& clock, const std::string& address, std::uint16_t port, Options options,
                                         TurnedAway& turned_away, std::function<void(Fd)> enter) {
  ELRUN_TRY_ASSIGN(Fd listener, listen_at(address, port));
  return std::unique_ptr<Door>{std::make_unique<PosixDoor>(loop, clock, std::move(listener), options, turned_away, std::move(enter))};
}

}  // namespace elrun::inline v0
