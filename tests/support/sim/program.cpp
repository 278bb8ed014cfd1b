// The idea: whatever the product's Job waits for, it waits for here, on a thread that has its turn when what it waits for is
// there. Before and after everything that others can see of it lies an action, where its process may end.

#include "tests/support/sim/program.hpp"

#include <algorithm>
#include <charconv>

#include "kernels/state_hash.hpp"
#include "lib/job/group_peers.hpp"
#include "tests/support/sim/simulation.hpp"

namespace elrun::sim {
namespace {

constexpr Duration slow_thread_max = 400ms;

std::uint64_t hash_of(std::span<const float> weights, std::uint64_t unit) { return mix_sum(std::as_bytes(weights), 0, unit); }

}  // namespace

// --- the model ----------------------------------------------------------------------------------------------------

void Trainer::train(Job& job, const Plan& wanted, const CheckpointOptions& checkpoint) {
  Plan plan = wanted;
  plan.overlap = false;  // a thread of the job's own would run beside the simulated time, and outlive a process that ends at an action
  job.configure(plan, checkpoint);
  struct Part {
    Unit unit;
    Tensor<float> weight;
  };
  std::vector<Part> parts;
  for (const auto& [name, size] : {std::pair{"first", 2100u}, std::pair{"second", 700u}}) {
    Unit unit = job.unit(name);
    parts.push_back({unit, unit.tensor<float>("weight", {size})});
  }
  const Tensor<float> fixed = parts[0].unit.tensor<float>("fixed", {300}, {.frozen = true});
  std::uint64_t begun = 0;
  job.state("begun", begun);
  job.seal();
  if (!job.restore())
    for (Part& part : parts) {
      const auto scope = part.unit.use();
      for (std::uint64_t i = 0; i < part.weight.size(); ++i) part.weight.data()[i] = static_cast<float>(i % 13) * 0.125f - 0.75f;
      if (&part == &parts[0]) std::fill_n(fixed.data(), fixed.size(), 0.5f);
    }
  const bool sharded = plan.placement.parameters != Spread::replicated;
  while (auto step = job.next_step()) {
    const std::uint64_t number = step->number();
    std::vector<std::uint64_t> weights;
    for (std::uint32_t u = 0; u < parts.size() && !sharded; ++u) weights.push_back(hash_of(parts[u].weight.span(), u));
    handed_out(number, begun, weights);
    ++begun;
    for (elrun::Slot& slot : step->slots()) {
      float x = 0;
      for (const std::uint64_t sample : slot.samples()) x += static_cast<float>(sample % 7) - 3.0f;
      const std::uint64_t salt = slot.rng().bits(0);
      for (std::uint32_t u = 0; u < parts.size(); ++u) {
        const auto scope = parts[u].unit.use_grad();
        const std::span<const float> weight = parts[u].weight.span();
        if (!slot.revoked()) read_weights(number, u, hash_of(weight, u));
        for (std::size_t i = 0; i < weight.size(); ++i)
          parts[u].weight.grad()[i] += weight[i] * x * 0.1f + static_cast<float>((i * 2654435761u ^ salt) & 1023u) * 0x1p-8f;
      }
      slot.report(x * 0.25f + static_cast<float>(salt & 255u), 3 + slot.index());
      ran_slot(number, slot);
    }
    const StepResult result = step->apply(AdamW{.weight_decay = 0.05f}, {.lr = 0.01f / static_cast<float>(1 + number), .clip_norm = 8.0f});
    if (result.decided) reported(number, result);
  }
  ended(job.outcome());
}

namespace {

/// A world of one.
class Alone final : public Session {
 public:
  explicit Alone(const Clock& clock) : shared_{clock, Generation{1}}, store_{shared_.of(Rank{0})} {
    place_.membership.generation.number = 1;
  }
  [[nodiscard]] const Place& place() const override { return place_; }
  [[nodiscard]] Store& store() override { return *store_; }
  void on_generation_over(OnOver) override {}
  void progress(const StepProgress&) override {}
  Result<void> finished(Deadline) override { return {}; }

 private:
  Place place_;
  SharedStore shared_;
  std::unique_ptr<Store> store_;
};

class Recorder final : public Trainer {
 public:
  Expected expected;

 private:
  void handed_out(std::uint64_t, std::uint64_t, const std::vector<std::uint64_t>& weights) override {
    expected.parameters.push_back(weights);
  }
  void ended(const elrun::Outcome& outcome) override { expected.final_hash = outcome.state_hash; }
};

}  // namespace

const Expected& expected(const Plan& wanted) {
  static std::mutex mutex;
  static std::map<std::pair<std::uint64_t, std::uint64_t>, Expected> made;  // by the two fields in which plans of this world differ
  const std::lock_guard lock{mutex};
  const auto [at, fresh] = made.try_emplace({wanted.steps, wanted.slots()});
  if (!fresh) return at->second;
  const Bug planted = std::exchange(planted_bug, Bug::none);
  Plan plan = wanted;
  plan.placement = zero(0);
  plan.reduce = Reduce::exact;
  const ManualClock clock;
  PosixFiles files;
  Alone session{clock};
  const Log log{"expected", [](Level, std::string_view) {}};
  Recorder recorder;
  JobAccess::drive({.clock = clock, .files = files, .session = session, .log = log, .out = [](std::string_view) {}, .join = {}},
                   [&](Job& job) { recorder.train(job, plan, {}); });
  planted_bug = planted;
  return at->second = std::move(recorder.expected);
}

// --- what the job gets from its process -----------------------------------------------------------------------------

class Program::LocalClock final : public Clock {
 public:
  explicit LocalClock(const Program& program) : program_{program} {}
  [[nodiscard]] Instant now() const override { return program_.now(); }
  [[nodiscard]] std::int64_t wall_ns() const override { return program_.now().time_since_epoch().count(); }

 private:
  const Program& program_;
};

class Program::SimulatedStore final : public RequestStore {
 public:
  SimulatedStore(Program& program, const Clock& clock) : RequestStore{clock, program.place_.membership.generation}, program_{program} {}

 protected:
  Result<StoreReply> ask(StoreRequest request, Deadline deadline) override {
    if (program_.over_) return over();
    program_.action();
    const std::uint64_t id = program_.simulation_.call_store_for(program_.id_, std::move(request), generation_);
    program_.replies_[id].reset();
    program_.wait([&] { return program_.over_ || program_.replies_.at(id); }, deadline.left(clock_.now()));
    auto reply = program_.replies_.extract(id);
    program_.action();
    if (reply.mapped()) return std::move(*reply.mapped());
    if (program_.over_) return over();
    return Failure{Code::deadline_passed, Remedy::retry, "a store call had no answer in time"};
  }
  [[nodiscard]] std::uint32_t rank() const override { return program_.place_.membership.rank.value(); }

 private:
  [[nodiscard]] Failure over() const {
    Failure why = *program_.over_;
    why.code = Code::generation_over;
    return why;
  }
  Program& program_;
};

// As lib/link/link_session.cpp has it.
class Program::SimulatedSession final : public Session {
 public:
  SimulatedSession(Program& program, const Clock& clock) : program_{program}, clock_{clock} { store_.emplace(program, clock); }
  [[nodiscard]] const Place& place() const override { return program_.place_; }
  [[nodiscard]] Store& store() override { return *store_; }
  void on_generation_over(OnOver call) override {
    if (program_.over_) return call(*program_.over_);
    program_.on_over_.push_back(std::move(call));
  }
  void progress(const StepProgress& progress) override {
    program_.action();
    program_.simulation_.step_applied(program_.id_, program_.place_.membership.generation, progress.decided.value());
    program_.action();
  }
  Result<void> finished(Deadline deadline) override {
    program_.action();
    program_.simulation_.see(JobSaidOver{program_.id_});
    program_.simulation_.say(program_.id_, JobOver{program_.place_.membership.generation});
    program_.wait([&] { return program_.job_over_ || program_.lost_; }, deadline.left(clock_.now()));
    if (program_.job_over_) return {};
    if (program_.lost_) return *program_.lost_;
    return Failure{Code::deadline_passed, Remedy::retry, "the agent has not confirmed in time that the job is over"};
  }
  void cannot_go_on(const Failure& why) override {
    if (why.code != Code::peer_lost && why.code != Code::unreachable) return;
    program_.action();
    Failure told = why;
    told.code = Code::peer_lost;
    program_.simulation_.say(program_.id_,
                             GenerationOver{program_.place_.membership.generation, told, {}, why.code == Code::unreachable && why.peer});
  }
  Result<void> next_generation(Deadline agreed_by) override {
    program_.action();
    program_.wait([&] { return program_.over_ || program_.lost_; }, agreed_by.left(clock_.now()));
    if (!program_.over_ && !program_.lost_)
      return Failure{Code::deadline_passed, Remedy::exit_process, "the agent has not said in time that the generation is over"};
    if (!program_.next_ && !program_.lost_) program_.simulation_.waits_for_place(program_.id_);
    program_.wait([&] { return program_.next_ || program_.lost_; }, Duration::max());
    if (program_.lost_) return *program_.lost_;
    program_.place_ = *std::exchange(program_.next_, std::nullopt);
    program_.over_.reset();
    program_.groups_ = 0;
    program_.early_.clear();
    program_.lost_early_.clear();
    store_.emplace(program_, clock_);
    program_.simulation_.place_taken(program_.id_, program_.place_);
    return {};
  }
  void returns_within(Duration time) override { program_.returns_within_ = time; }
  [[nodiscard]] bool is_leaving() const override { return program_.leaving_; }
  [[nodiscard]] Remembered remembered() const override { return program_.remembered_; }
  void checkpoint_saved(const std::string& acknowledgement) override {
    program_.action();
    program_.simulation_.say(program_.id_, CheckpointSaved{acknowledgement});
  }
  void ready_to_leave() override { program_.simulation_.say(program_.id_, PrepareToLeave{program_.place_.membership.generation}); }

 private:
  Program& program_;
  const Clock& clock_;
  std::optional<SimulatedStore> store_;  // of the generation at hand
};

// As a ProcessGroup: a peer that is gone matters to calls that still need it, and to no other.
class Program::SimulatedPeers final : public elrun::Peers {
 public:
  SimulatedPeers(Program& program, std::vector<ProcessId> members)
      : program_{program},
        members_{std::move(members)},
        generation_{program.place_.membership.generation},
        group_{program.groups_},
        me_{program.place_.membership.rank.value()},
        inbox_(members_.size()),
        lost_(members_.size(), false),
        unreachable_(members_.size(), false) {
    program_.peers_ = this;
    for (Parcel& parcel : std::exchange(program_.early_, {})) receive(std::move(parcel));
    for (const PeerLost& what : std::exchange(program_.lost_early_, {})) lose(what);
  }
  ~SimulatedPeers() override {
    program_.peers_ = nullptr;
    hang_up();
  }

  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives) override {
    const std::uint64_t number = ++exchanges_;
    const auto size = static_cast<std::uint32_t>(members_.size());
    for (std::uint32_t i = 1; i < size; ++i) {
      const std::uint32_t to = (me_ + i) % size;
      if (sends[to].empty()) continue;
      program_.action();
      if (over_) return *over_;
      if (lost_[to]) return end(peer_lost(to));
      Parcel parcel{generation_, group_, me_, number, {}};
      for (const auto& piece : sends[to]) parcel.bytes.insert(parcel.bytes.end(), piece.begin(), piece.end());
      program_.simulation_.send_parcel(program_.id_, members_[to], std::move(parcel));
    }
    program_.action();
    const auto has = [&](std::uint32_t from) { return receives[from].empty() || !inbox_[from].empty(); };
    const auto ready = [&] {
      if (over_) return true;
      bool all = true;
      for (std::uint32_t from = 0; from < size; ++from) {
        if (from == me_ || has(from)) continue;
        if (lost_[from]) return true;
        all = false;
      }
      return all;
    };
    const bool in_time = program_.wait(ready, program_.simulation_.profile_.timeouts.collective);
    if (over_) return *over_;
    for (std::uint32_t from = 0; from < size; ++from) {
      if (from == me_ || receives[from].empty()) continue;
      if (inbox_[from].empty())
        return end(in_time ? peer_lost(from)
                           : Failure{Code::deadline_passed, Remedy::rejoin, fmt::format("rank {} sent nothing in time", from)});
      const Parcel parcel = std::move(inbox_[from].front());
      inbox_[from].erase(inbox_[from].begin());
      std::size_t wanted = 0;
      for (const auto& piece : receives[from]) wanted += piece.size();
      if (parcel.exchange != number || parcel.bytes.size() != wanted) {
        program_.simulation_.differ(fmt::format("{} expects {} bytes of rank {} in exchange {}, and got {} bytes of exchange {}",
                                                program_.simulation_.name(program_.id_), wanted, from, number, parcel.bytes.size(),
                                                parcel.exchange));
        return end({Code::protocol, Remedy::abort_group, "lengths differ"});
      }
      std::size_t at = 0;
      for (const auto& piece : receives[from])
        std::copy_n(parcel.bytes.begin() + static_cast<std::ptrdiff_t>(std::exchange(at, at + piece.size())), piece.size(), piece.begin());
    }
    program_.action();
    return {};
  }
  void revoke(const Failure& why) override {
    if (over_) return;
    over_ = why;
    over_->code = Code::generation_over;
    hang_up();
  }

  [[nodiscard]] std::uint32_t group() const { return group_; }
  void receive(Parcel parcel) {
    if (parcel.group == group_) inbox_.at(parcel.from).push_back(std::move(parcel));
  }
  void lose(const PeerLost& what) {
    if (what.group == 0 || what.group == group_) lost_.at(what.rank) = true;
  }
  void cannot_reach(Rank rank) {
    if (!lost_.at(rank.value())) lost_[rank.value()] = unreachable_.at(rank.value()) = true;
  }

 private:
  [[nodiscard]] Failure peer_lost(std::uint32_t rank) const {
    // Who gave up may have done so because of a peer that this one cannot reach either: that one is named.
    const auto silent = static_cast<std::uint32_t>(std::find(unreachable_.begin(), unreachable_.end(), true) - unreachable_.begin());
    if (silent < unreachable_.size())
      return {.code = Code::unreachable,
              .remedy = Remedy::rejoin,
              .what = fmt::format("rank {} cannot be reached", silent),
              .peer = Rank{silent}};
    return {Code::peer_lost, Remedy::rejoin, fmt::format("rank {} is gone", rank)};
  }
  Failure end(Failure why) {
    if (!over_) over_ = why;
    program_.simulation_.tell("{} gives up its group: {}", program_.simulation_.name(program_.id_), why.what);
    hang_up();
    return why;
  }
  void hang_up() {
    if (!std::exchange(hung_up_, true)) program_.simulation_.hang_up(program_.id_, {generation_, group_, me_}, members_);
  }

  Program& program_;
  std::vector<ProcessId> members_;
  Generation generation_;
  std::uint32_t group_, me_;
  std::vector<std::vector<Parcel>> inbox_;
  std::vector<bool> lost_, unreachable_;
  std::optional<Failure> over_;
  std::uint64_t exchanges_ = 0;
  bool hung_up_ = false;
};

// --- the process ----------------------------------------------------------------------------------------------------

Program::Program(Simulation& simulation, ProcessId id, Place place)
    : simulation_{simulation}, id_{id}, place_{std::move(place)}, newest_{place_.membership.generation}, turns_{[this] { run(); }} {}

Program::~Program() = default;

// Whatever its program makes of that.
bool Program::gone() const { return turns_.ending() || !simulation_.process(id_).alive; }

Instant Program::now() const { return simulation_.local(id_); }

void Program::run() {
  const LocalClock clock{*this};
  SimulatedSession session{*this, clock};
  const Log log{"job", [this](Level, std::string_view line) { simulation_.tell("{}: {}", simulation_.name(id_), line); }};
  const auto out = [](std::string_view) {};
  simulation_.place_taken(id_, place_);
  int code = 0;
  last_assertion.clear();
  try {
    JobAccess::drive({.clock = clock,
                      .files = *simulation_.storage_,
                      .session = session,
                      .log = log,
                      .out = out,
                      .join = [this](Session& s) { return join(s); },
                      .readers = 0,  // one thread runs at a time
                      .sleep = [this](Duration time) { (void)wait([&] { return over_.has_value() || lost_.has_value(); }, time); }},
                     [this](Job& job) { train(job, simulation_.profile_.job.plan, simulation_.profile_.job.checkpoint); });
  } catch (const Error& error) {
    if (gone()) return;
    code = exit_code(error.failure());
    simulation_.job_failed(id_, error.failure());
  } catch (const std::exception& error) {
    if (gone()) return;
    simulation_.differ(fmt::format("{} ended by an exception: {}", simulation_.name(id_), error.what()));
  }
  if (!last_assertion.empty()) simulation_.differ(fmt::format("{} gave up: {}", simulation_.name(id_), last_assertion));
  simulation_.program_is_over(id_, code);
}

Result<std::unique_ptr<elrun::Peers>> Program::join(Session& session) {
  const Membership& membership = place_.membership;
  ++groups_;
  const std::string mine = fmt::format("{}", id_.value());
  const auto parts =
      session.store().all_gather("peers", membership.rank, membership.world, as_bytes(mine), Deadline::after(now(), peers_come_within));
  if (!parts.ok()) return parts.failure();
  std::vector<ProcessId> members;
  for (const auto& part : *parts) {
    const std::string_view text = as_text(part);
    std::uint32_t peer = 0;
    std::from_chars(text.data(), text.data() + text.size(), peer);
    members.push_back(ProcessId{peer});
  }
  simulation_.connect_peers(id_, membership.generation, members);
  return std::unique_ptr<elrun::Peers>{std::make_unique<SimulatedPeers>(*this, std::move(members))};
}

void Program::told_place(const Place& place) {
  if (!over_ || place.membership.generation.number <= newest_.number) return;
  newest_ = place.membership.generation;
  leaving_ = false;
  next_ = place;
}

void Program::told_over(const Failure& why) {
  next_.reset();
  if (!over_) over_ = why;
  for (const auto& call : std::exchange(on_over_, {})) call(why);
}

void Program::lost_agent(const Failure& why) {
  if (!lost_) lost_ = why;
  told_over(why);
}

void Program::receive(Parcel parcel) {
  if (parcel.generation != place_.membership.generation) return;  // its key does not fit
  if (peers_ != nullptr && parcel.group <= peers_->group()) return peers_->receive(std::move(parcel));
  early_.push_back(std::move(parcel));
}

void Program::lost_peer(const PeerLost& what) {
  if (what.generation != place_.membership.generation) return;
  if (peers_ != nullptr && what.group <= peers_->group()) return peers_->lose(what);
  lost_early_.push_back(what);
}

void Program::cannot_reach(const Generation& generation, Rank peer) {
  if (peers_ != nullptr && generation == place_.membership.generation) peers_->cannot_reach(peer);
}

// --- turns ------------------------------------------------------------------------------------------------------------

void Program::look() {
  if (at_work_ || turns_.over() || (ready_ != nullptr && !(*ready_)())) return;
  at_work_ = true;
  turns_.give();
  at_work_ = false;
}

void Program::end() {
  if (!at_work_) turns_.end();
}

bool Program::wait(const std::function<bool()>& ready, Duration time) {
  const Instant by = time == Duration::max() ? Instant::max() : now() + time;
  if (by != Instant::max()) simulation_.look_at(id_, time);
  const std::function<bool()> looked_at = [&] { return ready() || now() >= by; };
  while (!looked_at()) {
    ready_ = &looked_at;
    turns_.wait();
    ready_ = nullptr;
  }
  return ready();
}

void Program::sleep(Duration time) {
  wait([] { return false; }, time);
}

void Program::action(bool may_wait) {
  switch (simulation_.action_of(id_, may_wait)) {
    case Simulation::AtAction::goes_on: return;
    case Simulation::AtAction::ends: throw Ended{};
    case Simulation::AtAction::is_paused: wait([&] { return !simulation_.process(id_).paused; }, Duration::max()); return;
    case Simulation::AtAction::is_slow: return sleep(simulation_.random(slow_thread_max));
  }
}

// --- what it sees -------------------------------------------------------------------------------------------------------

void Program::handed_out(std::uint64_t step, std::uint64_t begun, const std::vector<std::uint64_t>& weights) {
  simulation_.see(StepHandedOut{id_, place_.membership.generation, step, begun, weights});
  simulation_.tell("{} gets step {}", simulation_.name(id_), step);
  action();
}

void Program::read_weights(std::uint64_t step, std::uint32_t unit, std::uint64_t hash) {
  simulation_.see(WeightsRead{id_, step, unit, hash});
}

void Program::ran_slot(std::uint64_t step, const elrun::Slot& slot) {
  sleep(simulation_.random(simulation_.profile_.step / 2));
  if (slot.revoked()) return;
  simulation_.see(SlotRun{id_, place_.membership.generation, step, slot.index(), {slot.samples().begin(), slot.samples().end()}});
}

void Program::reported(std::uint64_t step, const StepResult& result) {
  simulation_.see(StepReported{id_, step, result.loss, result.norm, result.tokens});
  simulation_.tell("{} has decided step {}", simulation_.name(id_), step);
  action();
}

void Program::ended(const elrun::Outcome& outcome) {
  simulation_.see(JobEnded{id_, outcome.step, outcome.state_hash});
  simulation_.tell("{} ends its job at step {} with state {:016x}", simulation_.name(id_), outcome.step, outcome.state_hash);
}

}  // namespace elrun::sim
