// The kernel counts the bytes that arrived on a connection (TCP_INFO, tcpi_bytes_received), whoever read them and with or without
// TLS. A second descriptor of the same socket is enough to ask. So nothing is copied, and nothing stands between gRPC and the
// socket. The price is what gRPC parses between two looks; it keeps headers at about ten times their size.
//
// A connection that is ended is reset: bytes that still lie in the socket are discarded, and gRPC sees a broken connection.
#include "rendezvous/net/admission_watch.hpp"

#include <malloc.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include "lib/base/quiet_thread.hpp"
#include "rendezvous/net/tcp_facts.hpp"

namespace elrun::inline v0 {

AdmissionWatch::AdmissionWatch(const Clock& clock, Duration patience, AdmissionLimits limits, std::uint64_t seed,
                               std::function<void(std::string_view, const std::string&)> ended)
    : clock_{clock}, patience_{patience}, ended_{std::move(ended)}, places_{limits}, rng_{seed}, thread_{quiet_thread([this] {
        watch();
      })} {}

AdmissionWatch::~AdmissionWatch() {
  {
    const std::lock_guard lock{mutex_};
    over_ = true;
    for (const Watched& one : watched_) ::shutdown(one.socket.get(), SHUT_RDWR);
  }
  changed_.notify_all();
  thread_.join();
}

ConnectionId AdmissionWatch::accepted(std::string_view address) {
  const std::lock_guard lock{mutex_};
  return places_.accepted(address, clock_.now());
}

void AdmissionWatch::closed(ConnectionId id) {
  const std::lock_guard lock{mutex_};
  places_.gone(id);
}

void AdmissionWatch::watch_bytes(ConnectionId id, Fd socket, std::string peer) {
  const std::lock_guard lock{mutex_};
  places_.waits_for_grpc(id);
  watched_.push_back({id, std::move(socket), std::move(peer), clock_.now() + patience_});
  if (watched_.size() == 1) changed_.notify_all();
}

void AdmissionWatch::handed_to_grpc(ConnectionId id) {
  const std::lock_guard lock{mutex_};
  places_.handed_to_grpc(id, clock_.now());
}

void AdmissionWatch::admitted(std::string_view peer) {
  const std::lock_guard lock{mutex_};
  auto found = std::find_if(watched_.begin(), watched_.end(), [&](const Watched& w) { return w.peer == peer; });
  if (found == watched_.end()) {  // gRPC may write the address in another way; then the port has to do
    const std::string_view port = peer.substr(std::min(peer.rfind(':'), peer.size()));
    found = std::find_if(watched_.begin(), watched_.end(), [&](const Watched& w) { return !port.empty() && w.peer.ends_with(port); });
  }
  if (found == watched_.end()) return;  // another stream on this connection was admitted before
  places_.admitted(found->id, clock_.now());
  watched_.erase(found);
}

bool AdmissionWatch::is_full() const {
  const std::lock_guard lock{mutex_};
  return places_.is_full();
}

AdmissionWatch::Room AdmissionWatch::make_room(std::size_t waiting) {
  const std::lock_guard lock{mutex_};
  const auto id = places_.to_end(waiting, clock_.now(), rng_);
  if (!id) return {};
  const auto watched = std::find_if(watched_.begin(), watched_.end(), [&](const Watched& w) { return w.id == *id; });
  if (watched == watched_.end()) return {true, id};
  end(*watched, ended_for_others);
  watched_.erase(watched);
  return {true, {}};
}

std::string AdmissionWatch::most_places() const {
  const std::lock_guard lock{mutex_};
  return places_.most_places();
}

void AdmissionWatch::watch() {
  std::unique_lock lock{mutex_};
  while (!over_) {
    if (watched_.empty()) {
      if (std::exchange(has_garbage_, false)) {
        lock.unlock();
        ::malloc_trim(0);
        lock.lock();
        continue;
      }
      changed_.wait(lock, [&] { return over_ || !watched_.empty(); });
    }
    changed_.wait_for(lock, admission_look_every, [&] { return over_; });
    look();
  }
}

void AdmissionWatch::look() {
  const Instant now = clock_.now();
  std::erase_if(watched_, [&](Watched& one) {
    const auto facts = tcp_facts(one.socket.get());
    const bool is_open = facts && facts->is_open;
    if (!is_open) places_.gone(one.id);  // gRPC or the peer has closed it
    else if (facts->bytes_received > unadmitted_bytes_max.value())
      end(one, "connections that sent more than 64 KiB before they were let in");
    else if (now >= one.until) end(one, "connections that did not join");
    else return one.bytes = facts->bytes_received, false;
    return true;
  });
  end_largest();
}

// Together they may not take the memory that none of them alone may take. A node sends little, so it is never among the largest.
void AdmissionWatch::end_largest() {
  std::uint64_t together = 0;
  for (const Watched& one : watched_) together += one.bytes;
  while (together > unadmitted_bytes_together_max.value()) {
    const auto largest =
        std::max_element(watched_.begin(), watched_.end(), [](const Watched& a, const Watched& b) { return a.bytes < b.bytes; });
    together -= largest->bytes;
    end(*largest, "connections that sent the most of more than 4 MiB before they were let in");
    watched_.erase(largest);
  }
}

void AdmissionWatch::end(const Watched& one, std::string_view why) {
  const sockaddr nowhere{.sa_family = AF_UNSPEC, .sa_data = {}};
  (void)::connect(one.socket.get(), &nowhere, sizeof nowhere);  // for a connected socket of TCP this means a reset
  ::shutdown(one.socket.get(), SHUT_RDWR);
  has_garbage_ = true;
  places_.gone(one.id);
  ended_(why, one.peer);
}

std::string plain_peer(std::string_view grpc_peer) {
  if (grpc_peer.starts_with("ipv")) grpc_peer.remove_prefix(grpc_peer.find(':') + 1);
  std::string plain;
  for (std::size_t i = 0; i < grpc_peer.size(); ++i) {
    unsigned code = 0;
    const char* const digits = grpc_peer.data() + i + 1;
    const bool escaped = grpc_peer[i] == '%' && i + 2 < grpc_peer.size() && std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2;
    plain += escaped ? static_cast<char>(code) : grpc_peer[i];
    if (escaped) i += 2;
  }
  return plain;
}

std::string plain_host(std::string_view grpc_peer) {
  std::string host = plain_peer(grpc_peer);
  host.resize(std::min(host.size(), host.rfind(':')));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  constexpr std::string_view mapped = "::ffff:";
  return host.starts_with(mapped) && host.find('.') != host.npos ? host.substr(mapped.size()) : host;
}

}  // namespace elrun::inline v0
