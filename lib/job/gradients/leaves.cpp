#include "lib/job/gradients/leaves.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/convert.hpp"

namespace elrun::inline v0 {
namespace {

template <class Each>
void by_granule(std::span<float> leaf, const Each& each) {
  std::array<bf16, granule> rounded;
  for (std::uint64_t begin = 0; begin < leaf.size(); begin += granule) {
    const std::span<float> in = leaf.subspan(begin, std::min(granule, leaf.size() - begin));
    const std::span<bf16> out{rounded.data(), in.size()};
    to_bf16(in, out);
    each(begin, in, out);
  }
}

}  // namespace

void round_to_bf16(std::span<float> leaf) {
  by_granule(leaf, [](std::uint64_t, std::span<float> in, std::span<const bf16> out) { to_float(out, in); });
}

void pack_to_bf16(std::span<float> leaf) {
  // What is overwritten was read: an element moves to half its offset.
  by_granule(leaf, [&](std::uint64_t begin, std::span<float>, std::span<const bf16> out) {
    std::memcpy(reinterpret_cast<std::byte*>(leaf.data()) + begin * sizeof(bf16), out.data(), out.size_bytes());
  });
}

std::span<const bf16> packed(const float* leaf, std::uint64_t begin, std::uint64_t count) {
  return {reinterpret_cast<const bf16*>(leaf) + begin, count};
}

}  // namespace elrun::inline v0
