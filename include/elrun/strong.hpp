#pragma once
/// \file Numbers that know what they count, so that a rank is never taken for a world size.

#include <compare>
#include <cstddef>
#include <functional>
#include <utility>

namespace elrun::inline v0 {

/// A value of `Rep` that means `Tag`: explicit in, `.value()` out, compared and hashed, but no arithmetic.
template <class Tag, class Rep>
class Strong {
 public:
  using rep = Rep;
  constexpr Strong() = default;
  explicit constexpr Strong(Rep value) : value_{std::move(value)} {}
  [[nodiscard]] constexpr const Rep& value() const noexcept { return value_; }
  friend constexpr auto operator<=>(const Strong&, const Strong&) = default;
  friend constexpr bool operator==(const Strong&, const Strong&) = default;

 private:
  Rep value_{};
};

}  // namespace elrun::inline v0

template <class Tag, class Rep>
struct std::hash<elrun::Strong<Tag, Rep>> {
  std::size_t operator()(const elrun::Strong<Tag, Rep>& s) const noexcept { return std::hash<Rep>{}(s.value()); }
};
