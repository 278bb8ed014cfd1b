#include "lib/job/gradients/tree.hpp"

#include <algorithm>

namespace elrun::inline v0 {
namespace {

void collect(TreeNode node, std::span<const LeafRange> runs, std::vector<TreeNode>& out) {
  const std::uint64_t end = node.begin + node.size;
  while (!runs.empty() && runs.front().end <= node.begin) runs = runs.subspan(1);
  if (runs.empty() || runs.front().begin >= end) return;
  if (runs.front().begin <= node.begin && end <= runs.front().end) {
    out.push_back(node);
  } else {
    collect(node.left(), runs, out);
    collect(node.right(), runs, out);
  }
}

std::vector<LeafRange> joined(std::span<const LeafRange> runs) {
  std::vector<LeafRange> out;
  for (const LeafRange& run : runs) {
    if (run.begin == run.end) continue;
    if (!out.empty() && out.back().end == run.begin) out.back().end = run.end;
    else out.push_back(run);
  }
  return out;
}

/// Whether a and b are the two children of one node below `root`.
bool siblings(TreeNode a, TreeNode b, TreeNode root) {
  while (!root.leaf()) {
    if (root.left() == a) return root.right() == b;
    root = a.begin < root.right().begin ? root.left() : root.right();
  }
  return false;
}

}  // namespace

std::vector<TreeNode> maximal_nodes(std::span<const LeafRange> runs, std::uint64_t leaves) {
  std::vector<TreeNode> out;
  if (leaves > 0) collect({0, leaves}, joined(runs), out);
  return out;
}

std::vector<TreeNode> maximal_nodes(std::span<const std::uint32_t> ascending, std::uint64_t leaves) {
  std::vector<LeafRange> runs;
  runs.reserve(ascending.size());
  for (const std::uint32_t leaf : ascending) runs.push_back({leaf, std::uint64_t{leaf} + 1});
  return maximal_nodes(runs, leaves);
}

FoldSchedule fold_schedule(std::span<const std::uint32_t> slots_ascending, std::uint64_t slots) {
  FoldSchedule out;
  std::vector<TreeNode>& stack = out.nodes;
  for (const std::uint32_t slot : slots_ascending) {
    out.buffer.push_back(static_cast<std::uint32_t>(stack.size()));
    stack.push_back({slot, 1});
    out.depth = std::max(out.depth, static_cast<std::uint32_t>(stack.size()));
    std::uint32_t merges = 0;
    while (stack.size() >= 2 && siblings(stack[stack.size() - 2], stack.back(), {0, slots})) {
      stack[stack.size() - 2].size += stack.back().size;
      stack.pop_back();
      ++merges;
    }
    out.merges.push_back(merges);
  }
  return out;
}

}  // namespace elrun::inline v0
