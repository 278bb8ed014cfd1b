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

// A session without a Job has no world to join. A worker that stays has a time of its own to come back from its program.
bool Supervisor::is_starting(const Worker& w) { return in_world(w) && !w.ending && !w.session.joined && (!w.session.opened || w.is_job); }

// Its peers have not answered: some of them are not in the world yet. Later in a generation an all_gather is the program's own.
bool Supervisor::waits_for_world(const Worker& w) const {
  if (step_ > 0 || !in_world(w) || !w.connection) return false;
  const auto first = calls_.lower_bound({*w.connection, 0}), last = calls_.upper_bound({*w.connection, ~std::uint64_t{0}});
  return std::any_of(first, last, [](const auto& call) { return call.second.op == StoreOp::all_gather; });
}

void Supervisor::watch_starting() {
  told_starting_.reset();
  tell_starting_at_.reset();
  hang_unopened_.clear();
  world_at_ = now_;
  for (std::uint32_t i = 0; i < workers_.size(); ++i)
    if (is_starting(workers_[i])) hang_unopened_.watch(LocalRank{i}, now_);
  if (std::none_of(workers_.begin(), workers_.end(), is_starting) || world_.seat.world_size == 1) return;
  Duration after = std::min(tell_starting_after, options_.timeouts.session / 2);
  if (options_.hang_timeout > Duration{0}) after = std::min(after, options_.hang_timeout / 2);
  tell_starting_at_ = now_ + after;
}

// To whoever coordinates, and again when it has changed.
void Supervisor::tell_of_starting() {
  if (phase_ != Phase::running || job_over_ || tell_starting_at_ || world_.seat.world_size == 1 || !link_up_ || !served_) return;
  WorkersStarting starting{.generation = world_.generation,
                           .ago = std::clamp<Duration>(now_ - world_at_, Duration{0}, 24h),
                           .watched = options_.hang_timeout > Duration{0}};
  for (std::size_t i = workers_.size(); i-- > 0;)
    if (is_starting(workers_[i])) ++starting.count, starting.rank = rank_of(i), starting.opened = workers_[i].session.opened;
  const std::tuple told{starting.rank, starting.count, starting.opened};
  if ((starting.count == 0 && !told_starting_) || told_starting_ == told) return;
  told_starting_ = told;
  if (starting.count == 0) told_starting_.reset();
  act(Send{starting});
}

void Supervisor::has_joined(Worker& w) {
  if (std::exchange(w.session.joined, true)) return;
  tell_of_starting();
}

// A plain program opens no session ever. That this is a Job's is known from the workers of this node, or the coordinator says it.
std::optional<Instant> Supervisor::hangs_unopened_at() const {
  return job_known_ && options_.hang_sign == HangSign::progress ? hang_unopened_.due() : std::nullopt;
}

}  // namespace elrun::inline v0::launcher
