#include "lib/comm/tcp/frame_transport.hpp"

#include <algorithm>

#include <boost/asio/error.hpp>

namespace elrun::inline v0 {

void FrameTransport::add(Rank peer, StreamSocket socket, bool carries, bool checked) {
  const auto at = std::ranges::upper_bound(connections_, peer, {}, [](const auto& each) { return each->peer(); });
  const auto added =
      connections_.insert(at, std::make_unique<FrameConnection>(peer, me_, std::move(socket), carries, checked, sides_, events_));
  (*added)->start();
}

void FrameTransport::begin(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom,
                           const CallLabel& label) {
  sides_.open = 1;  // this function's own hold, so that the call does not end while it begins
  for (const auto& each : connections_) {
    const Rank peer = each->peer();
    if (!each->carries() || (whom && peer != *whom)) continue;
    each->begin(sends[peer.value()], receives[peer.value()], label);
    if (closed_) return;
  }
  sides_.close();
}

std::vector<Rank> FrameTransport::busy() const {
  std::vector<Rank> ranks;
  for (const auto& each : connections_)
    if (each->is_busy()) ranks.push_back(each->peer());
  return ranks;
}

bool FrameTransport::is_busy_with(Rank peer) const {
  return std::ranges::any_of(connections_, [&](const auto& each) { return each->peer() == peer && each->is_busy(); });
}

void FrameTransport::look(const std::function<bool(FrameConnection&)>& look) {
  for (const auto& each : connections_)
    if (each->carries() && !each->has_ended() && look(*each)) each->end(boost::asio::error::timed_out);
}

bool FrameTransport::carries() const {
  return std::ranges::any_of(connections_, [](const auto& each) { return each->carries(); });
}

void FrameTransport::close() {
  closed_ = true;
  for (const auto& each : connections_) each->close();
}

}  // namespace elrun::inline v0
