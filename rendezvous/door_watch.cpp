// The system counts what came on a connection (tcpi_bytes_received), whoever read it, TLS or not; a second descriptor of the
// socket is enough to ask. Nothing is copied and nothing stands between gRPC and the socket. What gRPC parses between two
// looks is the price; it keeps headers at ten times their size. Whoever is ended is reset: what still lies in the socket is
// gone with it, and gRPC finds a connection that broke.
#include "rendezvous/door_watch.hpp"

#include <malloc.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include "lib/base/quiet_thread.hpp"
#include "rendezvous/tcp_facts.hpp"

namespace elrun::inline v0 {

DoorWatch::DoorWatch(const Clock& clock, Duration patience, std::function<void(std::string_view, const std::string&)> cut)
    : clock_{clock}, patience_{patience}, cut_{std::move(cut)}, thread_{quiet_thread([this] { watch(); })} {}

DoorWatch::~DoorWatch() {
  {
    const std::lock_guard lock{mutex_};
    over_ = true;
    for (const Inside& one : inside_) ::shutdown(one.socket.get(), SHUT_RDWR);
  }
  changed_.notify_all();
  thread_.join();
}

void DoorWatch::add(Fd socket, std::string peer) {
  const std::lock_guard lock{mutex_};
  const Instant now = clock_.now();
  inside_.push_back({std::move(socket), std::move(peer), now + patience_, now});
  if (inside_.size() == 1) changed_.notify_all();
}

void DoorWatch::let_in(std::string_view peer) {
  const std::lock_guard lock{mutex_};
  auto found = std::find_if(inside_.begin(), inside_.end(), [&](const Inside& i) { return i.peer == peer; });
  if (found == inside_.end()) {  // an address that somebody writes in another way: the port tells
    const std::string_view port = peer.substr(std::min(peer.rfind(':'), peer.size()));
    found = std::find_if(inside_.begin(), inside_.end(), [&](const Inside& i) { return !port.empty() && i.peer.ends_with(port); });
  }
  if (found != inside_.end()) inside_.erase(found);  // else it was let in before
}

std::size_t DoorWatch::size() const {
  const std::lock_guard lock{mutex_};
  return inside_.size();
}

bool DoorWatch::make_room() {
  const std::lock_guard lock{mutex_};
  const Instant now = clock_.now();
  const auto idle = std::find_if(inside_.begin(), inside_.end(), [&](const Inside& one) {
    int unread = 0;
    return one.moved + door_turn <= now && (::ioctl(one.socket.get(), FIONREAD, &unread) != 0 || unread == 0);
  });
  if (idle == inside_.end()) return false;
  end(*idle, "connections that did not join, to make room for others");
  inside_.erase(idle);
  return true;
}

void DoorWatch::watch() {
  std::unique_lock lock{mutex_};
  while (!over_) {
    if (inside_.empty()) {
      if (std::exchange(untidy_, false)) {
        lock.unlock();
        ::malloc_trim(0);
        lock.lock();
        continue;
      }
      changed_.wait(lock, [&] { return over_ || !inside_.empty(); });
    }
    changed_.wait_for(lock, door_look_every, [&] { return over_; });
    look();
  }
}

void DoorWatch::look() {
  const Instant now = clock_.now();
  std::erase_if(inside_, [&](Inside& one) {
    const auto facts = tcp_facts(one.socket.get());
    if (!facts || !facts->is_open) return true;  // gRPC or its peer has ended it
    if (facts->bytes_received > door_bytes_max.value()) return end(one, "connections that sent more than 64 KiB before they were let in"), true;
    if (now >= one.until) return end(one, "connections that did not join"), true;
    if (facts->bytes_received != one.bytes) one.bytes = facts->bytes_received, one.moved = now;
    return false;
  });
}

void DoorWatch::end(const Inside& one, std::string_view why) {
  const sockaddr nowhere{.sa_family = AF_UNSPEC, .sa_data = {}};
  ::connect(one.socket.get(), &nowhere, sizeof nowhere);
  ::shutdown(one.socket.get(), SHUT_RDWR);
  untidy_ = true;
  cut_(why, one.peer);
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

}  // namespace elrun::inline v0
