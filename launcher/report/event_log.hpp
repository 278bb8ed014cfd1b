#pragma once
/// \file EventLog: the file of `--event-log`.

#include <memory>
#include <string>

#include "launcher/output/log_place.hpp"
#include "lib/base/files.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0::launcher {

/// The file may be on a server that is away, or a pipe that nobody reads: then a call there may hang for good. The loop waits a second for one. Lines that come while it
/// hangs are kept, up to 1 MiB of them, and written with the next line after it, or at the end. Loop thread only.
class EventLog {
 public:
  /// Opens the file, or makes it. `log` outlives this.
  EventLog(Path path, const Log& log);
  /// Waits a second more for a call that hangs.
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;
  /// `line`: without newline.
  void append(const std::string& line);

 private:
  struct File;
  void write(std::string text);
  void tell_problem();

  const Path path_;
  const Log& log_;
  const std::shared_ptr<File> file_;  // of the calls alone, one at a time; one that hangs may outlive this
  LogPlace place_;
  std::string waiting_;                                // whole lines
  bool hung_ = false, failed_ = false, lost_ = false;  // which was said
};

}  // namespace elrun::inline v0::launcher
