#include "lib/device/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>

#include <fmt/format.h>

#include <elrun/result.hpp>

#include "kernels/fold.hpp"
#include "kernels/granule.hpp"
#include "kernels/state_hash.hpp"
#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

/// Takes the memory of pages away, and their contents with it. What is locked (mlockall) takes another advice, which Linux has
/// since 5.18, and the headers of some systems have not.
bool take_away(void* pages, std::size_t bytes) {
  constexpr int dontneed_locked = 24;
  return madvise(pages, bytes, MADV_DONTNEED) == 0 || (errno == EINVAL && madvise(pages, bytes, dontneed_locked) == 0);
}

constexpr std::size_t alignment = 4096;
std::size_t whole_pages(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

/// One granule after the other, so that what was rounded is still in the cache when it goes to its place.
template <class Put>
void round_by_granule(std::span<float> run, const Put& put) {
  std::array<bf16, granule> rounded;
  for (std::uint64_t begin = 0; begin < run.size(); begin += granule) {
    const std::span<float> in = run.subspan(begin, std::min(granule, run.size() - begin));
    const std::span<bf16> out{rounded.data(), in.size()};
    to_bf16(in, out);
    put(begin, in, out);
  }
}

class HostMemory final : public Memory {
 public:
  Stream stream() const override { return {}; }
  std::unique_ptr<Memory> beside() override { return nullptr; }
  void* allocate(std::size_t bytes) override {
    void* const memory = allocate_untouched(bytes);
    std::memset(memory, 0, whole_pages(bytes));
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
  void write(std::span<const std::byte> from, std::span<std::byte> run) override { HostMemory::copy(from, run); }
  void read(std::span<const std::byte> run, std::span<std::byte> to) override { HostMemory::copy(run, to); }
  void read_beside(std::span<const std::byte> run, std::span<std::byte> to) override { HostMemory::copy(run, to); }
  std::uint64_t hash(std::span<const std::byte> run, std::uint64_t first_word, std::uint64_t salt) override {
    return mix_sum(run, first_word, salt);
  }
  void add_into(std::span<float> left, std::span<const float> right) override { elrun::add_into(left, right); }
  void add_into(std::span<float> left, std::span<const bf16> right) override { elrun::add_into(left, right); }
  void round_to_bf16(std::span<float> run) override {
    round_by_granule(run, [](std::uint64_t, std::span<float> in, std::span<const bf16> out) { elrun::to_float(out, in); });
  }
  void pack_to_bf16(std::span<float> run) override {
    // What is overwritten was read: an element moves to half its offset.
    round_by_granule(run, [&](std::uint64_t begin, std::span<float>, std::span<const bf16> out) {
      std::memcpy(reinterpret_cast<std::byte*>(run.data()) + begin * sizeof(bf16), out.data(), out.size_bytes());
    });
  }
  void to_bf16(std::span<const float> from, std::span<bf16> to) override { elrun::to_bf16(from, to); }
  void to_float(std::span<const bf16> from, std::span<float> to) override { elrun::to_float(from, to); }
  void sums_of_squares(std::span<const float> data, std::span<float> sums) override { elrun::sums_of_squares(data, sums); }
  void reduce(const ReduceTable& table, float* result, float* sums) override { elrun::reduce(table, result, sums); }
  void update(const UpdateArrays& arrays, const UpdateTable& table, const OptimizerStep& step) override {
    elrun::update(arrays, table, step);
  }

  std::size_t page_bytes() const override {
    static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
  }
  void* reserve(std::size_t bytes, Paging paging) override {
    void* const at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc{};
    if (paging == Paging::stays) return at;
    // Asked here, where it can be told: a scope's end could only end the process.
    if (!take_away(at, bytes)) {
      const int error = errno;
      unreserve(at, bytes);
      throw Error{Failure{
          Code::not_permitted, Remedy::fix_config,
          fmt::format("memory that is not in use cannot be given back ({}): this process has locked its memory (mlockall), and Linux "
                      "gives locked pages back since 5.18 alone; do not lock it, or use zero(0) or zero(1) with Exchange::per_step",
                      std::generic_category().message(error))}};
    }
    // One element of a huge page would bring memory for all of it. A kernel that has none refuses the advice, rightly.
    (void)madvise(at, bytes, MADV_NOHUGEPAGE);
    return at;
  }
  void unreserve(void* memory, std::size_t bytes) noexcept override { ELRUN_ASSERT(munmap(memory, bytes) == 0); }
  void hold(std::span<std::byte> pages) override {
    if (mprotect(pages.data(), pages.size(), PROT_READ | PROT_WRITE) == 0) return;
    // Pages that are held between pages that are not are a mapping of their own.
    throw Error{Failure{
        Code::exhausted, Remedy::fix_config,
        fmt::format(
            "no memory for {} bytes of sharded state ({}): the machine has none left, or this process has as many mappings as "
            "vm.max_map_count lets it (sharded state takes about two for each unit); declare fewer, larger units, or raise that limit",
            pages.size(), std::generic_category().message(errno))}};
  }
  void make_resident(std::span<std::byte> pages) override {
    constexpr int populate_write = 23;  // MADV_POPULATE_WRITE: Linux has it since 5.14, and the headers of some systems have not
    if (pages.empty() || madvise(pages.data(), pages.size(), populate_write) == 0) return;
    for (std::size_t at = 0; at < pages.size(); at += page_bytes()) {
      volatile std::byte& touched = pages[at];
      touched = touched;
    }
  }
  void give_back(std::span<std::byte> pages) override {
    ELRUN_ASSERT(take_away(pages.data(), pages.size()));
    // Where the limit of mappings lets them not be parted from their neighbours, they stay readable. Their memory is gone all the same.
    ELRUN_ASSERT(mprotect(pages.data(), pages.size(), PROT_NONE) == 0 || errno == ENOMEM);
  }
};

}  // namespace

void* allocate_untouched(std::size_t bytes) {
  void* const memory = std::aligned_alloc(alignment, whole_pages(bytes));
  if (memory == nullptr) throw std::bad_alloc{};
  return memory;
}

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace elrun::inline v0
