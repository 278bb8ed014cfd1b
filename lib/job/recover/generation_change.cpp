#include "lib/job/recover/generation_change.hpp"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "lib/base/bytes.hpp"
#include "lib/base/planted.hpp"
#include "lib/job/commit/decided_update.hpp"
#include "lib/job/declare/device_class.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/declare/same_job.hpp"
#include "lib/job/declare/tensor_options.hpp"
#include "lib/job/revoked.hpp"

namespace elrun::inline v0 {

static_assert(HostVariables::bytes_max + (std::uint64_t{1} << 16) <= gather_bytes_max);  // with the job's progress

void GenerationChange::rejoin() {
  const Failure why = job_.world.why_over();
  job_.slot.end();  // the program has left it, so what is thrown here does not come out of a slot
  job_.parameters_hash.give_up();
  job_.world.give_up_beside();
  job_.loss_reserve.stop_making();
  if (job_.memory_checkpoints.lacks_moments() && !ELRUN_PLANTED(moments_count_before_they_came)) job_.held.spoil();
  stop_if_ranks_differ(job_.world);
  job_.rounds.begin_anew(job_.declared.unit_count());  // nothing of the old world is under way any more; what failed there comes out here
  if (!job_.host.session.place().elastic) leave(job_.world, why);
  job_.host.session.cannot_go_on(why);
  const Instant began_to_wait = job_.host.clock.now();
  if (const auto next = job_.host.session.next_generation(Deadline::after(job_.host.clock.now(), job_.host.agree_wait)); !next.ok()) {
    Failure f = next.failure();
    f.what = fmt::format("{} (and before that: {})", f.what, why.what);
    leave(job_.world, std::move(f));
  }
  job_.saves.waited(job_.host.clock.now() - began_to_wait);
  job_.world.renew();
  job_.program_timeout.end_transfer();
  job_.recovery.begin();
  job_.times.begin_generation();
  job_.stragglers.begin_generation();
  job_.initial_values.begin_generation();
  job_.departure.begin_generation();
  job_.memory_checkpoints.begin_generation();
}

void GenerationChange::enter() {
  meet();
  if (job_.recovery.stage() == GenerationRecovery::Stage::shared) go_on_together();
}

void GenerationChange::meet() {
  if (job_.world.over()) rejoin();
  if (!job_.recovery.is_ready()) drop_step();
  if (job_.recovery.stage() == GenerationRecovery::Stage::joining) settle();
  if (job_.recovery.stage() == GenerationRecovery::Stage::settled) share();
}

/// A step that was handed out and is not decided is done again: host state is again what it was when it began.
void GenerationChange::drop_step() {
  const bool undecided = job_.step.revoke();
  job_.rounds.begin_step();
  job_.slot.end();
  job_.scopes.let_go_of_next();
  if (!undecided) return;
  job_.decided.revoke();
  if (!ELRUN_PLANTED(host_state_stays)) job_.variables.put_back();
}

MemberStatus GenerationChange::status() const {
  return {.has_state = job_.held.has_state(),
          .has_host_state = job_.held.has_host_state(),
          .missed_none = job_.recovery.missed_none(),
          .coordinator_changed = job_.recovery.coordinator_changed(),
          .has_begun = job_.held.has_begun(),
          .is_past_restore = job_.held.is_restored(),
          .keeps_position = job_.held.keeps_position(),
          .knowledge = job_.decided.knowledge(),
          .decision = job_.decided.decision(),
          .voted_update = job_.decided.updates().voted(),
          .saved_step = job_.saves.saved_step(),
          .unsaved_for = job_.saves.unsaved_for(),
          .slot = job_.program_timeout.last_slot(),
          .remembered_step = job_.saves.remembered_step(identity(job_.plan(), job_.declared.units()).hash),
          .remembered_decided = job_.host.session.remembered().decided,
          .held = job_.state.held_cut(),
          .checkpoints = job_.memory_checkpoints.held(),
          .whole_parameters = job_.state.is_whole(),
          .node = job_.host.session.place().node.value(),
          .device = job_.host.device,
          .before = job_.recovery.before(),
          .copies = job_.recovery.copies(),
          .evaluations = job_.decided.evaluations(),
          .evaluation = job_.decided.evaluation()};
}

std::vector<Agreement> GenerationChange::agreements() const {
  auto out = job_.declared.agreements();
  out.push_back(directory_agreement(job_.saves.directory()));
  out.push_back(device_agreement(job_.host.device));
  out.push_back(device_model_agreement(job_.host.device_model));
  return out;
}

/// Where a checkpoint may have been saved of which no member with a state knows: the newest one.
SavedCheckpoint GenerationChange::saved_by_others() {
  const std::vector<MemberStatus>& statuses = job_.recovery.statuses();
  if (!job_.saves.has_directory()) return {.is_newest = true};
  const auto beyond = may_be_saved_beyond(job_.state.layout(), statuses, sums());
  const bool has_gap = beyond || may_have_missed_saves(statuses);
  const bool looks = has_gap || may_have_missed_saves_of_another_coordinator(statuses);
  if (!looks || (!beyond && ELRUN_PLANTED(spares_look_for_no_checkpoint))) return {};
  std::vector<MemberStatus> after = statuses;
  const Settled at_best = elrun::settle(job_.state.layout(), after, sums(), {.is_newest = true});
  const std::uint64_t in_memory = at_best.goes_to_memory ? at_best.in_memory->step : 0;
  const auto is_newer_than_ours = [&](const NewestCheckpoint& one) {
    return one.id.step > in_memory && (beyond || is_newer({one.id.step, one.saved_in}, statuses, sums()));
  };
  const auto looked =
      has_gap ? job_.saves.newest(saver(), is_newer_than_ours) : job_.saves.newest_soon(saver(), is_newer_than_ours, job_.held.has_state());
  if (looked.has_answered) job_.recovery.know_what_was_saved(job_.world.membership().generation);
  if (!looked.newest) return {.is_newest = looked.has_answered};
  return {looked.newest->id.step, looked.newest->saved_in, looked.has_answered};
}

Sums GenerationChange::sums() const { return job_.plan().reduce == Reduce::fast ? Sums::of_generation : Sums::alike; }

void GenerationChange::settle() {
  job_.world.now(Call::meeting);
  job_.recovery.attend(job_.world.membership().generation);
  const Instant begun = job_.host.clock.now();
  expect(job_.world, job_.world.join());
  job_.times.connected(begun, job_.host.clock.now());
  const bool has_trained = job_.held.has_state() || !job_.memory_checkpoints.held().empty();
  same_job_everywhere(job_.world, agreements(), has_trained, [&](const std::string& what) {
    job_.host.log.warning(fmt::format("a newcomer is another job and ends, this job goes on without it: {}", what));
  });
  expect(job_.world, job_.array_meeting.meet(job_.world));
  job_.recovery.gather(job_.world, status());
  job_.recovery.settle(job_.state.layout(), sums(), saved_by_others());
  job_.saves.finish_copy();  // of what a recut that is undone gives back
  for (const auto& line : {missed_steps_line(job_.recovery.statuses(), job_.recovery.settled()),
                           going_back_line(job_.recovery.statuses(), job_.recovery.settled())})
    if (line && job_.world.leads()) job_.host.log.warning(*line);
  if (const HeldCut& mine = job_.recovery.statuses()[job_.world.rank()].held; job_.state.held_cut().cut == mine.cut)
    job_.state.undo_recut();
  else job_.state.finish_recut();
  const Settled& settled = job_.recovery.settled();
  job_.memory_checkpoints.keep(settled.in_memory);
  if (job_.held.has_state() && settled.applies(job_.world.rank())) {
    job_.decided.learn(settled.newest_step, settled.decided_in, *settled.decision);
    if (ELRUN_PLANTED(voted_step_counts_unapplied)) job_.decided.apply();
    else apply_decided(job_);
  }
  job_.decided.begin_generation(job_.world.membership());
  job_.recovery.end_settling(job_.state.optimizer_is_whole() || job_.gathers());
}

void GenerationChange::share() {
  job_.finish_readers();
  job_.world.now(Call::meeting);
  ShardMap shards = setup_.shards_of(job_.recovery.nodes());
  const StateTransfer& transfer = job_.recovery.plan_transfer(job_.state.layout(), shards, transfer_facts(shards));
  setup_.plan_world(std::move(shards), transfer.computes());
  setup_.show_to_peers();
  if (transfer.complete) {
    receive_state();
  } else {
    const LostMembers lost = lost_members(job_.recovery.statuses());
    auto line = newer_checkpoint_line(job_.recovery.settled());
    if (!line)
      line =
          lost_state_line(job_.recovery.statuses(), job_.recovery.settled().newest_step, transfer, lost, job_.recovery.nodes_before(),
                          job_.recovery.settled().goes_to_memory ? std::optional{job_.recovery.settled().in_memory->step} : std::nullopt);
    if (line && lost.teller == job_.world.rank()) job_.host.log.warning(*line);
    if (job_.recovery.settled().goes_to_memory) go_on_from_memory(line.value_or(""));
    else load_or_begin(line.value_or(""));
    // Initial values are made by the program before its loop, so all run it from there.
    if (!job_.held.is_found() && job_.recovery.somebody_has_begun()) job_.begin_again();
    job_.held.complete();
    if (job_.held.is_restored()) {  // the program may still be in what it does after a later step
      job_.step.go_back();
      job_.keep_host_state();
    }
  }
  const bool is_on_its_way = transfer.beside && !transfer.held[job_.world.rank()];
  if (!is_on_its_way) job_.state.set_whole(true);
  if (!transfer.beside) tell_of_copies();
  job_.recovery.share();
  if (!is_on_its_way || ELRUN_PLANTED(state_counts_before_it_came)) job_.recovery.state_came(job_.world.membership());
}

/// All have the state.
void GenerationChange::tell_of_copies() {
  if (job_.plan().placement.optimizer == Sharding::mirrored && job_.world.leads())
    if (const auto line = copies_line(job_.recovery.statuses(), *name_of(job_.plan().placement)))
      line->is_warning ? job_.host.log.warning(line->text) : job_.host.log.info(line->text);
  job_.recovery.know_copies();
}

/// From next_step() and restore(): newcomers serve evaluations of the others, then get host state as it is at the head of the loop.
void GenerationChange::go_on_together() {
  while (job_.recovery.somebody_evaluates(job_.world, false, job_.decided.applied())) {
    begin_transfer_beside();
    restore_moments_beside();
    if (!pass_.run(0, nullptr).decided && job_.world.over()) revoked(job_.world);
  }
  if (const StateTransfer& from = job_.recovery.transfer(); from.complete) {
    const bool brings_newcomers = std::ranges::any_of(from.newcomers, std::identity{});
    const ByteVector host_state = brings_newcomers ? host_state_of_giver() : ByteVector{};  // before what every exchange after it waits for
    begin_transfer_beside();
    renew_frozen();
    if (from.newcomers[job_.world.rank()]) take_host_state(host_state);
  }
  restore_moments_beside();
  job_.held.complete();
  job_.recovery.finish();
  job_.times.ready(job_.host.clock.now(), job_.world.exchanged());
}

/// What programs wrote to frozen tensors behind an evaluation, to newcomers that got these before. It costs a hash of what is frozen, and only where that may be older. Cut short, it leaves a mixture: a
/// member without host state, as a newcomer is until all of this is done, gives nobody what is frozen, and gets it again.
void GenerationChange::renew_frozen() {
  const auto runs = job_.state.frozen_parameters();
  std::uint64_t bytes = 0;
  for (const HashedRun& run : runs) bytes += run.bytes.size();
  if (bytes == 0 || !job_.recovery.frozen_may_be_older()) return;
  ByteWriter mine;
  mine.put(hash_of(job_.memory(), runs));
  const auto hashes = expect(job_.world, job_.world.all_gather(mine.bytes()));
  const StateTransfer& from = job_.recovery.transfer();
  std::vector<std::uint32_t> givers, takers;
  for (std::uint32_t r = 0; r < job_.world.size(); ++r) {
    const bool alike = hashes[r] == hashes[from.giver];
    if (alike && !from.newcomers[r]) givers.push_back(r);
    if (!alike && from.newcomers[r]) takers.push_back(r);
  }
  if (takers.empty()) return;
  job_.finish_readers();
  const Delivery moved = job_.state.transfer_frozen(givers, takers, job_.world.size(), job_.world.rank());
  job_.world.set_timeout(std::max(job_.world.timeout(), time_for(bytes) * static_cast<std::int64_t>(takers.size())));
  expect(job_.world, job_.world.exchange_arrays(moved.sends, moved.receives));
  job_.program_timeout.begin_slots();
}

/// From the newest in-memory checkpoint. Cut short, it leaves a mixture in the memory of the state; the checkpoint stays what it is.
void GenerationChange::go_on_from_memory(const std::string& lost) {
  const CompleteCheckpoint& from = *job_.recovery.settled().in_memory;
  const auto holder = std::ranges::find_if(from.held, [](const auto& cut) { return cut.has_value(); }) - from.held.begin();
  const MemberStatus& known = job_.recovery.statuses()[static_cast<std::size_t>(holder)];
  job_.held.begin_anew(true);
  job_.decided.begin_anew(job_.world.membership());
  if (job_.plan().reduce == Reduce::fast) job_.decided.memory() = {};
  if (job_.state.cut() != job_.shards.mine()) job_.state.allocate_anew(job_.shards.mine(), ModelState::Contents::unspecified);
  job_.state.zero_padding();
  // Slots read parameters alone, and a member votes when it has its moments.
  const auto moments = setup_.ranks_compute_apart(job_.shards.map) ? MemoryCheckpoints::Moments::later : MemoryCheckpoints::Moments::now;
  job_.take_host_state(job_.memory_checkpoints.restore(job_.world, job_.state, job_.shards.map, from,
                                                       have_parameters_of(from, job_.recovery.statuses(), sums()), moments));
  job_.held.load();
  job_.decided.doubt_next_update();
  job_.initial_values.forget();
  job_.saves.set_saved_step(known.saved_step);
  if (!from.held[job_.world.rank()]) job_.saves.hear_unsaved_for(known.unsaved_for);
  job_.saves.went_on_from_memory(from.step, job_.recovery.settled().known_step, lost);
  open_saves(JobSaves::Then::saves);
}

void GenerationChange::restore_moments_beside() {
  if (const auto& from = job_.recovery.settled().in_memory)
    job_.memory_checkpoints.restore_moments_beside(job_.world, job_.state, job_.shards.map, *from);
}

/// From a checkpoint, or from nothing. `lost`: why members with a state go back, if there are any.
void GenerationChange::load_or_begin(const std::string& lost) {
  const Generation& generation = job_.world.membership().generation;
  job_.held.begin_anew(job_.saves.has_directory());
  job_.saves.forget_restored();
  job_.decided.begin_anew(job_.world.membership());
  // Sums of another world give other weights, and what the program passes to apply() may follow from those.
  if (job_.plan().reduce == Reduce::fast) job_.decided.memory() = {};
  if (job_.state.cut() != job_.shards.mine()) job_.state.allocate_anew(job_.shards.mine(), ModelState::Contents::zeros);
  if (!job_.saves.has_directory()) {
    if (generation.number > 1 && job_.world.leads())
      job_.host.log.warning(fmt::format("generation {} begins the job again from nothing, for no checkpoint directory is configured{}",
                                        to_string(generation), job_.plan().reduce == Reduce::exact ? "; the bits will be the same" : ""));
    return;
  }
  open_saves(JobSaves::Then::restore);
  job_.state.zero_padding();
  const auto aux = job_.saves.restore(job_.recovery.settled().known_step, lost);
  if (!aux.has_value()) return;
  if (const auto doubt = device_doubt(*aux, job_.host.device, job_.host.device_model); doubt && job_.world.leads())
    job_.host.log.warning(*doubt);
  if (const auto changed = tensor_options_doubt(*aux, job_.declared.units(), job_.state.layout()); changed && job_.world.leads())
    job_.host.log.warning(*changed);
  job_.take_host_state(*aux);
  job_.saves.set_saved_step(job_.decided.applied());
  job_.held.load();
  job_.decided.doubt_next_update();
  job_.initial_values.forget();
}

Saver GenerationChange::saver() const {
  const Membership& here = job_.world.membership();
  return {job_.host.session.place().run.value(),
          here.generation,
          here.rank,
          here.world,
          identity(job_.plan(), job_.declared.units()),
          model_table(job_.declared.units(), job_.state.layout(), job_.plan().optimizer),
          job_.host.begin_anew};
}

void GenerationChange::open_saves(JobSaves::Then then) {
  if (!job_.saves.has_directory()) return;
  job_.saves.open(
      saver(),
      HostFragments{slices_to_write(job_.state.to_save(job_.shards.map, job_.world.rank()), job_.world.rank(), job_.world.size()),
                    job_.state.memory()},
      HostFragments{job_.state.to_load(), job_.state.memory()}, job_.variables.bytes(), then);
}

/// From the members that have it. A shard that is cut otherwise now keeps its old memory until all have theirs.
void GenerationChange::receive_state() {
  const StateTransfer& from = job_.recovery.transfer();
  if (from.moves && job_.state.cut() != job_.shards.mine()) job_.state.begin_recut(job_.shards.mine());
  if (from.moves && !from.beside) {
    const bool brings = from.held[job_.world.rank()].has_value();
    if (!brings) {
      job_.held.spoil();                                                   // cut short, it leaves a mixture in the memory of who gets all
      if (job_.plan().reduce == Reduce::fast) job_.decided.memory() = {};  // it may be of steps that are done again now, with other weights
    }
    try {
      const StateMove moved = job_.state.transfer(from, job_.recovery.statuses(), job_.shards.map, job_.world.rank());
      job_.state.copy(moved.kept);
      job_.world.set_timeout(std::max(job_.world.timeout(), time_for(from, state_bytes())));
      expect(job_.world, job_.world.exchange_arrays(moved.exchange.sends, moved.exchange.receives));
      job_.program_timeout.begin_slots();
    } catch (...) {
      job_.state.undo_recut();
      throw;
    }
    // All of the new shard is here. Who gets everything has no old one: this is its state from here on, whatever the others hear. The others' old shards may be the
    // only ones of their parts until all have their new ones.
    if (brings) job_.state.await_recut(job_.world.membership().generation);
    else job_.state.finish_recut(), take_position_of_giver();
    expect(job_.world, job_.world.agree({}));
    job_.state.finish_recut();
    if (from.newcomers[job_.world.rank()]) job_.held.receive_state();
    const auto newcomers = std::ranges::count(from.newcomers, true);
    if (job_.world.leads() && newcomers > 0)
      job_.host.log.info(fmt::format("step {} goes on: {} of {} workers got the state from the others", job_.recovery.settled().newest_step,
                                     newcomers, job_.world.size()));
  }
  job_.saves.forget_restored();
  if (!from.beside || from.held[job_.world.rank()]) take_position_of_giver();
  open_saves(JobSaves::Then::saves);
}

/// Who brings a shard goes on at once, with slots; who gets everything waits here. The update of the next step changes what is read, so it comes after (`finish_readers`), as does every other exchange.
/// Who gets another shard has it before it votes (`JobParts::await_state`). So when a step is decided, all have theirs, and the old ones go. Where an evaluation comes first it goes beside the slots of that: until all
/// have theirs, what a lost member held may be there but once.
void GenerationChange::begin_transfer_beside() {
  const StateTransfer& from = job_.recovery.transfer();
  if (!from.beside || !job_.recovery.begins_transfer()) return;
  const bool brings = from.held[job_.world.rank()].has_value();
  if (!brings && ELRUN_PLANTED(state_counts_before_it_came)) {
    take_position_of_giver();
  } else if (!brings) {
    job_.held.spoil();  // as in receive_state()
    if (job_.plan().reduce == Reduce::fast) job_.decided.memory() = {};
  }
  StateMove moved = job_.state.transfer(from, job_.recovery.statuses(), job_.shards.map, job_.world.rank());
  constexpr int slots_may_take = 8;  // times as long as the last ones: a newcomer has none of its own from which it could tell
  job_.program_timeout.begin_transfer(time_for(from, state_bytes()) +
                                      slots_may_take * slots_beside(from, job_.recovery.statuses(), job_.plan().slots()));
  const auto get_all = std::ranges::count_if(from.held, [](const auto& theirs) { return !theirs.has_value(); });
  if (job_.world.leads() && get_all > 0)
    job_.host.log.info(fmt::format("step {} goes on: {} of {} workers get the state from the others, which compute meanwhile",
                                   job_.recovery.settled().newest_step, get_all, job_.world.size()));
  const auto arrived = [this, brings, kept = std::move(moved.kept), in = job_.world.membership().generation] {
    job_.state.copy(kept);
    if (brings) job_.state.await_recut(in);
  };
  job_.world.exchange_beside(std::move(moved.exchange.sends), std::move(moved.exchange.receives), Call::state, arrived);
  if (brings) return;
  expect(job_.world, job_.world.finish_beside());
  job_.state.finish_recut();
  job_.state.set_whole(true);
  job_.recovery.state_came(job_.world.membership());
  take_position_of_giver();
}

std::uint64_t GenerationChange::state_bytes() const {
  const Layout& layout = job_.state.layout();
  return (layout.parameters + job_.state.moments() * layout.gradients) * sizeof(float);
}

/// Newcomers run slots from the second step of their world on.
void GenerationChange::begin_next_step() {
  if (job_.decided.applied() == job_.recovery.settled().newest_step || !job_.recovery.ends_transfer()) return;
  tell_of_copies();
  job_.program_timeout.end_transfer();
  if (!job_.shards.all_compute()) setup_.let_all_compute();
}

/// In-memory checkpoints begin with one before the first step of each world, which would wait for the state. Where memory is limited the way to exchange gradients was chosen with slots for all ranks.
TransferFacts GenerationChange::transfer_facts(const ShardMap& shards) const {
  const std::uint64_t step = job_.recovery.settled().newest_step;
  std::uint64_t shard = 0;  // the largest
  if (!job_.state.optimizer_is_whole())
    for (const Cut& cut : shards.cuts) shard = std::max(shard, elements(pieces(job_.state.layout(), cut)));
  const std::uint64_t shard_bytes = job_.state.moments() * shard * sizeof(float);
  return {.reduce = job_.plan().reduce,
          .state_bytes = job_.state.optimizer_is_whole() ? state_bytes() : job_.state.layout().parameters * sizeof(float) + shard_bytes,
          .shard_bytes = shard_bytes,
          .rate = job_.host.state_rate,
          .is_saved_by_number = job_.saves.has_directory() && job_.saves.is_due_by_number(step),
          .slots_left = step < job_.plan().steps ? job_.plan().slots() : 0,
          .ranks_compute_apart =
              job_.memory_checkpoints.every() == 0 && job_.plan().memory_per_rank == 0 && setup_.ranks_compute_apart(shards)};
}

/// How far the job is, with a state that is this member's now.
void GenerationChange::take_position_of_giver() {
  const StateTransfer& from = job_.recovery.transfer();
  if (!from.held[job_.world.rank()]) job_.decided.take_decision(job_.recovery.giver().decision), job_.held.receive_state();
  job_.saves.set_saved_step(job_.recovery.giver().saved_step);
  if (from.newcomers[job_.world.rank()]) job_.saves.hear_unsaved_for(job_.recovery.giver().unsaved_for);
  job_.decided.go_on_at(job_.world.membership(), job_.recovery.settled().newest_step, job_.recovery.giver().knowledge.decided_in);
}

ByteVector GenerationChange::host_state_of_giver() {
  const StateTransfer& from = job_.recovery.transfer();
  const ByteVector mine = from.giver == job_.world.rank() ? encode(job_.host_state()) : ByteVector{};
  auto parts = expect(job_.world, job_.world.all_gather(mine));
  return std::move(parts[from.giver]);
}

void GenerationChange::take_host_state(const ByteVector& encoded) {
  job_.take_host_state(expect(job_.world, decode_host_state(encoded)));
  job_.decided.go_on_at(job_.world.membership(), job_.recovery.settled().newest_step, job_.recovery.giver().knowledge.decided_in);
  job_.held.receive_host_state();
}

}  // namespace elrun::inline v0
