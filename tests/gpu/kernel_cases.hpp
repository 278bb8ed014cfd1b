#pragma once
/// \file What every kernel must give, wherever it runs: the same known answers for host loops and for a device.
/// `Kernels` has one function per kernel that takes and returns vectors of the host.

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "kernels/convert.hpp"
#include "kernels/fold.hpp"
#include "kernels/granule.hpp"
#include "kernels/reduce.hpp"
#include "kernels/state_hash.hpp"
#include "kernels/update.hpp"
#include "tests/support/property.hpp"

namespace elrun::test {

namespace known {
#include "tests/gpu/known_answers.inc"
}

using Floats = std::vector<float>;
using Halves = std::vector<bf16>;

/// One element's state, many times: what AdamW reads and writes.
struct AdamWState {
  Floats parameter, exp_avg, exp_avg_sq, gradient;
  Halves rounded;
};

/// The arrays of an optimizer phase over a table of runs.
struct UpdateState {
  Floats parameter, moments[2], gradient;
  Halves rounded;
  std::vector<UpdateRun> runs;
};

/// Operands of a canonical reduction: whole arrays and parts, in fp32 and bf16. `tree`: by operand, the additions that follow it.
struct ReduceState {
  struct Operand {
    Floats floats;
    Halves halves;  // one of the two
    bool whole = false;
    std::uint32_t additions = 0;
  };
  std::vector<Operand> operands;
  std::vector<ReducePiece> pieces;
  std::size_t whole = 0;      // elements of the result
  bool into_operand = false;  // the first operand is the result
};

inline std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Both signs, sixteen binary orders of magnitude.
inline Floats values(std::uint64_t seed, std::size_t count) {
  static constexpr float power[] = {0x1p-8f, 0x1p-7f, 0x1p-6f, 0x1p-5f, 0x1p-4f, 0x1p-3f, 0x1p-2f, 0x1p-1f,
                                    0x1p0f,  0x1p1f,  0x1p2f,  0x1p3f,  0x1p4f,  0x1p5f,  0x1p6f,  0x1p7f};
  Rng rng{seed};
  Floats out(count);
  for (float& x : out) {
    const std::uint32_t word = rng.next();
    x = (unit_float(word) - 0.5f) * power[word & 15];
  }
  return out;
}

/// Any 32 bits: infinities, every kind of NaN and subnormal numbers among them.
inline Floats any_floats(Rng& rng, std::size_t count) {
  Floats out(count);
  for (float& x : out) {
    const std::uint32_t word = rng.next();
    x = std::bit_cast<float>(rng.chance(0.1) ? word | 0x7f800000u : rng.chance(0.1) ? word & 0x807fffffu : word);
  }
  return out;
}

template <class T>
std::uint64_t hash_of(const std::vector<T>& data) {
  return mix_sum(std::as_bytes(std::span{data}), 0, 0);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

inline constexpr AdamWStep known_step{.lr = 0.003f,
                                      .beta1 = 0.9f,
                                      .beta2 = 0.95f,
                                      .epsilon = 1e-8f,
                                      .weight_decay = 0.1f,
                                      .bias1 = 0.271f,
                                      .bias2 = 0.142625f,
                                      .scale = 0.37f};

inline AdamWState known_state() {
  AdamWState s{values(1, known::count), values(2, known::count), values(3, known::count), values(4, known::count), Halves(known::count)};
  for (float& x : s.exp_avg_sq) x = x < 0 ? -x : x;
  return s;
}

template <class Kernels>
void check_adamw(Kernels& kernels) {
  AdamWState s = known_state();
  kernels.adamw(s, known_step);
  CHECK(bits(s.parameter[0]) == known::first_parameter);
  CHECK(bits(s.exp_avg[0]) == known::first_exp_avg);
  CHECK(bits(s.exp_avg_sq[0]) == known::first_exp_avg_sq);
  CHECK(hash_of(s.parameter) == known::parameter_hash);
  CHECK(hash_of(s.exp_avg) == known::exp_avg_hash);
  CHECK(hash_of(s.exp_avg_sq) == known::exp_avg_sq_hash);
  CHECK(hash_of(s.rounded) == known::rounded_hash);
  AdamWState plain = known_state();
  plain.rounded.clear();
  kernels.adamw(plain, known_step);
  CHECK(same_bits(plain.parameter, s.parameter));
}

inline constexpr SgdStep known_sgd{.lr = 0.003f, .momentum = 0.9f, .weight_decay = 0.1f, .scale = 0.37f};
inline constexpr SgdStep known_nesterov{.lr = 0.003f, .momentum = 0.9f, .weight_decay = 0.1f, .scale = 0.37f, .nesterov = true};
inline constexpr LionStep known_lion{.lr = 0.003f, .beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f, .scale = 0.37f};

/// The same for the optimizers with one moment, which is `exp_avg` here.
template <class Kernels>
void check_momentum(Kernels& kernels) {
  const auto check = [&](const auto& step, std::uint64_t parameter, std::uint64_t moment) {
    AdamWState s = known_state();
    kernels.momentum(s, step);
    CHECK(hash_of(s.parameter) == parameter);
    CHECK(hash_of(s.exp_avg) == moment);
    CHECK(same_bits(s.rounded, kernels.to_bf16(s.parameter)));
    AdamWState plain = known_state();
    plain.rounded.clear();
    kernels.momentum(plain, step);
    CHECK(same_bits(plain.parameter, s.parameter));
  };
  check(known_sgd, known::sgd_hash, known::sgd_moment_hash);
  check(known_nesterov, known::nesterov_hash, known::nesterov_moment_hash);
  check(known_lion, known::lion_hash, known::lion_moment_hash);
}

/// Runs of any sizes that begin anywhere. `alike`: in each, all arrays are equally far from a border of 16 bytes.
inline UpdateState any_update(Rng& rng, std::size_t size_max, bool alike) {
  UpdateState s;
  std::uint64_t parameter = 0, moment = 0, gradient = 0;
  for (std::uint64_t left = 1 + rng.below(6); left > 0; --left) {
    const std::uint64_t gap = rng.below(4);
    parameter += gap, moment += alike ? gap + 4 * rng.below(2) : rng.below(4), gradient += alike ? gap + 4 : rng.below(4);
    const std::uint64_t size = 1 + rng.below(rng.chance(0.3) ? 7 : size_max);
    s.runs.push_back({parameter, moment, gradient, size, rng.below(2)});
    parameter += size, moment += size, gradient += size;
  }
  s.parameter = any_floats(rng, parameter + 1), s.gradient = any_floats(rng, gradient + 1), s.rounded = Halves(parameter + 1);
  for (Floats& m : s.moments) m = any_floats(rng, moment + 1);
  return s;
}

/// Each run of a table is updated as it would be alone, with or without decay, and nothing beside the runs is touched.
template <class Kernels>
void check_update(Kernels& kernels) {
  for_all_seeds(60, [&](Rng& rng) {
    UpdateState s = any_update(rng, 2 * update_tile + 100, rng.chance(0.7));
    if (rng.chance(0.3)) s.rounded.clear();
    for (const OptimizerStep& step : {OptimizerStep{known_step}, OptimizerStep{known_nesterov}, OptimizerStep{known_lion}}) {
      UpdateState expected = s;
      for (const UpdateRun& run : s.runs) {
        const auto alone = [&](auto scalars) {
          if (run.decays == 0) scalars.weight_decay = 0;
          const std::span p = std::span{expected.parameter}.subspan(run.parameter, run.size);
          const std::span m = std::span{expected.moments[0]}.subspan(run.moment, run.size);
          const std::span g = std::span<const float>{expected.gradient}.subspan(run.gradient, run.size);
          const std::span r = s.rounded.empty() ? std::span<bf16>{} : std::span{expected.rounded}.subspan(run.parameter, run.size);
          if constexpr (std::is_same_v<decltype(scalars), AdamWStep>)
            elrun::adamw(p, m, std::span{expected.moments[1]}.subspan(run.moment, run.size), g, scalars, r);
          else if constexpr (std::is_same_v<decltype(scalars), SgdStep>) elrun::sgd(p, m, g, scalars, r);
          else elrun::lion(p, m, g, scalars, r);
        };
        std::visit(alone, step);
      }
      kernels.update(s, step);
      CHECK(same_bits(s.parameter, expected.parameter));
      CHECK(same_bits(s.moments[0], expected.moments[0]));
      CHECK(same_bits(s.moments[1], expected.moments[1]));
      CHECK(same_bits(s.rounded, expected.rounded));
    }
  });
  UpdateState none;
  kernels.update(none, OptimizerStep{known_step});
}

/// `operands` of any kind, in a tree of any shape that is no deeper than `depth`.
inline ReduceState any_reduce(Rng& rng, std::uint32_t operands, std::uint32_t depth) {
  ReduceState s;
  std::uint64_t whole = 0, part = 0;
  const bool granules = rng.chance(0.6);  // as a job has them
  for (std::uint64_t left = 1 + rng.below(4); left > 0; --left) {
    whole += granules ? granule * rng.below(2) : rng.below(6), part += granules ? 0 : rng.below(6);
    const std::uint64_t size = granules ? granule * (1 + rng.below(3)) : 1 + rng.below(3 * granule);
    s.pieces.push_back({whole, part, size});
    whole += size, part += size;
  }
  s.whole = whole;
  std::uint32_t height = 0;
  for (std::uint32_t o = 0; o < operands; ++o) {
    ReduceState::Operand operand{.whole = rng.chance(0.5)};
    const bool half = rng.chance(0.4);
    const Floats values = any_floats(rng, operand.whole ? whole : part);
    if (half) {
      for (const float x : values) operand.halves.push_back(to_bf16(x));
    } else {
      operand.floats = values;
    }
    ++height;
    operand.additions = static_cast<std::uint32_t>(o + 1 == operands ? height - 1 : rng.below(height));
    if (height - operand.additions == depth) ++operand.additions;
    height -= operand.additions;
    s.operands.push_back(std::move(operand));
  }
  if (s.operands[0].halves.empty() && s.operands[0].whole) s.into_operand = rng.chance(0.5);
  return s;
}

/// What a reduction gives: each element's tree, added one by one; and the sums of squares of each piece.
inline std::pair<Floats, Floats> reduced(const ReduceState& s, Floats result) {
  Floats sums;
  for (const ReducePiece& piece : s.pieces) {
    for (std::uint64_t i = 0; i < piece.size; ++i) {
      Floats stack;
      for (const ReduceState::Operand& o : s.operands) {
        const std::size_t at = (o.whole ? piece.whole : piece.part) + i;
        stack.push_back(o.halves.empty() ? o.floats[at] : to_float(o.halves[at]));
        for (std::uint32_t a = 0; a < o.additions; ++a) {
          const float right = stack.back();
          stack.pop_back();
          stack.back() = FoldFunctor{}(stack.back(), right);
        }
      }
      result[piece.whole + i] = stack.back();
    }
    Floats of_piece(granule_count(piece.size));
    elrun::sums_of_squares(std::span<const float>{result}.subspan(piece.whole, piece.size), of_piece);
    sums.insert(sums.end(), of_piece.begin(), of_piece.end());
  }
  return {result, sums};
}

template <class Kernels>
void check_reduce(Kernels& kernels) {
  for (const std::uint32_t depth : {2u, 4u, 7u, 8u, 12u, reduce_depth_max})
    for_all_seeds(8, [&](Rng& rng) {
      const std::uint32_t operands = 1 + static_cast<std::uint32_t>(rng.below(depth * 2));
      const ReduceState s = any_reduce(rng, operands, depth);
      const Floats before = s.into_operand ? s.operands[0].floats : any_floats(rng, s.whole);
      const auto [expected, expected_sums] = reduced(s, before);
      Floats result = before, sums(expected_sums.size());
      kernels.reduce(s, result, &sums);
      CHECK(same_bits(result, expected));
      CHECK(same_bits(sums, expected_sums));
      result = before;
      kernels.reduce(s, result, nullptr);
      CHECK(same_bits(result, expected));
    });
}

template <class Kernels>
void check_fold(Kernels& kernels) {
  CHECK(hash_of(kernels.add_into(values(5, known::count), values(6, known::count))) == known::fold_hash);
  const float inf = std::numeric_limits<float>::infinity();
  const float odd_nan = std::bit_cast<float>(0xff812345u);
  const Floats sum = kernels.add_into({0.0f, -0.0f, -0.0f, inf, 1.0f, odd_nan}, Floats{-0.0f, 0.0f, -0.0f, -inf, odd_nan, 1.0f});
  CHECK(bits(sum[0]) == 0);
  CHECK(bits(sum[1]) == 0);
  CHECK(bits(sum[2]) == 0x80000000u);
  for (const std::size_t i : {3u, 4u, 5u}) CHECK(bits(sum[i]) == canonical_nan_bits);
  const Halves right = kernels.to_bf16({1.5f, -2.0f});
  CHECK(same_bits(kernels.add_into(Floats{0.25f, 1.0f}, right), Floats{1.75f, -1.0f}));
}

template <class Kernels>
void check_sums_of_squares(Kernels& kernels) {
  const Floats sums = kernels.sums_of_squares(values(7, known::count));
  REQUIRE(sums.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(bits(sums[i]) == known::granule_sums[i]);
  CHECK(kernels.sums_of_squares({}).empty());
  CHECK(same_bits(kernels.sums_of_squares({-3.0f}), Floats{9.0f}));
  Floats broken(granule * 2, 1.0f);
  broken[granule + 40] = std::bit_cast<float>(0xffc12345u);
  const Floats seen = kernels.sums_of_squares(broken);
  CHECK(seen[0] == 1024.0f);
  CHECK(bits(seen[1]) == canonical_nan_bits);
}

template <class Kernels>
void check_state_hash(Kernels& kernels) {
  CHECK(salt_of("exp_avg") == known::exp_avg_salt);
  const std::string_view text = "the quick brown fox jumps over the lazy dog";
  CHECK(kernels.mix_sum(std::as_bytes(std::span{text}), 7, salt_of("exp_avg")) == known::text_hash);
  CHECK(kernels.mix_sum({}, 7, 1) == 0);
}

template <class Kernels>
void check_convert(Kernels& kernels) {
  // Value and its bf16: exact, ties to even (down, up), just off a tie, overflow, both zeros, subnormal, infinities, NaNs.
  const std::pair<std::uint32_t, std::uint16_t> pairs[] = {
      {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81}, {0x3f817fff, 0x3f81},
      {0x7f7fffff, 0x7f80}, {0x7f7f7fff, 0x7f7f}, {0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x00018000, 0x0002},
      {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x7f800001, 0x7fc0}, {0xffffffff, 0x7fc0}};
  Floats in;
  for (const auto& [x, half] : pairs) in.push_back(std::bit_cast<float>(x));
  const Halves out = kernels.to_bf16(in);
  for (std::size_t i = 0; i < in.size(); ++i) {
    INFO("case " << i);
    CHECK(out[i].bits == pairs[i].second);
  }
  Halves all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
  const Floats wide = kernels.to_float(all);
  const Halves back = kernels.to_bf16(wide);
  std::size_t lost = 0;  // every bf16 but the NaNs comes back
  for (std::size_t i = 0; i < all.size(); ++i) lost += wide[i] == wide[i] && back[i] != all[i];
  CHECK(lost == 0);
}

template <class Kernels>
void check_known_answers(Kernels kernels) {
  SECTION("AdamW") { check_adamw(kernels); }
  SECTION("SGD and Lion") { check_momentum(kernels); }
  SECTION("an optimizer phase over a table of runs") { check_update(kernels); }
  SECTION("the canonical reduction") { check_reduce(kernels); }
  SECTION("fold") { check_fold(kernels); }
  SECTION("sums of squares") { check_sums_of_squares(kernels); }
  SECTION("state hash") { check_state_hash(kernels); }
  SECTION("conversion") { check_convert(kernels); }
}

/// The reference side and the other give the same bits for anything at all.
template <class Left, class Right>
void check_same_bits(Left left, Right right, std::uint64_t seeds, std::size_t size_max) {
  for_all_seeds(seeds, [&](Rng& rng) {
    const std::size_t n = rng.below(size_max);
    AdamWState a{any_floats(rng, n), any_floats(rng, n), any_floats(rng, n), any_floats(rng, n), Halves(n)};
    AdamWState b = a;
    left.adamw(a, known_step);
    right.adamw(b, known_step);
    CHECK(same_bits(a.parameter, b.parameter));
    CHECK(same_bits(a.exp_avg, b.exp_avg));
    CHECK(same_bits(a.exp_avg_sq, b.exp_avg_sq));
    CHECK(same_bits(a.rounded, b.rounded));
    const auto alike = [&](const auto& step) {
      left.momentum(a, step);
      right.momentum(b, step);
      CHECK(same_bits(a.parameter, b.parameter));
      CHECK(same_bits(a.exp_avg, b.exp_avg));
      CHECK(same_bits(a.rounded, b.rounded));
    };
    alike(known_sgd), alike(known_nesterov), alike(known_lion);
    const Floats x = any_floats(rng, n), y = any_floats(rng, n);
    CHECK(same_bits(left.add_into(x, y), right.add_into(x, y)));
    CHECK(same_bits(left.to_bf16(x), right.to_bf16(x)));
    CHECK(same_bits(left.add_into(x, left.to_bf16(y)), right.add_into(x, right.to_bf16(y))));
    const Floats finite = values(rng.next64(), n);
    CHECK(same_bits(left.sums_of_squares(finite), right.sums_of_squares(finite)));
    CHECK(same_bits(left.sums_of_squares(x), right.sums_of_squares(x)));
    const auto bytes = std::as_bytes(std::span{x}).first(n * 4 - (n == 0 ? 0 : rng.below(4)));
    const std::uint64_t first = rng.next64(), salt = rng.next64();
    CHECK(left.mix_sum(bytes, first, salt) == right.mix_sum(bytes, first, salt));
  });
}

/// The host's loops, for one instruction set.
struct HostKernels {
  Isa isa = isa_of_this_machine();
  void adamw(AdamWState& s, const AdamWStep& step) { elrun::adamw(s.parameter, s.exp_avg, s.exp_avg_sq, s.gradient, step, s.rounded, isa); }
  void momentum(AdamWState& s, const SgdStep& step) { sgd(s.parameter, s.exp_avg, s.gradient, step, s.rounded, isa); }
  void momentum(AdamWState& s, const LionStep& step) { lion(s.parameter, s.exp_avg, s.gradient, step, s.rounded, isa); }
  void update(UpdateState& s, const OptimizerStep& step) {
    const std::uint64_t tiles = count_tiles(s.runs);
    elrun::update(
        {s.parameter.data(), {s.moments[0].data(), s.moments[1].data()}, s.gradient.data(), s.rounded.empty() ? nullptr : s.rounded.data()},
        {s.runs.data(), static_cast<std::uint32_t>(s.runs.size()), tiles}, step, isa);
  }
  void reduce(ReduceState s, Floats& result, Floats* sums) {
    if (s.into_operand) s.operands[0].floats = result;
    std::vector<ReduceOperand> operands;
    for (ReduceState::Operand& o : s.operands)
      operands.push_back(
          {o.halves.empty() ? static_cast<void*>(o.floats.data()) : o.halves.data(), o.additions, !o.halves.empty(), o.whole});
    const std::uint64_t tiles = count_tiles(s.pieces);
    float* const to = s.into_operand ? s.operands[0].floats.data() : result.data();
    elrun::reduce({operands.data(), s.pieces.data(), static_cast<std::uint32_t>(operands.size()),
                   static_cast<std::uint32_t>(s.pieces.size()), tiles, depth_of(operands)},
                  to, sums == nullptr ? nullptr : sums->data(), isa);
    if (s.into_operand) result = s.operands[0].floats;
  }
  template <class Right>
  Floats add_into(Floats left, const std::vector<Right>& right) {
    elrun::add_into(left, std::span<const Right>{right}, isa);
    return left;
  }
  Floats sums_of_squares(const Floats& data) {
    Floats sums(granule_count(data.size()));
    elrun::sums_of_squares(data, sums, isa);
    return sums;
  }
  std::uint64_t mix_sum(std::span<const std::byte> data, std::uint64_t first, std::uint64_t salt) {
    return elrun::mix_sum(data, first, salt, isa);
  }
  Halves to_bf16(const Floats& in) {
    Halves out(in.size());
    elrun::to_bf16(in, out, isa);
    return out;
  }
  Floats to_float(const Halves& in) {
    Floats out(in.size());
    elrun::to_float(in, out, isa);
    return out;
  }
};

}  // namespace elrun::test
