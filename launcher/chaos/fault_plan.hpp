#pragma once
/// \file Core: which failures a rehearsal makes, and when: the kinds, the text of a plan, and a plan that is drawn from a seed.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/units.hpp>

namespace elrun::inline v0::launcher {

enum class FaultKind : std::uint8_t {
  kill,         ///< SIGKILL of a worker.
  stop,         ///< SIGSTOP of a worker, and SIGCONT after a time.
  slow,         ///< A worker runs for a share of the time only.
  cut,          ///< A node's network is cut, and mended after a time.
  kill_agent,   ///< SIGKILL of an agent and its workers; the node comes back after a time.
  coordinator,  ///< SIGKILL of the process that serves the rendezvous, and what it had started; it comes back after a time.
  fill,         ///< The disk that {disk} names is full for a time.
};
inline constexpr std::array all_fault_kinds{FaultKind::kill,       FaultKind::stop,        FaultKind::slow, FaultKind::cut,
                                            FaultKind::kill_agent, FaultKind::coordinator, FaultKind::fill};
/// "kill-agent", as a plan has it.
[[nodiscard]] std::string_view word_of(FaultKind kind);
[[nodiscard]] std::optional<FaultKind> fault_kind_of(std::string_view word);

/// What a kind hits.
enum class FaultTarget : std::uint8_t { rank, node, job };
[[nodiscard]] constexpr FaultTarget target_of(FaultKind kind) {
  if (kind == FaultKind::kill || kind == FaultKind::stop || kind == FaultKind::slow) return FaultTarget::rank;
  return kind == FaultKind::cut || kind == FaultKind::kill_agent ? FaultTarget::node : FaultTarget::job;
}

/// One failure of a plan.
struct Fault {
  FaultKind kind = FaultKind::kill;
  Duration at{};  ///< After all workers ran for the first time; whole milliseconds. Without meaning where there is a step.
  std::optional<std::uint64_t> step{};  ///< When the program has said this step, or a later one.
  std::uint32_t target = 0;             ///< A rank as ranks were at the beginning, or a node; 0 for what hits the job.
  Duration lasts{};                     ///< Of all but `kill`; whole milliseconds.
  std::uint32_t percent = 0;            ///< Of `slow`: the share of its time that the worker keeps, 1 to 99.
  friend bool operator==(const Fault&, const Fault&) = default;
};

constexpr std::size_t faults_max = 100'000;
constexpr std::size_t plan_bytes_max = 8 << 20;
constexpr Duration fault_time_max = 24h;  ///< Of `at` and `lasts`.

/// "250ms", "5s", "10m", "1h", or seconds without a unit; from 0 to `fault_time_max`.
[[nodiscard]] std::optional<Duration> parse_time(std::string_view text);
/// Such a text, in the largest unit in which it is a whole number of milliseconds or more: "1.5s", "250ms".
[[nodiscard]] std::string time_text(Duration time);

/// How many there are to hit.
struct FaultWorld {
  std::uint32_t nodes = 1, workers = 1;  ///< Workers of each node.
};

struct ParsedPlan {
  std::vector<Fault> faults{};          ///< In the order of the text.
  std::vector<std::string> problems{};  ///< All, with the number of the line and what would be right; at most 32 and a count.
};
/// One fault per line, `#` begins a comment:
///
///     12.5s    kill rank 1
///     step 40  stop rank 0 for 1.5s
///     20s      slow rank 2 to 25% for 3s
///     25s      kill-agent node 1 for 2s
///     30s      coordinator for 1s
[[nodiscard]] ParsedPlan parse_plan(std::string_view text, const FaultWorld& world);
/// What `parse_plan` makes the same faults of.
[[nodiscard]] std::string plan_line(const Fault& fault);
[[nodiscard]] std::string text_of(std::span<const Fault> faults);

struct DrawOptions {
  Duration mtbf{5s};       ///< Mean time between two faults; the times are exponentially distributed.
  Duration time{60s};      ///< No fault is drawn for later.
  std::uint64_t seed = 1;  ///< The same seed draws the same faults; a longer `time` only adds some at the end.
};
/// Each fault is of one of `kinds`, all equally likely, as are all that it can hit. `kinds` is not empty. No more than `faults_max` and one: the plan is too long then.
[[nodiscard]] std::vector<Fault> draw_plan(const DrawOptions& options, std::span<const FaultKind> kinds, const FaultWorld& world);

}  // namespace elrun::inline v0::launcher
