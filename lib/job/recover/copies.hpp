#pragma once
/// \file Whether the two copies of mirrored state are on different nodes, and what is said when that changes. Core: all members work out the same from the same
/// statuses.

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/job/recover/member_status.hpp"

namespace elrun::inline v0 {

/// Where the copies are now, by the nodes of these members. What members knew before decides whether it is a loss that they are together.
[[nodiscard]] Copies copies_of(std::span<const MemberStatus> statuses);

/// What a person should know of that: that the loss of one node has a price now, or has none any more. Nothing: it is as it always was, or as it was said before the
/// job began. `placement`: its name.
struct CopiesLine {
  bool is_warning = false;
  std::string text;
};
[[nodiscard]] std::optional<CopiesLine> copies_line(std::span<const MemberStatus> statuses, std::string_view placement);

}  // namespace elrun::inline v0
