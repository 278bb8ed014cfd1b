#include "lib/job/gradients/gradients.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "lib/base/assert.hpp"
#include "lib/job/gradients/summands.hpp"

namespace elrun::inline v0 {
namespace {

/// What is read of it has arrived, so its contents do not matter. New memory is taken once all is given back that is too small.
Arena<float> room_for(std::uint64_t count, GradientBuffers& before, Memory& memory) {
  const std::uint64_t most = before.keeps ? std::numeric_limits<std::uint64_t>::max() : count + count / 4;
  std::optional<Arena<float>> fits;
  if (count > 0) fits = take_fitting(before.received, count, most);
  if (!before.keeps || (count > 0 && !fits)) before.received.clear();
  return fits ? std::move(*fits) : Arena<float>{count, memory};
}

}  // namespace

Gradients::Gradients(const Layout& layout, const std::vector<std::vector<std::uint32_t>>& slots_by_rank, const ShardMap& shards,
                     std::uint32_t rank, Reduce reduce, DType leaves, SharedBuffers* shared_buffers, GradientBuffers* before)
    : memory_{shared_buffers != nullptr ? &shared_buffers->private_memory() : &host_memory()},
      space_{layout.gradients},
      rounds_{leaves == DType::bf16},
      delivers_{shards.cuts != shards.folds} {
  const auto world = static_cast<std::uint32_t>(slots_by_rank.size());
  const Summands tree = summands(slots_by_rank, reduce);
  schedule_ = tree.schedules[rank];
  buffers_ = std::max(schedule_.depth, 1u);  // a rank without slots still owns a shard
  shard_ = pieces(layout, shards.folds[rank]);
  const std::uint64_t shard_elements = elements(shard_);

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
  GradientBuffers none;
  if (before == nullptr) before = &none;
  received_ = room_for(received_nodes * shard_elements, *before, *memory_);
  own_leaves_ = Arena<float>{own_leaves * shard_elements, *memory_};
  received_leaves_ = Arena<bf16>{received_leaves * shard_elements, *memory_};
  // Last, when what was too much of the old memory is given back.
  const auto taken = before->whole.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(before->whole.size(), buffers_));
  partials_.assign(std::make_move_iterator(before->whole.begin()), std::make_move_iterator(taken));
  before->whole.erase(before->whole.begin(), before->keeps ? taken : before->whole.end());
  while (partials_.size() < buffers_)
    partials_.emplace_back(
        space_, shared_buffers != nullptr ? shared_buffers->make(space_ * sizeof(float), SharedBuffers::InChildren::absent) : std::nullopt,
        *memory_);
  float *next = received_.data(), *own = own_leaves_.data();
  bf16* leaf = received_leaves_.data();
  for (std::uint32_t r = 0; r < world; ++r) {
    const auto& nodes = tree.schedules[r].nodes;
    for (std::uint32_t n = 0; n < nodes.size(); ++n) {
      const auto receive = [&](auto* at) {
        for (const Piece& p : shard_) receives_[r].push_back(std::as_writable_bytes(std::span{at + p.place, p.size()}));
      };
      ReduceOperand operand;
      if (r == rank && !travels_packed(nodes[n])) {
        operand = {.base = buffer(n), .whole = true};
      } else if (r == rank) {
        packed_.push_back(n);
        operand.base = std::exchange(own, own + shard_elements);
      } else if (!travels_packed(nodes[n])) {
        receive(next);
        operand.base = std::exchange(next, next + shard_elements);
      } else {
        receive(leaf);
        operand = {.base = std::exchange(leaf, leaf + shard_elements), .bf16 = true};
      }
      held.push_back({nodes[n], operand});
    }
    if (r == rank) continue;
    const auto theirs = pieces(layout, shards.folds[r]);
    for (std::uint32_t n = 0; n < schedule_.nodes.size(); ++n)
      for (const Piece& p : theirs)
        sends_[r].push_back(travels_packed(schedule_.nodes[n]) ? std::as_bytes(packed(buffer(n), p.gradient, p.size()))
                                                               : std::as_bytes(std::span<const float>{buffer(n) + p.gradient, p.size()}));
  }
  std::sort(held.begin(), held.end(), [](const Held& a, const Held& b) { return a.node.begin < b.node.begin; });
  write_tables(tree.count, held);
  const PiecesIn first_buffer{partials_.front().span(), Space::gradients};
  if (delivers_) sums_ = deliver_sums(layout, shards, rank, first_buffer, first_buffer);
}

void Gradients::hand_on(GradientBuffers& to) {
  to.whole.insert(to.whole.begin(), std::make_move_iterator(partials_.begin()), std::make_move_iterator(partials_.end()));
  if (received_.capacity() > 0) to.received.push_back(std::move(received_));
  partials_.clear(), received_ = {};
}

std::vector<SharedBuffer> Gradients::shared() const {
  // Nodes lie in the first buffers, and sums in the very first. What is shown and never read fills the line to each peer with descriptors.
  std::vector<SharedBuffer> out;
  const std::size_t read = std::max<std::size_t>(schedule_.nodes.size(), 1);
  for (std::size_t i = 0; i < std::min(read, partials_.size()); ++i)
    if (partials_[i].shared()) out.push_back(*partials_[i].shared());
  return out;
}

/// What is left of the tree over `leaves` leaves, once the nodes of all ranks are here.
void Gradients::write_tables(std::uint64_t leaves, const std::vector<Held>& held) {
  std::vector<ReduceOperand> operands;
  const auto given = [&](TreeNode node) -> std::optional<bool> {
    const auto at = std::lower_bound(held.begin(), held.end(), node.begin, [](const Held& h, std::uint64_t b) { return h.node.begin < b; });
    if (at == held.end() || at->node != node) return std::nullopt;
    operands.push_back(at->operand);
    return true;
  };
  (void)fold(TreeNode{0, leaves}, given, [&](bool, bool) {
    ++operands.back().additions;
    return true;
  });
  std::vector<ReducePiece> runs;
  for (const Piece& p : shard_)
    if (p.size() > 0) runs.push_back({p.gradient, p.place, p.size()});
  table_.tiles = count_tiles(runs);
  table_.depth = depth_of(operands);
  operands_ = Arena<ReduceOperand>{operands.size(), *memory_};
  runs_ = Arena<ReducePiece>{runs.size(), *memory_};
  memory_->write(std::as_bytes(std::span{operands}), std::as_writable_bytes(operands_.span()));
  memory_->write(std::as_bytes(std::span{runs}), std::as_writable_bytes(runs_.span()));
  table_.operands = operands_.data(), table_.operand_count = static_cast<std::uint32_t>(operands.size());
  table_.pieces = runs_.data(), table_.piece_count = static_cast<std::uint32_t>(runs.size());
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

Result<void> Gradients::reduce(JobWorld& world, std::span<float> squares) {
  pack_leaves();
  ELRUN_TRY(world.exchange_arrays(sends_, receives_));
  ELRUN_ASSERT(squares.size() == table_.tiles);
  memory_->reduce(table_, buffer(0), squares.data());
  if (delivers_) ELRUN_TRY(world.exchange_arrays(sums_.sends, sums_.receives));
  return {};
}

}  // namespace elrun::inline v0
