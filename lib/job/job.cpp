// The job: declarations, memory, restore, the loop's head, and the end.

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "kernels/state_hash.hpp"
#include "lib/base/assert.hpp"
#include "lib/base/bytes.hpp"
#include "lib/base/failure.hpp"
#include "lib/device/current_device.hpp"
#include "lib/job/declare/memory_report.hpp"
#include "lib/job/declare/memory_table.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/declare/sampler.hpp"
#include "lib/job/fp_environment.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration finish_wait = 30s;  // for the agent to hear that the job is over
constexpr Duration leave_wait = 1s;    // for the agent to leave, once the job has saved
constexpr Duration leave_look = 10ms;  // whether it has

}  // namespace

Job::Impl::Impl(JobHost job_host) : host{std::move(job_host)}, world{host.session, host.join, {host.arrays, &host.clock}} {}

void Job::Impl::require(bool holds, std::string_view what) const {
  if (!holds) throw Error{invalid(std::string{what})};
}

// ---- declarations

void Job::Impl::configure(const Plan& wanted, const CheckpointOptions& checkpoint) {
  declared.configure(wanted, checkpoint);
  saves_.configure(checkpoint);
}

void Job::Impl::register_state(std::string_view name, std::span<std::byte> bytes) {
  require(declared.is_configured(), "state comes after configure()");
  require(!held_.is_restored(), "state is registered after restore(); register all of it before");
  variables_.add(name, bytes);
}

// ---- memory

void Job::Impl::seal() {
  Layout layout = declared.lay_out();
  const std::unique_ptr<Impl> before = std::move(before_);
  const bool keeps = before != nullptr && may_take_from(*before);
  if (!keeps && host.memory != 0 && shared_buffers_.on_host()) {  // a device that has too little says so when it is asked
    const ShardMap shards = shard_map(plan().placement.optimizer, guess_my_nodes());
    if (auto why = exceeds_machine(plan(), declared.units(), layout, shards, world.rank(), host.memory)) throw Error{invalid(*why)};
  }
  allocate(keeps ? before.get() : nullptr, std::move(layout));
  if (keeps) take_position(*before);
  declared.seal();
  if (world.leads() && host.session.place().restart_count == 0) show_memory();  // it was said before
}

/// By rank, its node, from what this rank knows of its own.
std::vector<std::uint32_t> Job::Impl::guess_my_nodes() const {
  const Place& place = host.session.place();
  return guess_nodes(world.size(), world.rank(), place.local_world, place.local_rank.value());
}

/// What no change of the world moves, and what follows from this rank's place in it as far as that is known.
/// `before`: whose parameters and moments are taken over.
void Job::Impl::allocate(Impl* before, Layout layout) {
  if (before != nullptr) {
    before->finish_readers();
    before->scopes_.let_go_of_next();
    before->reducer_ = {};  // before the new one
    state_ = std::move(before->state_);
  } else {
    state_ = ModelState{std::move(layout), plan().placement, plan().optimizer, shared_buffers_};
  }
  plan_world(guess_my_nodes());
  if (before == nullptr) state_.allocate(shards_.mine());
  scopes_.begin();
  rounds_.begin_anew(declared.unit_count());
  initial_values_ = InitialValues{declared.unit_count()};
  slot_.samples().reserve(plan().micro_batch);
  if (memory().device().kind != DeviceKind::host) losses_.emplace(host.device, plan().slots() + 1, host.clock);
}

void Job::Impl::go_on_from(std::unique_ptr<Impl> before) {
  decided_.memory() = std::move(before->decided_.memory());
  program_timeout_.continue_from(before->program_timeout_);
  before_ = std::move(before);
}

/// Whether this run of the program declared the same, and the state of the one before is whole, host state too.
bool Job::Impl::may_take_from(const Impl& before) const {
  if (!before.declared.is_sealed() || !before.held_.has_state()) return false;
  if (!before.step_.is_undecided() && !before.variables_.empty()) return false;
  return std::ranges::equal(declared.agreements(), before.declared.agreements(), {}, &Agreement::text, &Agreement::text);
}

/// How far the run before had come, with the state that was taken from it. Its variables are gone: what they were when its last step was handed
/// out is for those of this run.
void Job::Impl::take_position(Impl& before) {
  decided_.continue_from(before.decided_, before.step_.is_undecided());
  saves_.continue_from(before.saves_);
  held_.take_over();
  variables_.inherit(before.variables_.kept());
}

/// What follows from this rank's place in the world, but for the state: slots, gradients, and who sends what to whom. `nodes`:
/// by rank, the number of its node.
void Job::Impl::plan_world(std::span<const std::uint32_t> nodes) {
  const std::uint32_t rank = world.rank();
  ShardMap wanted = shard_map(plan().placement.optimizer, nodes);
  if (rank == shards_.rank && wanted == shards_.map) return;
  shards_.map = std::move(wanted);
  shards_.rank = rank;
  const auto exchanges = choose_exchanges();
  GradientBuffers buffers = reducer_.take_buffers();
  reducer_ = {};  // before the new one: memory for both is not there
  reducer_ = GradientReducer{state_.layout(), shards_.map,   rank,          static_cast<std::uint32_t>(plan().slots()),
                             exchanges,       plan().reduce, plan().leaves, shared_buffers_,
                             std::move(buffers)};
  state_.plan_world(shards_.map, rank, reducer_.space());
  votes_ = VoteExchange{reducer_.slots_by_rank(), plan().slots(), reducer_.norm_nodes(), rank};
  rounds_.plan_world(plan().overlap);
  const std::size_t in_use = rounds_.overlaps() ? 2 : 1;  // one, and the next one or the last one
  state_.make_room(in_use);
  reducer_.make_room(in_use);
}

std::vector<Agreement> Job::Impl::agreements() const {
  auto out = declared.agreements();
  out.push_back(device_agreement(host.device));
  return out;
}

/// Each generation's group has to be shown anew what its members read of each other.
void Job::Impl::show_to_peers() {
  shared_buffers_.show(world, state_.parameters().shared());
  for (const SharedBuffer& memory : reducer_.shared()) shared_buffers_.show(world, memory);
}

/// Which evaluation of the tree this world has. A change is logged.
GradientReducer::Exchanges Job::Impl::choose_exchanges() {
  const ChosenExchange chosen = choose_exchange(plan(), state_.layout(), shards_.map, host.device.kind);
  const bool was = streams(), is = exchanges_per_slot(chosen.placement);
  const auto out = is ? GradientReducer::Exchanges::per_slot : GradientReducer::Exchanges::per_step;
  if (!world.leads()) return out;
  const std::uint64_t most = plan().memory_per_rank;
  if (!chosen.why.empty()) host.log.info(chosen.why);
  else if (was && !is)
    host.log.info(fmt::format("gradients are exchanged once per step again: on {} ranks that fits into memory_per_rank", world.size()));
  if (most > 0 && chosen.bytes > most)
    host.log.warning(fmt::format(
        "a rank takes {}, and memory_per_rank is {}: more workers or a higher stage of ZeRO take less, plan_table() says how much",
        human_bytes(chosen.bytes), human_bytes(most)));
  return out;
}

RankBytes Job::Impl::held_bytes() const {
  return {.parameters = state_.parameter_bytes(),
          .gradients = reducer_.bytes(),
          .optimizer = state_.moments_bytes(),
          .exchange = reducer_.exchange_bytes(),
          .in_use = state_.parameter_bytes_max() - state_.parameter_bytes() + reducer_.in_use_bytes_max()};
}

void Job::Impl::show_memory() const {
  host.log.info(memory_line(plan(), declared.units(), state_.layout(),
                            {.bytes = held_bytes(), .per_slot = streams(), .buffers = reducer_.buffers()}, world.size()));
  if (const auto line = mirroring_line(plan(), state_.layout(), shards_.map, guess_my_nodes())) host.log.info(*line);
  if (const std::string warning = efficiency_warning(plan().slots(), world.size()); !warning.empty()) host.log.warning(warning);
  if (plan().reduce == Reduce::fast)
    host.log.warning(
        "Reduce::fast: sums follow the number of workers, so the result changes with it and with every failure; "
        "Reduce::exact gives the same bits always");
}

std::string Job::Impl::plan_table(std::uint32_t ranks, std::uint32_t ranks_per_node) const {
  require(declared.is_configured(), "plan_table comes after configure()");
  require(ranks > 0, "plan_table(0): a world has at least one rank");
  if (const auto wrong = problems(declared.units()); !wrong.empty()) throw Error{invalid(wrong)};
  return memory_table(plan(), declared.units(), ranks, ranks_per_node, host.device.kind);
}

// ---- restore

Restored Job::Impl::restore() {
  require(declared.is_sealed(), "restore comes after seal()");
  require(!held_.is_restored(), "restore is called twice");
  if (!variables_.take_inherited()) held_.lose();  // as of a newcomer
  // The others run steps until this member asks for its place, and stand still while it gets the state.
  if (world.over() && !held_.has_state()) state_.make_resident();
  while (!recovery_.is_ready()) {
    try {
      enter();
    } catch (const Revoked&) {
    }
  }
  held_.restored(recovery_.somebody_runs());
  initial_values_.allow(!held_.is_found());
  if (decided_.applied() > plan().steps && world.leads())
    host.log.warning(
        fmt::format("the checkpoint is at step {}, the plan asks for {}: nothing is left to do", decided_.applied(), plan().steps));
  return restored();
}

Restored Job::Impl::restored() const {
  Restored restored = saves_.restored();
  if (!held_.is_found()) restored.from = Restored::From::nothing;
  else if (restored.from != Restored::From::checkpoint)
    restored = {.from = Restored::From::members, .why = "workers of the job have the state in memory"};
  restored.step = decided_.applied();
  return restored;
}

std::vector<Aux> Job::Impl::host_state() const {
  std::vector<Aux> out;
  append_to(out, decided_.progress(plan().steps));
  append_device(out, host.device);
  variables_.append_to(out);
  return out;
}

void Job::Impl::take_host_state(const std::vector<Aux>& aux) {
  const JobProgress progress = progress_of(aux);
  variables_.load(aux);
  decided_.load(progress, world.membership(), plan().steps);
}

// ---- the loop's head

/// A rank that made its parameters, or got them, may have other ones: then all compare all of them. Where all members go on with their own, a sample is enough. Before
/// the job's first step, or without a member's state, they compare at once, and what programs wrote, too. Else there is nothing that a program may still write: the hash is
/// made while the slots of the next step compute, and goes with the votes for it (`with_votes`: there is such a step, and nothing keeps the state before it).
void Job::Impl::compare_parameters(bool with_votes) {
  if (world.size() == 1) return initial_values_.compare(world, 0, decided_.applied());
  parameters_hash_.begin(memory(), recovery_.were_compared() ? state_.replicated_sample(world.membership().generation.number)
                                                             : state_.replicated_parameters());
  if (with_votes && recovery_.transfer().complete && recovery_.settled().newest_step > 0) return initial_values_.leave_to_votes();
  compare_now();
}

void Job::Impl::compare_now() {
  const auto mine = parameters_hash_.result([this] { return world.over(); });
  if (!mine) revoked(world);
  initial_values_.compare(world, *mine, decided_.applied());
}

std::optional<std::uint64_t> Job::Impl::next_step() {
  require(held_.is_restored(), "next_step comes after restore()");
  require_scopes_ended_well();
  step_.ask();
  if (outcome.has_value()) return std::nullopt;
  require(!step_.is_open() || world.over(), "next_step is called before the step was applied");
  scopes_.require_all_closed("next_step()");
  if (const auto wrong = fp_environment_problem()) throw Error{invalid(*wrong)};
  for (;;) {
    try {
      enter();
      world.now(Call::next_step);
      if (gathers() && !scopes_.end_phase(phase())) revoked(world);
      const std::uint64_t step = decided_.applied();
      const bool is_done = step >= plan().steps || decided_.ends();
      if (initial_values_.is_due()) compare_parameters(!is_done && !saves_.is_due(step));
      held_.come_to_next_step();
      if (is_done) {
        finish();
        return std::nullopt;
      }
      saves_.hear();
      if (saves_.is_due(step)) {
        const Instant begun = host.clock.now();
        saves_.save(step, host_state());
        times_.saved(begun, host.clock.now(), world.exchanged());
      }
      if (departure_.take_member_leaves()) {
        departure_.tell_agent();
        wait_until_left();
      }
      step_.begin(host.clock.now());
      times_.begin_step(step_.begun());
      program_timeout_.begin_slots();
      rounds_.begin_step();
      slot_.end();
      losses_to_come_.clear();
      reducer_.begin_step();
      initial_values_.begin_step();
      keep_host_state();
      return step;
    } catch (const Revoked&) {
    }
  }
}

/// A member whose node leaves takes no part in a step between the checkpoint that was made for it and the end of the generation: that step could be
/// decided, and would be lost with this node's shards. The others wait for it meanwhile.
void Job::Impl::wait_until_left() {
  const Instant until = host.clock.now() + leave_wait;
  while (departure_.is_reported() && host.clock.now() < until) {
    if (world.over()) revoked(world);
    if (host.sleep) host.sleep(leave_look);
    else std::this_thread::sleep_for(leave_look);
  }
}

/// What the program changes from here on is put back, should the step not be decided.
void Job::Impl::keep_host_state() {
  decided_.hand_out();
  variables_.keep();
}

/// After the program's return: others may still use weights of which this rank holds a shard. Whatever fails, the job has
/// succeeded.
void Job::Impl::serve_to_the_end() {
  if (outcome.has_value() && gathers()) (void)scopes_.end_phase(phase());
}

void Job::Impl::stop() {
  require(held_.is_restored(), "stop comes after restore()");
  decided_.ask_to_stop();
}

void Job::Impl::program_returned() {
  if (outcome.has_value()) return serve_to_the_end();
  if (!host.must_end) return;
  if (!step_.was_asked_for()) return end_without_steps();
  throw Error{Failure{
      .code = Code::refused,
      .remedy = Remedy::exit_process,
      .what = fmt::format(
          "the program returned {}, before the job's end was decided: go on until next_step() returns nothing, or call job.stop() to end early",
          declared.is_sealed() ? fmt::format("at step {} of {}", decided_.applied(), plan().steps) : "before seal()"),
      .rank = world.membership().rank,
      .generation = world.membership().generation}};
}

/// A program that only looks (at its plan, or at an evaluation) is done when it returns on all ranks.
void Job::Impl::end_without_steps() {
  if (!host.session.place().elastic) return;
  static constexpr std::string_view word = "the program returned before its first step";
  for (bool agreed = false; !agreed;) {
    try {
      if (held_.is_restored()) {
        enter();
        if (gathers() && !scopes_.end_phase(phase())) revoked(world);
      } else {
        if (world.over()) rejoin();
        expect(world, world.join());
      }
      world.now(Call::end);
      for (const ByteVector& said : expect(world, world.all_gather(as_bytes(word))))
        if (as_text(said) != word)
          throw Error{Failure{
              Code::refused, Remedy::exit_process,
              "the program returned here before its first step, and goes on in another worker: all have to call next_step(), or none"}};
      agreed = true;
    } catch (const Revoked&) {
    }
  }
  if (const auto told = host.session.finished(Deadline::after(host.clock.now(), finish_wait)); !told.ok())
    host.log.warning("the program is done, but its elrun could not be told: " + message(told.failure()));
}

void Job::Impl::finish() {
  const std::uint64_t step = decided_.applied();
  if (decided_.ends() && step < plan().steps && world.leads())
    host.log.info(fmt::format("the program ended the job after step {} of {}", step, plan().steps));
  const Instant begun = host.clock.now();
  saves_.save_at_the_end(step, host_state());
  times_.saved(begun, host.clock.now(), world.exchanged());
  std::uint64_t hash = Mix{}(step, salt_of("step"));
  for (const ByteVector& part : expect(world, world.all_gather(bytes_of(state_.hash_part(shards_.map, world.rank()))))) {
    ByteReader reader{part};
    hash += reader.get<std::uint64_t>();
    expect(world, reader.finish("a part of the state hash"));
  }
  outcome = Outcome{step, decided_.loss(), hash};
  host.session.ended({StepNumber{step}, plan().steps, decided_.loss(), times_.left()});
  // All members have decided that the job is over: whatever dies now, it has succeeded.
  if (const auto told = host.session.finished(Deadline::after(host.clock.now(), finish_wait)); !told.ok())
    host.log.warning("the job is over, but its elrun could not be told: " + message(told.failure()));
}

// ---- what users hold

Job::Job(std::unique_ptr<Impl> impl) : impl_{std::move(impl)} {}
Job::~Job() = default;

void Job::configure(const Plan& plan, const CheckpointOptions& checkpoint) { impl_->configure(plan, checkpoint); }
const Plan& Job::plan() const {
  if (!impl_->declared.is_configured()) throw Error{invalid("plan() comes after configure()")};
  return impl_->declared.plan();
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
Evaluation Job::evaluate(std::uint64_t count, const std::function<void(Slot&)>& forward) { return impl_->evaluate(count, forward); }
void Job::stop() { impl_->stop(); }
const Outcome& Job::outcome() const {
  if (!impl_->outcome.has_value()) throw Error{invalid("outcome() comes after next_step() returned nothing")};
  return *impl_->outcome;
}
void Job::print(std::string_view line) {
  if (prints()) impl_->host.out(line);
}
bool Job::prints() const { return impl_->prints(); }
std::uint32_t Job::compute_threads() const { return impl_->host.threads; }
Device Job::device() const { return impl_->host.device; }
Stream Job::stream() const { return impl_->stream(); }

const JobHost& JobAccess::host(const Job& job) { return job.impl_->host; }
std::uint32_t JobAccess::rank(const Job& job) { return job.impl_->world.rank(); }
std::uint32_t JobAccess::world_size(const Job& job) { return job.impl_->world.size(); }
const PagedArena& JobAccess::parameters(const Job& job) { return job.impl_->state_.parameters(); }
const LeafStream& JobAccess::leaf_stream(const Job& job) { return job.impl_->reducer_.stream(); }
std::span<float> JobAccess::moment(Job& job, std::size_t index) { return job.impl_->state_.moment(index); }
UpdateValues JobAccess::remembered(const Job& job, std::uint64_t step) { return job.impl_->decided_.memory().of(step); }
RankBytes JobAccess::held(const Job& job) { return job.impl_->held_bytes(); }

void JobAccess::drive(const JobHost& job_host, const std::function<void(Job&)>& program) {
  UpdateMemory updates_done;     // a program that runs again does the same steps again
  bool asked_for_steps = false;  // by a run before this one
  std::unique_ptr<Job::Impl> before;
  for (bool again = true; std::exchange(again, false);) {
    // Before the program runs again: it may need long until it asks for its place, and nobody else may know that the generation is over.
    if (before != nullptr) before->rejoin();
    Job job{std::make_unique<Job::Impl>(job_host)};
    if (before != nullptr) job.impl_->go_on_from(std::exchange(before, nullptr));
    else job.impl_->decided_.memory() = std::exchange(updates_done, {});
    if (asked_for_steps) job.impl_->step_.ask();
    const Job::Impl& impl = *job.impl_;
    keep_current(job_host.device);  // for the program's own kernels
    try {
      program(job);
      job.impl_->program_returned();
    } catch (const std::exception& e) {
      const auto* const error = dynamic_cast<const Error*>(&e);
      const bool has_to_end = error != nullptr && error->failure().remedy == Remedy::exit_process;  // a device that is lost, say
      if (impl.left_revoked_slot() && !has_to_end) {  // it is over, as any other revoked slot; but the program's own variables are gone
        job_host.log.info(fmt::format(
            "an exception came out of a slot that the change of the world had revoked ({}): the program runs again in this process, with the state that it has",
            e.what()));
        asked_for_steps = impl.step_.was_asked_for();
        before = std::move(job.impl_);
        again = true;
        continue;
      }
      if (error == nullptr && impl.world.over()) leave(impl.world, impl.world.why_over());
      if (has_to_end && !error->failure().rank) {  // of a call to a device, which does not know whose it is
        Failure named = error->failure();
        named.rank = impl.world.membership().rank, named.generation = impl.world.membership().generation;
        throw Error{std::move(named)};
      }
      throw;
    } catch (const BeginAgain&) {
      asked_for_steps = impl.step_.was_asked_for();
      updates_done = std::move(job.impl_->decided_.memory());
      again = true;
    } catch (...) {
      if (impl.world.over()) leave(impl.world, impl.world.why_over());  // whatever it tripped over was a step that does not count
      throw;
    }
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
