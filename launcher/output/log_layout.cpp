#include "launcher/output/log_layout.hpp"

#include <fmt/format.h>

namespace elrun::inline v0::launcher {
namespace {

constexpr std::size_t run_name_max = 200;  // a name has at most 255 bytes

}  // namespace

Path LogLayout::attempt_directory(Attempt attempt) const {
  return has_files() ? base_ / fmt::format("attempt_{}", attempt.value()) : Path{};
}

Path LogLayout::worker_directory(Attempt attempt, LocalRank worker) const {
  return has_files() ? attempt_directory(attempt) / std::to_string(worker.value()) : Path{};
}

Path LogLayout::error_file(Attempt attempt, LocalRank worker) const {
  return has_files() ? worker_directory(attempt, worker) / "error.json" : Path{};
}

Path LogLayout::stream_file(Attempt attempt, LocalRank worker, Stream stream) const {
  return has_files() ? worker_directory(attempt, worker) / (stream == Stream::out ? "stdout.log" : "stderr.log") : Path{};
}

Path LogLayout::filtered_file(Attempt attempt, Stream stream) const {
  return has_files() ? attempt_directory(attempt) / (stream == Stream::out ? "filtered_stdout.log" : "filtered_stderr.log") : Path{};
}

std::string log_directory_name(const RunId& run, const std::string& tag) {
  std::string name = run.value().substr(0, run_name_max);
  for (char& c : name)
    if (c == '/' || static_cast<unsigned char>(c) < ' ') c = '_';
  return name + "_" + tag;
}

}  // namespace elrun::inline v0::launcher
