#pragma once
/// \file The calls of the CUDA runtime that elrun makes, without its headers. cuda/runtime.cpp makes them; no_cuda.cpp, in a build without CUDA, sees no
/// device and refuses the rest, so that all that stands on this is compiled and tested everywhere.
///
/// Where nothing else is said a call is for the calling thread's current device, never waits for work on a device, and throws Error.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <elrun/device.hpp>
#include <elrun/result.hpp>

#include "lib/device/choose.hpp"
#include "lib/device/memory.hpp"

namespace elrun::inline v0::runtime {

[[nodiscard]] DeviceFacts facts();
/// See device_model (facts.hpp). Makes no context.
[[nodiscard]] std::string model(int index);

[[nodiscard]] int current_device();
void set_current_device(int index);
/// For destructors: a device that is lost stays as it is.
void set_current_device_or_ignore(int index) noexcept;

/// Loads all kernels that this program can launch (kernels/cuda/preload.hpp), and returns how many there are.
std::size_t preload_kernels();

/// A stream that does not wait for CUDA's default stream. Destroying it is allowed while work is under way there.
[[nodiscard]] void* make_stream();
void destroy_stream(void* stream) noexcept;
[[nodiscard]] void* make_event();
void destroy_event(void* event) noexcept;
void record(void* event, Stream stream);
/// What is given to `stream` from now on runs after the event. Of any device.
void wait(Stream stream, Event event);
/// Whether all that was recorded is done. A failure is that of the work before the event, or of the device. From any thread.
[[nodiscard]] Result<bool> is_done(Event event);
[[nodiscard]] Result<bool> is_done(Stream stream);

[[nodiscard]] void* allocate(std::size_t bytes);
/// **Waits until the device has nothing to do**: never while a collective hangs there.
void free(void* memory) noexcept;
/// Of the host, and never swapped out: copies from and to it run beside the program.
[[nodiscard]] void* allocate_pinned(std::size_t bytes);
/// Waits as `free` does.
void free_pinned(void* memory) noexcept;

/// In the stream's order.
void fill_async(std::span<std::byte> run, std::byte with, Stream stream);
/// Between any two of the device's memory and pinned memory. `from` and `to` have the same size.
void copy_async(std::span<const std::byte> from, std::span<std::byte> to, Stream stream);
/// Adds the sum of `run`'s mixed words (kernels/state_hash.hpp) to the 8 bytes of `sum`, on the device.
void mix_sum_async(std::span<const std::byte> run, std::uint64_t first_word, std::uint64_t salt, std::span<std::byte> sum, Stream stream);
/// As Memory has them (memory.hpp).
void add_into_async(std::span<float> left, std::span<const float> right, Stream stream);
void add_into_async(std::span<float> left, std::span<const bf16> right, Stream stream);
/// `in` and `out` do not overlap.
void to_bf16_async(std::span<const float> in, std::span<bf16> out, Stream stream);
void to_float_async(std::span<const bf16> in, std::span<float> out, Stream stream);
void sums_of_squares_async(std::span<const float> data, std::span<float> sums, Stream stream);
void reduce_async(const ReduceTable& table, float* result, float* sums, Stream stream);
void update_async(const UpdateArrays& arrays, const UpdateTable& table, const OptimizerStep& step, Stream stream);

}  // namespace elrun::inline v0::runtime
