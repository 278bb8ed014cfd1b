#include "tests/support/control_group.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <stdexcept>
#include <thread>

namespace fs = std::filesystem;

namespace elrun::test {
namespace {

// Version 1 has a hierarchy for each controller; version 2 lies beside them or alone.
const fs::path roots[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"};
constexpr auto patience = std::chrono::seconds{20};

bool write(const fs::path& file, const std::string& text) {
  std::ofstream out{file};
  out << text << std::flush;
  return out.good();
}

std::string text_of(const fs::path& file) {
  std::ifstream in{file};
  return {std::istreambuf_iterator<char>{in}, {}};
}

template <class Condition>
bool within_patience(const Condition& holds) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
  }
  return true;
}

// The first hierarchy whose groups have one of these files.
fs::path make_group(const std::string& name, std::initializer_list<const char*> files) {
  for (const fs::path& root : roots) {
    std::error_code error;
    const fs::path folder = root / name;
    if (!fs::exists(root / "cgroup.procs", error)) continue;
    const bool made = fs::create_directory(folder, error);
    if (error) continue;
    if (std::any_of(files.begin(), files.end(), [&](const char* file) { return fs::exists(folder / file, error); })) return folder;
    if (made) fs::remove(folder, error);
  }
  return {};
}

void thaw_group(const fs::path& folder) {
  (void)(fs::exists(folder / "freezer.state") ? write(folder / "freezer.state", "THAWED") : write(folder / "cgroup.freeze", "0"));
}

}  // namespace

ControlGroup::ControlGroup(const std::string& name)
    : memory_{make_group(name, {"memory.limit_in_bytes", "memory.max"})}, freezer_{make_group(name, {"freezer.state", "cgroup.freeze"})} {}

ControlGroup::~ControlGroup() {
  for (const fs::path& folder : {memory_, freezer_}) {
    std::error_code ignored;
    if (folder.empty()) continue;
    thaw_group(folder);
    fs::remove(folder, ignored);  // ends with an error where processes are left, which `names` then shows
  }
}

std::string ControlGroup::enter() const {
  std::string lines;
  for (const fs::path& folder : {memory_, freezer_})
    if (!folder.empty()) lines += "echo $$ > " + (folder / "cgroup.procs").string() + "\n";
  return lines;
}

std::string ControlGroup::show() const {
  if (memory_.empty()) return {};
  if (fs::exists(memory_ / "memory.max")) return "mount -t cgroup2 cgroup2 /sys/fs/cgroup\n";
  return "mount -t tmpfs cgroup /sys/fs/cgroup && mkdir /sys/fs/cgroup/memory && mount -t cgroup -o memory cgroup /sys/fs/cgroup/memory\n";
}

bool ControlGroup::limit_memory(std::uint64_t bytes) const {
  if (memory_.empty()) return false;
  const bool second = fs::exists(memory_ / "memory.max");
  if (second) (void)write(memory_ / "memory.swap.max", "0");  // where there is one
  return write(memory_ / (second ? "memory.max" : "memory.limit_in_bytes"), std::to_string(bytes));
}

std::uint64_t ControlGroup::oom_kills() const {
  const bool second = fs::exists(memory_ / "memory.max");
  const std::string text = text_of(memory_ / (second ? "memory.events" : "memory.oom_control")), name = "oom_kill ";
  const auto at = text.find(name);
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + name.size()));
}

std::uint64_t ControlGroup::memory_in_use() const {
  const bool second = fs::exists(memory_ / "memory.max");
  return std::stoull(text_of(memory_ / (second ? "memory.current" : "memory.usage_in_bytes")));
}

bool ControlGroup::freeze() const {
  if (freezer_.empty()) return false;
  const bool first = fs::exists(freezer_ / "freezer.state");
  if (!write(freezer_ / (first ? "freezer.state" : "cgroup.freeze"), first ? "FROZEN" : "1")) return false;
  return within_patience([&] {
    return first ? text_of(freezer_ / "freezer.state") == "FROZEN\n"
                 : text_of(freezer_ / "cgroup.events").find("frozen 1") != std::string::npos;
  });
}

void ControlGroup::thaw(const std::string& name) {
  for (const fs::path& root : roots)
    if (fs::exists(root / name)) thaw_group(root / name);
}

void ControlGroup::take_away(const std::string& name) {
  for (const fs::path& root : roots) {
    const fs::path folder = root / name;
    if (!fs::exists(folder)) continue;
    // A process that was killed leaves its group a moment after it is seen to have ended.
    if (!within_patience([&] {
          std::error_code error;
          return fs::remove(folder, error) || !fs::exists(folder);
        }))
      throw std::runtime_error{"the control group " + folder.string() + " cannot be removed: it has processes"};
  }
}

std::vector<std::string> ControlGroup::names(const std::string& begin) {
  std::vector<std::string> found;
  for (const fs::path& root : roots) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator{root, error})
      if (std::string name = entry.path().filename(); name.starts_with(begin)) found.push_back(std::move(name));
  }
  return found;
}

}  // namespace elrun::test
