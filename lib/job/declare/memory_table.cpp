#include "lib/job/declare/memory_table.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lib/job/declare/assign.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/gradients/leaves.hpp"
#include "lib/job/gradients/summands.hpp"
#include "lib/job/state/update.hpp"

namespace elrun::inline v0 {
namespace {

constexpr double efficiency_least = 0.9;

/// Partial sums that an owner keeps while the leaves of all slots come in, one slot after the other.
std::uint64_t partial_sums(std::uint32_t slots) {
  std::vector<std::uint32_t> all(slots);
  for (std::uint32_t s = 0; s < slots; ++s) all[s] = s;
  const FoldSchedule schedule = fold_schedule(all, slots);
  std::uint64_t depth = 1;
  for (std::uint32_t s = 0; s < slots; ++s)  // a leaf that is added at once to what is there needs no place of its own
    depth = std::max<std::uint64_t>(depth, schedule.buffer[s] + (schedule.merges[s] == 0 ? 1 : 0));
  return depth;
}

/// Of memory in floats: what elements of a final leaf take.
std::uint64_t taken(std::uint64_t elements, DType leaves) { return elements * size_of(leaves) / sizeof(float); }

/// What one rank takes, in floats, for units while they are in use, where it does not hold them for good.
struct UnitsInUse {
  const Layout& layout;
  Cut holds, folds;
  std::uint32_t world, busy;  // ranks, and those of them that have a slot in a micro-step
  bool makes;                 // this one has
  bool per_slot, gathers, overlaps;
  DType leaves;

  [[nodiscard]] static std::uint64_t part_of(const UnitLayout& unit, Cut cut) {
    std::uint64_t out = 0;
    for (const LeafRange& run : runs(unit.trainable, cut)) out += run.end - run.begin;
    return out;
  }
  template <class ElementsOf>
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> two_largest(const ElementsOf& elements_of) const {
    std::pair<std::uint64_t, std::uint64_t> largest{};
    for (const UnitLayout& unit : layout.units) {
      const std::uint64_t count = elements_of(unit);
      if (count > largest.first) largest = {count, largest.first};
      else largest.second = std::max(largest.second, count);
    }
    return largest;
  }
  /// Buffers with what masters round to, and where parts for others are rounded.
  [[nodiscard]] std::uint64_t rounded() const {
    const std::uint64_t unit = two_largest([](const UnitLayout& u) { return u.weights == DType::bf16 ? u.trainable : 0; }).first;
    const std::uint64_t given = gathers ? (world - 1) * largest_part(layout, holds, DType::bf16) : 0;
    return taken((gathers && overlaps ? 2 : 1) * unit + given, DType::bf16);
  }
  [[nodiscard]] std::uint64_t on_host() const {
    const auto weights_of = [&](const UnitLayout& unit) {
      return gathers && unit.weights == DType::f32 ? unit.trainable - part_of(unit, holds) : 0;
    };
    const auto leaf_of = [&](const UnitLayout& unit) { return per_slot && makes ? unit.trainable : 0; };
    const auto parts_of = [&](const UnitLayout& unit, std::uint32_t ranks) { return per_slot ? ranks * part_of(unit, folds) : 0; };
    if (overlaps) {
      // One leaf is made, one waits for the others to take it, and of a third this rank's part waits for theirs.
      const auto weights = two_largest(weights_of), leaf = two_largest(leaf_of);
      const std::uint64_t arriving = two_largest([&](const UnitLayout& unit) { return parts_of(unit, busy); }).first;
      return weights.first + weights.second + leaf.first + taken(leaf.second, leaves) + taken(arriving, leaves) + rounded();
    }
    return two_largest([&](const UnitLayout& unit) {
             const std::uint64_t leaf = leaf_of(unit), arriving = parts_of(unit, busy - (makes ? 1 : 0));
             return std::max(leaf, taken(leaf, leaves) + taken(arriving, leaves)) + weights_of(unit);
           }).first +
           rounded();
  }
  /// Buffers for weights and leaves, all of the largest unit; and one for what ranks that come to their units in the same order give of the unit at hand.
  [[nodiscard]] std::uint64_t on_device() const {
    const std::uint64_t unit = two_largest([](const UnitLayout& u) { return u.trainable; }).first;
    const std::uint64_t parts = world * two_largest([&](const UnitLayout& u) { return part_of(u, folds); }).first;
    const std::uint64_t whole = two_largest([](const UnitLayout& u) { return u.weights == DType::f32 ? u.trainable : 0; }).first;
    const std::uint64_t buffers = (gathers ? whole : 0) + (per_slot && makes ? unit : 0);
    return (overlaps ? 2 : 1) * buffers + (per_slot ? taken(parts, leaves) : 0) + rounded();
  }
};

}  // namespace

std::string weights_in_bf16(const Layout& layout) {
  const auto rounded = std::ranges::count(layout.units, DType::bf16, &UnitLayout::weights);
  return rounded == 0 ? "" : fmt::format(", weights of {} unit(s) in bf16", rounded);
}

std::vector<RankBytes> bytes_by_rank(const Layout& layout, const Placement& placement, Optimizer optimizer, std::uint32_t slots,
                                     std::uint32_t world, std::uint32_t ranks_per_node, Reduce reduce, DType leaves, bool overlap,
                                     DeviceKind where) {
  return bytes_by_rank(layout, placement, shard_map(placement.optimizer, guess_nodes(world, 0, ranks_per_node, 0)), optimizer, slots,
                       reduce, leaves, overlap, where);
}

std::vector<RankBytes> bytes_by_rank(const Layout& layout, const Placement& placement, const ShardMap& shards, Optimizer optimizer,
                                     std::uint32_t slots, Reduce reduce, DType leaves, bool overlap, DeviceKind where) {
  const std::uint32_t world = shards.world();
  const bool per_slot = exchanges_per_slot(placement), gathers = placement.parameters != Sharding::replicated;
  const bool delivers = shards.cuts != shards.folds;
  const Summands tree = summands(assign_slots(slots, world), reduce);
  const bool overlaps = overlap && (per_slot || gathers) && world > 1;
  const bool rounds = leaves == DType::bf16;
  const auto packed_leaves = [&](const FoldSchedule& s) -> std::uint64_t {
    return rounds && world > 1 ? static_cast<std::uint64_t>(std::ranges::count_if(s.nodes, &TreeNode::leaf)) : 0;
  };
  std::uint64_t nodes = 0, single = 0, partials = per_slot ? partial_sums(slots) : 0, frozen = 0;
  if (!per_slot)
    for (const FoldSchedule& schedule : tree.schedules) nodes += schedule.nodes.size(), single += packed_leaves(schedule);
  for (const UnitLayout& unit : layout.units) frozen += unit.size - unit.trainable;
  std::vector<RankBytes> out(world);
  for (std::uint32_t r = 0; r < world; ++r) {
    const auto shard = pieces(layout, shards.folds[r]);
    const std::uint64_t folded = elements(shard), held = elements(pieces(layout, shards.cuts[r]));
    const std::uint32_t busy = std::min(world, slots);
    const UnitsInUse in_use{.layout = layout,
                            .holds = shards.cuts[r],
                            .folds = shards.folds[r],
                            .world = world,
                            .busy = busy,
                            .makes = r < busy,
                            .per_slot = per_slot,
                            .gathers = gathers,
                            .overlaps = overlaps,
                            .leaves = leaves};
    RankBytes& b = out[r];
    b.parameters = gathers ? held + frozen : layout.parameters;
    b.optimizer = moments_of(optimizer).size() * held;
    if (per_slot) {
      b.gradients = partials * folded + (delivers ? held : 0);
    } else {
      const FoldSchedule& schedule = tree.schedules[r];
      b.gradients = std::max(schedule.depth, 1u) * layout.gradients;
      const std::uint64_t own = packed_leaves(schedule), received = single - own;
      b.exchange = (nodes - schedule.nodes.size() - received) * folded + received * taken(folded, leaves) + own * folded;
    }
    b.in_use = where == DeviceKind::host ? in_use.on_host() : in_use.on_device();
    for (std::uint64_t* count : {&b.parameters, &b.gradients, &b.optimizer, &b.exchange, &b.in_use}) *count *= sizeof(float);
  }
  return out;
}

std::uint64_t recut_bytes(const Layout& layout, const Placement& placement, Optimizer optimizer, Cut held, Cut next, DeviceKind where) {
  if (held == next) return 0;
  const auto after = pieces(layout, next);
  const std::uint64_t count = elements(after);
  std::uint64_t parameters = placement.parameters == Sharding::replicated ? 0 : count;
  if (parameters > 0 && where == DeviceKind::host)
    for (const Common& both : common(pieces(layout, held), after)) parameters -= both.a.size();
  return (moments_of(optimizer).size() * count + parameters) * sizeof(float);
}

std::uint64_t recut_bytes(const Layout& layout, const Placement& placement, Optimizer optimizer, std::span<const std::uint32_t> nodes,
                          DeviceKind where) {
  if (nodes.size() < 2) return 0;
  const ShardMap whole = shard_map(placement.optimizer, nodes);
  std::uint64_t most = 0;
  for (const bool first : {true, false}) {
    const ShardMap less = shard_map(placement.optimizer, first ? nodes.subspan(1) : nodes.first(nodes.size() - 1));
    for (std::uint32_t r = 0; r < less.world(); ++r)
      most = std::max(most, recut_bytes(layout, placement, optimizer, whole.cuts[r + (first ? 1 : 0)], less.cuts[r], where));
  }
  return most;
}

std::vector<RankSends> sends_by_rank(const Layout& layout, const Placement& placement, const ShardMap& shards, std::uint32_t slots,
                                     Reduce reduce, DType leaves) {
  const std::uint32_t world = shards.world();
  const bool per_slot = exchanges_per_slot(placement);
  const Summands tree = summands(assign_slots(slots, world), reduce);
  std::vector<std::vector<Piece>> held, folded;
  for (std::uint32_t r = 0; r < world; ++r)
    held.push_back(pieces(layout, shards.cuts[r])), folded.push_back(pieces(layout, shards.folds[r]));
  std::vector<RankSends> out(world);
  for (std::uint32_t r = 0; r < world; ++r) {
    // Of each element that others fold, so many values: floats, and what is still a leaf as the plan has it.
    const auto& nodes = tree.schedules[r].nodes;
    const std::uint64_t single =
        per_slot ? slots / world + (r < slots % world ? 1 : 0) : static_cast<std::uint64_t>(std::ranges::count_if(nodes, &TreeNode::leaf));
    const std::uint64_t sums = per_slot ? 0 : nodes.size() - single;
    for (std::uint32_t other = 0; other < world; ++other) {
      if (other == r) continue;
      out[r].gradients += elements(folded[other]) * (sums * sizeof(float) + single * size_of(leaves));
      for (const Common& both : common(folded[r], held[other])) out[r].sums += both.a.size() * sizeof(float);
      if (const auto given = shards.gives(r, other); given && placement.optimizer != Sharding::replicated)
        for (const Piece& p : pieces(layout, *given))  // whole parameters are exchanged as masters
          out[r].weights +=
              p.size() * (placement.parameters == Sharding::replicated ? sizeof(float) : size_of(layout.units[p.unit].weights));
    }
  }
  return out;
}

ChosenExchange choose_exchange(const Plan& plan, const Layout& layout, const ShardMap& shards, DeviceKind where) {
  const auto with = [&](Exchange exchange) {
    ChosenExchange out{.placement = plan.placement, .bytes = 0, .why = {}};
    out.placement.exchange = exchange;
    if (plan.memory_per_rank == 0) return out;
    for (const RankBytes& b : bytes_by_rank(layout, out.placement, shards, plan.optimizer, static_cast<std::uint32_t>(plan.slots()),
                                            plan.reduce, plan.leaves, plan.overlap, where))
      out.bytes = std::max(out.bytes, b.all());
    return out;
  };
  if (exchanges_per_slot(plan.placement)) return with(Exchange::per_slot);
  const ChosenExchange folds = with(Exchange::per_step);
  const bool may_choose = plan.placement.exchange == Exchange::automatic && plan.reduce == Reduce::exact;
  if (!may_choose || plan.memory_per_rank == 0 || folds.bytes <= plan.memory_per_rank) return folds;
  ChosenExchange streams = with(Exchange::per_slot);
  if (streams.bytes >= folds.bytes) return folds;
  streams.why =
      fmt::format("gradients are exchanged per slot, for with whole ones on every rank a rank would take {} of the {} in memory_per_rank",
                  human_bytes(folds.bytes), human_bytes(plan.memory_per_rank));
  return streams;
}

std::uint64_t memory_checkpoint_bytes(const Layout& layout, Optimizer optimizer, std::span<const std::uint32_t> nodes, DeviceKind where) {
  if (nodes.size() == 1) return 0;
  std::uint64_t most = 0;
  for (const Cut& cut : shard_map(Sharding::mirrored, nodes).cuts) most = std::max(most, elements(pieces(layout, cut)));
  return (where == DeviceKind::host ? 2 : 3) * most * (1 + moments_of(optimizer).size()) * sizeof(float);
}

std::string slots_line(std::uint64_t slots, std::uint32_t world) {
  const std::uint64_t least = slots / world, most = (slots + world - 1) / world;
  return fmt::format("{} slots per step on {} rank(s), {} each, {:.0f} % of the compute", slots, world,
                     least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most),
                     100 * compute_efficiency(slots, world));
}

std::string efficiency_warning(std::uint64_t slots, std::uint32_t world) {
  const double efficiency = compute_efficiency(slots, world);
  if (efficiency >= efficiency_least) return {};
  return fmt::format(
      "{} slots leave {} ranks idle {:.0f} % of the time; a smaller micro_batch makes more slots (4 per rank keep "
      "above 90 %)",
      slots, world, 100 * (1 - efficiency));
}

std::string human_bytes(std::uint64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} B", bytes);
  if (bytes < 10'000'000) return fmt::format("{:.1f} kB", static_cast<double>(bytes) / 1e3);
  if (bytes < 10'000'000'000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

std::string memory_table(const Plan& plan, const std::vector<UnitSpec>& units, std::uint32_t world, std::uint32_t ranks_per_node,
                         DeviceKind where, bool in_memory) {
  const Layout layout = lay_out(units);
  std::uint64_t parameters = 0;
  for (const UnitSpec& unit : units)
    for (const TensorSpec& t : unit.tensors) parameters += element_count(t.shape);
  const bool one_node = ranks_per_node == 0 || ranks_per_node >= world;
  std::string out = fmt::format("{} parameters in {} unit(s), {}{}{}; {}{}\n", parameters, units.size(), name_of(plan.optimizer),
                                weights_in_bf16(layout), plan.leaves == DType::f32 ? "" : ", leaves in bf16",
                                slots_line(plan.slots(), world), one_node ? "" : fmt::format(", {} to a node", ranks_per_node));
  if (const std::string warning = efficiency_warning(plan.slots(), world); !warning.empty()) out += "warning: " + warning + "\n";
  out +=
      "parameters to all: bytes of the rank that holds most; exchange: where sums of other ranks arrive; in use: of the largest unit\n"
      "cut anew: bytes that a rank takes beside these where a loss changes the shards; an elastic job takes them in advance if memory is free; sent: in a step, by the rank that sends most\n";
  out += fmt::format("{:<18}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}\n", "placement", "parameters", "gradients", "optimizer",
                     "exchange", "in use", "all", "cut anew", "sent");
  std::vector<Placement> placements{zero(0), zero(1), zero(2), zero(3)};
  if (!one_node)
    for (const int stage : {2, 3}) placements.push_back(hybrid(zero(stage)));
  if (world > 1)
    for (const int stage : {1, 2, 3}) placements.push_back(mirrored(zero(stage)));
  for (const Placement& placement : placements) {
    Plan placed = plan;
    placed.placement = placement;
    const std::vector<std::uint32_t> nodes = guess_nodes(world, 0, one_node ? world : ranks_per_node, 0);
    const ShardMap shards = shard_map(placement.optimizer, nodes);
    const ChosenExchange chosen = choose_exchange(placed, layout, shards, where);
    const auto ranks = bytes_by_rank(layout, chosen.placement, shards, plan.optimizer, static_cast<std::uint32_t>(plan.slots()),
                                     plan.reduce, plan.leaves, plan.overlap, where);
    const RankBytes most = *std::ranges::max_element(ranks, {}, &RankBytes::all);
    const bool gathers = placement.parameters != Sharding::replicated;
    RankSends sent;
    for (RankSends s :
         sends_by_rank(layout, chosen.placement, shards, static_cast<std::uint32_t>(plan.slots()), plan.reduce, plan.leaves)) {
      if (gathers) sent.weights = std::max(sent.weights, std::exchange(s.weights, 0));
      sent.sums = std::max(sent.sums, s.all());
    }
    out += fmt::format("{:<18}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{}{}{}\n", *name_of(placement), human_bytes(most.parameters),
                       human_bytes(most.gradients), human_bytes(most.optimizer), human_bytes(most.exchange), human_bytes(most.in_use),
                       human_bytes(most.all()), human_bytes(recut_bytes(layout, placement, plan.optimizer, nodes, where)),
                       human_bytes(sent.sums),
                       sent.weights > 0 ? fmt::format("   and {} for each use of all weights", human_bytes(sent.weights)) : "",
                       chosen.why.empty() ? "" : "   exchanged per slot, to take less",
                       plan.memory_per_rank > 0 && most.all() > plan.memory_per_rank ? "   does not fit" : "");
  }
  if (in_memory)
    out += fmt::format(
        "in-memory checkpoints, with zero(1) to zero(3) and hybrid: {} more of each rank's host memory\n",
        human_bytes(memory_checkpoint_bytes(layout, plan.optimizer, guess_nodes(world, 0, one_node ? world : ranks_per_node, 0), where)));
  out.pop_back();
  return out;
}

}  // namespace elrun::inline v0
