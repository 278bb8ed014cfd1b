#include "launcher/output/log_layout.hpp"

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

TEST_CASE("logs lie where torchrun's lie", "[logs]") {
  const LogLayout logs{"/logs/job_x1"};
  CHECK(logs.error_file(Attempt{2}, LocalRank{11}) == "/logs/job_x1/attempt_2/11/error.json");
  CHECK(logs.stream_file(Attempt{0}, LocalRank{0}, Stream::out) == "/logs/job_x1/attempt_0/0/stdout.log");
  CHECK(logs.stream_file(Attempt{0}, LocalRank{3}, Stream::err) == "/logs/job_x1/attempt_0/3/stderr.log");
  CHECK(logs.filtered_file(Attempt{1}, Stream::out) == "/logs/job_x1/attempt_1/filtered_stdout.log");
  CHECK(logs.filtered_file(Attempt{1}, Stream::err) == "/logs/job_x1/attempt_1/filtered_stderr.log");
}

TEST_CASE("without files there are no paths", "[logs]") {
  const LogLayout none;
  CHECK_FALSE(none.has_files());
  CHECK(none.error_file(Attempt{0}, LocalRank{0}).empty());
  CHECK(none.stream_file(Attempt{0}, LocalRank{0}, Stream::out).empty());
  CHECK(none.filtered_file(Attempt{0}, Stream::err).empty());
  CHECK(none.worker_directory(Attempt{0}, LocalRank{0}).empty());
}

TEST_CASE("every run id gives the name of one directory inside the log directory", "[logs]") {
  CHECK(log_directory_name(RunId{"job"}, "x1") == "job_x1");
  CHECK(log_directory_name(RunId{"team/job\n"}, "x1") == "team_job__x1");
  CHECK(log_directory_name(RunId{".."}, "x1") == ".._x1");
  CHECK(log_directory_name(RunId{std::string(1000, 'a')}, "x1") == std::string(200, 'a') + "_x1");
}
