#include "lib/job/save/storage_retry.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "lib/base/bytes.hpp"
#include "lib/base/words.hpp"
#include "lib/job/revoked.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration look_every = 250ms;  // at the world, and whether this node leaves

}  // namespace

Duration of_leader(JobWorld& world, Duration mine, std::string_view what) {
  ByteWriter leaders;
  leaders.put(mine.count());
  const ByteVector bytes = expect(world, world.from_leader(leaders.bytes()));
  ByteReader reader{bytes};
  const Duration heard{reader.get<Duration::rep>()};
  expect(world, reader.finish(what));
  return heard;
}

Saves::Loaded StorageRetry::load(Saves& saves, Duration wait, StorageWaitReporter& reporter) {
  std::optional<Saves::Loaded> loaded;
  const auto once = [&]() -> Result<void> {
    ELRUN_TRY_ASSIGN(loaded, saves.restore());
    return {};
  };
  auto done = until_it_answers(once, wait, reporter);
  if (done.ok()) return std::move(*loaded);
  Failure why = std::move(done).failure();
  if (world_.over() || !may_pass(why)) failed(world_, std::move(why));
  give_up(std::move(why));
}

void StorageRetry::give_up(Failure why) {
  why.remedy = Remedy::fix_config;
  why.what = "the job cannot go on from its checkpoints, for their storage does not answer " + why.what;
  throw StorageIsAway{std::move(why)};
}

Result<void> StorageRetry::until_it_answers(const std::function<Result<void>()>& once, Duration wait, StorageWaitReporter& reporter,
                                            std::optional<Instant> since) {
  StorageWait waited{.wait = wait, .begun = since};
  for (;;) {
    reporter.moved();
    auto done = once();
    if (done.ok()) {
      if (waited.tries > 0 && world_.leads()) host_.log.info(fmt::format("the storage answers, at try {}", waited.tries + 1));
      return {};
    }
    if (world_.over() || !may_pass(done.failure())) return done;
    const Failure& why = done.failure();
    const Instant now = host_.clock.now();
    const auto next = pause_of_all(waited, why, now);
    if (!next) {
      Failure last = why;
      last.what = fmt::format("({} in {}): {}", waited.tries == 1 ? "1 try" : fmt::format("{} tries", waited.tries),
                              for_people(now - *waited.begun), last.what);
      return last;
    }
    const std::string words = start_failed(waited, why, *next, now);
    if (world_.leads()) host_.log.warning(words);
    reporter.between_tries(words);
    pause(*next, {});
  }
}

std::optional<Duration> StorageRetry::pause_of_all(StorageWait& wait, const Failure& why, Instant now) {
  ++wait.tries;
  if (!wait.begun) wait.begun = now;
  const Duration mine = pause_before_next(wait, why, now).value_or(Duration{-1});
  const Duration leaders = of_leader(world_, mine, "the pause before the storage is tried again");
  return leaders < Duration{0} ? std::nullopt : std::optional{leaders};
}

void StorageRetry::pause(Duration time, std::optional<std::uint64_t> done) {
  Instant told = host_.clock.now();
  const Instant until = told + time;
  for (Instant now = told; now < until; now = host_.clock.now()) {
    if (world_.over()) revoked(world_);
    departure_.tell_agent();  // others may still save it
    if (done)                 // this is no hang
      host_.session.progress({.decided = StepNumber{*done}, .times = {.saves = now - std::exchange(told, now)}});
    const Duration slice = std::min(until - now, look_every);
    if (host_.sleep) host_.sleep(slice);
    else std::this_thread::sleep_for(slice);
  }
}

}  // namespace elrun::inline v0
