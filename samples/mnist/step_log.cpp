#include "samples/mnist/step_log.hpp"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace mnist {
namespace {

constexpr const char* beginning = "{\"step\":";

elrun::Failure failed(const std::string& path, const char* what) {
  return {elrun::Code::invalid_argument, elrun::Remedy::fix_config,
          "--log_path '" + path + "' " + what + ": " + std::strerror(errno) + "; name a file that can be written"};
}

std::string line_of(std::uint64_t step, std::span<const LogField> fields) {
  std::string line = beginning + std::to_string(step);
  for (const LogField& field : fields) {
    char number[32];
    std::snprintf(number, sizeof number, "%.9g", field.value);
    line += std::string{",\""} + field.name + "\":" + (std::isfinite(field.value) ? number : "null");
  }
  return line + "}\n";
}

}  // namespace

elrun::Result<std::uint64_t> StepLog::cut_before(std::uint64_t step) const {
  std::ifstream in{path_, std::ios::binary};
  std::uint64_t last = 0;
  if (!in) return last;  // it does not exist yet, or writing will say why it cannot
  std::uintmax_t keep = 0;
  for (std::string line; std::getline(in, line);) {
    if (in.eof()) break;  // cut off within a line: whoever wrote it did not live to see its end
    std::uint64_t number = 0;
    const char* const digits = line.data() + std::strlen(beginning);
    if (!line.starts_with(beginning) || std::from_chars(digits, line.data() + line.size(), number).ec != std::errc{})
      return elrun::Failure{elrun::Code::mismatch, elrun::Remedy::fix_config,
                            "--log_path '" + path_ + "' holds something else than steps: name another file, or remove it"};
    if (number >= step) break;
    last = number;
    keep += line.size() + 1;
  }
  in.close();
  std::error_code error;
  std::filesystem::resize_file(path_, keep, error);
  if (error) return errno = error.value(), failed(path_, "cannot be cut");
  return last;
}

elrun::Result<void> StepLog::append(const std::string& line) const {
  std::FILE* const file = std::fopen(path_.c_str(), "ab");
  if (file == nullptr) return failed(path_, "cannot be opened");
  const bool written = std::fwrite(line.data(), 1, line.size(), file) == line.size();
  if ((std::fclose(file) != 0) | !written) return failed(path_, "cannot be written");
  return {};
}

void StepLog::note(std::uint64_t step, std::span<const LogField> fields) {
  noted_ = step;
  noted_line_ = line_of(step, fields);
  last_.reset();  // somebody else writes now
}

elrun::Result<void> StepLog::write(std::uint64_t step, std::span<const LogField> fields) {
  if (path_.empty()) return {};
  if (last_ != step - 1) {
    ELRUN_TRY_ASSIGN(const std::uint64_t there, cut_before(step));
    if (noted_ + 1 == step && there + 2 == step) ELRUN_TRY(append(noted_line_));
  }
  ELRUN_TRY(append(line_of(step, fields)));
  last_ = step;
  return {};
}

}  // namespace mnist
