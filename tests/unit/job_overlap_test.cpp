// What ranks do for each other while they compute: on which thread, to which end, and with which bits.

#include <algorithm>
#include <cfenv>
#include <future>

#include <sys/wait.h>
#include <unistd.h>

#include "lib/job/gather/comm_thread.hpp"
#include "lib/job/gradients/leaf_stream.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/job_world.hpp"

namespace elrun::test {
namespace {

/// Comes true soon; else the test has found something.
template <class Holds>
bool soon(const Holds& holds) {
  for (const auto end = std::chrono::steady_clock::now() + 60s; std::chrono::steady_clock::now() < end;) {
    if (holds()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

/// Peers that tell exchanges on the job's thread from those on another.
class WatchedPeers final : public Peers {
 public:
  struct Watch {
    std::atomic<std::uint64_t> elsewhere{0};  // exchanges that are over
    std::atomic<bool> fails_elsewhere{false};
    std::atomic<bool> has_failed{false};
  };
  WatchedPeers(MemoryNet& net, std::uint32_t rank, Watch& watch) : net_{net}, rank_{rank}, watch_{watch} {}
  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives) override {
    const bool elsewhere = std::this_thread::get_id() != jobs_;
    const auto fail_where_told = [&] {
      if (!elsewhere || !watch_.fails_elsewhere) return;
      watch_.has_failed = true;
      throw std::runtime_error{"no memory on the other thread"};
    };
    fail_where_told();
    auto done = net_.exchange(rank_, sends, receives, false, Call::none);
    fail_where_told();
    watch_.elsewhere += elsewhere;
    return done;
  }
  void revoke(const Failure& why) override { net_.revoke(why); }

 private:
  MemoryNet& net_;
  std::uint32_t rank_;
  Watch& watch_;
  const std::thread::id jobs_ = std::this_thread::get_id();
};

constexpr std::uint64_t unit_size = 3 * granule - 5;
constexpr std::size_t unit_count = 4;

/// Units one after the other, forth and back. `inside(step, unit)` is called in the scopes of the way back.
Program there_and_back(const Plan& plan, const std::function<void(Job&, std::uint64_t, std::size_t)>& inside) {
  return [=](Job& job, Member& me) {
    job.configure(plan);
    std::vector<Unit> units;
    std::vector<Tensor<float>> weights;
    for (std::size_t u = 0; u < unit_count; ++u) {
      units.push_back(job.unit(fmt::format("unit {}", u)));
      weights.push_back(units.back().tensor<float>("w", {unit_size}));
    }
    job.seal();
    if (!job.restore())
      for (std::size_t u = 0; u < unit_count; ++u) {
        const auto scope = units[u].use();
        weights[u].set(*normals(job.rng(fmt::format("unit {}", u)), unit_size));
      }
    while (auto step = job.next_step()) {
      for (Slot& slot : step->slots()) {
        float sum = 0;
        for (std::size_t u = 0; u < unit_count; ++u) {
          const auto scope = units[u].use();
          for (const float w : weights[u].span()) sum += w;
        }
        for (std::size_t u = unit_count; u-- > 0;) {
          const auto scope = units[u].use_grad();
          inside(job, step->number(), u);
          add_gradient(weights[u], slot.rng(), sum * 1e-4f);
        }
        slot.report(sum, 1);
      }
      me.steps.push_back(step->apply(AdamW{}, {.lr = 0.01f}));
    }
    me.outcome = job.outcome();
  };
}

std::vector<Member> run_watched(std::uint32_t world, std::vector<WatchedPeers::Watch>& watches, const Program& program) {
  MemoryNet net{world};
  return run_world({.world = world,
                    .join = [&](Session& session) -> Result<std::unique_ptr<Peers>> {
                      const std::uint32_t rank = session.place().membership.rank.value();
                      return std::unique_ptr<Peers>{std::make_unique<WatchedPeers>(net, rank, watches[rank])};
                    }},
                   program);
}

void same_state(const std::vector<Member>& members, std::uint64_t hash) {
  for (const Member& m : members) {
    INFO((m.failure ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
    CHECK(m.outcome->state_hash == hash);
  }
}

void nothing_inside(Job&, std::uint64_t, std::size_t) {}

/// A world of one rank that hears itself.
struct Alone {
  std::vector<Need> needs{1};
  std::optional<Heard> hear(const Need& said) {
    needs[0] = said;
    return Heard{needs, 0};
  }
};
Duration long_enough() { return 600s; }
constexpr Phase slot_phase{Phase::What::slot, 0, 0};
void ask(CommThread& comm_thread) {
  comm_thread.tell([](PendingRequests& requests) { requests.begin(slot_phase), requests.prefetch(0); });
}

}  // namespace

TEST_CASE("with overlap and without, every world and placement ends in the same state", "[overlap]") {
  const auto hash = run_world({}, there_and_back(toy_plan(0), nothing_inside))[0].outcome->state_hash;
  Selection selection;
  for (const bool overlap : {false, true})
    for (const int stage : {0, 2, 3})
      for (const Exchange exchange : {Exchange::per_step, Exchange::per_slot})
        for (const std::uint32_t world : {2u, 3u, 11u}) {
          if ((stage == 0 && exchange == Exchange::per_step) || !selection.takes()) continue;
          INFO("zero(" << stage << ") on " << world << " ranks, overlap " << overlap << ", per "
                       << (exchange == Exchange::per_slot ? "slot" : "step"));
          Plan plan = toy_plan(stage, 8, exchange);
          plan.overlap = overlap;
          std::vector<WatchedPeers::Watch> watches(world);
          same_state(run_watched(world, watches, there_and_back(plan, nothing_inside)), hash);
          for (const auto& watch : watches)
            if (!overlap) CHECK(watch.elsewhere == 0);
        }
}

TEST_CASE("while a program computes its leaves are handed off, and the weights of the next unit come", "[overlap]") {
  const auto hash = run_world({}, there_and_back(toy_plan(0, 9), nothing_inside))[0].outcome->state_hash;
  for (const auto& [stage, exchange] : {std::pair{2, Exchange::per_slot}, {3, Exchange::per_step}, {3, Exchange::per_slot}}) {
    INFO("zero(" << stage << ")");
    std::vector<WatchedPeers::Watch> watches(3);
    std::vector<std::uint64_t> seen(3);
    const auto computes = [&](Job& job, std::uint64_t step, std::size_t unit) {
      if (step == 0 || unit != 1) return;  // the program's order is known by then
      const std::uint32_t rank = JobAccess::rank(job);
      // Since this was here last other leaves were finished, and other weights prefetched: they may go and come while it waits.
      must(soon([&] { return watches[rank].elsewhere > seen[rank]; }), "nothing happened while the program computed");
      seen[rank] = watches[rank].elsewhere;
    };
    same_state(run_watched(3, watches, there_and_back(toy_plan(stage, 9, exchange), computes)), hash);
  }
}

TEST_CASE("what was guessed wrong is of its own step alone", "[overlap]") {
  // Which units a slot uses, by step: one that is expected does not come, and is the first of the next step.
  const std::vector<std::vector<std::size_t>> orders{{0, 1, 2}, {0, 2}, {1, 0}, {2, 1, 0}};
  const auto train = [&orders](std::uint32_t world) {
    std::vector<WatchedPeers::Watch> watches(world);
    return run_watched(world, watches, [&orders, &watches, world](Job& job, Member& me) {
      Plan plan = toy_plan(3, 2, Exchange::per_step);
      plan.steps = 2 * orders.size();
      job.configure(plan);
      std::vector<Unit> units;
      std::vector<Tensor<float>> weights;
      for (const char* name : {"a", "b", "c"})
        units.push_back(job.unit(name)), weights.push_back(units.back().tensor<float>("w", {unit_size}));
      job.seal();
      (void)job.restore();
      const std::uint32_t rank = JobAccess::rank(job);
      while (auto step = job.next_step()) {
        const auto& order = orders[step->number() % orders.size()];
        for (Slot& slot : step->slots()) {
          const std::uint64_t before = watches[rank].elsewhere;
          for (const std::size_t u : order) {
            const auto scope = units[u].use_grad();
            std::ranges::fill(weights[u].grad_span(), 0.0f);
            add_gradient(weights[u], slot.rng());
            const bool expects_another = world > 1 && order.size() == 2 && u == 0 && order[0] == 0;
            if (expects_another) must(soon([&] { return watches[rank].elsewhere >= before + 2; }), "what is expected does not come");
          }
          slot.report(0, 1);
        }
        me.steps.push_back(step->apply(AdamW{}, {.lr = 0.01f}));
      }
      me.outcome = job.outcome();
    });
  };
  const auto alone = train(1);
  REQUIRE(alone[0].outcome.has_value());
  same_state(train(2), alone[0].outcome->state_hash);
}

TEST_CASE("who is ahead of another rank waits with its leaves, and neither fills its memory with them", "[overlap]") {
  constexpr std::size_t many = 24;
  static_assert(unit_size < 3 * granule);
  // A leaf that is made, one that waits, and of a third this rank's part and the other one's; each may begin and end inside of a page.
  const std::uint64_t most =
      (2 * 3 + 2 * 2 + 4) * std::max<std::uint64_t>(granule * sizeof(float), static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
  std::atomic<std::uint64_t> in_use_max{0};
  const auto members = run_world({.world = 2}, [&](Job& job, Member& me) {
    Plan plan = toy_plan(3, 2, Exchange::per_slot);
    plan.steps = 2;
    job.configure(plan);
    std::vector<Unit> units;
    std::vector<Tensor<float>> weights;
    for (std::size_t u = 0; u < many; ++u)
      units.push_back(job.unit(fmt::format("unit {}", u))), weights.push_back(units.back().tensor<float>("w", {unit_size}));
    job.seal();
    (void)job.restore();
    const bool comes_late = JobAccess::rank(job) == 1;
    while (auto step = job.next_step()) {
      for (Slot& slot : step->slots()) {
        // More rounds than the other one has leaves, in none of which this one hands off any.
        for (int times = 0; comes_late && times < 3; ++times)
          for (Unit& unit : units) (void)unit.use();
        for (std::size_t u = 0; u < many; ++u) {
          const auto scope = units[u].use_grad();
          weights[u].grad()[0] = 1;
        }
        slot.report(0, 1);
      }
      me.steps.push_back(step->apply(AdamW{}, {.lr = 0.01f}));
    }
    const LeafStream& stream = JobAccess::leaf_stream(job);
    for (std::uint64_t seen = in_use_max, mine = stream.bytes_max() - stream.bytes();
         mine > seen && !in_use_max.compare_exchange_weak(seen, mine);) {
    }
    me.outcome = job.outcome();
  });
  for (const Member& m : members) {
    INFO((m.failure ? message(*m.failure) : ""));
    CHECK(m.outcome.has_value());
  }
  CHECK(in_use_max > 0);
  CHECK(in_use_max <= most);
}

// In unit 1's scope the other thread has something to do, or has failed at it: the leaf of unit 2 at least. The use of unit 0 is the next call.
TEST_CASE("what fails on the other thread comes out of the next call", "[overlap]") {
  for (const int stage : {2, 3}) {
    std::vector<WatchedPeers::Watch> watches(2);
    watches[1].fails_elsewhere = true;
    std::atomic<int> thrown = 0;
    const auto program = there_and_back(toy_plan(stage), [&](Job& job, std::uint64_t, std::size_t unit) {
      if (JobAccess::rank(job) == 1 && unit == 1)
        must(soon([&] { return watches[1].has_failed.load(); }), "the other thread has nothing to do");
    });
    const auto members = run_watched(2, watches, [&](Job& job, Member& me) {
      try {
        program(job, me);
      } catch (const Error&) {
        throw;
      } catch (const std::runtime_error& e) {
        ++thrown;
        throw Error{{Code::internal, Remedy::exit_process, e.what()}};
      }
    });
    CHECK(thrown == 1);
    REQUIRE(members[1].failure.has_value());
    CHECK(members[1].failure->what.find("no memory on the other thread") != std::string::npos);
    CHECK_FALSE(members[0].outcome.has_value());
  }
}

// In step 1 the second rank's other thread waits in a round for the first rank, which holds until that can fail; and the second
// one's own thread stays in its program until the first rank's job has ended.
TEST_CASE("what fails on the other thread ends the world at once", "[overlap]") {
  std::vector<WatchedPeers::Watch> watches(2);
  std::atomic<bool> other_ended = false;
  const auto program = there_and_back(toy_plan(2), [&](Job& job, std::uint64_t step, std::size_t unit) {
    if (step != 1) return;
    const std::uint32_t rank = JobAccess::rank(job);
    if (rank == 0 && unit == 2) must(soon([&] { return watches[1].fails_elsewhere.load(); }), "the second rank does not come");
    if (rank != 1 || unit != 1) return;
    watches[1].fails_elsewhere = true;
    must(soon([&] { return watches[1].has_failed.load(); }), "the other thread has nothing to do");
    must(soon([&] { return other_ended.load(); }), "the other rank did not hear of it");
  });
  const auto members = run_watched(2, watches, [&](Job& job, Member& me) {
    try {
      program(job, me);
    } catch (const Error&) {
      if (JobAccess::rank(job) == 0) other_ended = true;
      throw;
    } catch (const std::runtime_error& e) {
      throw Error{{Code::internal, Remedy::exit_process, e.what()}};
    }
  });
  for (const Member& m : members) {
    REQUIRE(m.failure.has_value());
    CHECK(m.failure->what.find("no memory on the other thread") != std::string::npos);
  }
}

TEST_CASE("a round rounds to nearest on either thread, whatever the job's does", "[overlap]") {
  Alone alone;
  std::atomic<int> rounding{-1};
  CommThread comm_thread{{.round =
                              [&](const Need& said) {
                                rounding = std::fegetround();
                                return alone.hear(said);
                              },
                          .over = [] { return false; },
                          .give_up = [](std::string_view) {},
                          .limit = long_enough,
                          .stuck = [] {}}};
  comm_thread.begin_anew(1);
  REQUIRE(std::fesetround(FE_UPWARD) == 0);
  comm_thread.work_alone();
  REQUIRE(std::fesetround(FE_TONEAREST) == 0);
  ask(comm_thread);
  CHECK(soon([&] { return rounding != -1; }));
  CHECK(rounding == FE_TONEAREST);

  const auto is_here = [](const PendingRequests& requests) { return requests.here(0); };
  REQUIRE(comm_thread.until([](PendingRequests&) {}, is_here));
  rounding = -1;
  REQUIRE(std::fesetround(FE_UPWARD) == 0);
  const bool here = comm_thread.until([](PendingRequests& requests) { requests.forget(0), requests.want(0); }, is_here);
  const int after = std::fegetround();
  REQUIRE(std::fesetround(FE_TONEAREST) == 0);
  CHECK(here);
  CHECK(rounding == FE_TONEAREST);
  CHECK(after == FE_UPWARD);  // apply() is to find it
}

TEST_CASE("a communication thread that goes ends its round, and waits for nobody else", "[overlap]") {
  std::promise<void> given_up;
  std::atomic<bool> under_way{false}, ended{false};
  {
    CommThread comm_thread{{.round = [&](const Need&) -> std::optional<Heard> {
                              under_way = true;
                              given_up.get_future().wait_for(60s);
                              ended = true;
                              return std::nullopt;
                            },
                            .over = [] { return false; },
                            .give_up = [&](std::string_view) { given_up.set_value(); },
                            .limit = long_enough,
                            .stuck = [] {}}};
    comm_thread.begin_anew(1);
    comm_thread.work_alone();
    ask(comm_thread);
    REQUIRE(soon([&] { return under_way.load(); }));
  }
  CHECK(ended);
}

TEST_CASE("a round that outlives its deadline ends the world, and one that outlives that is told", "[overlap]") {
  const bool goes_on = GENERATE(false, true);
  INFO("goes on after the world's end: " << goes_on);
  std::atomic<bool> under_way{false}, over{false}, ends{false}, stuck{false};
  CommThread comm_thread{{.round = [&](const Need&) -> std::optional<Heard> {
                            under_way = true;
                            must(soon([&] { return goes_on ? ends.load() : over.load(); }), "the round is not ended");
                            return std::nullopt;
                          },
                          .over = [&] { return over.load(); },
                          .give_up = [&](std::string_view) { over = true; },
                          .limit = [] { return Duration{100ms}; },
                          .stuck = [&] { stuck = true, ends = true; },
                          .ends_within = 200ms}};
  comm_thread.begin_anew(1);
  comm_thread.work_alone();
  ask(comm_thread);
  REQUIRE(soon([&] { return under_way.load(); }));  // on the other thread
  CHECK_FALSE(comm_thread.until([](PendingRequests&) {}, [](const PendingRequests& requests) { return requests.here(0); }));
  CHECK(over);
  if (goes_on) CHECK(stuck);
}

TEST_CASE("ranks wait for each other's programs for eight slots, an hour for the first, and never less than for any exchange",
          "[overlap]") {
  /// Moved by both programs.
  struct Steps final : Clock {
    std::atomic<Duration::rep> time{0};
    [[nodiscard]] Instant now() const override { return Instant{Duration{time.load()}}; }
    [[nodiscard]] std::int64_t wall_ns() const override { return time.load(); }
  };
  struct Told final : Peers {
    Told(MemoryNet& net, std::uint32_t rank, std::atomic<Duration>& limit) : peers{net, rank, std::nullopt}, at_most{limit} {}
    Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives) override {
      return peers.exchange(sends, receives);
    }
    void revoke(const Failure& why) override { peers.revoke(why); }
    void wait_at_most(Duration limit) override { at_most = limit; }
    MemoryPeers peers;
    std::atomic<Duration>& at_most;
  };
  for (const auto& [slot, then] : {std::pair<Duration, Duration>{700s, 5600s}, {10s, 600s}}) {
    Steps clock;
    MemoryNet net{2};
    std::array<std::atomic<Duration>, 2> told{};
    Plan plan = toy_plan(3, 4, Exchange::per_slot);
    plan.overlap = true;
    const auto program = there_and_back(plan, [&](Job& job, std::uint64_t step, std::size_t unit) {
      const std::uint32_t rank = JobAccess::rank(job);
      if (unit != 1) return;
      // The first step's second slot has seen one slot; it may have been longer, for the other one moves this clock as well.
      must(step > 0 ? told[rank].load() >= then : told[rank].load() == 3600s || told[rank].load() >= then, "a rank waits for another time");
      clock.time += slot.count();
    });
    const auto members = run_world({.world = 2,
                                    .join = [&](Session& session) -> Result<std::unique_ptr<Peers>> {
                                      const std::uint32_t rank = session.place().membership.rank.value();
                                      return std::unique_ptr<Peers>{std::make_unique<Told>(net, rank, told[rank])};
                                    },
                                    .clock = &clock},
                                   program);
    for (const Member& m : members) {
      INFO((m.failure ? message(*m.failure) : ""));
      CHECK(m.outcome.has_value());
    }
  }
}

TEST_CASE("a communication thread begins anew when its round is over, and not before", "[overlap]") {
  Alone alone;
  std::promise<void> revoked;
  std::atomic<bool> under_way{false}, over{false}, ended{false};
  CommThread comm_thread{{.round = [&](const Need& said) -> std::optional<Heard> {
                            if (!over) {
                              under_way = true;
                              revoked.get_future().wait_for(60s);
                              std::this_thread::sleep_for(20ms);  // its last look at the old world's memory
                              ended = true;
                              return std::nullopt;
                            }
                            return alone.hear(said);
                          },
                          .over = [&] { return over && !ended; },
                          .give_up = [](std::string_view) {},
                          .limit = long_enough,
                          .stuck = [] {}}};
  comm_thread.begin_anew(1);
  comm_thread.work_alone();
  ask(comm_thread);
  REQUIRE(soon([&] { return under_way.load(); }));
  over = true;
  revoked.set_value();
  comm_thread.begin_anew(1);
  CHECK(ended);
  CHECK(comm_thread.until([](PendingRequests& requests) { requests.begin(slot_phase), requests.want(0); },
                          [](const PendingRequests& requests) { return requests.here(0); }));
}

TEST_CASE("when the world is over nothing is here any more, and a call returns when no round is under way", "[overlap]") {
  Alone alone;
  std::atomic<bool> under_way{false}, over{false}, ended{false};
  CommThread comm_thread{{.round = [&](const Need& said) -> std::optional<Heard> {
                            if (said.gather != 1) return alone.hear(said);
                            under_way = true;
                            (void)soon([&] { return over.load(); });
                            std::this_thread::sleep_for(20ms);  // its last bytes come
                            ended = true;
                            return std::nullopt;
                          },
                          .over = [&] { return over.load(); },
                          .give_up = [](std::string_view) {},
                          .limit = long_enough,
                          .stuck = [] {}}};
  const auto here = [](const PendingRequests& requests) { return requests.here(0); };
  comm_thread.begin_anew(2);
  REQUIRE(comm_thread.until([](PendingRequests& requests) { requests.begin(slot_phase), requests.want(0); }, here));
  comm_thread.work_alone();
  comm_thread.tell([](PendingRequests& requests) { requests.prefetch(1); });
  REQUIRE(soon([&] { return under_way.load(); }));
  over = true;
  comm_thread.tell([](PendingRequests& requests) { requests.forget(0); });  // is not heard
  CHECK_FALSE(comm_thread.until([](PendingRequests& requests) { requests.want(0); }, here));
  CHECK(ended);
}

TEST_CASE("weights that were let go when the world was over are not taken for those that are here", "[overlap]") {
  for (const bool overlap : {false, true}) {
    INFO("overlap " << overlap);
    Plan plan = toy_plan(3);
    plan.overlap = overlap;
    MemoryNet net{2};
    std::array<Session*, 2> sessions{};
    const auto members =
        run_world({.world = 2,
                   .join = [&](Session& session) -> Result<std::unique_ptr<Peers>> {
                     const std::uint32_t rank = session.place().membership.rank.value();
                     sessions[rank] = &session;
                     return std::unique_ptr<Peers>{std::make_unique<MemoryPeers>(net, rank, std::nullopt)};
                   }},
                  [&](Job& job, Member& me) {
                    job.configure(plan);
                    Unit unit = job.unit("unit");
                    Tensor<float> weight = unit.tensor<float>("w", {unit_size});
                    job.seal();
                    (void)job.restore();
                    while (auto step = job.next_step()) {
                      for (Slot& slot : step->slots()) {
                        const auto scope = unit.use_grad();
                        weight.grad()[0] = 1;
                        slot.report(0, 1);
                      }
                      me.steps.push_back(step->apply(AdamW{}, {.lr = 0.01f}));
                    }
                    me.outcome = job.outcome();
                    if (!job.prints()) return;  // serves the other one
                    {
                      const auto scope = unit.use();
                      static_cast<TestSession*>(sessions[0])->end({Code::peer_lost, Remedy::rejoin, "the other node went away"});
                    }
                    const auto scope = unit.use();  // an export that uses a tied unit twice
                    me.lines.emplace_back("used what is not there");
                  });
    REQUIRE(members[0].failure.has_value());
    CHECK(members[0].failure->what.find("cannot be gathered after the last step") != std::string::npos);
    CHECK(members[1].outcome.has_value());
  }
}

TEST_CASE("a program that applies inside its last slot outlives a world that ends over its last leaves", "[overlap]") {
  for (std::uint64_t exchange = 5; exchange < 70; ++exchange) {
    INFO("rank 1 dies in exchange " << exchange);
    const auto members = run_world({.world = 2, .death = WorldOptions::Death{1, exchange}}, [&](Job& job, Member& me) {
      job.configure(toy_plan(2, 4, Exchange::per_slot));
      std::vector<Unit> units;
      std::vector<Tensor<float>> weights;
      for (const char* name : {"a", "b", "c"})
        units.push_back(job.unit(name)), weights.push_back(units.back().tensor<float>("w", {unit_size}));
      job.seal();
      (void)job.restore();
      while (auto step = job.next_step()) {
        std::size_t slots = 0;
        for (Slot& slot : step->slots()) {
          for (std::size_t u = 0; u < units.size(); ++u) {
            const auto scope = units[u].use_grad();
            weights[u].grad()[0] = 1;
          }
          slot.report(0, 1);
          if (++slots < 2) continue;
          me.steps.push_back(step->apply(AdamW{}, {.lr = 0.01f}));
          break;
        }
        if (slots < 2) me.steps.push_back(step->apply(AdamW{}, {.lr = 0.01f}));  // the world is over
      }
      me.outcome = job.outcome();
    });
    REQUIRE(members[0].failure.has_value());
    CHECK(members[0].failure->code == Code::peer_lost);
  }
}

TEST_CASE("a forked child may destroy what has a thread in its parent", "[overlap]") {
  Alone alone;
  std::atomic<bool> heard{false};
  std::optional<CommThread> comm_thread;
  comm_thread.emplace(CommThreadTasks{.round =
                                          [&](const Need& said) {
                                            heard = true;
                                            return alone.hear(said);
                                          },
                                      .over = [] { return false; },
                                      .give_up = [](std::string_view) {},
                                      .limit = long_enough,
                                      .stuck = [] {}});
  comm_thread->begin_anew(1);
  comm_thread->work_alone();
  ask(*comm_thread);
  REQUIRE(soon([&] { return heard.load(); }));
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(60);  // by default it ends the process
    comm_thread.reset();
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

}  // namespace elrun::test
