#pragma once
/// \file A small world of real Jobs in which workers crash at every action there is, one of them or two one after the other.
///
/// A run follows from its profile alone, so each is done anew with the crash at the next place. An action is what
/// `Program::action` is called for: before each message to a peer, before and after all of a peer's are awaited, around each word
/// to the agent and each call of the store, before each operation on the storage, and where the program's own code begins.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/sim/planted_bugs.hpp"
#include "tests/support/sim/simulation.hpp"

namespace elrun::sim {

struct SmallWorld {
  std::string_view name;
  std::array<std::uint32_t, 3> workers{};  ///< Of each node; 0: there is none.
  Placement placement;
  std::uint64_t saves_every = 0;  ///< 0: there are no checkpoints.
  std::uint64_t in_memory_every = 0;
  Duration grows_at{};  ///< The last node comes then, while the others train; 0: with them.
  [[nodiscard]] bool grows() const { return grows_at > Duration{0}; }
};
inline constexpr auto small_worlds = std::to_array<SmallWorld>({
    {"two workers, replicated", {1, 1, 0}, zero(0), 0, 0},
    {"two workers, replicated, saved", {1, 1, 0}, zero(0), 1, 0},
    {"two workers, optimizer sharded", {1, 1, 0}, zero(1), 0, 0},
    {"two workers, optimizer sharded, saved", {1, 1, 0}, zero(1), 1, 0},
    {"two workers, all sharded", {1, 1, 0}, zero(3), 0, 0},
    {"three workers, replicated", {1, 1, 1}, zero(0), 0, 0},
    {"three workers, optimizer sharded", {1, 1, 1}, zero(1), 0, 0},
    {"three workers, all sharded, saved", {1, 1, 1}, zero(3), 1, 0},
    {"three workers of two nodes, sharded inside of them", {2, 1, 0}, hybrid(zero(1)), 0, 0},
    {"two workers, mirrored", {1, 1, 0}, mirrored(zero(1)), 0, 0},
    {"three workers, optimizer mirrored", {1, 1, 1}, mirrored(zero(1)), 0, 0},
    {"four workers of three nodes, optimizer mirrored", {2, 1, 1}, mirrored(zero(1)), 0, 0},
    {"three workers, all mirrored", {1, 1, 1}, mirrored(zero(3)), 0, 0},
    {"three workers of two nodes, all mirrored", {2, 1, 0}, mirrored(zero(3)), 0, 0},
    {"two workers and a third, replicated", {1, 1, 1}, zero(0), 0, 0, 2000ms},  // after a step: its state comes beside slots
    {"two workers and a third, optimizer sharded", {1, 1, 1}, zero(1), 0, 0, 1500ms},
    {"two workers and a third, all sharded", {1, 1, 1}, zero(3), 0, 0, 1500ms},
    {"two workers and a third, optimizer mirrored", {1, 1, 1}, mirrored(zero(1)), 0, 0, 1500ms},
    {"two workers, optimizer sharded, in memory", {1, 1, 0}, zero(1), 0, 1},
    {"three workers, optimizer sharded, in memory", {1, 1, 1}, zero(1), 0, 1},
    {"three workers of two nodes, all sharded, in memory", {2, 1, 0}, zero(3), 0, 1},
    {"two workers and a third, optimizer sharded, in memory", {1, 1, 1}, zero(1), 0, 1, 1500ms},
});

struct CrashFound {
  Violation violation;
  Profile profile;
  [[nodiscard]] std::string where() const;
};
struct CrashSearch {
  std::uint64_t actions = 0;  ///< Of a run in which nothing goes wrong
  std::uint64_t runs = 0;
  std::optional<CrashFound> found;
};
/// `crashes`: 1 or 2. What the one who crashes has sent and is under way arrives in one half of the runs, and not in the other.
[[nodiscard]] CrashSearch crash_at_every_action(const SmallWorld& world, std::uint32_t crashes, unsigned threads, Bug bug);

}  // namespace elrun::sim
