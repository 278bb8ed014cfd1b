#include "launcher/process/orphans.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <utility>

#include "launcher/process/answers_in_time.hpp"
#include "launcher/process/children.hpp"
#include "launcher/process/spawner.hpp"
#include "lib/base/fd.hpp"

namespace elrun::inline v0::launcher {
namespace {

// The kernel reads an environment under a lock of that process's memory, which a call that hangs in a driver may hold for good.
constexpr Duration owner_known_within = 100ms;

// Nothing where a read fails. Not by an iterator of a stream, which throws then.
std::string text_of(const std::string& path) {
  constexpr std::size_t bytes_max = 4 << 20, at_once = 64 << 10;  // the kernel has a limit of 6 MiB for arguments and environment together
  std::string text;
  const Fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  while (file && text.size() < bytes_max) {
    const std::size_t before = text.size();
    text.resize(before + at_once);
    const ssize_t got = ::read(file.get(), text.data() + before, at_once);
    text.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got <= 0) break;
  }
  return text;
}

OrphanOwner owner_of(pid_t pid, const std::vector<std::string>& sockets) {
  const std::string process = "/proc/" + std::to_string(pid), environment = text_of(process + "/environ");
  if (environment.empty()) return ends_already(text_of(process + "/stat")) ? OrphanOwner{OrphanOwner::Kind::ending, {}} : OrphanOwner{};
  OrphanOwner owner;
  for (const std::string& socket : sockets)
    if (owner = owner_in(environment, socket); owner.rank) break;
  return owner;
}

}  // namespace

void kill_descendants(pid_t pid) {
  for (const pid_t child : children_of(pid)) {
    kill_descendants(child);  // first: then they are orphans
    ::kill(child, SIGKILL);
  }
}

Orphans::Orphans(boost::asio::io_context& loop, const Clock& clock, std::string socket, std::function<bool(pid_t)> is_known)
    : clock_{clock},
      sockets_{std::move(socket)},
      is_known_{[known = std::move(is_known)](pid_t pid) { return known(pid) || is_left(pid); }},
      endings_{loop, SIGCHLD} {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // refused by no kernel that elrun runs on; without it they go to process 1
  for (const pid_t pid : children_of(::getpid()))
    if (!is_known_(pid)) others_.insert(pid);
  inherits_others_ = ::getpid() == 1 || !others_.empty();
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
    if (!is_known_(pid) && ::waitpid(pid, nullptr, WNOHANG) == pid) others_.erase(pid), known_.erase(pid);
}

std::vector<pid_t> Orphans::find() {
  std::vector<pid_t> found = children_of(::getpid());
  std::erase_if(found, [this](pid_t pid) { return is_known_(pid) || others_.contains(pid); });
  return found;
}

void Orphans::learn_owners(const std::vector<pid_t>& pids) {
  std::vector<pid_t> fresh;
  std::vector<std::function<OrphanOwner()>> calls;
  for (const pid_t pid : pids) {
    if (known_.contains(pid)) continue;
    fresh.push_back(pid);
    calls.emplace_back([pid, sockets = sockets_] { return owner_of(pid, sockets); });
  }
  if (fresh.empty()) return;
  const auto owners = answers_in_time(calls, owner_known_within);
  for (std::size_t i = 0; i < fresh.size(); ++i) known_[fresh[i]].owner = owners[i].value_or(OrphanOwner{});
}

// A process that is killed gives its own children to this one, so it looks again until there is none.
Orphans::Ended Orphans::end(Duration limit, const Fate& fate) {
  const Instant until = clock_.now() + limit;
  Ended ended;
  std::set<pid_t> killed;
  while (true) {
    std::vector<pid_t> found = find();
    const bool is_late = clock_.now() >= until;
    if (is_late) std::erase_if(found, [&](pid_t pid) { return !known_.contains(pid); });  // looking at an owner may take its time
    else learn_owners(found);
    std::erase_if(found, [&](pid_t pid) {
      Known& known = known_.at(pid);
      const OrphanFate its = fate(pid, known.owner);
      if (its == OrphanFate::stays_unclear && !std::exchange(known.was_named, true)) ended.unclear.push_back(pid);
      return its != OrphanFate::ends;
    });
    if (found.empty() || is_late) {
      ended.killed = killed.size();
      ended.remain = std::move(found);
      return ended;
    }
    bool all_collected = true;
    for (const pid_t pid : found) {
      if (known_.at(pid).owner.kind != OrphanOwner::Kind::ending) killed.insert(pid);
      ::kill(pid, SIGKILL);
      const bool is_collected = ::waitpid(pid, nullptr, WNOHANG) == pid;
      if (is_collected) known_.erase(pid);
      all_collected &= is_collected;
    }
    if (!all_collected) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

}  // namespace elrun::inline v0::launcher
