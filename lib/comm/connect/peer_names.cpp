#include "lib/comm/connect/peer_names.hpp"

#include <chrono>

#include <fmt/format.h>

namespace elrun::inline v0 {

Result<std::vector<SocketAddress>> PeerNames::find(const RankAddress& peer) {
  if (const auto literal = literal_address(peer.host, peer.port)) return std::vector{*literal};
  auto known = known_.find(peer.host);
  if (known == known_.end()) {
    const Instant began = clock_.now();
    ELRUN_TRY_ASSIGN(auto found, resolver_(peer.host, peer.port));
    if (const Instant now = clock_.now(); deadline_.left(now) <= Duration{0})
      return Failure{.code = Code::deadline_passed,
                     .remedy = Remedy::rejoin,
                     .what = fmt::format("the time to connect was over when the host name \"{}\" had been looked up, which took {:.3g} s",
                                         peer.host, std::chrono::duration<double>(now - began).count())};
    known = known_.emplace(peer.host, std::move(found)).first;
  }
  std::vector<SocketAddress> addresses;
  for (const SocketAddress& each : known->second)
    if (const auto literal = literal_address(each.host(), peer.port)) addresses.push_back(*literal);
  return addresses;
}

}  // namespace elrun::inline v0
