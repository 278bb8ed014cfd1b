#include "rendezvous/round/status_messages.hpp"

#include <fmt/format.h>

namespace elrun::inline v0 {

std::uint64_t StatusMessages::number_of(const Reason& reason) {
  std::string key = fmt::format("{} {} {}", reason.why, reason.until ? reason.until->time_since_epoch().count() : 0, reason.then);
  if (newest_ != key) newest_ = std::move(key), ++number_;
  return number_;
}

}  // namespace elrun::inline v0
