// From one generation to the next, in the same process. All members go through it together, newcomers from restore(),
// the others from next_step(), from apply() when they had voted, or from an evaluation between two steps: settle (what became of the step
// under way), then share (who lacks parameters and moments gets them from those who have them, or all from a checkpoint), then, once
// all who were there before have come to next_step(), host state.

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/failure.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/declare/same_job.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {

static_assert(HostVariables::bytes_max + (std::uint64_t{1} << 16) <= gather_bytes_max);  // with the job's progress

/// Waits for this process's place in the next generation.
void Job::Impl::rejoin() {
  const Failure why = world.why_over();
  slot_.end();  // the program has left it, so what is thrown here does not come out of a slot
  parameters_hash_.give_up();
  stop_if_ranks_differ(world);
  rounds_.begin_anew(declared.unit_count());  // nothing of the old world is under way any more; what failed there comes out here
  if (!host.session.place().elastic) leave(world, why);
  host.session.cannot_go_on(why);
  const Instant began_to_wait = host.clock.now();
  if (const auto next = host.session.next_generation(Deadline::after(host.clock.now(), host.agree_wait)); !next.ok()) {
    Failure f = next.failure();
    f.what = fmt::format("{} (and before that: {})", f.what, why.what);
    leave(world, std::move(f));
  }
  saves_.waited(host.clock.now() - began_to_wait);
  world.renew();
  recovery_.begin();
  times_.begin_generation();
  stragglers_.begin_generation();
  initial_values_.begin_generation();
  departure_.begin_generation();
}

/// Until this member is ready for a step of the generation at hand, whichever that is.
void Job::Impl::enter() {
  meet();
  if (recovery_.stage() == GenerationRecovery::Stage::shared) go_on_together();
}

/// Until all members have parameters and moments.
void Job::Impl::meet() {
  if (world.over()) rejoin();
  if (!recovery_.is_ready()) drop_step();
  if (recovery_.stage() == GenerationRecovery::Stage::joining) settle();
  if (recovery_.stage() == GenerationRecovery::Stage::settled) share();
}

/// A step that was handed out and is not decided is done again: host state is again what it was when it began.
void Job::Impl::drop_step() {
  const bool undecided = step_.revoke();
  rounds_.begin_step();
  slot_.end();
  scopes_.let_go_of_next();
  if (!undecided) return;
  decided_.revoke();
  if (!ELRUN_PLANTED(host_state_stays)) variables_.put_back();
}

MemberStatus Job::Impl::status() const {
  return {.has_state = held_.has_state(),
          .has_host_state = held_.has_host_state(),
          .has_begun = held_.has_begun(),
          .is_past_restore = held_.is_restored(),
          .keeps_position = held_.keeps_position(),
          .knowledge = decided_.knowledge(),
          .decision = decided_.decision(),
          .voted_update = decided_.updates().voted(),
          .saved_step = saves_.saved_step(),
          .unsaved_for = saves_.unsaved_for(),
          .remembered_step = saves_.remembered_step(identity(plan(), declared.units()).hash),
          .held = state_.held_cut(),
          .whole_parameters = state_.is_whole(),
          .node = host.session.place().node.value(),
          .device = host.device,
          .before = recovery_.before(),
          .copies = recovery_.copies(),
          .evaluations = decided_.evaluations(),
          .evaluation = decided_.evaluation()};
}

/// Learns what became of the step for which members voted in the generation before, and applies it if it was decided.
void Job::Impl::settle() {
  world.now(Call::meeting);
  const Instant begun = host.clock.now();
  expect(world, world.join());
  times_.connected(begun, host.clock.now());
  same_job_everywhere(world, agreements());
  expect(world, array_meeting_.meet(world));
  recovery_.gather(world, state_.layout(), status(), plan().reduce == Reduce::fast ? Sums::of_generation : Sums::alike);
  if (const auto line = going_back_line(recovery_.statuses(), recovery_.settled()); line && world.leads()) host.log.warning(*line);
  if (const HeldCut& mine = recovery_.statuses()[world.rank()].held; state_.held_cut().cut == mine.cut) state_.undo_recut();
  else state_.finish_recut();
  const Settled& settled = recovery_.settled();
  if (held_.has_state() && settled.applies(world.rank())) {
    decided_.learn(settled.newest_step, settled.decided_in, *settled.decision);
    if (ELRUN_PLANTED(voted_step_counts_unapplied)) decided_.apply();
    else apply_decided();
  }
  decided_.begin_generation(world.membership());
  recovery_.end_settling(state_.optimizer_is_whole() || gathers());
}

void Job::Impl::share() {
  finish_readers();
  world.now(Call::meeting);
  plan_world(recovery_.nodes());
  show_to_peers();
  const StateTransfer& transfer = recovery_.plan_transfer(state_.layout(), shards_.map);
  if (transfer.complete) {
    receive_state();
  } else {
    const LostMembers lost = lost_members(recovery_.statuses());
    const auto line = lost_state_line(recovery_.statuses(), recovery_.settled().newest_step, transfer, lost, recovery_.nodes_before());
    if (line && lost.teller == world.rank()) host.log.warning(*line);
    load_or_begin(line.value_or(""));
    // Initial values are made by the program before its loop, so all run it from there.
    if (!held_.is_found() && recovery_.somebody_has_begun()) throw BeginAgain{};
    held_.complete();
    if (held_.is_restored()) {  // the program may still be in what it does after a later step
      step_.go_back();
      keep_host_state();
    }
  }
  state_.set_whole(true);
  if (plan().placement.optimizer == Sharding::mirrored && world.leads())
    if (const auto line = copies_line(recovery_.statuses(), *name_of(plan().placement)))
      line->is_warning ? host.log.warning(line->text) : host.log.info(line->text);
  recovery_.share(world.membership());
}

/// From next_step() and restore(): newcomers serve evaluations of the others, then get host state as it is at the head of the loop.
void Job::Impl::go_on_together() {
  while (recovery_.somebody_evaluates(world, false, decided_.applied()))
    if (!run_evaluation(0, nullptr).decided && world.over()) revoked(world);
  if (recovery_.transfer().complete && recovery_.transfer().moves) move_host_state();
  held_.complete();
  recovery_.finish();
  times_.ready(host.clock.now(), world.exchanged());
}

/// From a checkpoint, or from nothing. `lost`: why members with a state go back, if there are any.
void Job::Impl::load_or_begin(const std::string& lost) {
  const Generation& generation = world.membership().generation;
  held_.begin_anew(saves_.has_directory());
  saves_.forget_restored();
  decided_.begin_anew(world.membership());
  // Sums of another world give other weights, and what the program passes to apply() may follow from those.
  if (plan().reduce == Reduce::fast) decided_.memory() = {};
  if (state_.cut() != shards_.mine()) state_.allocate_anew(shards_.mine());
  if (!saves_.has_directory()) {
    if (generation.number > 1 && world.leads())
      host.log.warning(fmt::format("generation {} begins the job again from nothing, for no checkpoint directory is configured{}",
                                   to_string(generation), plan().reduce == Reduce::exact ? "; the bits will be the same" : ""));
    return;
  }
  open_saves(JobSaves::Then::restore);
  state_.zero_padding();
  const auto aux = saves_.restore(recovery_.settled().known_step, lost);
  if (!aux.has_value()) return;
  if (const auto doubt = device_doubt(*aux, host.device); doubt && world.leads()) host.log.warning(*doubt);
  take_host_state(*aux);
  saves_.set_saved_step(decided_.applied());
  held_.load();
  decided_.doubt_next_update();
  initial_values_.forget();
}

void Job::Impl::open_saves(JobSaves::Then then) {
  if (!saves_.has_directory()) return;
  saves_.open(Saver{host.session.place().run.value(), world.membership().generation, world.membership().rank, world.membership().world,
                    identity(plan(), declared.units()), model_table(declared.units(), state_.layout(), plan().optimizer), host.begin_anew},
              HostFragments{slices_to_write(state_.to_save(shards_.map, world.rank()), world.rank(), world.size()), state_.memory()},
              HostFragments{state_.to_load(), state_.memory()}, then);
}

/// From the members that have it. A shard that is cut otherwise now keeps its old memory until all have theirs.
void Job::Impl::receive_state() {
  const StateTransfer& from = recovery_.transfer();
  if (from.moves) {
    const bool brings = from.held[world.rank()].has_value();
    if (!brings) {
      held_.spoil();                                              // cut short, it leaves a mixture in the memory of who gets all
      if (plan().reduce == Reduce::fast) decided_.memory() = {};  // it may be of steps that are done again now, with other weights
    }
    if (state_.cut() != shards_.mine()) state_.begin_recut(shards_.mine());
    try {
      const Delivery moved = state_.transfer(from, recovery_.statuses(), shards_.map, world.rank());
      expect(world, world.exchange_arrays(moved.sends, moved.receives));
    } catch (...) {
      state_.undo_recut();
      throw;
    }
    // All of the new shard is here. Who gets everything has no old one: this is its state from here on, whatever the others hear. The others' old shards may be the
    // only ones of their parts until all have their new ones.
    if (brings) state_.await_recut(world.membership().generation);
    else state_.finish_recut(), take_position_of_giver();
    expect(world, world.agree({}));
    state_.finish_recut();
    if (from.newcomers[world.rank()]) held_.receive_state();
    const auto newcomers = std::ranges::count(from.newcomers, true);
    if (world.leads() && newcomers > 0)
      host.log.info(fmt::format("step {} goes on: {} of {} workers got the state from the others", recovery_.settled().newest_step,
                                newcomers, world.size()));
  }
  saves_.forget_restored();
  take_position_of_giver();
  open_saves(JobSaves::Then::saves);
}

/// How far the job is, with a state that is this member's now.
void Job::Impl::take_position_of_giver() {
  const StateTransfer& from = recovery_.transfer();
  if (!from.held[world.rank()]) decided_.take_decision(recovery_.giver().decision), held_.receive_state();
  saves_.set_saved_step(recovery_.giver().saved_step);
  if (from.newcomers[world.rank()]) saves_.hear_unsaved_for(recovery_.giver().unsaved_for);
  decided_.go_on_at(world.membership(), recovery_.settled().newest_step, recovery_.giver().knowledge.decided_in);
}

void Job::Impl::move_host_state() {
  const StateTransfer& from = recovery_.transfer();
  ByteWriter mine;
  if (from.giver == world.rank())
    for (const Aux& a : host_state()) mine.put_text(a.name), mine.put_bytes(a.bytes);
  const auto parts = expect(world, world.all_gather(mine.bytes()));
  if (!from.newcomers[world.rank()]) return;
  std::vector<Aux> aux;
  ByteReader reader{parts[from.giver]};
  while (reader.left() > 0 && !reader.broken()) {
    std::string name = reader.get_text(reader.left());
    const ByteSpan bytes = reader.get_bytes(reader.left());
    aux.push_back({std::move(name), {bytes.begin(), bytes.end()}});
  }
  expect(world, reader.finish("the host state of another member"));
  take_host_state(aux);
  decided_.go_on_at(world.membership(), recovery_.settled().newest_step, recovery_.giver().knowledge.decided_in);
  held_.receive_host_state();
}

}  // namespace elrun::inline v0
