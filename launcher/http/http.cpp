#include "launcher/http/http.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "lib/base/failure.hpp"

namespace elrun::inline v0::launcher {
namespace asio = boost::asio;
namespace http = boost::beast::http;
namespace {

constexpr std::string_view head_end = "\r\n\r\n";

template <class Text>
std::string text_of(const Text& text) {
  return {text.data(), text.size()};
}

HttpReply refusal(int status, const std::string& why) { return {.status = status, .body = why + "\n"}; }

}  // namespace

std::size_t end_of_head(std::string_view bytes, std::size_t looked_at) {
  const std::size_t from = looked_at < head_end.size() ? 0 : looked_at - (head_end.size() - 1);
  const std::size_t at = bytes.find(head_end, from);
  return at == std::string_view::npos ? 0 : at + head_end.size();
}

std::variant<HttpRequest, HttpReply> read_request(std::string_view head) {
  if (head.size() > http_request_max.value())
    return refusal(431, fmt::format("a request has at most {} bytes here", http_request_max.value()));
  http::request_parser<http::empty_body> parser;
  parser.header_limit(static_cast<std::uint32_t>(http_request_max.value()));
  boost::system::error_code error;
  parser.put(asio::buffer(head.data(), head.size()), error);
  if (error || !parser.is_header_done()) return refusal(400, "this is no HTTP request");
  const auto& request = parser.get();
  const bool head_only = request.method() == http::verb::head;
  if (request.method() != http::verb::get && !head_only) return refusal(405, "only GET and HEAD are answered here");
  const std::string target = text_of(request.target());
  return HttpRequest{!head_only, target.substr(0, target.find('?')), text_of(request[http::field::accept])};
}

std::string encode(const HttpReply& reply, bool with_body) {
  const auto reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(reply.status)));
  return fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}Cache-Control: no-store\r\nConnection: close\r\n\r\n{}",
                     reply.status, std::string_view{reason.data(), reason.size()}, reply.type, reply.body.size(),
                     reply.status == 405 ? "Allow: GET, HEAD\r\n" : "", with_body ? std::string_view{reply.body} : std::string_view{});
}

bool is_field_value(std::string_view text) {
  constexpr std::size_t most = 16 << 10;
  return !text.empty() && text.size() <= most && std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

std::string encode(const HttpQuestion& question, std::string_view host) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", question.method, question.path, host);
  for (const auto& [name, value] : question.fields) text += fmt::format("{}: {}\r\n", name, value);
  if (question.method != "GET") text += fmt::format("Content-Length: {}\r\n", question.body.size());
  return text + "\r\n" + question.body;
}

namespace {

using ReplyParser = http::response_parser<http::string_body>;

// False when the bytes are no reply.
bool parse_reply(ReplyParser& parser, std::string_view bytes) {
  parser.eager(true);
  parser.header_limit(static_cast<std::uint32_t>(http_request_max.value()));
  parser.body_limit(http_reply_max.value());
  boost::system::error_code error;
  while (!bytes.empty() && !parser.is_done()) {
    const std::size_t used = parser.put(asio::buffer(bytes.data(), bytes.size()), error);
    if (error || used == 0) break;
    bytes.remove_prefix(used);
  }
  return !error;
}

}  // namespace

bool is_whole_reply(std::string_view bytes) {
  ReplyParser parser;
  return parse_reply(parser, bytes) && parser.is_done();
}

Result<HttpReply> read_reply(std::string_view bytes) {
  ReplyParser parser;
  const bool good = parse_reply(parser, bytes);
  boost::system::error_code error;
  if (good && !parser.is_done() && parser.is_header_done()) parser.put_eof(error);
  if (!good || error || !parser.is_done()) return Failure{Code::protocol, Remedy::fix_config, "what came is no whole HTTP reply"};
  const auto& reply = parser.get();
  return HttpReply{static_cast<int>(reply.result_int()), text_of(reply[http::field::content_type]), reply.body()};
}

}  // namespace elrun::inline v0::launcher
