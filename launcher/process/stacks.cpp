#include "launcher/process/stacks.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/process/answers_in_time.hpp"

namespace elrun::inline v0::launcher {
namespace {

namespace fs = std::filesystem;
constexpr Duration folder_answers_within = 500ms;
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

using Found = std::array<bool, 3>;  // of the names below, whether a folder has it
constexpr std::array<const char*, 3> names{"py-spy", "eu-stack", "gdb"};

Found found_in(const std::string& folder) {
  Found found{};
  std::transform(names.begin(), names.end(), found.begin(),
                 [&](const char* name) { return ::access(fmt::format("{}/{}", folder, name).c_str(), X_OK) == 0; });
  return found;
}

std::string with_silent(const std::string& text, const StackPrograms& programs) {
  if (programs.silent.empty()) return text;
  const std::string silent = fmt::format("of PATH, {} did not answer when this agent began", fmt::join(programs.silent, ":"));
  if (programs.not_asked.empty()) return fmt::format("{} ({})", text, silent);
  return fmt::format("{} ({}, and {} were not looked at after that)", text, silent, fmt::join(programs.not_asked, ":"));
}

bool is_of_system(const std::string& folder) { return folder == "/usr/bin" || folder == "/bin" || folder == "/usr/local/bin"; }

}  // namespace

std::string thread_states(pid_t process) {
  std::string text;
  std::size_t threads = 0;
  describe_tree(process, text, threads);
  return text;
}

StackPrograms find_stack_programs(const Variables& environment) {
  const auto path = environment.find("PATH");
  std::string_view rest = path == environment.end() ? std::string_view{"/usr/bin:/bin"} : std::string_view{path->second};
  std::vector<std::string> folders;
  while (!rest.empty()) {
    const auto colon = rest.find(':');
    if (rest.front() == '/') folders.emplace_back(rest.substr(0, colon));
    rest = colon == rest.npos ? std::string_view{} : rest.substr(colon + 1);
  }
  std::vector<std::size_t> order(
      folders.size());  // of the questions: the system's first, for after some that do not answer no other is asked
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_partition(order.begin(), order.end(), [&](std::size_t i) { return is_of_system(folders[i]); });
  const auto was_asked = std::make_shared<std::vector<std::atomic<bool>>>(folders.size());
  std::vector<std::function<Found()>> calls;
  for (const std::size_t i : order)
    calls.emplace_back([i, folder = folders[i], was_asked] { return was_asked->at(i) = true, found_in(folder); });
  const auto answers = answers_in_time(calls, folder_answers_within);
  std::vector<std::optional<Found>> found(folders.size());
  for (std::size_t i = 0; i < order.size(); ++i) found[order[i]] = answers[i];
  StackPrograms programs;
  const std::array<std::string*, 3> paths{&programs.py_spy, &programs.eu_stack, &programs.gdb};
  for (std::size_t i = 0; i < folders.size(); ++i) {
    if (!found[i]) (was_asked->at(i) ? programs.silent : programs.not_asked).push_back(folders[i]);
    for (std::size_t tool = 0; tool < names.size(); ++tool)
      if (found[i] && found[i]->at(tool) && paths[tool]->empty()) *paths[tool] = fmt::format("{}/{}", folders[i], names[tool]);
  }
  return programs;
}

StackSource stack_source(pid_t process, const StackPrograms& programs) {
  std::error_code error;
  const std::string program = fs::read_symlink(fmt::format("/proc/{}/exe", process), error).filename().native();
  const std::string pid = std::to_string(process);
  if (program.starts_with("python")) {
    if (!programs.py_spy.empty()) return {{programs.py_spy, "dump", "--nonblocking", "--pid", pid}, {}};
    return {{},
            with_silent("Python prints its threads' stacks when it gets SIGABRT, below; with py-spy on PATH they would be printed before",
                        programs)};
  }
  if (!programs.eu_stack.empty()) return {{programs.eu_stack, "-p", pid}, {}};
  if (!programs.gdb.empty())
    return {{programs.gdb, "-nx", "-batch", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off", "-p", pid, "-ex",
             "thread apply all backtrace 64"},
            {}};
  return {{}, with_silent("its stacks are not known: no eu-stack or gdb on PATH", programs)};
}

Variables tool_environment(Variables environment) {
  for (const char* name : {"PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD", "DEBUGINFOD_URLS"}) environment.erase(name);
  return environment;
}

}  // namespace elrun::inline v0::launcher
