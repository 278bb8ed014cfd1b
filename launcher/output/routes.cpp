#include "launcher/output/routes.hpp"

#include <array>
#include <utility>

#include <fmt/format.h>

namespace elrun::inline v0::launcher {

Route route(const RouteWish& wish) {
  if (wish.has_files && wish.teed) {
    if (wish.seen) return Route::tee;
    return wish.has_filters ? Route::tee_unseen : Route::file;
  }
  if (wish.has_files && wish.redirected) return Route::file;
  return wish.seen ? Route::inherit : Route::null;
}

std::string line_prefix(std::string_view text, const PrefixNames& names) {
  if (text.empty()) return fmt::format("[{}{}]:", names.role, names.local_rank.value());
  const std::array<std::pair<std::string_view, std::string>, 4> values{{{"role_name", names.role},
                                                                        {"local_rank", std::to_string(names.local_rank.value())},
                                                                        {"rank", std::to_string(names.rank.value())},
                                                                        {"hostname", names.host.substr(0, names.host.find('.'))}}};
  const auto is_word = [](char c) { return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  std::string out;
  while (!text.empty()) {
    const std::size_t dollar = std::min(text.find('$'), text.size());
    out += text.substr(0, dollar);
    text.remove_prefix(dollar);
    if (text.empty()) break;
    std::string_view rest = text.substr(1);
    const bool braced = rest.starts_with('{');
    if (braced) rest.remove_prefix(1);
    std::size_t length = 0;
    while (length < rest.size() && is_word(rest[length])) ++length;
    const std::string_view name = rest.substr(0, length);
    const std::size_t taken = 1 + length + (braced ? 2 : 0);
    const bool closed = !braced || rest.substr(length).starts_with('}');
    const auto* value = values.begin();
    while (value != values.end() && value->first != name) ++value;
    if (!braced && rest.starts_with('$')) {
      out += '$';
      text.remove_prefix(2);
    } else if (closed && value != values.end()) {
      out += value->second;
      text.remove_prefix(taken);
    } else {
      out += '$';
      text.remove_prefix(1);
    }
  }
  return out;
}

}  // namespace elrun::inline v0::launcher
