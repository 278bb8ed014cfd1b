// Supervisor: workers that start before their node has a place.
//
// The coordinator of a Job lets a node in once its workers are ready, so that the others train while they start. They are pending workers, as
// successors of dead ones are, beside a generation in which this node has no part.
#include <utility>

#include <fmt/format.h>

#include "launcher/supervise/supervisor.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {

void Supervisor::on_message(const Prepare& m) {
  if (phase_ != Phase::joining || job_.is_over() || deadlines_.is_set(Wait::successors) || generation_.lacks_places(m.beside)) return;
  preparation_ = {.beside = m.beside};
  deadlines_.clear(Wait::join);
  deadlines_.set(Wait::prepare, now_ + options_.timeouts.session);
  const std::vector<GivenPlace> given = workers_.give_places_to_prepare(generation_.places());
  if (!given.empty())
    say(Level::info,
        fmt::format("generation {} runs: {} started here meanwhile, and this node joins when all are ready", m.beside.generation.number,
                    given.size() == 1 ? "1 worker is" : fmt::format("{} workers are", given.size())));
  for (const GivenPlace& place : given) {
    start_worker(place, m.beside);
    workers_[place.worker].pending.is_successor = false;
  }
  tell_prepared();
}

// The coordinator may give this node a place as soon as it hears that all are ready. That one has failed is told once no other one is starting or
// ending any more.
void Supervisor::tell_prepared() {
  if (!line_.is_up()) return;
  if (workers_.are_prepared(generation_.places())) {
    const bool waits = phase_ == Phase::joining && !deadlines_.is_set(Wait::successors) && generation_.places() > 0;
    if ((!preparation_.beside && !waits) || std::exchange(preparation_.was_told, true)) return;
    deadlines_.clear(Wait::prepare);
    act(Send{MoreWorkers{preparation_.beside ? preparation_.beside->generation : generation_.last(), generation_.places()}});
  } else if ((preparation_.beside || preparation_.failure) && workers_.are_settled()) {
    const Generation beside = preparation_.beside ? preparation_.beside->generation : generation_.last();
    act(Send{preparation_.failure.value_or(NotPrepared{beside, "its end between generations", 1, false})});
    end_preparation();
  }
}

// A worker without which this node is not prepared, as the coordinator may think it is.
void Supervisor::fail_preparation(const Worker& w) {
  if (!preparation_.beside && !preparation_.was_told && !preparation_.failure) return;
  if (!preparation_.failure)
    preparation_.failure = {.beside = preparation_.beside ? preparation_.beside->generation : generation_.last(),
                            .what = w.cause() + (w.death.error.empty() ? "" : ": " + w.death.error),
                            .exit_code = w.exit_code(),
                            .before_session = !w.session.opened};
  preparation_.was_told = false;
  if (!deadlines_.is_set(Wait::prepare) && preparation_.beside) deadlines_.set(Wait::prepare, now_ + options_.timeouts.session);
  tell_prepared();
}

void Supervisor::end_preparation() {
  preparation_ = {};
  deadlines_.clear(Wait::prepare);
}

void Supervisor::on_late_preparation() {
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].life.is(Life::pending) && workers_[i].hung.empty())
      end_hung_pending(local_rank(i), fmt::format("not ready within {} (start_timeout)", for_people(options_.timeouts.session)),
                       "start_timeout in --rdzv_conf");
}

}  // namespace elrun::inline v0::launcher
