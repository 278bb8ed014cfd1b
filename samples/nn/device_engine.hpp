#pragma once
/// \file DeviceEngine: what layers compute with on a CUDA device, in the place of Engine. Its layers (device_layers.cu) make the bits that the
/// host's make.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <elrun/device.hpp>

namespace nn {

/// Elements in a device's memory: of float, of elrun::bf16 or of bytes. Move-only.
template <class T>
class DeviceArrayOf {
 public:
  /// Contents unspecified. Throws elrun::Error where there is no memory.
  DeviceArrayOf(elrun::Stream stream, std::size_t count);
  DeviceArrayOf(DeviceArrayOf&& other) noexcept
      : stream_{other.stream_}, data_{std::exchange(other.data_, nullptr)}, size_{std::exchange(other.size_, 0)} {}
  DeviceArrayOf& operator=(DeviceArrayOf&&) = delete;
  ~DeviceArrayOf();  ///< Waits for the stream's work, 10 s at most. Where that comes to no end, the memory is kept.
  /// An address of the device: the host must not touch it.
  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  elrun::Stream stream_;
  T* data_;
  std::size_t size_;
};
using DeviceArray = DeviceArrayOf<float>;

/// Page-locked memory of the host for what a stream copies to its device, in two halves: the host fills one while the device copies the other. A copy from other memory of the host may be made at
/// any time until it is over in the stream: CUDA promises no more. Move-only.
class DeviceStaging {
 public:
  /// `bytes`: of each half. Throws elrun::Error where there is no memory.
  DeviceStaging(elrun::Stream stream, std::size_t bytes);
  DeviceStaging(DeviceStaging&& other) noexcept : stream_{other.stream_}, bytes_{other.bytes_}, halves_{std::exchange(other.halves_, {})} {}
  DeviceStaging& operator=(DeviceStaging&&) = delete;
  ~DeviceStaging();  ///< As ~DeviceArrayOf.
  /// A half with these bytes. Waits until the device has copied what was in it. `copied` comes once the copy of it was given to the stream.
  [[nodiscard]] const void* fill(std::span<const std::byte> from);
  void copied();

 private:
  struct Half {
    std::byte* memory = nullptr;
    void* is_free = nullptr;  // an event behind the last copy
  };
  elrun::Stream stream_;
  std::size_t bytes_;
  std::array<Half, 2> halves_{};  // the first is filled next
};

/// Token ids in a device's memory, copied there when they are given. Move-only.
class DeviceIds {
 public:
  DeviceIds(elrun::Stream stream, std::size_t count)
      : memory_{stream, count}, staging_{stream, count * sizeof(std::int32_t)}, stream_{stream} {}
  /// `ids` may change as soon as it returns.
  const std::int32_t* hold(std::span<const std::int32_t> ids);

 private:
  DeviceArray memory_;  // a float has the size of an id
  DeviceStaging staging_;
  elrun::Stream stream_;
};

/// All work is in the order of one stream, so nobody waits but for what the host reads.
class DeviceEngine {
 public:
  using Value = float;
  using Array = DeviceArray;
  using Floats = Array;
  using Ids = DeviceIds;
  using Loss = elrun::DeviceScalar;

  /// Makes the stream's device the calling thread's current one, and loads all kernels. The stream outlives it and all arrays.
  explicit DeviceEngine(elrun::Stream stream);
  [[nodiscard]] elrun::Stream stream() const { return stream_; }
  [[nodiscard]] Array array(std::size_t count) const { return {stream_, count}; }
  [[nodiscard]] Floats floats(std::size_t count) const { return array(count); }
  [[nodiscard]] Ids ids(std::size_t count) const { return {stream_, count}; }
  void fill_with_zeros(float* data, std::size_t count);
  /// From memory of the host, which may change as soon as it returns: it waits for the work before it.
  void write(std::span<const float> from, float* to);
  /// Waits for the work before it.
  void read(const float* from, std::span<float> to);

 private:
  elrun::Stream stream_;
};

}  // namespace nn
