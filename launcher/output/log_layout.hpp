#pragma once
/// \file LogLayout: the names of the files that hold what workers say. Names only; the shell makes them.

#include <cstdint>
#include <string>

#include <elrun/ids.hpp>

#include "lib/base/files.hpp"

namespace elrun::inline v0::launcher {

/// The incarnations of a node's workers, counted from 0. Each has its own directory, whatever the reason of the restart:
/// no log of an earlier one is ever written over.
using Attempt = Strong<struct AttemptTag, std::uint32_t>;

/// Which of a worker's two output streams.
enum class Stream { out, err };

/// As torchrun lays them out:
///   <base>/attempt_<N>/<local rank>/{stdout.log,stderr.log,error.json}
///   <base>/attempt_<N>/filtered_{stdout,stderr}.log
class LogLayout {
 public:
  /// No files at all: every path is empty.
  LogLayout() = default;
  explicit LogLayout(Path base) : base_{std::move(base)} {}

  [[nodiscard]] bool has_files() const { return !base_.empty(); }
  [[nodiscard]] const Path& base() const { return base_; }
  [[nodiscard]] Path attempt_directory(Attempt attempt) const;
  [[nodiscard]] Path worker_directory(Attempt attempt, LocalRank worker) const;
  /// What a worker's TORCHELASTIC_ERROR_FILE names: the worker writes it, if anybody does.
  [[nodiscard]] Path error_file(Attempt attempt, LocalRank worker) const;
  [[nodiscard]] Path stream_file(Attempt attempt, LocalRank worker, Stream stream) const;
  [[nodiscard]] Path filtered_file(Attempt attempt, Stream stream) const;

 private:
  Path base_;
};

/// `<run id>_<tag>`, as the name of one directory: what cannot stand in a name becomes `_`, and what is too long is cut.
[[nodiscard]] std::string log_directory_name(const RunId& run, const std::string& tag);

}  // namespace elrun::inline v0::launcher
