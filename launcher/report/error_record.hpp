#pragma once
/// \file ErrorRecord: what a worker wrote about its own end. torch's `record` writes such files; so does elrun, for its parent.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/messages.hpp"

namespace elrun::inline v0::launcher {

constexpr std::size_t error_record_max = 1 << 20;  ///< Of a file; what is longer is not read.

struct ErrorRecord {
  std::string error;                    ///< "RuntimeError: no such device"
  std::string traceback;                ///< May be empty
  std::optional<std::int64_t> seconds;  ///< Since 1970, whole, as the worker's clock showed them
  friend bool operator==(const ErrorRecord&, const ErrorRecord&) = default;
};

/// Of a file's text, which may be anything: nothing when it is no such record. Two forms are known: a `message` object with
/// `message` and `extraInfo` (`py_callstack`, `timestamp`), and a `message` text with a `timestamp` beside it.
[[nodiscard]] std::optional<ErrorRecord> read_error_record(std::string_view text);

/// In the first form, with `errorCode`: the worker's exit code, or minus its signal.
[[nodiscard]] std::string error_record_of(const WorkerDeath& death);

/// When a worker lived, and when its record was written, in nanoseconds since 1970, all by one clock.
struct RecordTimes {
  std::int64_t started = 0, written = 0, ended = 0;
};
/// When the worker failed: a record tells whole seconds, the time of its file which part of them. A time at which the
/// worker did not live counts for nothing; then it failed when it ended.
[[nodiscard]] std::int64_t failed_at(const ErrorRecord& record, const RecordTimes& times);

}  // namespace elrun::inline v0::launcher
