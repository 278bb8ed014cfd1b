#include "rendezvous/net/announcements.hpp"

#include <utility>
#include <variant>

namespace elrun::inline v0 {
namespace {

bool says_verdict(const RoundAction& action) {
  const auto* send = std::get_if<SendTo>(&action);
  return send != nullptr && std::holds_alternative<Verdict>(send->message);
}

}  // namespace

bool Announcements::must_last(const RoundAction& action) const {
  return has_ledger_ && (std::holds_alternative<BeginGeneration>(action) || (!verdict_said_ && says_verdict(action)));
}

std::optional<RoundAction> Announcements::next() {
  if (held_.empty() || asked_ || (!cleared_ && must_last(held_.front()))) return {};
  RoundAction action = std::move(held_.front());
  held_.pop_front();
  cleared_ = false;
  if (says_verdict(action)) verdict_said_ = true;
  return action;
}

std::optional<Announcements::Entry> Announcements::entry() {
  if (held_.empty() || asked_ || cleared_ || !must_last(held_.front())) return {};
  asked_ = true;
  const auto* begin = std::get_if<BeginGeneration>(&held_.front());
  return Entry{begin != nullptr ? std::optional{begin->generation} : std::nullopt};
}

}  // namespace elrun::inline v0
