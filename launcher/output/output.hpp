#pragma once
/// \file Output: what workers write, on its way to files and to elrun's own output.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/options/options.hpp"
#include "launcher/output/log_layout.hpp"
#include "launcher/output/log_place.hpp"
#include "launcher/output/routes.hpp"
#include "launcher/report/last_words.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0::launcher {

/// What a worker gets in place of elrun's own outputs; an empty one is inherited.
struct WorkerStreams {
  Fd out, err;
};

/// Lives on the loop; what may block (a file, the terminal) is done by threads of its own, which exist only if a stream
/// is teed. A worker that writes faster than the terminal reads is not held up: its bytes are in the file, and are shown
/// from there. Without a file (the disk is full) it is held up as if it wrote to the terminal itself.
class Output {
 public:
  struct Setting {
    const LaunchOptions& options;
    RunId run;
    std::string host;
    Path private_directory;  ///< For the error files when no logs are asked for.
    Path temporary;          ///< Where logs go that are asked for without a place.
    LogStream& lines;        ///< elrun's own: on a console that shows workers' lines, they stand between those.
  };
  /// Makes the directory of this run if there is to be one; fails when that cannot be made.
  static Result<std::unique_ptr<Output>> start(boost::asio::io_context& loop, Setting setting, const Log& log);
  /// Does not wait: output that has not been shown by then is only in the files.
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  [[nodiscard]] const LogLayout& layout() const { return layout_; }
  /// The files are there when elrun is gone.
  [[nodiscard]] bool keeps_files() const { return layout_.base() != setting_.private_directory; }
  /// The workers that are opened from now on are a new incarnation; others that live stay in theirs.
  void begin_attempt();
  [[nodiscard]] Attempt attempt() const { return attempt_; }

  /// The directory of one worker of this attempt, made. Where its error file goes; empty when there is none.
  [[nodiscard]] Path error_file(LocalRank worker);
  /// For a worker of this attempt that is about to start. What cannot be opened is inherited, and that is said.
  [[nodiscard]] WorkerStreams open(LocalRank worker, Rank rank);

  /// Calls `then` on the loop when all that the worker has written until now is known here, but in any case soon: a file
  /// that blocks delays no one else.
  void after_worker(LocalRank worker, std::function<void()> then);
  /// What this worker last wrote to its standard error, if that goes through elrun or into a file; as a
  /// terminal would show it, at most `last_lines_max` lines. And its error record.
  [[nodiscard]] LastWords last_words(LocalRank worker);
  /// How much this worker has written, as far as elrun sees it: a sign of life when it changes. None: nobody knows. With `HangSign::output`.
  [[nodiscard]] std::optional<std::uintmax_t> bytes_of(LocalRank worker);
  /// Calls `then` on the loop when all is shown, or the terminal took nothing for a while. No worker may be started after.
  void after_all(std::function<void()> then);

 private:
  struct Source;
  struct Threads;
  Output(boost::asio::io_context& loop, Setting setting, LogLayout layout, const Log& log);
  [[nodiscard]] Route route_of(LocalRank worker, Stream stream) const;
  [[nodiscard]] Fd open_stream(LocalRank worker, Rank rank, Stream stream);
  [[nodiscard]] Fd read_through_pipe(LocalRank worker, Stream stream, Source source);
  void remove_old_attempts();
  [[nodiscard]] Result<Fd> open_log(const Path& path, int access);
  [[nodiscard]] std::optional<std::vector<std::string>> lines_through_pipe(LocalRank worker) const;
  [[nodiscard]] std::shared_ptr<Fd> kept_in_sight(const Fd& file);
  [[nodiscard]] std::shared_ptr<Fd> filtered(Stream stream);
  void watch_for_stall(std::uint64_t moved, int seconds);
  void all_shown();
  void end_of_show(bool is_read);

  boost::asio::io_context& loop_;
  const Setting setting_;
  const LogLayout layout_;
  LogPlace place_;
  const Log& log_;
  const bool one_destination_;  // elrun's standard output and error are the same file
  const bool watches_errors_;   // standard error that is inherited goes through elrun, unchanged
  Attempt attempt_{};
  std::map<LocalRank, Attempt> attempts_;  // in which each worker was opened
  std::set<Attempt> made_;                 // with a directory
  bool begun_ = false;
  std::map<Stream, std::shared_ptr<Fd>> filtered_;                         // of this attempt
  std::map<std::pair<LocalRank, Stream>, std::shared_ptr<Fd>> own_files_;  // that workers write themselves; empty: nobody knows how much
  boost::asio::steady_timer stall_;
  std::function<void()> then_;        // of after_all
  std::shared_ptr<Threads> threads_;  // none until a stream is teed
};

constexpr std::size_t last_lines_max = 20;
constexpr std::size_t last_bytes_max = 8192;

}  // namespace elrun::inline v0::launcher
