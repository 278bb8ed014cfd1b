#include "launcher/report/ledger.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

/// As much of `wanted` as `left` has.
Duration take(Duration& left, Duration wanted) {
  const Duration taken = std::clamp(wanted, Duration{0}, left);
  left -= taken;
  return taken;
}

}  // namespace

std::string_view word_of(TimeCause cause) {
  switch (cause) {
    case TimeCause::rendezvous: return "rendezvous";
    case TimeCause::start: return "start";
    case TimeCause::program: return "program";
    case TimeCause::steps: return "steps";
    case TimeCause::again: return "steps_again";
    case TimeCause::reduced: return "reduced_world";
    case TimeCause::waiting: return "waiting";
    case TimeCause::saves: return "saves";
    case TimeCause::between: return "between_steps";
    case TimeCause::detect: return "recovery_detect";
    case TimeCause::stop: return "recovery_stop";
    case TimeCause::agree: return "recovery_agree";
    case TimeCause::restart: return "recovery_start";
    case TimeCause::connect: return "recovery_connect";
    case TimeCause::restore: return "recovery_restore";
    case TimeCause::end: break;
  }
  return "end";
}

std::string_view in_words(TimeCause cause) {
  switch (cause) {
    case TimeCause::again: return "steps again";
    case TimeCause::reduced: return "reduced world";
    case TimeCause::waiting: return "waiting for the slowest rank";
    case TimeCause::between: return "between steps";
    case TimeCause::detect: return "recovery: detect";
    case TimeCause::stop: return "recovery: stop";
    case TimeCause::agree: return "recovery: agree";
    case TimeCause::restart: return "recovery: start";
    case TimeCause::connect: return "recovery: connect";
    case TimeCause::restore: return "recovery: restore";
    default: return word_of(cause);
  }
}

std::string_view word_of(Incident::Point point) {
  switch (point) {
    case Incident::Point::last_step: return "last_step";
    case Incident::Point::seen: return "seen";
    case Incident::Point::pushed: return "pushed";
    case Incident::Point::stopped: return "stopped";
    case Incident::Point::agreed: return "agreed";
    case Incident::Point::connected: return "connected";
    case Incident::Point::restored: return "restored";
    case Incident::Point::first_step: break;
  }
  return "first_step";
}

Duration sum_of(const TimeByCause& times) { return std::accumulate(times.begin(), times.end(), Duration{0}); }

TimeCause Ledger::cause_of_start() const {
  if (recovers()) return TimeCause::restart;
  return knows_steps_ ? TimeCause::start : TimeCause::program;
}

/// Of the time since the newest event, when something else than a step's decision ends it.
TimeCause Ledger::cause_when_cut() const {
  switch (state_) {
    case State::meeting: return TimeCause::rendezvous;
    case State::starting: return cause_of_start();
    case State::stepping: return TimeCause::again;
    case State::detecting: return TimeCause::detect;
    case State::stopping: return TimeCause::stop;
    case State::agreeing: return TimeCause::agree;
    case State::ending:
    case State::finished: break;
  }
  return TimeCause::end;
}

/// How long that was. A clock that an event's sender read earlier counts as the newest event's.
Duration Ledger::move_to(Instant at) {
  const Duration passed = std::max(at - until_, Duration{0});
  until_ += passed;
  return passed;
}

void Ledger::give(TimeCause cause, Duration time) {
  const auto at = static_cast<std::size_t>(cause);
  totals_[at] += time;
  if (recovers() && is_recovery(cause)) incidents_.back().spent[at] += time;
}

void Ledger::close(Instant at) { give(cause_when_cut(), move_to(at)); }

void Ledger::mark(Incident::Point point, Instant at) {
  auto& points = incidents_.back().at;
  const auto from = static_cast<std::size_t>(point);
  points[from] = at;
  std::fill(points.begin() + static_cast<std::ptrdiff_t>(from) + 1, points.end(), std::nullopt);  // a loss within the recovery
}

void Ledger::world_began(Instant at, std::uint64_t generation, std::uint32_t workers) {
  if (state_ == State::finished) return;
  close(at);
  if (recovers()) mark(Incident::Point::agreed, until_);
  if (recovers() && !knows_steps_) open_incident_ = false, ++recovered_count_;  // of a program without steps nothing more is told
  state_ = State::starting;
  generation_ = generation;
  if (first_generation_ == 0) first_generation_ = generation;
  newest_ = 0;
  workers_ = workers;
  workers_most_ = std::max(workers_most_, workers);
}

void Ledger::went_on_from(std::uint64_t step, std::uint64_t again) {
  const std::uint64_t room = std::numeric_limits<std::uint64_t>::max() - step;
  highest_ = std::max(highest_, step + std::min(again, room));
}

void Ledger::give_step(std::uint64_t step, Duration took, Duration waiting) {
  if (step <= highest_) return give(TimeCause::again, took);
  const Duration waited = take(took, waiting);
  const Duration lacking = workers_ < workers_most_ ? took / workers_most_ * (workers_most_ - workers_) : Duration{0};
  give(TimeCause::waiting, waited);
  give(TimeCause::reduced, lacking);
  give(TimeCause::steps, took - lacking);
}

void Ledger::decided(Instant at, std::uint64_t step, const StepTimes& times) {
  if (state_ != State::starting && state_ != State::stepping) return;
  knows_steps_ = true;
  const bool first = state_ == State::starting;
  Duration left = move_to(at);
  if (!first && step == newest_) {
    give(TimeCause::saves, take(left, times.saves));
    return give(TimeCause::between, left);
  }
  // A worker of an earlier version tells of no times: its steps follow each other without a pause.
  const bool measured = times.step > Duration{0};
  const Duration took = measured ? take(left, times.step) : first ? Duration{0} : std::exchange(left, Duration{0});
  const Duration saved = take(left, times.saves);
  const Duration restored = first ? take(left, times.restore) : Duration{0};
  const Duration connected = first ? take(left, times.connect) : Duration{0};
  if (took > Duration{0}) usual_ = took;
  give_step(step, took, times.waiting);
  if (const Duration behind = std::min(times.behind, took); behind > Duration{0} && times.last_rank < workers_)
    last_ranks_.note(times.last_rank, behind);
  give(TimeCause::saves, saved);
  give(recovers() ? TimeCause::restore : TimeCause::start, restored);
  give(recovers() ? TimeCause::connect : TimeCause::start, connected);
  give(first ? cause_of_start() : TimeCause::between, left);
  if (recovers()) {
    const Instant had_state = until_ - took - saved;
    mark(Incident::Point::connected, had_state - restored);
    mark(Incident::Point::restored, had_state);
    mark(Incident::Point::first_step, until_);
    incidents_.back().step = step;
    open_incident_ = false;
    ++recovered_count_;
  }
  state_ = State::stepping;
  newest_ = step;
  highest_ = std::max(highest_, step);
}

/// A step that is cut short was computed for as long as the one before it took. Time beyond that was no work: nobody knew yet that a member was
/// lost, or hung, and all waited for it.
void Ledger::cut(Instant at, std::string_view why, Cut kind) {
  if (state_ != State::starting && state_ != State::stepping) return;
  const bool cuts_step = state_ == State::stepping;
  const Instant last_step = until_;
  Duration undetected{};
  if (cuts_step) {
    undetected = move_to(at);
    const bool is_bounded = kind == Cut::by_failure && usual_ > Duration{0};
    give(TimeCause::again, is_bounded ? take(undetected, usual_) : std::exchange(undetected, Duration{0}));
  } else {
    close(at);
  }
  state_ = State::detecting;
  if (recovers()) return;
  open_incident_ = true;
  ++incident_count_;
  if (incidents_.size() == incidents_max) incidents_.erase(incidents_.begin());
  incidents_.push_back({.generation = generation_, .why = std::string{why.substr(0, why_max)}});
  if (cuts_step) mark(Incident::Point::last_step, last_step);
  mark(Incident::Point::seen, until_);
  give(TimeCause::detect, undetected);
}

void Ledger::pushed(Instant at, std::string_view why, Cut kind) {
  cut(at, why, kind);
  if (state_ != State::detecting) return;
  close(at);
  state_ = State::stopping;
  mark(Incident::Point::pushed, until_);
}

void Ledger::rank_is_slow(std::uint64_t generation, const SlowRank& slow) {
  const auto known = std::find_if(stragglers_.begin(), stragglers_.end(),
                                  [&](const NamedRank& named) { return named.generation == generation && named.slow.rank == slow.rank; });
  if (known != stragglers_.end()) {
    if (known->slow.step >= slow.step) return;  // another worker has said it
    stragglers_.erase(known);
  }
  if (stragglers_.size() == stragglers_max) stragglers_.erase(stragglers_.begin());
  stragglers_.push_back({generation, slow});
}

void Ledger::stopped(Instant at) {
  if (state_ != State::stopping) return;
  close(at);
  state_ = State::agreeing;
  mark(Incident::Point::stopped, until_);
}

void Ledger::job_over(Instant at) {
  if (state_ == State::finished) return;
  if (state_ == State::stepping) state_ = State::ending;  // nothing was cut short
  close(at);
  state_ = State::ending;
}

void Ledger::finished(Instant at) {
  job_over(at);
  state_ = State::finished;
}

Duration Ledger::wall(Instant now) const { return (state_ == State::finished ? until_ : std::max(now, until_)) - began_; }

TimeByCause Ledger::totals(Instant now) const {
  TimeByCause all = totals_;
  const TimeCause open = state_ == State::stepping ? TimeCause::steps : cause_when_cut();
  all[static_cast<std::size_t>(open)] += wall(now) - (until_ - began_);
  return all;
}

std::string in_words(const TimeByCause& times) {
  const Duration all = sum_of(times);
  std::string text = for_people(all);
  const char* between = ": ";
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (times[i] <= Duration{0}) continue;
    text += fmt::format("{}{} {} ({:.1f} %)", between, in_words(static_cast<TimeCause>(i)), for_people(times[i]),
                        100 * seconds(times[i]) / seconds(all));
    between = ", ";
  }
  return text;
}

std::string in_words(const LastRanks& ranks, std::size_t most) {
  std::string text;
  for (const LastRank& last : ranks.longest(most))
    text += fmt::format("{}rank {} finished last in {} of {}, {} behind the second-to-last", text.empty() ? "" : "; ", last.rank,
                        last.steps, count_of(ranks.steps(), "step"), for_people(last.behind));
  return text;
}

std::string in_words(const NamedRank& straggler) {
  const SlowRank& slow = straggler.slow;
  return fmt::format("rank {} (node {}, {}) was slow in {} in a row up to step {} of generation {}: {:.1f} times the median, {} lost",
                     slow.rank, slow.node, slow.device, count_of(slow.steps, "step"), slow.step, straggler.generation, slow.times,
                     for_people(slow.lost));
}

std::string in_words(const Incident& incident, Instant began) {
  std::string text = fmt::format("generation {} ended, {}:", incident.generation, incident.why);
  std::optional<Instant> before;
  for (std::size_t i = 0; i < Incident::points; ++i) {
    const auto at = incident.at[i];
    if (!at) continue;
    const auto point = static_cast<Incident::Point>(i);
    const std::string name = point == Incident::Point::first_step  ? fmt::format("step {} decided", incident.step)
                             : point == Incident::Point::last_step ? "last step"
                                                                   : std::string{word_of(point)};
    text += before ? fmt::format(", {} {} later", name, for_people(*at - *before))
                   : fmt::format(" {} {} after the start", name, for_people(*at - began));
    before = at;
  }
  return text;
}

}  // namespace elrun::inline v0::launcher
