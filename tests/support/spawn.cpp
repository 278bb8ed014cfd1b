#include "tests/support/spawn.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace elrun::test {
namespace {

using Clock = std::chrono::steady_clock;

/// Waits that only a failing test spends to their end grow as ctest's time-outs do; short ones are looks at what is there.
Wait patient(Wait wait) {
  static const long factor = [] {
    const char* text = std::getenv("ELRUN_TEST_TIME_FACTOR");
    return text == nullptr ? 1L : std::clamp(std::strtol(text, nullptr, 10), 1L, 1000L);
  }();
  return wait < Wait{10000} ? wait : wait * factor;
}

/// Of all its threads: a process is a child of the thread that started it.
std::vector<pid_t> children_of(pid_t process) {
  std::vector<pid_t> children;
  std::error_code error;
  for (std::filesystem::directory_iterator at{"/proc/" + std::to_string(process) + "/task", error}, end; !error && at != end;
       at.increment(error)) {
    std::ifstream file{at->path() / "children"};
    for (pid_t child; file >> child;) children.push_back(child);
  }
  return children;
}

int milliseconds_until(Clock::time_point until) {
  const auto left = std::chrono::ceil<Wait>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 1 << 30));
}

/// Of a build that has bin/ and tests/, one of which holds this program.
std::filesystem::path folder_of_programs() {
  if (const char* folder = std::getenv("ELRUN_BIN")) return folder;
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin";
}

}  // namespace

std::string program_path(const std::string& name) {
  return name.find('/') != std::string::npos ? name : (folder_of_programs() / name).string();
}
std::string test_program_path(const std::string& name) { return folder_of_programs() / "../tests" / name; }
std::string source_path(const std::string& name) {
  if (const char* tree = std::getenv("ELRUN_SOURCE")) return std::string{tree} + "/" + name;
  throw std::runtime_error{"ELRUN_SOURCE is not set to the source tree: start this test with ctest"};
}

Watch::Watch(pid_t pid) : pidfd_{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))} {}
Watch::Watch(Watch&& other) noexcept : pidfd_{std::exchange(other.pidfd_, -1)} {}
Watch::~Watch() {
  if (pidfd_ >= 0) ::close(pidfd_);
}

bool Watch::ended(Wait wait) const { return ended_by(Clock::now() + patient(wait)); }

bool Watch::ended_by(Clock::time_point until) const {
  pollfd p{pidfd_, POLLIN, 0};
  return pidfd_ < 0 || ::poll(&p, 1, milliseconds_until(until)) == 1;
}

Job::Job(Setting setting) {
  if (setting.narrow) {
    make_narrow_pipe();
    setting.environment["NARROW_PIPE"] = directory_->path() + "/pipe";
  }
  setting.environment.try_emplace("PATH", "/usr/local/bin:/usr/bin:/bin");
  for (const char* name : {"ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS"})
    if (const char* value = std::getenv(name)) setting.environment.try_emplace(name, value);
  std::vector<std::string> variables;
  for (const auto& [name, value] : setting.environment) variables.push_back(name + "=" + value);
  std::string path = program_path(setting.program);
  std::vector<char*> arguments{path.data()}, environment;
  for (std::string& a : setting.arguments) arguments.push_back(a.data());
  for (std::string& v : variables) environment.push_back(v.data());
  arguments.push_back(nullptr);
  environment.push_back(nullptr);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error{"pipe"};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
  const int error = ::posix_spawn(&pid_, path.c_str(), &actions, nullptr, arguments.data(), environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  own_.pipe = ends[0];
  if (error != 0) throw std::runtime_error{path + " cannot be started"};
}

Job::~Job() {
  if (!ended_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const Source* source : {&own_, &narrow_})
    if (source->pipe >= 0) ::close(source->pipe);
}

void Job::make_narrow_pipe() {
  const std::string path = directory_.emplace().path() + "/pipe";
  if (::mkfifo(path.c_str(), 0600) != 0) throw std::runtime_error{"mkfifo"};
  narrow_.pipe = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);  // also for writing: it does not end where one writer does
  if (narrow_.pipe < 0 || ::fcntl(narrow_.pipe, F_SETPIPE_SZ, 4096) < 0) throw std::runtime_error{"a pipe of one page"};
}

void Job::signal(int number) const { ::kill(pid_, number); }

bool Job::read_some(Clock::time_point until) {
  pollfd ready[]{{own_.pipe, POLLIN, 0}, {narrow_.pipe, POLLIN, 0}};
  if (::poll(ready, 2, milliseconds_until(until)) < 1) return false;
  const bool more = ready[1].revents != 0 && read_from(narrow_, 512);
  return (ready[0].revents != 0 && read_from(own_, 4096)) || more;
}

bool Job::read_from(Source& source, std::size_t at_most) {
  char buffer[4096];
  const ssize_t got = ::read(source.pipe, buffer, at_most);
  if (got > 0) source.rest.append(buffer, static_cast<std::size_t>(got));
  // Whole lines alone where another pipe's lines stand beside them.
  const std::size_t whole = narrow_.pipe < 0 || got <= 0 ? source.rest.size() : source.rest.rfind('\n') + 1;
  output_.append(source.rest, 0, whole);
  source.rest.erase(0, whole);
  return got > 0;
}

std::optional<std::string> Job::line(const std::string& text, Wait wait) {
  const auto until = Clock::now() + patient(wait);
  do {
    for (std::size_t end; (end = output_.find('\n', seen_)) != std::string::npos;) {
      std::string found = output_.substr(seen_, end - seen_);
      seen_ = end + 1;
      if (found.find(text) != std::string::npos) return found;
    }
  } while (read_some(until));
  return std::nullopt;
}

int Job::wait(Wait wait) {
  const auto until = Clock::now() + patient(wait);
  while (read_some(until)) {
  }
  if (!ended_ && Watch{pid_}.ended_by(until)) {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    ended_ = true;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return code_;
}

std::vector<Watch> Job::children() const {
  std::vector<Watch> watches;
  for (const pid_t child : children_of(pid_)) watches.emplace_back(child);
  return watches;
}

std::vector<pid_t> Job::children_named(const std::string& name) const {
  std::vector<pid_t> named;
  for (const pid_t child : children_of(pid_)) {
    std::ifstream stat{"/proc/" + std::to_string(child) + "/stat"};  // "pid (name) state ..."
    std::string text;
    std::getline(stat, text);
    if (text.find(" (" + name + ") ") != std::string::npos && text.find(") Z ") == std::string::npos) named.push_back(child);
  }
  std::sort(named.begin(), named.end());
  return named;
}

std::string text_of_process(const std::string& pid, const std::string& file) {
  std::ifstream in{"/proc/" + pid + "/" + file, std::ios::binary};
  std::ostringstream text;
  text << in.rdbuf();  // istreambuf_iterator throws when the process ends before it is read
  return text.str();
}

std::int64_t number_after(const std::string& line, const std::string& name) {
  const auto at = line.find(name + "=");
  return at == std::string::npos ? -1 : std::strtoll(line.c_str() + at + name.size() + 1, nullptr, 10);
}

std::int64_t generation_in(const std::string& line) {
  static constexpr std::string_view name = "] generation ";
  const auto at = line.find(name);
  if (!line.starts_with("[elrun ") || at == std::string::npos) return 0;
  char* end = nullptr;
  const std::int64_t number = std::strtoll(line.c_str() + at + name.size(), &end, 10);
  return *end == ':' ? number : 0;  // the coordinator's own lines name the lineage, too
}

std::uint16_t free_port() {
  constexpr int first = 20'000,
                last = 29'000;  // below what the kernel gives away (from 32768 on), and below the ports that tests name themselves
  std::random_device seed;
  for (int tries = 0; tries < 1000; ++tries) {
    const auto port = static_cast<std::uint16_t>(first + static_cast<int>(seed() % (last - first)));
    // Whoever has the socket of this name, without a file, has the port: until this process ends.
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const std::string text = "elrun-test-port-" + std::to_string(port);
    std::memcpy(name.sun_path + 1, text.data(), text.size());
    const int claim = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), looks = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
    const bool is_free = claim >= 0 && ::bind(claim, reinterpret_cast<const sockaddr*>(&name), size) == 0 &&
                         ::bind(looks, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    if (looks >= 0) ::close(looks);
    if (is_free) return port;
    if (claim >= 0) ::close(claim);
  }
  throw std::runtime_error{"no free port"};
}

}  // namespace elrun::test
