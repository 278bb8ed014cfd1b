#include "launcher/output/log_json.hpp"

#include <nlohmann/json.hpp>

#include "lib/base/log.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

TEST_CASE("a line of the log as JSON says when, how bad, what, who, and of which job", "[logs]") {
  LogContext context{"job", "node-b", 7};
  CHECK(
      json_line({1'795'293'916'000'000'042, Level::warning, "elrun", "late"}, context) ==
      R"({"time":"2026-11-21T20:45:16.000000042Z","level":"warning","text":"late","who":"elrun","run":"job","node":"node-b","generation":7})");
}

TEST_CASE("what is not known yet is left out", "[logs]") {
  CHECK(json_line({-1, Level::info, "elrun", ""}, {}) ==
        R"({"time":"1969-12-31T23:59:59.999999999Z","level":"info","text":"","who":"elrun"})");
  CHECK(text_line({-1'000'000, Level::info, "elrun", ""}).find(":59.999]") != std::string::npos);
  CHECK(json_line({0, Level::info, "elrun", ""}, {}) ==
        R"({"time":"1970-01-01T00:00:00.000000000Z","level":"info","text":"","who":"elrun"})");
}

TEST_CASE("every text is one line of valid JSON", "[logs]") {
  const std::string line = json_line({0, Level::error, "elrun", "two\nlines \"quoted\" \xff"}, {});
  CHECK(line.find('\n') == std::string::npos);
  CHECK(nlohmann::json::parse(line).at("text") == "two\nlines \"quoted\" \xef\xbf\xbd");
  CHECK(nlohmann::json::parse(line).at("level") == "error");
}
