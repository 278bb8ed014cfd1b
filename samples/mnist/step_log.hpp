#pragma once
/// \file The log of a training: one line of JSON per step, each step once, whoever writes it and however often.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <elrun/result.hpp>

namespace mnist {

/// One member of the JSON object in a line.
struct LogField {
  const char* name;
  double value;  ///< A number that is none becomes null.
};

/// Whoever writes a step first takes away what the file says of this step and later ones: a process that went on from a
/// checkpoint, or that writes in the place of one that is gone. The last step that was only noted is written then, too, if
/// the one that is gone did not live to write it. Use from one thread.
class StepLog {
 public:
  /// Empty: nothing is written.
  explicit StepLog(std::string path) : path_{std::move(path)} {}
  /// `invalid_argument` when the file cannot be written, `mismatch` when it holds something else; both name it.
  elrun::Result<void> write(std::uint64_t step, std::span<const LogField> fields);
  /// A step that another process writes.
  void note(std::uint64_t step, std::span<const LogField> fields);

 private:
  /// The last step that is left; 0: none.
  elrun::Result<std::uint64_t> cut_before(std::uint64_t step) const;
  elrun::Result<void> append(const std::string& line) const;
  std::string path_;
  std::optional<std::uint64_t> last_;
  std::uint64_t noted_ = 0;
  std::string noted_line_;
};

}  // namespace mnist
