#include "rendezvous/lookup.hpp"

#include <netdb.h>

#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include <boost/asio/post.hpp>

#include <fmt/format.h>

#include "lib/base/fd.hpp"

namespace elrun::inline v0 {
namespace {

// May take as long as the name servers do, unless the host is a literal.
Resolved resolve(const Endpoint& endpoint, bool literal_only) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = literal_only ? AI_NUMERICHOST : 0;
  Resolved out;
  if (const int error = ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found); error != 0) {
    out.problem = fmt::format("the name {} does not resolve: {}", endpoint.host, ::gai_strerror(error));
    return out;
  }
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    char host[NI_MAXHOST];
    if (::getnameinfo(at->ai_addr, at->ai_addrlen, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) continue;
    Address address;
    address.host = host;
    const bool six = at->ai_family == AF_INET6;
    address.text = six ? fmt::format("[{}]:{}", host, endpoint.port) : fmt::format("{}:{}", host, endpoint.port);
    address.target = (six ? "ipv6:" : "ipv4:") + address.text;
    std::memcpy(&address.socket, at->ai_addr, at->ai_addrlen);
    address.length = at->ai_addrlen;
    out.addresses.push_back(std::move(address));
  }
  ::freeaddrinfo(found);
  if (out.addresses.empty()) out.problem = fmt::format("the name {} has no address", endpoint.host);
  return out;
}

}  // namespace

// A datagram socket that is connected sends nothing.
std::string source_address(const Address& peer) {
  const Fd socket{::socket(peer.socket.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  char host[NI_MAXHOST];
  if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&peer.socket), peer.length) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&own), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0)
    return {};
  return host;
}

// Where the thread leaves its result; whoever asked, and the loop, may be gone by then.
struct NameLookup::Mailbox {
  std::mutex mutex;
  bool open = true;                       // under the mutex
  std::function<void(Resolved)> answer;  // loop thread only
};

NameLookup::NameLookup(boost::asio::io_context& loop) : loop_{loop} {}

NameLookup::~NameLookup() {
  if (!mailbox_) return;
  const std::lock_guard lock{mailbox_->mutex};
  mailbox_->open = false;
}

void NameLookup::start(const Endpoint& endpoint, std::function<void(Resolved)> answer) {
  if (mailbox_) {
    const std::lock_guard lock{mailbox_->mutex};
    mailbox_->open = false;
  }
  mailbox_.reset();
  if (Resolved literal = resolve(endpoint, true); !literal.addresses.empty()) return answer(std::move(literal));
  mailbox_ = std::make_shared<Mailbox>();
  mailbox_->answer = std::move(answer);
  std::thread([mailbox = mailbox_, endpoint, &loop = loop_] {
    Resolved result = resolve(endpoint, false);
    const std::lock_guard lock{mailbox->mutex};
    if (!mailbox->open) return;
    boost::asio::post(loop, [weak = std::weak_ptr{mailbox}, result = std::move(result)]() mutable {
      if (const auto there = weak.lock(); there && there->open) there->answer(std::move(result));
    });
  }).detach();
}

}  // namespace elrun::inline v0
