#pragma once
/// \file A job without a network: all ranks of a world in one place, with state whose every element is known.

#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <elrun/philox.hpp>

#include "checkpoint/commit/checkpointer.hpp"
#include "checkpoint/commit/resume.hpp"
#include "checkpoint/format/plan.hpp"
#include "checkpoint/tiers/files_tier.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/manual_clock.hpp"

namespace elrun::test {

/// Some units and kinds; small, so that thousands of saves take a second.
inline ModelTable small_model() {
  return {.units = {{"embed", 3000, {{"weight", DType::f32, {50, 60}, 0}}},
                    {"block.0", 1500, {{"qkv", DType::f32, {10, 100}, 0}, {"bias", DType::f32, {400}, 1024}}},
                    {"head", 7, {}}},
          .kinds = {{"param", DType::f32}, {"exp_avg", DType::bf16}}};
}

inline ModelTable random_model(Rng& rng) {
  ModelTable model;
  constexpr DType types[] = {DType::f32, DType::bf16, DType::f64, DType::u8};
  const auto kinds = 1 + rng.below(4), units = 1 + rng.below(5);
  for (std::uint64_t k = 0; k < kinds; ++k) model.kinds.push_back({"kind" + std::to_string(k), types[rng.below(4)]});
  for (std::uint64_t u = 0; u < units; ++u) {
    const std::uint64_t elements = rng.chance(0.1) ? 200'000 + rng.below(400'000) : rng.below(5000);
    model.units.push_back({"unit." + std::to_string(u), elements, {}});
  }
  return model;
}

/// The eight bytes that belong from byte 8 * `word` of a unit on, so that a restore can be judged without the save that it came from.
/// Each follows from its own place: the root of format 1 in tests/data has them.
inline std::uint64_t expected_word(std::uint64_t step, std::uint64_t kind, std::uint64_t unit, std::uint64_t word) {
  const std::uint64_t seed = (step * 1'000'003 + kind * 131 + unit) * 0x9e3779b97f4a7c15u;
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 8; i-- > 0;) {
    std::uint64_t x = seed + (8 * word + i) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 31;
    bytes = bytes << 8 | x * 0x94d049bb133111ebu >> 56;
  }
  return bytes;
}
inline std::byte expected_byte(std::uint64_t step, std::uint64_t kind, std::uint64_t unit, std::uint64_t byte) {
  return static_cast<std::byte>(expected_word(step, kind, unit, byte / 8) >> byte % 8 * 8);
}

/// Where a rank's part of the state lies.
struct Held {
  std::vector<Fragment> fragments;
  std::vector<std::unique_ptr<ByteVector>> memory;
  void add(const ModelTable& model, std::uint64_t kind, std::uint64_t unit, std::uint64_t begin, std::uint64_t end, bool replicated) {
    memory.push_back(std::make_unique<ByteVector>((end - begin) * size_of(model.kinds[kind].dtype)));
    fragments.push_back({model.kinds[kind].name, unit, begin, end, *memory.back(), replicated});
  }
};

/// Cuts every kind of every unit at random over `world` ranks; the kinds whose bit is set in `replicated` are whole
/// everywhere.
inline std::vector<Held> random_cut(const ModelTable& model, std::uint32_t world, std::uint32_t replicated, Rng& rng) {
  std::vector<Held> ranks(world);
  for (std::uint64_t kind = 0; kind < model.kinds.size(); ++kind)
    for (std::uint64_t unit = 0; unit < model.units.size(); ++unit) {
      const std::uint64_t elements = model.units[unit].elements;
      std::uint64_t begin = 0;
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        const bool whole = replicated >> kind & 1;
        const std::uint64_t end = whole || rank + 1 == world ? elements : begin + rng.below(elements - begin + 1);
        if (whole) ranks[rank].add(model, kind, unit, 0, elements, true);
        else if (begin != end || rng.chance(0.3)) ranks[rank].add(model, kind, unit, begin, end, false);
        begin = end;
      }
    }
  return ranks;
}

inline std::uint64_t index_of_kind(const ModelTable& model, const std::string& name) {
  std::uint64_t kind = 0;
  while (model.kinds[kind].name != name) ++kind;
  return kind;
}

/// Calls `same(bytes, expected)` for each piece of what is held, of up to eight bytes, until one call returns false. A word at a time: checks of
/// megabytes, byte by byte, took most of the time of some tests.
template <class Same>
bool all_of_held(const ModelTable& model, const Held& held, std::uint64_t step, Same same) {
  static_assert(std::endian::native == std::endian::little);
  for (const Fragment& f : held.fragments) {
    const std::uint64_t kind = index_of_kind(model, f.kind), first = f.begin * size_of(model.kinds[kind].dtype), size = f.bytes.size();
    std::byte* const bytes = f.bytes.data();
    for (std::uint64_t i = 0; i < size;) {
      const std::uint64_t word = expected_word(step, kind, f.unit, (first + i) / 8), skipped = (first + i) % 8;
      if (skipped == 0 && i + 8 <= size) {
        if (!same(bytes + i, word)) return false;
        i += 8;
      } else {
        if (!same(bytes + i, static_cast<std::uint8_t>(word >> 8 * skipped))) return false;
        i += 1;
      }
    }
  }
  return true;
}

inline void fill(const ModelTable& model, const Held& held, std::uint64_t step) {
  all_of_held(model, held, step, [](std::byte* bytes, auto expected) { return std::memcpy(bytes, &expected, sizeof expected), true; });
}

inline bool holds(const ModelTable& model, const Held& held, std::uint64_t step) {
  return all_of_held(model, held, step, [](const std::byte* bytes, auto expected) {
    decltype(expected) found{};
    std::memcpy(&found, bytes, sizeof found);
    return found == expected;
  });
}

inline std::vector<Aux> aux_of_step(std::uint64_t step) {
  return {{"schedule", ByteVector(step % 50 + 1, std::byte(step))}, {"nothing", {}}};
}

/// A root in a directory, for one call.
struct RootIn {
  explicit RootIn(Files& files, Path at = "/ckpts") : tier{files, std::move(at)} {}
  operator Tier&() { return tier; }  // NOLINT(google-explicit-constructor): that is what it is for
  FilesTier tier;
};

struct TestJob {
  TestJob(Files& storage, std::uint32_t world, std::uint64_t seed, ModelTable model = small_model(), std::uint32_t replicated = 1,
          const std::string& run_id = "run", const Path& at = "/ckpts", PlanIdentity plan = some_plan())
      : TestJob{&storage, at, nullptr, world, seed, std::move(model), replicated, run_id, std::move(plan)} {}
  TestJob(Tier& place, std::uint32_t world, std::uint64_t seed, ModelTable model = small_model(), std::uint32_t replicated = 1)
      : TestJob{nullptr, {}, &place, world, seed, std::move(model), replicated, "run", some_plan()} {}
  TestJob(Files* storage, Path at, Tier* place, std::uint32_t world, std::uint64_t seed, ModelTable model, std::uint32_t replicated,
          const std::string& run_id, PlanIdentity plan)
      : files{storage},
        root{std::move(at)},
        tier{place},
        log{"test", [this](Level, std::string_view line) { lines.emplace_back(line); }},
        rng{seed},
        table{std::move(model)},
        leader{run_id, Generation{seed + 1, {{seed * 77 + 1, seed}}}, Rank{0}, WorldSize{world}, std::move(plan), table} {
    add_ranks(world);
    held = random_cut(table, world, replicated, rng);
  }

  Result<Start> start(const std::vector<Witness>& outside = {}) { return ranks[0].start({.witnesses = outside}); }
  /// The same in a process of its own.
  Result<Start> restart(const std::vector<Witness>& outside = {}) {
    const auto world = static_cast<std::uint32_t>(ranks.size());
    ranks.clear();
    add_ranks(world);
    return start(outside);
  }
  /// A start with `--begin_anew STEP` or STEP@FENCE, in a process of its own.
  Result<Start> begin_anew(std::uint64_t step, const std::vector<Witness>& outside = {}) { return begin_anew(LossName{step, {}}, outside); }
  Result<Start> begin_anew(LossName name, const std::vector<Witness>& outside = {}) {
    leader.begin_anew = name;
    return restart(outside);
  }

  Result<void> save(
      std::uint64_t step, std::function<Result<void>()> still_owner = [] { return Result<void>{}; }) {
    ELRUN_TRY_ASSIGN(const SaveTicket ticket, ranks[0].begin_save(step));
    const SaveTicket carried = decode_save_ticket(encode(ticket)).value();
    std::vector<PartVote> votes;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      fill(table, held[rank], step);
      std::vector<Aux> aux = aux_of_step(step);
      aux.insert(aux.end(), notes.begin(), notes.end());
      votes.push_back(decode_part_vote(encode(ranks[rank].write_part(carried, held[rank].fragments, aux))).value());
    }
    return ranks[0].commit(ticket, votes, still_owner);
  }

  /// All ranks load; the first failure, or an empty optional when a byte is wrong (which no test accepts).
  Result<void> load(const Start& start) {
    const Start carried = decode_start(encode(start)).value();
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      ELRUN_TRY_ASSIGN(const std::vector<Aux> aux, ranks[rank].load(carried, held[rank].fragments));
      if (!holds(table, held[rank], start.choice->step) || aux != aux_of_step(start.choice->step))
        return Failure{Code::internal, Remedy::exit_process, "a load succeeded with wrong bytes"};
    }
    return {};
  }

  void add_ranks(std::uint32_t world) {
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      Saver saver = leader;
      saver.rank = Rank{rank};
      if (tier != nullptr) ranks.emplace_back(*tier, clock, log, saver);
      else ranks.emplace_back(*files, clock, log, root, saver);
    }
  }

  static PlanIdentity some_plan() { return {"abc123", "global_batch: 64\nseed: 7"}; }

  Files* files;  ///< And a path in them, or a tier.
  Path root;
  Tier* tier;
  std::vector<std::string> lines{};
  std::vector<Aux> notes{};  ///< Saved beside the host state of a step.
  ManualClock clock{};
  Log log;
  Rng rng;
  ModelTable table;
  Saver leader;
  std::vector<Checkpointer> ranks{};
  std::vector<Held> held{};
};

/// What went wrong, or nothing: for CHECK(said(x) == "").
template <class T>
std::string said(const Result<T>& result) {
  return result.ok() ? "" : message(result.failure());
}

}  // namespace elrun::test
