#pragma once
/// \file Shell: the memory file of a staging slot, as the worker fills it and as `elrun ckptd` reads it.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/staging/slot_record.hpp"
#include "lib/base/fd.hpp"

namespace elrun::inline v0 {

/// A mapping that is unmapped with it.
class Mapping {
 public:
  Mapping() = default;
  explicit Mapping(std::span<std::byte> bytes) : bytes_{bytes} {}
  Mapping(Mapping&& other) noexcept : bytes_{std::exchange(other.bytes_, {})} {}
  Mapping& operator=(Mapping other) noexcept { return std::swap(bytes_, other.bytes_), *this; }
  ~Mapping();
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

/// The worker's end. From one thread at a time.
class StagingSlot {
 public:
  StagingSlot() = default;
  /// Takes the memory and touches all of it once, so that no copy ever waits for the kernel. `record_bytes`: room for a record.
  /// Fails with `exhausted` where the system has no such memory.
  static Result<StagingSlot> make(std::uint64_t record_bytes, std::uint64_t data_bytes);
  [[nodiscard]] bool has_room(std::uint64_t record_bytes, std::uint64_t data_bytes) const;
  [[nodiscard]] std::uint64_t bytes() const { return memory_.bytes().size(); }
  [[nodiscard]] int file() const { return file_.get(); }
  /// The slot is for this record from now on. Where its data goes; `has_room` holds.
  [[nodiscard]] std::span<std::byte> begin(ByteSpan record, std::uint64_t data_bytes);
  /// All data is there.
  void seal();
  /// Before the others hear that a save may begin here, and where none does after all. Not while one is under way.
  void promise(const SlotOwner& owner);
  void withdraw();

 private:
  void put_head(const SlotPrefix& head);

  Fd file_;
  Mapping memory_;
  std::uint64_t data_offset_ = 0;
};

/// The reader's end, of bytes that anybody of this user may have written.
class SlotView {
 public:
  /// Fails with `corrupt` for what is no memory file, or one that may shrink while it is read.
  static Result<SlotView> open(Fd file);
  [[nodiscard]] Result<SlotPrefix> prefix() const;
  /// Whoever asks for it says in which state: `corrupt` otherwise, and where the record does not match its checksum.
  [[nodiscard]] Result<SlotRecord> record(SlotState state) const;
  /// The fragments of a sealed slot, as a Checkpointer writes them. They are the slot's memory.
  [[nodiscard]] Result<std::vector<Fragment>> fragments(const SlotRecord& record) const;

 private:
  explicit SlotView(Mapping memory) : memory_{std::move(memory)} {}
  Mapping memory_;
};

}  // namespace elrun::inline v0
