#include "lib/job/state/memory.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/state_hash.hpp"
#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

class HostMemory final : public Memory {
 public:
  void* allocate(std::size_t bytes) override {
    constexpr std::size_t page = 4096;
    const std::size_t whole_pages = (bytes + page - 1) / page * page;
    void* const memory = std::aligned_alloc(page, whole_pages);
    if (memory == nullptr) throw std::bad_alloc{};
    std::memset(memory, 0, whole_pages);
    return memory;
  }
  void free(void* memory) noexcept override { std::free(memory); }
  void fill_with_zeros(std::span<std::byte> run) override {
    if (!run.empty()) std::memset(run.data(), 0, run.size());
  }
  void copy(std::span<const std::byte> from, std::span<std::byte> to) override {
    ELRUN_ASSERT(from.size() == to.size());
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
  }
  std::uint64_t hash(std::span<const std::byte> run, std::uint64_t first_word, std::uint64_t salt) override {
    return mix_sum(run, first_word, salt);
  }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace elrun::inline v0
