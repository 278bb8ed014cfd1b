// What a job sends lies where peers of its host can read it, in every generation; where it cannot, only time is lost.

#include <sys/mman.h>
#include <sys/wait.h>

#include <numeric>

#include "lib/job/group_peers.hpp"
#include "lib/job/state/arena.hpp"
#include "lib/job/state/paged_arena.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/elastic_world.hpp"

namespace elrun::test {
namespace {

/// One unit, of which a shard is large enough to be read in place.
Program wide(const Plan& plan) {
  return [plan](Job& job, Member& me) {
    job.configure(plan);
    Unit unit = job.unit("wide");
    const auto weights = unit.tensor<float>("weights", {150'000});
    job.seal();
    if (!job.restore()) {
      const auto scope = unit.use();
      weights.set(*normals(job.rng("weights"), weights.size()));
    }
    while (auto step = job.next_step()) {
      for (Slot& slot : step->slots()) {
        const auto scope = unit.use_grad();
        const auto noise = normals(slot.rng(), weights.size());
        const float *const w = weights.data(), *const n = noise->data();
        float* const to = weights.grad();
        for (std::uint64_t i = 0; i < weights.size(); ++i) to[i] += w[i] * 0.1f + n[i] * (static_cast<float>(1u << (i % 17)) * 0x1p-8f);
        slot.report(1.0f, 1);
      }
      (void)step->apply(toy_adamw, toy_options(step->number()));
    }
    me.outcome = job.outcome();
  };
}

std::vector<std::string> warnings(const Member& member) {
  std::vector<std::string> out;
  std::ranges::copy_if(member.lines, std::back_inserter(out),
                       [](const std::string& line) { return line.find("cannot read this one's memory where it lies") != line.npos; });
  return out;
}

Result<SharedBuffer> none(Bytes) { return Failure{Code::exhausted, Remedy::fix_config, "make a memory file: no descriptor is left"}; }

}  // namespace

TEST_CASE("whole weights and sums of gradients are read in place by peers of the host, in every generation", "[job]") {
  const auto undisturbed = run_world({}, toy({.plan = toy_plan(0)}))[0].outcome->state_hash;
  for (const int stage : {0, 1})
    for (const bool comes_back : {false, true}) {
      CAPTURE(stage, comes_back);
      Plan plan = toy_plan(stage, 8, Exchange::per_step);
      plan.overlap = false;
      ElasticWorld world{3, {{Fate::Kind::dies, 1, 14, comes_back}, {Fate::Kind::dies, 0, 16, comes_back}}, toy({.plan = plan})};
      for (const Member& m : world.wait()) {
        INFO((m.failure ? message(*m.failure) : ""));
        if (m.outcome) CHECK(m.outcome->state_hash == undisturbed);
      }
      REQUIRE(world.generations() >= 3);
      for (const auto& [generation, sent] : world.sent()) {
        CAPTURE(generation, sent.in_place, sent.copied);
        CHECK(sent.in_place > 0);
        if (stage == 0 && !comes_back) CHECK(sent.copied == 0);  // else a newcomer gets moments too
      }
    }
}

TEST_CASE("sums that are folded slot by slot are read in place by the ranks that hold what another one folds", "[job]") {
  ElasticWorld world{2, {{Fate::Kind::grows, 0, 60, false}}, toy({.plan = toy_plan(0, 8, Exchange::per_slot)})};
  for (const Member& m : world.wait()) REQUIRE(m.outcome.has_value());
  REQUIRE(world.generations() == 2);
  for (const auto& [generation, sent] : world.sent()) CHECK(sent.in_place > 0);
}

TEST_CASE("ranks need not agree whether they share buffers, and a rank that cannot says so once", "[job]") {
  const auto plan = [](int stage, Exchange exchange) {
    Plan p = toy_plan(stage, 4, exchange);
    p.steps = 3;
    return p;
  };
  const auto alone = run_world({}, wide(plan(0, Exchange::per_step)))[0].outcome.value().state_hash;
  Selection selection;
  for (const auto& [stage, exchange] :
       {std::pair{0, Exchange::per_step}, {1, Exchange::per_step}, {0, Exchange::per_slot}, {2, Exchange::per_slot}})
    for (const bool one_cannot : {false, true}) {
      if (!selection.takes()) continue;
      CAPTURE(stage, one_cannot);
      const auto share = [&](std::uint32_t rank) -> SharedBuffers::Make { return one_cannot && rank == 1 ? none : SharedBuffer::make; };
      const auto members = run_world({.world = 3, .join = join_process_group, .share = share}, wide(plan(stage, exchange)));
      for (std::size_t r = 0; r < members.size(); ++r) {
        INFO((members[r].failure ? message(*members[r].failure) : ""));
        REQUIRE(members[r].outcome.has_value());
        CHECK(members[r].outcome->state_hash == alone);
        CHECK(warnings(members[r]).size() == (one_cannot && r == 1 ? 1 : 0));
      }
    }
}

TEST_CASE("in a forked child there is no memory where its parent's gradients are, and weights are there", "[job]") {
  const Log quiet{"test", [](Level, std::string_view) {}};
  SharedBuffers buffers{SharedBuffer::make, quiet};
  const auto of_child = [](std::optional<SharedBuffer>& memory) {
    const std::span<std::byte> bytes = memory.value().bytes();
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::alarm(60);  // by default it ends the process
      const bool there = ::msync(bytes.data(), 1, MS_ASYNC) == 0;
      // Where nothing is, the child's own memory may come to lie.
      void* const own =
          there ? bytes.data() : ::mmap(bytes.data(), bytes.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      memory.reset();
      ::_exit((there ? 1 : 0) | (::msync(own, 1, MS_ASYNC) == 0 ? 2 : 0) | (own == bytes.data() ? 4 : 0));
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    return WEXITSTATUS(status);
  };
  constexpr std::uint64_t size = 2 * granule * sizeof(float);
  std::optional<SharedBuffer> gradients = buffers.make(size, SharedBuffers::InChildren::absent),
                              weights = buffers.make(size, SharedBuffers::InChildren::present);
  CHECK(of_child(gradients) == 6);
  CHECK(of_child(weights) == 7);
  gradients->bytes()[0] = weights->bytes()[0] = std::byte{7};
}

TEST_CASE("an arena in a shared buffer is that buffer, and lets it go", "[job]") {
  std::optional<SharedBuffer> memory = SharedBuffer::make(Bytes{3 * granule * sizeof(float)}).value();
  const std::byte* const at = memory->bytes().data();
  Arena<float> arena{3 * granule, memory};
  CHECK(reinterpret_cast<const std::byte*>(arena.data()) == at);
  CHECK(arena.size() == 3 * granule);
  const Arena<float> moved = std::move(arena);
  CHECK(reinterpret_cast<const std::byte*>(moved.data()) == at);
  CHECK(moved.shared().has_value());
  PagedArena paged = PagedArena::whole(3 * granule, memory);
  CHECK(paged.held_bytes() == 3 * granule * sizeof(float));
  paged.span()[2] = 7.0f;
  CHECK(moved.span()[2] == 7.0f);
  paged = {};
  CHECK_FALSE(Arena<float>{granule, std::nullopt}.shared().has_value());
}

}  // namespace elrun::test
