// The idea: whatever the product's Job waits for, it waits for here, on a stack that has its turn when what it waits for is
// there. Before and after everything that others can see of it lies an action, where its process may end.

#include "tests/support/sim/program.hpp"

#include <fcntl.h>

#include <algorithm>
#include <charconv>

#include "checkpoint/format/names.hpp"
#include "lib/job/group_peers.hpp"
#include "lib/job/save/slot_writer.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/support/sim/simulation.hpp"

namespace elrun::sim {
namespace {

constexpr Duration slow_thread_max = 400ms;

}  // namespace

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
    if (progress.steps == 0)  // a sign of life, no step
      return program_.simulation_.say(program_.id_, StepDecided{program_.place_.membership.generation, progress.decided.value()});
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
    program_.simulation_.acknowledged(program_.id_, acknowledgement);
    program_.simulation_.say(program_.id_, CheckpointSaved{acknowledgement});
  }
  void went_on_from(const Restoration& from) override {
    program_.simulation_.see(WentOn{program_.id_, from.step, !from.notes.empty()});
    program_.simulation_.tell("{} goes on from step {}: {}", program_.simulation_.name(program_.id_), from.step, from.why);
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

// As lib/job/save/slot_writer.cpp has it; the slot's memory is the product's.
class Program::SimulatedWriter final : public SlotWriter {
 public:
  explicit SimulatedWriter(Program& program) : program_{program} {}
  ~SimulatedWriter() override {
    if (!program_.gone()) SimulatedWriter::hang_up();
  }
  SimulatedWriter(const SimulatedWriter&) = delete;
  SimulatedWriter& operator=(const SimulatedWriter&) = delete;

  [[nodiscard]] bool is_there() const override { return true; }
  Result<void> connect() override {
    program_.action();
    line_ = program_.simulation_.open_slot_line(program_.id_);
    if (!line_) return Failure{Code::unreachable, Remedy::retry, "connect to elrun ckptd"};
    program_.slot_lines_[*line_];
    return {};
  }
  void hang_up() override {
    if (line_) program_.simulation_.say_on_slot_line(*line_, LineWord::closed), program_.slot_lines_.erase(*line_);
    line_.reset();
  }
  [[nodiscard]] bool is_connected() const override { return line_.has_value(); }
  [[nodiscard]] bool has_ended() const override { return end().has_ended && end().inbox.empty(); }
  Result<void> pass(const StagingSlot& slot) override {
    program_.action();
    ELRUN_TRY_ASSIGN(SlotView view, SlotView::open(Fd{::fcntl(slot.file(), F_DUPFD_CLOEXEC, 0)}));
    program_.simulation_.say_on_slot_line(*line_, LineWord::slot, std::make_shared<const SlotView>(std::move(view)));
    return {};
  }
  Result<void> say(SlotWord word) override {
    if (!program_.copies_now_) program_.action();
    if (!line_ || end().has_ended) return Failure{Code::peer_lost, Remedy::retry, "elrun ckptd of this node is gone"};
    if (word == SlotWord::sealed && program_.simulation_.dies_at_seal(program_.id_)) return {};
    program_.simulation_.say_on_slot_line(*line_, word == SlotWord::begin    ? LineWord::begin
                                                  : word == SlotWord::sealed ? LineWord::sealed
                                                  : word == SlotWord::hurry  ? LineWord::hurry
                                                                             : LineWord::settle);
    if (!program_.copies_now_) program_.action();
    return {};
  }
  Result<std::optional<ByteVector>> packet() override {
    LineEnd& at = end();
    if (at.inbox.empty() && at.has_ended)
      return Failure{Code::peer_lost, Remedy::retry, "elrun ckptd of this node ended while it wrote the checkpoint"};
    if (at.inbox.empty()) return std::optional<ByteVector>{};
    ByteVector first = std::move(at.inbox.front());
    at.inbox.pop_front();
    return std::optional{std::move(first)};
  }
  void wait_for_packet(Duration at_most) override {
    program_.wait([this] { return !end().inbox.empty() || end().has_ended; }, std::min<Duration>(at_most, 1s));
  }

  void copy_beside(std::function<void()> copy) override {
    copy_ = ++program_.copies_made_;
    program_.copies_.emplace(copy_, std::move(copy));
    program_.simulation_.happen_after(program_.simulation_.random(program_.simulation_.profile_.job.copying), program_.id_,
                                      CopyIsMade{copy_});
    program_.action();
  }
  void finish_copy() override {
    if (program_.gone()) program_.copies_.erase(copy_);
    else program_.make_copy(copy_);
  }

 private:
  [[nodiscard]] LineEnd& end() const { return program_.slot_lines_.at(*line_); }
  Program& program_;
  std::optional<launcher::WorkerLine> line_;
  std::uint64_t copy_ = 0;
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
  test::ForwardingFiles files{*simulation_.storage_, [this](const char* verb, const Path& path) -> Result<void> {
                                const std::string name = path.filename().string();
                                if (std::string_view{verb} == "link" && name.ends_with(".claim"))
                                  if (const auto fence = parse_fence_number(name))
                                    simulation_.see(FenceClaimed{id_, place_.membership.generation, *fence});
                                return {};
                              }};
  simulation_.place_taken(id_, place_);
  int code = 0;
  last_assertion.clear();
  try {
    JobAccess::drive({.clock = clock,
                      .files = files,
                      .session = session,
                      .log = log,
                      .out = out,
                      .join = [this](Session& s) { return join(s); },
                      .slot_writer = [this]() -> std::unique_ptr<SlotWriter> { return std::make_unique<SimulatedWriter>(*this); },
                      .readers = 0,  // one thread runs at a time
                      .sleep = [this](Duration time) { (void)wait([&] { return over_.has_value() || lost_.has_value(); }, time); },
                      .one_thread = true,
                      .state_rate = simulation_.profile_.job.state_rate},
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

void Program::on_place(const Place& place) {
  if (!over_ || place.membership.generation.number <= newest_.number) return;
  newest_ = place.membership.generation;
  leaving_ = false;
  next_ = place;
}

void Program::on_over(const Failure& why) {
  next_.reset();
  if (!over_) over_ = why;
  for (const auto& call : std::exchange(on_over_, {})) call(why);
}

void Program::lost_agent(const Failure& why) {
  if (!lost_) lost_ = why;
  on_over(why);
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

void Program::hear_slot_line(launcher::WorkerLine line, std::optional<ByteVector> packet) {
  const auto at = slot_lines_.find(line);
  if (at == slot_lines_.end()) return;
  if (packet) at->second.inbox.push_back(*std::move(packet));
  else at->second.has_ended = true;
}

void Program::make_copy(std::uint64_t number) {
  const auto copy = copies_.extract(number);
  if (!copy) return;
  copies_now_ = true;
  copy.mapped()();
  copies_now_ = false;
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
