#include "lib/device/device_memory.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "lib/base/assert.hpp"
#include "lib/base/failure.hpp"
#include "lib/device/current_device.hpp"
#include "lib/device/handles.hpp"
#include "lib/device/runtime.hpp"
#include "lib/device/wait.hpp"

namespace elrun::inline v0 {
namespace {

/// Copies between host and device in the order of one stream, through pinned memory in two halves: the device copies one while the host fills or empties
/// the other. Threads take turns. Every call waits for a half for at most `timeout`, and throws Error.
class StagedCopies {
 public:
  StagedCopies(Device device, std::size_t bytes, const Clock& clock, Duration timeout) : device_{device}, clock_{clock}, timeout_{timeout} {
    ELRUN_ASSERT(bytes >= 2);
    for (Half& half : halves_) half = Half{PinnedBuffer{device, bytes / 2}, OwnedEvent{device}};
  }

  void write(std::span<const std::byte> from, std::span<std::byte> run, Stream stream) {
    ELRUN_ASSERT(from.size() == run.size());
    const std::lock_guard lock{mutex_};
    const CurrentDevice current{device_};
    for (std::size_t begin = 0; begin < from.size();) {
      Half& half = next_half();
      const std::size_t bytes = std::min(from.size() - begin, half.memory.span().size());
      std::memcpy(half.memory.span().data(), from.data() + begin, bytes);
      runtime::copy_async(half.memory.span().first(bytes), run.subspan(begin, bytes), stream);
      half.free.record(stream);
      begin += bytes;
    }
  }
  void read(std::span<const std::byte> run, std::span<std::byte> to, Stream stream) {
    ELRUN_ASSERT(run.size() == to.size());
    const std::lock_guard lock{mutex_};
    const CurrentDevice current{device_};
    std::span<std::byte> arriving;  // in the half before
    Half* before = nullptr;
    const auto empty = [&] {
      if (before == nullptr) return;
      wait(before->free, "a copy from the device");
      std::memcpy(arriving.data(), before->memory.span().data(), arriving.size());
    };
    for (std::size_t begin = 0; begin < run.size();) {
      Half& half = next_half();
      const std::size_t bytes = std::min(run.size() - begin, half.memory.span().size());
      runtime::copy_async(run.subspan(begin, bytes), half.memory.span().first(bytes), stream);
      half.free.record(stream);
      empty();
      before = &half, arriving = to.subspan(begin, bytes);
      begin += bytes;
    }
    empty();
  }
  /// The pinned memory stays until the process ends.
  void keep_for_good() {
    for (Half& half : halves_) new PinnedBuffer{std::move(half.memory)};
  }

 private:
  /// Pinned memory on its way. `free`: the device no longer reads or writes it.
  struct Half {
    PinnedBuffer memory;
    OwnedEvent free;
  };
  /// The device is done with what was in it.
  Half& next_half() {
    Half& half = halves_[turn_++ % halves_.size()];
    wait(half.free, "a copy between host and device");
    return half;
  }
  void wait(const OwnedEvent& event, std::string_view what) const {
    wait_for(event.view(), {.what = what, .deadline = Deadline::after(clock_.now(), timeout_)}, clock_).value();
  }

  const Device device_;
  const Clock& clock_;
  const Duration timeout_;
  std::mutex mutex_;  // of all that follows
  std::array<Half, 2> halves_;
  std::size_t turn_ = 0;
};

// More than 25 methods: those of Memory, and the steps of the three that are more than a call of the runtime (freeing, packing, staged copies).
class DeviceMemory final : public Memory {
 public:
  /// `beside`: the one that this is beside, if any.
  DeviceMemory(Device device, const Clock& clock, DeviceMemoryOptions options, DeviceMemory* beside = nullptr)
      : clock_{clock},
        options_{options},
        device_{device},
        main_{beside},
        stream_{device},
        beside_{device},
        done_{device},
        sum_{device, sizeof(std::uint64_t)},
        word_{device, sizeof(std::uint64_t)},
        packing_{device, options.packing.value()},
        copies_{device, options.staging.value(), clock, options.timeout},
        copies_beside_{device, options.staging.value(), clock, options.timeout} {
    ELRUN_ASSERT(options.packing.value() >= sizeof(bf16));
    if (main_ == nullptr) return;
    const std::lock_guard lock{main_->freed_mutex_};
    main_->others_.push_back(stream());
  }
  ~DeviceMemory() override {
    if (wait_until_done(options_.last_wait)) free_what_waits();
    else keep_for_good();
    if (main_ == nullptr) return;
    const std::lock_guard lock{main_->freed_mutex_};
    std::erase_if(main_->others_, [&](Stream other) { return other.handle() == stream().handle(); });
  }

  Stream stream() const override { return stream_.view(); }
  std::unique_ptr<Memory> beside() override {
    DeviceMemoryOptions options = options_;
    options.staging = options.packing = Bytes{4 << 10};  // it is for work on the device
    return std::make_unique<DeviceMemory>(device_, clock_, options, this);
  }
  void* allocate(std::size_t bytes) override {
    const CurrentDevice current{device_};
    free_if_idle();
    void* const memory = allocate_or_reclaim(bytes);
    runtime::fill_async({static_cast<std::byte*>(memory), bytes}, std::byte{0}, stream());
    return memory;
  }
  void free(void* memory) noexcept override {
    if (memory == nullptr) return;
    try {
      {
        const std::lock_guard lock{freed_mutex_};
        freed_.push_back(memory);
      }
      free_if_idle();
    } catch (const std::bad_alloc&) {  // for the list
      if (wait_until_done(options_.last_wait)) runtime::free(memory);
    }
  }
  void fill_with_zeros(std::span<std::byte> run) override {
    const CurrentDevice current{device_};
    runtime::fill_async(run, std::byte{0}, stream());
  }
  void copy(std::span<const std::byte> from, std::span<std::byte> to) override {
    const CurrentDevice current{device_};
    runtime::copy_async(from, to, stream());
  }
  std::uint64_t hash(std::span<const std::byte> run, std::uint64_t first_word, std::uint64_t salt) override {
    if (run.empty()) return 0;
    const std::lock_guard lock{mutex_};
    const CurrentDevice current{device_};
    const std::span<std::byte> sum{sum_.data(), sum_.size()};
    runtime::fill_async(sum, std::byte{0}, stream());
    runtime::mix_sum_async(run, first_word, salt, sum, stream());
    runtime::copy_async(sum, word_.span(), stream());
    done_.record(stream());
    wait(done_, "a hash");
    std::uint64_t out;
    std::memcpy(&out, word_.span().data(), sizeof out);
    return out;
  }
  void write(std::span<const std::byte> from, std::span<std::byte> run) override { copies_.write(from, run, stream()); }
  void read(std::span<const std::byte> run, std::span<std::byte> to) override { copies_.read(run, to, stream()); }
  void read_beside(std::span<const std::byte> run, std::span<std::byte> to) override { copies_beside_.read(run, to, beside_.view()); }
  void add_into(std::span<float> left, std::span<const float> right) override {
    const CurrentDevice current{device_};
    runtime::add_into_async(left, right, stream());
  }
  void add_into(std::span<float> left, std::span<const bf16> right) override {
    const CurrentDevice current{device_};
    runtime::add_into_async(left, right, stream());
  }
  void round_to_bf16(std::span<float> run) override {
    by_halves(run, [&](std::uint64_t, std::span<float> in, std::span<const bf16> out) { runtime::to_float_async(out, in, stream()); });
  }
  void pack_to_bf16(std::span<float> run) override {
    // What is overwritten was read before, in the stream's order: an element moves to half its offset.
    by_halves(run, [&](std::uint64_t begin, std::span<float>, std::span<const bf16> out) {
      runtime::copy_async(std::as_bytes(out), std::as_writable_bytes(run).subspan(begin * sizeof(bf16), out.size_bytes()), stream());
    });
  }
  void to_bf16(std::span<const float> from, std::span<bf16> to) override {
    const CurrentDevice current{device_};
    runtime::to_bf16_async(from, to, stream());
  }
  void to_float(std::span<const bf16> from, std::span<float> to) override {
    const CurrentDevice current{device_};
    runtime::to_float_async(from, to, stream());
  }
  void sums_of_squares(std::span<const float> data, std::span<float> sums) override {
    const CurrentDevice current{device_};
    runtime::sums_of_squares_async(data, sums, stream());
  }
  void reduce(const ReduceTable& table, float* result, float* sums) override {
    const CurrentDevice current{device_};
    runtime::reduce_async(table, result, sums, stream());
  }
  void update(const UpdateArrays& arrays, const UpdateTable& table, const OptimizerStep& step) override {
    const CurrentDevice current{device_};
    runtime::update_async(arrays, table, step, stream());
  }

  std::size_t page_bytes() const override { return 4096; }
  void* reserve(std::size_t bytes, Paging paging) override {
    if (paging == Paging::stays) return allocate(bytes);
    throw Error{invalid("this device cannot allocate paged memory (internal error; please report)")};
  }
  void unreserve(void* memory, std::size_t) noexcept override { free(memory); }
  void hold(std::span<std::byte>) override {}
  void make_resident(std::span<std::byte>) override {}
  void give_back(std::span<std::byte>) override { ELRUN_ASSERT(false); }

 private:
  /// Rounds as many elements as `packing_` holds, and puts them to their place. Threads take turns, for it is one.
  template <class Put>
  void by_halves(std::span<float> run, const Put& put) {
    const std::lock_guard lock{packing_mutex_};
    const CurrentDevice current{device_};
    const std::span halves{reinterpret_cast<bf16*>(packing_.data()), packing_.size() / sizeof(bf16)};
    for (std::uint64_t begin = 0; begin < run.size(); begin += halves.size()) {
      const std::span<float> in = run.subspan(begin, std::min<std::uint64_t>(halves.size(), run.size() - begin));
      const std::span<bf16> out = halves.first(in.size());
      runtime::to_bf16_async(in, out, stream());
      put(begin, in, out);
    }
  }

  void wait(const OwnedEvent& event, std::string_view what) const {
    wait_for(event.view(), {.what = what, .deadline = Deadline::after(clock_.now(), options_.timeout)}, clock_).value();
  }
  /// All that the streams were given. Nothing is thrown: a device that is lost has nothing under way.
  bool wait_until_done(Duration limit) noexcept {
    const Deadline deadline = Deadline::after(clock_.now(), limit);
    return is_done(stream(), deadline) && is_done(beside_.view(), deadline);
  }
  bool is_done(Stream stream, Deadline deadline) noexcept {
    try {
      const std::lock_guard lock{mutex_};
      done_.record(stream);
      const auto done = wait_for(done_.view(), {.what = "its last work", .deadline = deadline}, clock_);
      return done.ok() || done.failure().code != Code::deadline_passed;
    } catch (const std::exception&) {
      return true;
    }
  }
  /// What was freed is given back once the stream, and those beside it, have nothing to do: CUDA's own call would wait for that, without an end where a collective hangs.
  /// The lock is held from the look to the list: what another thread frees meanwhile, behind work that it has just begun, is not among it.
  void free_if_idle() noexcept {
    try {
      const CurrentDevice current{device_};
      std::unique_lock lock{freed_mutex_};
      if (freed_.empty()) return;
      const auto is_idle = [](Stream one) {
        const auto idle = runtime::is_done(one);
        return !idle.ok() || *idle;  // a device that is lost has nothing under way
      };
      if (is_idle(stream()) && std::ranges::all_of(others_, is_idle)) free_list(lock);
    } catch (const Error&) {  // it cannot even be made current: what is there goes with the process
    }
  }
  /// After a wait for all that the stream was given.
  void free_what_waits() noexcept {
    std::unique_lock lock{freed_mutex_};
    free_list(lock);
  }
  void free_list(std::unique_lock<std::mutex>& lock) noexcept {
    const std::vector<void*> freed = std::exchange(freed_, {});
    lock.unlock();
    for (void* const memory : freed) runtime::free(memory);
  }
  /// Where there is no memory left, what was freed and not yet given back is waited for.
  void* allocate_or_reclaim(std::size_t bytes) {
    try {
      return runtime::allocate(bytes);
    } catch (const Error& error) {
      if (error.failure().code != Code::exhausted || !reclaim()) throw;
    }
    return runtime::allocate(bytes);
  }
  /// False: there is nothing, or the device did not come to the end of its work. The list is taken before the wait, so all that uses it is waited for, in memories beside this one, too.
  bool reclaim() {
    std::unique_lock lock{freed_mutex_};
    if (freed_.empty()) return false;
    std::vector<OwnedEvent>
        others;  // each stream of another is there while the lock is held, and may be gone while its event is waited for
    for (const Stream other : others_) others.emplace_back(device_).record(other);
    std::vector<void*> freed = std::exchange(freed_, {});
    lock.unlock();
    const Deadline deadline = Deadline::after(clock_.now(), options_.timeout);
    const bool done = wait_until_done(options_.timeout) && std::ranges::all_of(others, [&](const OwnedEvent& other) {
                        const auto waited = wait_for(other.view(), {.what = "work beside it", .deadline = deadline}, clock_);
                        return waited.ok() || waited.failure().code != Code::deadline_passed;
                      });
    if (done)
      for (void* const memory : freed) runtime::free(memory);
    lock.lock();
    if (!done) freed_.insert(freed_.end(), freed.begin(), freed.end());
    return done;
  }
  /// CUDA's calls that free memory would wait for what hangs.
  void keep_for_good() {
    for (DeviceBuffer* buffer : {&sum_, &packing_}) new DeviceBuffer{std::move(*buffer)};
    new PinnedBuffer{std::move(word_)};
    copies_.keep_for_good();
    copies_beside_.keep_for_good();
  }

  const Clock& clock_;
  const DeviceMemoryOptions options_;
  const Device device_;
  DeviceMemory* const main_;  // of one beside another
  const OwnedStream stream_, beside_;
  std::mutex mutex_;  // of all that follows, up to `word_`
  OwnedEvent done_;
  DeviceBuffer sum_;
  PinnedBuffer word_;
  std::mutex freed_mutex_;
  std::vector<void*> freed_;    // by `free`, and not given back to CUDA yet
  std::vector<Stream> others_;  // of memories beside this one
  std::mutex packing_mutex_;    // of the order in which `packing_` is used
  DeviceBuffer packing_;
  StagedCopies copies_, copies_beside_;
};

}  // namespace

std::unique_ptr<Memory> make_device_memory(Device device, const Clock& clock, DeviceMemoryOptions options) {
  {
    const CurrentDevice current{device};
    runtime::preload_kernels();
  }
  return std::make_unique<DeviceMemory>(device, clock, options);
}

}  // namespace elrun::inline v0
