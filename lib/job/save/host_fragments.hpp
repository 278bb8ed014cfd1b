#pragma once
/// \file HostFragments: what a rank saves and loads, as a Checkpointer wants it: in host memory. Where the state lies in the host's memory, it is the state itself; on a
/// device it is a copy, which is there as long as a `Copies`.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/format/model.hpp"
#include "lib/device/memory.hpp"

namespace elrun::inline v0 {

/// What rank `rank` of `world` writes of `fragments`: of a replicated one its slice alone, so that nobody brings to the host what others write.
[[nodiscard]] std::vector<Fragment> slices_to_write(std::vector<Fragment> fragments, std::uint32_t rank, std::uint32_t world);

class HostFragments {
 public:
  /// None.
  HostFragments() = default;
  /// `fragments`: runs of `memory`, which outlives this.
  HostFragments(std::vector<Fragment> fragments, Memory& memory) : fragments_{std::move(fragments)}, memory_{&memory} {}

  /// Their bytes as they are in the memory now.
  class Copies {
   public:
    [[nodiscard]] std::span<const Fragment> fragments() const { return fragments_; }

   private:
    friend class HostFragments;
    std::vector<Fragment> fragments_;
    std::vector<std::byte> bytes_;  // none on the host
  };
  /// Contents unspecified on a device. Throws std::bad_alloc.
  [[nodiscard]] Copies make() const;
  /// From the memory; waits for what its stream was given (memory.hpp).
  void read(Copies& copies) const;
  /// One of them, to where it has room, beside what the memory's stream does, which must not change it meanwhile. It sees what was done when it was called. Any thread.
  void read_beside(std::size_t fragment, std::span<std::byte> to) const { memory_->read_beside(fragments_[fragment].bytes, to); }
  [[nodiscard]] const std::vector<Fragment>& fragments() const { return fragments_; }
  /// Of the memory; the host for none.
  [[nodiscard]] Device device() const { return memory_ == nullptr ? Device{} : memory_->device(); }
  /// They are the state itself.
  [[nodiscard]] bool on_host() const { return memory_->device().kind == DeviceKind::host; }
  /// Into the memory.
  void write(const Copies& copies) const;

 private:
  std::vector<Fragment> fragments_;
  Memory* memory_ = nullptr;
};

}  // namespace elrun::inline v0
