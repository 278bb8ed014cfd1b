#pragma once
/// \file The canonical tree: one way to add up V values, whoever holds them.
///
/// T(begin, n) is the leaf for n = 1, else T(left part) + T(right part), cut at the largest power of two below n. A
/// node's value depends on its two children alone, so whoever obtains the children obtains the node, bit for bit. A
/// rank folds what it holds up to the maximal nodes (those that lie wholly in its leaves, and whose parents do not),
/// sends them, and the owner makes the very additions that one process with all leaves would have made.

#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace elrun::inline v0 {

/// The node over leaves [begin, begin + size).
struct TreeNode {
  std::uint64_t begin = 0, size = 0;
  [[nodiscard]] constexpr bool leaf() const { return size == 1; }
  [[nodiscard]] constexpr TreeNode left() const { return {begin, std::bit_floor(size - 1)}; }
  [[nodiscard]] constexpr TreeNode right() const { return {begin + left().size, size - left().size}; }
  friend constexpr bool operator==(const TreeNode&, const TreeNode&) = default;
};

/// Leaves [begin, end).
struct LeafRange {
  std::uint64_t begin = 0, end = 0;
  friend constexpr bool operator==(const LeafRange&, const LeafRange&) = default;
};

/// Maximal nodes, from left to right, of a set of leaves given as ascending runs, in the tree over `leaves` leaves.
[[nodiscard]] std::vector<TreeNode> maximal_nodes(std::span<const LeafRange> runs, std::uint64_t leaves);

/// The same for single leaves in ascending order.
[[nodiscard]] std::vector<TreeNode> maximal_nodes(std::span<const std::uint32_t> ascending, std::uint64_t leaves);

/// The value of `node`: `given(node)` returns what is there (an optional, or a pointer), `add(left, right)` one inner
/// node. Descends until something is given; a leaf always is.
template <class Given, class Add>
auto fold(TreeNode node, const Given& given, const Add& add) -> std::remove_cvref_t<decltype(*given(node))> {
  if (auto value = given(node)) return *value;
  auto left = fold(node.left(), given, add);
  return add(std::move(left), fold(node.right(), given, add));
}

/// The root over plain leaves.
template <class T, class Add>
[[nodiscard]] T fold_leaves(std::span<const T> leaves, const Add& add, TreeNode node) {
  if (node.leaf()) return leaves[node.begin];
  T left = fold_leaves(leaves, add, node.left());
  return add(std::move(left), fold_leaves(leaves, add, node.right()));
}
template <class T, class Add>
[[nodiscard]] T fold_leaves(std::span<const T> leaves, const Add& add) {
  return fold_leaves(leaves, add, TreeNode{0, leaves.size()});
}

/// How one rank folds its slots while they are computed: a stack of buffers. The leaf of slot i is made in the buffer
/// on top, then the `merges[i]` topmost pairs are added, left = left + right. What is left at the end are the maximal
/// nodes.
struct FoldSchedule {
  std::vector<std::uint32_t> buffer;  ///< Buffer in which the leaf of the i-th slot is made.
  std::vector<std::uint32_t> merges;  ///< Additions after it.
  std::vector<TreeNode> nodes;        ///< In buffers 0, 1, ..., from left to right.
  std::uint32_t depth = 0;            ///< Buffers needed.
};
[[nodiscard]] FoldSchedule fold_schedule(std::span<const std::uint32_t> slots_ascending, std::uint64_t slots);

}  // namespace elrun::inline v0
