#pragma once
/// \file The threads of Output: a collector that reads workers' pipes and writes files, and a console for each of elrun's outputs. Only
/// output.cpp and threads.cpp include this.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "launcher/output/lines.hpp"
#include "launcher/output/output.hpp"
#include "launcher/output/told_errors.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0::launcher {

// One stream of one worker. Each part says which thread may touch it.
struct Output::Source {
  // Fixed from the start.
  Attempt attempt{};
  Path path;
  Fd file;                       // empty: there is none, and the bytes go through memory
  std::shared_ptr<Fd> filtered;  // empty: no line is looked for
  bool seen = true;
  bool is_passed_on = false;  // as it is, instead of line by line

  // The collector's.
  std::uint64_t missing = 0;  // bytes that are not in the file, since it took no more; 0: it takes all
  Instant tried{};            // when it last took no more
  Fd pipe;

  // The console's.
  Lines lines{""};

  // Under the console's mutex.
  std::uint64_t read = 0;     // bytes from the pipe
  std::uint64_t written = 0;  // bytes in the file
  std::uint64_t taken = 0;    // of these, how many went to the console
  std::int64_t shift = 0;     // byte n of these is at n - shift in the file, which another program may have cut since
  bool loss_told = false;     // that some of them were not there any more
  std::string memory;         // what did not get into the file
  std::string tail;           // the last bytes of all
  bool is_whole = true;       // the tail is all there was
  bool ended = false;

  [[nodiscard]] bool has_news() const { return taken < written || !memory.empty() || ended; }
};
struct Output::Threads : std::enable_shared_from_this<Output::Threads> {
  using SourcePointer = std::shared_ptr<Source>;
  explicit Threads(boost::asio::io_context& loop, const Log& log) : loop_{&loop}, log_{&log} {}

  // --- the loop, as far as it still exists ---

  void post(std::function<void()> what);
  void warn(std::string text);
  void leave_loop();

  // --- a terminal, file or pipe that elrun itself was given ---

  // One of elrun's own: it comes after what workers had written when it was said, unless that is too much.
  struct OwnLine {
    std::string text;
    std::uint64_t after = 0;  // that many bytes of workers
  };

  struct Console {
    int fd = -1;
    std::mutex mutex;
    std::condition_variable news;
    std::vector<SourcePointer> sources;  // the one that was shown last is last
    std::deque<OwnLine> own;
    std::size_t own_bytes = 0;
    std::uint64_t arrived = 0, gone = 0;  // bytes of all sources
    std::uint64_t lost = 0;               // bytes that it did not take, since it was told; the console's thread's, until that is idle
    int lost_by = 0;                      // what the last of these writes ended with; likewise
    bool in_line = false;                 // what it took last did not end a line; the console's thread's
    bool stopping = false;
    bool busy = false;  // something is on its way that is in no list any more
    std::function<void()> when_idle;
    std::atomic<std::uint64_t> moved = 0;  // bytes, to see that it does not stand still
  };

  static bool own_is_next(const Console& console);

  static bool idle(const Console& console) { return console.sources.empty() && console.own.empty() && !console.busy; }

  void show(Console& console, std::string_view bytes);

  static std::string take_loss(Console& console);

  static SourcePointer next_of(const Console& console);

  void run_console(Console& console);

  static std::optional<int> read_back(const Source& source, std::int64_t at, std::size_t size, std::string& bytes);

  void tell_loss(Source& source, int error);

  // --- the collector ---

  struct Watched {
    SourcePointer source;
    Console* console = nullptr;
    bool paused = false;
  };

  void run_collector();

  void ask_collector(std::function<void(std::string&)> request);

  bool read_some(int pipe, std::string& buffer);

  std::size_t write_file(Console& console, Source& source, std::string_view bytes);

  static bool take_up(Console& console, Source& source);

  static bool write_gap(Source& source);

  void add_written(Console& console, Source& source, std::size_t count, std::int64_t end);

  static void remember(Source& source, std::string_view bytes);

  void forget(int pipe);

  void pause(Watched& watched, bool paused);

  void resume(const SourcePointer& source);

  void drain(int pipe, std::string& buffer);

  // --- asked by the loop ---

  [[nodiscard]] Result<void> start(bool one_destination);

  [[nodiscard]] Console& console_of(Stream stream) { return stream == Stream::out && !one_console_ ? out_ : err_; }

  void add(const SourcePointer& source, Stream stream);

  [[nodiscard]] bool say(std::string_view line);

  [[nodiscard]] std::vector<std::string> take_losses();

  void finish(std::function<void()> then);

  void stop();

  std::mutex loop_mutex_;
  boost::asio::io_context* loop_;
  const Log* log_;
  Console out_, err_;
  bool one_console_ = false;
  Fd epoll_, wake_;
  std::mutex requests_mutex_;
  std::vector<std::function<void(std::string&)>> requests_;
  std::map<int, Watched> watched_;                                 // the collector's
  ToldErrors told_errors_;                                         // of files; the collector's
  bool stopping_ = false;                                          // the collector's
  std::map<std::pair<LocalRank, Stream>, SourcePointer> sources_;  // of each worker's newest attempt; the loop's
};

}  // namespace elrun::inline v0::launcher
