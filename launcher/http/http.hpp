#pragma once
/// \file HTTP: as much of it as a probe, a scraper and `elrun status` need. One request and one reply per connection.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <elrun/result.hpp>
#include <elrun/units.hpp>

namespace elrun::inline v0::launcher {

constexpr Bytes http_request_max = 8_KiB;  ///< Of the first line and all header fields; a longer request is refused.
constexpr Bytes http_reply_max = 4_MiB;    ///< Of a reply that is read; the status of 4,096 workers is a tenth of it.

struct HttpRequest {
  bool wants_body = true;  ///< GET; a HEAD wants the header alone.
  std::string path;        ///< Without what follows a `?`.
  std::string accept;      ///< The header field; empty: none
};

/// What is asked of another server.
struct HttpQuestion {
  std::string method = "GET";
  std::string path;  ///< Without blanks, with its query.
  std::vector<std::pair<std::string, std::string>> fields{};
  std::string body{};
};

struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

/// Where the head of a request ends in `bytes`, looking only behind what was looked at before; 0: not yet.
[[nodiscard]] std::size_t end_of_head(std::string_view bytes, std::size_t looked_at);

/// A whole head, up to and with its empty line, to what it asks; or the reply that tells what is wrong with it.
[[nodiscard]] std::variant<HttpRequest, HttpReply> read_request(std::string_view head);

/// What goes over the wire. The connection ends with it.
[[nodiscard]] std::string encode(const HttpReply& reply, bool with_body);
/// It may stand behind a header field's name: printable ASCII of at most 16 KiB, and not empty.
[[nodiscard]] bool is_field_value(std::string_view text);
/// What a client sends. The connection ends with the reply.
[[nodiscard]] std::string encode(const HttpQuestion& question, std::string_view host);
/// All that came until the other end closed; fails when it is no whole reply.
[[nodiscard]] Result<HttpReply> read_reply(std::string_view bytes);
/// The reply says itself how long it is, and is there as a whole: nothing more has to be waited for.
[[nodiscard]] bool is_whole_reply(std::string_view bytes);

}  // namespace elrun::inline v0::launcher
