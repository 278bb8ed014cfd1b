#include "launcher/supervise/worker.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "launcher/options/options.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {

int Worker::exit_code() const { return hung.empty() ? ending->code() : exit_code::hang; }

std::string Worker::cause() const {
  if (!session.early_as.empty()) return session.early_as;
  return hung.empty() ? describe(*ending) : fmt::format("a hang ({}), then {}", hung, describe(*ending));
}

int Worker::stop_signal(std::optional<int> asked, bool node_runs_job) const {
  return asked ? *asked : is_job || (node_runs_job && !session.opened) ? SIGKILL : SIGTERM;
}

void Worker::enter_world(Instant now, Duration returning) {
  session.joined = session.joined || stays || pending.is_ready;
  if (stays || pending.says_ready) return_by = now + std::max(returning, returns_within);
  stays = quit = ready_to_leave = cannot_go_on = held = false;
  pending = {};
}

std::size_t running(const Workers& workers) {
  return static_cast<std::size_t>(std::count_if(workers.begin(), workers.end(), [](const Worker& w) { return w.runs(); }));
}

bool any(const Workers& workers, bool (Worker::*is)() const) {
  return std::any_of(workers.begin(), workers.end(), [is](const Worker& w) { return (w.*is)(); });
}

std::optional<std::size_t> worker_with(const Workers& workers, ConnectionId connection) {
  for (std::size_t i = 0; i < workers.size(); ++i)
    if (workers[i].connection == connection) return i;
  return std::nullopt;
}

std::optional<std::size_t> worker_that_says(const Workers& workers, const Hello& hello) {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const Worker& w = workers[i];
    if (!w.began_as || w.began_as->rank.value() != hello.rank || w.began_as->world.value() != hello.world) continue;
    if (w.pid != 0 && static_cast<std::uint64_t>(w.pid) == hello.pid) return i;
    if (!found || (!w.ending && !w.connection)) found = i;
  }
  return found;
}

bool failed_first(const Workers& workers, const Worker& worker) {
  return std::none_of(workers.begin(), workers.end(),
                      [&](const Worker& w) { return &w != &worker && w.failed() && w.failed_at <= worker.failed_at; });
}

std::string fate_of(const Workers& workers) {
  const auto all = std::count_if(workers.begin(), workers.end(), [](const Worker& w) { return w.in_world(); });
  if (all == 0) return "no worker of it was running";
  const auto killed =
      std::count_if(workers.begin(), workers.end(), [](const Worker& w) { return w.in_world() && w.ending->signal == SIGKILL; });
  std::string text;
  if (const auto ended = static_cast<std::size_t>(all - killed); ended > 0)
    text += fmt::format("{} ended{}", count_of(ended, "worker"), killed > 0 ? ", " : "");
  if (killed > 0) text += fmt::format("{} killed", count_of(static_cast<std::size_t>(killed), "worker"));
  return text;
}

std::uint32_t places_wanted(Workers& workers, std::uint32_t of, bool some_go_on) {
  for (Worker& w : workers) {
    w.pending.is_next = some_go_on && w.in_world() && w.ending && w.is_job && w.can_stay;
    if (w.pending.is_next || (w.is_pending() && !w.pending.is_ready)) --of;
  }
  return of;
}

std::vector<bool> choose_places(const Workers& workers, std::uint32_t places) {
  std::vector<bool> has_place(workers.size(), false);
  const auto choose = [&](const auto& wanted) {
    for (std::size_t i = 0; i < workers.size(); ++i)
      if (places > 0 && !has_place[i] && wanted(workers[i])) has_place[i] = true, --places;
  };
  choose([](const Worker& w) { return w.lives() && w.in_world(); });
  choose([](const Worker& w) { return w.is_pending() && w.pending.is_ready; });
  choose([](const Worker& w) { return !w.lives() && !w.pending.is_next; });
  choose([](const Worker& w) { return !w.lives(); });
  return has_place;
}

}  // namespace elrun::inline v0::launcher
