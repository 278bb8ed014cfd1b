#include "tests/support/sim/crash_search.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include <fmt/ranges.h>

namespace elrun::sim {
namespace {

Profile profile_of(const SmallWorld& world, CrashOf crash_of, bool parcels_die, std::vector<std::uint64_t> crashes_at) {
  Profile p;
  p.seed = 1;
  for (const std::uint32_t workers : world.workers)
    if (workers > 0) p.workers.push_back(workers);
  p.nodes = static_cast<std::uint32_t>(p.workers.size());
  p.round = {.nodes_min = world.grows() || crash_of == CrashOf::node ? p.nodes - 1 : p.nodes,
             .nodes_max = p.nodes,
             .last_call = 1s,
             .max_restarts = 100};
  p.timeouts.collective = 45s;
  p.stays = p.job.real = true;
  p.delay_spread = 500us;
  p.spawn = 5ms;
  p.arrive_within = 10ms;
  p.step = world.grows() ? 2s : 20ms;
  if (world.grows()) p.last_arrives = world.grows_at;
  p.calm_after = 100s;
  Plan& plan = p.job.plan;
  plan.micro_batch = 2;
  plan.global_batch = 6;
  plan.samples = 18;
  plan.steps = world.grows() || world.in_memory_every > 0 ? 3 : 2;
  plan.seed = 11;
  plan.placement = world.placement;
  p.steps = plan.steps * plan.slots();
  if (world.saves_every > 0) p.job.checkpoint = {.directory = "/checkpoints", .every = world.saves_every};
  p.job.checkpoint.in_memory_every = world.in_memory_every;
  p.job.state_rate = 1;
  p.job.crash_of = crash_of;
  p.job.crashes_at = std::move(crashes_at);
  p.job.parcels_die = parcels_die;
  p.job.parcels_live = !parcels_die;
  return p;
}

}  // namespace

std::string CrashFound::where() const {
  constexpr std::array<std::string_view, 3> what{"", " of all workers of a node", " of whole nodes"};
  return fmt::format("with crashes{} at actions {}{}", what[static_cast<std::size_t>(profile.job.crash_of)],
                     fmt::join(profile.job.crashes_at, " and "), profile.job.parcels_die ? ", and what was under way lost" : "");
}

CrashSearch crash_at_every_action(const SmallWorld& world, std::uint32_t crashes, bool nodes_die, unsigned threads, Bug bug) {
  CrashSearch all;
  std::vector<CrashOf> kinds{CrashOf::worker};
  if (nodes_die && std::ranges::any_of(world.workers, [](std::uint32_t workers) { return workers > 1; })) kinds.push_back(CrashOf::workers);
  if (nodes_die) kinds.push_back(CrashOf::node);
  std::mutex mutex;
  for (const CrashOf kind : kinds) {
    planted_bug = bug;
    const std::uint64_t actions_of_all = simulate(profile_of(world, kind, false, {})).actions;
    planted_bug = Bug::none;
    all.actions = std::max(all.actions, actions_of_all);
    std::atomic<std::uint64_t> next{1}, end{actions_of_all + 1};
    const auto run = [&](bool parcels_die, std::vector<std::uint64_t> at) {
      const Profile profile = profile_of(world, kind, parcels_die, std::move(at));
      const Outcome outcome = simulate(profile);
      const std::lock_guard lock{mutex};
      ++all.runs;
      all.went_back += outcome.went_back;
      if (outcome.violation && (!all.found || profile.job.crashes_at < all.found->profile.job.crashes_at)) {
        all.found = CrashFound{*outcome.violation, profile};
        end = std::min<std::uint64_t>(end, profile.job.crashes_at.front());
      }
      return outcome.violation ? 0 : outcome.actions;
    };
    const auto work = [&] {
      planted_bug = bug;
      for (std::uint64_t first = next++; first < end; first = next++)
        for (const bool parcels_die : {false, true}) {
          const std::uint64_t actions = run(parcels_die, {first});
          for (std::uint64_t second = first + 1; crashes > 1 && second <= actions && first < end; ++second)
            run(parcels_die, {first, second});
        }
      planted_bug = Bug::none;
    };
    std::vector<std::jthread> workers;
    for (unsigned i = 0; i < threads; ++i) workers.emplace_back(work);
    workers.clear();
    if (all.found) return all;
  }
  return all;
}

}  // namespace elrun::sim
