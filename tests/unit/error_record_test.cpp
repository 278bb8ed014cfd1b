#include "launcher/report/error_record.hpp"

#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

constexpr std::int64_t second = 1'000'000'000;

ErrorRecord read(const std::string& text) {
  const auto record = read_error_record(text);
  REQUIRE(record);
  return *record;
}

}  // namespace

TEST_CASE("torch's error record is read, with its time in quotes", "[report]") {
  const ErrorRecord record = read(
      R"({"message": {"message": "RuntimeError: boom", "extraInfo": {"py_callstack": "Traceback\nRuntimeError: boom\n", "timestamp": "1700000000"}}})");
  CHECK(record == ErrorRecord{"RuntimeError: boom", "Traceback\nRuntimeError: boom\n", 1'700'000'000});
  CHECK(read(R"({"message":{"message":"x","errorCode":1,"extraInfo":{"timestamp":17.9},"more":[1,{}]},"also":null})").seconds == 17);
}

TEST_CASE("a message that is plain text is read, with its time beside it", "[report]") {
  CHECK(read(R"({"message": "out of memory", "timestamp": 1700000000})") == ErrorRecord{"out of memory", "", 1'700'000'000});
  const ErrorRecord whole = read(R"({"message": "Traceback:\n  File x\nKeyError: 'a'\n\n", "timestamp": "12"})");
  CHECK(whole.error == "KeyError: 'a'");
  CHECK(whole.traceback == "Traceback:\n  File x\nKeyError: 'a'\n\n");
  CHECK(whole.seconds == 12);
}

TEST_CASE("an error is one line, for it stands in sentences", "[report]") {
  CHECK(read(R"({"message":{"message":"ValueError: a\nb\u001b[31m"}})").error == "ValueError: a b [31m");
  CHECK(read(R"({"message":")" + std::string(100'000, 'x') + "\"}").error.size() == death_line_max);
}

TEST_CASE("what is no error record is nothing, and a time that is none is left out", "[report]") {
  for (const char* text :
       {"", "null", "[]", "3", "{", "{}", R"({"message":null})", R"({"message":3})", R"({"message":""})", R"({"message":{}})",
        R"({"message":{"message":7,"extraInfo":[]}})", R"({"message":" \n "})", "\xff\xfe", R"(Traceback (most recent call last):)"})
    CHECK_FALSE(read_error_record(text));
  for (const char* time : {"-1", "\"-7\"", "\"soon\"", "null", "[]", "1e300", "99999999999999999999999", "{}", "true"})
    CHECK_FALSE(read(std::string{R"({"message":"x","timestamp":)"} + time + "}").seconds);
  CHECK_FALSE(read_error_record(R"({"message":")" + std::string(error_record_max, 'x') + "\"}"));
}

TEST_CASE("depth without end is no error record, and no crash", "[report]") {
  CHECK_FALSE(read_error_record(std::string(500'000, '[')));
  CHECK_FALSE(read_error_record(std::string(200'000, '[') + std::string(200'000, ']')));
}

TEST_CASE("when a worker failed: the record's second, refined by when its file was written", "[report]") {
  const auto at = [](std::optional<std::int64_t> seconds, std::int64_t written, std::int64_t ended) {
    return failed_at({"x", "", seconds}, {.started = 10 * second, .written = written, .ended = ended});
  };
  CHECK(at(20, 20 * second + 300, 30 * second) == 20 * second + 300);
  CHECK(at(20, 21 * second + 5, 30 * second) == 21 * second - 1);  // written in the next second
  CHECK(at(20, 29 * second, 30 * second) == 20 * second);          // written anew since
  CHECK(at(20, 19 * second, 30 * second) == 20 * second);          // its file's clock is another's
  CHECK(at(20, 20 * second + 700, 20 * second + 500) == 20 * second + 500);
  CHECK(at({}, 25 * second, 30 * second) == 25 * second);  // without a time, the file's
  SECTION("a time at which the worker did not live counts for nothing") {
    CHECK(at(0, 25 * second, 30 * second) == 30 * second);
    CHECK(at(31, 25 * second, 30 * second) == 30 * second);
    CHECK(at(10, 9 * second, 30 * second) == 10 * second);  // the second in which it began
    CHECK(failed_at({"x", "", 20}, {.started = 40 * second, .written = 20 * second, .ended = 30 * second}) == 30 * second);
  }
}

TEST_CASE("elrun's own error record is read back, with the worker's code in it", "[report]") {
  WorkerDeath death;
  death.exit_code = 3;
  death.error = "ValueError: \xff";
  death.traceback = "Traceback";
  death.wall_ns = 1'700'000'000 * second + 5;
  const std::string text = error_record_of(death);
  CHECK(nlohmann::json::parse(text)["message"]["errorCode"] == 3);
  const ErrorRecord record = read(text);
  CHECK(record.error.starts_with("ValueError: "));
  CHECK(record.traceback == "Traceback");
  CHECK(record.seconds == 1'700'000'000);
  death = {};
  death.signal = 9;
  death.rank = 7;
  death.host = "pod-1";
  CHECK(nlohmann::json::parse(error_record_of(death))["message"]["errorCode"] == -9);
  CHECK(read(error_record_of(death)).error == "rank 7 on pod-1 ended by signal 9 (SIGKILL)");
  death.signal = 0, death.exit_code = 1, death.pid = 77, death.evidence = "NCCL failed";  // it had not ended
  CHECK(read(error_record_of(death)).error == "rank 7 on pod-1 cannot go on: NCCL failed");
}
