#pragma once
/// \file Texts of others, as they may stand in a log or on a terminal.

#include <string>
#include <string_view>

namespace elrun::inline v0 {

enum class Lines { one, many };
enum class Bytes8 { escaped, kept };  ///< Bytes that are no UTF-8: a worker may have printed in another encoding.

/// What is no printable UTF-8 becomes `\x1b`: control characters, bytes that are no UTF-8, and what turns the direction of a
/// line round. Of many lines, line ends and tabs stay.
[[nodiscard]] std::string printable(std::string_view text, Lines lines = Lines::one, Bytes8 bytes = Bytes8::escaped);

}  // namespace elrun::inline v0
