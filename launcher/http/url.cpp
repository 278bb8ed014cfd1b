#include "launcher/http/url.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "launcher/options/options.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::string_view plain = "http://", secure = "https://";
constexpr std::uint16_t plain_port = 80, secure_port = 443;

}  // namespace

std::string Url::host_field() const {
  const std::string host = server.host.find(':') == std::string::npos ? server.host : fmt::format("[{}]", server.host);
  return server.port == (is_secure ? secure_port : plain_port) ? host : fmt::format("{}:{}", host, server.port);
}

bool is_url(std::string_view text) { return text.starts_with(plain) || text.starts_with(secure); }

Result<Url> parse_url(std::string_view text) {
  if (!is_url(text)) return invalid("a URL begins with http:// or https://");
  if (std::any_of(text.begin(), text.end(), [](char c) { return c <= 0x20 || c >= 0x7f; }))
    return invalid("a URL holds printable ASCII without blanks only");
  Url url{.is_secure = text.starts_with(secure)};
  std::string_view rest = text.substr(url.is_secure ? secure.size() : plain.size());
  const std::string_view authority = rest.substr(0, rest.find_first_of("/?#"));
  rest.remove_prefix(authority.size());
  if (authority.find('@') != authority.npos) return invalid("a URL with a user's name is not supported");
  if (rest.find('#') != rest.npos) return invalid("a URL that is asked has no #");
  if (authority.empty() || authority.front() == ':') return invalid("the URL names no host");
  auto server = parse_endpoint(authority, url.is_secure ? secure_port : plain_port);
  if (!server.ok()) return invalid("of the URL: " + server.failure().what);
  url.server = *std::move(server);
  url.path = (rest.starts_with('/') ? "" : "/") + std::string{rest};
  return url;
}

}  // namespace elrun::inline v0::launcher
