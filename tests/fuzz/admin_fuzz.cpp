// What anybody may send to the admin endpoints: requests, replies, timer lines, a status. Nothing crashes, bounds hold.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/http/http.hpp"
#include "launcher/http/pages.hpp"
#include "launcher/options/admin_options.hpp"
#include "launcher/process/file_timers.hpp"
#include "lib/base/assert.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

void requests(std::string_view text) {
  const std::size_t end = end_of_head(text, 0);
  const auto read = read_request(text.substr(0, end == 0 ? text.size() : end));
  if (const auto* reply = std::get_if<HttpReply>(&read)) ELRUN_ASSERT(reply->status >= 400 && reply->status < 500);
  if (const auto* request = std::get_if<HttpRequest>(&read)) ELRUN_ASSERT(end != 0 && request->path.find('?') == std::string::npos);
}

void timers(std::string_view text) {
  // In two parts or at once, the lines are the same.
  TimerLines whole, parts;
  const auto lines = whole.feed(text);
  auto pieces = parts.feed(text.substr(0, text.size() / 2));
  for (std::string& line : parts.feed(text.substr(text.size() / 2))) pieces.push_back(std::move(line));
  ELRUN_ASSERT(lines == pieces);
  FileTimers timers;
  for (const std::string& line : lines) {
    ELRUN_ASSERT(line.size() <= timer_line_max);
    const auto request = parse_timer(line);
    if (!request) continue;
    ELRUN_ASSERT(request->pid > 0 && request->signal > 0 && request->scope.size() <= timer_scope_max);
    ELRUN_ASSERT(timers.set(*request));
  }
  for (const TimerKill& kill : timers.expired(1e300)) ELRUN_ASSERT(kill.pid > 0);
  ELRUN_ASSERT(timers.size() == 0 || *timers.next() > 1e300);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  requests(text);
  timers(text);
  (void)read_reply(text);
  if (const auto people = status_for_people(text); people.ok()) ELRUN_ASSERT(people->find('\x1b') == std::string::npos);
  (void)processes_in(text);
  if (const auto port = parse_health_port(text); port.ok()) ELRUN_ASSERT(port->host.find(' ') == std::string::npos);
  return 0;
}

std::vector<std::string> fuzz_examples() {
  return {"GET /metrics HTTP/1.1\r\nHost: h\r\nAccept: application/openmetrics-text\r\n\r\n",
          "HEAD /livez?x=1 HTTP/1.0\r\nContent-Length: 7\r\n\r\n",
          "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
          encode({.status = 404, .body = "no\n"}, true),
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
          "{\"version\":1,\"pid\":12,\"scope_id\":\"step\",\"expiration_time\":1700000000.5,\"signal\":9}\n"
          "{\"version\":1,\"pid\":12,\"scope_id\":\"step\",\"expiration_time\":-1,\"signal\":15}\n",
          R"({"run":"job","node":"n","pid":7,"phase":"running","generation":{"number":1},"coordinator":{"at":"h:1","is_here":true},)"
          R"("restarts":{"job":1},"steps":{"decided":3},"workers":[{"rank":0,"local_rank":0,"pid":8,"state":"running"}]})",
          "127.0.0.1:9500",
          "[::1]:0",
          "9500"};
}
