#include "lib/comm/connect/loss_policy.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {

Failure unreachable_peer(Rank peer, std::string_view why) {
  return {.code = Code::unreachable,
          .remedy = Remedy::rejoin,
          .what = fmt::format("rank {} cannot be reached: {}", peer.value(), why),
          .peer = peer};
}

void LossPolicy::ended(Rank peer, ConnectionEnd how, std::string_view error) {
  std::optional<Failure>& lost = peers_[peer.value()].lost;
  if (lost) return;
  if (how == ConnectionEnd::silent)
    lost = unreachable_peer(peer, fmt::format("its host answered nothing for {} s", Timeouts{}.peer_silence / 1s));
  else
    lost = Failure{.code = Code::peer_lost,
                   .remedy = Remedy::rejoin,
                   .what = fmt::format("rank {} is gone: {}", peer.value(),
                                       how == ConnectionEnd::closed ? std::string_view{"it closed the connection"} : error),
                   .peer = peer};
  if (!first_lost_) first_lost_ = peer;
}

bool LossPolicy::looked(Rank peer, bool unanswered) {
  std::uint32_t& looks = peers_[peer.value()].unanswered;
  looks = unanswered ? looks + 1 : 0;
  return looks >= looks_max;
}

bool LossPolicy::missed(Rank peer, const Failure& otherwise) {
  if (missed_) return false;  // the first peer that was missed is the one to name
  missed_ = Missed{peer, otherwise};
  return true;
}

Failure LossPolicy::blame() const {
  ELRUN_ASSERT(missed_.has_value());
  // A peer that gave up may have done so because of a third rank that this one cannot reach either: that rank is named.
  const auto silent = std::ranges::max_element(peers_, {}, &Peer::unanswered);
  if (silent->unanswered >= looks_of_suspicion) {
    return unreachable_peer(Rank{static_cast<std::uint32_t>(silent - peers_.begin())},
                            fmt::format("nothing that was sent to it was answered in {} s", silent->unanswered * (wire_look / 1s)));
  }
  if (const auto& lost = peers_[missed_->peer.value()].lost) return *lost;
  if (first_lost_) return *peers_[first_lost_->value()].lost;
  return missed_->otherwise;
}

}  // namespace elrun::inline v0
