// What the next loss needs is known and made before it: the numbers, what becomes of the memory from world to world, and that contents do not depend on it.

#include "lib/job/recover/loss_reserve.hpp"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>

#include <fmt/ranges.h>

#include "lib/job/declare/assign.hpp"
#include "lib/job/recover/loss_needs.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/unit/elastic_world.hpp"
#include "tests/unit/job_parts.hpp"

namespace elrun::test {
namespace {

constexpr std::uint64_t plenty = std::numeric_limits<std::uint64_t>::max();

Plan plan_of(const Placement& placement, std::uint32_t slots_of_step) {
  Plan plan;
  plan.placement = placement;
  plan.micro_batch = 2;
  plan.global_batch = 2 * slots_of_step;
  plan.optimizer = Optimizer::adamw;
  return plan;
}

/// What a rank of that world really takes.
LossNeeds taken(const Plan& plan, const Layout& layout, const std::vector<std::uint32_t>& nodes, std::uint32_t rank, Cut before) {
  const ShardMap shards = shard_map(plan.placement.optimizer, nodes);
  const auto step_slots = static_cast<std::uint32_t>(plan.slots());
  LossNeeds out;
  if (shards.cuts[rank] != before) out.moments = elements(pieces(layout, shards.cuts[rank]));
  if (exchanges_per_slot(plan.placement)) return out;
  const Gradients gradients{layout,     assign_slots(step_slots, static_cast<std::uint32_t>(nodes.size())), shards, rank, plan.reduce,
                            plan.leaves};
  out.whole_gradients = gradients.buffers();
  if (plan.leaves == DType::f32) out.received = gradients.room_to_receive();
  return out;
}

bool are_enough(const LossNeeds& all, const LossNeeds& needed) {
  return all.whole_gradients >= needed.whole_gradients && all.received >= needed.received && all.moments >= needed.moments;
}

std::string text_of(const LossNeeds& needs) { return fmt::format("{} {} {}", needs.whole_gradients, needs.received, needs.moments); }

constexpr std::uint64_t mib = 1 << 18;  // floats

constexpr LossNeeds some_needs{.whole_gradients = 3, .received = mib, .moments = 2 * mib};
constexpr std::uint64_t some_bytes = (4 * mib + mib + 2 * 2 * mib) * sizeof(float);  // of them, less two buffers

using Capacities = std::array<std::vector<std::uint64_t>, 3>;  // of whole gradients, room to receive, moments

/// One rank's part of a job with a model of 1 Mi elements, as far as a reserve knows of it.
struct ReservingRank {
  explicit ReservingRank(SharedBuffers::Make make = {}, std::uint64_t bytes_min = 1, LossReserve::Touch touch = LossReserve::touch_pages)
      : buffers{std::move(make), quiet(), host_memory()},
        state{lay_out({{"a", {{"w", DType::f32, {4 * mib}, {}}}}}), zero(1), Optimizer::adamw, of_state},
        reserve{buffers, bytes_min, std::move(touch)} {
    const ShardMap shards = one_node(Sharding::sharded, 4);
    state.plan_world(shards, 0, Space::gradients);
    state.allocate(shards.cuts[0]);
  }
  /// In a world of so many.
  LossReserve::Prepared begin_to_prepare(std::uint32_t world = 4, const LossNeeds& needs = some_needs, std::uint64_t left = plenty) {
    while (!reserve.is_due(world, Instant{})) continue;
    return reserve.prepare(needs, state, {.buffers = 2, .room = mib / 2}, left);
  }
  LossReserve::Prepared prepare(std::uint32_t world = 4, const LossNeeds& needs = some_needs, std::uint64_t left = plenty) {
    const auto prepared = begin_to_prepare(world, needs, left);
    reserve.await();
    return prepared;
  }
  /// Memory of what is reserved, by kind.
  [[nodiscard]] Capacities capacities() {
    Capacities out;
    const std::array<const std::vector<Arena<float>>*, 3> kinds{&reserve.gradients.whole, &reserve.gradients.received,
                                                                &state.reserved_moments()};
    for (std::size_t i = 0; i < kinds.size(); ++i)
      for (const Arena<float>& arena : *kinds[i]) out[i].push_back(arena.capacity());
    return out;
  }
  SharedBuffers of_state = private_memory(), buffers;
  ModelState state;
  LossReserve reserve;
};

/// Shared buffers are made once it is open.
struct Gate {
  void open() {
    may_go = true;
    may_go.notify_all();
  }
  std::atomic<int> asked{0};
  std::atomic<bool> may_go{false};
};
SharedBuffers::Make behind(std::shared_ptr<Gate> gate) {
  return [gate = std::move(gate)](Bytes size) {
    ++gate->asked;
    gate->asked.notify_all();
    gate->may_go.wait(false);
    return SharedBuffer::make(size);
  };
}

/// While it is there no thread can be started in this process: none is given that much stack.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t all;
    if (::pthread_getattr_default_np(&before_) != 0 || ::pthread_attr_init(&all) != 0) throw std::runtime_error{"no attributes of threads"};
    constexpr std::size_t too_much = std::size_t{1} << 56;
    const bool set = ::pthread_attr_setstacksize(&all, too_much) == 0 && ::pthread_setattr_default_np(&all) == 0;
    ::pthread_attr_destroy(&all);
    if (!set) throw std::runtime_error{"the size of stacks cannot be set"};
  }
  ~NoThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

}  // namespace

TEST_CASE("what a loss needs is enough for the world after it, whoever is lost", "[loss_reserve]") {
  const Layout layout = lay_out(two_units());
  const std::vector<std::vector<std::uint32_t>> worlds{{0, 0},       {0, 1},          {0, 0, 0},          {0, 1, 2},
                                                       {0, 0, 1, 1}, {0, 0, 0, 0, 0}, {0, 0, 1, 1, 2, 2}, {0, 0, 0, 0, 1, 1, 1, 1}};
  for (const Placement& placement : {zero(0), zero(1), zero(2), zero(3), hybrid(zero(1)), mirrored(zero(1)), mirrored(zero(3))})
    for (const std::uint32_t step_slots : {1u, 4u, 7u, 12u})
      for (const DType leaves : {DType::f32, DType::bf16})
        for (const auto& nodes : worlds) {
          Plan plan = plan_of(placement, step_slots);
          plan.leaves = leaves;
          const auto world = static_cast<std::uint32_t>(nodes.size());
          const ShardMap now = shard_map(placement.optimizer, nodes);
          for (std::uint32_t rank = 0; rank < world; ++rank) {
            const LossNeeds needs = needs_after_a_loss(plan, layout, nodes, rank);
            const auto check = [&](const auto& is_lost) {
              std::vector<std::uint32_t> left;
              std::uint32_t mine = 0;
              for (std::uint32_t r = 0; r < world; ++r) {
                if (r == rank) mine = static_cast<std::uint32_t>(left.size());
                if (!is_lost(r)) left.push_back(nodes[r]);
              }
              const LossNeeds needed = taken(plan, layout, left, mine, now.cuts[rank]);
              INFO(*name_of(placement) << ", " << step_slots << " slots, "
                                       << fmt::format("nodes {}, left {}, rank {}", fmt::join(nodes, " "), fmt::join(left, " "), rank)
                                       << ": " << text_of(needs) << " instead of " << text_of(needed));
              CHECK(are_enough(needs, needed));
            };
            for (std::uint32_t lost = 0; lost < world; ++lost) {
              if (lost != rank) check([&](std::uint32_t r) { return r == lost; });
              if (nodes[lost] != nodes[rank]) check([&](std::uint32_t r) { return nodes[r] == nodes[lost]; });
            }
          }
        }
}

TEST_CASE("a loss of replicated state needs no moments, and one worker alone needs nothing", "[loss_reserve]") {
  const Layout layout = lay_out(two_units());
  CHECK(needs_after_a_loss(plan_of(zero(0), 4), layout, std::vector<std::uint32_t>{0}, 0) == LossNeeds{});
  CHECK(needs_after_a_loss(plan_of(zero(0), 4), layout, std::vector<std::uint32_t>(4), 0).moments == 0);
  const LossNeeds cut = needs_after_a_loss(plan_of(zero(2), 4), layout, std::vector<std::uint32_t>(4), 0);
  CHECK(cut == LossNeeds{.whole_gradients = 0, .received = 0, .moments = 5 * granule});  // 14 granules for 3
}

TEST_CASE("an in-memory checkpoint has room for that of the world without one worker", "[loss_reserve]") {
  const Layout layout = lay_out(two_units());
  const Plan plan = plan_of(zero(1), 4);
  for (const std::vector<std::uint32_t>& nodes : {std::vector<std::uint32_t>{0, 0, 0}, {0, 0, 1, 1}, {0, 1, 1, 1}, {0, 1, 2, 3, 4}})
    for (std::uint32_t rank = 0; rank < nodes.size(); ++rank) {
      const std::uint64_t room = checkpoint_after_a_loss(plan, layout, nodes, rank);
      for (std::uint32_t lost = 0; lost < nodes.size(); ++lost) {
        if (lost == rank) continue;
        std::vector<std::uint32_t> left = nodes;
        left.erase(left.begin() + lost);
        const Cut cut = shard_map(Sharding::mirrored, left).cuts[rank - (lost < rank ? 1 : 0)];
        INFO(fmt::format("nodes {}, rank {}, {} is lost", fmt::join(nodes, " "), rank, lost));
        CHECK(room >= 3 * elements(pieces(layout, cut)));
      }
    }
  CHECK(checkpoint_after_a_loss(plan, layout, std::vector<std::uint32_t>(2), 0) == 0);  // one worker makes none
}

TEST_CASE("what a loss needs beyond what the world has is made, and the next world takes it", "[loss_reserve]") {
  for (const SharedBuffers::Make& make : {SharedBuffers::Make{}, SharedBuffers::Make{SharedBuffer::make}}) {
    ReservingRank rank{make};
    const auto prepared = rank.prepare();
    CHECK(prepared.bytes == some_bytes);
    CHECK(prepared.refused == 0);
    CHECK(rank.reserve.gradients.keeps);
    CHECK(rank.capacities() == Capacities{});  // nothing is taken beside a step
    rank.reserve.begin_world(rank.state, 3);
    CHECK(rank.capacities() == Capacities{{{4 * mib}, {mib}, {2 * mib, 2 * mib}}});
    CHECK(rank.reserve.gradients.whole[0].shared().has_value() == static_cast<bool>(make));
    rank.reserve.begin_world(rank.state, 4);
    CHECK(rank.prepare(4, some_needs, 0).bytes == some_bytes);  // it is all there
    rank.reserve.begin_world(rank.state, 3);
    CHECK(rank.capacities() == Capacities{{{4 * mib}, {mib}, {2 * mib, 2 * mib}}});
  }
}

TEST_CASE("a shared buffer that cannot be had is not replaced by private memory in advance", "[loss_reserve]") {
  ReservingRank rank{[](Bytes) -> Result<SharedBuffer> { return Failure{Code::exhausted, Remedy::fix_config, "none"}; }};
  (void)rank.prepare();
  rank.reserve.begin_world(rank.state, 3);
  CHECK(rank.capacities() == Capacities{{{}, {mib}, {2 * mib, 2 * mib}}});
}

TEST_CASE("what is reserved is known once it has been made, and what could not be had is not of it", "[loss_reserve]") {
  constexpr std::uint64_t buffer = 4 * mib * sizeof(float);
  SECTION("all of it") {
    const auto gate = std::make_shared<Gate>();
    ReservingRank rank{behind(gate)};
    (void)rank.begin_to_prepare();
    CHECK_FALSE(rank.reserve.take_outcome().has_value());
    gate->open();
    rank.reserve.await();
    const auto outcome = rank.reserve.take_outcome();
    REQUIRE(outcome.has_value());
    CHECK(outcome->bytes == some_bytes);
    CHECK(outcome->missing == 0);
    CHECK_FALSE(rank.reserve.take_outcome().has_value());  // once
    rank.reserve.begin_world(rank.state, 3);
    rank.reserve.begin_world(rank.state, 4);
    (void)rank.prepare();
    CHECK(rank.reserve.take_outcome().value().bytes == some_bytes);  // nothing had to be made
  }
  SECTION("the system has no memory for a buffer that peers read, or none at all") {
    for (const bool throws : {false, true}) {
      ReservingRank rank{[throws](Bytes) -> Result<SharedBuffer> {
        if (throws) throw std::bad_alloc{};
        return Failure{Code::exhausted, Remedy::fix_config, "none"};
      }};
      (void)rank.prepare();
      const auto outcome = rank.reserve.take_outcome();
      REQUIRE(outcome.has_value());
      const std::uint64_t missing = throws ? some_bytes : buffer;  // where there is none, no more is asked for
      CHECK(outcome->bytes == some_bytes - missing);
      CHECK(outcome->missing == missing);
    }
  }
  SECTION("no thread can be started") {
    ReservingRank rank;
    const NoThreads none;
    (void)rank.begin_to_prepare();
    const auto outcome = rank.reserve.take_outcome();
    REQUIRE(outcome.has_value());
    CHECK(outcome->bytes == 0);
    CHECK(outcome->missing == some_bytes);
  }
  SECTION("none is to be held") {
    ReservingRank rank;
    (void)rank.prepare(4, some_needs, 0);
    CHECK_FALSE(rank.reserve.take_outcome().has_value());
  }
}

TEST_CASE("a job says that memory is reserved once it is there, and not where no thread could be started", "[loss_reserve][elastic]") {
  for (const bool threads : {true, false}) {
    CAPTURE(threads);
    std::optional<NoThreads> none;
    const auto says = [](const Member& me, std::string_view words) {
      return std::ranges::any_of(me.lines, [&](const std::string& line) { return contains(line, words); });
    };
    ElasticWorld world{2, {}, [&](Job& job, Member& me) {
                         Plan plan = toy_plan(0);
                         plan.steps = 200'000;
                         job.configure(plan);
                         auto unit = job.unit("head");
                         auto weights = unit.tensor<float>("weights", {1000});
                         job.seal();
                         if (!job.restore()) std::ranges::fill(weights.span(), 0.5f);
                         while (auto step = job.next_step()) {
                           if (!threads && step->number() == 1 && JobAccess::rank(job) == 0) none.emplace();
                           for (Slot& slot : step->slots()) {
                             const auto scope = unit.use_grad();
                             std::ranges::fill(weights.grad_span(), 1.0f);
                             slot.report(1, 1);
                           }
                           if (says(me, "reserved")) job.stop();
                           (void)step->apply(AdamW{}, {.lr = 1e-3f});
                         }
                         me.outcome = job.outcome();
                       }};
    const Member& leader = world.wait()[0];
    INFO((leader.failure ? message(*leader.failure) : ""));
    REQUIRE(leader.outcome.has_value());
    CHECK(says(leader, "are reserved, so that") == threads);
    CHECK(says(leader, "could not be reserved") == !threads);
  }
}

TEST_CASE("where too little memory is left nothing is reserved, and what was is given back", "[loss_reserve]") {
  ReservingRank rank;
  CHECK(rank.prepare(4, some_needs, some_bytes - 1).refused == some_bytes);
  CHECK_FALSE(rank.reserve.gradients.keeps);
  rank.reserve.begin_world(rank.state, 4);
  CHECK(rank.prepare(4, some_needs, some_bytes).bytes == some_bytes);
  rank.reserve.begin_world(rank.state, 4);
  const LossNeeds more{.whole_gradients = 3, .received = mib, .moments = 3 * mib};
  const auto refused = rank.prepare(4, more, 2 * 3 * mib * sizeof(float) - 1);
  CHECK(refused.bytes == 0);
  CHECK(refused.refused == some_bytes + 2 * mib * sizeof(float));
  CHECK(rank.capacities() == Capacities{});
  CHECK_FALSE(rank.reserve.gradients.keeps);
  ReservingRank small{{}, some_bytes + 1};
  const auto too_little = small.prepare();
  CHECK(too_little.bytes + too_little.refused == 0);
  small.reserve.begin_world(small.state, 3);
  CHECK(small.capacities() == Capacities{});
}

TEST_CASE("what a larger world does not need is given back, and so is what is more than twice as large", "[loss_reserve]") {
  ReservingRank rank;
  (void)rank.prepare(4);
  rank.reserve.begin_world(rank.state, 3);
  rank.reserve.begin_world(rank.state, 4);  // a successor came
  CHECK(rank.capacities() == Capacities{{{4 * mib}, {mib}, {2 * mib, 2 * mib}}});
  rank.reserve.begin_world(rank.state, 5);
  CHECK(rank.capacities() == Capacities{{{4 * mib}, {}, {}}});
  (void)rank.prepare(5);
  rank.reserve.begin_world(rank.state, 5);
  const LossNeeds less{.whole_gradients = 3, .received = mib / 2 + granule, .moments = mib - granule};
  (void)rank.prepare(5, less);
  rank.reserve.begin_world(rank.state, 5);
  CHECK(rank.capacities() == Capacities{{{4 * mib}, {mib}, {mib - granule, mib - granule}}});
}

TEST_CASE("in a smaller world it is time to look after a minute, and in any other one in its third step", "[loss_reserve]") {
  ManualClock clock;
  ReservingRank rank;
  const auto is_due = [&](std::uint32_t world) { return rank.reserve.is_due(world, clock.now()); };
  CHECK_FALSE((is_due(4) || is_due(4)));
  CHECK(is_due(4));
  CHECK_FALSE((is_due(4) || is_due(4) || is_due(4) || is_due(4)));  // once in a world
  rank.reserve.begin_world(rank.state, 3);
  CHECK_FALSE((is_due(3) || is_due(3) || is_due(3)));
  clock.advance(59s);
  CHECK_FALSE(is_due(3));
  clock.advance(1s);
  CHECK(is_due(3));
  rank.reserve.begin_world(rank.state, 4);
  CHECK_FALSE((is_due(4) || is_due(4)));
  CHECK(is_due(4));
}

TEST_CASE("nobody waits for what is being made when the world grew, or the job ended", "[loss_reserve]") {
  const auto gate = std::make_shared<Gate>();
  ReservingRank rank{behind(gate)};
  (void)rank.begin_to_prepare(4);
  gate->asked.wait(0);
  rank.reserve.begin_world(rank.state, 5);
  CHECK(rank.capacities() == Capacities{});
  {
    ReservingRank ends{behind(gate)};
    (void)ends.begin_to_prepare(4);
    gate->asked.wait(1);
  }
  (void)rank.begin_to_prepare(5);
  gate->asked.wait(2);
  gate->open();
  rank.reserve.begin_world(rank.state, 4);  // a loss waits for it
  CHECK(rank.capacities() == Capacities{{{4 * mib}, {mib}, {2 * mib, 2 * mib}}});
}

TEST_CASE("once a world is over nothing is made but the shared buffer that was begun, and private memory is there without its pages",
          "[loss_reserve]") {
  const LossNeeds needs{.whole_gradients = 4, .received = 64 * mib, .moments = 64 * mib};
  SECTION("while a shared buffer is made") {
    const auto gate = std::make_shared<Gate>();
    std::atomic<int> touched = 0;
    ReservingRank rank{behind(gate), 1, [&](std::span<std::byte>) { ++touched; }};
    (void)rank.begin_to_prepare(4, needs);
    gate->asked.wait(0);
    rank.reserve.stop_making();
    gate->open();
    rank.reserve.begin_world(rank.state, 3);
    CHECK(gate->asked == 1);
    CHECK(touched == 0);
    CHECK(rank.capacities() == Capacities{{{4 * mib}, {64 * mib}, {64 * mib, 64 * mib}}});
  }
  SECTION("while pages are touched") {
    const auto gate = std::make_shared<Gate>();
    std::atomic<std::size_t> touched = 0;
    ReservingRank rank{{}, 1, [&](std::span<std::byte> pages) {
                         touched += pages.size();
                         ++gate->asked;
                         gate->asked.notify_all();
                         gate->may_go.wait(false);
                       }};
    (void)rank.begin_to_prepare(4, needs);
    gate->asked.wait(0);
    rank.reserve.stop_making();
    gate->open();
    rank.reserve.begin_world(rank.state, 3);
    CHECK(gate->asked == 1);
    CHECK(touched <= 16 << 20);
    CHECK(rank.capacities() == Capacities{{{4 * mib, 4 * mib}, {64 * mib}, {64 * mib, 64 * mib}}});
  }
}

TEST_CASE("a forked child ends while its parent's reserve is being made", "[loss_reserve]") {
  const auto gate = std::make_shared<Gate>();
  auto rank = std::make_unique<ReservingRank>(behind(gate));
  (void)rank->begin_to_prepare();
  gate->asked.wait(0);
  const pid_t child = ::fork();
  if (child == 0) {
    rank.reset();
    ::_exit(0);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  gate->open();
  rank->reserve.await();
}

TEST_CASE("a job that goes on in another one's process has its reserve", "[loss_reserve]") {
  ReservingRank before, after;
  (void)before.prepare();
  before.reserve.begin_world(before.state, 3);
  const float* const buffer = before.reserve.gradients.whole[0].data();
  after.reserve.continue_from(before.reserve);
  REQUIRE(after.reserve.gradients.whole.size() == 1);
  CHECK(after.reserve.gradients.whole[0].data() == buffer);
  CHECK(after.reserve.gradients.keeps);
  CHECK(before.reserve.gradients.whole.empty());
}

TEST_CASE("a program that runs again in its process makes gradients in the memory that it had", "[loss_reserve][elastic]") {
  std::mutex mutex;
  std::map<const Member*, std::vector<const float*>> first_gradients;  // of each run of the program
  std::atomic<int> in_last_slot = 0;
  ElasticWorld world{3, {}, [&](Job& job, Member& me) {
                       Plan plan = toy_plan(0);
                       plan.steps = 8;
                       job.configure(plan);
                       auto unit = job.unit("head");
                       auto weights = unit.tensor<float>("weights", {100'000});
                       job.seal();
                       if (!job.restore()) std::ranges::fill(weights.span(), 0.5f);
                       bool is_first = true;
                       const bool leaves_here = JobAccess::world_size(job) == 3;
                       while (auto step = job.next_step()) {
                         for (Slot& slot : step->slots()) {
                           if (leaves_here && step->number() == 5) {
                             ++in_last_slot;
                             while (JobAccess::rank(job) == 2 ? in_last_slot < 3 : !slot.revoked()) std::this_thread::yield();
                             throw std::runtime_error{"out of a slot"};
                           }
                           const auto scope = unit.use_grad();
                           const std::lock_guard lock{mutex};
                           if (std::exchange(is_first, false)) first_gradients[&me].push_back(weights.grad());
                           std::ranges::fill(weights.grad_span(), 1.0f);
                           slot.report(1, 1);
                         }
                         (void)step->apply(AdamW{}, {.lr = 1e-3f});
                       }
                       me.outcome = job.outcome();
                     }};
  for (const Member& m : world.wait()) {
    INFO((m.failure ? message(*m.failure) : ""));
    const auto& runs = first_gradients[&m];
    if (!m.outcome) continue;  // its exception ended it, and the others' slots
    REQUIRE(runs.size() == 2);
    CHECK(runs[0] == runs[1]);
  }
  CHECK(std::ranges::count_if(world.lines(), [](const std::string& l) { return contains(l, "the program runs again in this process"); }) ==
        2);
}

TEST_CASE("moments lie in reserved memory, which is filled with zeros but for a shard that is cut anew, and old ones are reserved",
          "[loss_reserve]") {
  ReservingRank rank;
  ModelState& state = rank.state;
  const auto reserve_two = [&](std::uint64_t count) {
    for (int i = 0; i < 2; ++i) {
      Arena<float> arena{count};
      std::ranges::fill(arena.span(), std::numeric_limits<float>::quiet_NaN());
      state.reserved_moments().push_back(std::move(arena));
    }
    return state.reserved_moments()[0].data();
  };
  const auto all = [&](const auto& is_so) {
    return std::ranges::all_of(std::array{state.moment(0), state.moment(1)},
                               [&](std::span<float> m) { return std::ranges::all_of(m, is_so); });
  };
  const auto is_zero = [](float v) { return v == 0; };
  const auto is_old = [](float v) { return std::isnan(v); };
  state.reserve_moments(true);
  const float* const first = state.moment(0).data();
  state.moment(0)[0] = 7;
  const float* const reserved = reserve_two(2 * mib);

  state.begin_recut({3, 1});
  CHECK(state.moment(0).data() == reserved);
  CHECK(state.moment(0).size() == elements(pieces(state.layout(), {3, 1})));
  CHECK(all(is_old));  // it costs nothing: all of it arrives
  state.undo_recut();
  CHECK(state.moment(0).data() == first);
  CHECK(state.moment(0)[0] == 7);
  CHECK(state.reserved_moments().size() == 2);

  state.begin_recut({3, 1});
  state.finish_recut();
  CHECK(all(is_old));
  state.allocate({3, 2});
  CHECK(all(is_zero));
  REQUIRE(state.reserved_moments().size() == 2);
  CHECK(state.reserved_moments()[0].data() == first);
  CHECK(state.reserved_moments()[0].capacity() == mib);

  state.begin_recut({1, 0});  // nothing is large enough: it goes before new memory comes
  CHECK(state.moment(0).size() == 4 * mib);
  CHECK(state.reserved_moments().empty());
  state.finish_recut();
  CHECK(state.reserved_moments().size() == 2);
  state.reserve_moments(false);
  CHECK(state.reserved_moments().empty());
  state.begin_recut({2, 0});
  state.finish_recut();
  CHECK(state.reserved_moments().empty());
}

TEST_CASE("a reducer takes what is reserved, and leaves what it does not need", "[loss_reserve]") {
  const Layout layout = lay_out(two_units());
  const auto in_world_of = [&](std::uint32_t world, GradientBuffers& buffers) {
    return Gradients{layout, assign_slots(6, world), one_node(Sharding::sharded, world), 0, Reduce::exact, DType::f32, nullptr, &buffers};
  };
  for (const bool keeps : {true, false}) {
    CAPTURE(keeps);
    GradientBuffers buffers;
    for (int i = 0; i < 5; ++i) buffers.whole.emplace_back(layout.gradients);
    buffers.received.emplace_back(100 * granule);
    buffers.keeps = keeps;
    const float* const first = buffers.whole[0].data();
    Gradients two = in_world_of(2, buffers);  // two buffers, and two nodes of seven granules
    CHECK(two.reduced() == first);
    CHECK(buffers.whole.size() == (keeps ? 3 : 0));
    CHECK(buffers.received.empty());
    CHECK(two.room_to_receive() == (keeps ? 100 : 14) * granule);
    two.hand_on(buffers);
    CHECK(buffers.whole.size() == (keeps ? 5 : 2));
    CHECK(buffers.whole[0].data() == first);
    CHECK(buffers.received[0].capacity() == (keeps ? 100 : 14) * granule);
    Gradients one = in_world_of(1, buffers);
    CHECK(buffers.received.size() == (keeps ? 1 : 0));
    one.hand_on(buffers);
    buffers.received.clear();
    buffers.received.emplace_back(granule);
    (void)in_world_of(4, buffers);
    CHECK(buffers.received.empty());  // too small: it goes before new memory comes
  }
}

}  // namespace elrun::test
