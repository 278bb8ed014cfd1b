// One state hash for every world size and placement, equal to that of a slow program with one process, no shards and no
// runtime, that makes every addition where the definition of the canonical tree puts it.

#include <bit>
#include <cmath>
#include <set>

#include "kernels/state_hash.hpp"
#include "lib/job/declare/sampler.hpp"
#include "lib/job/group_peers.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/job_world.hpp"

namespace elrun::test {
namespace {

constexpr std::uint64_t golden_state = 0x3b401a8e73ce9136;       // changes only together with numeric_version
constexpr std::uint64_t golden_state_bf16 = 0xb98fcf37454e7cd4;  // likewise, where leaves are bf16

using Floats = std::vector<float>;

struct Slow {
  struct Place {
    std::uint64_t begin = 0;
    bool trains = true, decays = true;
  };
  std::vector<Place> place;             // of each toy tensor in the flat space
  std::vector<std::uint64_t> granules;  // first element of each granule that trains
  Floats w, m, v;
  std::vector<StepResult> steps;
  std::uint64_t hash = 0;

  AnyOptimizer optimizer;
  explicit Slow(const Plan& plan, const AnyOptimizer& with = toy_adamw) : optimizer{with} {
    lay_out_by_hand();
    for (std::size_t t = 0; t < toy_tensors().size(); ++t)
      for (std::uint64_t i = 0; i < toy_tensors()[t].size; ++i)
        w[place[t].begin + i] = named_stream(plan.seed, toy_tensors()[t].name).normal(i);
    for (std::uint64_t s = 0; s < plan.steps; ++s) step(plan, s);
    hash = Mix{}(plan.steps, salt_of("step"));
    add_words("param", w, 0, w.size());
    for (const std::uint64_t g : granules) {  // what is frozen has no moments
      add_words(optimizer.index() == 1 ? "momentum" : "exp_avg", m, g, g + 1024);
      if (optimizer.index() == 0) add_words("exp_avg_sq", v, g, g + 1024);
    }
  }

  void lay_out_by_hand() {
    const auto& all = toy_tensors();
    place.resize(all.size());
    std::uint64_t at = 0;
    const auto put = [&](std::size_t t) {
      place[t] = {at, !all[t].options.frozen, all[t].options.decay};
      at = (at + all[t].size + 63) / 64 * 64;
    };
    const auto whole_granules = [&] { at = (at + 1023) / 1024 * 1024; };
    const auto trains_from = [&](std::uint64_t begin) {
      whole_granules();
      for (; begin < at; begin += 1024) granules.push_back(begin);
    };
    put(0);  // embedding: table
    trains_from(0);
    const std::uint64_t block = at;
    put(1), put(3);  // block: bias, weight, then what is frozen
    trains_from(block);
    put(2);
    whole_granules();
    const std::uint64_t head = at;
    put(4);
    trains_from(head);
    w.resize(at), m.resize(at), v.resize(at);
  }

  /// Eight bits of mantissa. The toy's gradients are neither tiny nor huge.
  static float nearest_bf16(float x) {
    int exponent = 0;
    const float mantissa = std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
  }

  Floats leaf(const Plan& plan, std::uint64_t step, std::uint32_t slot) const {
    std::vector<std::uint64_t> samples(plan.micro_batch);
    samples_of_slot(plan, step, slot, samples);
    const RandomStream rng = slot_stream(plan.seed, step, slot);
    Floats g(w.size(), 0.0f);
    const auto add = [&](std::size_t t, std::uint32_t use) {
      const std::uint64_t begin = place[t].begin, size = toy_tensors()[t].size;
      add_toy_gradient({&g[begin], size}, {&w[begin], size}, samples, rng, use);
    };
    add(0, 1), add(1, 2), add(3, 3);
    if (slot != 2) add(4, 4);
    add(0, 5);
    if (plan.leaves == DType::bf16)
      for (float& x : g) x = nearest_bf16(x);
    return g;
  }

  template <class T, class Leaf, class Add>
  static T tree(std::uint64_t begin, std::uint64_t n, const Leaf& leaf, const Add& add) {
    if (n == 1) return leaf(begin);
    std::uint64_t left = 1;
    while (left * 2 < n) left *= 2;
    T a = tree<T>(begin, left, leaf, add);
    return add(std::move(a), tree<T>(begin + left, n - left, leaf, add));
  }

  void step(const Plan& plan, std::uint64_t s) {
    const float slots = static_cast<float>(plan.slots());
    const Floats g = tree<Floats>(
        0, plan.slots(), [&](std::uint64_t i) { return leaf(plan, s, static_cast<std::uint32_t>(i)); },
        [](Floats a, const Floats& b) {
          for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
          return a;
        });
    const auto plus = [](float a, float b) { return a + b; };
    const float squares = tree<float>(
        0, granules.size(),
        [&](std::uint64_t i) {
          float lane[32] = {};
          for (std::size_t k = 0; k < 1024; ++k) lane[k % 32] = std::fma(g[granules[i] + k], g[granules[i] + k], lane[k % 32]);
          for (std::size_t apart = 16; apart > 0; apart /= 2)
            for (std::size_t k = 0; k < apart; ++k) lane[k] += lane[k + apart];
          return lane[0];
        },
        plus);
    const float loss = tree<float>(
                           0, plan.slots(),
                           [&](std::uint64_t i) {
                             std::vector<std::uint64_t> samples(plan.micro_batch);
                             samples_of_slot(plan, s, static_cast<std::uint32_t>(i), samples);
                             return toy_loss(samples, slot_stream(plan.seed, s, static_cast<std::uint32_t>(i)));
                           },
                           plus) *
                       (1.0f / slots);
    const float norm = std::sqrt(squares) * (1.0f / slots);
    const ApplyOptions o = toy_options(s);
    const float scale = norm > o.clip_norm ? (1.0f / slots) * (o.clip_norm / norm) : 1.0f / slots;
    for (std::size_t t = 0; t < place.size(); ++t)
      if (place[t].trains)
        for (std::uint64_t i = place[t].begin; i < place[t].begin + toy_tensors()[t].size; ++i)
          std::visit([&](const auto& with) { move(with, s, i, decay_of(with, place[t]), g[i] * scale, o.lr.at(s)); }, optimizer);
    steps.push_back({.decided = true, .step = s + 1, .loss = loss, .norm = norm});
  }

  template <class Options>
  static float decay_of(const Options& o, const Place& where) {
    return where.decays ? o.weight_decay : 0.0f;
  }
  void move(const AdamW& o, std::uint64_t s, std::uint64_t i, float decay, float x, float lr) {
    double b1 = 1, b2 = 1;
    for (std::uint64_t k = 0; k <= s; ++k) b1 *= static_cast<double>(o.beta1), b2 *= static_cast<double>(o.beta2);
    const float rate = -(lr / static_cast<float>(1 - b1)), correction2 = static_cast<float>(1 - b2);
    m[i] = std::fma(o.beta1, m[i], (1.0f - o.beta1) * x);
    v[i] = std::fma(o.beta2, v[i], (1.0f - o.beta2) * (x * x));
    const float direction = m[i] / (std::sqrt(v[i] / correction2) + o.epsilon);
    w[i] = std::fma(rate, direction, std::fma(-(lr * decay), w[i], w[i]));
  }
  void move(const Sgd& o, std::uint64_t, std::uint64_t i, float decay, float x, float lr) {
    m[i] = std::fma(o.momentum, m[i], x);
    const float direction = o.nesterov ? std::fma(o.momentum, m[i], x) : m[i];
    w[i] = std::fma(-lr, direction, std::fma(-(lr * decay), w[i], w[i]));
  }
  void move(const Lion& o, std::uint64_t, std::uint64_t i, float decay, float x, float lr) {
    const float direction = std::fma(o.beta1, m[i], (1.0f - o.beta1) * x);
    const float decayed = std::fma(-(lr * decay), w[i], w[i]);
    w[i] = direction == 0 ? decayed : decayed - std::copysign(lr, direction);
    m[i] = std::fma(o.beta2, m[i], (1.0f - o.beta2) * x);
  }

  void add_words(const char* kind, const Floats& x, std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; i += 2)
      hash +=
          Mix{}(std::bit_cast<std::uint32_t>(x[i]) | std::uint64_t{std::bit_cast<std::uint32_t>(x[i + 1])} << 32, salt_of(kind) + i / 2);
  }
};

void same_run(const std::vector<Member>& members, const Slow& slow, std::size_t first_step = 0) {
  for (const Member& m : members) {
    INFO((m.failure.has_value() ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
    CHECK(m.finished);
    CHECK(fmt::format("{:016x}", m.outcome->state_hash) == fmt::format("{:016x}", slow.hash));
    CHECK(m.outcome->step == slow.steps.size());
    CHECK(m.outcome->loss == slow.steps.back().loss);
    CHECK(m.host_state == slow.steps.size());
    REQUIRE(m.steps.size() + first_step == slow.steps.size());
    for (std::size_t i = 0; i < m.steps.size(); ++i) {
      CHECK(m.steps[i].step == slow.steps[i + first_step].step);
      CHECK(m.steps[i].loss == slow.steps[i + first_step].loss);
      CHECK(m.steps[i].norm == slow.steps[i + first_step].norm);
    }
  }
}

}  // namespace

TEST_CASE("every world and placement ends with the bits of one slow process", "[job]") {
  Selection selection;
  for (const std::uint64_t slots : {8u, 5u, 1u}) {
    const Slow slow{toy_plan(0, slots)};
    if (slots == 8) CHECK(fmt::format("{:016x}", slow.hash) == fmt::format("{:016x}", golden_state));
    for (const int stage : {0, 1, 2, 3})
      for (const Exchange exchange : {Exchange::per_step, Exchange::per_slot})
        for (const std::uint32_t world : {1u, 2u, 3u, 5u, 8u, 11u}) {
          if (!selection.takes()) continue;
          INFO(slots << " slots on " << world << " ranks, zero(" << stage << "), gradients "
                     << (exchange == Exchange::per_slot ? "per slot" : "per step"));
          same_run(run_world({.world = world}, toy({.plan = toy_plan(stage, slots, exchange)})), slow);
        }
  }
}

TEST_CASE("with leaves in bf16, too, every world and placement ends with the bits of one slow process", "[job][leaves]") {
  Selection selection;
  for (const std::uint64_t slots : {8u, 5u, 1u}) {
    Plan plan = toy_plan(0, slots);
    plan.leaves = DType::bf16;
    const Slow slow{plan};
    if (slots == 8) CHECK(fmt::format("{:016x}", slow.hash) == fmt::format("{:016x}", golden_state_bf16));
    for (const int stage : {0, 1, 2, 3})
      for (const Exchange exchange : {Exchange::per_step, Exchange::per_slot})
        for (const std::uint32_t world : {1u, 3u, 8u, 11u}) {
          if ((slots == 1 && world > 3) || !selection.takes()) continue;
          INFO(slots << " slots on " << world << " ranks, zero(" << stage << "), gradients "
                     << (exchange == Exchange::per_slot ? "per slot" : "per step"));
          plan.placement = zero(stage, exchange);
          same_run(run_world({.world = world}, toy({.plan = plan})), slow);
        }
  }
}

TEST_CASE("every optimizer ends with the bits of one slow process, over a change of the world too", "[job]") {
  for (const AnyOptimizer& optimizer : {AnyOptimizer{Sgd{.weight_decay = 0.05f}}, AnyOptimizer{Sgd{.momentum = 0.8f, .nesterov = true}},
                                        AnyOptimizer{Lion{.weight_decay = 0.05f}}}) {
    INFO(name_of(kind_of(optimizer)));
    const Slow slow{toy_plan(0), optimizer};
    for (const int stage : {0, 1, 2, 3}) same_run(run_world({.world = 3}, toy({.plan = toy_plan(stage), .optimizer = optimizer})), slow);
    const TemporaryDirectory root;
    const CheckpointOptions checkpoint{.directory = root.path(), .every = 2};
    const auto before =
        run_world({.world = 4}, toy({.plan = toy_plan(3), .checkpoint = checkpoint, .optimizer = optimizer, .stop_after = 5}));
    for (const Member& m : before) REQUIRE_FALSE(m.failure.has_value());
    same_run(run_world({.world = 3, .generation = 2}, toy({.plan = toy_plan(0), .checkpoint = checkpoint, .optimizer = optimizer})), slow,
             4);
  }
}

TEST_CASE("over TCP the bits are the same", "[job]") {
  const Slow slow{toy_plan(0)};
  Selection selection;
  for (const int stage : {0, 1, 2, 3})
    for (const std::uint32_t world : {2u, 3u, 5u}) {
      if (!selection.takes()) continue;
      INFO(world << " ranks over TCP, zero(" << stage << ")");
      same_run(run_world({.world = world, .join = join_process_group}, toy({.plan = toy_plan(stage)})), slow);
    }
}

TEST_CASE("a checkpoint of four workers goes on under any world with the same bits", "[job]") {
  const Slow slow{toy_plan(0)};
  Selection selection;
  for (const int stage : {0, 1, 2, 3})
    for (const std::uint32_t world : {1u, 2u, 3u, 5u}) {
      if (!selection.takes()) continue;
      INFO("zero(" << stage << ") on 4 ranks, then zero(" << 3 - stage << ") on " << world);
      const TemporaryDirectory root;
      const CheckpointOptions checkpoint{.directory = root.path(), .every = 2};
      const auto before = run_world({.world = 4}, toy({.plan = toy_plan(stage), .checkpoint = checkpoint, .stop_after = 5}));
      for (const Member& m : before) REQUIRE_FALSE(m.failure.has_value());
      const auto after = run_world({.world = world, .generation = 2}, toy({.plan = toy_plan(3 - stage), .checkpoint = checkpoint}));
      same_run(after, slow, 4);
      const auto again = run_world({.world = 2, .generation = 3}, toy({.plan = toy_plan(stage), .checkpoint = checkpoint}));
      same_run(again, slow, 7);  // over already: the same report, nothing is trained
    }
}

TEST_CASE("members that die at any exchange, again and again, change no bit", "[job]") {
  const Slow slow{toy_plan(0)};
  for (std::uint64_t seed = 0; seed < 12; seed += stride(1)) {
    Rng rng{seed};
    const TemporaryDirectory root;
    const bool saves = seed % 4 != 3;  // without checkpoints the job begins again
    const CheckpointOptions checkpoint =
        saves ? CheckpointOptions{.directory = root.path(), .every = 1 + rng.below(3)} : CheckpointOptions{};
    std::vector<Member> members;
    std::uint64_t generation = 1;
    for (; generation <= 20; ++generation) {
      WorldOptions options{.world = 1 + static_cast<std::uint32_t>(rng.below(5)), .generation = generation};
      if (generation < 6) options.death = {static_cast<std::uint32_t>(rng.below(options.world)), rng.below(150)};
      INFO("seed " << seed << ", generation " << generation << ", world " << options.world);
      members = run_world(options, toy({.plan = toy_plan(static_cast<int>(rng.below(4))), .checkpoint = checkpoint}));
      const auto ended =
          static_cast<std::size_t>(std::count_if(members.begin(), members.end(), [](const Member& m) { return m.outcome.has_value(); }));
      for (const Member& m : members)
        if (m.failure.has_value()) {
          INFO(message(*m.failure));
          CHECK(exit_code(*m.failure) == 1);
          CHECK(m.failure->what.find("went away") != std::string::npos);
        }
      if (ended == members.size()) break;
    }
    REQUIRE(members[0].outcome.has_value());
    CHECK(members[0].outcome->state_hash == slow.hash);
  }
}

TEST_CASE("Reduce::fast exchanges one sum per rank: the same on all ranks and stages, and another in every world", "[job]") {
  std::set<std::uint64_t> hashes{Slow{toy_plan(0)}.hash};
  for (const std::uint32_t world : {1u, 2u, 3u, 5u}) {
    std::uint64_t of_world = 0, sent[2] = {};
    for (const int stage : {0, 1}) {
      Plan plan = toy_plan(stage);
      plan.reduce = Reduce::fast;
      for (const std::uint64_t steps : {6, 7}) {
        plan.steps = steps;
        const auto members = run_world({.world = world, .bytes_sent = &sent[steps - 6]}, toy({.plan = plan}));
        for (const Member& m : members) {
          INFO("world " << world << ", zero(" << stage << "): " << (m.failure ? message(*m.failure) : ""));
          REQUIRE(m.outcome.has_value());
          if (steps < 7) continue;
          if (of_world == 0) of_world = m.outcome->state_hash;
          CHECK(m.outcome->state_hash == of_world);
        }
      }
      const std::uint64_t ring = 2 * (world - 1) * 9 * 1024 * sizeof(float);
      CHECK(sent[1] - sent[0] >= ring);
      CHECK(sent[1] - sent[0] < ring + 5 * 1024);  // and the votes, some 200 bytes to each other rank
    }
    CHECK(hashes.insert(of_world).second);
  }
}

TEST_CASE("the exchange of gradients has a ring's volume when slots per rank are a power of two", "[job]") {
  Plan plan = toy_plan(1);
  const auto bytes = [&](std::uint64_t steps) {
    plan.steps = steps;
    std::uint64_t sent = 0;
    (void)run_world({.world = 4, .bytes_sent = &sent}, toy({.plan = plan}));
    return sent;
  };
  const std::uint64_t per_step = bytes(5) - bytes(4);
  const std::uint64_t elements = 9 * 1024;                      // what trains, in whole granules
  const std::uint64_t ring = 2 * 3 * elements * sizeof(float);  // reduce-scatter and all-gather, all ranks together
  CHECK(per_step >= ring);
  CHECK(per_step < ring + 4096);  // and the votes
}

}  // namespace elrun::test
