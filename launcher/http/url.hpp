#pragma once
/// \file URL: of a server that elrun asks. Text to value, or why not.

#include <string>
#include <string_view>

#include <elrun/result.hpp>

#include "rendezvous/endpoint.hpp"

namespace elrun::inline v0::launcher {

struct Url {
  bool is_secure = false;  ///< https
  Endpoint server;
  std::string path;  ///< With the query; begins with `/`.
  /// The value of the field `Host`.
  [[nodiscard]] std::string host_field() const;
};

/// `http://HOST[:PORT][/PATH][?QUERY]`, or https. Printable ASCII without blanks; no user's name, no fragment.
[[nodiscard]] Result<Url> parse_url(std::string_view text);
[[nodiscard]] bool is_url(std::string_view text);

}  // namespace elrun::inline v0::launcher
