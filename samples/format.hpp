#pragma once
/// \file Lines as printf makes them, in a std::string.

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <string>

namespace samples {

[[gnu::format(printf, 1, 2)]] inline std::string format(const char* pattern, ...) {
  va_list values, again;
  va_start(values, pattern);
  va_copy(again, values);
  std::string line(static_cast<std::size_t>(std::max(std::vsnprintf(nullptr, 0, pattern, values), 0)), '\0');
  va_end(values);
  std::vsnprintf(line.data(), line.size() + 1, pattern, again);
  va_end(again);
  return line;
}

}  // namespace samples
