#include "launcher/supervise/hang_watch.hpp"

namespace elrun::inline v0::launcher {

void HangWatches::begin_generation(const Workers& workers, Instant now) {
  were_asked_ = false;
  unopened_.clear();
  for (std::uint32_t i = 0; i < workers.size(); ++i) {
    if (workers[i].is_starting()) (workers[i].session.opened ? in_world_ : unopened_).watch(LocalRank{i}, now);
    if (workers[i].in_world() && sign_ == HangSign::output) in_world_.watch(LocalRank{i}, now);
  }
}

void HangWatches::step_decided(const Workers& workers, Instant now) {
  for (std::uint32_t i = 0; i < workers.size(); ++i) in_world_.sign(LocalRank{i}, now);
}

std::optional<Instant> HangWatches::due_in_world(bool is_job) const {
  const auto in_world = in_world_.due(), unopened = is_job && sign_ == HangSign::progress ? unopened_.due() : std::nullopt;
  return in_world && unopened ? std::min(in_world, unopened) : in_world ? in_world : unopened;
}

std::optional<FoundHang> HangWatches::find_in_world(const Workers& workers, const std::function<bool(const Worker&)>& waits, bool is_job,
                                                    Instant now) {
  FoundHang found;
  for (const LocalRank worker : in_world_.silent(now)) {
    if (const Worker& w = workers.at(worker.value()); w.pid == 0 || waits(w)) in_world_.sign(worker, now);
    else found.silent.push_back(worker);
  }
  if (is_job && sign_ == HangSign::progress)
    for (const LocalRank worker : unopened_.silent(now)) {
      if (workers.at(worker.value()).pid == 0) unopened_.sign(worker, now);
      else found.silent.push_back(worker);
    }
  if (found.silent.empty()) return std::nullopt;
  found.is_forming = is_job && std::any_of(workers.begin(), workers.end(), [&](const Worker& w) { return w.is_starting() || waits(w); });
  for (std::uint32_t i = 0; i < workers.size(); ++i) {
    const LocalRank worker{i};
    const bool is_silent = std::find(found.silent.begin(), found.silent.end(), worker) != found.silent.end();
    if (!workers[i].runs() || (found.is_forming && !is_silent)) continue;
    in_world_.forget(worker);
    unopened_.forget(worker);
    found.suspects.push_back(worker);
  }
  return found;
}

std::vector<LocalRank> HangWatches::find_pending(const Workers& workers, Instant now) {
  std::vector<LocalRank> silent;
  for (const LocalRank worker : pending_.silent(now)) {
    if (workers.at(worker.value()).pid == 0) {
      pending_.sign(worker, now);
      continue;
    }
    pending_.forget(worker);
    silent.push_back(worker);
  }
  return silent;
}

}  // namespace elrun::inline v0::launcher
