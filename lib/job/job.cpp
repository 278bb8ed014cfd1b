// The job: declarations, memory, restore, the loop's head, and the end.

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "kernels/state_hash.hpp"
#include "lib/base/assert.hpp"
#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"
#include "lib/job/declare/agreement.hpp"
#include "lib/job/declare/assign.hpp"
#include "lib/job/declare/memory_table.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/declare/sampler.hpp"
#include "lib/job/fp_environment.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration finish_wait = 30s;  // for the agent to hear that the job is over
template <class T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto bytes = std::as_bytes(std::span{&value, 1});
  return {bytes.begin(), bytes.end()};
}

}  // namespace

Job::Impl::Impl(JobHost job_host)
    : host{std::move(job_host)},
      world{host.session, host.join},
      shared_buffers_{host.share, host.log},
      comm_thread_{{.round = [this](const Need& said) { return round(said); },
                    .over = [this] { return world.over(); },
                    .give_up =
                        [this](std::string_view why) {
                          world.end({Code::generation_over, Remedy::abort_group, std::string{why}});
                        },
                    .limit = [this] { return 2 * world.patience(); },  // of two exchanges
                    .stuck = [] { ELRUN_ASSERT(!"a round goes on although its world is over"); }}} {}

void Job::Impl::require(bool holds, std::string_view what) const {
  if (!holds) throw Error{invalid(std::string{what})};
}

// ---- declarations

void Job::Impl::configure(const Plan& wanted, const CheckpointOptions& checkpoint) {
  require(!plan.has_value(), "configure is called twice");
  if (const auto wrong = problems(wanted, checkpoint); !wrong.empty()) throw Error{invalid(wrong)};
  plan = wanted;
  saves_.configure(checkpoint);
}

UnitState& Job::Impl::unit(std::string_view name) {
  require(plan.has_value(), "unit comes after configure()");
  require(!sealed_, "a unit is declared after seal(); declare all of them before");
  specs_.push_back({std::string{name}, {}});
  UnitState& unit = units_.emplace_back();
  unit.job = this;
  unit.index = static_cast<std::uint32_t>(specs_.size() - 1);
  return unit;
}

void Job::Impl::register_state(std::string_view name, std::span<std::byte> bytes) {
  require(plan.has_value(), "state comes after configure()");
  require(!restored_, "state is registered after restore(); register all of it before");
  variables_.add(name, bytes);
}

// ---- memory

void Job::Impl::seal() {
  require(plan.has_value(), "seal comes after configure()");
  require(!sealed_, "seal is called twice");
  if (const auto wrong = problems(specs_); !wrong.empty()) throw Error{invalid(wrong)};
  Layout layout = lay_out(specs_);
  const std::unique_ptr<Impl> before = std::move(before_);
  const bool keeps = before != nullptr && may_take_from(*before);
  if (!keeps) fits_into_this_machine(layout);
  allocate(keeps ? before.get() : nullptr, std::move(layout));
  if (keeps) take_position(*before);
  sealed_ = true;
  if (world.leads() && host.session.place().restart_count == 0) show_memory();  // it was said before
}

/// Said before anything is allocated: what is more than the whole machine has ends the process without a word, or with bad_alloc.
void Job::Impl::fits_into_this_machine(const Layout& layout) const {
  if (host.memory == 0) return;
  const Place& place = host.session.place();
  const ShardMap shards =
      shard_map(plan->placement.optimizer, guess_nodes(world.size(), world.rank(), place.local_world, place.local_rank.value()));
  const Placement chosen = choose_exchange(*plan, layout, shards).placement;
  const RankBytes mine = bytes_by_rank(layout, chosen, shards, plan->optimizer, static_cast<std::uint32_t>(plan->slots()), plan->reduce,
                                       plan->leaves, plan->overlap)[world.rank()];
  if (mine.all() <= host.memory) return;
  const UnitSpec* largest_unit = nullptr;
  const TensorSpec* largest = nullptr;
  for (const UnitSpec& unit : specs_)
    for (const TensorSpec& t : unit.tensors)
      if (largest == nullptr || element_count(t.shape) > element_count(largest->shape)) largest_unit = &unit, largest = &t;
  throw Error{invalid(fmt::format(
      "rank {} would hold {} (parameters {}, gradients {}, optimizer {}, exchange {}, in use {}), and this machine has {} of memory, swap included. The "
      "largest tensor is '{}/{}' of {} elements. More workers or a higher stage of ZeRO take less: plan_table() says how much",
      world.rank(), human_bytes(mine.all()), human_bytes(mine.parameters), human_bytes(mine.gradients), human_bytes(mine.optimizer),
      human_bytes(mine.exchange), human_bytes(mine.in_use), human_bytes(host.memory), largest_unit->name, largest->name,
      element_count(largest->shape)))};
}

/// What no change of the world moves, and what follows from this rank's place in it as far as that is known.
/// `before`: whose parameters and moments are taken over.
void Job::Impl::allocate(Impl* before, Layout layout) {
  if (before != nullptr) {
    before->let_go_of_next();
    before->reducer_ = {};  // before the new one
    state_ = std::move(before->state_);
  } else {
    state_ = ModelState{std::move(layout), plan->placement, plan->optimizer, shared_buffers_};
  }
  const Place& place = host.session.place();
  plan_world(guess_nodes(world.size(), world.rank(), place.local_world, place.local_rank.value()));
  if (before == nullptr) state_.allocate(my_cut());
  for (UnitState& unit : units_) point_at_weights(unit);
  comm_thread_.begin_anew(units_.size());
  written_.resize(units_.size());
  slot_.samples().reserve(plan->micro_batch);
}

void Job::Impl::go_on_from(std::unique_ptr<Impl> before) {
  before->comm_thread_.begin_anew(before->units_.size());  // nothing of the old world is under way any more
  updates_.memory() = std::move(before->updates_.memory());
  absence_.continue_from(before->absence_);
  before_ = std::move(before);
}

/// Whether this run of the program declared the same, and the state of the one before is whole, host state too.
bool Job::Impl::may_take_from(const Impl& before) const {
  if (!before.sealed_ || !before.has_state_ || !(before.handed_out_ || before.variables_.empty())) return false;
  return std::ranges::equal(agreements(*plan, saves_.options(), specs_), agreements(*before.plan, before.saves_.options(), before.specs_),
                            {}, &Agreement::text, &Agreement::text);
}

/// How far the run before had come, with the state that was taken from it.
void Job::Impl::take_position(Impl& before) {
  commit_ = before.commit_;
  decision_ = before.decision_;
  updates_.set_voted(before.updates_.voted());
  loss_ = before.loss_, skipped_ = before.skipped_, saves_.set_saved_step(before.saves_.saved_step());
  stop_ = before.stop_;
  if (before.handed_out_) stop_.put_back();
  has_state_ = begun_before_ = overwritten_ = true;
  kept_host_state_ = before.variables_.kept();
}

/// What the variables of the run before were when its last step was handed out. The variables themselves are gone.
void Job::Impl::take_kept_host_state() {
  if (!variables_.take(*std::exchange(kept_host_state_, std::nullopt))) has_state_ = false;  // as of a newcomer
}

/// What follows from this rank's place in the world, but for the state: slots, gradients, and who sends what to whom. `nodes`:
/// by rank, the number of its node.
void Job::Impl::plan_world(std::span<const std::uint32_t> nodes) {
  const std::uint32_t rank = world.rank(), size = world.size();
  ShardMap wanted = shard_map(plan->placement.optimizer, nodes);
  if (rank == planned_for_ && wanted == shard_map_) return;
  shard_map_ = std::move(wanted);
  planned_for_ = rank;
  const auto exchanges = choose_exchanges();
  reducer_ = {};  // before the new one: memory for both is not there
  reducer_ = GradientReducer{state_.layout(), shard_map_,   rank,         static_cast<std::uint32_t>(plan->slots()),
                             exchanges,       plan->reduce, plan->leaves, shared_buffers_};
  phases_ = reducer_.slots_of_busiest();
  state_.plan_world(shard_map_, rank, reducer_.space());
  votes_ = VoteExchange{reducer_.slots_by_rank(), plan->slots(), reducer_.norm_nodes(), rank};
  round_ = RoundExchange{size, rank};
}

/// Each generation's group has to be shown anew what its members read of each other.
void Job::Impl::show_to_peers() {
  for (const auto* memory : {&state_.parameters().shared(), &reducer_.shared()}) shared_buffers_.show(world, *memory);
}

/// Which evaluation of the tree this world has. A change is logged.
GradientReducer::Exchanges Job::Impl::choose_exchanges() {
  const ChosenExchange chosen = choose_exchange(*plan, state_.layout(), shard_map_);
  const bool was = streams(), is = exchanges_per_slot(chosen.placement);
  const auto out = is ? GradientReducer::Exchanges::per_slot : GradientReducer::Exchanges::per_step;
  if (!world.leads()) return out;
  const std::uint64_t most = plan->memory_per_rank;
  if (!chosen.why.empty()) host.log.info(chosen.why);
  else if (was && !is)
    host.log.info(fmt::format("gradients are exchanged once per step again: on {} ranks that fits into memory_per_rank", world.size()));
  if (most > 0 && chosen.bytes > most)
    host.log.warning(fmt::format(
        "a rank takes {}, and memory_per_rank is {}: more workers or a higher stage of ZeRO take less, plan_table() says how much",
        human_bytes(chosen.bytes), human_bytes(most)));
  return out;
}

RankBytes Job::Impl::held() const {
  const PagedArena& parameters = state_.parameters();
  return {.parameters = parameters.held_bytes(),
          .gradients = reducer_.bytes(),
          .optimizer = state_.moments_bytes(),
          .exchange = reducer_.exchange_bytes(),
          .in_use = parameters.held_bytes_max() - parameters.held_bytes() + reducer_.in_use_bytes_max()};
}

void Job::Impl::show_memory() const {
  const RankBytes holds = held();
  std::uint64_t parameters = 0, unit = 0;
  for (const UnitSpec& spec : specs_)
    for (const TensorSpec& t : spec.tensors) parameters += element_count(t.shape);
  for (const UnitLayout& layout : state_.layout().units) unit = std::max(unit, layout.trainable * sizeof(float));
  const std::string_view in_use = overlaps() ? "two units in use or on their way" : "the units in use";
  const std::string gradients =
      streams() ? fmt::format("{} ({} partial sum(s), folded by the owners in every slot) and {}", human_bytes(holds.gradients),
                              reducer_.buffers(), in_use)
                : fmt::format("{} ({} buffers: folded here, exchanged once per step)", human_bytes(holds.gradients), reducer_.buffers());
  host.log.info(fmt::format(
      "{} parameters in {} unit(s), of which the largest is {}, {}{}; bytes per rank: parameters {}{}{}, gradients {}, optimizer {}, "
      "exchange {}; {}",
      parameters, units_.size(), human_bytes(unit), *name_of(plan->placement),
      plan->leaves == DType::f32 ? "" : ", gradients rounded to bf16 slot by slot", human_bytes(holds.parameters), gathers() ? " and " : "",
      gathers() ? in_use : "", gradients, human_bytes(holds.optimizer), human_bytes(holds.exchange),
      slots_line(plan->slots(), world.size())));
  if (const std::string warning = efficiency_warning(plan->slots(), world.size()); !warning.empty()) host.log.warning(warning);
  if (plan->reduce == Reduce::fast)
    host.log.warning(
        "Reduce::fast: sums follow the number of workers, so the result changes with it and with every failure; "
        "Reduce::exact gives the same bits always");
}

std::string Job::Impl::plan_table(std::uint32_t ranks, std::uint32_t ranks_per_node) const {
  require(plan.has_value(), "plan_table comes after configure()");
  require(ranks > 0, "plan_table(0): a world has at least one rank");
  if (const auto wrong = problems(specs_); !wrong.empty()) throw Error{invalid(wrong)};
  return memory_table(*plan, specs_, ranks, ranks_per_node);
}

// ---- restore

bool Job::Impl::restore() {
  require(sealed_, "restore comes after seal()");
  require(!restored_, "restore is called twice");
  if (kept_host_state_) take_kept_host_state();
  while (stage_ != Stage::ready) {
    try {
      enter();
    } catch (const Revoked&) {
    }
  }
  restored_ = true;
  has_state_ = true;  // or the program makes it now, from nothing
  may_initialise_ = !begun_before_;
  joined_running_ = std::ranges::any_of(statuses_, &MemberStatus::has_begun);
  if (commit_.knowledge().applied > plan->steps && world.leads())
    host.log.warning(
        fmt::format("the checkpoint is at step {}, the plan asks for {}: nothing is left to do", commit_.knowledge().applied, plan->steps));
  return begun_before_;
}

/// Two programs, or one with two sets of flags, in one world: said before the first collective of a step mixes them up.
void Job::Impl::same_job_everywhere() {
  const auto mine = agreements(*plan, saves_.options(), specs_);
  ByteWriter w;
  for (const Agreement& a : mine) w.put_raw(sha256(as_bytes(a.text)));
  const auto digests = expect(world, world.all_gather(w.bytes()));
  for (std::uint32_t r = 1; r < world.size(); ++r) {
    if (digests[r] == digests[0]) continue;
    // All have the same digests, so all come here together: the texts of what differs first, for the message.
    const auto digest = [&](std::uint32_t rank, std::size_t i) {
      return digests[rank].size() == w.bytes().size() ? ByteSpan{digests[rank]}.subspan(i * 32, 32) : ByteSpan{};
    };
    std::size_t i = 0;
    while (i + 1 < mine.size() && std::ranges::equal(digest(r, i), digest(0, i))) ++i;
    const auto texts = expect(world, world.all_gather(as_bytes(mine[i].text)));
    const auto text = [&](std::uint32_t rank) {
      return std::string_view{reinterpret_cast<const char*>(texts[rank].data()), texts[rank].size()};
    };
    throw Error{Failure{Code::mismatch, Remedy::fix_config,
                        fmt::format("rank {} has another {} than rank 0: start all workers with the same program and flags\n{}", r,
                                    mine[i].name, difference("rank 0", text(0), fmt::format("rank {}", r), text(r)))}};
  }
}

void Job::Impl::same_parameters_everywhere() {
  checked_ = true;
  ByteWriter mine;
  mine.put(state_.hash_of_replicated_parameters());
  // Of a unit that is sharded those ranks compare what they saw who had it in a scope: who had not, wrote nothing.
  for (const std::uint64_t hash : written_) mine.put(hash);
  const auto parts = expect(world, world.all_gather(mine.bytes()));
  std::vector<std::optional<std::pair<std::uint32_t, std::uint64_t>>> seen(1 + written_.size());
  for (std::uint32_t r = 0; r < world.size(); ++r) {
    ByteReader reader{parts[r]};
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const auto hash = reader.get<std::uint64_t>();
      if (i > 0 && hash == 0) continue;
      if (!seen[i]) seen[i] = {r, hash};
      if (seen[i]->second != hash && !reader.broken())
        throw Error{Failure{Code::mismatch, Remedy::fix_config,
                            fmt::format("the parameters of rank {} differ from those of rank {} before step {}: "
                                        "initialise them from job.rng(name) alone, on every rank",
                                        r, seen[i]->first, commit_.knowledge().applied)}};
    }
    if (const auto read = reader.finish("the hashes of a rank's parameters"); !read.ok()) {
      world.end(read.failure());
      revoked(world);
    }
  }
}

std::vector<Aux> Job::Impl::host_state() const {
  const std::uint64_t applied = commit_.knowledge().applied;
  std::vector<Aux> out;
  append_to(out, JobProgress{.applied = applied,
                             .loss = loss_,
                             .skipped = skipped_,
                             .first_update = applied == 0 ? UpdateValues{} : updates_.memory().of(0),
                             .last_update = applied == 0 ? UpdateValues{} : updates_.memory().of(applied - 1),
                             .stop_asked = stop_.is_asked(),
                             .stopped_of_steps = stop_.is_decided() ? plan->steps : 0});
  variables_.append_to(out);
  return out;
}

void Job::Impl::take_host_state(const std::vector<Aux>& aux) {
  const JobProgress p = progress_of(aux);
  loss_ = p.loss, skipped_ = p.skipped;
  stop_.set(p.stop_asked, p.stopped_of_steps != 0 && p.stopped_of_steps == plan->steps);  // more steps may be wanted since: they are done
  variables_.load(aux);
  if (p.first_update.known()) updates_.memory().remember(0, p.first_update);
  if (p.last_update.known()) updates_.memory().remember(p.applied - 1, p.last_update);
  commit_ = StepCommit{world.membership(), p.applied, world.membership().generation};
}

// ---- the loop's head

std::optional<std::uint64_t> Job::Impl::next_step() {
  require(restored_, "next_step comes after restore()");
  asked_for_steps_ = true;
  if (outcome.has_value()) return std::nullopt;
  require(!step_open_ || world.over(), "next_step is called before the step was applied");
  no_scope_open("next_step()");
  if (const auto wrong = fp_environment_problem()) throw Error{invalid(*wrong)};
  for (;;) {
    try {
      enter();
      world.now(Call::next_step);
      if (gathers() && !end_phase(phase())) revoked(world);
      if (!checked_) same_parameters_everywhere();
      joined_running_ = false;
      const std::uint64_t step = commit_.knowledge().applied;
      if (step >= plan->steps || stop_.is_decided()) {
        finish();
        return std::nullopt;
      }
      if (saves_.is_due(step)) saves_.save(step, host_state());
      if (departure_.take_member_leaves()) departure_.tell_agent();
      in_ = InStep{.begun = host.clock.now()};
      slot_.end();
      reducer_.begin_step();
      if (std::exchange(may_initialise_, false)) written_.assign(written_.size(), 0);  // compared, and out of date from here on
      step_open_ = true;
      keep_host_state();
      return step;
    } catch (const Revoked&) {
    }
  }
}

/// What the program changes from here on is put back, should the step not be decided.
void Job::Impl::keep_host_state() {
  handed_out_ = true;
  stop_.keep();
  variables_.keep();
}

void Job::Impl::stop() {
  require(restored_, "stop comes after restore()");
  stop_.ask();
}

void Job::Impl::program_returned() {
  if (outcome.has_value()) return serve_to_the_end();
  if (!host.must_end) return;
  if (!asked_for_steps_) return end_without_steps();
  throw Error{Failure{
      .code = Code::refused,
      .remedy = Remedy::exit_process,
      .what = fmt::format(
          "the program returned at step {} of {}, before the job's end was decided: go on until next_step() returns nothing, or call job.stop() to end early",
          commit_.knowledge().applied, plan->steps),
      .rank = world.membership().rank,
      .generation = world.membership().generation}};
}

/// A program that only looks (at its plan, or at an evaluation) is done when it returns on all ranks.
void Job::Impl::end_without_steps() {
  if (!host.session.place().elastic) return;
  static constexpr std::string_view word = "the program returned before its first step";
  for (bool agreed = false; !agreed;) {
    try {
      if (restored_) {
        enter();
        if (gathers() && !end_phase(phase())) revoked(world);
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
  const std::uint64_t step = commit_.knowledge().applied;
  if (stop_.is_decided() && step < plan->steps && world.leads())
    host.log.info(fmt::format("the program ended the job after step {} of {}", step, plan->steps));
  saves_.save_at_the_end(step, host_state());
  std::uint64_t hash = Mix{}(step, salt_of("step"));
  for (const ByteVector& part : expect(world, world.all_gather(bytes_of(state_.hash_part(shard_map_, world.rank()))))) {
    ByteReader reader{part};
    hash += reader.get<std::uint64_t>();
    expect(world, reader.finish("a part of the state hash"));
  }
  outcome = Outcome{step, loss_, hash};
  // All members have decided that the job is over: whatever dies now, it has succeeded.
  if (const auto told = host.session.finished(Deadline::after(host.clock.now(), finish_wait)); !told.ok())
    host.log.warning("the job is over, but its elrun could not be told: " + message(told.failure()));
}

// ---- what users hold

Job::Job(std::unique_ptr<Impl> impl) : impl_{std::move(impl)} {}
Job::~Job() = default;

void Job::configure(const Plan& plan, const CheckpointOptions& checkpoint) { impl_->configure(plan, checkpoint); }
const Plan& Job::plan() const {
  if (!impl_->plan.has_value()) throw Error{invalid("plan() comes after configure()")};
  return *impl_->plan;
}
Unit Job::unit(std::string_view name) { return Unit{&impl_->unit(name)}; }
void Job::register_state(std::string_view name, std::span<std::byte> bytes) { impl_->register_state(name, bytes); }
void Job::seal() { impl_->seal(); }
std::string Job::plan_table(std::uint32_t world, std::uint32_t ranks_per_node) const { return impl_->plan_table(world, ranks_per_node); }
bool Job::restore() { return impl_->restore(); }
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
Device Job::device() const { return {}; }

const JobHost& JobAccess::host(const Job& job) { return job.impl_->host; }
std::uint32_t JobAccess::rank(const Job& job) { return job.impl_->world.rank(); }
std::uint32_t JobAccess::world_size(const Job& job) { return job.impl_->world.size(); }
const PagedArena& JobAccess::parameters(const Job& job) { return job.impl_->state_.parameters(); }
const LeafStream& JobAccess::leaf_stream(const Job& job) { return job.impl_->reducer_.stream(); }
std::span<float> JobAccess::moment(Job& job, std::size_t index) { return job.impl_->state_.moment(index); }
UpdateValues JobAccess::remembered(const Job& job, std::uint64_t step) { return job.impl_->updates_.memory().of(step); }
RankBytes JobAccess::held(const Job& job) { return job.impl_->held(); }

void JobAccess::drive(const JobHost& job_host, const std::function<void(Job&)>& program) {
  UpdateMemory updates_done;  // a program that runs again does the same steps again
  std::unique_ptr<Job::Impl> before;
  for (bool again = true; std::exchange(again, false);) {
    Job job{std::make_unique<Job::Impl>(job_host)};
    if (before != nullptr) job.impl_->go_on_from(std::move(before));
    else job.impl_->updates_.memory() = std::move(updates_done);
    const Job::Impl& impl = *job.impl_;
    try {
      program(job);
      job.impl_->program_returned();
    } catch (const std::exception& e) {
      if (impl.left_revoked_slot()) {  // it is over, as any other revoked slot; but the program's own variables are gone
        job_host.log.info(fmt::format(
            "an exception came out of a slot that the change of the world had revoked ({}): the program runs again in this process, with the state that it has",
            e.what()));
        before = std::move(job.impl_);
        again = true;
        continue;
      }
      if (dynamic_cast<const Error*>(&e) == nullptr && impl.world.over()) leave(impl.world, impl.world.why_over());
      throw;
    } catch (const BeginAgain&) {
      updates_done = std::move(job.impl_->updates_.memory());
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
