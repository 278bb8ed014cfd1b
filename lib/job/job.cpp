// The job's calls, and its program's run.

#include <algorithm>
#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/device/current_device.hpp"
#include "lib/job/begin_again.hpp"
#include "lib/job/declare/memory_table.hpp"
#include "lib/job/declare/sampler.hpp"
#include "lib/job/fp_environment.hpp"
#include "lib/job/job_impl.hpp"
#include "lib/job/revoked.hpp"

namespace elrun::inline v0 {

// ---- declarations

void Job::Impl::configure(const Plan& wanted, const CheckpointOptions& checkpoint) {
  parts.require_callable();
  parts.declared.configure(wanted, checkpoint);
  parts.saves.configure(checkpoint);
  parts.memory_checkpoints.configure(checkpoint.in_memory_every);
}

void Job::Impl::register_state(std::string_view name, std::span<std::byte> bytes) {
  parts.require_callable();
  require(parts.declared.is_configured(), "state comes after configure()");
  require(!parts.held.is_restored(), "state is registered after restore(); register all of it before");
  parts.variables.add(name, bytes);
}

void Job::Impl::seal() {
  parts.require_callable();
  Layout layout = parts.declared.lay_out();
  const std::unique_ptr<Impl> before = std::move(before_);
  const bool keeps = before != nullptr && may_take_from(before->parts);
  if (!keeps) setup.require_memory(layout);
  setup.allocate(keeps ? &before->parts : nullptr, std::move(layout));
  if (keeps) take_position(before->parts);
  else if (before != nullptr && declares_the_same(before->parts)) keep_memory_checkpoints(before->parts);
  parts.declared.seal();
  if (!parts.world.leads() || parts.host.session.place().restart_count > 0) return;  // it was said before
  setup.show_memory();
  if (!parts.host.why_on_host.empty())
    parts.host.log.info(fmt::format(
        "computes on the CPU, for no CUDA device can be used here: {}. ELRUN_DEVICE=cuda makes that an error, ELRUN_DEVICE=cpu leaves this line out",
        parts.host.why_on_host));
}

void Job::Impl::go_on_from(std::unique_ptr<Impl> before) {
  parts.decided.memory() = std::move(before->parts.decided.memory());
  parts.program_timeout.continue_from(before->parts.program_timeout);
  parts.array_meeting.continue_from(before->parts.array_meeting);
  before_ = std::move(before);
}

/// Whether this run of the program declared the same, and the state of the one before is whole, host state too.
bool Job::Impl::may_take_from(const JobParts& before) const {
  if (!before.held.has_state() || (!before.step.is_undecided() && !before.variables.empty())) return false;
  return declares_the_same(before);
}

bool Job::Impl::declares_the_same(const JobParts& before) const {
  return before.declared.is_sealed() &&
         std::ranges::equal(parts.declared.agreements(), before.declared.agreements(), {}, &Agreement::text, &Agreement::text);
}

/// The state of the run before is lost, or not all of it is there. Its parts of in-memory checkpoints may be the only ones, and who holds such a part has what is frozen. What counts is also in which
/// generations it had a place since, and what it knows to be on storage.
void Job::Impl::keep_memory_checkpoints(JobParts& before) {
  parts.memory_checkpoints.continue_from(before.memory_checkpoints);
  if (parts.memory_checkpoints.held().empty()) return;
  parts.recovery.continue_from(before.recovery);
  parts.saves.continue_from(before.saves);
  for (std::uint32_t u = 0; u < parts.state.layout().units.size(); ++u)
    parts.memory().copy(std::as_bytes(before.state.frozen(u)), std::as_writable_bytes(parts.state.frozen(u)));
}

/// How far the run before had come, with the state that was taken from it. Its variables are gone: what they were when its last step was handed
/// out is for those of this run.
void Job::Impl::take_position(JobParts& before) {
  parts.decided.continue_from(before.decided, before.step.is_undecided());
  parts.saves.continue_from(before.saves);
  parts.memory_checkpoints.continue_from(before.memory_checkpoints);
  parts.recovery.continue_from(before.recovery);
  parts.held.take_over();
  parts.variables.inherit(before.variables.kept());
}

std::string Job::Impl::plan_table(std::uint32_t ranks, std::uint32_t ranks_per_node) const {
  require(parts.declared.is_configured(), "plan_table comes after configure()");
  require(ranks > 0, "plan_table(0): a world has at least one rank");
  if (const auto wrong = problems(parts.declared.units()); !wrong.empty()) throw Error{invalid(wrong)};
  return memory_table(parts.plan(), parts.declared.units(), ranks, ranks_per_node, parts.host.device.kind,
                      parts.memory_checkpoints.every() > 0);
}

Restored Job::Impl::restore() {
  parts.require_callable();
  require(parts.declared.is_sealed(), "restore comes after seal()");
  require(!parts.held.is_restored(), "restore is called twice");
  if (!parts.variables.take_inherited()) parts.held.lose();  // as of a newcomer
  parts.program_timeout.begin_slots();                       // some may load for long before their first step
  // The others run steps until this member asks for its place, and stand still while it gets the state.
  if (parts.world.over() && !parts.held.has_state()) parts.state.make_resident();
  while (!parts.recovery.is_ready()) {
    try {
      change.enter();
    } catch (const Revoked&) {
    }
  }
  parts.held.restored(parts.recovery.somebody_runs());
  parts.initial_values.allow(!parts.held.is_found());
  parts.variables.keep();
  if (parts.decided.applied() > parts.plan().steps && parts.world.leads())
    parts.host.log.warning(fmt::format("the checkpoint is at step {}, the plan asks for {}: nothing is left to do", parts.decided.applied(),
                                       parts.plan().steps));
  return restored();
}

Restored Job::Impl::restored() const {
  Restored restored = parts.saves.restored();
  if (!parts.held.is_found()) restored.from = Restored::From::nothing;
  else if (restored.from == Restored::From::nothing)
    restored = {.from = Restored::From::members, .why = "workers of the job have the state in memory"};
  restored.step = parts.decided.applied();
  return restored;
}

std::optional<std::uint64_t> Job::Impl::next_step() {
  parts.require_callable();
  require(parts.held.is_restored(), "next_step comes after restore()");
  parts.require_scopes_ended_well();
  parts.step.ask();
  if (parts.outcome.has_value()) return std::nullopt;
  require(!parts.step.is_open() || parts.world.over(), "next_step is called before the step was applied");
  parts.scopes.require_all_closed("next_step()");
  if (const auto wrong = fp_environment_problem()) throw Error{invalid(*wrong)};
  for (;;) {
    try {
      change.enter();
      parts.world.now(Call::next_step);
      if (parts.gathers() && !parts.scopes.end_phase(parts.phase())) revoked(parts.world);
      const std::uint64_t step = parts.decided.applied();
      const bool is_done = step >= parts.plan().steps || parts.decided.ends();
      if (parts.initial_values.is_due()) comparison.begin(!is_done && !parts.saves.is_due(step));
      parts.held.come_to_next_step();
      if (is_done) {
        if (parts.saves.has_directory() && parts.memory_checkpoints.is_due(step, parts.world.size(), parts.saves.saved_step() != step))
          take_memory_checkpoint(false);
        end.finish();
        return std::nullopt;
      }
      parts.saves.hear();
      const bool saves = parts.saves.is_due(step), keeps = parts.memory_checkpoints.is_due(step, parts.world.size(), saves);
      const bool beside = keeps && !saves && !parts.rounds.in_phases() &&
                          parts.memory_checkpoints.may_come_beside(step, parts.recovery.settled().in_memory, parts.plan().overlap);
      const Instant begun = parts.host.clock.now();
      if (keeps && !beside) take_memory_checkpoint(false);
      if (saves && !parts.await_state()) revoked(parts.world);
      if (saves) parts.saves.save(step, parts.host_state());
      if (saves || (keeps && !beside)) parts.times.saved(begun, parts.host.clock.now(), parts.world.exchanged());
      if (parts.departure.take_member_leaves()) {
        parts.departure.tell_agent();
        end.wait_until_left();
      }
      change.begin_next_step();
      begin_step();
      if (beside) take_memory_checkpoint(true);
      return step;
    } catch (const Revoked&) {
    }
  }
}

void Job::Impl::begin_step() {
  setup.prepare_for_loss();
  parts.step.begin(parts.host.clock.now());
  parts.times.begin_step(parts.step.begun());
  parts.program_timeout.begin_slots();
  parts.rounds.begin_step();
  parts.slot.end();
  parts.losses_to_come.clear();
  parts.reducer.begin_step();
  parts.initial_values.begin_step();
  parts.keep_host_state();
}

void Job::Impl::take_memory_checkpoint(bool beside) {
  if (!beside && !parts.await_state()) revoked(parts.world);
  parts.memory_checkpoints.take(parts.world, parts.state, parts.shards.map, parts.recovery.nodes(),
                                {.step = parts.decided.applied(), .host_state = parts.host_state(), .beside = beside, .room = [this] {
                                   return setup.checkpoint_room();
                                 }});
}

void Job::Impl::stop() {
  parts.require_callable();
  require(parts.held.is_restored(), "stop comes after restore()");
  parts.decided.ask_to_stop();
}

// ---- what users hold

Job::Job(std::unique_ptr<Impl> impl) : impl_{std::move(impl)} {}
Job::~Job() = default;

void Job::configure(const Plan& plan, const CheckpointOptions& checkpoint) { impl_->configure(plan, checkpoint); }
const Plan& Job::plan() const {
  if (!impl_->parts.declared.is_configured()) throw Error{invalid("plan() comes after configure()")};
  return impl_->parts.declared.plan();
}
Unit Job::unit(std::string_view name) { return Unit{&impl_->unit(name)}; }
void Job::register_state(std::string_view name, std::span<std::byte> bytes) { impl_->register_state(name, bytes); }
void Job::seal() { impl_->seal(); }
std::string Job::plan_table(std::uint32_t world, std::uint32_t ranks_per_node) const { return impl_->plan_table(world, ranks_per_node); }
Restored Job::restore() { return impl_->restore(); }
RandomStream Job::rng(std::string_view name) const { return named_stream(plan().seed, name); }
std::optional<Step> Job::next_step() {
  if (const auto number = impl_->next_step()) return Step{impl_.get(), *number};
  return std::nullopt;
}
Evaluation Job::evaluate(std::uint64_t count, const std::function<void(Slot&)>& forward) {
  return impl_->evaluations.evaluate(count, forward);
}
void Job::stop() { impl_->stop(); }
const Outcome& Job::outcome() const {
  impl_->parts.require_callable();
  if (!impl_->parts.outcome.has_value())
    throw Error{invalid("outcome() comes after next_step() returned nothing; to end early call job.stop(), and go on until then")};
  return *impl_->parts.outcome;
}
void Job::print(std::string_view line) {
  if (prints()) impl_->parts.host.out(line);
}
bool Job::prints() const { return impl_->prints(); }
std::uint32_t Job::compute_threads() const { return impl_->parts.host.threads; }
Device Job::device() const { return impl_->parts.host.device; }
Stream Job::stream() const { return impl_->parts.streams.jobs(); }

const JobHost& JobAccess::host(const Job& job) { return job.impl_->parts.host; }
std::uint32_t JobAccess::rank(const Job& job) { return job.impl_->parts.world.rank(); }
std::uint32_t JobAccess::world_size(const Job& job) { return job.impl_->parts.world.size(); }
const PagedArena& JobAccess::parameters(const Job& job) { return job.impl_->parts.state.parameters(); }
const LeafStream& JobAccess::leaf_stream(const Job& job) { return job.impl_->parts.reducer.stream(); }
std::span<float> JobAccess::moment(Job& job, std::size_t index) { return job.impl_->parts.state.moment(index); }
UpdateValues JobAccess::remembered(const Job& job, std::uint64_t step) { return job.impl_->parts.decided.memory().of(step); }
RankBytes JobAccess::held(const Job& job) { return job.impl_->setup.held_bytes(); }
std::uint64_t JobAccess::memory_checkpoint_bytes(const Job& job) { return job.impl_->parts.memory_checkpoints.bytes(); }

namespace {

/// `then`: what became of the program after that.
void tell_caught(const Log& log, std::string_view then) {
  log.warning(fmt::format(
      "the program caught the exception by which it is left where the state was lost ({}). It runs again all the same: let what next_step() throws out of it",
      then));
}

}  // namespace

void JobAccess::drive(const JobHost& job_host, const std::function<void(Job&)>& program) {
  UpdateMemory updates_done;     // a program that runs again does the same steps again
  bool asked_for_steps = false;  // by a run before this one
  Path working_directory;        // in which the first run configured its checkpoints
  std::unique_ptr<Job::Impl> before;
  for (bool again = true; std::exchange(again, false);) {
    // Before the program runs again: it may need long until it asks for its place, and nobody else may know that the generation is over.
    if (before != nullptr) before->change.rejoin();
    Job job{std::make_unique<Job::Impl>(job_host)};
    if (before != nullptr) job.impl_->go_on_from(std::exchange(before, nullptr));
    else job.impl_->parts.decided.memory() = std::exchange(updates_done, {});
    if (asked_for_steps) job.impl_->parts.step.ask();
    job.impl_->parts.saves.set_working_directory(working_directory);
    const Job::Impl& impl = *job.impl_;
    keep_current(job_host.device);  // for the program's own kernels
    try {
      program(job);
      job.impl_->parts.variables.detach();  // they were the program's, which is gone
      if (impl.parts.begins_again) tell_caught(job_host.log, "it returned");
      else job.impl_->end.program_returned();
    } catch (const BeginAgain&) {
      if (!impl.parts.begins_again) throw;  // of a run before this one, which the program has kept
    } catch (const std::exception& e) {
      const auto* const error = dynamic_cast<const Error*>(&e);
      const bool has_to_end = error != nullptr && error->failure().remedy == Remedy::exit_process;  // a device that is lost, say
      if (impl.parts.begins_again && !has_to_end) {
        tell_caught(job_host.log, fmt::format("it was left by another one: {}", e.what()));
      } else if (impl.left_revoked_slot() &&
                 !has_to_end) {  // it is over, as any other revoked slot; but the program's own variables are gone
        job_host.log.info(fmt::format(
            "an exception came out of a slot that the change of the world had revoked ({}): the program runs again in this process, with the state that it has",
            e.what()));
        asked_for_steps = impl.parts.step.was_asked_for();
        working_directory = impl.parts.saves.working_directory();
        before = std::move(job.impl_);
        again = true;
        continue;
      } else {
        if (error == nullptr && impl.parts.world.over()) leave(impl.parts.world, impl.parts.world.why_over());
        if (has_to_end && !error->failure().rank) {  // of a call to a device, which does not know whose it is
          Failure named = error->failure();
          named.rank = impl.parts.world.membership().rank, named.generation = impl.parts.world.membership().generation;
          throw Error{std::move(named)};
        }
        throw;
      }
#ifdef __GLIBCXX__
    } catch (const abi::__forced_unwind&) {  // pthread_cancel and pthread_exit, which must go on
      throw;
#endif
    } catch (...) {
      if (!impl.parts.begins_again) {
        if (impl.parts.world.over())
          leave(impl.parts.world, impl.parts.world.why_over());  // whatever it tripped over was a step that does not count
        throw;
      }
      tell_caught(job_host.log, "it was left by one that is no std::exception");
    }
    if (!impl.parts.begins_again) continue;
    asked_for_steps = impl.parts.step.was_asked_for();
    working_directory = impl.parts.saves.working_directory();
    updates_done = std::move(job.impl_->parts.decided.memory());
    again = true;
  }
}

int exit_code(const Failure& failure) {
  const bool wrong_input = failure.code == Code::invalid_argument || failure.code == Code::mismatch ||
                           (failure.remedy == Remedy::fix_config &&
                            (failure.code == Code::not_permitted || failure.code == Code::not_found || failure.code == Code::no_space ||
                             failure.code == Code::refused || failure.code == Code::corrupt));
  return wrong_input ? 78 : 1;
}

}  // namespace elrun::inline v0
