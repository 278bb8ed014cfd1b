#pragma once
/// \file PagedArena: addresses for everything, memory for what is held. Views into it stay where they are while pages come
/// and go under them; touching what is not held ends the process at once, so that nobody computes with what is not there. Pages are those
/// of a Memory, which outlives the arena.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <elrun/process_group.hpp>

#include "lib/device/memory.hpp"

namespace elrun::inline v0 {

class PagedArena {
 public:
  PagedArena() = default;
  /// Addresses of `count` floats, on page borders. None is held.
  explicit PagedArena(std::uint64_t count, Memory& memory = host_memory());
  /// All is held, for good; in `shared`, which is as large, where there is some.
  [[nodiscard]] static PagedArena whole(std::uint64_t count, std::optional<SharedBuffer> shared = {}, Memory& memory = host_memory());
  /// What peers may be shown of it: all, or nothing.
  [[nodiscard]] const std::optional<SharedBuffer>& shared() const { return shared_; }

  [[nodiscard]] float* data() const { return data_.get(); }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::span<float> span() const { return {data_.get(), size_}; }
  [[nodiscard]] std::span<float> span(std::uint64_t begin, std::uint64_t count) const { return span().subspan(begin, count); }

  /// Gives memory to elements [begin, end), in whole pages: zeros where nothing was held.
  void hold(std::uint64_t begin, std::uint64_t end);
  /// Takes the memory of the pages that lie wholly in [begin, end), and their contents with it. Not of what is shared: peers may read there.
  void release(std::uint64_t begin, std::uint64_t end);

  /// All that is held is there from now on: who writes it first has no pages to wait for. Contents stay.
  void make_resident();

  [[nodiscard]] std::uint64_t held_bytes() const { return held_bytes_; }
  [[nodiscard]] std::uint64_t held_bytes_max() const { return held_bytes_max_; }

 private:
  struct Unreserve {
    Memory* memory;  // none: they are the shared buffer's
    std::size_t bytes;
    void operator()(float* p) const {
      if (memory != nullptr) memory->unreserve(p, bytes);
    }
  };
  PagedArena(std::uint64_t count, Memory& memory, Memory::Paging paging);
  [[nodiscard]] std::span<std::byte> pages(std::size_t first, std::size_t last) const;
  void mark(std::size_t first, std::size_t last, bool held);
  std::optional<SharedBuffer> shared_;
  Memory* memory_ = &host_memory();
  std::unique_ptr<float[], Unreserve> data_;
  std::uint64_t size_ = 0;
  std::vector<bool> held_;  // by page
  std::uint64_t held_bytes_ = 0, held_bytes_max_ = 0;
};

}  // namespace elrun::inline v0
