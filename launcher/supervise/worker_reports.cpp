#include "launcher/supervise/worker_reports.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace elrun::inline v0::launcher {

WorkerFailed worker_failed(const NodeWorkers& workers, std::size_t worker, Generation generation, Instant now,
                           std::optional<Instant> stopped_at) {
  const Worker& w = workers[worker];
  const bool first = failed_first(workers.all(), w);
  const bool cut_short = stopped_at && w.ending && w.ending->signal != 0 && w.failed_at < *stopped_at;
  WorkerFailed failed{generation,
                      static_cast<std::uint32_t>(worker),
                      cut_short ? 1 : w.exit_code(),
                      w.cause(),
                      w.session.is_job,
                      w.ending ? std::clamp<Duration>(now - w.failed_at, Duration{0}, 24h) : Duration{0},
                      {},
                      workers.rank(worker)};
  if (!w.in_world()) failed.what += " before it was in a world", failed.successor_in = w.began_as->generation;
  if (!w.death.error.empty()) failed.what += (cut_short ? " of elrun, after " : ": ") + w.death.error;
  failed.before_session = !w.session.opened;
  failed.before_return = w.ended_away;
  if (!w.ending) failed.death.pid = w.pid, failed.death.evidence = failed.what;
  else failed.death = first ? bounded(w.death) : bounded(w.death, death_beside_max, death_beside_max);
  return failed;
}

std::optional<WorkerFailed> living_worker_failed(const NodeWorkers& workers, Generation generation, const LossReport& report) {
  const auto lost = [&](std::size_t i) { return i < workers.size() && workers[i].peer_loss != PeerLoss::none && !workers[i].ending; };
  std::size_t worker = report.worker;
  if (!lost(worker))  // it has ended since
    for (worker = 0; worker < workers.size() && !lost(worker);) ++worker;
  if (worker == workers.size()) return std::nullopt;
  const bool own = report.own && worker == report.worker;
  WorkerFailed failed{
      generation,
      static_cast<std::uint32_t>(worker),
      1,
      fmt::format("{} ({:.500})",
                  own ? "a failure of its own, which its process outlived" : "the loss of a peer that is not known to have died",
                  report.why),
      true,
      {},
      {},
      workers.rank(worker)};
  failed.death.pid = workers[worker].pid, failed.death.exit_code = failed.exit_code, failed.death.evidence = failed.what;
  return failed;
}

bool all_ended_well(const NodeView& view) {
  return std::all_of(view.workers.all().begin(), view.workers.all().end(),
                     [&](const Worker& w) { return !w.in_world() || (w.ending && (w.ending->ok() || view.job.is_over())); });
}

Actions tell_done(const NodeView& view) {
  const Workers& workers = view.workers.all();
  const bool none_opened = std::none_of(workers.begin(), workers.end(), [](const Worker& w) { return w.in_world() && w.session.opened; });
  Actions actions;
  add(actions, Send{WorkersDone{view.generation.last(), none_opened && view.generation.places() > 0 && !view.job.is_over()}});
  return actions;
}

Actions tell_job(CoordinatorLine& line, const NodeView& view) {
  if (line.knows_job() || !view.runs || !line.can_report()) return {};
  const Workers& workers = view.workers.all();
  const auto of_job =
      std::find_if(workers.begin(), workers.end(), [](const Worker& w) { return w.in_world() && w.session.opened && w.session.is_job; });
  if (of_job == workers.end()) return {};
  line.note_job_reported();
  Actions actions;
  add(actions, Send{WorkersAreJob{view.generation.last(), of_job->session.can_stay}});
  return actions;
}

Actions tell_starting(CoordinatorLine& line, const NodeView& view) {
  if (!view.runs || view.job.is_over() || !view.starts_slow || !view.generation.has_others() || !line.can_report()) return {};
  WorkersStarting starting{.generation = view.generation.last(),
                           .ago = std::clamp<Duration>(view.generation.age(view.now), Duration{0}, 24h),
                           .watched = view.ends_slow};
  for (std::size_t i = view.workers.size(); i-- > 0;) {
    const Worker& w = view.workers[i];
    if (w.is_starting()) ++starting.count, starting.rank = view.workers.rank(i), starting.opened = w.session.opened;
  }
  if (!line.must_tell_starting(starting)) return {};
  Actions actions;
  add(actions, Send{starting});
  return actions;
}

Actions offer_more(const CoordinatorLine& line, const NodeView& view) {
  if (!view.runs || view.job.is_over() || view.leaves || !line.can_report()) return {};
  const Workers& workers = view.workers.all();
  const auto ready = std::count_if(workers.begin(), workers.end(), [](const Worker& w) { return w.life.is(Life::ready); });
  if (ready == 0) return {};
  Actions actions;
  add(actions, Send{MoreWorkers{view.generation.last(), static_cast<std::uint32_t>(ready)}});
  return actions;
}

Actions tell_all(CoordinatorLine& line, const NodeView& view) {
  if (!view.runs) return {};
  Actions actions;
  if (view.job.is_over()) add(actions, Send{JobFinished{view.generation.last()}});
  bool done = true;
  for (std::size_t i = 0; i < view.workers.size(); ++i) {
    const Worker& w = view.workers[i];
    const bool has_failed = w.ending ? !w.ending->ok() && !w.life.was_dismissed() : !w.stuck.empty();
    if (!w.ending) done = done && !w.in_world();
    if (has_failed && !view.job.is_over()) {
      done = false;
      add(actions, Send{worker_failed(view.workers, i, view.generation.last(), view.now, {})});
    }
  }
  line.forget_reports();
  add_all(actions, tell_job(line, view));
  add_all(actions, tell_starting(line, view));
  if (done) add_all(actions, tell_done(view));
  add_all(actions, offer_more(line, view));
  return actions;
}

}  // namespace elrun::inline v0::launcher
