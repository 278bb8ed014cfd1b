#include "tests/fakegpu/runtime/reports.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "tests/fakegpu/runtime/settings.hpp"

namespace fakegpu {
namespace {

constexpr std::size_t printed_max = 20;
constexpr std::size_t kept_max = 1000;

struct Reports {
  std::mutex mutex;
  std::size_t count = 0, printed = 0, untaken = 0;
  std::vector<std::string> kept;
  std::unordered_set<std::string> told;
};

/// At the end of a process that has reports: whatever its own exit code would be, the test has to fail.
void fail_at_exit();

Reports& reports() {
  static Reports* const all = [] {
    std::atexit(fail_at_exit);
    return new Reports;
  }();
  return *all;
}

void fail_at_exit() {
  Reports& all = reports();
  const std::scoped_lock lock{all.mutex};
  if (all.untaken == 0 || settings().report_exit == 0) return;
  std::fflush(nullptr);
  std::fprintf(stderr, "fakegpu: %zu report(s); the process ends with %d\n", all.untaken, settings().report_exit);
  std::_Exit(settings().report_exit);
}

void append_to_file(const std::string& line) {
  if (settings().report_file.empty()) return;
  const int fd = open(settings().report_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t written = write(fd, line.data(), line.size());
  close(fd);
}

}  // namespace

void report(const std::string& what) {
  Reports& all = reports();
  const std::scoped_lock lock{all.mutex};
  ++all.count;
  if (!all.told.insert(what).second) return;
  ++all.untaken;
  if (all.kept.size() < kept_max) all.kept.push_back(what);
  const std::string line = "fakegpu[" + std::to_string(getpid()) + "]: " + what + "\n";
  if (all.printed < printed_max) std::fputs(line.c_str(), stderr);
  if (++all.printed == printed_max) std::fputs("fakegpu: further reports are not printed\n", stderr);
  append_to_file(line);
}

std::size_t report_count() {
  Reports& all = reports();
  const std::scoped_lock lock{all.mutex};
  return all.count;
}

std::vector<std::string> take_reports() {
  Reports& all = reports();
  const std::scoped_lock lock{all.mutex};
  all.untaken = 0;
  all.told.clear();
  return std::exchange(all.kept, {});
}

}  // namespace fakegpu
