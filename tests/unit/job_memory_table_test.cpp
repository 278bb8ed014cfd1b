// The arithmetic of --plan: known sums, and what the job then really allocates.

#include "lib/job/declare/memory_table.hpp"

#include <bit>
#include "lib/job/declare/assign.hpp"
#include "lib/job/gradients/gradients.hpp"

#include "tests/support/property.hpp"
#include "tests/unit/elastic_world.hpp"

namespace elrun::test {
namespace {

UnitSpec unit(const char* name, std::vector<std::pair<std::uint64_t, bool>> tensors) {
  UnitSpec out{name, {}};
  for (const auto& [size, frozen] : tensors)
    out.tensors.push_back({fmt::format("t{}", out.tensors.size()), DType::f32, {size}, {.frozen = frozen}});
  return out;
}
/// 8 granules that train, and one frozen.
std::vector<UnitSpec> small() { return {unit("a", {{5000, false}, {300, true}}), unit("b", {{2048, false}, {7, false}})}; }
constexpr std::uint64_t granule_bytes = 1024 * sizeof(float);

/// Units of several sizes, two of them with a frozen tensor, used one after the other: a whole model's memory in small.
std::vector<UnitSpec> layers() {
  std::vector<UnitSpec> out;
  for (std::uint64_t u = 0; u < 6; ++u) out.push_back(unit("layer", {{30'000 + 6'000 * (u % 3), false}, {50, false}}));
  for (const std::size_t u : {1u, 4u}) out[u].tensors.push_back({"fixed", DType::f32, {700}, {.frozen = true}});
  for (std::size_t u = 0; u < out.size(); ++u) out[u].name += std::to_string(u);
  return out;
}

/// What one rank of a job really holds.
struct Held {
  RankBytes bytes;
  std::uint32_t rank = 0;
  std::uint64_t shared = 0;
};
std::vector<Held> held(const Plan& plan, std::uint32_t world) {
  std::vector<Held> out(world);
  std::atomic<std::size_t> next{0};
  std::vector<std::uint64_t> shared(world);
  const auto share = [&](std::uint32_t rank) -> SharedBuffers::Make {
    return [&shared, rank](Bytes size) {
      shared[rank] += size.value();
      return SharedBuffer::make(size);
    };
  };
  const auto members = run_world({.world = world, .share = share}, [&](Job& job, Member& me) {
    Held& mine = out[next++];
    job.configure(plan);
    std::vector<Unit> units;
    std::vector<Tensor<float>> first;
    for (const UnitSpec& spec : layers()) {
      units.push_back(job.unit(spec.name));
      for (const TensorSpec& t : spec.tensors) {
        const auto tensor = units.back().tensor<float>(t.name, t.shape, t.options);
        if (&t == spec.tensors.data()) first.push_back(tensor);
      }
    }
    job.seal();
    if (!job.restore())
      for (Unit& u : units) (void)u.use();
    while (auto step = job.next_step()) {
      bool first_slot = true;
      for (Slot& slot : step->slots()) {
        if (std::exchange(first_slot, false)) mine.bytes = JobAccess::held(job);
        for (std::size_t u = 0; u < units.size(); ++u) {
          const auto scope = units[u].use_grad();
          first[u].grad()[0] += 1.0f;
        }
        slot.report(1.0f, 1);
      }
      if (first_slot) mine.bytes = JobAccess::held(job);  // it has no slot
      mine.bytes.in_use = JobAccess::held(job).in_use;
      mine.rank = JobAccess::rank(job);
      (void)step->apply(AdamW{}, {.lr = 0.01f});
    }
    me.outcome = job.outcome();
  });
  for (const Member& m : members) {
    INFO((m.failure ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
  }
  for (Held& h : out) h.shared = shared[h.rank];
  return out;
}

}  // namespace

TEST_CASE("bytes by state of a small model, added up by hand", "[memory]") {
  const Layout layout = lay_out(small());
  REQUIRE(layout.gradients == 8 * 1024);
  REQUIRE(layout.parameters == 9 * 1024);
  const auto of = [&](int stage, std::uint32_t slots, std::uint32_t world, DeviceKind where = DeviceKind::host, bool overlap = false) {
    auto ranks = bytes_by_rank(layout, zero(stage), Optimizer::adamw, slots, world, world, Reduce::exact, DType::f32, overlap, where);
    for (RankBytes& b : ranks)
      for (std::uint64_t* bytes : {&b.parameters, &b.gradients, &b.optimizer, &b.exchange, &b.in_use}) *bytes /= granule_bytes;
    return ranks;
  };
  // Alone: one slot needs one buffer, four need three (two halves, and the second of a half).
  CHECK(of(0, 1, 1) == std::vector<RankBytes>{{9, 8, 16, 0, 0}});
  CHECK(of(0, 4, 1) == std::vector<RankBytes>{{9, 24, 16, 0, 0}});
  // Two ranks with one slot each: half of the model (3 of 5 granules, 2 of 3) comes from the other.
  CHECK(of(0, 2, 2) == std::vector<RankBytes>{{9, 8, 16, 5, 0}, {9, 8, 16, 3, 0}});
  CHECK(of(1, 2, 2) == std::vector<RankBytes>{{9, 8, 10, 5, 0}, {9, 8, 6, 3, 0}});
  // zero(2): one partial sum of the shard; in use the leaf of the larger unit, and the other rank's part of it.
  CHECK(of(2, 2, 2) == std::vector<RankBytes>{{9, 5, 10, 0, 5 + 3}, {9, 3, 6, 0, 5 + 2}});
  // Four ranks for two slots: those without one make no leaf, and get both of the others'.
  CHECK(of(2, 2, 4) == std::vector<RankBytes>{{9, 3, 6, 0, 5 + 2}, {9, 3, 6, 0, 5 + 2}, {9, 2, 4, 0, 2 * 1 + 0}, {9, 0, 0, 0, 0}});
  // zero(3): its shard and what is frozen; in use also the weights that are not its own.
  CHECK(of(3, 2, 2) == std::vector<RankBytes>{{6, 5, 10, 0, 5 + 3 + 2}, {4, 3, 6, 0, 5 + 2 + 3}});
  // On a device a leaf, weights and the parts of all ranks have buffers of the largest unit; with overlap leaves and weights have two.
  CHECK(of(0, 4, 2, DeviceKind::cuda) == of(0, 4, 2));
  CHECK(of(2, 2, 2, DeviceKind::cuda) == std::vector<RankBytes>{{9, 5, 10, 0, 5 + 2 * 3}, {9, 3, 6, 0, 5 + 2 * 2}});
  CHECK(of(3, 2, 2, DeviceKind::cuda) == std::vector<RankBytes>{{6, 5, 10, 0, 5 + 2 * 3 + 5}, {4, 3, 6, 0, 5 + 2 * 2 + 5}});
  CHECK(of(3, 2, 2, DeviceKind::cuda, true) ==
        std::vector<RankBytes>{{6, 5, 10, 0, 2 * 5 + 2 * 3 + 2 * 5}, {4, 3, 6, 0, 2 * 5 + 2 * 2 + 2 * 5}});
}

TEST_CASE("what is worked out for gradients and exchange is what is allocated, in every world", "[memory]") {
  const Layout layout = lay_out(small());
  for (const auto& [reduce, leaves] : {std::pair{Reduce::exact, DType::f32}, {Reduce::exact, DType::bf16}, {Reduce::fast, DType::f32}})
    for (const std::uint32_t slots : {1u, 2u, 3u, 4u, 7u, 8u, 12u, 16u})
      for (std::uint32_t world = 1; world <= 9; ++world) {
        const auto told = bytes_by_rank(layout, zero(0), Optimizer::sgd, slots, world, world, reduce, leaves);
        for (std::uint32_t r = 0; r < world; ++r) {
          const Gradients gradients{
              layout, assign_slots(slots, world), shard_map(Sharding::replicated, std::vector<std::uint32_t>(world)), r, reduce, leaves};
          CAPTURE(slots, world, r);
          CHECK(told[r].gradients == gradients.buffers() * layout.gradients * sizeof(float));
          CHECK(told[r].exchange == gradients.exchange_bytes());
          if (reduce == Reduce::fast) CHECK(gradients.buffers() <= 2);
        }
      }
}

TEST_CASE("what is worked out for a rank is what it holds, in every placement, exchange and world", "[memory]") {
  const Layout layout = lay_out(layers());
  Selection selection;
  for (const int stage : {0, 1, 2, 3})
    for (const Exchange exchange : {Exchange::per_step, Exchange::per_slot})
      for (const auto& [leaves, overlap] : {std::pair{DType::f32, false}, {DType::bf16, false}, {DType::f32, true}, {DType::bf16, true}})
        for (const std::uint32_t world : {1u, 2u, 3u, 5u}) {
          if (!selection.takes()) continue;
          Plan plan = toy_plan(stage, 4, exchange);
          plan.steps = overlap ? 3 : 1, plan.leaves = leaves, plan.overlap = overlap;  // the order of uses is known from the second slot on
          const auto told = bytes_by_rank(layout, plan.placement, plan.optimizer, 4, world, world, plan.reduce, leaves, overlap);
          for (const Held& h : held(plan, world)) {
            CAPTURE(stage, world, h.rank, exchange == Exchange::per_slot, leaves == DType::bf16, overlap);
            const RankBytes& t = told[h.rank];
            CHECK(h.bytes.parameters == t.parameters);
            CHECK(h.bytes.gradients == t.gradients);
            CHECK(h.bytes.optimizer == t.optimizer);
            CHECK(h.bytes.exchange == t.exchange);
            // What peers may read of it, in the place of private memory and not beside it.
            if (exchange == Exchange::per_step) CHECK(h.shared == t.gradients + (stage < 3 ? t.parameters : 0));
            const std::uint64_t pages = world * granule_bytes;  // a part of a leaf in bf16 may end within one
            CHECK(h.bytes.in_use <= t.in_use + t.in_use / 20 + pages);
            // How much of two units' leaves is there at one time depends on who is faster; what is gathered ahead does not.
            const bool is_exact = !overlap || world == 1 || (exchange == Exchange::per_step && h.rank < 4);
            if (is_exact) CHECK(h.bytes.in_use + t.in_use / 20 + pages >= t.in_use);
            CHECK(h.bytes.all() <= t.all() + t.all() / 20);
          }
        }
}

TEST_CASE("a rank takes what the formulas of the stages say, their buffers, two units, and at most 5 % more", "[memory]") {
  std::vector<UnitSpec> model;
  for (int u = 0; u < 24; ++u) model.push_back(unit("u", {{1'500'000, false}, {3'000, false}})), model.back().name += std::to_string(u);
  const Layout layout = lay_out(model);
  const double parameters = 24 * 1'503'000.0, two_units = 2 * 1'503'000.0 * 4;
  for (const std::uint32_t slots : {8u, 16u, 32u})
    for (const std::uint32_t world : {1u, 2u, 4u, 8u}) {
      const double share = parameters / world, partials = std::bit_width(slots), folded = std::bit_width(slots / world);
      const double received = world - 1;  // one node of each other rank, of the shard
      const double formulas[] = {4 * parameters + 4 * parameters * folded + 8 * parameters + 4 * share * received,
                                 4 * parameters + 4 * parameters * folded + 8 * share + 4 * share * received,
                                 4 * parameters + 4 * share * partials + 8 * share + two_units + two_units / 2,
                                 4 * share + 4 * share * partials + 8 * share + two_units + two_units / 2};
      for (const int stage : {0, 1, 2, 3})
        for (const RankBytes& b : bytes_by_rank(layout, zero(stage), Optimizer::adamw, slots, world, world)) {
          CAPTURE(stage, slots, world);
          CHECK(static_cast<double>(b.all()) <= formulas[stage] * 1.05);
        }
    }
}

TEST_CASE("automatic exchange folds where that fits, and takes the other evaluation where it does not", "[memory]") {
  const Layout layout = lay_out(layers());
  Plan plan = toy_plan(1, 8);
  const auto of = [&](Exchange exchange, std::uint32_t world) {
    std::uint64_t most = 0;
    for (const RankBytes& b :
         bytes_by_rank(layout, zero(1, exchange), plan.optimizer, 8, world, world, plan.reduce, plan.leaves, plan.overlap))
      most = std::max(most, b.all());
    return most;
  };
  const auto chosen = [&](std::uint64_t limit, std::uint32_t world, const auto& change) {
    Plan p = plan;
    p.memory_per_rank = limit;
    change(p);
    return choose_exchange(p, layout, shard_map(p.placement.optimizer, guess_nodes(world, 0, world, 0)));
  };
  const auto unchanged = [](Plan&) {};
  for (const std::uint32_t world : {2u, 4u}) {
    const std::uint64_t folded = of(Exchange::per_step, world), streamed = of(Exchange::per_slot, world);
    REQUIRE(streamed < folded);
    CHECK(chosen(0, world, unchanged).placement.exchange == Exchange::per_step);
    CHECK(chosen(folded, world, unchanged).placement.exchange == Exchange::per_step);
    CHECK(chosen(folded, world, unchanged).why.empty());
    for (const std::uint64_t limit : {folded - 1, streamed, streamed / 2}) {  // the last: it takes less, though it does not fit either
      const ChosenExchange c = chosen(limit, world, unchanged);
      CHECK(c.placement.exchange == Exchange::per_slot);
      CHECK(c.bytes == streamed);
      CHECK(c.why.find(human_bytes(folded)) != std::string::npos);
      CHECK(c.why.find(human_bytes(limit)) != std::string::npos);
    }
    CHECK(chosen(1, world, [](Plan& p) { p.placement.exchange = Exchange::per_step; }).placement.exchange == Exchange::per_step);
    CHECK(chosen(1, world, [](Plan& p) { p.reduce = Reduce::fast; }).placement.exchange == Exchange::per_step);
    CHECK(chosen(~std::uint64_t{0}, world, [](Plan& p) { p.placement = zero(2); }).placement.exchange == Exchange::per_slot);
  }
  CHECK(chosen(1, 1, [](Plan& p) { p.placement = zero(0), p.global_batch = p.micro_batch; }).placement.exchange ==
        Exchange::per_step);  // of one slot it takes more
}

TEST_CASE("a limit of memory changes the evaluation from world to world, says so, and changes no bit", "[memory]") {
  const auto undisturbed = run_world({}, toy({.plan = toy_plan(1)}))[0].outcome->state_hash;
  Plan plan = toy_plan(1);
  plan.memory_per_rank = 210'000;  // two ranks would take more, three less
  for (const std::uint32_t world : {1u, 2u, 3u, 8u}) {
    const auto members = run_world({.world = world}, toy({.plan = plan}));
    for (const Member& m : members) {
      INFO((m.failure ? message(*m.failure) : ""));
      REQUIRE(m.outcome.has_value());
      CHECK(m.outcome->state_hash == undisturbed);
    }
    CHECK(std::ranges::any_of(members[0].lines, [](const std::string& l) {
            return l.find("gradients are exchanged per slot, for") != l.npos;
          }) == (world < 3));
  }
  ElasticWorld grows{2, {{Fate::Kind::grows, 0, 50, false}}, toy({.plan = plan})};
  for (const Member& m : grows.wait()) {
    INFO((m.failure ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
    CHECK(m.outcome->state_hash == undisturbed);
  }
  std::string lines;
  for (const std::string& l : grows.lines()) lines += l + "\n";
  INFO(lines);
  CHECK(lines.find("gradients are exchanged per slot, for") != lines.npos);
  CHECK(lines.find("gradients are exchanged once per step again") != lines.npos);
}

TEST_CASE("no stage takes more of what it cuts, and the shards add up", "[memory]") {
  const Layout layout = lay_out(small());
  for (std::uint32_t world = 1; world <= 12; ++world) {
    std::vector<std::vector<RankBytes>> stages;
    for (const int stage : {0, 1, 2, 3}) stages.push_back(bytes_by_rank(layout, zero(stage), Optimizer::adamw, 8, world, world));
    std::uint64_t optimizer = 0;
    for (std::uint32_t r = 0; r < world; ++r) {
      CHECK(stages[1][r].optimizer <= stages[0][r].optimizer);
      CHECK(stages[3][r].parameters <= stages[2][r].parameters);
      optimizer += stages[1][r].optimizer;
    }
    CHECK(optimizer == stages[0][0].optimizer);
  }
}

TEST_CASE("slots that leave ranks idle are told, with what helps", "[memory]") {
  CHECK(slots_line(8, 4) == "8 slots per step on 4 rank(s), 2 each, 100 % of the compute");
  CHECK(slots_line(8, 3) == "8 slots per step on 3 rank(s), 2 to 3 each, 89 % of the compute");
  CHECK(slots_line(2, 5) == "2 slots per step on 5 rank(s), 0 to 1 each, 40 % of the compute");
  CHECK(efficiency_warning(8, 4).empty());
  CHECK(efficiency_warning(9, 10).empty());  // 90 % exactly
  CHECK(efficiency_warning(8, 3).find("8 slots leave 3 ranks idle 11 % of the time") == 0);
}

TEST_CASE("the table has a row per placement, from the job too", "[memory]") {
  std::string text;
  const auto members = run_world({}, [&](Job& job, Member&) {
    Plan plan = toy_plan(0);
    job.configure(plan);
    (void)job.unit("u").tensor<float>("t", {5000});
    text = job.plan_table(3);
  });
  REQUIRE_FALSE(members[0].failure.has_value());
  INFO(text);
  CHECK(text.find("5000 parameters in 1 unit(s), adamw; 8 slots per step on 3 rank(s)") == 0);
  CHECK(text.find("\nwarning: 8 slots leave 3 ranks idle 11 %") != std::string::npos);
  for (const char* row : {"\nzero(0) ", "\nzero(1) ", "\nzero(2) ", "\nzero(3) "}) CHECK(text.find(row) != std::string::npos);
  const auto failure = run_world({}, [](Job& job, Member&) { job.configure(toy_plan(0)), (void)job.plan_table(3); })[0].failure;
  REQUIRE(failure.has_value());
  CHECK(exit_code(*failure) == 78);
}

}  // namespace elrun::test
