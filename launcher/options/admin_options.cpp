#include "launcher/options/admin_options.hpp"

#include "launcher/options/option_values.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0::launcher {

Result<HealthPort> parse_health_port(std::string_view text) {
  text = trimmed(text);
  const auto colon = text.rfind(':');
  std::string_view host = colon == std::string_view::npos ? std::string_view{} : text.substr(0, colon);
  const std::string_view port = colon == std::string_view::npos ? text : text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto number = to_integer(port);
  if (!number || *number < 0 || *number > 65535) return invalid("must be PORT or ADDRESS:PORT with a port from 0 (any) to 65535");
  if (colon != std::string_view::npos && !host_is_plain(host)) return invalid("the address must be a literal one, as 127.0.0.1 or [::1]");
  return HealthPort{std::string{host}, static_cast<std::uint16_t>(*number)};
}

}  // namespace elrun::inline v0::launcher
