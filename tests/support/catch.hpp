#pragma once
/// \file The one include of Catch2: versions 2 and 3 name their headers differently, and the matcher for a piece of text.

#if __has_include(<catch2/catch_all.hpp>)
// One by one: with all of them comes another `Contains`, for an element of a range.
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <string>

namespace Catch::Matchers {
inline StringContainsMatcher Contains(const std::string& text) { return ContainsSubstring(text); }
}  // namespace Catch::Matchers
namespace Catch {
using Matchers::Contains;
}  // namespace Catch
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
