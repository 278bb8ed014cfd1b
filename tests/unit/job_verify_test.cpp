// Proof at hand: spoilt memory is found, and the rank and tensor are named.

#include "lib/job/commit/verdict.hpp"
#include "tests/unit/job_world.hpp"

namespace elrun::test {
namespace {

/// The first of a world's members to come here plays the faulty rank; which rank that is, its place among them says.
class Faulty {
 public:
  bool is(const Member& me) {
    const Member* nobody = nullptr;
    return chosen_.compare_exchange_strong(nobody, &me) || chosen_ == &me;
  }
  [[nodiscard]] std::uint32_t rank(const std::vector<Member>& members) const {
    return static_cast<std::uint32_t>(chosen_.load() - members.data());
  }

 private:
  std::atomic<const Member*> chosen_{nullptr};
};

void flip(float& x) { x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^ 1u); }

/// Three steps of a model with a frozen tensor; then `spoil` on the faulty rank, and what verify() says on each.
struct Verified {
  std::vector<Member> members;
  std::vector<Verification> found;
  std::uint32_t faulty = 0;
};
Verified verified(std::uint32_t world, int stage, const std::function<void(Job&, std::span<const Tensor<float>>)>& spoil) {
  Verified out;
  Faulty faulty;
  std::mutex mutex;
  out.members = run_world({.world = world}, [&](Job& job, Member& me) {
    Plan plan = toy_plan(stage);
    plan.steps = 3;
    job.configure(plan);
    Unit a = job.unit("a"), b = job.unit("b");
    const std::vector<Tensor<float>> tensors{a.tensor<float>("first", {700}), a.tensor<float>("fixed", {33}, {.frozen = true}),
                                             a.tensor<float>("second", {40, 50}), b.tensor<float>("third", {9})};
    job.seal();
    if (!job.restore())
      for (const auto& t : tensors) std::ranges::fill(t.span(), 0.5f);
    while (auto step = job.next_step()) {
      for (Slot& slot : step->slots()) {
        const auto scope_a = a.use_grad(), scope_b = b.use_grad();
        for (const std::size_t t : {0u, 2u, 3u})
          for (std::uint64_t i = 0; i < tensors[t].size(); ++i) tensors[t].grad()[i] = slot.rng().normal(i);
        slot.report(1, 1);
      }
      step->apply(AdamW{}, {.lr = 0.1f});
    }
    if (spoil && faulty.is(me)) spoil(job, tensors);
    Verification found = verify(job);
    me.outcome = job.outcome();
    const std::lock_guard lock{mutex};
    out.found.push_back(std::move(found));
  });
  if (spoil) out.faulty = faulty.rank(out.members);
  return out;
}

}  // namespace

TEST_CASE("a world whose members are alike is told so, with the state hash of its outcome", "[verify]") {
  for (const int stage : {0, 1})
    for (const std::uint32_t world : {1u, 2u, 3u, 11u}) {
      const Verified v = verified(world, stage, {});
      REQUIRE(v.found.size() == world);
      for (const Verification& found : v.found) {
        CHECK(found.decided);
        CHECK_FALSE(found.difference.has_value());
        CHECK(found.compared == (stage == 0 ? 4 + 2 * 3 : 4));
        CHECK(found.state_hash == v.members[0].outcome->state_hash);
      }
    }
}

TEST_CASE("one flipped bit in one rank's memory is found, and rank, tensor and kind are named", "[verify]") {
  struct Row {
    const char *tensor, *kind;
    std::function<void(Job&, std::span<const Tensor<float>>)> spoil;
  };
  const std::vector<Row> rows{
      {"a/second", "param", [](Job&, auto tensors) { flip(tensors[2].data()[1999]); }},
      {"a/fixed", "param", [](Job&, auto tensors) { flip(tensors[1].data()[0]); }},
      {"b/third", "param", [](Job&, auto tensors) { flip(tensors[3].data()[8]), flip(tensors[3].data()[0]); }},
      {"a/first", "param", [](Job&, auto tensors) { std::swap(tensors[0].data()[2], tensors[0].data()[5]); }},
      {"a/first", "exp_avg", [](Job& job, auto) { flip(JobAccess::moment(job, 0)[699]); }},
      {"b/third", "exp_avg_sq", [](Job& job, auto) { flip(JobAccess::moment(job, 1)[3072]); }}};  // a has three granules
  for (const Row& row : rows)
    for (const std::uint32_t world : {2u, 3u, 5u}) {
      const Verified v = verified(world, 0, row.spoil);
      REQUIRE(v.found.size() == world);
      for (const Verification& found : v.found) {
        REQUIRE(found.difference.has_value());
        INFO(found.difference->what);
        CHECK(found.difference->tensor == row.tensor);
        CHECK(found.difference->kind == row.kind);
        CHECK(found.difference->outvoted == (world > 2));
        CHECK(found.difference->rank == Rank{world > 2 ? v.faulty : 1u});
        CHECK(found.difference->what.find(row.tensor) != std::string::npos);
      }
    }
}

TEST_CASE("where moments are sharded, whole parameters are still compared", "[verify]") {
  const Verified v = verified(3, 1, [](Job&, auto tensors) { flip(tensors[0].data()[0]); });
  for (const Verification& found : v.found) {
    REQUIRE(found.difference.has_value());
    CHECK(found.difference->rank == Rank{v.faulty});
    CHECK(found.difference->tensor == "a/first");
  }
}

TEST_CASE("verify() inside a slot or before restore() is a clear error", "[verify]") {
  const auto what = [](const std::function<void(Job&)>& program) {
    const auto members = run_world({}, [&](Job& job, Member&) {
      job.configure(toy_plan(0));
      (void)job.unit("u").tensor<float>("t", {4});
      job.seal();
      program(job);
    });
    return members[0].failure.has_value() ? members[0].failure->what : "";
  };
  CHECK(what([](Job& job) { (void)verify(job); }) == "verify comes after restore()");
  CHECK(what([](Job& job) {
          (void)job.restore();
          auto step = job.next_step();
          for ([[maybe_unused]] Slot& slot : step->slots()) (void)verify(job);
        }) == "verify is called inside a slot; call it between steps");
}

TEST_CASE("who is wrong: the first who differs from most, or nobody knows", "[verify]") {
  using Numbers = std::vector<std::uint64_t>;
  CHECK_FALSE(find_mismatch(Numbers{}).has_value());
  CHECK_FALSE(find_mismatch(Numbers{5}).has_value());
  CHECK_FALSE(find_mismatch(Numbers{5, 5, 5}).has_value());
  CHECK(find_mismatch(Numbers{5, 6}) == Mismatch{1, false});
  CHECK(find_mismatch(Numbers{5, 6, 6}) == Mismatch{0, true});
  CHECK(find_mismatch(Numbers{6, 5, 6}) == Mismatch{1, true});
  CHECK(find_mismatch(Numbers{1, 2, 3}) == Mismatch{1, false});
  CHECK(find_mismatch(Numbers{1, 1, 2, 2}) == Mismatch{2, false});
  CHECK(find_mismatch(Numbers{1, 2, 2, 3}) == Mismatch{0, true});
}

}  // namespace elrun::test
