#include "lib/job/gradients/leaf_memory.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/assert.hpp"
#include "lib/job/state/paged_arena.hpp"
#include "lib/job/state/unit_buffers.hpp"

namespace elrun::inline v0 {
namespace {

/// Leaves lie in the gradients' space, and what arrives in a space of the shard's parts, `world` for each unit. This rank's own part stays in its leaf.
class PagedLeaves final : public LeafMemory {
 public:
  PagedLeaves(LeafShapes shapes, Memory& memory) : shapes_{std::move(shapes)} {
    std::uint64_t leaves = 0, parts = 0;
    for (const LeafShapes::OfUnit& unit : shapes_.units) {
      parts_.push_back(shapes_.world * parts);
      leaves = std::max(leaves, unit.leaf.end), parts += unit.part();
    }
    leaves_ = PagedArena{leaves, memory};
    arrivals_ = PagedArena{shapes_.world * parts, memory};
  }

  void make_room(std::size_t) override {}
  void clear() override {
    leaves_.release(0, leaves_.size());
    arrivals_.release(0, arrivals_.size());
  }
  void open(std::uint32_t unit) override {
    change([&] { leaves_.hold(of(unit).leaf.begin, of(unit).leaf.end); });
  }
  float* leaf(std::uint32_t unit) const override { return leaves_.data() + of(unit).leaf.begin; }
  void finish(std::uint32_t unit) override {
    change([&] { leaves_.release(of(unit).leaf.begin + shapes_.taken(of(unit).size()), of(unit).leaf.end); });
  }
  float* arriving(std::uint32_t unit, std::uint32_t rank) override {
    const std::uint64_t begin = begin_of_part(unit, rank);
    change([&] { arrivals_.hold(begin, begin + shapes_.taken(of(unit).part())); });
    return arrivals_.data() + begin;
  }
  void sent(std::uint32_t unit) override {
    const auto leaf = of(unit).leaf;
    change([&] {
      leaves_.release(leaf.begin, leaf.begin + shapes_.taken(of(unit).mine.begin));
      leaves_.release(leaf.begin + shapes_.taken(of(unit).mine.end), leaf.end);
    });
  }
  const float* part(std::uint32_t unit, std::uint32_t rank) const override {
    return rank == shapes_.rank ? leaf(unit) + shapes_.taken(of(unit).mine.begin) : arrivals_.data() + begin_of_part(unit, rank);
  }
  void folded(std::uint32_t unit) override {
    change([&] {
      arrivals_.release(parts_[unit], parts_[unit] + shapes_.world * of(unit).part());
      leaves_.release(of(unit).leaf.begin, of(unit).leaf.end);
    });
  }

 private:
  [[nodiscard]] const LeafShapes::OfUnit& of(std::uint32_t unit) const { return shapes_.units[unit]; }
  [[nodiscard]] std::uint64_t begin_of_part(std::uint32_t unit, std::uint32_t rank) const { return parts_[unit] + rank * of(unit).part(); }
  std::uint64_t held_bytes() const override { return leaves_.held_bytes() + arrivals_.held_bytes(); }
  LeafShapes shapes_;
  std::vector<std::uint64_t> parts_;  // by unit: where they begin
  PagedArena leaves_, arrivals_;
};

/// A leaf lies in a buffer of its own until it was sent. A unit's parts of all ranks lie in one buffer of another pool, from the first that arrives on.
/// This rank's own part is copied there, so that its leaf's buffer is free for the next one while other ranks' parts are awaited.
class BufferedLeaves final : public LeafMemory {
 public:
  BufferedLeaves(LeafShapes shapes, Memory& memory, RoundsMemory& rounds)
      : shapes_{std::move(shapes)}, rounds_{rounds}, at_(shapes_.units.size()) {
    std::uint64_t leaf = 0, part = 0;
    for (const LeafShapes::OfUnit& unit : shapes_.units) leaf = std::max(leaf, unit.size()), part = std::max(part, unit.part());
    leaves_ = UnitBuffers{leaf, memory};
    parts_ = UnitBuffers{shapes_.world * shapes_.taken(part), memory};
  }

  void make_room(std::size_t leaves) override {
    change([&] { leaves_.make(leaves), parts_.make(1); });
  }
  void clear() override {
    for (std::uint32_t unit = 0; unit < at_.size(); ++unit) give_back(leaves_, at_[unit].leaf), give_back(parts_, at_[unit].parts);
  }
  void open(std::uint32_t unit) override { take(leaves_, at_[unit].leaf, of(unit).size()); }
  float* leaf(std::uint32_t unit) const override { return at_[unit].leaf; }
  void finish(std::uint32_t) override {}
  float* arriving(std::uint32_t unit, std::uint32_t rank) override {
    const bool is_made = at_[unit].parts == nullptr && !parts_.has_free();
    take(parts_, at_[unit].parts, of(unit).part());
    if (is_made) rounds_.wait_for_job();  // which fills it with zeros
    return at_[unit].parts + begin_of_part(unit, rank);
  }
  void sent(std::uint32_t unit) override {
    const std::uint64_t begin = shapes_.taken(of(unit).mine.begin), count = shapes_.taken(of(unit).part());
    float* const mine = arriving(unit, shapes_.rank);
    rounds_.get().copy(std::as_bytes(std::span{at_[unit].leaf + begin, count}), std::as_writable_bytes(std::span{mine, count}));
    rounds_.show_to_job();  // which makes the next leaf in that buffer
    give_back(leaves_, at_[unit].leaf);
  }
  const float* part(std::uint32_t unit, std::uint32_t rank) const override { return at_[unit].parts + begin_of_part(unit, rank); }
  void folded(std::uint32_t unit) override { give_back(parts_, at_[unit].parts); }

 private:
  struct Buffers {
    float *leaf = nullptr, *parts = nullptr;
  };
  [[nodiscard]] const LeafShapes::OfUnit& of(std::uint32_t unit) const { return shapes_.units[unit]; }
  [[nodiscard]] std::uint64_t begin_of_part(std::uint32_t unit, std::uint32_t rank) const { return rank * shapes_.taken(of(unit).part()); }
  void take(UnitBuffers& pool, float*& at, std::uint64_t elements) {
    if (at == nullptr && elements > 0) change([&] { at = pool.take(); });
  }
  void give_back(UnitBuffers& pool, float*& at) {
    if (at != nullptr) change([&] { pool.give_back(std::exchange(at, nullptr)); });
  }
  std::uint64_t held_bytes() const override { return leaves_.bytes() + parts_.bytes(); }
  const LeafShapes shapes_;
  RoundsMemory& rounds_;
  std::vector<Buffers> at_;  // by unit
  UnitBuffers leaves_, parts_;
};

}  // namespace

std::unique_ptr<LeafMemory> make_leaf_memory(LeafShapes shapes, Memory& memory, RoundsMemory& rounds) {
  if (memory.device().kind == DeviceKind::host) return std::make_unique<PagedLeaves>(std::move(shapes), memory);
  return std::make_unique<BufferedLeaves>(std::move(shapes), memory, rounds);
}

}  // namespace elrun::inline v0
