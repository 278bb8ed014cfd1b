#pragma once
/// \file The host's Memory in other clothes: for tests that count calls, and for those of what a job does in a device's memory.

#include <array>

#include "lib/base/assert.hpp"
#include "lib/device/memory.hpp"

namespace elrun::test {

/// All calls go to the host's.
class ForwardingMemory : public Memory {
 public:
  Stream stream() const override { return host.stream(); }
  std::unique_ptr<Memory> beside() override { return nullptr; }
  void* allocate(std::size_t bytes) override { return host.allocate(bytes); }
  void free(void* memory) noexcept override { host.free(memory); }
  void fill_with_zeros(std::span<std::byte> run) override { host.fill_with_zeros(run); }
  void copy(std::span<const std::byte> from, std::span<std::byte> to) override { host.copy(from, to); }
  std::uint64_t hash(std::span<const std::byte> run, std::uint64_t first_word, std::uint64_t salt) override {
    return host.hash(run, first_word, salt);
  }
  void write(std::span<const std::byte> from, std::span<std::byte> run) override { host.write(from, run); }
  void read(std::span<const std::byte> run, std::span<std::byte> to) override { host.read(run, to); }
  void read_beside(std::span<const std::byte> run, std::span<std::byte> to) override { host.read_beside(run, to); }
  void add_into(std::span<float> left, std::span<const float> right) override { host.add_into(left, right); }
  void add_into(std::span<float> left, std::span<const bf16> right) override { host.add_into(left, right); }
  void round_to_bf16(std::span<float> run) override { host.round_to_bf16(run); }
  void pack_to_bf16(std::span<float> run) override { host.pack_to_bf16(run); }
  void to_bf16(std::span<const float> from, std::span<bf16> to) override { host.to_bf16(from, to); }
  void to_float(std::span<const bf16> from, std::span<float> to) override { host.to_float(from, to); }
  void sums_of_squares(std::span<const float> data, std::span<float> sums) override { host.sums_of_squares(data, sums); }
  void reduce(const ReduceTable& table, float* result, float* sums) override { host.reduce(table, result, sums); }
  void update(const UpdateArrays& arrays, const UpdateTable& table, const OptimizerStep& step) override {
    host.update(arrays, table, step);
  }
  std::size_t page_bytes() const override { return host.page_bytes(); }
  void* reserve(std::size_t bytes, Paging paging) override { return host.reserve(bytes, paging); }
  void unreserve(void* memory, std::size_t bytes) noexcept override { host.unreserve(memory, bytes); }
  void hold(std::span<std::byte> pages) override { host.hold(pages); }
  void make_resident(std::span<std::byte> pages) override { host.make_resident(pages); }
  void give_back(std::span<std::byte> pages) override { host.give_back(pages); }

 protected:
  Memory& host = host_memory();
};

/// Says that it is a device's, so that a job's parts lie in it as they do there: in buffers, without pages that come and go. Its work is done at once, and the
/// host may look at it: for parts without a job, whose exchanges are the host's.
class DeviceLikeMemory final : public ForwardingMemory {
 public:
  Stream stream() const override { return {Device{DeviceKind::cuda, 0}, nullptr}; }
  void* reserve(std::size_t bytes, Paging paging) override {
    ELRUN_ASSERT(paging == Paging::stays);
    return host.reserve(bytes, paging);
  }
  void give_back(std::span<std::byte>) override { ELRUN_ASSERT(false); }
};

/// Both ways to lie.
inline std::array<Memory*, 2> both_memories() {
  static DeviceLikeMemory device_like;
  return {&host_memory(), &device_like};
}

}  // namespace elrun::test
