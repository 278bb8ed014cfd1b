// The files that elrun writes for its workers, and what becomes of the console when something happens to them.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""ms;

namespace {

namespace fs = std::filesystem;

template <class Condition>
bool comes_true(Condition condition) {
  for (int looks = 0; looks < 6000; ++looks) {
    if (condition()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

fs::path found_in(const std::string& directory, const std::string& name) {
  for (const auto& entry : fs::recursive_directory_iterator{directory})
    if (entry.path().filename() == name) return entry.path();
  return {};
}

std::string text_of(const fs::path& file) {
  std::ifstream in{file};
  return {std::istreambuf_iterator<char>{in}, {}};
}

std::string end_of(const std::string& text) { return text.substr(text.size() - std::min(text.size(), std::size_t{2000})); }

// Of a script: once the file `limited` is there it writes more than may wait in elrun (1 MiB of the stream, as much in the hands of the console, and the pipe) and
// then makes the file `written`. By then elrun has tried to write some of it, however late its threads run. A line has eight bytes: what is read and written at
// once ends with a line.
std::string writes_more_than_waits(const std::string& here) {
  return "while [ ! -e " + here + "limited ]; do sleep 0.01; done; yes a line. | head -n 600000; echo > " + here + "written; ";
}

// Of the files that a process writes, as on a disk without room.
void set_file_limit(pid_t process, rlim_t bytes) {
  const rlimit limit{bytes, RLIM_INFINITY};
  REQUIRE(::prlimit(process, RLIMIT_FSIZE, &limit, nullptr) == 0);
}

}  // namespace

TEST_CASE("a log that another program cuts short does not silence the console", "[log_files][process]") {
  const TemporaryDirectory logs;
  const auto waits_for = [&](const std::string& name) { return "while [ ! -e " + logs.path() + "/" + name + " ]; do sleep 0.01; done; "; };
  const auto let = [&](const std::string& name) { std::ofstream{logs.path() + "/" + name}.put('.'); };
  const std::string script =
      "echo before the cut; " + waits_for("cut") + "echo after the cut; " + waits_for("extended") + "echo the last one";
  Job job{{.arguments = {"--tee", "1", "--log_dir", logs.path(), "--no_python", "/bin/sh", "-c", script}}};
  REQUIRE(job.line("before the cut"));
  const fs::path file = found_in(logs.path(), "stdout.log");
  REQUIRE(text_of(file) == "before the cut\n");
  fs::resize_file(file, 0);
  let("cut");
  CHECK(job.line("after the cut"));
  CHECK(text_of(file) == "after the cut\n");
  std::ofstream{file, std::ios::app} << "of another program\n";
  let("extended");
  CHECK(job.line("the last one"));
  CHECK(job.wait() == 0);
  CHECK_FALSE(job.says("of another program"));
  CHECK_FALSE(job.says("another program has cut"));  // nothing was lost
}

TEST_CASE("what a cut takes before the console has shown it is told of once", "[log_files][process]") {
  const TemporaryDirectory logs;
  const std::string here = logs.path() + "/";
  // The console's pipe is full: nobody reads it until the file was cut.
  const std::string script = "yes a line that the console is slow to show | head -c 4000000; echo > " + here + "written; while [ ! -e " +
                             here + "cut ]; do sleep 0.01; done; echo after the cut";
  Job job{{.arguments = {"--tee", "1", "--log_dir", logs.path(), "--no_python", "/bin/sh", "-c", script}}};
  REQUIRE(comes_true([&] { return fs::exists(here + "written"); }));
  const fs::path file = found_in(logs.path(), "stdout.log");
  REQUIRE(comes_true([&] { return fs::file_size(file) == 4000000; }));
  fs::resize_file(file, 0);
  std::ofstream{here + "cut"}.put('.');
  CHECK(job.line("after the cut"));
  CHECK(job.wait() == 0);
  const auto told = job.output().find("another program has cut or extended " + file.native());
  REQUIRE(told != std::string::npos);
  CHECK(job.output().find("another program has cut", told + 1) == std::string::npos);
}

TEST_CASE("where a file takes no more, memory does not grow while the console shows what is in it", "[log_files][process]") {
  const TemporaryDirectory logs;
  constexpr long in_file = 16 << 20, read = 12 << 20, line_bytes = 101, memory = 6 << 10;  // KiB: what a stream may hold, and some more
  Job job{{.arguments = {"-c", "ulimit -f " + std::to_string(in_file / 512) + "; exec " + program_path("elrun") + " --tee 1 --log_dir " +
                                   logs.path() + " --no_python seq -f %0100.0f 400000"},
           .program = "/bin/sh"}};
  const auto most_memory = [&] {
    const std::string status = text_of("/proc/" + std::to_string(job.pid()) + "/status");
    const auto at = status.find("VmHWM:");
    return at == std::string::npos ? 0 : std::strtol(status.c_str() + at + 6, nullptr, 10);
  };
  // Nobody reads the console until the file is full.
  REQUIRE(comes_true([&] {
    const fs::path file = found_in(logs.path(), "stdout.log");
    return !file.empty() && fs::file_size(file) == in_file;
  }));
  const auto before = most_memory();
  REQUIRE(before > 0);
  for (long shown = 1 << 20; shown <= read; shown += 1 << 20) {
    std::string number = std::to_string(shown / line_bytes);
    REQUIRE(job.line(number.insert(0, 100 - number.size(), '0')));
    std::this_thread::sleep_for(20ms);  // a slow console: meanwhile the worker could write more
  }
  CHECK(most_memory() - before < memory);
}

TEST_CASE("elrun's own output that takes no more for a while is written again after it, and what is missing is told",
          "[log_files][process]") {
  const TemporaryDirectory directory;
  const std::string here = directory.path() + "/", shown = here + "shown";
  const std::string script = "echo a line.; " + writes_more_than_waits(here) + "while [ ! -e " + here +
                             "end ]; do echo a line.; sleep 0.01; done; echo the last line";
  Job job{{.arguments = {"-c", "exec " + program_path("elrun") + " --no_python /bin/sh -c '" + script + "' > " + shown + " 2>&1"},
           .program = "/bin/sh"}};
  REQUIRE(comes_true([&] { return text_of(shown).find("a line.\n") != std::string::npos; }));
  set_file_limit(job.pid(), 1);
  std::ofstream{here + "limited"}.put('.');
  REQUIRE(comes_true([&] { return fs::exists(here + "written"); }));
  const auto meanwhile = fs::file_size(shown);
  set_file_limit(job.pid(), RLIM_INFINITY);
  CHECK(comes_true([&] { return fs::file_size(shown) > meanwhile + 100; }));
  std::ofstream{here + "end"}.put('.');
  CHECK(job.wait() == 0);
  const std::string all = text_of(shown);
  INFO(end_of(all));
  CHECK(all.find("the last line") != std::string::npos);
  CHECK(all.find("bytes are missing there") != std::string::npos);
}

TEST_CASE("what comes after a line that was torn begins a line of its own", "[log_files][process]") {
  const TemporaryDirectory directory;
  const std::string here = directory.path() + "/", shown = here + "shown";
  const std::string script =
      "echo a line.; " + writes_more_than_waits(here) + "while [ ! -e " + here + "end ]; do echo a line.; sleep 0.01; done";
  Job job{{.arguments = {"-c", "exec " + program_path("elrun") + " --no_python /bin/sh -c '" + script + "' > " + shown + " 2>&1"},
           .program = "/bin/sh"}};
  REQUIRE(comes_true([&] { return text_of(shown).find("a line.\n") != std::string::npos; }));
  const std::size_t begin = text_of(shown).find("a line.\n"), line = 8, torn = 3;  // "a l"
  const rlim_t limit = begin + 100 * line + torn;
  set_file_limit(job.pid(), limit);
  std::ofstream{here + "limited"}.put('.');
  REQUIRE(comes_true([&] { return fs::exists(here + "written"); }));
  REQUIRE(fs::file_size(shown) == limit);
  set_file_limit(job.pid(), RLIM_INFINITY);
  CHECK(comes_true([&] { return fs::file_size(shown) > limit + 100; }));
  std::ofstream{here + "end"}.put('.');
  CHECK(job.wait() == 0);
  const std::string all = text_of(shown);
  INFO(end_of(all));
  CHECK(all.find("a la") == std::string::npos);
  CHECK(all.find("a l\na line.\n") != std::string::npos);
}

TEST_CASE("what elrun's own output did not take to the end is told", "[log_files][process]") {
  const TemporaryDirectory logs;
  Job job{{.arguments = {"-c", "exec " + program_path("elrun") + " --tee 1 --log_dir " + logs.path() +
                                   " --no_python /bin/sh -c 'echo a line' > /dev/full"},
           .program = "/bin/sh"}};
  CHECK(job.wait() == 0);
  INFO(job.output());
  CHECK(job.says("write standard output: No space left on device"));
  CHECK(job.says("bytes are missing there"));
}

TEST_CASE("a file that takes no more for a while is written again after it, and says what is missing", "[log_files][process]") {
  const TemporaryDirectory logs;
  const std::string end = logs.path() + "/end";
  const std::string script = "i=0; while [ ! -e " + end + " ]; do i=$((i+1)); echo line $i; sleep 0.01; done; echo the last line";
  Job job{{.arguments = {"--tee", "1", "--log_dir", logs.path(), "--no_python", "/bin/sh", "-c", script}}};
  REQUIRE(job.line("line 10"));
  const fs::path file = found_in(logs.path(), "stdout.log");
  set_file_limit(job.pid(), 1);
  REQUIRE(job.line("is only shown on the console"));
  const auto before = fs::file_size(file);
  set_file_limit(job.pid(), RLIM_INFINITY);
  CHECK(comes_true([&] { return fs::file_size(file) > before + 200; }));
  std::ofstream{end}.put('.');
  CHECK(job.wait() == 0);
  const std::string text = text_of(file);
  INFO(text);
  CHECK(text.ends_with("the last line\n"));
  CHECK(text.find("\n[elrun: ") != std::string::npos);
  const auto shown = [&](int line) { return job.says("]:line " + std::to_string(line) + "\n"); };
  int last = 1;  // the console shows each line
  while (shown(last)) ++last;
  CHECK(text.find("\nline " + std::to_string(last - 1) + "\nthe last line") != std::string::npos);
  CHECK_FALSE(job.says("bytes are missing here"));
}

TEST_CASE("where a stream ends while its file takes no more, what is missing is told in the file, or else in the log",
          "[log_files][process]") {
  const TemporaryDirectory logs;
  const std::string here = logs.path() + "/";
  const std::string script = "while [ ! -e " + here + "full ]; do echo a line; sleep 0.01; done; echo the last line; while [ ! -e " + here +
                             "end ]; do sleep 0.01; done";
  Job job{{.arguments = {"--tee", "1", "--log_dir", logs.path(), "--no_python", "/bin/sh", "-c", script}}};
  REQUIRE(job.line("a line"));
  const fs::path file = found_in(logs.path(), "stdout.log");
  set_file_limit(job.pid(), 1);
  REQUIRE(job.line("is only shown on the console"));
  std::ofstream{here + "full"}.put('.');
  REQUIRE(job.line("the last line"));
  const bool has_room = GENERATE(false, true);
  if (has_room) set_file_limit(job.pid(), RLIM_INFINITY);
  std::ofstream{here + "end"}.put('.');
  CHECK(job.wait() == 0);
  const std::string text = text_of(file);
  INFO(text << "\n" << job.output());
  CHECK(text.ends_with("bytes are missing here, which could not be written]\n") == has_room);
  CHECK(job.says("bytes are missing at the end of " + file.native()) == !has_room);
}

TEST_CASE("the place of logs that cannot be made is told of by what kept it from that", "[log_files][process]") {
  // Not even root makes a directory in /sys. Of the one in it the system would only say that there is no such directory.
  Job job{{.arguments = {"--tee", "1", "--log_dir", "/sys/elrun/logs", "--no_python", "/bin/true"}}};
  CHECK(job.wait() == 78);
  INFO(job.output());
  CHECK(job.says("make /sys/elrun/logs, the directory for logs (--log_dir): "));
  CHECK_FALSE(job.says("No such file"));
}
