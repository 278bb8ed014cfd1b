// Supervisor: workers that were started in this generation and have not joined the world yet. A worker joins when it has asked
// for its peers, which every Job does once its program has loaded what it needs. Until then the workers of all nodes wait for it.
#include <algorithm>

#include <fmt/format.h>

#include "launcher/supervise/supervisor.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration tell_starting_after = 10s;  // a start that takes longer is told to the coordinator

}  // namespace

// Its peers have not answered: some of them are not in the world yet. Later in a generation an all_gather is the program's own.
bool Supervisor::waits_for_world(const Worker& w) const {
  if (step_ > 0 || !w.in_world() || !w.connection) return false;
  return calls_.is_gathering(*w.connection);
}

void Supervisor::watch_starting() {
  line_.forget_starting();
  deadlines_.clear(Wait::tell_starting);
  hangs_.unopened.clear();
  world_at_ = now_;
  for (std::uint32_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].is_starting()) hangs_.unopened.watch(LocalRank{i}, now_);
  if (!any(workers_, &Worker::is_starting) || world_.seat.world_size == 1) return;
  Duration after = std::min(tell_starting_after, options_.timeouts.session / 2);
  if (options_.hang_timeout > Duration{0}) after = std::min(after, options_.hang_timeout / 2);
  deadlines_.set(Wait::tell_starting, now_ + after);
}

// To whoever coordinates, and again when it has changed.
void Supervisor::tell_of_starting() {
  if (phase_ != Phase::running || job_over_ || deadlines_.is_set(Wait::tell_starting) || world_.seat.world_size == 1 || !line_.can_report())
    return;
  WorkersStarting starting{.generation = world_.generation,
                           .ago = std::clamp<Duration>(now_ - world_at_, Duration{0}, 24h),
                           .watched = options_.hang_timeout > Duration{0}};
  for (std::size_t i = workers_.size(); i-- > 0;)
    if (workers_[i].is_starting()) ++starting.count, starting.rank = rank_of(i), starting.opened = workers_[i].session.opened;
  if (line_.must_tell_starting(starting)) act(Send{starting});
}

void Supervisor::has_joined(Worker& w) {
  if (std::exchange(w.session.joined, true)) return;
  tell_of_starting();
}

// A plain program opens no session ever. That this is a Job's is known from the workers of this node, or the coordinator says it.
std::optional<Instant> Supervisor::hangs_unopened_at() const {
  return job_known_ && options_.hang_sign == HangSign::progress ? hangs_.unopened.due() : std::nullopt;
}

}  // namespace elrun::inline v0::launcher
