// step.audit(): a slot computed twice changes nothing, and a rank that computes something else is named.

#include <set>

#include "lib/job/commit/audit.hpp"
#include "tests/unit/elastic_world.hpp"

namespace elrun::test {
namespace {

/// The toy's program with an audit in every step. `faulty` says of a member and a step whether its gradients are off by one
/// bit there, or what it reports.
struct Audited {
  Plan plan;
  double probability = 1;
  std::function<bool(Member&, std::uint64_t step)> faulty = [](Member&, std::uint64_t) { return false; };
  bool in_loss = false;  ///< What is off is the loss, or the count of tokens, by turns.
};
Program audited(const Audited& options) {
  return [options](Job& job, Member& me) {
    job.configure(options.plan);
    Unit unit = job.unit("u");
    const auto t = unit.tensor<float>("t", {3000});
    job.seal();
    me.steps.clear();
    if (!job.restore()) std::ranges::fill(t.span(), 0.5f);
    while (auto step = job.next_step()) {
      step->audit(options.probability);
      const bool is_faulty = options.faulty(me, step->number());
      for (Slot& slot : step->slots()) {
        const auto scope = unit.use_grad();
        add_toy_gradient({t.grad(), t.size()}, t.span(), slot.samples(), slot.rng(), 1);
        if (is_faulty && !options.in_loss) t.grad()[1234] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(t.grad()[1234]) ^ 1u);
        const bool report = is_faulty && options.in_loss, loss = report && slot.index() % 2 == 0;
        slot.report(toy_loss(slot.samples(), slot.rng()) + (loss ? 1.0f : 0.0f), report && !loss ? 4 : 3);
        ++me.host_state;
      }
      const StepResult r = step->apply(toy_adamw, toy_options(step->number()));
      if (r.decided) me.steps.push_back(r);
    }
    me.outcome = job.outcome();
  };
}

}  // namespace

TEST_CASE("audited or not, in any world: the same losses and the same state", "[audit]") {
  for (const int stage : {0, 1}) {
    const auto plain = run_world({}, audited({.plan = toy_plan(stage), .probability = 0}));
    for (const std::uint32_t world : {1u, 2u, 3u, 5u, 11u})
      for (const double probability : {0.5, 1.0}) {
        const auto members = run_world({.world = world}, audited({.plan = toy_plan(stage), .probability = probability}));
        std::uint64_t slots = 0, audits = 0;
        for (const Member& m : members) {
          INFO((m.failure.has_value() ? message(*m.failure) : "") << " world " << world);
          REQUIRE(m.outcome.has_value());
          CHECK(m.outcome->state_hash == plain[0].outcome->state_hash);
          for (std::size_t s = 0; s < m.steps.size(); ++s) {
            CHECK(m.steps[s].loss == plain[0].steps[s].loss);
            CHECK(m.steps[s].tokens == plain[0].steps[s].tokens);
          }
          slots += m.host_state;
        }
        for (const StepResult& r : members[0].steps) audits += r.audited;
        CHECK(slots == 7 * 8 + audits * std::min(world - 1, 2u));
        CHECK(audits <= (world == 1 ? 0 : 7));
        if (probability == 1) CHECK(audits == (world == 1 ? 0 : 7));
      }
  }
}

TEST_CASE("ranks that audit with different probabilities are told so in their first step, with both", "[audit]") {
  for (const int stage : {0, 1})
    for (const auto& [rarely, often] : {std::pair{0.0, 1.0}, {0.25, 0.5}}) {
      std::atomic<const Member*> chosen{nullptr};
      const auto members = run_world({.world = 3}, [&, rarely = rarely, often = often](Job& job, Member& me) {
        const Member* nobody = nullptr;
        const bool is_other = chosen.compare_exchange_strong(nobody, &me);
        audited({.plan = toy_plan(stage), .probability = is_other ? often : rarely})(job, me);
      });
      const auto other = static_cast<std::size_t>(chosen.load() - members.data());
      for (std::size_t r = 0; r < 3; ++r) {
        REQUIRE(members[r].failure.has_value());
        INFO(message(*members[r].failure));
        CHECK(exit_code(*members[r].failure) == 78);
        CHECK(contains(members[r].failure->what,
                       other == 0 ? fmt::format("in step 1 rank 1 audits with probability {} and rank 0 with {}", rarely, often)
                                  : fmt::format("in step 1 rank {} audits with probability {} and rank 0 with {}", other, often, rarely)));
        CHECK(members[r].steps.empty());
      }
    }
}

TEST_CASE("one bit in one rank's gradients, loss or tokens: two against one name it, and the step is not applied", "[audit]") {
  for (const auto& [world, in_loss] : {std::pair{3u, false}, {4u, false}, {3u, true}}) {
    std::atomic<const Member*> chosen{nullptr};
    const auto members = run_world({.world = world}, audited({.plan = toy_plan(0),
                                                              .faulty =
                                                                  [&](Member& me, std::uint64_t) {
                                                                    const Member* nobody = nullptr;
                                                                    return chosen.compare_exchange_strong(nobody, &me) || chosen == &me;
                                                                  },
                                                              .in_loss = in_loss}));
    const auto culprit = static_cast<std::size_t>(chosen.load() - members.data());
    REQUIRE(members[culprit].failure.has_value());
    const Failure& told = *members[culprit].failure;
    INFO(message(told));
    CHECK(told.code == Code::corrupt);
    CHECK(exit_code(told) == 1);
    CHECK(contains(told.what, fmt::format("so rank {} computed it wrong", culprit)));
    CHECK(contains(told.what, "was not applied"));
    for (const Member& m : members) {
      REQUIRE(m.failure.has_value());
      CHECK(contains(m.failure->what, fmt::format("so rank {} computed it wrong", culprit)));
    }
  }
}

TEST_CASE("of two that differ nobody can tell who is wrong: both are named, and both end", "[audit]") {
  std::atomic<const Member*> chosen{nullptr};
  const auto members =
      run_world({.world = 2}, audited({.plan = toy_plan(1), .faulty = [&](Member& me, std::uint64_t step) {
                                         const Member* nobody = nullptr;
                                         return step == 3 && (chosen.compare_exchange_strong(nobody, &me) || chosen == &me);
                                       }}));
  for (const Member& m : members) {
    REQUIRE(m.failure.has_value());
    INFO(message(*m.failure));
    CHECK(m.failure->code == Code::corrupt);
    CHECK(contains(m.failure->what, "in step 4:"));
    CHECK(contains(m.failure->what, "rank 0 has gradient"));
    CHECK(contains(m.failure->what, "rank 1 has gradient"));
    CHECK(contains(m.failure->what, "nobody can tell"));
    CHECK(m.steps.size() == 3);
  }
}

TEST_CASE("under elrun the others go on without the culprit, to the undisturbed state", "[audit]") {
  const auto plain = run_world({}, audited({.plan = toy_plan(0), .probability = 0}));
  std::atomic<const Member*> chosen{nullptr};
  ElasticWorld world{3, {}, audited({.plan = toy_plan(0), .faulty = [&](Member& me, std::uint64_t step) {
                                       const Member* nobody = nullptr;
                                       return step >= 2 && (chosen.compare_exchange_strong(nobody, &me) || chosen == &me);
                                     }})};
  const auto& members = world.wait();
  std::size_t ended = 0, done = 0;
  for (const Member& m : members) {
    ended += m.failure.has_value();
    if (&m == chosen) {
      REQUIRE(m.failure.has_value());
      CHECK(contains(m.failure->what, "computed it wrong"));
    }
    if (!m.outcome.has_value()) continue;
    ++done;
    CHECK(m.outcome->state_hash == plain[0].outcome->state_hash);
  }
  // In a world of three everybody takes part in every audit, so that nothing of the culprit's reaches the state.
  CHECK(ended == 1);
  CHECK(done == 2);
}

TEST_CASE("where want of memory lets gradients travel in every slot, nothing is audited, and that is said once", "[audit]") {
  Plan plan = toy_plan(1, 32);
  plan.memory_per_rank = 1, plan.overlap = false;  // with it that would take more
  const auto plain = run_world({}, audited({.plan = toy_plan(1, 32), .probability = 0}));
  const auto members = run_world({.world = 2}, audited({.plan = plan}));
  std::size_t told = 0;
  for (const Member& m : members) {
    REQUIRE(m.outcome.has_value());
    CHECK(m.outcome->state_hash == plain[0].outcome->state_hash);
    CHECK(std::ranges::none_of(m.steps, [](const StepResult& r) { return r.audited; }));
    told += static_cast<std::size_t>(
        std::ranges::count_if(m.lines, [](const std::string& line) { return contains(line, "nothing is audited"); }));
  }
  CHECK(told == 1);
}

TEST_CASE("which slot is audited and by whom follows from seed, step and world", "[audit]") {
  const std::vector<std::vector<std::uint32_t>> slots{{0, 1, 2}, {3, 4}, {5}, {}};
  std::set<std::uint32_t> audited_slots, auditors;
  int some = 0;
  for (std::uint64_t step = 0; step < 1000; ++step) {
    const auto audit = choose_audit(7, step, 0.25, slots);
    if (audit != choose_audit(7, step, 0.25, slots)) FAIL("not a function of its arguments");
    CHECK_FALSE(choose_audit(7, step, 0, slots).has_value());
    REQUIRE(choose_audit(7, step, 1, slots).has_value());
    CHECK_FALSE(choose_audit(7, step, 1, {{0, 1, 2, 3, 4, 5}}).has_value());
    CHECK(choose_audit(7, step, 1, {{0}, {1}})->auditors.size() == 1);
    if (!audit) continue;
    ++some;
    audited_slots.insert(audit->slot);
    CHECK(std::ranges::count(slots[audit->owner], audit->slot) == 1);
    REQUIRE(audit->auditors.size() == 2);
    CHECK(std::set<std::uint32_t>{audit->owner, audit->auditors[0], audit->auditors[1]}.size() == 3);
    auditors.insert(audit->auditors.begin(), audit->auditors.end());
  }
  CHECK(some > 200);
  CHECK(some < 300);
  CHECK(audited_slots.size() == 6);
  CHECK(auditors.size() == 4);
}

TEST_CASE("an audit that is asked for wrongly is told so", "[audit]") {
  const auto what = [](const std::function<void(Step&)>& call) {
    const auto members = run_world({}, [&](Job& job, Member&) {
      job.configure(toy_plan(0));
      (void)job.unit("u").tensor<float>("t", {4});
      job.seal();
      (void)job.restore();
      auto step = job.next_step();
      call(*step);
    });
    return members[0].failure.has_value() ? members[0].failure->what : "";
  };
  CHECK(contains(what([](Step& s) { s.audit(1.5); }), "from 0 to 1"));
  CHECK(contains(what([](Step& s) { s.audit(std::numeric_limits<double>::quiet_NaN()); }), "from 0 to 1"));
  CHECK(contains(what([](Step& s) {
                   for (Slot& slot : s.slots()) slot.report(1, 1), s.audit(1);
                 }),
                 "before slots()"));
}

}  // namespace elrun::test
