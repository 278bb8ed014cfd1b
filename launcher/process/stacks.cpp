#include "launcher/process/stacks.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

namespace elrun::inline v0::launcher {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t threads_max = 256;  // a program with more has said enough

std::string first_line(const fs::path& path) {
  std::ifstream file{path};
  std::string line;
  std::getline(file, line);
  return line;
}

std::string state_of(const fs::path& thread) {
  std::ifstream file{thread / "status"};
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("State:")) return line.substr(line.find_first_not_of(" \t", 6));
  return "gone";
}

std::string described(const fs::path& thread) {
  std::string text = fmt::format("{} {}: {}", thread.filename().native(), first_line(thread / "comm"), state_of(thread));
  if (const std::string call = first_line(thread / "syscall"); !call.empty() && call != "running")
    text += ", system call " + call.substr(0, call.find(' '));
  if (const std::string place = first_line(thread / "wchan"); !place.empty() && place != "0") text += ", waits in " + place;
  return text + "\n";
}

void describe_tree(pid_t process, std::string& text, std::size_t& threads) {
  std::error_code error;
  const fs::path folder = fmt::format("/proc/{}", process);
  // Not its arguments: they are in its memory, whose lock a thread that hangs in the kernel may hold.
  text += fmt::format("process {}: {}\n", process, first_line(folder / "comm"));
  std::vector<pid_t> children;
  for (fs::directory_iterator at{folder / "task", error}, end; !error && at != end && threads < threads_max; at.increment(error)) {
    ++threads;
    text += "  thread " + described(at->path());
    std::ifstream list{at->path() / "children"};
    for (pid_t child = 0; list >> child;) children.push_back(child);
  }
  for (const pid_t child : children)
    if (threads < threads_max) describe_tree(child, text, threads);
}

std::string found_on_path(const std::string& name, const Variables& environment) {
  const auto path = environment.find("PATH");
  std::string_view rest = path == environment.end() ? std::string_view{"/usr/bin:/bin"} : std::string_view{path->second};
  while (!rest.empty()) {
    const auto colon = rest.find(':');
    const std::string file = fmt::format("{}/{}", rest.substr(0, colon), name);
    if (file.front() == '/' && ::access(file.c_str(), X_OK) == 0) return file;
    rest = colon == rest.npos ? std::string_view{} : rest.substr(colon + 1);
  }
  return {};
}

}  // namespace

std::string thread_states(pid_t process) {
  std::string text;
  std::size_t threads = 0;
  describe_tree(process, text, threads);
  return text;
}

StackSource stack_source(pid_t process, const Variables& environment) {
  std::error_code error;
  const std::string program = fs::read_symlink(fmt::format("/proc/{}/exe", process), error).filename().native();
  const std::string pid = std::to_string(process);
  if (program.starts_with("python")) {
    if (std::string tool = found_on_path("py-spy", environment); !tool.empty())
      return {{std::move(tool), "dump", "--nonblocking", "--pid", pid}, {}};
    return {{}, "Python prints its threads' stacks when it gets SIGABRT, below; with py-spy on PATH they would be printed before"};
  }
  if (std::string tool = found_on_path("eu-stack", environment); !tool.empty()) return {{std::move(tool), "-p", pid}, {}};
  if (std::string tool = found_on_path("gdb", environment); !tool.empty())
    return {{std::move(tool), "-nx", "-batch", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off", "-p", pid, "-ex",
             "thread apply all backtrace 64"},
            {}};
  return {{}, "its stacks are not known: no eu-stack or gdb on PATH"};
}

Variables tool_environment(Variables environment) {
  for (const char* name : {"PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD", "DEBUGINFOD_URLS"}) environment.erase(name);
  return environment;
}

}  // namespace elrun::inline v0::launcher
