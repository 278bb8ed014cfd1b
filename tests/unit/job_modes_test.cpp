// A floating-point mode that the program has for a while changes no bit of what the job adds up.

#include <bit>
#include <cfenv>

#include "tests/unit/job_world.hpp"

namespace elrun::test {
namespace {

/// A mode of the program's own, as around a library of inference; put back afterwards.
class Mode {
 public:
  enum class Kind : std::uint8_t { usual, upward, flushing };
  explicit Mode(Kind kind) {
    std::fegetenv(&before_);
    if (kind == Kind::upward) std::fesetround(FE_UPWARD);
#ifdef __SSE2__
    if (kind == Kind::flushing) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#endif
  }
  Mode(const Mode&) = delete;
  Mode& operator=(const Mode&) = delete;
  ~Mode() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_{};
};

/// A float of random sign and mantissa, made without arithmetic.
float any_float(const RandomStream& rng, std::uint64_t index, std::uint32_t exponent) {
  return std::bit_cast<float>((static_cast<std::uint32_t>(rng.bits(index)) & 0x807fffffu) | exponent << 23);
}

/// What evaluations came to, and the state hash.
struct Trained {
  std::vector<float> losses;
  std::vector<double> sums;
  std::uint64_t state_hash = 0;
  friend bool operator==(const Trained&, const Trained&) = default;
};

/// Of each rank, with a mode in the loop over slots and in evaluations. All that slots make is made of bits, which no mode changes.
std::vector<Trained> trained_in(Mode::Kind mode, std::uint32_t world, Exchange exchange) {
  std::vector<Trained> out(world);
  const auto members = run_world({.world = world}, [&](Job& job, Member& me) {
    constexpr std::uint32_t size = 9;
    job.configure(toy_plan(0, 8, exchange));
    Unit unit = job.unit("u");
    const auto weight = unit.tensor<float>("w", {size});
    job.seal();
    must(!job.restore(), "there is a state");
    Trained& mine = out[JobAccess::rank(job)];
    while (auto step = job.next_step()) {
      {
        const Mode own{mode};
        for (Slot& slot : step->slots()) {
          const auto scope = unit.use_grad();
          for (std::uint32_t i = 0; i < size; ++i)  // every second one is about as small as floats can be
            weight.grad()[i] = any_float(slot.rng(), i, i % 2 == 0 ? i % 3 : 120 + i);
          slot.report(1, 1);
        }
      }
      (void)step->apply(AdamW{}, {.lr = 0.1f});
      const Mode own{mode};
      const Evaluation e = job.evaluate(20, [](Slot& slot) {
        slot.add("tenths", 0.1);
        slot.report(any_float(slot.rng(), 0, 127), 1 + slot.index());
      });
      mine.losses.push_back(e.loss), mine.sums.push_back(e.sum("tenths"));
    }
    me.outcome = job.outcome();
    mine.state_hash = me.outcome->state_hash;
  });
  for (const Member& m : members) {
    INFO((m.failure ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
  }
  return out;
}

}  // namespace

TEST_CASE("what the job adds up has the same bits in any floating-point mode of the program's loop and of its evaluations", "[job]") {
  const Trained usual = trained_in(Mode::Kind::usual, 1, Exchange::per_step)[0];
  for (const Mode::Kind mode : {Mode::Kind::upward, Mode::Kind::flushing})
    for (const Exchange exchange : {Exchange::per_step, Exchange::per_slot})
      for (const std::uint32_t world : {1u, 2u, 3u, 4u})
        for (const Trained& one : trained_in(mode, world, exchange)) {
          INFO("mode " << static_cast<int>(mode) << ", exchange " << static_cast<int>(exchange) << ", world " << world);
          CHECK(one.losses == usual.losses);
          CHECK(one.sums == usual.sums);
          CHECK(one.state_hash == usual.state_hash);
        }
}

}  // namespace elrun::test
