// A build without CUDA: there is no device, and nobody comes as far as to use one.

#include "lib/device/runtime.hpp"

namespace elrun::inline v0::runtime {
namespace {

[[noreturn]] void refuse() {
  throw Error{{.code = Code::not_found,
               .remedy = Remedy::fix_config,
               .what = "this libelrun was built without CUDA, and is asked to use a device"}};
}

}  // namespace

DeviceFacts facts() { return {}; }
std::string model(int) { refuse(); }

int current_device() { refuse(); }
void set_current_device(int) { refuse(); }
void set_current_device_or_ignore(int) noexcept {}
std::size_t preload_kernels() { refuse(); }
void* make_stream() { refuse(); }
void destroy_stream(void*) noexcept {}
void* make_event() { refuse(); }
void destroy_event(void*) noexcept {}
void record(void*, Stream) { refuse(); }
void wait(Stream, Event) { refuse(); }
Result<bool> is_done(Event) { refuse(); }
Result<bool> is_done(Stream) { refuse(); }
void* allocate(std::size_t) { refuse(); }
void free(void*) noexcept {}
void* allocate_pinned(std::size_t) { refuse(); }
void free_pinned(void*) noexcept {}
void fill_async(std::span<std::byte>, std::byte, Stream) { refuse(); }
void copy_async(std::span<const std::byte>, std::span<std::byte>, Stream) { refuse(); }
void mix_sum_async(std::span<const std::byte>, std::uint64_t, std::uint64_t, std::span<std::byte>, Stream) { refuse(); }
void add_into_async(std::span<float>, std::span<const float>, Stream) { refuse(); }
void add_into_async(std::span<float>, std::span<const bf16>, Stream) { refuse(); }
void to_bf16_async(std::span<const float>, std::span<bf16>, Stream) { refuse(); }
void to_float_async(std::span<const bf16>, std::span<float>, Stream) { refuse(); }
void sums_of_squares_async(std::span<const float>, std::span<float>, Stream) { refuse(); }
void reduce_async(const ReduceTable&, float*, float*, Stream) { refuse(); }
void update_async(const UpdateArrays&, const UpdateTable&, const OptimizerStep&, Stream) { refuse(); }

}  // namespace elrun::inline v0::runtime
