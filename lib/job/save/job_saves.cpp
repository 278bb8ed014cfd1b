#include "lib/job/save/job_saves.hpp"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/staging/slot_save.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/timed_files.hpp"
#include "lib/base/words.hpp"
#include "lib/job/revoked.hpp"
#include "lib/job/save/storage_wait.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration store_timeout = 1s;  // for the store to answer what follows a report to the agent
constexpr Duration owner_wait = 1s;     // for the store to say that this generation is the current one
constexpr Duration away_wait = 50ms;    // the same, after a time when it did not answer
constexpr Duration leave_limit = 10s;   // for a save that is being written, before a node that leaves saves once more
constexpr Duration final_margin = 30s;  // after the deadline of a save, for its outcome to come here
constexpr Duration async_look = 250ms;  // at the world, while an asynchronous save is waited for
constexpr Duration soon = 5s;           // for a look at the storage that a job need not make to go on
constexpr Duration soon_min = 1s;       // for its one try, where there is no time for a second one
constexpr Duration final_round = 2s;    // after which ranks that wait for the last save tell each other how it is
static_assert(StorageLimits{}.longest() < exchange_timeout_min);  // a rank whose storage hangs says so before the others give it up

/// Another job owns the root now.
bool is_of_another_job(const Failure& why) { return why.code == Code::refused && why.remedy == Remedy::fix_config; }

/// For people, of a look at the storage that failed.
std::string why_not(const Result<void>& looked) {
  return may_pass(looked.failure()) ? "the storage does not answer " + looked.failure().what : message(looked.failure());
}

/// While it lives, all that is done on the storage is over within this time.
class HurriedFiles {
 public:
  HurriedFiles(Files& files, Duration time) : files_{files} { files_.set_time_left(time); }
  ~HurriedFiles() { files_.set_time_left(std::nullopt); }
  HurriedFiles(const HurriedFiles&) = delete;
  HurriedFiles& operator=(const HurriedFiles&) = delete;

 private:
  Files& files_;
};

/// Calls `save` until it succeeds or it is no use at once; the last failure. `told` hears of those that another try follows.
std::optional<Failure> tried_at_once(const std::function<std::optional<Failure>()>& save, const std::function<void(const Failure&)>& told) {
  for (unsigned tries = 1;; ++tries) {
    auto why = save();
    if (!why || !is_tried_at_once(why->code, tries)) return why;
    told(*why);
  }
}

/// While it lives, peers are waited for by the longest operation on the storage longer. One that writes a larger part may be in it when the others have written theirs: it comes
/// back with a failure, and the save fails instead of the generation.
class PatientWorld {
 public:
  PatientWorld(JobWorld& world, Files& files) : world_{world}, before_{world.timeout()} {
    world_.set_timeout(before_ + files.activity().limit);
  }
  ~PatientWorld() { world_.set_timeout(before_); }
  PatientWorld(const PatientWorld&) = delete;
  PatientWorld& operator=(const PatientWorld&) = delete;

 private:
  JobWorld& world_;
  const Duration before_;
};

}  // namespace

void JobSaves::configure(const CheckpointOptions& options) {
  options_ = options;
  options_.final_wait = std::min(options.final_wait, wait_max);
  interval_ = SaveInterval{{options.every, options.interval, options.budget}};
  if (!has_directory()) return;
  Path whole = options.directory;
  if (whole.is_relative()) {
    std::error_code no_working_directory;
    if (working_directory_.empty()) working_directory_ = std::filesystem::current_path(no_working_directory);
    if (no_working_directory) return;
    whole = working_directory_ / whole;
  }
  if (!whole.has_filename() && whole.has_relative_path()) whole = whole.parent_path();  // a slash at the end
  options_.directory =
      whole.string();  // acknowledgements have this text, and are compared by it: the same on all ranks (directory_agreement)
}

void JobSaves::open(Saver saver, HostFragments saved, HostFragments loaded, std::uint64_t host_bytes, Then then) {
  if (!has_directory()) return;
  record_.begin_generation();
  is_asked_for_ = is_cut_off_ = false;
  interval_.begin(host_.clock.now());
  saves_.emplace(host_.files, host_.clock, host_.log, host_.session, world_, options_, std::move(saver), std::move(saved),
                 std::move(loaded), host_.readers);
  if (!options_.async) return;
  async_.open(*saves_, host_bytes);
  if (then == Then::saves) async_.take_memory();
}

/// Another directory, or another plan, is another job's.
std::uint64_t JobSaves::remembered_step(std::string_view plan) const {
  const std::string text = host_.session.remembered().checkpoint;
  if (!has_directory() || text.empty()) return 0;
  const auto record = decode_acknowledgement(as_bytes(text), "what is remembered of the newest checkpoint");
  return record.ok() && is_under(*record, options_.directory) && record->plan == plan ? record->id.step : 0;
}

JobSaves::Looked JobSaves::newest(const Saver& saver, const std::function<bool(const NewestCheckpoint&)>& is_newer) {
  StorageWaitReporter reporter{host_.session, host_.files, wait_terms(options_.final_wait)};
  if (options_.async)
    if (const auto outcome = async_.wait_for_others(); outcome && saves_) take_note(*outcome);
  const Told told = look_for_newest(saver, is_newer, Saves::Lookers::all_ranks, options_.final_wait, reporter, std::nullopt);
  if (told.looked.ok()) return {true, told.usable};
  if (told.is_newer && may_pass(told.looked.failure())) retry_.give_up(told.looked.failure());
  if (world_.leads())
    host_.log.warning("the workers keep their state, for whether others saved a newer one meanwhile cannot be told: " +
                      why_not(told.looked));
  return {};
}

JobSaves::Looked JobSaves::newest_soon(const Saver& saver, const std::function<bool(const NewestCheckpoint&)>& is_newer, bool has_state) {
  const Duration wait = std::min<Duration>(options_.final_wait, soon);
  const Instant begun = host_.clock.now();
  const Told told = [&] {
    StorageWaitReporter reporter{host_.session, host_.files, wait_terms(wait)};
    if (options_.async && !has_state)
      if (const auto outcome = async_.wait_for_others(wait / 2); outcome && saves_) take_note(*outcome);
    const HurriedFiles hurried{host_.files, std::max<Duration>(wait, soon_min)};
    return look_for_newest(saver, is_newer, Saves::Lookers::leader, wait, reporter, begun);
  }();
  if (told.looked.ok()) return {true, told.usable};
  if (told.is_newer && may_pass(told.looked.failure())) return newest(saver, is_newer);
  if (world_.leads())
    host_.log.warning(
        "the workers go on with their state as the newest one. Another coordinator began this generation, and whether the one before went on without them, and "
        "a newer checkpoint was saved there, cannot be told: " +
        why_not(told.looked));
  return {};
}

JobSaves::Told JobSaves::look_for_newest(const Saver& saver, const std::function<bool(const NewestCheckpoint&)>& is_newer,
                                         Saves::Lookers lookers, Duration wait, StorageWaitReporter& reporter,
                                         std::optional<Instant> since) {
  Saves look{host_.files, host_.clock, host_.log, host_.session, world_, options_, saver, {}, {}, host_.readers};
  Told told;
  told.looked = retry_.until_it_answers(
      [&]() -> Result<void> {
        ELRUN_TRY_ASSIGN(const Saves::Newest known, look.newest(lookers));
        told.is_newer = told.is_newer || (known.acknowledged && is_newer(*known.acknowledged));
        ELRUN_TRY_ASSIGN(told.usable, known.usable);
        return {};
      },
      wait, reporter, since);
  if (!told.looked.ok() && world_.over()) revoked(world_);
  return told;
}

void JobSaves::hear_unsaved_for(Duration time) {
  record_.set_safe_at(host_.clock.now() - time);
  interval_.restored(record_.safe_at());
}

void JobSaves::continue_from(const JobSaves& before) {
  record_.continue_from(before.record_);
  interval_ = before.interval_;  // what was asked for is the same, too
}

std::optional<std::vector<Aux>> JobSaves::restore(std::uint64_t known_step, const std::string& lost) {
  StorageWaitReporter reporter{host_.session, host_.files, wait_terms(options_.final_wait)};
  if (options_.async) {
    if (const auto outcome = async_.wait_for_others(); outcome && outcome->failure) take_note(*outcome);
    async_.take_memory();  // now, for the slots of workers that died are free
  }
  Saves::Loaded loaded = retry_.load(*saves_, options_.final_wait, reporter);
  restored_ = std::move(loaded.restored);
  if (!lost.empty()) {
    restored_.notes.insert(restored_.notes.begin(), lost);
    restored_.steps_again = std::max(restored_.steps_again, known_step - std::min(known_step, restored_.step));
  }
  record_.set_safe_at(host_.clock.now());
  interval_.restored(record_.safe_at());
  host_.session.went_on_from({restored_.checkpoint, restored_.step, restored_.steps_again, restored_.why, restored_.notes});
  // The answer of a call that follows that report means that the agent has it: a worker that fails at once has failed after this checkpoint.
  if (loaded.host_state) (void)host_.session.store().num_keys(Deadline::after(host_.clock.now(), store_timeout));
  return std::move(loaded.host_state);
}

void JobSaves::went_on_from_memory(std::uint64_t step, std::uint64_t known_step, const std::string& lost) {
  restored_ = {.from = Restored::From::members,
               .step = step,
               .why = "the newest in-memory checkpoint",
               .steps_again = known_step - std::min(known_step, step),
               .notes = {}};
  if (!lost.empty()) restored_.notes.push_back(lost);
  host_.session.went_on_from({std::string{in_memory_checkpoint}, restored_.step, restored_.steps_again, restored_.why, restored_.notes});
}

StorageWaitReporter::Terms JobSaves::wait_terms(Duration wait) const {
  return {options_.directory, Rank{world_.rank()}, host_.storage_report_every, wait};
}

bool JobSaves::asks_for_save(std::uint64_t steps) {
  if (!saves_ || interval_.is_by_steps_alone()) return false;
  const Instant now = host_.clock.now();
  const bool is_writing = async_.is_busy() && !async_.is_overdue();
  const bool wants = interval_.vote(steps, now, is_writing);
  // A writer that never ends must not keep a checkpoint that is too old from ending the job.
  const bool is_too_old = is_writing && options_.max_age > Duration{0} && now - record_.safe_at() > options_.max_age;
  return (wants || is_too_old) && world_.leads();
}

bool JobSaves::is_due_by_number(std::uint64_t step) const {
  return interval_.is_by_steps_alone() && options_.every > 0 && step > 0 && step % options_.every == 0;
}

bool JobSaves::is_due(std::uint64_t step) const {
  const bool periodic = interval_.is_by_steps_alone() ? is_due_by_number(step) : is_asked_for_;
  return (periodic || (departure_.member_leaves() && saves_.has_value())) && step != record_.step();
}

/// Why the checkpoint of this step was not saved; nothing when it was. The same on all ranks. What ends the world or the job throws.
std::optional<Failure> JobSaves::try_to_save(std::uint64_t step, const std::vector<Aux>& host_state) {
  const auto still_owner = [this]() -> Result<void> {
    if (world_.over()) return world_.why_over();
    // Any call of the store is refused once this generation is not the coordinator's current one.
    // A coordinator that is away for a moment forbids nothing: the fence on the storage decides, and is asked again.
    const Duration wait = coordinator_is_away_ ? away_wait : owner_wait;
    const auto asked = host_.session.store().num_keys(Deadline::after(host_.clock.now(), wait));
    coordinator_is_away_ = !asked.ok() && (asked.failure().code == Code::deadline_passed || asked.failure().code == Code::unreachable);
    return asked.ok() || coordinator_is_away_ ? Result<void>{} : Result<void>{asked.failure()};
  };
  const Instant begun = host_.clock.now();
  // Peers are waited for as well, and before the first slots that is an hour.
  const StorageWaitReporter reporter{host_.session, host_.files, wait_terms(std::max(options_.final_wait, world_.timeout()))};
  auto saved = [&] {
    const PatientWorld patient{world_, host_.files};
    // What ckptd is writing under this fence is no leftover.
    return saves_->save(step, host_state, still_owner, is_cut_off_ || !async_.is_busy());
  }();
  program_timeout_.ended(begun);
  if (saved.ok()) {
    record_.saved(step);
    return std::nullopt;
  }
  if (world_.over()) revoked(world_);
  Failure why = std::move(saved).failure();
  if (is_of_another_job(why)) throw Error{std::move(why)};  // a restart would only take it back
  return why;
}

void JobSaves::save(std::uint64_t step, const std::vector<Aux>& host_state) {
  const Instant begun = host_.clock.now();
  const auto left_out = record_.left_out();
  const bool is_aside = options_.async && save_aside(step, host_state);
  if (!is_aside) save_blocking(step, host_state);
  if (record_.left_out() == left_out) interval_.saved(begun, host_.clock.now());
}

void JobSaves::save_blocking(std::uint64_t step, const std::vector<Aux>& host_state) {
  const auto why =
      tried_at_once([&] { return try_to_save(step, host_state); },
                    [&](const Failure& f) {
                      if (!world_.leads()) return;
                      host_.log.warning(fmt::format(
                          "the checkpoint of step {} could not be saved, it is tried again under another name: {}", step, message(f)));
                    });
  if (!why) return;
  record_.tell_of_failure(step, *why);
  record_.end_if_too_old(options_.max_age, step, *why);
  if (!world_.leads()) return;
  const std::string newest = record_.step() == never_saved ? std::string{"this job has saved none yet"}
                                                           : fmt::format("the newest that was saved is of step {}", record_.step());
  host_.log.warning(fmt::format("the checkpoint of step {} could not be saved, training goes on; {}: {}", step, newest, message(*why)));
}

bool JobSaves::save_aside(std::uint64_t step, const std::vector<Aux>& host_state) {
  const bool leaves = departure_.member_leaves();
  if (leaves) wait_for_async(leave_limit, step);
  else hear();
  const AsyncSaves::Agreed agreed = heed(async_.agree_to_begin(host_state));
  if (!agreed.possible || agreed.busy || leaves || record_.step() == step) async_.withdraw();
  act_on(agreed, leaves ? Next::save_that_blocks : Next::training);
  if (record_.step() == step) return async_.withdraw(), true;  // by what all heard of it here
  if (leaves || !agreed.possible) return false;
  if (agreed.busy) {
    const std::uint64_t so_far = record_.leave_out(step);
    if (world_.leads() && std::has_single_bit(so_far))  // the 1st, 2nd, 4th, ...: it may be every one
      host_.log.warning(fmt::format(
          "the checkpoint of step {} is left out, for the one before it is still being written ({} so far): longer intervals would fit this storage",
          step, so_far));
    record_.end_if_too_old(options_.max_age, step,
                           {Code::deadline_passed, Remedy::retry, "the checkpoint before it is still being written"});
    return true;
  }
  if (!saves_->claim(step).ok()) {
    async_.withdraw();
    if (world_.over()) revoked(world_);
    return false;  // the save that blocks finds out why
  }
  async_.begin(*saves_, step, host_state);
  return true;
}

/// Where one of their ckptds does not answer, the next save claims a fence of its own: whatever that process does when it goes on, it is of an older one.
AsyncSaves::Agreed JobSaves::heed(const AsyncSaves::Agreed& agreed) {
  if (agreed.overdue && !is_cut_off_) saves_->lose_claim();
  is_cut_off_ = agreed.overdue;
  return agreed;
}

void JobSaves::hear() {
  if (!options_.async || !saves_) return;
  if (const auto outcome = async_.hear(Deadline{host_.clock.now()})) take_note(*outcome);
}

/// What concerns this rank alone; the rest waits for the others (`act_on`).
void JobSaves::take_note(const SaveOutcome& outcome) {
  if (!outcome.failure) {
    record_.set_safe_at(host_.clock.now());
    return saves_->committed_elsewhere(outcome.acknowledgement);
  }
  record_.tell_of_failure(outcome.step, *outcome.failure);
  if (world_.leads())
    host_.log.warning(
        fmt::format("the checkpoint of step {} could not be saved, training goes on: {}", outcome.step, message(*outcome.failure)));
}

/// The same on all ranks.
void JobSaves::act_on(const AsyncSaves::Agreed& agreed, Next next) {
  if (agreed.saved) record_.saved(*agreed.saved);
  if (!agreed.failed) return;
  const Failure& why = *agreed.failed->failure;
  if (why.code == Code::not_found || is_of_another_job(why)) look_at_fence(why);
  if (next == Next::save_that_blocks) return;  // which may succeed, and finds out itself whether the job must end
  record_.end_if_too_old(options_.max_age, agreed.failed->step, why);
}

/// `said`: by elrun ckptd, which may see another storage than the workers. Its word alone ends no job, and gives no fence up: another one would take the root from whoever has it by now.
void JobSaves::look_at_fence(const Failure& said) {
  if (!saves_->has_claimed()) {
    if (is_of_another_job(said)) throw Error{said};  // there is nothing to compare it with
    return;
  }
  const auto seen = saves_->look_at_fence();
  if (world_.over()) revoked(world_);
  if (!seen.ok() && is_of_another_job(seen.failure())) throw Error{seen.failure()};
  if (!seen.ok() || !world_.leads()) return;
  host_.log.warning(fmt::format(
      "{} has this job's fence as its newest, as the worker of rank 0 sees it, and elrun ckptd says: {}. Do both see the same storage?",
      options_.directory, said.what));
}

/// Others may have to wait for this rank meanwhile, and its agent sees that it is no hang.
void JobSaves::wait_for_async(Duration time, std::uint64_t step) {
  async_.hurry();
  Instant told = host_.clock.now();
  const Instant until = told + time;
  while (async_.is_busy() && !async_.is_overdue() && host_.clock.now() < until) {
    if (const auto outcome = async_.hear(Deadline::after(host_.clock.now(), async_look))) take_note(*outcome);
    if (world_.over()) revoked(world_);
    const Instant now = host_.clock.now();
    host_.session.progress({.decided = StepNumber{step}, .times = {.saves = now - std::exchange(told, now)}});
  }
  hear();
}

/// On all ranks, in rounds: each of them shows that it is no hang, and a node that leaves says so.
void JobSaves::wait_for_async_at_the_end(std::uint64_t step) {
  constexpr int rounds = static_cast<int>((save_deadline + final_margin) / final_round);
  for (int round = 0; round < rounds; ++round) {
    wait_for_async(final_round, step);
    const AsyncSaves::Agreed agreed = heed(async_.agree());
    act_on(agreed, Next::save_that_blocks);
    if (!agreed.busy) return;
    departure_.tell_agent();  // others may still save it
    host_.session.progress({StepNumber{step}});
  }
}

/// Whoever administrates the storage has some time to make a save possible: nothing else has the state.
void JobSaves::save_at_the_end(std::uint64_t step, const std::vector<Aux>& host_state) {
  if (!saves_.has_value()) return;
  if (options_.async) wait_for_async_at_the_end(step);
  if (record_.step() == step) return;
  StorageWait trial{.wait = options_.final_wait};
  for (;;) {
    const auto why = tried_at_once([&] { return try_to_save(step, host_state); }, [](const Failure&) {});
    if (!why) {
      if (trial.tries > 0 && world_.leads()) host_.log.info(fmt::format("the final checkpoint is saved, at try {}", trial.tries + 1));
      return;
    }
    record_.tell_of_failure(step, *why);
    const Instant now = host_.clock.now();
    const auto pause = retry_.pause_of_all(trial, *why, now);
    if (!pause) {
      Failure last = *why;
      last.what = fmt::format("all {} steps are done, but the final checkpoint could not be saved ({} in {}): {}", step,
                              trial.tries == 1 ? "1 try" : fmt::format("{} tries", trial.tries),
                              for_people(now - trial.begun.value_or(now)), last.what);
      throw Error{std::move(last)};
    }
    if (needs_another_fence(trial)) saves_->lose_claim();
    if (world_.leads()) host_.log.warning(final_save_failed(trial, step, *why, *pause, now));
    retry_.pause(*pause, step);
  }
}

}  // namespace elrun::inline v0
