#pragma once
/// \file Ledger: where a job's wall time went, as one agent saw it. Pure: events with their instants in, durations by cause out.
///
/// It keeps one instant up to which all time is accounted for. Each event moves that on to its own instant, and gives the time in between to
/// causes. So every instant belongs to exactly one cause, and the sum is the wall time, whatever comes, and in whatever order. What was
/// given to a cause stays there, so the numbers of `totals()` never fall.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/session.hpp>
#include <elrun/units.hpp>
#include "launcher/report/last_ranks.hpp"

namespace elrun::inline v0::launcher {

/// Exactly one for each instant. The order is that of tables for people.
enum class TimeCause : std::uint8_t {
  rendezvous,  ///< The agent has no world yet.
  start,       ///< From the first world to the first step: processes start, connect, and restore.
  program,     ///< Workers run that tell of no steps.
  steps,       ///< Steps that were decided for the first time.
  again,       ///< Steps that had been decided before, and of a step that a loss cut short as much as the step before it took.
  reduced,     ///< Of a step that is decided for the first time: what it takes longer because the world has fewer workers than it once had.
  waiting,     ///< Of a step that is decided for the first time: what it takes longer because one rank computes longer than the others.
  saves,       ///< Steps waited for a save.
  between,     ///< The program, between two steps: evaluations, its own output.
  detect,  ///< Of a recovery: until the word that the generation is over, from the first sign or from where the step that was cut short should have ended.
  stop,    ///< Until nothing acts for it here any more.
  agree,   ///< Until the next world.
  restart,  ///< Until the workers begin to connect: processes start, programs come back from their own code.
  connect,  ///< Until they are connected.
  restore,  ///< Until all have the state.
  end       ///< After the last step.
};
inline constexpr std::size_t time_causes = 16;
/// "steps_again": as a label of metrics and a key of the status.
[[nodiscard]] std::string_view word_of(TimeCause cause);
/// "steps again", for people.
[[nodiscard]] std::string_view in_words(TimeCause cause);
/// The causes from `detect` to `restore`.
[[nodiscard]] constexpr bool is_recovery(TimeCause cause) { return cause >= TimeCause::detect && cause <= TimeCause::restore; }
/// By cause.
using TimeByCause = std::array<Duration, time_causes>;
[[nodiscard]] Duration sum_of(const TimeByCause& times);

/// The end of a generation that the job went on from, or tried to, over as many generations as that took.
struct Incident {
  /// `last_step`: this agent's newest word of a step before it; none where no step of that generation was decided.
  enum class Point : std::uint8_t { last_step, seen, pushed, stopped, agreed, connected, restored, first_step };
  static constexpr std::size_t points = 8;
  std::uint64_t generation = 0;                     ///< That ended.
  std::string why;                                  ///< In words.
  std::array<std::optional<Instant>, points> at{};  ///< In order; none: not known, or not come to.
  std::uint64_t step = 0;                           ///< The first one after it; once `first_step` is there.
  TimeByCause spent{};                              ///< So far, by those causes that are phases of a recovery.
  [[nodiscard]] std::optional<Instant> point(Point which) const { return at[static_cast<std::size_t>(which)]; }
};
[[nodiscard]] std::string_view word_of(Incident::Point point);

/// A rank that the workers named as slow.
struct NamedRank {
  std::uint64_t generation = 0;  ///< Its rank is of this one.
  SlowRank slow;
};

class Ledger {
 public:
  explicit Ledger(Instant began) : began_{began}, until_{began} {}

  /// The workers are a Job's: they tell of steps.
  void know_steps() { knows_steps_ = true; }
  /// The job has a world of so many workers.
  void world_began(Instant at, std::uint64_t generation, std::uint32_t workers);
  /// The job goes on from a checkpoint; `again`: how many steps after it were decided before.
  void went_on_from(std::uint64_t step, std::uint64_t again);
  /// A step of this generation was decided. With the number of the last one: its worker says what it spent since.
  void decided(Instant at, std::uint64_t step, const StepTimes& times);
  /// The first sign that the generation cannot go on.
  void lost(Instant at, std::string_view why) { cut(at, why, Cut::by_failure); }
  /// Why a generation ends. Without a failure nothing had to be detected.
  enum class Cut : std::uint8_t { by_failure, without_failure };
  /// The coordinator's word that it is over; the workers are told.
  void pushed(Instant at, std::string_view why, Cut kind = Cut::by_failure);
  /// Nothing acts for it on this node any more.
  void stopped(Instant at);
  /// Workers of this generation say that a rank of it is slow.
  void rank_is_slow(std::uint64_t generation, const SlowRank& slow);
  /// All members decided that the job is over.
  void job_over(Instant at);
  /// Nothing is left to do. What comes later does not count.
  void finished(Instant at);

  [[nodiscard]] Instant began() const { return began_; }
  /// The first one that this agent took part in; 0: none yet. Above 1: earlier ones are in no part of this ledger.
  [[nodiscard]] std::uint64_t first_generation() const { return first_generation_; }
  [[nodiscard]] Duration wall(Instant now) const;
  /// Up to the newest event.
  [[nodiscard]] const TimeByCause& totals() const { return totals_; }
  /// What has passed since counts as what the job seems to be in. The sum is `wall(now)`.
  [[nodiscard]] TimeByCause totals(Instant now) const;
  /// The newest ones, at most `incidents_max`, oldest first.
  [[nodiscard]] const std::vector<Incident>& incidents() const { return incidents_; }
  [[nodiscard]] std::uint64_t incident_count() const { return incident_count_; }
  /// Those that are over: the first step after them was decided, or a program without steps has its next world. The newest incident is the newest of them when this has just grown.
  [[nodiscard]] std::uint64_t recovered_count() const { return recovered_count_; }
  [[nodiscard]] bool knows_steps() const { return knows_steps_; }
  /// Of all steps that were decided, those done again too.
  [[nodiscard]] const LastRanks& last_ranks() const { return last_ranks_; }

  /// The newest ones, at most `stragglers_max`, oldest first; a rank once in each generation, as it was named last.
  [[nodiscard]] const std::vector<NamedRank>& stragglers() const { return stragglers_; }

  static constexpr std::size_t stragglers_max = 8;
  static constexpr std::size_t incidents_max = 32;
  static constexpr std::size_t why_max = 512;  ///< Bytes of an incident's reason.

 private:
  enum class State : std::uint8_t { meeting, starting, stepping, detecting, stopping, agreeing, ending, finished };
  [[nodiscard]] TimeCause cause_of_start() const;
  [[nodiscard]] TimeCause cause_when_cut() const;
  void cut(Instant at, std::string_view why, Cut kind);
  Duration move_to(Instant at);
  void close(Instant at);
  void give(TimeCause cause, Duration time);
  void give_step(std::uint64_t step, Duration took, Duration waiting);
  void mark(Incident::Point point, Instant at);
  [[nodiscard]] bool recovers() const { return open_incident_; }

  Instant began_;
  Instant until_;
  TimeByCause totals_{};
  State state_ = State::meeting;
  bool knows_steps_ = false, open_incident_ = false;
  std::uint64_t first_generation_ = 0;
  std::uint64_t generation_ = 0, newest_ = 0, highest_ = 0;  // step of this generation; of all
  Duration usual_{};                                         // what the newest step took; 0: no worker has said so
  std::uint32_t workers_ = 0, workers_most_ = 0;
  LastRanks last_ranks_;
  std::vector<NamedRank> stragglers_;
  std::vector<Incident> incidents_;
  std::uint64_t incident_count_ = 0, recovered_count_ = 0;
};

/// "18.2 s: steps 15 s (82.4 %), ...": what was something, the largest parts as they stand in the table.
[[nodiscard]] std::string in_words(const TimeByCause& times);
/// "rank 3 finished last in 812 of 1000 steps, 24.1 s behind the second-to-last; ..."
[[nodiscard]] std::string in_words(const LastRanks& ranks, std::size_t most);
/// "rank 1 (node n, cuda:0) was slow in 20 steps in a row up to step 40 of generation 2: ..."
[[nodiscard]] std::string in_words(const NamedRank& straggler);
/// "rank 1 ended by signal 9: seen 4.2 s after the start, pushed 3 ms later, ...", each point after the one before it.
[[nodiscard]] std::string in_words(const Incident& incident, Instant began);

}  // namespace elrun::inline v0::launcher
