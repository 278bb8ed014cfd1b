#pragma once
/// \file What a checker says when its rule is broken. The first broken rule of a run is the finding.

#include <optional>
#include <string>
#include <string_view>

#include <elrun/units.hpp>

namespace elrun::sim {

struct Violation {
  std::string checker, sentence;
};

class Report {
 public:
  void violate(std::string_view checker, std::string sentence) {
    if (!first) first = Violation{std::string{checker}, std::move(sentence)};
  }
  std::optional<Violation> first;
  Instant now{};  ///< Of the observation at hand
};

}  // namespace elrun::sim
