#include "launcher/process/orphans.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include "launcher/options/environment.hpp"
#include "launcher/process/children.hpp"

namespace elrun::inline v0::launcher {

void kill_descendants(pid_t pid) {
  for (const pid_t child : children_of(pid)) {
    kill_descendants(child);  // first: then they are orphans
    ::kill(child, SIGKILL);
  }
}

std::optional<LocalRank> local_rank_of(pid_t pid) {
  const std::string name = std::string{local_rank_variable} + "=";
  std::ifstream file{"/proc/" + std::to_string(pid) + "/environ", std::ios::binary};
  for (std::string variable; std::getline(file, variable, '\0');) {
    std::uint32_t rank = 0;
    const char* const end = variable.data() + variable.size();
    if (variable.starts_with(name) && std::from_chars(variable.data() + name.size(), end, rank).ptr == end) return LocalRank{rank};
  }
  return {};
}

Orphans::Orphans(boost::asio::io_context& loop, const Clock& clock, std::function<bool(pid_t)> is_known)
    : clock_{clock}, is_known_{std::move(is_known)}, endings_{loop, SIGCHLD} {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // refused by no kernel that elrun runs on; without it they go to process 1
  for (const pid_t pid : children_of(::getpid()))
    if (!is_known_(pid)) others_.insert(pid);
  wait_for_endings();
}

void Orphans::wait_for_endings() {
  endings_.async_wait([this](const boost::system::error_code& error, int) {
    if (error) return;
    collect();
    wait_for_endings();
  });
}

// Several endings may be one signal, so it looks at all.
void Orphans::collect() {
  for (const pid_t pid : children_of(::getpid()))
    if (!is_known_(pid) && ::waitpid(pid, nullptr, WNOHANG) == pid) others_.erase(pid);
}

// A process that is killed gives its own children to this one, so it looks again until there is none.
Orphans::Ended Orphans::end(Duration limit, const std::function<bool(pid_t)>& is_spared) {
  const Instant until = clock_.now() + limit;
  std::set<pid_t> killed;
  while (true) {
    std::vector<pid_t> found = children_of(::getpid());
    found.erase(
        std::remove_if(found.begin(), found.end(), [&](pid_t pid) { return is_known_(pid) || others_.contains(pid) || is_spared(pid); }),
        found.end());
    if (found.empty() || clock_.now() >= until) return {killed.size(), std::move(found)};
    bool all_collected = true;
    for (const pid_t pid : found) {
      killed.insert(pid);
      ::kill(pid, SIGKILL);
      all_collected &= ::waitpid(pid, nullptr, WNOHANG) == pid;
    }
    if (!all_collected) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

}  // namespace elrun::inline v0::launcher
