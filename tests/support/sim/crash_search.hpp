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
  Duration grows_at{};   ///< The last node comes then, while the others train; 0: with them.
  bool by_hand = false;  ///< Looked at only where its name is asked for.
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
    // With those above: mirrored state of all stages, in all placements of up to five workers on two and three nodes.
    {"two workers, optimizer and gradients mirrored", {1, 1, 0}, mirrored(zero(2)), 0, 0, {}, true},
    {"two workers, all mirrored", {1, 1, 0}, mirrored(zero(3)), 0, 0, {}, true},
    {"three workers, optimizer and gradients mirrored", {1, 1, 1}, mirrored(zero(2)), 0, 0, {}, true},
    {"three workers of two nodes, optimizer mirrored", {2, 1, 0}, mirrored(zero(1)), 0, 0, {}, true},
    {"three workers of two nodes, optimizer and gradients mirrored", {2, 1, 0}, mirrored(zero(2)), 0, 0, {}, true},
    {"one and two workers, optimizer mirrored", {1, 2, 0}, mirrored(zero(1)), 0, 0, {}, true},
    {"one and two workers, optimizer and gradients mirrored", {1, 2, 0}, mirrored(zero(2)), 0, 0, {}, true},
    {"one and two workers, all mirrored", {1, 2, 0}, mirrored(zero(3)), 0, 0, {}, true},
    {"two and two workers, optimizer mirrored", {2, 2, 0}, mirrored(zero(1)), 0, 0, {}, true},
    {"two and two workers, optimizer and gradients mirrored", {2, 2, 0}, mirrored(zero(2)), 0, 0, {}, true},
    {"two and two workers, all mirrored", {2, 2, 0}, mirrored(zero(3)), 0, 0, {}, true},
    {"three workers and one, optimizer mirrored", {3, 1, 0}, mirrored(zero(1)), 0, 0, {}, true},
    {"three workers and one, optimizer and gradients mirrored", {3, 1, 0}, mirrored(zero(2)), 0, 0, {}, true},
    {"three workers and one, all mirrored", {3, 1, 0}, mirrored(zero(3)), 0, 0, {}, true},
    {"four workers of three nodes, optimizer and gradients mirrored", {2, 1, 1}, mirrored(zero(2)), 0, 0, {}, true},
    {"four workers of three nodes, all mirrored", {2, 1, 1}, mirrored(zero(3)), 0, 0, {}, true},
    {"five workers of three nodes, optimizer mirrored", {2, 2, 1}, mirrored(zero(1)), 0, 0, {}, true},
    {"five workers of three nodes, optimizer and gradients mirrored", {2, 2, 1}, mirrored(zero(2)), 0, 0, {}, true},
    {"five workers of three nodes, all mirrored", {2, 2, 1}, mirrored(zero(3)), 0, 0, {}, true},
    {"three workers of two nodes, all mirrored, saved", {2, 1, 0}, mirrored(zero(3)), 1, 0, {}, true},
});

struct CrashFound {
  Violation violation;
  Profile profile;
  [[nodiscard]] std::string where() const;
};
struct CrashSearch {
  std::uint64_t actions = 0;  ///< Of a run in which nothing goes wrong
  std::uint64_t runs = 0;
  std::uint64_t went_back = 0;  ///< Runs in which a step that a living member had applied was done again
  std::optional<CrashFound> found;
};
/// `crashes`: 1 or 2. With `nodes_die` there are runs in which all workers of the node end with the one that crashes, and runs in which
/// their host loses its power; the others go on without it, and it comes back. What the one who crashes has sent and is under way arrives in one half of the runs, and not in the other.
[[nodiscard]] CrashSearch crash_at_every_action(const SmallWorld& world, std::uint32_t crashes, bool nodes_die, unsigned threads, Bug bug);

}  // namespace elrun::sim
