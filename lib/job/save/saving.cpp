// Job: checkpoints while it trains, and the final one.

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/words.hpp"
#include "lib/job/job_impl.hpp"
#include "lib/job/save/final_save.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration owner_wait = 5s;     // for the store to say that this generation is the current one
constexpr Duration look_every = 250ms;  // at the world, and whether this node leaves, while the final save waits

}  // namespace

/// Why the checkpoint of this step was not saved; nothing when it was. The same on all ranks. What ends the world or the job throws.
std::optional<Failure> Job::Impl::try_to_save() {
  const auto still_owner = [this]() -> Result<void> {
    if (world.over()) return world.why_over();
    // Any call of the store is refused once this generation is not the coordinator's current one.
    // A coordinator that is away for a moment forbids nothing: the fence on the storage decides, and is asked again.
    const auto asked = host.session.store().num_keys(Deadline::after(host.clock.now(), owner_wait));
    const bool away = !asked.ok() && (asked.failure().code == Code::deadline_passed || asked.failure().code == Code::unreachable);
    return asked.ok() || away ? Result<void>{} : Result<void>{asked.failure()};
  };
  const std::uint64_t step = commit_.knowledge().applied;
  const Instant begun = host.clock.now();
  auto saved = saves_->save(step, host_state(), still_owner);
  was_away_since(begun);
  if (saved.ok()) {
    saved_step_ = step;
    return std::nullopt;
  }
  if (world.over()) revoked(world);
  Failure why = std::move(saved).failure();
  if (why.code == Code::refused && why.remedy == Remedy::fix_config)
    throw Error{std::move(why)};  // another job owns the root now, and a restart would only take it back
  return why;
}

void Job::Impl::save() {
  const auto why = try_to_save();
  if (why && world.leads())
    host.log.warning(fmt::format("the checkpoint of step {} could not be saved, training goes on, the one before it is untouched: {}",
                                 commit_.knowledge().applied, message(*why)));
}

/// Whoever administrates the storage has some time to make a save possible: nothing else has the state.
void Job::Impl::save_at_the_end() {
  const std::uint64_t step = commit_.knowledge().applied;
  FinalSave trial{.wait = checkpoint_.final_wait};
  for (;;) {
    const auto why = try_to_save();
    if (!why) {
      if (trial.tries > 0 && world.leads()) host.log.info(fmt::format("the final checkpoint is saved, at try {}", trial.tries + 1));
      return;
    }
    const Instant now = host.clock.now();
    if (trial.tries++ == 0) trial.begun = now;
    ByteWriter leaders;  // clocks differ, and all ranks have to try again, or none
    leaders.put(pause_before_next(trial, *why, now).value_or(Duration{-1}).count());
    const ByteVector bytes = expect(world, world.from_leader(leaders.bytes()));
    ByteReader reader{bytes};
    const Duration pause{reader.get<Duration::rep>()};
    expect(world, reader.finish("the pause before the next try of the final save"));
    if (pause < Duration{0}) {
      Failure last = *why;
      last.what = fmt::format("all {} steps are done, but the final checkpoint could not be saved ({} in {}): {}", step,
                              trial.tries == 1 ? "1 try" : fmt::format("{} tries", trial.tries), for_people(now - trial.begun), last.what);
      throw Error{std::move(last)};
    }
    if (world.leads()) host.log.warning(told(trial, step, *why, pause, now));
    wait_for_storage(pause);
  }
}

void Job::Impl::wait_for_storage(Duration time) {
  const Instant until = host.clock.now() + time;
  for (Instant now = host.clock.now(); now < until; now = host.clock.now()) {
    if (world.over()) revoked(world);
    if (host.session.is_leaving() && !std::exchange(ready_to_leave_, true)) host.session.ready_to_leave();  // others may still save it
    host.session.progress(StepNumber{commit_.knowledge().applied});                                         // this is no hang
    const Duration slice = std::min(until - now, look_every);
    if (host.sleep) host.sleep(slice);
    else std::this_thread::sleep_for(slice);
  }
}

}  // namespace elrun::inline v0
