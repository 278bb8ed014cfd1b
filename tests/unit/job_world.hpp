#pragma once
/// \file A whole world of jobs in threads of this process, over an exchange of memory, and a toy model to train in it.

#include <array>
#include <bit>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

#include <unistd.h>

#include <fmt/format.h>

#include "kernels/convert.hpp"
#include "lib/comm/label.hpp"
#include "lib/job/job_host.hpp"
#include "lib/link/request_store.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temporary_directory.hpp"

namespace elrun::test {

[[nodiscard]] inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// Exchanges of one generation, in memory. Every member posts its lists, then copies what it receives; a round has
/// three gates (posted, copied, left), so that buffers are free when a call returns.
class MemoryNet {
 public:
  explicit MemoryNet(std::uint32_t world) : sends_(world), labels_(world, Call::none), copied_bytes_(world, 0) {}

  /// `dies` of a member: the number of the exchange in which it goes away, if any.
  Result<void> exchange(std::uint32_t me, std::span<const SendList> sends, std::span<const ReceiveList> receives, bool dies, Call label) {
    std::unique_lock lock{mutex_};
    labels_[me] = label;
    if (dies) over_ = Failure{Code::peer_lost, Remedy::rejoin, fmt::format("rank {} went away", me)}, changed_.notify_all();
    sends_[me] = sends;
    ELRUN_TRY(gate(lock));
    if (over_.has_value()) return *over_;  // a member may have left, and its buffers with it
    for (std::uint32_t from = 0; from < sends_.size(); ++from)
      if (labels_[from] != label)
        return differing_labels(Rank{from}, static_cast<std::uint16_t>(labels_[from]), {static_cast<std::uint16_t>(label), name_of_call});
    for (std::uint32_t from = 0; from < sends_.size(); ++from) {
      std::vector<std::byte> bytes;
      for (const auto& part : sends_[from][me]) bytes.insert(bytes.end(), part.begin(), part.end());
      std::size_t at = 0;
      for (const auto& part : receives[from]) {
        if (at + part.size() > bytes.size()) return Failure{Code::protocol, Remedy::abort_group, "lengths differ"};
        std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), part.size(), part.begin());
        at += part.size();
      }
      if (at != bytes.size()) return Failure{Code::protocol, Remedy::abort_group, "lengths differ"};
      if (from != me) copied_bytes_[from] += bytes.size();
    }
    return gate(lock);
  }
  void revoke(const Failure& why) {
    const std::lock_guard lock{mutex_};
    if (!over_.has_value()) over_ = why;
    changed_.notify_all();
  }
  [[nodiscard]] std::uint64_t bytes_sent() const {
    std::uint64_t all = 0;
    for (const std::uint64_t b : copied_bytes_) all += b;
    return all;
  }

 private:
  Result<void> gate(std::unique_lock<std::mutex>& lock) {
    const std::uint64_t mine = round_;
    if (++arrived_ == sends_.size()) arrived_ = 0, ++round_, changed_.notify_all();
    if (!changed_.wait_for(lock, 60s, [&] { return round_ != mine || over_.has_value(); }))
      return Failure{Code::deadline_passed, Remedy::abort_group, "a member of the test's world is missing"};
    if (round_ == mine) return *over_;
    return {};
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::span<const SendList>> sends_;
  std::vector<Call> labels_;
  std::vector<std::uint64_t> copied_bytes_;
  std::optional<Failure> over_;
  std::uint64_t round_ = 0;
  std::size_t arrived_ = 0;
};

class MemoryPeers final : public Peers {
 public:
  MemoryPeers(MemoryNet& net, std::uint32_t rank, std::optional<std::uint64_t> dies_at) : net_{net}, rank_{rank}, dies_at_{dies_at} {}
  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives) override {
    return net_.exchange(rank_, sends, receives, dies_at_ == count_++, label_);
  }
  void set_label(Call call) override { label_ = call; }
  void revoke(const Failure& why) override { net_.revoke(why); }

 private:
  MemoryNet& net_;
  std::uint32_t rank_;
  std::optional<std::uint64_t> dies_at_;
  std::uint64_t count_ = 0;
  Call label_ = Call::none;
};

class TestSession final : public Session {
 public:
  TestSession(Place place, std::unique_ptr<Store> store) : place_{std::move(place)}, store_{std::move(store)} {}
  const Place& place() const override { return place_; }
  Store& store() override { return *store_; }
  void set_store(std::unique_ptr<Store> store) { store_ = std::move(store); }
  void on_generation_over(OnOver call) override {
    const std::lock_guard lock{mutex_};
    if (ended_.has_value()) call(*ended_);
    over_.push_back(std::move(call));
  }
  void progress(const StepProgress& progress) override { decided = progress.decided.value(), saves_told += progress.times.saves; }
  Result<void> finished(Deadline) override { return has_finished = true, Result<void>{}; }
  bool is_leaving() const override { return leaves_at.has_value() && decided >= *leaves_at; }
  void ready_to_leave() override { ready_at.push_back(decided); }
  void returns_within(Duration time) override { within = time; }
  Remembered remembered() const override { return agent_remembers; }
  void went_on_from(const Restoration& from) override { went_on.push_back(from); }
  void save_failed(StepNumber step, std::uint64_t count, const Failure& why) override {
    failed_saves.push_back({step.value(), count, why.code});
  }
  void save_left_out(StepNumber step, std::uint64_t count) override { saves_left_out.emplace_back(step.value(), count); }
  void waits_for_storage(const StorageWaiting& waiting) override {
    const std::lock_guard lock{waits_mutex_};
    waits_.push_back(waiting);
    waits_changed_.notify_all();
  }
  /// What it has said so far of waits for the storage; with `until` once that holds, or after half a minute. Any thread.
  std::vector<StorageWaiting> waits(const std::function<bool(const std::vector<StorageWaiting>&)>& until = {}) {
    std::unique_lock lock{waits_mutex_};
    if (until) waits_changed_.wait_for(lock, 30s, [&] { return until(waits_); });
    return waits_;
  }

  void end(const Failure& why) {
    const std::lock_guard lock{mutex_};
    if (ended_.has_value()) return;
    ended_ = why;
    for (const OnOver& call : over_) call(why);
  }

  std::uint64_t decided = 0;
  Duration saves_told{};
  bool has_finished = false;
  std::optional<std::uint64_t> leaves_at;  // steps decided when it is asked to
  std::vector<std::uint64_t> ready_at;     // and when it said that it may
  Duration within{};                       // the program says it comes back
  Remembered agent_remembers;
  std::vector<Restoration> went_on;  // as the agent was told
  struct FailedSave {
    std::uint64_t step = 0, count = 0;
    Code code{};
    friend bool operator==(const FailedSave&, const FailedSave&) = default;
  };
  std::vector<FailedSave> failed_saves;                                 // likewise
  std::vector<std::pair<std::uint64_t, std::uint64_t>> saves_left_out;  // steps and counts, likewise

 private:
  std::mutex waits_mutex_;
  std::condition_variable waits_changed_;
  std::vector<StorageWaiting> waits_;
  std::mutex mutex_;
  std::vector<OnOver> over_;
  std::optional<Failure> ended_;
  Place place_;
  std::unique_ptr<Store> store_;
};

/// What became of one member.
struct Member {
  std::optional<Outcome> outcome;
  std::optional<Failure> failure;
  bool finished = false;
  std::uint64_t decided = 0;
  std::uint64_t host_state = 0;
  std::uint64_t steps_begun = 0;  // more host state, which changes before the step is decided
  std::vector<std::uint64_t> ready_to_leave_at;
  Duration returns_within{};
  std::vector<StepResult> steps;
  std::vector<std::string> lines;
  std::size_t ahead = 0;  // slots that were told in advance
};

struct WorldOptions {
  std::uint32_t world = 1;
  std::uint64_t generation = 1;
  struct Death {
    std::uint32_t rank = 0;
    std::uint64_t exchange = 0;
  };
  std::optional<Death> death{};
  struct Leave {
    std::uint32_t rank = 0;
    std::uint64_t at = 0;  ///< Steps decided when its node is asked to leave.
  };
  std::optional<Leave> leave{};
  std::uint64_t* bytes_sent = nullptr;
  bool elastic = false;
  std::vector<std::uint32_t> nodes{};                              ///< By rank, the number of its node; else all are on one.
  JoinPeers join{};                                                ///< Instead of the exchange of memory.
  std::function<SharedBuffers::Make(std::uint32_t rank)> share{};  ///< Memory that peers can read; else all is private.
  const Clock* clock = nullptr;                                    ///< Instead of the real one.
  std::function<const Clock&(std::uint32_t rank)> clock_of{};      ///< A clock for each member, instead of one for all.
  Files* files = nullptr;                                          ///< Likewise.
  std::function<Files&(std::uint32_t rank)> files_of{};            ///< A storage for each member, instead of one for all.
  std::uint64_t memory = 0;                                        ///< Bytes that each member's machine has; 0: not known.
  std::function<void(Duration)> sleep{};                           ///< Of any member, while its final save waits.
  std::function<Memory*(std::uint32_t rank)> arrays{};             ///< Of each member's arrays; none: the host's.
  DeviceGroups device_groups{};                                    ///< As JobHost's.
};
using Program = std::function<void(Job&, Member&)>;

/// For the threads of members, where Catch2 may not check: ends the test, and says why.
inline void must(bool holds, const char* what) {
  if (!holds) throw std::runtime_error{what};
}

/// What the members of one generation share. On the heap: the thread sanitizer tells mutexes apart by address, and only
/// freed memory begins anew.
struct TestGeneration {
  TestGeneration(const Clock& clock, const Generation& generation, std::uint32_t world) : store{clock, generation}, net{world} {}
  SharedStore store;
  MemoryNet net;
  std::mutex lines;
  std::vector<std::unique_ptr<TestSession>> sessions;
};

/// Runs `program` as every member of one generation, and waits for all of them.
inline std::vector<Member> run_world(const WorldOptions& options, const Program& program) {
  static const SteadyClock steady;
  const Clock& clock = options.clock != nullptr ? *options.clock : steady;
  const Generation generation{options.generation, {{0x1234, options.generation}}};
  const auto shared = std::make_unique<TestGeneration>(clock, generation, options.world);
  std::vector<Member> members(options.world);
  for (std::uint32_t r = 0; r < options.world; ++r) {
    Place place;
    place.membership = {generation, Rank{r}, WorldSize{options.world}};
    place.run = RunId{"test"};
    place.elastic = options.elastic;
    place.address = "127.0.0.1";
    place.key.fill(std::byte{7});
    if (!options.nodes.empty()) {
      const auto here = [&](auto end) { return static_cast<std::uint32_t>(std::count(options.nodes.begin(), end, options.nodes[r])); };
      place.node = NodeId{fmt::format("node {}", options.nodes[r])};
      place.local_rank = LocalRank{here(options.nodes.begin() + r)};
      place.local_world = here(options.nodes.end());
    }
    shared->sessions.push_back(std::make_unique<TestSession>(place, shared->store.of(Rank{r})));
  }
  const auto one = [&](std::uint32_t rank) {
    Member& me = members[rank];
    TestSession& session = *shared->sessions[rank];
    if (options.leave && options.leave->rank == rank) session.leaves_at = options.leave->at;
    const Log log{"test", [&](Level, std::string_view line) {
                    const std::lock_guard lock{shared->lines};
                    me.lines.emplace_back(line);
                  }};
    Memory* const arrays = options.arrays ? options.arrays(rank) : nullptr;
    PosixFiles posix;
    Files& files = options.files_of ? options.files_of(rank) : options.files != nullptr ? *options.files : posix;
    const bool dies = options.death.has_value() && options.death->rank == rank;
    const JoinPeers memory = [&](Session&) -> Result<std::unique_ptr<Peers>> {
      return std::unique_ptr<Peers>{
          std::make_unique<MemoryPeers>(shared->net, rank, dies ? std::optional{options.death->exchange} : std::nullopt)};
    };
    try {
      JobAccess::drive({.clock = options.clock_of ? options.clock_of(rank) : clock,
                        .files = files,
                        .session = session,
                        .log = log,
                        .out = [&](std::string_view line) { me.lines.emplace_back(line); },
                        .join = options.join ? options.join : memory,
                        .device_groups = options.device_groups,
                        .share = options.share ? options.share(rank) : SharedBuffers::Make{},
                        .device = arrays != nullptr ? arrays->device() : Device{},
                        .arrays = arrays,
                        .memory = options.memory,
                        .sleep = options.sleep,
                        .state_rate = 0,
                        .agree_wait = 0s},
                       [&](Job& job) { program(job, me); });
    } catch (const Error& e) {
      me.failure = e.failure();
      for (const auto& s : shared->sessions) s->end(e.failure());  // what agents do: everybody hears of it
    }
    me.finished = session.has_finished;
    me.decided = session.decided;
    me.ready_to_leave_at = session.ready_at;
    me.returns_within = session.within;
  };
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < options.world; ++r) threads.emplace_back(one, r);
  for (auto& t : threads) t.join();
  if (options.bytes_sent != nullptr) *options.bytes_sent = shared->net.bytes_sent();
  return members;
}

// ---- the toy: three units, sizes that no world divides, one tensor tied, one frozen, one without decay

struct ToyTensor {
  const char* unit;
  const char* name;
  std::uint64_t size;
  TensorOptions options;
};
inline const std::vector<ToyTensor>& toy_tensors() {
  static const std::vector<ToyTensor> all{{"embedding", "table", 5003, {.uses = 2}},
                                          {"block", "bias", 77, {.decay = false}},
                                          {"block", "fixed", 300, {.frozen = true}},
                                          {"block", "weight", 2500, {}},
                                          {"head", "scale", 9, {.decay = false}}};
  return all;
}

inline Plan toy_plan(int stage, std::uint64_t slots = 8, Exchange exchange = Exchange::automatic) {
  Plan p;
  p.global_batch = 3 * slots, p.micro_batch = 3, p.samples = 50, p.steps = 7, p.seed = 11;
  p.placement = zero(stage, exchange);
  p.overlap = true;  // what can go wrong without it can go wrong with it
  return p;
}
inline const AdamW toy_adamw{.weight_decay = 0.05f};
inline ApplyOptions toy_options(std::uint64_t step) { return {.lr = 0.01f / static_cast<float>(1 + step), .clip_norm = 8.0f}; }

/// Random values that every world of a test asks for again, so that they are made once: most of what a job's test computed was these. Any thread may ask.
class Noise {
 public:
  using Values = std::shared_ptr<const std::vector<float>>;
  /// `stream` and `kind` say which; `value(i)` makes one.
  template <class Value>
  Values of(const RandomStream& stream, std::uint64_t kind, std::uint64_t size, Value value) {
    const std::array<std::uint64_t, 4> key{stream.bits(size), stream.bits(size + 1), kind, size};
    const std::lock_guard lock{mutex_};
    if (const auto known = made_.find(key); known != made_.end()) return known->second;
    if (floats_ + size > (16u << 20)) made_.clear(), floats_ = 0;
    std::vector<float> values(size);
    for (std::uint64_t i = 0; i < size; ++i) values[i] = value(i);
    floats_ += size;
    return made_[key] = std::make_shared<const std::vector<float>>(std::move(values));
  }
  static Noise& shared() {
    static Noise noise;
    return noise;
  }

 private:
  std::mutex mutex_;
  std::map<std::array<std::uint64_t, 4>, Values> made_;
  std::uint64_t floats_ = 0;
};

/// The first normal numbers of a stream.
inline Noise::Values normals(const RandomStream& stream, std::uint64_t size) {
  return Noise::shared().of(stream, 0, size, [&](std::uint64_t i) { return stream.normal(i); });
}
/// Adds them to a gradient that follows from the weights; in a scope of their unit. Plain pointers: what a tensor checks for each of its elements takes longer.
inline void add_gradient(const Tensor<float>& tensor, const RandomStream& stream, float rest = 0) {
  const Noise::Values noise = normals(stream, tensor.size());
  const float *const w = tensor.data(), *const n = noise->data();
  float* const to = tensor.grad();
  for (std::uint64_t i = 0; i < tensor.size(); ++i) to[i] += w[i] * 0.1f + rest + n[i];
}

/// What of a use's gradient does not depend on the weights: magnitudes from 2^-8 to 2^8, so that the order of additions
/// shows in the bits.
inline Noise::Values toy_noise(const RandomStream& rng, std::uint32_t use, std::uint64_t size) {
  const RandomStream of_use = rng.operation(use);
  return Noise::shared().of(of_use, 1, size,
                            [&](std::uint64_t i) { return of_use.normal(i) * (static_cast<float>(1u << (rng.bits(i) % 17)) * 0x1p-8f); });
}
/// Adds one use's gradient of one tensor.
inline void add_toy_gradient(std::span<float> gradient, std::span<const float> weights, std::span<const std::uint64_t> samples,
                             const RandomStream& rng, std::uint32_t use) {
  float x = 0;
  for (const std::uint64_t s : samples) x += static_cast<float>(s % 7) - 3.0f;
  const auto noise = toy_noise(rng, use, weights.size());
  float* const to = gradient.data();  // plain pointers: the thread sanitizer counts each access, that to the vector's own members too
  const float *const w = weights.data(), *const n = noise->data();
  for (std::size_t i = 0; i < weights.size(); ++i) to[i] += w[i] * x * 0.1f + n[i];
}
inline float toy_loss(std::span<const std::uint64_t> samples, const RandomStream& rng) {
  return static_cast<float>(samples[0]) * 0.3f + rng.uniform(5);
}

/// The toy computes on the host, wherever its tensors lie.
inline bool on_host(const Job& job) { return job.device().kind == DeviceKind::host; }
inline std::vector<float> values_of(const Tensor<float>& tensor) {
  std::vector<float> values(tensor.size());
  tensor.read(values);
  return values;
}

/// What the program of a toy computes with: float weights, the bf16 that the job makes of them, or the float weights that it rounds to bf16 itself, which is the same.
enum class ToyWeights : std::uint8_t { f32, bf16, rounded_by_the_program };

/// A tensor of a toy, with the values that it computes with.
class ToyView {
 public:
  ToyView(Unit& unit, const ToyTensor& t, ToyWeights weights)
      : rounds_{weights == ToyWeights::rounded_by_the_program && !t.options.frozen} {
    if (weights == ToyWeights::bf16 && !t.options.frozen) half_ = unit.tensor<bf16>(t.name, {t.size}, t.options);
    else whole_ = unit.tensor<float>(t.name, {t.size}, t.options);
  }
  [[nodiscard]] std::uint64_t size() const { return half_ ? half_->size() : whole_->size(); }
  void set(std::span<const float> values) const { half_ ? half_->set(values) : whole_->set(values); }
  [[nodiscard]] std::span<float> grad_span() const { return half_ ? half_->grad_span() : whole_->grad_span(); }
  void read_grad(std::span<float> values) const { half_ ? half_->read_grad(values) : whole_->read_grad(values); }
  void set_grad(std::span<const float> values) const { half_ ? half_->set_grad(values) : whole_->set_grad(values); }
  /// `room`: for those that are not floats on the host as they lie.
  [[nodiscard]] std::span<const float> values(const Job& job, std::vector<float>& room) const {
    if (!half_ && !rounds_ && on_host(job)) return whole_->span();
    room.resize(size());
    if (half_) {
      std::vector<bf16> halves(size());
      half_->read(halves);
      to_float(halves, room);
    } else {
      whole_->read(room);
      if (rounds_)
        for (float& x : room) x = to_float(to_bf16(x));
    }
    return room;
  }

 private:
  std::optional<Tensor<float>> whole_;
  std::optional<Tensor<bf16>> half_;
  bool rounds_;
};

struct ToyOptions {
  Plan plan;
  CheckpointOptions checkpoint{};
  AnyOptimizer optimizer = toy_adamw;
  std::uint64_t stop_after = ~std::uint64_t{0};  ///< Leaves the program after this many steps.
  std::function<void(Job&, std::uint64_t step, Slot&)> in_slot{};
  std::function<void(Job&)> before_slots{};                  ///< In a step.
  std::function<void(Job&, std::uint64_t steps)> between{};  ///< After each decided step.
  // Evaluations from which the learning rate follows, a variable of host state:
  bool evaluates = false;          ///< After each decided step, twice.
  bool evaluates_in_step = false;  ///< Between next_step() and the slots.
  bool evaluates_first = false;    ///< Before the loop, once in the life of the state.
  bool throws = false;             ///< Out of slots that are revoked.
  ToyWeights weights = ToyWeights::f32;
  [[nodiscard]] bool adapts() const { return evaluates || evaluates_in_step || evaluates_first; }
};

/// A pass over 10 samples, whose losses follow from the weights.
inline Evaluation evaluate_toy(Job& job, std::vector<Unit>& units, const std::vector<std::size_t>& unit_of,
                               const std::vector<ToyView>& tensors) {
  return job.evaluate(10, [&](Slot& slot) {
    double sum = 0;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const auto scope = units[unit_of[t]].use();
      std::vector<float> room;
      const std::span<const float> values = tensors[t].values(job, room);
      for (std::uint64_t i = 0; i < tensors[t].size(); i += 7) sum += std::fabs(static_cast<double>(values[i]));
    }
    slot.add("weights", sum);
    slot.report(static_cast<float>(sum) * toy_loss(slot.samples(), slot.rng()), 1 + slot.index());
  });
}

inline Program toy(const ToyOptions& options) {
  return [options](Job& job, Member& me) {
    Plan plan = options.plan;
    plan.optimizer = kind_of(options.optimizer);
    job.configure(plan, options.checkpoint);
    std::vector<Unit> units;
    std::vector<ToyView> tensors;
    std::vector<std::size_t> unit_of;
    std::string last;
    for (const ToyTensor& t : toy_tensors()) {
      if (last != t.unit) units.push_back(job.unit(t.unit)), last = t.unit;
      unit_of.push_back(units.size() - 1);
      tensors.emplace_back(units.back(), t, options.weights);
    }
    std::uint64_t mine = 0, begun = 0;  // host state
    float factor = 1;                   // of the learning rate
    std::uint64_t first = 0;            // evaluations before the loop
    if (options.adapts()) job.state("factor", factor), job.state("first", first);
    job.state("steps seen", mine);
    job.state("steps begun", begun);
    me.steps.clear();
    job.seal();
    if (!job.restore())
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        const auto scope = units[unit_of[t]].use();
        tensors[t].set(*normals(job.rng(toy_tensors()[t].name), tensors[t].size()));
      }
    const auto adapt = [&](const Evaluation& e) {
      if (e.decided)
        factor *= 1.0f + 0.001f * static_cast<float>(std::bit_cast<std::uint32_t>(e.loss) % 64 +
                                                     std::bit_cast<std::uint64_t>(e.sum("weights")) % 64);
      return e.decided;
    };
    if (options.evaluates_first && first == 0) first += adapt(evaluate_toy(job, units, unit_of, tensors));
    while (auto step = job.next_step()) {
      if (step->number() == options.stop_after) return;
      ++begun;
      if (options.evaluates_in_step) adapt(evaluate_toy(job, units, unit_of, tensors));
      if (options.before_slots) options.before_slots(job);
      for (Slot& slot : step->slots()) {
        if (options.in_slot) options.in_slot(job, step->number(), slot);
        if (options.throws && slot.revoked()) throw std::runtime_error{"out of a slot that is revoked"};
        const auto add = [&](std::size_t t, std::uint32_t use) {
          std::vector<float> room;
          const std::span<const float> weights = tensors[t].values(job, room);
          if (on_host(job)) return add_toy_gradient(tensors[t].grad_span(), weights, slot.samples(), slot.rng(), use);
          std::vector<float> gradient(tensors[t].size());
          tensors[t].read_grad(gradient);
          add_toy_gradient(gradient, weights, slot.samples(), slot.rng(), use);
          tensors[t].set_grad(gradient);
        };
        {
          auto g = units[0].use_grad();
          add(0, 1);
        }
        {
          auto g = units[1].use_grad();
          add(1, 2);
          add(3, 3);
        }
        if (slot.index() != 2) {
          auto g = units[2].use_grad();
          add(4, 4);
        }  // slot 2 has no use for it
        {
          auto g = units[0].use_grad();
          add(0, 5);
        }
        if (options.throws && slot.revoked()) throw std::runtime_error{"out of a slot that is revoked"};
        const float loss = toy_loss(slot.samples(), slot.rng());
        slot.report(DeviceScalar{&loss}, 3 + slot.index());
      }
      const StepResult r = std::visit(
          [&](const auto& optimizer) {
            ApplyOptions apply = toy_options(step->number());
            if (options.adapts()) apply.lr = apply.lr.at(step->number()) * factor;
            return step->apply(optimizer, apply);
          },
          options.optimizer);
      if (!r.decided) continue;
      me.steps.push_back(r), ++mine;
      for (int pass = 0; options.evaluates && pass < 2; ++pass) adapt(evaluate_toy(job, units, unit_of, tensors));
      job.print(fmt::format("step {}", r.step));
      me.ahead = job.samples_ahead(2).size();
      if (options.between) options.between(job, r.step);
    }
    me.host_state = mine;
    me.steps_begun = begun;
    me.outcome = job.outcome();
  };
}

}  // namespace elrun::test
