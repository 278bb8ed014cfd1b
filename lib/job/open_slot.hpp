#pragma once
/// \file OpenSlot: the one slot that the program has just now, of a step or of an evaluation, and what it says of it. Called by the job's thread.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <elrun/job.hpp>

#include "lib/job/evaluate/evaluation.hpp"

namespace elrun::inline v0 {

/// Builds the parts of a Slot that users do not see.
struct SlotAccess {
  [[nodiscard]] static Slot none() { return Slot{}; }
  /// Where the samples' ids go.
  [[nodiscard]] static std::vector<std::uint64_t>& samples(Slot& slot) { return slot.samples_; }
  static void fill(Slot& slot, Job::Impl* job, std::uint64_t serial, std::uint64_t generation, std::uint32_t index, RandomStream rng) {
    slot.impl_ = job;
    slot.serial_ = serial, slot.generation_ = generation;
    slot.index_ = index;
    slot.rng_ = rng;
  }
  [[nodiscard]] static std::uint64_t serial(const Slot& slot) { return slot.serial_; }
  [[nodiscard]] static std::uint64_t generation(const Slot& slot) { return slot.generation_; }
};

class OpenSlot {
 public:
  /// Memory for the samples' ids, to be filled before `begin`.
  [[nodiscard]] std::vector<std::uint64_t>& samples() { return SlotAccess::samples(slot_); }
  /// `job`: what the user's handle calls.
  Slot& begin(Job::Impl* job, std::uint64_t generation, std::uint32_t index, RandomStream rng);
  /// The program's handles of it are refused from now on. What it reported stays.
  void end() { open_ = false; }

  [[nodiscard]] bool is_open() const { return open_; }
  /// When the program got it.
  [[nodiscard]] Instant begun() const { return begun_; }
  void begin_clock(Instant now) { begun_ = now; }
  [[nodiscard]] std::uint32_t index() const { return slot_.index(); }
  [[nodiscard]] Slot& slot() { return slot_; }

  /// Throws Error where `slot` is not the open one, or has reported.
  void report(const Slot& slot, float loss, std::uint64_t tokens);
  /// Likewise; only in an evaluation. Adds to a sum by name.
  void add(const Slot& slot, std::string_view name, double value, bool evaluating);
  [[nodiscard]] bool has_reported() const { return reported_; }
  [[nodiscard]] float loss() const { return loss_; }
  /// What was reported is on its way from a device.
  [[nodiscard]] std::optional<std::size_t> loss_to_come() const { return loss_to_come_; }
  /// `place`: where it will be (DeviceLosses).
  void expect_loss(std::size_t place) { loss_to_come_ = place; }
  void set_loss(float loss) { loss_ = loss, loss_to_come_.reset(); }
  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }
  [[nodiscard]] const EvaluationSums& sums() const { return sums_; }

 private:
  [[nodiscard]] bool is(const Slot& slot) const { return open_ && SlotAccess::serial(slot) == serial_; }
  Slot slot_ = SlotAccess::none();
  std::uint64_t serial_ = 0;  // of the slot handed out last
  bool open_ = false, reported_ = false;
  std::optional<std::size_t> loss_to_come_;
  float loss_ = 0;
  std::uint64_t tokens_ = 0;
  EvaluationSums sums_;
  Instant begun_{};
};

}  // namespace elrun::inline v0
