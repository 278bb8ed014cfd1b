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
/// Waits for this process's place in the next generation.
void Job::Impl::rejoin() {
  const Failure why = world.why_over();
  stop_if_ranks_differ(world);
  comm_thread_.begin_anew(declared.unit_count());  // nothing of the old world is under way any more; what failed there comes out here
  if (!host.session.place().elastic) leave(world, why);
  host.session.cannot_go_on(why);
  if (const auto next = host.session.next_generation(Deadline::after(host.clock.now(), host.agree_wait)); !next.ok()) {
    Failure f = next.failure();
    f.what = fmt::format("{} (and before that: {})", f.what, why.what);
    leave(world, std::move(f));
  }
  world.renew();
  stage_ = Stage::joining;
  initial_values_.begin_generation();
  departure_.begin_generation();
}

/// Until this member is ready for a step of the generation at hand, whichever that is.
void Job::Impl::enter() {
  meet();
  if (stage_ == Stage::shared) go_on_together();
}

/// Until all members have parameters and moments.
void Job::Impl::meet() {
  if (world.over()) rejoin();
  if (stage_ != Stage::ready) drop_step();
  if (stage_ == Stage::joining) settle();
  if (stage_ == Stage::settled) share();
}

/// A step that was handed out and is not decided is done again: host state is again what it was when it began.
void Job::Impl::drop_step() {
  const bool undecided = step_.revoke();
  slots_through_ = 0;
  slot_.end();
  let_go_of_next();
  if (!undecided) return;
  decided_.revoke();
  if (!ELRUN_PLANTED(host_state_stays)) variables_.put_back();
}

MemberStatus Job::Impl::status() const {
  return {.has_state = held_.has_state(),
          .has_host_state = held_.has_host_state(),
          .has_begun = held_.has_begun(),
          .knowledge = decided_.knowledge(),
          .decision = decided_.decision(),
          .voted_update = decided_.updates().voted(),
          .saved_step = saves_.saved_step(),
          .cut = state_.cut(),
          .whole_parameters = state_.is_whole(),
          .node = host.session.place().node.value(),
          .evaluations = decided_.evaluations(),
          .evaluation = decided_.evaluation()};
}

/// Learns what became of the step for which members voted in the generation before, and applies it if it was decided.
void Job::Impl::settle() {
  world.now(Call::meeting);
  expect(world, world.join());
  same_job_everywhere(world, declared.agreements());
  const auto parts = expect(world, world.all_gather(encode(status())));
  statuses_.clear();
  for (const ByteVector& part : parts) statuses_.push_back(expect(world, decode_member_status(part)));
  settled_ = elrun::settle(statuses_, plan().reduce == Reduce::fast ? Sums::of_generation : Sums::alike);
  if (auto same = check_same_update(statuses_, settled_.newest_step); !same.ok()) throw Error{std::move(same).failure()};
  if (held_.has_state() && settled_.applies(world.rank())) {
    decided_.learn(settled_.newest_step, settled_.decided_in, *settled_.decision);
    if (ELRUN_PLANTED(voted_step_counts_unapplied)) decided_.apply();
    else apply_decided();
  }
  bring_up_to_date(statuses_, settled_, state_.optimizer_is_whole() || gathers());
  decided_.begin_generation(world.membership());
  stage_ = Stage::settled;
}

void Job::Impl::share() {
  world.now(Call::meeting);
  std::vector<std::string> names;
  for (const MemberStatus& s : statuses_) names.push_back(s.node);
  plan_world(number_nodes(names));
  show_to_peers();
  transfer_ = plan_state_transfer(state_.layout(), statuses_, settled_.newest_step, shard_map_.cuts);
  if (transfer_.complete) {
    receive_state(transfer_);
  } else {
    if (transfer_.found && world.leads())
      host.log.warning(
          fmt::format("part of the state of step {} was lost with a worker: all go back to the newest checkpoint, or to the beginning",
                      settled_.newest_step));
    load_or_begin();
    // Initial values are made by the program before its loop, so all run it from there.
    if (!held_.is_found() && std::any_of(statuses_.begin(), statuses_.end(), [](const MemberStatus& s) { return s.has_begun; }))
      throw BeginAgain{};
    held_.complete();
    if (held_.is_restored()) {  // the program may still be in what it does after a later step
      step_.go_back();
      keep_host_state();
    }
  }
  state_.set_whole(true);
  stage_ = Stage::shared;
}

/// From next_step() and restore(): newcomers serve evaluations of the others, then get host state as it is at the head of the loop.
void Job::Impl::go_on_together() {
  while (somebody_evaluates(false))
    if (!run_evaluation(0, nullptr).decided && world.over()) revoked(world);
  if (transfer_.complete && transfer_.moves) move_host_state(transfer_);
  held_.complete();
  stage_ = Stage::ready;
}

/// From a checkpoint, or from nothing.
void Job::Impl::load_or_begin() {
  const Generation& generation = world.membership().generation;
  held_.begin_anew(saves_.has_directory());
  decided_.begin_anew(world.membership());
  if (state_.cut() != my_cut()) state_.allocate_anew(my_cut());
  if (!saves_.has_directory()) {
    if (generation.number > 1 && world.leads())
      host.log.warning(
          fmt::format("generation {} begins the job again from nothing, for no checkpoint directory is configured; "
                      "the bits will be the same",
                      to_string(generation)));
    return;
  }
  open_saves();
  state_.zero_padding();
  const auto aux = saves_.restore();
  if (!aux.has_value()) return;
  take_host_state(*aux);
  saves_.set_saved_step(decided_.applied());
  held_.load();
  decided_.doubt_next_update();
  initial_values_.forget();
}

void Job::Impl::open_saves() {
  if (!saves_.has_directory()) return;
  saves_.open(Saver{host.session.place().run.value(), world.membership().generation, world.membership().rank, world.membership().world,
                    identity(plan()), model_table(declared.units(), state_.layout(), plan().optimizer), host.begin_anew},
              state_.to_save(shard_map_, world.rank()), state_.to_load());
}

/// From the members that have it. A shard that is cut otherwise now keeps its old memory until all have theirs.
void Job::Impl::receive_state(const StateTransfer& from) {
  if (from.moves) {
    // Cut short, it leaves a mixture in the memory of who gets all.
    if (!from.held[world.rank()]) held_.spoil();
    if (state_.cut() != my_cut()) state_.begin_recut(my_cut());
    try {
      const Delivery moved = state_.transfer(from, statuses_, shard_map_, world.rank());
      expect(world, world.exchange(moved.sends, moved.receives));
      expect(world, world.agree({}));
    } catch (...) {
      state_.undo_recut();
      throw;
    }
    state_.finish_recut();
    if (from.newcomers[world.rank()]) held_.receive_state();
    const auto newcomers = std::ranges::count(from.newcomers, true);
    if (world.leads() && newcomers > 0)
      host.log.info(
          fmt::format("step {} goes on: {} of {} workers got the state from the others", settled_.newest_step, newcomers, world.size()));
  }
  if (!from.held[world.rank()]) decided_.take_decision(statuses_[from.giver].decision);
  saves_.set_saved_step(statuses_[from.giver].saved_step);
  decided_.go_on_at(world.membership(), settled_.newest_step, statuses_[from.giver].knowledge.decided_in);
  open_saves();
}

void Job::Impl::move_host_state(const StateTransfer& from) {
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
  decided_.go_on_at(world.membership(), settled_.newest_step, statuses_[from.giver].knowledge.decided_in);
  held_.receive_host_state();
}

}  // namespace elrun::inline v0
