#pragma once
/// \file Job: the loop a training program is written around. See samples/gpt for a whole program.
///
/// User code never sees a rank or a world size. It declares units of parameters and loops over the slots that the
/// runtime hands out; accumulation, elasticity and exactness are then one mechanism.

#include <array>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <elrun/device.hpp>
#include <elrun/device_span.hpp>
#include <elrun/export.hpp>
#include <elrun/ids.hpp>
#include <elrun/optimizer.hpp>
#include <elrun/plan.hpp>
#include <elrun/random.hpp>
#include <elrun/result.hpp>
#include <elrun/schedule.hpp>
#include <elrun/tensor.hpp>
#include <elrun/verify.hpp>

namespace elrun::inline v0 {

class Job;

/// How a tensor takes part in training.
struct TensorOptions {
  bool decay = true;  ///< Weight decay applies (usually not to biases and norms).
  /// No gradient, no optimizer state.
  ///
  /// After the first step a program may write to it (a running mean, say) once `apply`, and each `evaluate` after it, said `decided`, until the next `next_step()`: the same values on every
  /// rank, made of what all have alike (of weights see `Unit::use`). A newcomer gets them. What is written at another moment it may lack or have twice, and the job ends with 78.
  ///
  /// May change from one start of a job to the next where it changes for all tensors of the unit alike (a unit of its own, say): moments begin at zero where it
  /// trains again. A warning names such tensors, and those whose `decay` changed. Else the unit is laid out otherwise, and the checkpoint is refused.
  bool frozen = false;
  std::uint32_t uses = 1;  ///< `use_grad` scopes per slot that add to the gradient (2: tied); handed off after the last.
};

/// Where a tensor's memory is just now: what its views share. The job's own; programs hold a `Tensor`.
struct TensorPlace {
  void* data = nullptr;  ///< Null where nobody may read or write it.
  void* grad = nullptr;  ///< Null outside of `use_grad` scopes of its unit, and for a frozen tensor.
  Shape shape;
  std::string name;      ///< With its unit's: "block.0/qkv".
  void* unit = nullptr;  ///< The job's own.
  Device device{};       ///< Whose addresses these are.
};

namespace detail {
/// Throws Error (invalid_argument) that names tensor and remedy.
[[noreturn]] ELRUN_API void out_of_scope(const TensorPlace* tensor, bool gradient);
/// Likewise, for a view of the memory of another kind of device.
[[noreturn]] ELRUN_API void of_other_device(const TensorPlace& tensor, bool gradient);
/// A tensor of bf16, and its master weights.
ELRUN_API void write_rounded(const TensorPlace& tensor, std::span<const float> values);
/// From or to `run`, which is the tensor or its gradient.
ELRUN_API void read_tensor(const TensorPlace& tensor, std::span<const std::byte> run, std::span<std::byte> to);
ELRUN_API void write_tensor(const TensorPlace& tensor, std::span<const std::byte> from, std::span<std::byte> run);

/// A value that says where something lies. Its bytes mean nothing in another process.
template <class T>
inline constexpr bool is_address = std::is_pointer_v<T> || std::is_member_pointer_v<T>;
template <class T, std::size_t n>
inline constexpr bool is_address<T[n]> = is_address<T>;
template <class T, std::size_t n>
inline constexpr bool is_address<std::array<T, n>> = is_address<T>;
template <class T, std::size_t n>
inline constexpr bool is_address<std::span<T, n>> = true;
template <class C, class Traits>
inline constexpr bool is_address<std::basic_string_view<C, Traits>> = true;
template <class T>
inline constexpr bool is_address<std::reference_wrapper<T>> = true;
}  // namespace detail

/// A parameter: a view into its unit's memory. Cheap to copy, valid as long as the job. Contents are what this step
/// computes with, inside a `use` or `use_grad` scope of its unit.
///
/// `T` is float, or bf16: then the job trains master weights of float all the same, and what is here is what they round to (to nearest, ties to even), made
/// anew for each scope. Gradients are of float either way.
template <class T>
class Tensor {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, bf16>,
                "a job trains parameters of float: use Tensor<float>, or Tensor<bf16> for what they round to");

 public:
  Tensor() = default;
  /// Elements in row-major order, at an address of `job.device()`: on a device no code of the host may touch it. Throws before `seal()`, and out of scope where
  /// parameters are sharded, or `T` is bf16. What is written here is a parameter's new value where `T` is float; where it is bf16, `set` alone writes values.
  [[nodiscard]] T* data() const {
    if (place_ == nullptr || place_->data == nullptr) [[unlikely]]
      detail::out_of_scope(place_, false);
    return static_cast<T*>(place_->data);
  }
  /// Where this slot's gradient goes: zero at the begin of the slot's first `use_grad` scope, added to after that. Same
  /// shape, of float. Throws outside of such a scope, and for a frozen tensor. Ask anew in every scope: the address
  /// may be another.
  [[nodiscard]] float* grad() const {
    if (place_ == nullptr || place_->grad == nullptr) [[unlikely]]
      detail::out_of_scope(place_, true);
    return static_cast<float*>(place_->grad);
  }
  [[nodiscard]] const Shape& shape() const { return place_->shape; }
  [[nodiscard]] std::uint64_t size() const { return element_count(place_->shape); }
  /// For code of the host. Throws Error (`invalid_argument`) on a device.
  [[nodiscard]] std::span<T> span() const { return {require(DeviceKind::host, data(), false), size()}; }
  [[nodiscard]] std::span<float> grad_span() const { return {require(DeviceKind::host, grad(), true), size()}; }
  /// For kernels. Throws Error (`invalid_argument`) on the host.
  [[nodiscard]] DeviceSpan<T> device_span() const { return {require(DeviceKind::cuda, data(), false), size()}; }
  [[nodiscard]] DeviceSpan<float> grad_device_span() const { return {require(DeviceKind::cuda, grad(), true), size()}; }

  /// From and to memory of the host, wherever the tensor lies; `values` has as many elements. In the order of `job.stream()` and of all streams that a scope of the unit was opened
  /// with: each sees what kernels before it left, and kernels after it see what it wrote. `read` waits for them; when the world changes meanwhile it returns at once, and
  /// what it read is unspecified. `set` takes values of the parameters themselves, and a tensor of bf16 gets what they round to. Throws Error: `invalid_argument` for another
  /// size, and what a device fails of.
  void set(std::span<const float> values) const {
    if constexpr (std::is_same_v<T, bf16>) detail::write_rounded(*checked(data()), values);
    else detail::write_tensor(*checked(data()), std::as_bytes(values), bytes(data()));
  }
  void read(std::span<T> values) const { detail::read_tensor(*checked(data()), bytes(data()), std::as_writable_bytes(values)); }
  void set_grad(std::span<const float> values) const { detail::write_tensor(*checked(grad()), std::as_bytes(values), bytes(grad())); }
  void read_grad(std::span<float> values) const { detail::read_tensor(*checked(grad()), bytes(grad()), std::as_writable_bytes(values)); }

 private:
  friend class Unit;
  template <class U>
  [[nodiscard]] U* require(DeviceKind kind, U* at, bool gradient) const {
    if (place_->device.kind != kind) [[unlikely]]
      detail::of_other_device(*place_, gradient);
    return at;
  }
  [[nodiscard]] const TensorPlace* checked(const void*) const { return place_; }
  template <class U>
  [[nodiscard]] std::span<std::byte> bytes(U* at) const {
    return std::as_writable_bytes(std::span{at, size()});
  }
  explicit Tensor(const TensorPlace& place) : place_{&place} {}
  const TensorPlace* place_ = nullptr;  // owned by the job
};

/// A scope in which a unit's weights (or gradients) may be touched. Ends it at destruction, in the stream's order.
class ELRUN_API UseScope {
 public:
  UseScope(UseScope&& other) noexcept;
  UseScope& operator=(UseScope&&) = delete;
  ~UseScope();

 private:
  friend class Unit;
  UseScope(void* unit, bool gradient, Stream stream) : unit_{unit}, gradient_{gradient}, stream_{stream} {}
  void* unit_;  // null: moved from
  bool gradient_;
  Stream stream_;
};

/// The only concept of sharding: parameters that are gathered together and whose gradients are handed off together.
/// A cheap handle; valid as long as the job.
class ELRUN_API Unit {
 public:
  /// Declares a parameter, before `seal()`; throws Error (`invalid_argument`) after it. Names are unique in the unit, which `seal` checks.
  ///
  /// `T` is float, or bf16 for weights that the program computes with in bf16, as with FSDP's MixedPrecision(param_dtype=bf16): the job keeps master weights and moments in
  /// float, updates, hashes and saves those, and makes bf16 of them for each scope. Where parameters are sharded, half the bytes travel, and half are held of a unit in use; gradients
  /// stay float (`Plan::leaves` has them travel in bf16). What trains in a unit is all float or all bf16, and what is frozen is float. It is part of the bits, and of
  /// what a checkpoint goes on with.
  template <class T>
  Tensor<T> tensor(std::string_view name, Shape shape, TensorOptions options = {}) {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, bf16>,
                  "a job trains parameters of float: declare unit.tensor<float>(name, shape), or <bf16> for what they round to");
    return Tensor<T>{declare(name, DTypeOf<T>::value, std::move(shape), options)};
  }
  /// Makes the unit's weights available until the scope ends. Allowed after `restore()`.
  ///
  /// The scope gathers sharded parameters. The end of the last open scope releases them. A pointer that is kept beyond it leads to no memory, and using it ends the process by SIGSEGV.
  /// On a device such a pointer leads to another unit's weights, and nothing reports it. The rules:
  /// * A process uses the units that it needs, in any order, inside of slots and between steps.
  /// * It may have to wait for the other ranks. They serve it from their next call of the job: `use`, `next_step`, `evaluate`, `verify`, or the end of the program.
  /// * From `next_step()` to the first slot all ranks use the same sharded units, as often: a rank that has come to its slots serves no other one there. One rank alone
  ///   may use some after `apply()`, or in a slot.
  /// * The program writes initial values in such a scope, between `restore()` and the first step, the same on all ranks. Every rank keeps its own shard of them
  ///   when the scope ends. What is written anywhere else is lost or wrong.
  /// * Sharded parameters are an error between the end of `slots()` and `apply`, because other ranks may have voted already.
  /// * No scope may be open when `next_step`, `apply` or `evaluate` is called.
  ///
  /// If the world changes meanwhile, `use` returns at once. Memory is there, but its contents are unspecified. The same holds after an `apply` or `evaluate` in which
  /// the world changed, until the next `next_step()`. Read what has to be exact in `forward` or in a slot.
  ///
  /// `stream`: the stream in which the program works with the weights. Stream{} means `job.stream()`, the only one on the host. Any other stream of `job.device()` sees the weights,
  /// too. What it reads or writes until the scope ends comes before the job's next work with them. A stream of another device, or CUDA's default stream (null, cudaStreamLegacy, cudaStreamPerThread), is an error.
  ///
  /// Throws Error (`invalid_argument`) where a rule is broken, and after the last step if the ranks that have the weights are gone.
  [[nodiscard]] UseScope use(Stream stream = {});
  /// Makes weights and gradients available until the scope ends, which hands off the gradients of this use. Allowed inside a slot of a step, at most as often per slot as the
  /// unit's tensors declare `uses`. The scope ends before its slot does. Throws Error (`invalid_argument`) elsewhere.
  ///
  /// A unit without a `use_grad` in a slot has a gradient of zeros there, and in a step where no slot has one, **it is updated all the same**: what moments hold of earlier steps still moves it, and
  /// weight decay does (PyTorch leaves a parameter without a gradient alone). So the parts of a GAN, or a backbone that trains later, do not stand still while others train. One that
  /// never had a gradient stays where it is if its tensors are declared {.decay = false}; {.frozen = true} holds it for good.
  [[nodiscard]] UseScope use_grad(Stream stream = {});

 private:
  friend class Job;
  explicit Unit(void* impl) : impl_{impl} {}
  const TensorPlace& declare(std::string_view name, DType type, Shape shape, TensorOptions options);
  void* impl_;
};

/// One micro-batch of one step that this process happens to own, or of an evaluation. A loop over `slots()` has one at a time: a reference is valid
/// until the loop goes on to the next one, that of an evaluation until `forward` returns. A slot that is moved out of the loop keeps its index, samples and
/// random numbers, and is over when the loop goes on. It must not outlive the job.
class ELRUN_API Slot {
 public:
  Slot(Slot&&) noexcept = default;
  Slot& operator=(Slot&&) noexcept = default;
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  ~Slot() = default;
  /// Number of the slot in its step: 0 .. V-1.
  [[nodiscard]] std::uint32_t index() const { return index_; }
  /// Ids of the samples, `micro_batch` of them, whoever runs the slot. Valid as long as the slot.
  [[nodiscard]] std::span<const std::uint64_t> samples() const { return samples_; }
  [[nodiscard]] RandomStream rng() const { return rng_; }
  /// The slot's loss, a mean over its `tokens` (or samples). Exactly once per slot; throws Error (`invalid_argument`) the second time, and once the slot is over.
  void report(float loss, std::uint64_t tokens);
  /// Of a device: fetched in the order of its stream, which is one of `job.device()` and is not waited for here.
  void report(DeviceScalar loss, std::uint64_t tokens);
  /// Adds to a sum of the evaluation, beside its loss: hits, say. Added up over a slot's calls, then over the slots as losses are, so the bits are the same at any
  /// world size. Throws Error (`invalid_argument`) in a slot of a step, once the slot is over, for a name of more than 64 bytes or none, for a value that is
  /// no finite number, and beyond 64 names.
  void add(std::string_view name, double value);
  /// The world changed: nothing that this slot computes will be used. Never wrong when it says true. Then it may end in any way: without a report, and by
  /// an exception too (see `run`).
  [[nodiscard]] bool revoked() const;

 private:
  friend class Step;
  friend class Job;
  friend struct SlotAccess;
  Slot() = default;
  void* impl_ = nullptr;
  std::uint64_t serial_ = 0, generation_ = 0;  // which of this process's slots, and of which world
  std::uint32_t index_ = 0;
  std::vector<std::uint64_t> samples_;
  RandomStream rng_;
};

/// What one decided step did.
struct StepResult {
  bool decided = false;             ///< False: revoked; `next_step()` hands the same step out again.
  std::uint64_t step = 0;           ///< Decided steps so far, this one included.
  float loss = 0;                   ///< Mean over the slots, folded by the canonical tree.
  float norm = 0;                   ///< Global norm of the gradient before clipping.
  bool audited = false;             ///< A slot was computed by several ranks, and all got the same gradient; see Step::audit.
  bool skipped = false;             ///< A gradient was not finite: the step is decided and counts, but nothing was updated.
  std::uint64_t steps_skipped = 0;  ///< Of all decided steps so far, over restarts too.
  std::uint64_t tokens = 0;         ///< Of the whole step.
  double tokens_per_s = 0;          ///< By this process's clock.
  std::uint32_t world = 1;
  std::uint64_t generation = 0;
};

/// One step of the plan. Use it up before the next `next_step()`.
class ELRUN_API Step {
 public:
  [[nodiscard]] std::uint64_t number() const { return number_; }  ///< 0 for the first step.
  /// The slots of this process, one after the other; ends early when the step is revoked. Once per step, and for one loop: throws Error (`invalid_argument`) the second
  /// time, and after `apply`. The loop throws Error (`invalid_argument`) for a slot that was left without `report` or with an open `use_grad` scope.
  class Slots;
  [[nodiscard]] Slots slots();
  /// With this probability (0 to 1, drawn from the plan's seed and the step's number) one slot of the step is computed by
  /// one more rank, in a world of three or more by two, and the hashes of its gradient, loss and tokens are compared
  /// before the step is decided. Changes no bit of training. A rank that two others outvote ends with an Error that names it,
  /// and the others go on with the same step; where nobody can tell who is wrong, all end. The step is then not applied.
  ///
  /// On all ranks with the same number (else all end with an Error that names both), before `slots()`, which may then hand out a slot of another rank first: a program
  /// that counts its slots counts that one, too. In a world of one it does nothing. For zero(0) and zero(1).
  /// Throws Error (`invalid_argument`) for another placement, for no probability, and out of this order.
  /// Costs no memory, and in an audited step the time of one slot and one pass over a gradient: with probability p and V
  /// slots on W ranks about p W / V of the whole.
  void audit(double probability);
  /// Reduces the gradients, votes, and updates the parameters once the step is decided. A failure before the decision changes nothing. Takes the options of the
  /// plan's optimizer. Updates every tensor that is not frozen, also of units without a `use_grad` in this step: see there.
  ///
  /// The options of the optimizer and of `apply` are the same on all ranks, and the same when a step is done again; see ApplyOptions. Before the decision they are compared bit by bit.
  /// A difference throws Error (`mismatch`) on all ranks. They are compared
  /// * between the ranks;
  /// * with those of the same step when it was decided before, if a member of this generation remembers them;
  /// * with those that a member voted for, if the step was decided while that member was away.
  ///
  /// What a process remembers: the steps that it decided, with 65,536 changes of the values at most, and the last step of the checkpoint or state that it got. With `Reduce::fast` it
  /// forgets its steps when the job goes back to a checkpoint, because they are then done again with other weights. If the whole world begins at a checkpoint, nobody
  /// knows the values of the steps after it. Then values of step 0 that the checkpoint's last step did not have are a warning.
  ///
  /// A step that was tried and not decided is tried again with the values of this process's first try. There is one exception: an evaluation inside of the step was lost with the
  /// world. Then `apply` gets what the program has without it, and that try does not count.
  ///
  /// Returns with `decided` false when the step was revoked. Throws Error:
  /// * `invalid_argument`: options out of bounds (all are named at once), another optimizer than the plan's, slots that were not run, an open scope, a second call, or a thread whose
  ///   rounding mode was changed;
  /// * `mismatch`: as above, and for ranks that make different calls, and for parameters that differ after the world changed (a program wrote some although `restore` had found a
  ///   state);
  /// * `corrupt`: from an audit;
  /// * `generation_over` and others: this process has no place in a next generation.
  StepResult apply(const AdamW& optimizer, const ApplyOptions& options);
  StepResult apply(const Sgd& optimizer, const ApplyOptions& options);
  StepResult apply(const Lion& optimizer, const ApplyOptions& options);

 private:
  friend class Job;
  Step(void* impl, std::uint64_t number) : impl_{impl}, number_{number} {}
  static Slot* first_slot(void* impl);
  static Slot* next_slot(void* impl);
  void* impl_;
  std::uint64_t number_;
};

class Step::Slots {
 public:
  class iterator {
   public:
    using value_type = Slot;
    using difference_type = std::ptrdiff_t;
    Slot& operator*() const { return *slot_; }
    iterator& operator++() {
      slot_ = next_slot(impl_);
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const iterator& i, std::default_sentinel_t) { return i.slot_ == nullptr; }

   private:
    friend class Slots;
    explicit iterator(void* impl) : impl_{impl}, slot_{first_slot(impl)} {}
    void* impl_;
    Slot* slot_;
  };
  [[nodiscard]] iterator begin() { return iterator{impl_}; }
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }

 private:
  friend class Step;
  explicit Slots(void* impl) : impl_{impl} {}
  void* impl_;  // and no Step: in `for (auto& slot : job.next_step()->slots())` that is gone when the loop begins
};

/// What `Job::restore` came to.
struct Restored {
  enum class From : std::uint8_t {
    nothing,     ///< There is no state: the program makes initial values.
    checkpoint,  ///< Parameters, moments and host state are those of `checkpoint`.
    members,     ///< They are in memory: of the job's other workers, or of this process, whose program runs again.
  };
  From from = From::nothing;
  std::uint64_t step = 0;    ///< Steps that are done: the number of the one that comes next.
  std::string checkpoint{};  ///< Its directory; empty unless the state is from one.
  std::string why{};         ///< Why this one, a clause for people: "the newest checkpoint".
  /// Steps that were decided before, as far as the job's agents know, and are done again: no state holds them.
  std::uint64_t steps_again = 0;
  /// Checkpoints that were passed over and why, and what else people should know. The log has them, too.
  std::vector<std::string> notes{};
  /// There is a state: the program writes no initial values.
  explicit operator bool() const { return from != From::nothing; }
};

/// How a job ended.
struct Outcome {
  std::uint64_t step = 0;
  float loss = 0;                ///< Of the last step.
  std::uint64_t state_hash = 0;  ///< The state hash; print as 16 hex digits.
};

/// A forward-only pass over samples.
struct ELRUN_API Evaluation {
  /// Mean over the tokens that slots reported (over the samples, where all reported 0 tokens): a slot with fewer of them weighs less. Folded by the canonical tree, so it is the
  /// same at any world size.
  float loss = 0;
  std::uint64_t tokens = 0;
  bool decided = false;                                ///< False: it has no result, maybe on some ranks alone; see `Job::evaluate`.
  std::vector<std::pair<std::string, double>> sums{};  ///< What slots added, in the order of the names.
  /// What slots added under this name; 0 where none did.
  [[nodiscard]] double sum(std::string_view name) const;
};

/// The job of this process. Use from the thread that `run` called.
///
/// It stays with the process: in a child made by fork each call that may throw throws Error (`refused`), as do those of its units, steps and slots, and a scope's end does nothing there.
/// So end such a child by `_exit`, also where its exec fails. Where its node has several workers, weights and gradients may lie in memory that peers read: the
/// child sees the weights change and must not write to them, and has none where the gradients are: memory that it makes itself may come to lie there, so it uses no pointer to one.
class ELRUN_API Job {
 public:
  /// First of all calls, once: each other one before it throws. Throws Error (`invalid_argument`) that names all problems of the plan and of the options at once. As all
  /// such errors it ends the process with 78 when the program lets it out, see `run`.
  void configure(const Plan& plan, const CheckpointOptions& checkpoint = {});
  /// Throws Error (`invalid_argument`) before `configure`.
  [[nodiscard]] const Plan& plan() const;

  /// Declares a unit. Throws Error (`invalid_argument`) before `configure` and after `seal`; names that are used twice are told by `seal`. Names are unique; the order of declaration is the order in the state hash and the checkpoint.
  Unit unit(std::string_view name);
  /// Small host state that is rolled with the step: `value` is restored before `restore()` returns and saved with every
  /// checkpoint. Registered before `restore()`; lives until the program returns. (A worker that joins after that, in a job that asks for no step, gets what it was
  /// after `restore()`.) Throws Error (`invalid_argument`) before `configure`, after `restore`, for a name
  /// that was used before, and beyond 64 MB in all: a worker that joins gets all of it in one piece.
  ///
  /// **One value for all ranks:** after a restart all have the one of the first rank, and a worker that joins gets that of another one. So it follows from what all ranks know (a step's number,
  /// its loss, an evaluation), and never from this process's own slots. Nothing compares the values.
  ///
  /// The bytes of `value` itself are kept, so it holds no addresses: a pointer, span or string_view does not compile, and a struct with one in it must not be given.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void state(std::string_view name, T& value) {
    static_assert(
        !detail::is_address<T>,
        "the bytes of a pointer, span or string_view are an address, which another process does not have: register the elements, as a std::array or a struct");
    register_state(name, std::as_writable_bytes(std::span{&value, 1}));
  }

  /// What each placement would cost in a world of `world` ranks, as a table for people. It has the bytes per rank by state, the bytes that a rank sends in a step, the slots per
  /// rank, and the share of the compute that is used. `ranks_per_node`: 0 puts all ranks on one node. Where they do not divide evenly, the last node has fewer.
  /// Call it after the last declaration. It allocates nothing, and needs no `seal()`. Throws Error (`invalid_argument`) before `configure`, for a world of 0, and for declarations
  /// that `seal` would refuse.
  [[nodiscard]] std::string plan_table(std::uint32_t world, std::uint32_t ranks_per_node = 0) const;
  /// Plans the layout and allocates everything. Nothing is allocated afterwards, with one exception: where nodes differ in their number of workers, `restore()` decides who holds what of
  /// a hybrid or mirrored placement, and allocates it anew. Prints the bytes per rank by state, and what mirroring costs and saves.
  /// Throws Error (`invalid_argument`) before `configure`, the second time, and with all problems of the declarations at once. It also throws, before anything is
  /// allocated, if this rank would hold more than its machine has.
  void seal();
  /// Puts the newest state into the job's memory, from a committed checkpoint of any world size or from other workers. The result says from where. It is false only when the whole
  /// world starts from nothing. A checkpoint after which the job failed the same way twice is passed over if an older one is whole. A checkpoint of another plan or model ends the
  /// program with a message that names both sides; so does a root in which nothing is readable. Throws Error: `invalid_argument` before `seal` and the second time; `mismatch` for a checkpoint of something else and for
  /// workers that run another program, plan or options; failures of the storage; `generation_over` and others where this process has no place in a next generation.
  [[nodiscard]] Restored restore();
  /// Random numbers for initial values, by name; the same on every rank. Throws Error (`invalid_argument`) before `configure`.
  [[nodiscard]] RandomStream rng(std::string_view name) const;

  /// The next step, or nothing when the plan's steps are all decided: then the final checkpoint is committed and the
  /// outcome known on all ranks. Checkpoints are saved in here. On all ranks, as `evaluate` and `verify` are, in the same order.
  /// Throws Error: `invalid_argument` before `restore`, before the last step was applied, with an open scope and for a thread whose rounding mode was changed; `mismatch` for
  /// ranks that make different calls, and for parameters that differ before the first step (after the world changed: see `Step::apply`); `refused` when a newer job owns the checkpoints; what kept the final
  /// checkpoint from being saved; `generation_over` and others where this process has no place in a next generation.
  ///
  /// May also leave the program by a std::exception that is no Error: sharded state was lost with a worker and there is no checkpoint, so `run` runs the program again. `restore` and
  /// `evaluate` may, too. Let it out, and end what runs beside the loop in destructors (std::jthread, no joinable std::thread; no `noexcept` around it). Where the program catches it, each call that
  /// may throw throws it again, after eight of them as what is no std::exception; after a hundred the process ends, and elrun starts another one. However the program ends before that, it runs again, unless its end is
  /// an Error whose remedy is `exit_process`.
  [[nodiscard]] std::optional<Step> next_step();
  /// Asks that the job end early. It travels with this process's vote for the step under way, or the next one if none is:
  /// that step is the last, on all ranks, and `next_step()` then returns nothing, with the final checkpoint and the outcome. Ask
  /// on all ranks where the reason is one that all know (a loss), so that no death takes it back; asked in a step that is
  /// revoked, it is forgotten with it. Where the state goes back to a checkpoint, what was asked since is forgotten too: ask again as
  /// long as the reason holds. The job is done then: a later start finds that in its checkpoint and ends at once,
  /// unless the plan has another number of steps by then. Throws Error before `restore()`.
  void stop();
  /// Ids of the slots that this process will be handed next, in order and at most `count` of them, should the world stay
  /// as it is: for who reads ahead (elrun/loader.hpp). In an evaluation they are the slots that are left of it. What slots really come, `slots()` says.
  /// Throws nothing but bad_alloc.
  [[nodiscard]] std::vector<std::vector<std::uint64_t>> samples_ahead(std::size_t count) const;
  /// Runs `forward` on the slots of a pass over samples 0 .. count-1 in order (the last slot may be short), spread
  /// over the world; nothing is applied. `forward` reports each slot's loss. On all ranks, with the same count, between steps.
  /// When the world is lost meanwhile it goes on in the next one, with `forward` called again, and returns the same on all ranks. It returns undecided
  /// * in a step that was handed out and is revoked: the step is done again;
  /// * where the state went back to a checkpoint (so did host state), or where this process got a newer state from the others (with host state, in `next_step()`);
  /// * in a process that joined a running job and has not called `next_step()` yet;
  /// * after the last step, when the world is lost: there is no next one.
  /// Throws Error: `invalid_argument` before `restore`, inside a slot, with an open scope, for too many slots, and for a slot without a report; `mismatch` for ranks that
  /// make different calls; and whatever `forward` throws. Let that out: the evaluation cannot be asked again, and its step cannot go on.
  Evaluation evaluate(std::uint64_t count, const std::function<void(Slot&)>& forward);
  /// After the last step; throws Error (`invalid_argument`) before it.
  [[nodiscard]] const Outcome& outcome() const;

  // What follows throws nothing, but for bad_alloc.
  /// One line to standard output, from one process of the world.
  void print(std::string_view line);
  /// Whether this process is the one that prints; for output that is costly to make. **Another process may be it after each `next_step`, `apply` and `evaluate`**, and this one
  /// in the middle of its life: what it writes to (a file, a logger) is opened where it is written, or by every process, and not once before the loop by who prints then.
  [[nodiscard]] bool prints() const;
  /// Threads that this process should compute with: OMP_NUM_THREADS, else CPUs of its affinity / workers of the node.
  [[nodiscard]] std::uint32_t compute_threads() const;
  /// Where tensors lie and are computed: the host, for programs that are not written for devices (`RunOptions::devices`). ELRUN_DEVICE decides; what it asks for and cannot be had
  /// ends the process with 78.
  [[nodiscard]] Device device() const;
  /// The order in which the memory of tensors works: a stream of `device()`, on the host Stream{}. A program may give it work of its own.
  [[nodiscard]] Stream stream() const;

  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  class Impl;

 private:
  friend struct JobAccess;
  friend ELRUN_API Verification verify(Job& job);
  explicit Job(std::unique_ptr<Impl> impl);
  ~Job();
  void register_state(std::string_view name, std::span<std::byte> bytes);
  std::unique_ptr<Impl> impl_;
};

/// Finds this worker's place (see Session::open), runs `program`, and returns the exit code for `main`: 0 when it
/// returned after the job's end (`next_step()` returned nothing), or on all ranks without ever asking for a step; 78 for a wrong configuration, 1 for another failure, whose message goes to standard error. Where sharded
/// state was lost with a worker and there is no checkpoint, `program` is left by an exception and run again, with a new
/// Job; see `Job::next_step`. It is run again as well when an exception comes out of a slot that is revoked: in the same process, which keeps its state (under elrun). Such an exception
/// costs no restart, and the others wait until the program comes to `restore()` again; but should the world change meanwhile, it has to come there within 30 s
/// (or eight times its longest slot, if that is more), or its process is killed and started again. So it is written to be run several times: what it needs, it makes anew.
/// Once per process, in one that has opened no session of its own: under elrun, a call after the end of a job, or beside a session, is refused with 78.
///
/// Under elrun, the job's success is decided where `next_step()` returns nothing. What fails after that (an exception out of the program's last work, a refused second `run`, another exit
/// code of `main`) is logged as an error by elrun, which ends with 0 all the same. So look for what that work has to leave before it is used.
ELRUN_API int run(int argc, char** argv, const std::function<void(Job&)>& program);

struct RunOptions {
  /// The program computes where `Job::device()` says: on the LOCAL_RANK-th visible device, where there is one and ELRUN_DEVICE says nothing else. Tensors then have addresses of that
  /// device, which is the current one of the thread that runs the program. A program that does not say so gets the host, and ELRUN_DEVICE=cuda ends it with 78.
  bool devices = false;
  /// The program's kernels give the same bits on every model of GPU, as elrun's own do: then workers of one job may compute on different ones. Libraries such as cuBLAS give other bits on another
  /// one. So without this all workers need the same compute capability and count of multiprocessors. A newcomer that differs ends with 78, and its node tries again every few minutes; at the
  /// start of a job all end. Who goes on with a checkpoint of another model is told. A pool of several models needs this, or a job for each model.
  bool any_device_model = false;
};
ELRUN_API int run(int argc, char** argv, const std::function<void(Job&)>& program, const RunOptions& options);

}  // namespace elrun::inline v0
