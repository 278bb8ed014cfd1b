#include "lib/job/world_setup.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/memory_left.hpp"
#include "lib/job/declare/memory_report.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/recover/loss_needs.hpp"

namespace elrun::inline v0 {

/// By rank, its node, from what this rank knows of its own.
std::vector<std::uint32_t> WorldSetup::guess_my_nodes() const {
  const Place& place = job_.host.session.place();
  return guess_nodes(job_.world.size(), job_.world.rank(), place.local_world, place.local_rank.value());
}

void WorldSetup::require_memory(const Layout& layout) const {
  const std::uint64_t machine = job_.host.memory;
  if (machine == 0) return;
  const std::vector<std::uint32_t> nodes = guess_my_nodes();
  const std::uint64_t checkpoints =
      job_.memory_checkpoints.every() > 0 ? memory_checkpoint_bytes(layout, job_.plan().optimizer, nodes, job_.host.device.kind) : 0;
  if (!job_.shared_buffers.on_host()) {  // a device that has too little says so when it is asked
    if (checkpoints > machine) throw Error{invalid(checkpoints_exceed_machine(checkpoints, machine))};
    return;
  }
  const ShardMap shards = shard_map(job_.plan().placement.optimizer, nodes);
  if (auto why = exceeds_machine(job_.plan(), job_.declared.units(), layout, shards, job_.world.rank(), machine, checkpoints))
    throw Error{invalid(*why)};
}

void WorldSetup::allocate(JobParts* before, Layout layout) {
  if (before != nullptr) {
    before->finish_readers();
    before->scopes.let_go_of_next();
    before->loss_reserve.begin_world(before->state, job_.world.size());
    before->reducer.hand_on(before->loss_reserve.gradients);
    before->reducer = {};  // before the new one
    job_.loss_reserve.continue_from(before->loss_reserve);
    job_.state = std::move(before->state);
  } else {
    job_.state = ModelState{std::move(layout), job_.plan().placement, job_.plan().optimizer, job_.shared_buffers};
  }
  plan_world(shards_of(guess_my_nodes()), std::vector<bool>(job_.world.size(), true));
  if (before == nullptr) job_.state.allocate(job_.shards.mine());
  job_.scopes.begin();
  job_.rounds.begin_anew(job_.declared.unit_count());
  job_.initial_values = InitialValues{job_.declared.unit_count()};
  job_.slot.samples().reserve(job_.plan().micro_batch);
  if (job_.memory().device().kind != DeviceKind::host) job_.losses.emplace(job_.host.device, job_.plan().slots() + 1, job_.host.clock);
}

ShardMap WorldSetup::shards_of(std::span<const std::uint32_t> nodes) const { return shard_map(job_.plan().placement.optimizer, nodes); }

bool WorldSetup::ranks_compute_apart(const ShardMap& shards) const {
  if (job_.memory().device().kind != DeviceKind::host || job_.gathers()) return false;
  return !exchanges_per_slot(choose_exchange(job_.plan(), job_.state.layout(), shards, job_.host.device.kind).placement);
}

void WorldSetup::let_all_compute() {
  plan_world(ShardMap{job_.shards.map}, std::vector<bool>(job_.world.size(), true));
  show_to_peers();
}

void WorldSetup::plan_world(ShardMap wanted, std::vector<bool> computes) {
  const std::uint32_t rank = job_.world.rank();
  if (rank == job_.shards.rank && wanted == job_.shards.map && computes == job_.shards.computes) return;
  job_.shards.map = std::move(wanted);
  job_.shards.rank = rank;
  job_.shards.computes = std::move(computes);
  if (job_.plan().overlap) job_.rounds_memory.overlap();  // before what lies in it
  const auto exchanges = choose_exchanges();
  job_.loss_reserve.begin_world(job_.state, job_.world.size());
  GradientBuffers& buffers = job_.loss_reserve.gradients;
  job_.reducer.hand_on(buffers);
  if (job_.plan().memory_per_rank > 0) buffers.received.clear();  // what is larger than needed was not counted
  job_.reducer = {};                                              // before the new one: memory for both is not there
  job_.reducer = GradientReducer{job_.state.layout(),
                                 job_.shards.map,
                                 rank,
                                 static_cast<std::uint32_t>(job_.plan().slots()),
                                 exchanges,
                                 job_.plan().reduce,
                                 job_.plan().leaves,
                                 job_.shared_buffers,
                                 job_.rounds_memory,
                                 &buffers,
                                 job_.shards.computes};
  job_.state.plan_world(job_.shards.map, rank, job_.reducer.space());
  job_.votes = VoteExchange{job_.reducer.slots_by_rank(), job_.plan().slots(), job_.reducer.norm_nodes(), rank};
  job_.rounds.plan_world(job_.plan().overlap);
  const std::size_t in_use = job_.rounds.overlaps() ? 2 : 1;  // one, and the next one or the last one
  job_.state.make_room(in_use);
  job_.reducer.make_room(in_use);
}

bool WorldSetup::reserves_memory() const {
  return job_.host.session.place().elastic && job_.shared_buffers.on_host() && !job_.host.one_thread && job_.plan().memory_per_rank == 0;
}

std::uint64_t WorldSetup::memory_to_reserve(std::uint64_t to_come) const {
  const std::uint64_t left = memory_to_spare() / job_.host.session.place().local_world;
  return (left - std::min(left, to_come)) / 2;
}

std::uint64_t WorldSetup::checkpoint_room() const {
  if (!reserves_memory()) return 0;
  const std::vector<std::uint32_t> nodes = job_.recovery.nodes();
  const std::uint64_t room = checkpoint_after_a_loss(job_.plan(), job_.state.layout(), nodes, job_.world.rank());
  return room * sizeof(float) <= memory_to_reserve(0) ? room : 0;
}

void WorldSetup::prepare_for_loss() {
  tell_of_reserve();
  if (!reserves_memory()) return;
  if (job_.world.size() < 2 || !job_.loss_reserve.is_due(job_.world.size(), job_.host.clock.now())) return;
  const std::vector<std::uint32_t> nodes = job_.recovery.nodes();
  const LossNeeds needs = needs_after_a_loss(job_.plan(), job_.state.layout(), nodes, job_.world.rank());
  std::uint64_t to_come = 0;
  if (job_.memory_checkpoints.every() > 0) {  // they take more from the second one on
    const std::uint64_t all = memory_checkpoint_bytes(job_.state.layout(), job_.plan().optimizer, nodes);
    to_come = all - std::min(all, job_.memory_checkpoints.memory_bytes());
  }
  const std::uint64_t left = memory_to_reserve(to_come);
  const LossReserve::InUse in_use{.buffers = job_.reducer.is_per_slot() ? 0 : job_.reducer.buffers(),
                                  .room = job_.reducer.room_to_receive()};
  const auto prepared = job_.loss_reserve.prepare(needs, job_.state, in_use, left);
  if (prepared.refused == 0) return tell_of_reserve();  // nothing may have to be made
  if (!job_.world.leads() || std::exchange(told_of_reserve_, true)) return;
  job_.host.log.info(fmt::format(
      "no memory is reserved for a loss, which takes longer for it: {} per rank are needed, and {} may be taken (half of what is free, shared by {} workers)",
      human_bytes(prepared.refused), human_bytes(left), job_.host.session.place().local_world));
}

void WorldSetup::tell_of_reserve() {
  const auto outcome = job_.loss_reserve.take_outcome();
  if (!outcome || !job_.world.leads() || std::exchange(told_of_reserve_, true)) return;
  if (outcome->missing == 0)
    job_.host.log.info(
        fmt::format("{} of this rank's memory are reserved, so that the loss of a worker costs less time", human_bytes(outcome->bytes)));
  else
    job_.host.log.info(fmt::format(
        "a loss takes longer, for {} of the {} that it needs could not be reserved: this rank got no memory for them, or no thread to make it",
        human_bytes(outcome->missing), human_bytes(outcome->bytes + outcome->missing)));
}

void WorldSetup::show_to_peers() {
  job_.shared_buffers.show(job_.world, job_.state.parameters().shared());
  for (const SharedBuffer& memory : job_.reducer.shared()) job_.shared_buffers.show(job_.world, memory);
}

/// Which evaluation of the tree this world has. A change is logged.
GradientReducer::Exchanges WorldSetup::choose_exchanges() {
  const ChosenExchange chosen = choose_exchange(job_.plan(), job_.state.layout(), job_.shards.map, job_.host.device.kind);
  const bool was = job_.is_per_slot(), is = exchanges_per_slot(chosen.placement);
  const auto out = is ? GradientReducer::Exchanges::per_slot : GradientReducer::Exchanges::per_step;
  if (!job_.world.leads()) return out;
  const std::uint64_t most = job_.plan().memory_per_rank;
  if (!chosen.why.empty()) job_.host.log.info(chosen.why);
  else if (was && !is)
    job_.host.log.info(
        fmt::format("gradients are exchanged once per step again: on {} ranks that fits into memory_per_rank", job_.world.size()));
  if (most > 0 && chosen.bytes > most)
    job_.host.log.warning(fmt::format(
        "a rank takes {}, and memory_per_rank is {}: more workers or a higher stage of ZeRO take less, plan_table() says how much",
        human_bytes(chosen.bytes), human_bytes(most)));
  return out;
}

RankBytes WorldSetup::held_bytes() const {
  return {.parameters = job_.state.parameter_bytes(),
          .gradients = job_.reducer.bytes(),
          .optimizer = job_.state.moments_bytes(),
          .exchange = job_.reducer.exchange_bytes(),
          .in_use = job_.state.parameter_bytes_max() - job_.state.parameter_bytes() + job_.reducer.in_use_bytes_max()};
}

void WorldSetup::show_memory() const {
  job_.host.log.info(memory_line(job_.plan(), job_.declared.units(), job_.state.layout(),
                                 {.bytes = held_bytes(), .per_slot = job_.is_per_slot(), .buffers = job_.reducer.buffers()},
                                 job_.world.size()));
  if (const auto line = mirroring_line(job_.plan(), job_.state.layout(), job_.shards.map, guess_my_nodes())) job_.host.log.info(*line);
  if (const std::uint64_t every = job_.memory_checkpoints.every(); every > 0)
    job_.host.log.info(memory_checkpoints_line(job_.plan(), job_.state.layout(), guess_my_nodes(), every, job_.host.device.kind));
  if (const std::string warning = efficiency_warning(job_.plan().slots(), job_.world.size()); !warning.empty())
    job_.host.log.warning(warning);
  if (job_.plan().reduce == Reduce::fast)
    job_.host.log.warning(
        "Reduce::fast: sums follow the number of workers, so the result changes with it and with every failure; "
        "Reduce::exact gives the same bits always");
}

}  // namespace elrun::inline v0
