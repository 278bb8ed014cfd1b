// How much can eight workers say through `elrun --tee`? Beside it, in the same run: what the same eight writers get through
// bare pipes that one reader empties, and what is left when that reader writes it to files as well.

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "lib/base/fd.hpp"

namespace fs = std::filesystem;
using namespace elrun;

namespace {

constexpr int workers = 8;
constexpr std::size_t line_bytes = 100, write_bytes = 64 << 10, bytes_each = std::size_t{128} << 20;
constexpr int repeats = 3;

[[noreturn]] void give_up(const std::string& why) {
  fmt::print(stderr, "tee_bench: {}\n", why);
  std::exit(1);
}

// A worker: lines of 100 bytes, as fast as they are taken.
int write_lines() {
  std::string block;
  while (block.size() + line_bytes <= write_bytes) block += std::string(line_bytes - 1, 'x') + "\n";
  for (std::size_t left = bytes_each; left > 0;) {
    const ssize_t wrote = ::write(1, block.data(), std::min(left, block.size()));
    if (wrote <= 0) return 1;
    left -= static_cast<std::size_t>(wrote);
  }
  return 0;
}

pid_t start(std::vector<std::string> words, int output) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output, 1);
  pid_t pid = -1;
  if (::posix_spawn(&pid, arguments[0], &actions, nullptr, arguments.data(), environ) != 0) give_up("cannot start " + words[0]);
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

struct Pipe {
  Fd reading, writing;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) give_up("no pipe");
    reading = Fd{ends[0]}, writing = Fd{ends[1]};
    ::fcntl(reading.get(), F_SETPIPE_SZ, 1 << 20);
  }
};

// Reads all pipes to their ends, and into files if there are any; returns the bytes.
std::size_t read_all(const std::vector<int>& pipes, const std::vector<int>& files) {
  static std::array<char, 256 << 10> buffer;
  std::vector<pollfd> open;
  for (const int pipe : pipes) open.push_back({pipe, POLLIN, 0});
  std::size_t bytes = 0, ended = 0;
  while (ended < open.size()) {
    if (::poll(open.data(), open.size(), 60000) <= 0) give_up("nothing came for a minute");
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].fd < 0 || open[i].revents == 0) continue;
      const ssize_t got = ::read(open[i].fd, buffer.data(), buffer.size());
      if (got <= 0) {
        open[i].fd = -1;
        ++ended;
        continue;
      }
      bytes += static_cast<std::size_t>(got);
      if (!files.empty() && ::write(files[i], buffer.data(), static_cast<std::size_t>(got)) != got) give_up("the file system is full");
    }
  }
  return bytes;
}

template <class Run>
double megabytes_per_second(Run run) {
  std::vector<double> rates;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    rates.push_back(static_cast<double>(workers * bytes_each) / took.count() / 1e6);
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

void wait_for(pid_t pid) {
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid || status != 0) give_up("a program failed");
}

double bare_pipes(const std::string& self, const fs::path* directory) {
  return megabytes_per_second([&] {
    std::vector<Pipe> pipes(workers);
    std::vector<Fd> files;
    std::vector<int> readings, targets;
    std::vector<pid_t> pids;
    for (Pipe& pipe : pipes) {
      pids.push_back(start({self, "write"}, pipe.writing.get()));
      pipe.writing = Fd{};
      readings.push_back(pipe.reading.get());
      if (directory == nullptr) continue;
      files.emplace_back(::open((*directory / std::to_string(files.size())).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
      targets.push_back(files.back().get());
    }
    if (read_all(readings, targets) != workers * bytes_each) give_up("bytes were lost");
    for (const pid_t pid : pids) wait_for(pid);
  });
}

double teed(const std::string& self, const fs::path& directory) {
  const char* folder = std::getenv("ELRUN_BIN");
  const std::string elrun = fmt::format("{}/elrun", folder != nullptr ? folder : "bin");
  return megabytes_per_second([&] {
    fs::remove_all(directory / "logs");
    Pipe console;
    const pid_t pid = start(
        {elrun, "--nproc-per-node", std::to_string(workers), "--tee", "1", "--log-dir", directory / "logs", "--no-python", self, "write"},
        console.writing.get());
    console.writing = Fd{};
    const std::size_t prefixes = std::string_view{"[default0]:"}.size() * (bytes_each + line_bytes - 1) / line_bytes;
    if (read_all({console.reading.get()}, {}) < workers * (bytes_each + prefixes - 1000)) give_up("lines were lost");
    wait_for(pid);
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view{argv[1]} == "write") return write_lines();
  // In memory where there is such a place: a disk would be all that is measured.
  std::string name = fs::is_directory("/dev/shm") ? "/dev/shm/elrun-tee-XXXXXX" : "/tmp/elrun-tee-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) give_up("no directory for logs");
  const fs::path directory{name}, self = fs::canonical("/proc/self/exe");
  const double pipes = bare_pipes(self, nullptr), files = bare_pipes(self, &directory), tee = teed(self, directory);
  fs::remove_all(directory);
  fmt::print(
      "tee of {} workers, lines of {} bytes: {:.0f} MB/s, median of {} (bare pipes {:.0f} MB/s, pipes into files in {} {:.0f} MB/s; to reach: 500 MB/s)\n",
      workers, line_bytes, tee, repeats, pipes, directory.parent_path().native(), files);
}
