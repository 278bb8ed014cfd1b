// One request, one reply, and nothing that is sent does harm.
#include "launcher/http/http.hpp"

#include "launcher/http/ask.hpp"
#include "lib/base/failure.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/manual_clock.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

int refused(std::string_view head) {
  const auto read = read_request(head);
  const auto* reply = std::get_if<HttpReply>(&read);
  return reply == nullptr ? 0 : reply->status;
}

}  // namespace

TEST_CASE("a request is understood", "[http]") {
  const auto read = read_request("GET /metrics?name=x HTTP/1.1\r\nHost: h\r\naccept: text/plain\r\n\r\n");
  REQUIRE(std::holds_alternative<HttpRequest>(read));
  const auto& request = std::get<HttpRequest>(read);
  CHECK(request.path == "/metrics");
  CHECK(request.accept == "text/plain");
  CHECK(request.wants_body);
  const auto head = read_request("HEAD /livez HTTP/1.0\r\n\r\n");
  REQUIRE(std::holds_alternative<HttpRequest>(head));
  CHECK_FALSE(std::get<HttpRequest>(head).wants_body);
}

TEST_CASE("what is no request for a page is refused", "[http]") {
  CHECK(refused("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\n") == 405);
  CHECK(refused("\x16\x03\x01 hello\r\n\r\n") == 400);
  CHECK(refused("GET /\r\n\r\n") == 400);
  CHECK(refused("GET / HTTP/1.1\r\nHost: h") == 400);
  CHECK(refused("GET /" + std::string(http_request_max.value(), 'a') + " HTTP/1.1\r\n\r\n") == 431);
  CHECK(refused("") == 400);
}

TEST_CASE("the end of a head is found wherever it was cut", "[http]") {
  const std::string head = "GET / HTTP/1.1\r\n\r\n";
  for (std::size_t cut = 0; cut < head.size(); ++cut) {
    CHECK(end_of_head(std::string_view{head}.substr(0, cut), 0) == 0);
    CHECK(end_of_head(head + "rest", cut) == head.size());
  }
}

TEST_CASE("a reply is read as it was written", "[http]") {
  const HttpReply reply{.status = 404, .type = "text/plain", .body = "line\r\n\r\nline"};
  const std::string bytes = encode(reply, true);
  CHECK(bytes.starts_with("HTTP/1.1 404 Not Found\r\n"));
  const auto read = read_reply(bytes);
  REQUIRE(read.ok());
  CHECK(read->status == 404);
  CHECK(read->type == "text/plain");
  CHECK(read->body == reply.body);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) CHECK_FALSE(read_reply(std::string_view{bytes}.substr(0, cut)).ok());
  CHECK(encode(reply, false).ends_with("Content-Length: 12\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"));
  CHECK(std::holds_alternative<HttpRequest>(read_request(encode(HttpQuestion{.path = "/statusz"}, "localhost"))));
}

TEST_CASE("a question has its fields and, unless it is a GET, its length", "[http]") {
  CHECK(encode(HttpQuestion{.path = "/a", .fields = {{"X", "y"}}}, "h:1") ==
        "GET /a HTTP/1.1\r\nHost: h:1\r\nConnection: close\r\nX: y\r\n\r\n");
  CHECK(encode(HttpQuestion{.method = "POST", .path = "/", .body = "abc"}, "h") ==
        "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc");
  CHECK(is_field_value("abc=="));
  for (const std::string& bad :
       {std::string{}, std::string{"a\r\nX: y"}, std::string{"\x7f"}, std::string{"\xc3\xa4"}, std::string(20000, 'a')})
    CHECK_FALSE(is_field_value(bad));
}

TEST_CASE("a reply that says its length is whole without the end of the connection", "[http]") {
  CHECK(is_whole_reply("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"));
  CHECK(is_whole_reply("HTTP/1.1 204 No Content\r\n\r\n"));
  CHECK(is_whole_reply("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"));
  CHECK_FALSE(is_whole_reply("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok"));
  CHECK_FALSE(is_whole_reply("HTTP/1.1 200 OK\r\n\r\nok"));  // its end is the connection's
  CHECK_FALSE(is_whole_reply("HTTP/1.1 200 OK\r\n"));
  CHECK_FALSE(is_whole_reply(""));
}

TEST_CASE("of a name's addresses the first that answers is heard, and silent ones leave time to it", "[http]") {
  ManualClock clock;
  const std::vector<SocketAddress> addresses{{.size = 0}, {.size = 1}, {.size = 2}, {.size = 3}};
  std::vector<Duration> given;
  const auto ask_one = [&](std::size_t answers) {
    return [&, answers](const SocketAddress& where, Duration time) -> Result<HttpReply> {
      const std::size_t asked = given.size();
      given.push_back(time);
      if (asked == answers) return HttpReply{.body = std::to_string(where.size)};
      if (asked == 0) return Failure{Code::unreachable, Remedy::retry, "refused at once"};
      clock.advance(time);
      return Failure{Code::deadline_passed, Remedy::retry, std::to_string(where.size)};
    };
  };
  const auto third = ask_first(addresses, 12s, clock, ask_one(2));
  REQUIRE(third.ok());
  CHECK(third->body == "2");
  CHECK(given == std::vector<Duration>{3s, 4s, 4s});
  given.clear();
  const auto none = ask_first(std::span{addresses}.first(2), 12s, clock, ask_one(3));
  REQUIRE_FALSE(none.ok());
  CHECK(none.failure().what == "refused at once; 1");
  CHECK(given == std::vector<Duration>{6s, 12s});
}
