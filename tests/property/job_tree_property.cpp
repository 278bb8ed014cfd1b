#include <algorithm>
#include <numeric>
#include <optional>

#include "lib/job/declare/assign.hpp"
#include "lib/job/gradients/tree.hpp"
#include "tests/support/property.hpp"

namespace elrun::test {

TEST_CASE("whoever holds which leaves, folding to maximal nodes and then on gives the bits of one process", "[job]") {
  for_all_seeds(2000, [](Rng& rng) {
    const std::uint32_t leaves = 1 + static_cast<std::uint32_t>(rng.below(40));
    const std::uint32_t world = 1 + static_cast<std::uint32_t>(rng.below(6));
    std::vector<float> value(leaves);
    for (float& v : value) v = std::ldexp(static_cast<float>(rng.below(1 << 24)) - 0x1p23f, static_cast<int>(rng.below(40)) - 20);
    const auto add = [](float a, float b) { return a + b; };
    const float expected = fold_leaves(std::span<const float>{value}, add);

    std::vector<std::vector<std::uint32_t>> held(world);  // any split at all, not only the one we would choose
    for (std::uint32_t i = 0; i < leaves; ++i) held[rng.below(world)].push_back(i);
    std::vector<std::pair<TreeNode, float>> pieces;
    for (const auto& slots : held) {
      const FoldSchedule s = fold_schedule(slots, leaves);
      REQUIRE(s.nodes == maximal_nodes(slots, leaves));
      std::vector<float> stack(s.depth);
      for (std::size_t i = 0; i < slots.size(); ++i) {
        std::uint32_t top = s.buffer[i];
        stack[top] = value[slots[i]];
        for (std::uint32_t m = 0; m < s.merges[i]; ++m, --top) stack[top - 1] += stack[top];
      }
      for (std::size_t n = 0; n < s.nodes.size(); ++n) pieces.emplace_back(s.nodes[n], stack[n]);
    }
    const auto given = [&](TreeNode node) -> std::optional<float> {
      for (const auto& [n, v] : pieces)
        if (n == node) return v;
      return std::nullopt;
    };
    CHECK(fold(TreeNode{0, leaves}, given, add) == expected);
  });
}

}  // namespace elrun::test
