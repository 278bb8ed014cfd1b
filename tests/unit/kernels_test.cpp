#include "tests/gpu/kernel_cases.hpp"

using namespace elrun;
using namespace elrun::test;

TEST_CASE("host kernels give the known answers, compiled for the baseline", "[kernels]") {
  check_known_answers(HostKernels{Isa::portable});
}

TEST_CASE("host kernels give the known answers, compiled for what this machine has", "[kernels]") {
  for (const Isa isa : {Isa::avx2, Isa::avx512})
    if (isa <= isa_of_this_machine()) check_known_answers(HostKernels{isa});
}

TEST_CASE("the instruction set changes no bit", "[kernels]") {
  for (const Isa isa : {Isa::avx2, Isa::avx512})
    if (isa <= isa_of_this_machine()) check_same_bits(HostKernels{Isa::portable}, HostKernels{isa}, 50, 5000);
}

TEST_CASE("a fold does not depend on the order of its two sides", "[kernels]") {
  HostKernels kernels;
  for_all_seeds(50, [&](Rng& rng) {
    const Floats x = any_floats(rng, 300), y = any_floats(rng, 300);
    CHECK(same_bits(kernels.add_into(x, y), kernels.add_into(y, x)));
  });
}

TEST_CASE("sums of squares do not depend on where a shard is cut", "[kernels]") {
  HostKernels kernels;
  for_all_seeds(50, [&](Rng& rng) {
    const Floats all = values(rng.next64(), 1 + rng.below(9 * granule));
    const Floats whole = kernels.sums_of_squares(all);
    const std::size_t cut = rng.below(whole.size() + 1) * granule;
    const auto border = all.begin() + static_cast<std::ptrdiff_t>(std::min(cut, all.size()));
    Floats parts = kernels.sums_of_squares({all.begin(), border});
    const Floats rest = kernels.sums_of_squares({border, all.end()});
    parts.insert(parts.end(), rest.begin(), rest.end());
    CHECK(same_bits(parts, whole));
  });
}

TEST_CASE("the state hash is the sum over its parts, and sees every change", "[kernels]") {
  for_all_seeds(100, [](Rng& rng) {
    std::vector<std::uint64_t> words(2 + rng.below(200));
    for (std::uint64_t& w : words) w = rng.next64();
    const auto hash = [&](std::size_t first, std::size_t count) {
      return mix_sum(std::as_bytes(std::span{words}.subspan(first, count)), 5 + first, salt_of("parameter"));
    };
    const std::uint64_t whole = hash(0, words.size());
    const std::size_t cut = rng.below(words.size() + 1);
    CHECK(hash(0, cut) + hash(cut, words.size() - cut) == whole);
    CHECK(mix_sum(std::as_bytes(std::span{words}), 5, salt_of("exp_avg")) != whole);
    const std::size_t a = rng.below(words.size()), b = (a + 1 + rng.below(words.size() - 1)) % words.size();
    std::swap(words[a], words[b]);
    CHECK(hash(0, words.size()) != whole);  // two words change places
    std::swap(words[a], words[b]);
    words[a] ^= std::uint64_t{1} << 63;
    words[b] ^= std::uint64_t{1} << 63;
    CHECK(hash(0, words.size()) != whole);  // two signs flip at once
  });
}

TEST_CASE("AdamW goes where its definition says", "[kernels]") {
  // One step from rest: m / bias1 = g and v / bias2 = g^2, so the parameter moves by lr against the gradient's sign.
  AdamWState s{{1.0f, 1.0f}, {0, 0}, {0, 0}, {0.5f, -8.0f}, {}};
  HostKernels{}.adamw(s, {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 0, .weight_decay = 0, .bias1 = 0.1f, .bias2 = 0.05f});
  CHECK(s.parameter[0] == Approx(0.99f));
  CHECK(s.parameter[1] == Approx(1.01f));
  // Without a gradient and without moments only the decay is left.
  AdamWState rest{{2.0f}, {0}, {0}, {0}, {}};
  HostKernels{}.adamw(rest, {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.5f, .bias1 = 1, .bias2 = 1});
  CHECK(rest.parameter[0] == Approx(2.0f * (1 - 0.005f)));
}

TEST_CASE("SGD and Lion go where their definitions say", "[kernels]") {
  // From rest, and twice the same gradient: m = g, then momentum g + g.
  AdamWState s{{1.0f, 1.0f}, {0, 0}, {0, 0}, {0.5f, -8.0f}, {}};
  const SgdStep plain{.lr = 0.01f, .momentum = 0.9f};
  HostKernels{}.momentum(s, plain);
  CHECK(s.parameter[0] == Approx(0.995f));
  CHECK(s.parameter[1] == Approx(1.08f));
  HostKernels{}.momentum(s, plain);
  CHECK(s.parameter[0] == Approx(0.995f - 0.01f * 0.95f));
  AdamWState ahead{{1.0f}, {0}, {0}, {0.5f}, {}};
  HostKernels{}.momentum(ahead, SgdStep{.lr = 0.01f, .momentum = 0.9f, .nesterov = true});
  CHECK(ahead.parameter[0] == Approx(1 - 0.01f * 0.95f));
  // Lion moves by the rate itself, whatever the gradient's size, and not at all where nothing points anywhere.
  AdamWState l{{1.0f, 1.0f, 1.0f}, {0, 0, 0}, {0, 0, 0}, {1e-20f, -1e20f, 0.0f}, {}};
  HostKernels{}.momentum(l, LionStep{.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f});
  CHECK(l.parameter[0] == Approx(0.99f));
  CHECK(l.parameter[1] == Approx(1.01f));
  CHECK(l.parameter[2] == 1.0f);
  CHECK(l.exp_avg[1] == Approx(-1e18f));
  // Weight decay is decoupled: it is no part of the moment.
  AdamWState rest{{2.0f}, {0}, {0}, {0}, {}};
  HostKernels{}.momentum(rest, SgdStep{.lr = 0.01f, .momentum = 0.9f, .weight_decay = 0.5f});
  CHECK(rest.parameter[0] == Approx(2.0f * (1 - 0.005f)));
  CHECK(rest.exp_avg[0] == 0.0f);
}
