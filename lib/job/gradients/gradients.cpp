#include "lib/job/gradients/gradients.hpp"

#include <algorithm>
#include <optional>

#include "lib/job/gradients/summands.hpp"

namespace elrun::inline v0 {

Gradients::Gradients(const Layout& layout, const std::vector<std::vector<std::uint32_t>>& slots_by_rank, const ShardMap& shards,
                     std::uint32_t rank, Reduce reduce, DType leaves, SharedBuffers* shared_buffers)
    : memory_{shared_buffers != nullptr ? &shared_buffers->private_memory() : &host_memory()},
      space_{layout.gradients},
      rounds_{leaves == DType::bf16},
      delivers_{shards.cuts != shards.folds} {
  const auto world = static_cast<std::uint32_t>(slots_by_rank.size());
  const Summands tree = summands(slots_by_rank, reduce);
  schedule_ = tree.schedules[rank];
  buffers_ = std::max(schedule_.depth, 1u);  // a rank without slots still owns a shard
  const std::uint64_t partials = buffers_ * space_;
  partials_ = Arena<float>{partials, shared_buffers != nullptr ? shared_buffers->make(partials * sizeof(float)) : std::nullopt, *memory_};
  shard_ = pieces(layout, shards.folds[rank]);
  const std::uint64_t shard_elements = elements(shard_);

  struct Held {
    TreeNode node;
    std::uint32_t operand;
  };
  std::vector<Held> held;
  sends_.resize(world);
  receives_.resize(world);
  const auto travels_packed = [&](TreeNode node) { return rounds_ && world > 1 && node.leaf(); };
  std::uint64_t received_nodes = 0, received_leaves = 0, own_leaves = 0;
  for (std::uint32_t r = 0; r < world; ++r)
    for (const TreeNode& node : tree.schedules[r].nodes) {
      if (r == rank) own_leaves += travels_packed(node);
      else ++(travels_packed(node) ? received_leaves : received_nodes);
    }
  received_ = Arena<float>{received_nodes * shard_elements, *memory_};
  own_leaves_ = Arena<float>{own_leaves * shard_elements, *memory_};
  received_leaves_ = Arena<bf16>{received_leaves * shard_elements, *memory_};
  for (const Piece& p : shard_) chunk_ = std::max(chunk_, std::min(fold_chunk(memory_->device().kind), p.size()));
  expanded_ = Arena<float>{received_leaves * chunk_, *memory_};
  float *next = received_.data(), *own = own_leaves_.data(), *chunk = expanded_.data();
  bf16* leaf = received_leaves_.data();
  for (std::uint32_t r = 0; r < world; ++r) {
    const auto& nodes = tree.schedules[r].nodes;
    for (std::uint32_t n = 0; n < nodes.size(); ++n) {
      held.push_back({nodes[n], static_cast<std::uint32_t>(operands_.size())});
      const auto receive = [&](auto* at) {
        for (const Piece& p : shard_) receives_[r].push_back(std::as_writable_bytes(std::span{at + p.place, p.size()}));
      };
      if (r == rank && !travels_packed(nodes[n])) {
        operands_.push_back({buffer(n), In::whole});
      } else if (r == rank) {
        packed_.push_back(n);
        operands_.push_back({std::exchange(own, own + shard_elements), In::shard});
      } else if (!travels_packed(nodes[n])) {
        receive(next);
        operands_.push_back({std::exchange(next, next + shard_elements), In::shard});
      } else {
        receive(std::exchange(leaf, leaf + shard_elements));
        operands_.push_back({std::exchange(chunk, chunk + chunk_), In::chunk});
      }
    }
    if (r == rank) continue;
    const auto theirs = pieces(layout, shards.folds[r]);
    for (std::uint32_t n = 0; n < schedule_.nodes.size(); ++n)
      for (const Piece& p : theirs)
        sends_[r].push_back(travels_packed(schedule_.nodes[n]) ? std::as_bytes(packed(buffer(n), p.gradient, p.size()))
                                                               : std::as_bytes(std::span<const float>{buffer(n) + p.gradient, p.size()}));
  }
  std::sort(held.begin(), held.end(), [](const Held& a, const Held& b) { return a.node.begin < b.node.begin; });
  const auto given = [&](TreeNode node) -> std::optional<std::uint32_t> {
    const auto at = std::lower_bound(held.begin(), held.end(), node.begin, [](const Held& h, std::uint64_t b) { return h.node.begin < b; });
    if (at != held.end() && at->node == node) return at->operand;
    return std::nullopt;
  };
  root_ = fold(TreeNode{0, tree.count}, given, [&](std::uint32_t left, std::uint32_t right) {
    additions_.push_back({left, right});
    return left;
  });
  const PiecesIn first_buffer{partials_.span(0, space_), Space::gradients};
  if (delivers_) sums_ = deliver_sums(layout, shards, rank, first_buffer, first_buffer);
}

void Gradients::fold_leaf(std::size_t i) {
  if (rounds_) memory_->round_to_bf16({leaf(i), space_});
  std::uint64_t top = schedule_.buffer[i];
  for (std::uint32_t m = 0; m < schedule_.merges[i]; ++m, --top)
    memory_->add_into(std::span{buffer(top - 1), space_}, std::span<const float>{buffer(top), space_});
}

/// Of this rank's leaves that go out as they are: its own part is kept as floats, and the rest is packed.
void Gradients::pack_leaves() {
  for (std::size_t i = 0; i < packed_.size(); ++i) {
    float* const leaf = buffer(packed_[i]);
    for (const Piece& p : shard_)
      memory_->copy(std::as_bytes(std::span{leaf + p.gradient, p.size()}),
                    std::as_writable_bytes(own_leaves_.span(i * elements(shard_) + p.place, p.size())));
    memory_->pack_to_bf16({leaf, space_});
  }
}

Result<void> Gradients::reduce(JobWorld& world) {
  pack_leaves();
  ELRUN_TRY(world.exchange_arrays(sends_, receives_));
  const std::uint64_t leaves = chunk_ == 0 ? 0 : expanded_.size() / chunk_, shard_elements = elements(shard_);
  for (const Piece& p : shard_)
    for (std::uint64_t begin = 0; begin < p.size(); begin += chunk_) {
      const std::uint64_t count = std::min(chunk_, p.size() - begin);
      const auto chunk = [&](std::uint32_t o) {
        const Operand& operand = operands_[o];
        return std::span{operand.base + (operand.in == In::chunk ? 0 : (operand.in == In::whole ? p.gradient : p.place) + begin), count};
      };
      for (std::uint64_t i = 0; i < leaves; ++i)
        memory_->to_float(received_leaves_.span(i * shard_elements + p.place + begin, count), expanded_.span(i * chunk_, count));
      for (const Addition& a : additions_) memory_->add_into(chunk(a.left), chunk(a.right));
      float* const result = buffer(0) + p.gradient + begin;
      if (const auto root = chunk(root_); root.data() != result)
        memory_->copy(std::as_bytes(root), std::as_writable_bytes(std::span{result, root.size()}));
    }
  if (delivers_) ELRUN_TRY(world.exchange_arrays(sums_.sends, sums_.receives));
  return {};
}

}  // namespace elrun::inline v0
