#include "rendezvous/net/admission.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

constexpr Duration remembered = 2s;         // how long a slow admission counts
constexpr std::size_t crowd = 16;           // with fewer admissions in that time a slow one is one node's own affair
constexpr std::size_t addresses_named = 3;  // in one line of the log

}  // namespace

ConnectionId AdmissionPlaces::accepted(std::string_view address, Instant now) {
  auto known = addresses_.find(address);
  if (known == addresses_.end()) known = addresses_.emplace(address, 0).first;
  ++known->second;
  connections_.emplace(++last_id_, Connection{known, now});
  return last_id_;
}

void AdmissionPlaces::waits_for_grpc(ConnectionId id) {
  if (const auto found = connections_.find(id); found != connections_.end()) found->second.can_be_ended = false;
}

void AdmissionPlaces::handed_to_grpc(ConnectionId id, Instant now) {
  if (const auto found = connections_.find(id); found != connections_.end()) found->second.can_be_ended = true, found->second.since = now;
}

void AdmissionPlaces::admitted(ConnectionId id, Instant now) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  learn(now - found->second.since, now);
  forget(found);
}

void AdmissionPlaces::gone(ConnectionId id) {
  if (const auto found = connections_.find(id); found != connections_.end()) forget(found);
}

void AdmissionPlaces::forget(std::map<ConnectionId, Connection>::iterator connection) {
  if (--connection->second.address->second == 0) addresses_.erase(connection->second.address);
  connections_.erase(connection);
}

void AdmissionPlaces::learn(Duration took, Instant now) {
  if (now - span_began_ >= remembered) {
    before_ = now - span_began_ < 2 * remembered ? span_ : Span{};
    span_ = {};
    span_began_ = now;
  }
  ++span_.admissions;
  span_.slowest = std::max(span_.slowest, took);
}

Duration AdmissionPlaces::age_max(std::size_t waiting, Instant now) const {
  // All who wait get a place within about `age_longest`, as long as that leaves each connection `age_shortest`.
  const Duration fair =
      limits_.age_longest * static_cast<Duration::rep>(limits_.places) / static_cast<Duration::rep>(std::max<std::size_t>(waiting, 1));
  const bool crowded = now - span_began_ < 2 * remembered && span_.admissions + before_.admissions >= crowd;
  const Duration slowest = crowded ? std::max(span_.slowest, before_.slowest) : Duration{};
  return std::min(std::max({fair, 2 * slowest, limits_.age_shortest}), limits_.age_longest);
}

std::optional<ConnectionId> AdmissionPlaces::to_end(std::size_t waiting, Instant now, Rng& rng) const {
  const Duration age = age_max(waiting, now);
  std::size_t most = 0, alike = 0;
  std::optional<ConnectionId> chosen;
  for (const auto& [id, connection] : connections_) {
    const std::size_t held = connection.address->second;
    if (!connection.can_be_ended || now - connection.since < age || held < most || 2 * held * addresses_.size() < connections_.size())
      continue;
    if (held > most) most = held, alike = 0;
    if (rng.below(++alike) == 0) chosen = id;  // each of those alike with the same chance
  }
  return chosen;
}

std::string AdmissionPlaces::most_places() const {
  std::vector<std::pair<std::size_t, std::string_view>> all;
  for (const auto& [address, held] : addresses_) all.emplace_back(held, address);
  const auto named = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), addresses_named));
  std::partial_sort(all.begin(), named, all.end(), std::greater<>{});
  std::string text;
  for (auto one = all.begin(); one != named; ++one)
    text += text.empty() ? fmt::format("{} ({} of {} places)", one->second, one->first, limits_.places)
                         : fmt::format(", {} ({})", one->second, one->first);
  return text;
}

std::string counted_address(const std::string& host) {
  in6_addr address{};
  const std::string literal = host.substr(0, host.find('%'));
  if (::inet_pton(AF_INET6, literal.c_str(), &address) != 1) return host;
  std::fill_n(address.s6_addr + 8, 8, std::uint8_t{0});
  char text[INET6_ADDRSTRLEN];
  return std::string{::inet_ntop(AF_INET6, &address, text, sizeof text)} + "/64";
}

}  // namespace elrun::inline v0
