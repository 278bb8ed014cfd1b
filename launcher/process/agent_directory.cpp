#include "launcher/process/agent_directory.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "lib/base/failure.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::string_view prefix = "elrun-";
constexpr std::size_t place_size_max = 63;  // the path of a Unix socket has at most 107 bytes

std::vector<std::string> places(const Variables& environment) {
  std::vector<std::string> all;
  if (const auto runtime = environment.find("XDG_RUNTIME_DIR"); runtime != environment.end()) all.push_back(runtime->second);
  std::error_code error;
  for (const std::string& place :
       {std::string{"/tmp"}, std::string{"/run"}, std::string{"/dev/shm"}, std::filesystem::current_path(error).string()})
    all.push_back(place);
  // A relative one is another place for a worker that changes its folder; and the XDG rules ignore it.
  std::erase_if(all, [](const std::string& place) { return !place.starts_with('/') || place.size() > place_size_max; });
  return all;
}

bool is_own_directory(const Path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

}  // namespace

Result<Path> make_agent_directory(const Variables& environment) {
  for (const std::string& place : places(environment)) {
    std::string name = (Path{place} / "elrun-XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) return Path{name};
  }
  return from_errno(errno, "make a directory for the agent's socket in /tmp; set XDG_RUNTIME_DIR to a writable one");
}

std::vector<Path> agent_directories(const Variables& environment) {
  std::vector<Path> all;
  std::vector<std::string> where = places(environment);
  // An agent makes its directory in the first that it can: with a place of its own it is in no other.
  if (const auto runtime = environment.find("XDG_RUNTIME_DIR");
      runtime != environment.end() && !where.empty() && where.front() == runtime->second && ::access(where.front().c_str(), W_OK) == 0)
    where.resize(1);
  for (const std::string& place : where) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry{place, error}, end; !error && entry != end && all.size() < agent_directories_max;
         entry.increment(error))
      if (entry->path().filename().native().starts_with(prefix) && is_own_directory(entry->path())) all.push_back(entry->path());
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace elrun::inline v0::launcher
