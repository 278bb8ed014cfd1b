#include "tests/support/sim/profile.hpp"

#include <algorithm>

namespace elrun::sim {

const char* to_string(FaultKind kind) {
  static constexpr const char* names[] = {
      "agent crash",       "host crash",           "replaced while frozen", "agent pause",           "worker pause",   "coordinator pause",
      "coordinator crash", "coordinator replaced", "stream reset",          "stream half open",      "partition",      "partition one way",
      "worker crash",      "clock jump",           "crash between actions", "pause between actions", "asked to leave", "new node"};
  static_assert(std::size(names) == fault_kinds);
  return names[static_cast<std::size_t>(kind)];
}

namespace {

// Of the coordinator's and the agents' keep-alives over the network: what an end waits for that nothing tells.
constexpr Duration server_keepalive_limit = 20s;

bool does_no_harm(FaultKind kind) {
  return kind == FaultKind::coordinator_pause || kind == FaultKind::coordinator_crash || kind == FaultKind::stream_reset;
}

}  // namespace

Duration Profile::forms_within() const {
  // The silence is noticed, the revocation is acknowledged or its deadline passes, the missing return, and growth settles.
  return server_keepalive_limit + 4 * timeouts.heartbeat_limit + timeouts.revocation + timeouts.stop_grace + timeouts.heartbeat_limit +
         round.last_call + 40s + (wedged_workers > 0 ? wedged_at_most : Duration{0});
}

Duration Profile::ends_within() const {
  return forms_within() + timeouts.join + timeouts.coordinator_grace + timeouts.collective + steps * step * 4 + 120s;
}

Profile profile_of(std::uint64_t seed, std::uint32_t nodes_max) {
  Rng rng{seed ^ 0x9e3779b97f4a7c15u};
  const auto ms_of = [](Rng& chance, std::uint64_t from, std::uint64_t to) {
    return Duration{1ms} * static_cast<std::int64_t>(from + chance.below(to - from + 1));
  };
  const auto ms = [&](std::uint64_t from, std::uint64_t to) { return ms_of(rng, from, to); };
  Profile p;
  p.seed = seed;
  p.nodes = 1 + static_cast<std::uint32_t>(rng.below(nodes_max + 1));  // one more than there is room for, at times
  p.round.nodes_max = rng.chance(0.5) ? nodes_max : 1 + static_cast<std::uint32_t>(rng.below(std::min(p.nodes, nodes_max)));
  p.round.nodes_min = 1 + static_cast<std::uint32_t>(rng.below(std::min(p.nodes, p.round.nodes_max)));
  if (rng.chance(0.25) && p.round.nodes_max <= p.nodes) p.round.nodes_min = p.round.nodes_max;
  p.round.last_call = rng.chance(0.5) ? ms(100, 3000) : Duration{10s};
  const bool workers_alike = rng.chance(0.7);
  for (std::uint32_t i = 0; i < 8; ++i) p.workers.push_back(1 + static_cast<std::uint32_t>(workers_alike ? seed % 2 : rng.below(3)));
  p.jobs = rng.chance(0.75);
  p.round.max_restarts = rng.chance(0.5) ? static_cast<std::int32_t>(rng.below(5)) : -1;
  p.hosted = rng.chance(0.4);
  p.ledger = rng.chance(0.5);

  p.stays = p.jobs && Rng{seed ^ 0xc2b2ae3d27d4eb4fu}.chance(0.5);  // of its own: the other choices of a seed stay what they were

  if (Rng starts{seed ^ 0x94d049bb133111ebu}; starts.chance(0.3)) p.starts_within = ms_of(starts, 5'000, 30'000);

  // Of their own as well.
  p.agents_prepare = Rng{seed ^ 0xff51afd7ed558ccdu}.chance(0.6);
  p.taken_over = p.hosted && Rng{seed ^ 0x165667b19e3779f9u}.chance(0.5);
  p.elected = p.taken_over && Rng{seed ^ 0x27d4eb2f165667c5u}.chance(0.5);

  if (Rng outsiders{seed ^ 0x71c18690ee42c90bu}; outsiders.chance(0.3)) p.outsiders = 1 + static_cast<std::uint32_t>(outsiders.below(4));

  p.timeouts.join = ms(40'000, 120'000);
  p.timeouts.coordinator_grace = ms(45'000, 90'000);
  p.timeouts.collective = 45s;
  p.timeouts.connect = 30s;
  p.timeouts.store_wait = 60s;
  p.timeouts.last_work = 120s;
  if (rng.chance(0.6)) p.timeouts.stop_grace = ms(1'500, 6'000), p.timeouts.drain = 1s;
  if (rng.chance(0.3)) p.timeouts.heartbeat = 100ms, p.timeouts.heartbeat_limit = 500ms, p.timeouts.reconnect_grace = ms(50, 250);
  p.timeouts.last_call = p.round.last_call;
  const bool fast = p.timeouts.heartbeat_limit < 1s;

  p.delay_min = Duration{1us} * static_cast<std::int64_t>(20 + rng.below(500));
  p.delay_spread = rng.chance(0.7) ? ms(0, 3) : ms(5, fast ? 20 : 60);
  p.slow_messages = rng.chance(0.5) ? 0 : 0.02;
  p.spawn = rng.chance(0.7) ? ms(1, 100) : ms(200, 3000);
  p.steps = 10 + rng.below(30);
  p.step = ms(200, 1500);
  p.deaf_workers = rng.chance(0.7) ? 0 : 0.3;
  p.wedged_workers = rng.chance(0.85) ? 0 : 0.1;
  p.arrive_within = rng.chance(0.8) ? ms(1, 3000) : ms(3000, 15000);
  p.calm_after = ms(5'000, 50'000);

  const double mood = static_cast<double>(rng.below(100)) / 100;
  if (mood < 0.06) {  // nothing goes wrong
    // Where messages are late, others can be lost for a while, and then they need the bad node.
    const bool calm = p.harmless = p.coordinator_stays = p.slow_messages == 0;
    const bool others_satisfy_minimum = p.nodes > 1 && p.nodes > p.round.nodes_min;
    p.bad_node = calm && p.jobs && others_satisfy_minimum && Rng{seed ^ 0x2545f4914f6cdd1du}.chance(0.7);
    p.stuck_node = calm && p.jobs && !p.bad_node && others_satisfy_minimum && p.round.nodes_max > p.round.nodes_min &&
                   Rng{seed ^ 0x9fb21c651e98df25u}.chance(0.7);
    if (p.bad_node || p.stuck_node) p.wedged_workers = 0;  // a node that cannot end its workers leaves the others below the minimum
    if (p.stuck_node) p.harmless = false, p.timeouts.session = 20s;
    if (p.bad_node) p.last_arrives = p.arrive_within + p.round.last_call + 500ms;  // the others are a world by then
    if (p.bad_node && p.agents_prepare) p.last_arrives += 4 * p.spawn;             // and known as a Job
    return p;
  }
  p.worker_faults = rng.chance(0.3);
  std::array<std::uint32_t, fault_kinds> weight{};
  for (std::uint32_t& w : weight)
    w = rng.chance(0.4) ? static_cast<std::uint32_t>(1 + rng.below(4)) : 0;  // a swarm: each seed has other faults
  p.harmless = mood < 0.22;
  if (p.harmless) {
    for (std::size_t i = 0; i < fault_kinds; ++i) weight[i] = does_no_harm(static_cast<FaultKind>(i)) ? 1 : 0;
    p.worker_faults = p.hosted = p.taken_over = p.elected = false;
    const std::uint64_t host = Rng{seed ^ 0x85ebca77c2b2ae63u}.below(3);
    if (host > 0) p.hosted = p.taken_over = true;
    if (host == 1) p.elected = true;
    if (host == 2) p.harmless = false, p.only_hosts_end = true, weight[static_cast<std::size_t>(FaultKind::coordinator_pause)] = 0;
    p.slow_messages = p.wedged_workers = 0;
    p.delay_spread = std::min<Duration>(p.delay_spread, 3ms);
    p.timeouts.reconnect_grace = 250ms;
    p.round.last_call = 10s;
    p.arrive_within = std::min<Duration>(p.arrive_within, 1s);
  }
  const std::uint32_t total = [&] {
    std::uint32_t sum = 0;
    for (const std::uint32_t w : weight) sum += w;
    return sum;
  }();
  if (total == 0) return p;
  const std::uint64_t count = 1 + rng.below(rng.chance(0.5) ? 3 : 12);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t at = rng.below(total);
    std::size_t kind = 0;
    while (at >= weight[kind]) at -= weight[kind++];
    p.faults.push_back(static_cast<FaultKind>(kind));
  }
  // Where processes stay, many seeds lose some of them: the others go on, and take in who is started again.
  if (Rng losses{seed ^ 0xd6e8feb86659fd93u}; p.stays && !p.harmless && !p.only_hosts_end && losses.chance(0.6)) {
    p.worker_faults = true;
    p.round.max_restarts = 12;
    for (std::uint64_t lost = 1 + losses.below(6); lost > 0; --lost) p.faults.push_back(FaultKind::worker_crash);
  }
  p.coordinator_stays =
      p.harmless && std::all_of(p.faults.begin(), p.faults.end(), [](FaultKind fault) { return fault == FaultKind::stream_reset; });
  return p;
}

namespace {

/// Saves go on while workers train.
void save_aside(Profile& p, Rng& rng) {
  p.job.checkpoint.async = true;
  p.job.checkpoint.every = 1 + rng.below(3);
  p.job.storage_operation = Duration{1ms} * static_cast<std::int64_t>(rng.chance(0.3) ? 200 : 20);
  p.job.copying = Duration{1ms} * static_cast<std::int64_t>(1 + rng.below(400));
  p.timeouts.collective = 120s;  // a start waits for what workers before it have sealed (others_wait in async_saves.cpp)
}

void spoil_saves(JobProfile& job, Rng& rng) {
  for (std::uint64_t i = rng.below(3); i > 0; --i) job.writer_crashes_at.push_back(1 + rng.below(300));
  if (rng.chance(0.5)) job.crash_at_seal = 1 + rng.below(8);
  for (std::uint64_t i = rng.below(3); i > 0; --i) job.faults.push_back(rng.chance(0.5) ? JobFault::writer_crash : JobFault::writer_pause);
}

}  // namespace

Profile job_profile_of(std::uint64_t seed, std::uint32_t nodes_max) {
  Profile p = profile_of(seed, nodes_max);
  Rng rng{seed ^ 0xd6e8feb86659fd93u};
  p.jobs = p.stays = p.job.real = true;
  p.bad_node = p.stuck_node = false;
  p.deaf_workers = 0;
  p.step = Duration{1ms} * static_cast<std::int64_t>(10 + rng.below(300));
  p.arrive_within = std::min<Duration>(p.arrive_within, 3s);
  if (rng.chance(0.5)) p.faults.clear(), p.worker_faults = false;
  Plan& plan = p.job.plan;
  const std::uint64_t slots = 1 + rng.below(6);
  plan.micro_batch = 2;
  plan.global_batch = slots * plan.micro_batch;
  plan.samples = plan.global_batch * 3;
  plan.steps = 2 + rng.below(6);
  plan.seed = 11;
  static constexpr std::array<Placement, 6> placements{zero(0), zero(1), zero(2), zero(3), hybrid(zero(1)), hybrid(zero(3))};
  plan.placement = placements[rng.below(placements.size())];
  if (Rng more{seed ^ 0xa0761d6478bd642fu}; more.chance(0.15)) {
    plan.reduce = Reduce::fast;
    plan.placement = zero(more.chance(0.8) ? 0 : 1);
  } else if (Rng mirrors{seed ^ 0x2545f4914f6cdd1du}; mirrors.chance(0.2)) {
    plan.placement = mirrored(zero(static_cast<int>(1 + mirrors.below(3))));
  }
  p.steps = plan.steps * slots;
  if (rng.chance(0.5)) p.job.checkpoint = {.directory = "/checkpoints", .every = rng.below(4)};
  p.job.slow_threads = rng.chance(0.5) ? 0 : 0.02;
  Rng asides{seed ^ 0xe7037ed1a0b428dbu};  // of its own: the other choices of a seed stay what they were
  if (!p.job.checkpoint.directory.empty() && asides.chance(0.6)) save_aside(p, asides);
  const Sharding cut = plan.placement.optimizer;
  if (Rng in_memory{seed ^ 0x9fb21c651e98df25u}; in_memory.chance(0.3) && (cut == Sharding::sharded || cut == Sharding::sharded_in_node))
    p.job.checkpoint.in_memory_every = 1 + in_memory.below(4);
  if (Rng travels{seed ^ 0x589965cc75374cc3u}; travels.chance(0.6)) p.job.state_rate = 1;
  if (p.harmless || p.only_hosts_end) return p;  // their rules hold where nothing else happens
  if (p.job.checkpoint.async) spoil_saves(p.job, asides);
  if (rng.chance(0.8)) p.round.max_restarts = 100;
  const std::uint64_t actions = 100 + rng.below(1500);
  for (std::uint64_t i = 1 + rng.below(4); i > 0; --i) p.job.crashes_at.push_back(1 + rng.below(actions));
  for (std::uint64_t i = rng.below(4); i > 0; --i)
    p.job.faults.push_back(rng.chance(0.5) ? JobFault::pause_at_action : JobFault::peer_reset);
  return p;
}

// What a seed says of all else holds here too, but that half of the seeds have no other faults, and are longer.
Profile cut_profile_of(std::uint64_t seed, std::uint32_t nodes_max, bool job) {
  Profile p = job ? job_profile_of(seed, nodes_max) : profile_of(seed, nodes_max);
  Rng rng{seed ^ 0x8cb92ba72f3d8dd7u};
  const auto s = [&](std::uint64_t from, std::uint64_t to) {
    return Duration{1s} * static_cast<std::int64_t>(from + rng.below(to - from + 1));
  };
  p.nodes = std::max<std::uint32_t>(p.nodes, 2 + static_cast<std::uint32_t>(rng.below(4)));
  p.jobs = true;
  p.bad_node = p.stuck_node = p.harmless = p.coordinator_stays = p.only_hosts_end = false;
  p.last_arrives = {};
  p.calm_after = s(50, 100);
  p.deaf_workers = p.wedged_workers = 0;
  const std::uint64_t pairs = p.nodes > 2 && rng.chance(0.3) ? 2 : 1;
  p.only_cuts = rng.chance(0.6);
  if (p.only_cuts) {
    p.faults.clear();
    p.job.faults.clear();
    p.job.crashes_at.clear();
    p.job.writer_crashes_at.clear();
    p.job.crash_at_seal = 0;
    p.worker_faults = false;
    p.slow_messages = 0;
    p.round.nodes_max = p.nodes;
    const std::uint32_t spared = static_cast<std::uint32_t>(std::min<std::uint64_t>(pairs, p.nodes - 1));
    p.round.nodes_min = rng.chance(0.15) ? p.nodes : 1 + static_cast<std::uint32_t>(rng.below(p.nodes - spared));
    p.round.max_restarts = static_cast<std::int32_t>(rng.below(3));
  }
  // In a job as long as these, nodes that run stay with a coordinator that thaws, for ever so long, and newcomers wait where its name leads.
  std::erase(p.faults, FaultKind::coordinator_replaced);
  // Longer than the last cut, and than whoever was excluded stays so.
  if (job) p.job.plan.steps = 40 + rng.below(40), p.step = Duration{1s} * 6 / static_cast<std::int64_t>(p.job.plan.slots());
  else p.step = 1s, p.steps = 300;
  if (job) p.steps = p.job.plan.steps * p.job.plan.slots();
  for (std::uint64_t i = 0; i < pairs; ++i) {
    PairCut cut;
    cut.a = static_cast<std::uint32_t>(rng.below(p.nodes));
    cut.b = (cut.a + 1 + static_cast<std::uint32_t>(rng.below(p.nodes - 1))) % p.nodes;
    cut.one_way = rng.chance(0.4);
    cut.at = rng.chance(0.3) ? Duration{0} : s(1, 40);
    cut.length = rng.chance(0.2) ? s(5, 25) : s(25, 100);
    p.cuts.push_back(cut);
  }
  return p;
}

}  // namespace elrun::sim
