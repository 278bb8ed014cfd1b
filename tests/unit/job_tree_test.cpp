#include "lib/job/gradients/tree.hpp"

#include <string>

#include "lib/job/declare/assign.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

std::string shape(std::uint64_t leaves) {
  std::vector<std::string> names;
  for (std::uint64_t i = 0; i < leaves; ++i) names.push_back(std::to_string(i));
  return fold_leaves(std::span<const std::string>{names}, [](const auto& a, const auto& b) { return "(" + a + b + ")"; });
}

std::vector<TreeNode> maximal(std::vector<std::uint32_t> slots, std::uint64_t leaves) { return maximal_nodes(slots, leaves); }

}  // namespace

TEST_CASE("the tree is cut at the largest power of two below its size", "[job]") {
  CHECK(shape(1) == "0");
  CHECK(shape(2) == "(01)");
  CHECK(shape(3) == "((01)2)");
  CHECK(shape(5) == "(((01)(23))4)");
  CHECK(shape(6) == "(((01)(23))(45))");
  CHECK(shape(8) == "(((01)(23))((45)(67)))");
}

TEST_CASE("maximal nodes are those whose parents are not wholly there", "[job]") {
  CHECK(maximal({0, 1, 6}, 8) == std::vector<TreeNode>{{0, 2}, {6, 1}});
  CHECK(maximal({1, 2}, 8) == std::vector<TreeNode>{{1, 1}, {2, 1}});
  CHECK(maximal({4, 5}, 6) == std::vector<TreeNode>{{4, 2}});
  CHECK(maximal({0, 1, 2, 3, 4, 5}, 6) == std::vector<TreeNode>{{0, 6}});
  CHECK(maximal({}, 6).empty());
}

TEST_CASE("eight slots on three ranks: the worked example", "[job]") {
  const auto slots = assign_slots(8, 3);
  CHECK(slots[0] == std::vector<std::uint32_t>{0, 1, 6});
  CHECK(slots[1] == std::vector<std::uint32_t>{2, 3, 7});
  CHECK(slots[2] == std::vector<std::uint32_t>{4, 5});
}

TEST_CASE("a rank folds its slots in a stack whose depth grows with the logarithm", "[job]") {
  const std::vector<std::uint32_t> eight{0, 1, 2, 3, 4, 5, 6, 7};
  const FoldSchedule s = fold_schedule(eight, 8);
  CHECK(s.depth == 4);
  CHECK(s.buffer == std::vector<std::uint32_t>{0, 1, 1, 2, 1, 2, 2, 3});
  CHECK(s.merges == std::vector<std::uint32_t>{0, 1, 0, 2, 0, 1, 0, 3});
  CHECK(s.nodes == std::vector<TreeNode>{{0, 8}});
  const std::vector<std::uint32_t> apart{0, 1, 6};
  CHECK(fold_schedule(apart, 8).nodes == std::vector<TreeNode>{{0, 2}, {6, 1}});
  CHECK(fold_schedule({}, 8).depth == 0);
}

TEST_CASE("sizes of the reference table: balanced, then the least traffic", "[job]") {
  const auto sizes = [](std::uint32_t slots, std::uint32_t world) {
    std::vector<std::size_t> out;
    for (const auto& rank : assign_slots(slots, world)) out.push_back(rank.size());
    return out;
  };
  using Sizes = std::vector<std::size_t>;
  CHECK(sizes(8, 8) == Sizes(8, 1));
  CHECK(sizes(8, 5) == Sizes{2, 2, 2, 1, 1});
  CHECK(sizes(8, 3) == Sizes{3, 3, 2});
  CHECK(sizes(16, 3) == Sizes{6, 6, 4});
  CHECK(sizes(16, 5) == Sizes{4, 4, 4, 2, 2});
  CHECK(sizes(16, 6) == Sizes{3, 3, 3, 3, 2, 2});
  CHECK(sizes(16, 7) == Sizes{3, 3, 2, 2, 2, 2, 2});
  CHECK(sizes(32, 5) == Sizes{7, 7, 6, 6, 6});
  CHECK(sizes(32, 6) == Sizes{6, 6, 6, 6, 4, 4});
  CHECK(sizes(64, 3) == Sizes{22, 22, 20});
  CHECK(sizes(64, 7) == Sizes{10, 10, 10, 10, 8, 8, 8});
  CHECK(sizes(3, 5) == Sizes{1, 1, 1, 0, 0});
  CHECK(compute_efficiency(8, 7) == Approx(8.0 / 14));
}

}  // namespace elrun::test
