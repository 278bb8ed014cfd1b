// What ranks say to each other in rounds, over random programs and random orders of events: each of them may compute while it
// says something, or wait until that is done, and no order may leave anybody waiting, or bring what nobody asked for.

#include <algorithm>
#include <numeric>
#include <set>

#include "lib/job/gather/pending_requests.hpp"
#include "lib/job/gather/prefetch.hpp"
#include "tests/support/property.hpp"

namespace elrun::test {
namespace {

struct Use {
  std::uint32_t unit = 0;
  bool makes_leaf = false;
  std::optional<std::uint32_t> predicts{};
};

/// One rank: its program, and how far it has come. As pending_requests.cpp goes about it.
class Program {
 public:
  Program(std::vector<std::vector<Use>> slots, std::uint32_t units, bool overlaps, bool wants_weights)
      : requests{units}, slots_{std::move(slots)}, overlaps_{overlaps}, wants_weights_{wants_weights} {}

  PendingRequests requests;
  std::set<std::uint32_t> brought;  ///< By rounds, and not forgotten.

  [[nodiscard]] bool done() const { return slot_ == slots_.size() && requests.over(); }
  /// The rank's thread does its next thing, if it has not to wait for that.
  bool moves() {
    if (slot_ == slots_.size()) return false;
    const Phase here{Phase::What::slot, 1, slot_};
    if (!ended_) requests.begin(here);
    if (use_ == slots_[slot_].size()) {
      if (!ended_) {
        if (!requests.at(here)) return false;
        requests.end();
        ended_ = true;
      }
      if (!overlaps_ && !requests.over()) return false;
      ended_ = false, use_ = 0, ++slot_;
      return true;
    }
    const Use& use = slots_[slot_][use_];
    if (wants_weights_ && !open_) {
      requests.want(use.unit);
      if (!requests.here(use.unit) || (!overlaps_ && requests.leaves() > 0)) return false;
      CHECK(brought.contains(use.unit));
      if (next_ && next_ != use.unit) forget(*next_);  // another one was expected
      next_.reset(), open_ = true;
      if (overlaps_) next_ = use.predicts;
      if (next_ && next_ != use.unit) requests.prefetch(*next_);
      return true;
    }
    if (use.makes_leaf) {
      if (!requests.at(here) || requests.leaves() > (overlaps_ ? 1u : 0u)) return false;
      requests.hand_off(use.unit);
      CHECK(requests.leaves() <= 2);
    }
    if (open_ && next_ != use.unit) forget(use.unit);
    open_ = false, ++use_;
    return true;
  }
  void came(std::uint32_t unit) { CHECK(brought.insert(unit).second); }
  [[nodiscard]] bool overlaps() const { return overlaps_; }

 private:
  void forget(std::uint32_t unit) { requests.forget(unit), brought.erase(unit); }
  std::vector<std::vector<Use>> slots_;
  bool overlaps_, wants_weights_;
  std::size_t slot_ = 0, use_ = 0;
  bool open_ = false, ended_ = false;
  std::optional<std::uint32_t> next_;
};

}  // namespace

TEST_CASE("whatever ranks need in whatever order, all get it, each leaf goes once, and nobody is more than a unit ahead",
          "[pending_requests]") {
  for_all_seeds(1500, [](Rng& rng) {
    const auto world = static_cast<std::uint32_t>(1 + rng.below(5)), units = static_cast<std::uint32_t>(1 + rng.below(5));
    const std::size_t slots = 1 + rng.below(3);
    const std::uint32_t busy_in_last = 1 + static_cast<std::uint32_t>(rng.below(world));
    const bool same_order = rng.chance(0.5), weights = rng.chance(0.7), leaves = !weights || rng.chance(0.7);
    std::vector<Program> ranks;
    for (std::uint32_t r = 0; r < world; ++r) {
      std::vector<std::vector<Use>> program(slots);
      for (std::size_t s = 0; s < slots; ++s) {
        if (s + 1 == slots && r >= busy_in_last) continue;  // it serves the others
        std::vector<std::uint32_t> order(units);
        std::iota(order.begin(), order.end(), 0u);
        if (!same_order)
          for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
        const auto any_unit = [&] { return static_cast<std::uint32_t>(rng.below(units)); };
        for (const std::uint32_t unit : order) {
          if (weights && rng.chance(0.3)) program[s].push_back({.unit = any_unit(), .predicts = any_unit()});
          program[s].push_back({.unit = unit, .makes_leaf = leaves});
          if (rng.chance(0.7)) program[s].back().predicts = any_unit();
        }
      }
      ranks.emplace_back(std::move(program), units, rng.chance(0.6), weights);
    }
    std::vector<std::optional<Need>> said(world);
    std::size_t slot = 0;
    const auto busy = [&] { return slot + 1 == slots ? busy_in_last : world; };
    std::vector<std::set<std::uint32_t>> handed(world);
    std::size_t idle = 0;
    for (std::size_t turn = 0; !std::ranges::all_of(ranks, &Program::done); ++turn) {
      REQUIRE(turn < 100'000);
      const auto r = static_cast<std::uint32_t>(rng.below(world));
      Program& rank = ranks[r];
      bool moved = false;
      // A rank's thread does not run while a round of its own is carried on it; on the communication thread's it does.
      if (rng.chance(0.5) && (rank.overlaps() || !said[r])) moved = rank.moves();
      if (!moved && !said[r] && rank.requests.has_request()) said[r] = rank.requests.say(), moved = true;
      if (std::ranges::all_of(said, [](const auto& s) { return s.has_value(); })) {
        std::vector<Need> all;
        for (auto& s : said) all.push_back(*std::exchange(s, std::nullopt));
        const auto agreed = check(all, units);
        INFO((agreed.ok() ? "" : agreed.failure().what));
        REQUIRE(agreed.ok());
        std::vector<std::uint32_t> counts;
        for (std::uint32_t b = 0; b < busy() && leaves; ++b) counts.push_back(static_cast<std::uint32_t>(handed[b].size()));
        put_off(all, counts);
        for (std::uint32_t i = 0; i < world; ++i) {
          if (all[i].gather != Need::nothing) ranks[i].came(static_cast<std::uint32_t>(all[i].gather));
          if (all[i].hand_off != Need::nothing) CHECK(handed[i].insert(static_cast<std::uint32_t>(all[i].hand_off)).second);
          ranks[i].requests.heard(all, i);
        }
        if (leaves) {
          std::size_t least = units, most = 0;
          for (std::uint32_t b = 0; b < busy(); ++b) least = std::min(least, handed[b].size()), most = std::max(most, handed[b].size());
          CHECK(most <= least + 1);
        }
        if (std::ranges::all_of(all, [](const Need& need) { return need.last != 0; })) {
          for (std::uint32_t b = 0; b < world; ++b) CHECK(handed[b].size() == (leaves && b < busy() ? units : 0));
          handed.assign(world, {});
          ++slot;
        }
        moved = true;
      }
      idle = moved ? 0 : idle + 1;
      REQUIRE(idle < 2000);  // somebody can always do something
    }
    CHECK(slot == slots);
  });
}

TEST_CASE("what came in the last slot is expected in this one, in that order, from wherever it is met again", "[pending_requests]") {
  PrefetchPredictor order;
  const auto slot = [&](std::vector<std::uint32_t> uses) {
    order.begin();
    std::vector<std::optional<std::uint32_t>> next;
    for (const std::uint32_t unit : uses) next.push_back(order.used(unit));
    return next;
  };
  using Next = std::vector<std::optional<std::uint32_t>>;
  const std::optional<std::uint32_t> nothing;
  CHECK(slot({0, 1, 2, 2, 1, 0}) == Next(6));
  CHECK(order.next_slots_first() == 0u);
  CHECK(slot({0, 1, 2, 2, 1, 0}) == Next{1, 2, 2, 1, 0, nothing});
  CHECK(slot({0, 2, 5, 1, 0}) == Next{1, 2, nothing, 0, nothing});
  CHECK(slot({}).empty());
  CHECK(slot({5, 1}) == Next{1, 0});  // a slot without uses is not remembered
}

TEST_CASE("what a program has used is remembered up to a bound", "[pending_requests]") {
  PrefetchPredictor order;
  order.begin();
  for (std::size_t i = 0; i < PrefetchPredictor::uses_max + 10; ++i) CHECK_FALSE(order.used(static_cast<std::uint32_t>(i)));
  order.begin();
  CHECK(order.used(PrefetchPredictor::uses_max - 2) == PrefetchPredictor::uses_max - 1);
  CHECK_FALSE(order.used(PrefetchPredictor::uses_max));
}

}  // namespace elrun::test
