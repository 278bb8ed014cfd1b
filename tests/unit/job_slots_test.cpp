// Slots, evaluations, and calls of the job that differ between ranks.

#include <atomic>
#include <cmath>
#include <stdexcept>
#include <type_traits>

#include "lib/job/state/update.hpp"
#include "tests/unit/elastic_world.hpp"

namespace elrun::test {
namespace {

static_assert(!std::is_copy_constructible_v<Slot> && !std::is_copy_assignable_v<Slot>);
static_assert(std::is_nothrow_move_constructible_v<Slot>);

/// A job with one small tensor, ready for its first step.
struct Small {
  Job& job;
  Unit unit;
  Tensor<float> weight;
  explicit Small(Job& j, Plan plan = toy_plan(0)) : job{(j.configure(plan), j)}, unit{job.unit("u")}, weight{unit.tensor<float>("w", {9})} {
    job.seal();
    if (!job.restore()) {
      const auto scope = unit.use();
      std::ranges::fill(weight.span(), 1.0f);
    }
  }
  void run_step() {
    auto step = job.next_step();
    for (Slot& slot : step->slots()) slot.report(1, 1);
    (void)step->apply(AdamW{}, {.lr = 0.1f});
  }
};

float loss_of(std::uint64_t sample) { return std::sqrt(static_cast<float>(sample + 2)); }

struct Evaluated {
  Evaluation of_tokens, of_nothing;
};
std::vector<Evaluated> evaluate_nine(std::uint32_t world, int stage) {
  std::vector<Evaluated> out(world);
  std::atomic<std::size_t> next{0};
  const auto members = run_world({.world = world}, [&](Job& job, Member&) {
    Plan plan = toy_plan(stage);
    plan.micro_batch = 2, plan.global_batch = 16;
    Small s{job, plan};
    const auto forward = [](bool tokens) {
      return [tokens](Slot& slot) {
        float sum = 0;
        for (const std::uint64_t sample : slot.samples()) sum += loss_of(sample), slot.add("hits", sample % 3 == 0 ? 1 : 0);
        if (slot.index() == 1) slot.add("in slot 1 alone", 0.1);
        slot.report(sum / static_cast<float>(slot.samples().size()), tokens ? slot.samples().size() : 0);
      };
    };
    out[next++] = {job.evaluate(9, forward(true)), job.evaluate(9, forward(false))};
  });
  for (const Member& m : members) {
    INFO((m.failure ? message(*m.failure) : ""));
    REQUIRE_FALSE(m.failure.has_value());
  }
  return out;
}

/// Tells how long exchanges may wait.
struct Told final : Peers {
  Told(MemoryNet& net, std::uint32_t rank, Duration& limit) : peers{net, rank, std::nullopt}, at_most{limit} {}
  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives) override {
    return peers.exchange(sends, receives);
  }
  void revoke(const Failure& why) override { peers.revoke(why); }
  void wait_at_most(Duration limit) override { at_most = limit; }
  MemoryPeers peers;
  Duration& at_most;
};

}  // namespace

TEST_CASE("an evaluation of 9 samples in slots of 2 is their mean, with one value in every world", "[job]") {
  double mean = 0;
  for (std::uint64_t sample = 0; sample < 9; ++sample) mean += static_cast<double>(loss_of(sample)) / 9;
  const Evaluation first = evaluate_nine(1, 0)[0].of_tokens;
  CHECK(static_cast<double>(first.loss) == Approx(mean).epsilon(1e-6));
  for (const int stage : {0, 3})
    for (const std::uint32_t world : {1u, 2u, 3u, 5u, 7u})
      for (const Evaluated& e : evaluate_nine(world, stage)) {
        CHECK(e.of_tokens.decided);
        CHECK(e.of_tokens.loss == first.loss);
        CHECK(e.of_tokens.tokens == 9);
        CHECK(e.of_nothing.loss == first.loss);  // by samples, where no tokens are reported
        CHECK(e.of_tokens.sum("hits") == 3);
        CHECK(e.of_tokens.sum("in slot 1 alone") == 0.1);
        CHECK(e.of_tokens.sum("misses") == 0);
        CHECK(e.of_tokens.sums == first.sums);
      }
}

TEST_CASE("a loop over slots goes on when its step is gone, as in a loop over job.next_step()->slots()", "[job]") {
  std::uint32_t slots = 0;
  const auto members = run_world({}, [&](Job& job, Member&) {
    Small s{job};
    alignas(Step) std::array<std::byte, sizeof(Step)> memory{};
    Step* const step = std::construct_at(reinterpret_cast<Step*>(memory.data()), *job.next_step());
    Step::Slots loop = step->slots();
    std::destroy_at(step);
    memory.fill(std::byte{0xff});
    for (Slot& slot : loop) slot.report(1, 1), ++slots;
  });
  CHECK_FALSE(members[0].failure.has_value());
  CHECK(slots == 8);
}

TEST_CASE("a mean over tokens weighs slots by what they report, and one without tokens not at all", "[job]") {
  const auto members = run_world({.world = 2}, [](Job& job, Member&) {
    Plan plan = toy_plan(0);
    plan.micro_batch = 1, plan.global_batch = 8;
    Small s{job, plan};
    const Evaluation e = job.evaluate(3, [](Slot& slot) {
      const float losses[] = {1, 4, std::nanf("")};
      const std::uint64_t tokens[] = {3, 1, 0};
      slot.report(losses[slot.index()], tokens[slot.index()]);
    });
    must(e.loss == 1.75f && e.tokens == 4, "the mean is another one");
  });
  for (const Member& m : members) CHECK_FALSE(m.failure.has_value());
}

TEST_CASE("slots that are moved out of the loop keep their samples, and are over", "[job]") {
  const auto members = run_world({}, [](Job& job, Member&) {
    Small s{job};
    auto step = job.next_step();
    std::vector<Slot> kept;
    std::vector<std::vector<std::uint64_t>> seen;
    for (Slot& slot : step->slots()) {
      seen.emplace_back(slot.samples().begin(), slot.samples().end());
      slot.report(1, 1);
      kept.push_back(std::move(slot));
    }
    must(kept.size() == 8, "8 slots are handed out");
    for (std::size_t i = 0; i < kept.size(); ++i)
      must(kept[i].index() == i && std::ranges::equal(kept[i].samples(), seen[i]) && !kept[i].revoked(), "a kept slot is another one");
    kept[0].report(1, 1);
  });
  REQUIRE(members[0].failure.has_value());
  CHECK(contains(members[0].failure->what, "a slot was reported after its end"));
}

TEST_CASE("a slot that is over does not report for the one that is open", "[job]") {
  const auto members = run_world({}, [](Job& job, Member&) {
    Small s{job};
    auto step = job.next_step();
    std::vector<Slot> kept;
    for (Slot& slot : step->slots()) {
      if (!kept.empty()) kept[0].report(1, 1);
      slot.report(1, 1);
      kept.push_back(std::move(slot));
    }
  });
  REQUIRE(members[0].failure.has_value());
  CHECK(contains(members[0].failure->what, "a slot was reported after its end"));
}

TEST_CASE("ranks that make different calls of the job are told which, with 78", "[job]") {
  struct Row {
    const char* what;
    std::function<void(Small&)> call;
    std::vector<const char*> told;
  };
  const std::vector<Row> rows{
      {"evaluate()", [](Small& s) { (void)s.job.evaluate(4, [](Slot& slot) { slot.report(1, 1); }); }, {"evalua", ""}},
      {"verify()", [](Small& s) { (void)verify(s.job); }, {"verify()", ""}}};
  for (const int stage : {0, 1, 3})
    for (const Exchange exchange : {Exchange::automatic, Exchange::per_slot})
      for (const Row& row : rows) {
        std::atomic<int> next{0};
        const auto members = run_world({.world = 3, .elastic = true}, [&](Job& job, Member&) {
          Plan plan = toy_plan(stage, 8, exchange);
          plan.overlap = false;
          Small s{job, plan};
          s.run_step();
          if (next++ == 1) row.call(s);
          for (int i = 0; i < 3; ++i) s.run_step();
        });
        INFO(row.what << ", zero(" << stage << ")" << (exchange == Exchange::per_slot ? " per slot" : ""));
        bool told = false;
        for (const Member& m : members) {
          REQUIRE(m.failure.has_value());
          INFO(message(*m.failure));
          if (m.failure->code != Code::mismatch) continue;  // it heard of it from another one
          CHECK(exit_code(*m.failure) == 78);
          told = true;
          CHECK(contains(m.failure->what, "rank "));
          CHECK((contains(m.failure->what, row.told[0])));
        }
        CHECK(told);
      }
}

TEST_CASE("where a program caught what came out of its evaluation, calls that need that one's end say so", "[job]") {
  const auto said = [](const std::function<void(Small&, std::optional<Step>&)>& then, bool in_step) {
    const auto members = run_world({}, [&](Job& job, Member&) {
      Small s{job};
      s.run_step();
      std::optional<Step> step;
      if (in_step) step = job.next_step();
      try {
        (void)job.evaluate(4, [](Slot&) { throw std::runtime_error{"the test set is away"}; });
      } catch (const std::runtime_error&) {
      }
      then(s, step);
    });
    return members[0].failure ? members[0].failure->what : std::string{"nothing"};
  };
  const char* const why = "was left by an exception";
  for (const bool in_step : {false, true}) {
    CAPTURE(in_step);
    CHECK_THAT(said([](Small& s, auto&) { (void)s.job.evaluate(4, [](Slot& slot) { slot.report(1, 1); }); }, in_step),
               Catch::Contains(why));
    CHECK_THAT(said([](Small& s, auto&) { (void)verify(s.job); }, in_step), Catch::Contains(why));
  }
  CHECK_THAT(said([](Small&, auto& step) { (void)step->slots(); }, true), Catch::Contains(why));
}

TEST_CASE("ranks that evaluate another number of samples are told both", "[job]") {
  std::atomic<std::uint64_t> next{0};
  const auto members = run_world({.world = 2}, [&](Job& job, Member&) {
    Small s{job};
    (void)job.evaluate(4 + next++, [](Slot& slot) { slot.report(1, 1); });
  });
  for (const Member& m : members) {
    REQUIRE(m.failure.has_value());
    CHECK(exit_code(*m.failure) == 78);
    CHECK(contains(m.failure->what, "evaluate(4)"));
    CHECK(contains(m.failure->what, "evaluate(5)"));
  }
}

TEST_CASE("a slot that throws once it is revoked is over like any other: same process, same state, same bits", "[job][elastic]") {
  for (const int stage : {0, 1, 2, 3})
    for (const bool checkpoints : {false, true}) {
      const TemporaryDirectory root;
      CheckpointOptions checkpoint;
      if (checkpoints) checkpoint = {.directory = root.path(), .every = 2};
      const auto undisturbed = run_world({.world = 1}, toy({.plan = toy_plan(stage)}));
      std::atomic<int> thrown{0};
      ToyOptions options{.plan = toy_plan(stage), .checkpoint = checkpoint};
      options.in_slot = [&thrown](Job& job, std::uint64_t step, Slot& slot) {
        const JobHost& host = JobAccess::host(job);
        // In steps 2 and 4 of their first attempt the world ends under the slots.
        if ((step == 2 || step == 4) && host.session.place().membership.generation.number == step / 2)
          host.session.cannot_go_on({Code::generation_over, Remedy::rejoin, "the world changes"});
        if (!slot.revoked()) return;
        ++thrown;
        throw std::runtime_error{"a loader that was cut off"};
      };
      ElasticWorld world{3, {}, toy(options)};
      auto& results = world.wait();
      INFO("zero(" << stage << ")" << (checkpoints ? ", with checkpoints" : ""));
      REQUIRE(results.size() == 3);
      CHECK(thrown >= 2);
      CHECK(world.generations() == 3);
      for (const Member& m : results) {
        INFO((m.failure ? message(*m.failure) : ""));
        REQUIRE(m.outcome.has_value());
        CHECK(m.outcome->state_hash == undisturbed[0].outcome->state_hash);
        CHECK(m.host_state == 7);
        CHECK(m.steps_begun == 7);
      }
      // It kept its state: nothing came from a checkpoint, or began again.
      CHECK(std::ranges::none_of(world.lines(),
                                 [](const std::string& l) { return contains(l, "was lost") || contains(l, "begins the job again"); }));
      CHECK(std::ranges::any_of(world.lines(), [](const std::string& l) { return contains(l, "a loader that was cut off"); }));
    }
}

TEST_CASE("where a loop left its revoked slot, what keeps it from the next generation ends the program", "[job][elastic]") {
  int runs = 0;
  const auto members = run_world({.world = 1, .elastic = true}, [&](Job& job, Member&) {
    ++runs;
    Small s{job};
    while (auto step = job.next_step())
      for (const Slot& slot : step->slots()) {
        auto& session = dynamic_cast<TestSession&>(JobAccess::host(job).session);  // which has no next generation
        session.end({Code::peer_lost, Remedy::rejoin, "the world is lost"});
        must(slot.revoked(), "the slot is revoked");
        break;
      }
  });
  CHECK(runs == 1);
  REQUIRE(members[0].failure.has_value());
  CHECK(contains(members[0].failure->what, "(and before that: the world is lost)"));
  CHECK(std::ranges::none_of(members[0].lines, [](const std::string& l) { return contains(l, "the program runs again"); }));
}

TEST_CASE("a program that asked for a step, runs again and returns has not come to the job's end", "[job][elastic]") {
  /// Its first generation is over in a slot, and there is a second one.
  struct Twice final : Session {
    explicit Twice(const Clock& clock) : shared{clock, {1, {}}}, members{shared.of(Rank{0})} { here.elastic = true; }
    const Place& place() const override { return here; }
    Store& store() override { return *members; }
    void on_generation_over(OnOver call) override { over = std::move(call); }
    void progress(const StepProgress&) override {}
    Result<void> finished(Deadline) override { return {}; }
    Result<void> next_generation(Deadline) override { return ++here.membership.generation.number, Result<void>{}; }
    SharedStore shared;
    std::unique_ptr<Store> members;
    Place here{.membership = {{1, {}}, Rank{0}, WorldSize{1}}};
    OnOver over;
  };
  const SteadyClock clock;
  PosixFiles files;
  Twice session{clock};
  const Log log{"test", [](Level, std::string_view) {}};
  int runs = 0;
  const auto drive = [&] {
    JobAccess::drive({.clock = clock,
                      .files = files,
                      .session = session,
                      .log = log,
                      .out = [](std::string_view) {},
                      .join = [](Session&) -> Result<std::unique_ptr<Peers>> { return std::unique_ptr<Peers>{}; },
                      .must_end = true},
                     [&](Job& job) {
                       Small s{job};
                       if (++runs == 2) return;
                       auto step = job.next_step();
                       for (const Slot& slot : step->slots()) {
                         session.over({Code::peer_lost, Remedy::rejoin, "the world is lost"});
                         throw std::runtime_error{fmt::format("out of slot {}, which is revoked", slot.index())};
                       }
                     });
  };
  CHECK_THROWS_WITH(drive(), Catch::Contains("the program returned at step 0 of 7"));
  CHECK(runs == 2);
}

TEST_CASE("a slot that was revoked is not the first one, for which others wait an hour", "[job][elastic]") {
  MemoryNet net{2};
  std::array<Duration, 2> at_most{}, after_slot{};
  const auto rank_of = [](const Session& session) { return session.place().membership.rank.value(); };
  (void)run_world({.world = 2,
                   .elastic = true,
                   .join = [&](Session& session) -> Result<std::unique_ptr<Peers>> {
                     return std::unique_ptr<Peers>{std::make_unique<Told>(net, rank_of(session), at_most[rank_of(session)])};
                   }},
                  [&](Job& job, Member&) {
                    Small s{job};
                    while (auto step = job.next_step()) {
                      auto& session = dynamic_cast<TestSession&>(JobAccess::host(job).session);  // which has no next generation
                      for (const Slot& slot : step->slots()) {
                        session.end({Code::peer_lost, Remedy::rejoin, "the world is lost"});
                        must(slot.revoked(), "the slot is revoked");
                      }
                      after_slot[rank_of(session)] = at_most[rank_of(session)];
                    }
                  });
  for (const Duration limit : after_slot) CHECK(limit == 1h);
}

TEST_CASE("others are waited for an hour from restore() to the first step, and in evaluations", "[job]") {
  MemoryNet net{2};
  std::array<Duration, 2> at_most{};
  const auto rank_of = [](const Session& session) { return session.place().membership.rank.value(); };
  const auto members = run_world({.world = 2,
                                  .join = [&](Session& session) -> Result<std::unique_ptr<Peers>> {
                                    return std::unique_ptr<Peers>{std::make_unique<Told>(net, rank_of(session), at_most[rank_of(session)])};
                                  }},
                                 [&](Job& job, Member& me) {
                                   const Duration& limit = at_most[JobAccess::rank(job)];
                                   Small s{job};
                                   must(limit == 1h, "after restore()");
                                   bool is_first = true;
                                   while (auto step = job.next_step()) {
                                     for (Slot& slot : step->slots()) {
                                       must(limit == (is_first ? Duration{1h} : Duration{600s}), "in a slot");
                                       is_first = false;
                                       slot.report(1, 1);
                                     }
                                     (void)step->apply(AdamW{}, {.lr = 0.1f});
                                     (void)job.evaluate(6, [&](Slot& slot) {
                                       must(limit == 1h, "in an evaluation");
                                       slot.report(1, 1);
                                     });
                                   }
                                   me.outcome = job.outcome();
                                 });
  for (const Member& member : members) CHECK(member.outcome.has_value());
}

TEST_CASE("what lies on the host can be read when the world is over", "[job][elastic]") {
  std::vector<float> seen(9), read(9);
  (void)run_world({.world = 1, .elastic = true}, [&](Job& job, Member&) {
    Small s{job};
    s.run_step();
    dynamic_cast<TestSession&>(JobAccess::host(job).session).end({Code::peer_lost, Remedy::rejoin, "the world is lost"});
    std::ranges::copy(s.weight.span(), seen.begin());
    s.weight.read(read);
    (void)job.next_step();
  });
  CHECK(seen.front() != 0);
  CHECK(read == seen);
}

TEST_CASE("an exception out of a slot that is not revoked ends the program", "[job][elastic]") {
  const auto program = [](Job& job, Member&) {
    Small s{job};
    auto step = job.next_step();
    for (Slot& slot : step->slots()) {
      (void)slot;
      throw Error{Failure{Code::io, Remedy::exit_process, "the data is gone"}};
    }
  };
  const auto members = run_world({.world = 1, .elastic = true}, program);
  REQUIRE(members[0].failure.has_value());
  CHECK(members[0].failure->what == "the data is gone");
}

TEST_CASE("bias correction counts steps that were skipped, too", "[job]") {
  const auto members = run_world({.world = 2}, [](Job& job, Member&) {
    Plan plan = toy_plan(1);
    plan.steps = 4;
    Small s{job, plan};
    AdamW adamw{.weight_decay = 0};
    float weight = 1, first = 0, second = 0;
    for (std::uint64_t t = 1; auto step = job.next_step(); ++t) {
      for (Slot& slot : step->slots()) {
        const auto scope = s.unit.use_grad();
        std::ranges::fill(s.weight.grad_span(), t == 2 ? std::nanf("") : 0.5f * static_cast<float>(t));
        slot.report(1, 1);
      }
      must(step->apply(adamw, {.lr = 0.1f}).skipped == (t == 2), "step 2 alone is skipped");
      const float gradient = 8 * 0.5f * static_cast<float>(t);
      const UpdateRun run{.size = 1};
      if (t != 2) update({&weight, {&first, &second}, &gradient}, {&run, 1, 1}, step_of(adamw, 0.1f, 0.125f, t));
      must(s.weight.data()[3] == weight, "the weight is another one than that of an update which counts all decided steps");
    }
  });
  for (const Member& m : members) {
    INFO((m.failure ? message(*m.failure) : ""));
    CHECK_FALSE(m.failure.has_value());
  }
}

TEST_CASE("host state is put back when a step is dropped, before the program sees it again", "[job][elastic]") {
  for (const int stage : {0, 1, 3}) {
    std::atomic<int> dropped{0};
    ElasticWorld world{3, {}, [&](Job& job, Member& me) {
                         job.configure(toy_plan(stage));
                         Unit unit = job.unit("u");
                         (void)unit.tensor<float>("w", {9});
                         std::uint64_t begun = 0, slots = 0;
                         job.state("begun", begun), job.state("slots", slots);
                         job.seal();
                         (void)job.restore();
                         std::uint64_t slots_before = 0;
                         std::optional<std::uint64_t> again;
                         while (auto step = job.next_step()) {
                           must(begun == step->number(), "a step that was dropped is counted");
                           if (again == step->number())
                             ++dropped, must(slots == slots_before, "slots of a step that was dropped are counted");
                           slots_before = slots;
                           ++begun;
                           for (Slot& slot : step->slots()) {
                             ++slots;
                             const JobHost& host = JobAccess::host(job);
                             if ((step->number() == 1 || step->number() == 5) &&
                                 host.session.place().membership.generation.number == (step->number() == 1 ? 1u : 2u))
                               host.session.cannot_go_on({Code::generation_over, Remedy::rejoin, "the world changes"});
                             slot.report(1, 1);
                           }
                           again = step->apply(AdamW{}, {.lr = 0.1f}).decided ? std::nullopt : std::optional{step->number()};
                         }
                         me.outcome = job.outcome();
                       }};
    for (const Member& m : world.wait()) CHECK(m.outcome.has_value());
    CHECK(dropped >= 2);
  }
}

TEST_CASE("a model that no machine holds is told before anything is allocated", "[job]") {
  for (const std::uint64_t elements : {std::uint64_t{1} << 33, std::uint64_t{1} << 40, std::uint64_t{1} << 47}) {
    const auto members = run_world({.world = 2, .memory = std::uint64_t{16} << 30}, [&](Job& job, Member&) {
      job.configure(toy_plan(1));
      (void)job.unit("head").tensor<float>("bias", {3});
      (void)job.unit("body").tensor<float>("weight", {elements / 64, 64});
      job.seal();
    });
    for (const Member& m : members) {
      REQUIRE(m.failure.has_value());
      INFO(message(*m.failure));
      CHECK(exit_code(*m.failure) == 78);
      for (const char* part : {"'body/weight' of ", "this machine has 17.2 GB", "plan_table()"}) CHECK(contains(m.failure->what, part));
    }
  }
}

TEST_CASE("while the world stays, the samples of coming slots are known ahead", "[job]") {
  using Ids = std::vector<std::uint64_t>;
  for (const std::uint32_t world : {1u, 3u, 11u}) {
    std::atomic<std::uint64_t> slots{0}, kept{0}, wrong{0};
    const auto members = run_world({.world = world}, [&](Job& job, Member& me) {
      std::vector<Ids> promised;
      std::uint64_t mine = 0;
      ToyOptions options;
      options.plan = toy_plan(0);
      options.in_slot = [&](Job& inside, std::uint64_t, Slot& slot) {
        ++slots;
        kept += mine++ > 0 && !promised.empty() && std::ranges::equal(promised[0], slot.samples());
        promised = inside.samples_ahead(3);
        wrong += promised.size() > 3;
      };
      toy(options)(job, me);
      wrong += !promised.empty();  // after the last slot of the last step
      wrong += !job.samples_ahead(100).empty();
    });
    for (const Member& m : members) REQUIRE(m.outcome.has_value());
    CHECK(wrong == 0);
    CHECK(kept == slots - std::min(world, 8u));  // of each rank's first nothing could be asked before
  }
}

TEST_CASE("in an evaluation, its own coming slots alone are known ahead", "[job]") {
  for (const std::uint32_t world : {1u, 3u}) {
    std::atomic<std::uint64_t> kept{0}, wrong{0}, slots{0};
    const auto members = run_world({.world = world}, [&](Job& job, Member&) {
      job.configure(toy_plan(0));
      (void)job.unit("u").tensor<float>("t", {10});
      job.seal();
      (void)job.restore();
      const auto evaluate = [&] {
        std::vector<std::uint64_t> promised;
        (void)job.evaluate(10, [&](Slot& slot) {
          ++slots;
          kept += std::ranges::equal(promised, slot.samples());
          const auto ahead = job.samples_ahead(3);
          for (const auto& ids : ahead)
            for (const std::uint64_t id : ids) wrong += id >= 10;
          promised = ahead.empty() ? std::vector<std::uint64_t>{} : ahead.front();
          slot.report(0, 1);
        });
        wrong += !promised.empty();  // after its last slot
      };
      evaluate();
      auto step = job.next_step();
      evaluate();
      for (Slot& slot : step->slots()) slot.report(0, 1);
      (void)step->apply(AdamW{}, {});
      evaluate();
    });
    CHECK(wrong == 0);
    CHECK(slots == 3 * 4);
    CHECK(kept == slots - 3 * std::min(world, 4u));  // of each rank's first nothing could be asked before
  }
}

TEST_CASE("a unit that trains and has no use_grad in the first step is named once, and updated all the same", "[job]") {
  const auto run = [](std::uint32_t world, bool uses_head) {
    return run_world({.world = world}, [uses_head](Job& job, Member& me) {
      job.configure(toy_plan(1));
      Unit body = job.unit("body"), head = job.unit("head"), table = job.unit("table");
      const auto weight = body.tensor<float>("weight", {300}), scale = head.tensor<float>("scale", {7});
      (void)table.tensor<float>("fixed", {7}, {.frozen = true});
      job.seal();
      (void)job.restore();
      std::ranges::fill(scale.span(), 1.0f);
      while (auto step = job.next_step()) {
        for (Slot& slot : step->slots()) {
          const auto scope = body.use_grad();
          weight.grad()[0] = 1;
          if (uses_head) (void)head.use_grad();
          slot.report(1, 1);
        }
        (void)step->apply(toy_adamw, {.lr = 0.1f});
      }
      me.host_state = scale.data()[0] < 1.0f ? 1 : 0;
      me.outcome = job.outcome();
    });
  };
  for (const std::uint32_t world : {1u, 3u})
    for (const bool uses_head : {false, true}) {
      CAPTURE(world, uses_head);
      std::size_t told = 0;
      for (const Member& m : run(world, uses_head)) {
        INFO((m.failure ? message(*m.failure) : ""));
        REQUIRE(m.outcome.has_value());
        CHECK(m.host_state == 1);
        told += static_cast<std::size_t>(std::ranges::count_if(m.lines, [](const std::string& l) {
          return contains(l, "no slot of this worker had a use_grad of 'head' in the job's first step");
        }));
        CHECK(std::ranges::none_of(m.lines, [](const std::string& l) { return contains(l, "'table'"); }));
      }
      CHECK(told == (uses_head ? 0 : 1));
    }
}

}  // namespace elrun::test
