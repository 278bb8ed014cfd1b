#include "launcher/process/children.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "launcher/report/evidence.hpp"

namespace elrun::inline v0::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t parent_stat_max = 4096;

// Kernels without the lists of children: by each process's parent, the second word after the name in brackets. Not by a stream of the standard
// library: its iterators throw when a process ends between the opening of its file and the reading.
std::vector<pid_t> children_by_parent(pid_t parent) {
  std::vector<pid_t> found;
  std::error_code error;
  for (fs::directory_iterator at{"/proc", error}, end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    const std::string text = read_regular_file(at->path() / "stat", parent_stat_max).value_or("");
    const auto bracket = text.rfind(')');
    if (bracket == text.npos) continue;
    char state = 0;
    int its_parent = 0;
    if (std::sscanf(text.c_str() + bracket + 1, " %c %d", &state, &its_parent) == 2 && its_parent == parent)
      found.push_back(std::stoi(name));
  }
  return found;
}

}  // namespace

std::vector<pid_t> children_of(pid_t pid) {
  const fs::path process{"/proc/" + std::to_string(pid)};
  std::vector<pid_t> found;
  std::error_code error;
  bool is_listed = false;
  for (fs::directory_iterator at{process / "task", error}, end; !error && at != end; at.increment(error)) {
    std::ifstream file{at->path() / "children"};
    is_listed |= file.is_open();
    for (pid_t child = 0; file >> child;) found.push_back(child);
  }
  return is_listed || !fs::exists(process, error) ? found : children_by_parent(pid);
}

}  // namespace elrun::inline v0::launcher
