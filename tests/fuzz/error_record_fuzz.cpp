// Whatever a worker writes into its error file, elrun understands it within bounds, or not at all; and what elrun writes
// from it is an error record again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/report/error_record.hpp"
#include "launcher/report/failure_report.hpp"
#include "lib/base/assert.hpp"

using namespace elrun;
using namespace elrun::launcher;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto record = read_error_record({reinterpret_cast<const char*>(data), size});
  if (!record) return 0;
  ELRUN_ASSERT(!record->error.empty() || !record->traceback.empty());
  ELRUN_ASSERT(record->error.size() <= death_line_max && record->error.find('\n') == std::string::npos);
  ELRUN_ASSERT(!record->seconds || *record->seconds >= 0);
  const RecordTimes times{.started = 1'700'000'000'000'000'000, .written = 1'700'000'005'000'000'000, .ended = 1'700'000'009'000'000'000};
  WorkerDeath death;
  death.wall_ns = failed_at(*record, times);
  ELRUN_ASSERT(death.wall_ns >= times.started && death.wall_ns <= times.ended);
  death.exit_code = 1;
  death.error = record->error;
  death.traceback = record->traceback;
  death = bounded(std::move(death));
  const auto again = read_error_record(error_record_of(death));
  ELRUN_ASSERT(again && again->seconds == death.wall_ns / 1'000'000'000);
  FailedJob job;
  job.deaths = {death};
  ELRUN_ASSERT(failure_json(job, termination_message_max).size() <= termination_message_max);
  ELRUN_ASSERT(!failure_box(job).empty());
  return 0;
}

std::vector<std::string> fuzz_examples() {
  return {
      R"({"message": {"message": "RuntimeError: boom", "extraInfo": {"py_callstack": "Traceback\nRuntimeError: boom\n", "timestamp": "1700000003"}}})",
      R"({"message": "Traceback\nValueError: x\n", "timestamp": 1700000004})",
      R"({"message": {"errorCode": -9, "message": "\u00e9\ud83d\ude00"}})",
      R"({"message": {"extraInfo": {"py_callstack": "a\tb", "timestamp": 1.5e9}}})"};
}
