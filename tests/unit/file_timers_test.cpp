// torch's watchdog protocol: lines in, kills out.
#include "launcher/process/file_timers.hpp"

#include <csignal>

#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

TimerRequest timer(std::int64_t pid, std::string scope, double expires, int signal = SIGKILL) {
  return {pid, std::move(scope), expires, signal};
}

}  // namespace

TEST_CASE("a line as torch writes it is understood", "[timers]") {
  CHECK(parse_timer(R"({"version": 1, "pid": 12, "scope_id": "step", "expiration_time": 1700000000.5, "signal": 9})") ==
        timer(12, "step", 1700000000.5));
  CHECK(parse_timer(R"({"version":1,"pid":12,"scope_id":"step","expiration_time":-1,"signal":15})") == timer(12, "step", -1, SIGTERM));
}

TEST_CASE("a line that no client writes is no timer", "[timers]") {
  for (const std::string_view line : {"", "x", "[]", "null", R"({"version":2,"pid":1,"scope_id":"a","expiration_time":1,"signal":9})",
                                      R"({"version":1,"pid":0,"scope_id":"a","expiration_time":1,"signal":9})",
                                      R"({"version":1,"pid":-1,"scope_id":"a","expiration_time":1,"signal":9})",
                                      R"({"version":1,"pid":18446744073709551615,"scope_id":"a","expiration_time":1,"signal":9})",
                                      R"({"version":1,"pid":1,"scope_id":"a","expiration_time":1,"signal":0})",
                                      R"({"version":1,"pid":1,"scope_id":"a","expiration_time":1,"signal":99})",
                                      R"({"version":1,"pid":1,"scope_id":1,"expiration_time":1,"signal":9})",
                                      R"({"version":1,"pid":1,"scope_id":"a","expiration_time":"1","signal":9})",
                                      R"({"version":1,"pid":1,"scope_id":"a","expiration_time":1e999,"signal":9})",
                                      R"({"version":1,"pid":1.5,"scope_id":"a","expiration_time":1,"signal":9})"}) {
    INFO(line);
    CHECK_FALSE(parse_timer(line));
  }
  CHECK_FALSE(parse_timer(std::string(100'000, '[')));
}

TEST_CASE("lines are cut from the pipe however they come, and one that is too long is skipped", "[timers]") {
  elrun::test::for_all_seeds(200, [](Rng& rng) {
    std::string bytes;
    std::vector<std::string> expected;
    for (int i = 0; i < 10; ++i) {
      const std::string line(rng.below(4) == 0 ? timer_line_max + 1 + rng.below(10'000) : rng.below(300), static_cast<char>('a' + i));
      if (line.size() <= timer_line_max) expected.push_back(line);
      bytes += line + "\n";
    }
    TimerLines lines;
    std::vector<std::string> got;
    for (std::string_view rest = bytes; !rest.empty();) {
      const std::size_t cut = 1 + rng.below(std::min<std::size_t>(rest.size(), 5000));
      for (std::string& line : lines.feed(rest.substr(0, cut))) got.push_back(std::move(line));
      rest.remove_prefix(cut);
    }
    CHECK(got == expected);
  });
}

TEST_CASE("whoever is late is killed once, and its other timers are forgotten", "[timers]") {
  FileTimers timers;
  CHECK_FALSE(timers.next());
  CHECK(timers.set(timer(7, "a", 10, SIGTERM)));
  CHECK(timers.set(timer(7, "b", 20)));
  CHECK(timers.set(timer(8, "a", 30)));
  CHECK(timers.next() == 10);
  CHECK(timers.expired(9.9).empty());
  CHECK(timers.expired(10) == std::vector{TimerKill{7, SIGTERM, "a"}});
  CHECK(timers.next() == 30);
  CHECK(timers.expired(29).empty());
}

TEST_CASE("a timer can be moved and taken back", "[timers]") {
  FileTimers timers;
  CHECK(timers.set(timer(7, "a", 10)));
  CHECK(timers.set(timer(7, "a", 20)));
  CHECK(timers.expired(15).empty());
  CHECK(timers.set(timer(7, "a", -1)));
  CHECK(timers.expired(1e18).empty());
  CHECK(timers.size() == 0);
}

TEST_CASE("there are no more timers than the bound, and dead processes make room", "[timers]") {
  FileTimers timers;
  for (std::size_t i = 0; i < timers_max; ++i) REQUIRE(timers.set(timer(1 + static_cast<std::int64_t>(i % 2), std::to_string(i), 10)));
  CHECK_FALSE(timers.set(timer(3, "a", 10)));
  CHECK(timers.set(timer(1, "0", 5)));  // one that is there can still be moved
  timers.keep([](std::int64_t pid) { return pid == 1; });
  CHECK(timers.size() == timers_max / 2);
  CHECK(timers.set(timer(3, "a", 10)));
}
