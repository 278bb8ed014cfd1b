#include "lib/job/state/parameters.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "lib/job/state/arena.hpp"
#include "lib/job/state/unit_buffers.hpp"

namespace elrun::inline v0 {
namespace {

class AddressedParameters final : public Parameters {
 public:
  AddressedParameters(const Layout& layout, bool sharded, SharedBuffers& shared_buffers)
      : layout_{layout},
        sharded_{sharded},
        pages_{sharded ? PagedArena{layout.parameters, shared_buffers.private_memory()}
                       : PagedArena::whole(layout.parameters,
                                           shared_buffers.make(layout.parameters * sizeof(float), SharedBuffers::InChildren::present),
                                           shared_buffers.private_memory())} {
    for (const UnitLayout& unit : layout.units) pages_.hold(unit.begin + unit.trainable, unit.begin + unit.size);
    find_pieces(layout_, Cut{});
  }

  void begin_shard(Cut cut) override {
    find_pieces(layout_, cut);
    if (!sharded_) return;
    for (const Piece& p : pieces(layout_, cut)) pages_.hold(p.parameter, p.parameter + p.size());
  }
  void keep_only(Cut cut) override {
    find_pieces(layout_, cut);
    if (!sharded_) return;
    for (std::uint32_t unit = 0; unit < layout_.units.size(); ++unit) let_go(unit);
  }
  PiecesIn shard() const override { return {pages_.span(), Space::parameters}; }
  PiecesIn shard_before() const override { return shard(); }
  std::span<float> frozen(std::uint32_t unit) const override {
    const UnitLayout& layout = layout_.units[unit];
    return pages_.span(layout.begin + layout.trainable, layout.size - layout.trainable);
  }

  void make_room(std::size_t) override {}
  void hold(std::uint32_t unit) override {
    const UnitLayout& layout = layout_.units[unit];
    pages_.hold(layout.begin, layout.begin + layout.trainable);
  }
  void keep_written(std::uint32_t) override {}
  void let_go(std::uint32_t unit) override {
    const UnitLayout& layout = layout_.units[unit];
    std::uint64_t at = layout.begin;
    for (const Piece& p : own_pieces(unit)) pages_.release(std::exchange(at, p.parameter + p.size()), p.parameter);
    pages_.release(at, layout.begin + layout.trainable);
  }
  std::span<float> unit(std::uint32_t unit) const override { return pages_.span(layout_.units[unit].begin, layout_.units[unit].trainable); }

  void make_resident() override { pages_.make_resident(); }
  const PagedArena& pages() const override { return pages_; }
  std::uint64_t held_bytes() const override { return pages_.held_bytes(); }
  std::uint64_t held_bytes_max() const override { return pages_.held_bytes_max(); }

 private:
  const Layout layout_;
  const bool sharded_;
  PagedArena pages_;
};

class BufferedParameters final : public Parameters {
 public:
  BufferedParameters(const Layout& layout, Memory& memory) : layout_{layout}, memory_{memory}, at_(layout.units.size()) {
    std::uint64_t frozen = 0, largest = 0;
    for (const UnitLayout& unit : layout.units) {
      frozen_begins_.push_back(frozen);
      frozen += unit.size - unit.trainable;
      if (unit.weights == DType::f32) largest = std::max(largest, unit.trainable);  // others are held by RoundedUnits
    }
    frozen_ = Arena<float>{frozen, memory};
    buffers_ = UnitBuffers{largest, memory};
  }

  void begin_shard(Cut cut) override {
    Arena<float> array{elements(pieces(layout_, cut)), memory_};
    before_ = std::move(now_);
    now_ = Shard{cut, std::move(array)};
    find_pieces(layout_, cut);
  }
  void keep_only(Cut cut) override {
    if (before_ && now_->cut != cut) now_ = std::move(before_);
    before_.reset();
    find_pieces(layout_, now_->cut);
  }
  PiecesIn shard() const override { return {now_ ? now_->array.span() : std::span<float>{}, Space::shard}; }
  PiecesIn shard_before() const override { return before_ ? PiecesIn{before_->array.span(), Space::shard} : shard(); }
  std::span<float> frozen(std::uint32_t unit) const override {
    return frozen_.span(frozen_begins_[unit], layout_.units[unit].size - layout_.units[unit].trainable);
  }

  void make_room(std::size_t units) override { buffers_.make(units); }
  void hold(std::uint32_t unit) override {
    if (at_[unit] != nullptr || layout_.units[unit].trainable == 0) return;
    at_[unit] = buffers_.take();
    for (const Piece& p : own_pieces(unit)) memory_.copy(std::as_bytes(own(p)), std::as_writable_bytes(in_buffer(p)));
  }
  void keep_written(std::uint32_t unit) override {
    if (at_[unit] == nullptr) return;
    for (const Piece& p : own_pieces(unit)) memory_.copy(std::as_bytes(in_buffer(p)), std::as_writable_bytes(own(p)));
  }
  void let_go(std::uint32_t unit) override {
    if (at_[unit] != nullptr) buffers_.give_back(std::exchange(at_[unit], nullptr));
  }
  std::span<float> unit(std::uint32_t unit) const override { return {at_[unit], layout_.units[unit].trainable}; }

  void make_resident() override {}
  const PagedArena& pages() const override { return none_; }
  std::uint64_t held_bytes() const override { return (now_ ? now_->array.bytes() : 0) + frozen_.bytes(); }
  std::uint64_t held_bytes_max() const override { return held_bytes() + buffers_.bytes(); }

 private:
  struct Shard {
    Cut cut;
    Arena<float> array;
  };
  [[nodiscard]] std::span<float> in_buffer(const Piece& p) const { return {at_[p.unit] + p.begin, p.size()}; }
  const Layout layout_;
  Memory& memory_;
  std::optional<Shard> now_, before_;
  Arena<float> frozen_;
  std::vector<std::uint64_t> frozen_begins_;  // by unit
  UnitBuffers buffers_;
  std::vector<float*> at_;  // by unit; null: not held
  PagedArena none_;
};

}  // namespace

std::unique_ptr<Parameters> make_parameters(const Layout& layout, bool sharded, SharedBuffers& shared_buffers) {
  if (sharded && !shared_buffers.on_host()) return std::make_unique<BufferedParameters>(layout, shared_buffers.private_memory());
  return std::make_unique<AddressedParameters>(layout, sharded, shared_buffers);
}

}  // namespace elrun::inline v0
