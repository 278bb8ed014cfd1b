#include "lib/job/commit/votes.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/fold.hpp"
#include "lib/base/assert.hpp"
#include "lib/job/gradients/tree.hpp"
#include "lib/job/times_spent.hpp"

namespace elrun::inline v0 {
namespace {

/// A vote begins with it. Then come the tokens of the rank's slots, their losses, and its nodes of the norm.
struct VoteHeader {
  std::uint64_t number, lineage[2], step, finite, leaves, stops, saves, audit_hash;
  double audit_probability;
  UpdateReport update;
  std::uint64_t parameters;
  std::int64_t own;
};
constexpr std::size_t slot_bytes = sizeof(std::uint64_t) + sizeof(float);

template <class T>
std::size_t put(ByteVector& bytes, std::size_t at, std::span<const T> values) {
  if (!values.empty()) std::memcpy(bytes.data() + at, values.data(), values.size_bytes());
  return at + values.size_bytes();
}
template <class T>
std::size_t get(const ByteVector& bytes, std::size_t at, std::span<T> values) {
  if (!values.empty()) std::memcpy(values.data(), bytes.data() + at, values.size_bytes());
  return at + values.size_bytes();
}

}  // namespace

VoteExchange::VoteExchange(std::vector<std::vector<std::uint32_t>> slots_by_rank, std::uint64_t slots,
                           std::span<const std::size_t> norm_nodes, std::uint32_t rank)
    : slots_{std::move(slots_by_rank)}, rank_{rank} {
  const std::size_t size = slots_.size();
  votes_.resize(size), norm_nodes_.resize(size);
  exchange_.sends.resize(size), exchange_.receives.resize(size);
  for (std::size_t r = 0; r < size; ++r) {
    votes_[r].resize(sizeof(VoteHeader) + slots_[r].size() * slot_bytes + norm_nodes[r] * sizeof(float));
    norm_nodes_[r].resize(norm_nodes[r]);
    norm_views_.emplace_back(norm_nodes_[r]);
  }
  for (std::size_t r = 0; r < size; ++r) {
    if (r == rank_) continue;
    exchange_.sends[r] = {votes_[rank_]};
    exchange_.receives[r] = {votes_[r]};
  }
  my_losses_.resize(slots_[rank_].size());
  my_tokens_.resize(slots_[rank_].size());
  losses_.resize(slots);
}

void VoteExchange::set_slot(std::size_t i, float loss, std::uint64_t tokens) {
  my_losses_[i] = loss;
  my_tokens_[i] = tokens;
}

Result<void> VoteExchange::exchange(JobWorld& world, const VoteMessage& mine) {
  write(mine);
  ELRUN_TRY(world.exchange(exchange_.sends, exchange_.receives));
  tokens_ = 0;
  for (std::uint32_t r = 0; r < votes_.size(); ++r) read(r);
  return {};
}

void VoteExchange::write(const VoteMessage& mine) {
  ByteVector& blob = votes_[rank_];
  const Generation& generation = mine.vote.generation;
  const VoteHeader header{generation.number,
                          {generation.lineage.bits[0], generation.lineage.bits[1]},
                          mine.vote.step,
                          mine.vote.finite,
                          mine.leaves,
                          mine.stops,
                          mine.saves,
                          mine.audit_hash,
                          mine.audit_probability,
                          mine.update,
                          mine.parameters,
                          mine.own.count()};
  std::size_t at = put(blob, 0, std::span{&header, 1});
  at = put(blob, at, std::span<const std::uint64_t>{my_tokens_});
  at = put(blob, at, std::span<const float>{my_losses_});
  at = put(blob, at, std::span<const float>{norm_nodes_[rank_]});
  ELRUN_ASSERT(at == blob.size());
}

void VoteExchange::read(std::uint32_t rank) {
  const ByteVector& blob = votes_[rank];
  std::size_t at = sizeof(VoteHeader);
  for (std::size_t i = 0; i < slots_[rank].size(); ++i) {
    std::uint64_t tokens = 0;
    at = get(blob, at, std::span{&tokens, 1});
    tokens_ += tokens;
  }
  for (const std::uint32_t slot : slots_[rank]) at = get(blob, at, std::span{&losses_[slot], 1});
  get(blob, at, std::span{norm_nodes_[rank]});
}

VoteMessage VoteExchange::of_rank(std::uint32_t rank) const {
  VoteHeader header{};
  get(votes_[rank], 0, std::span{&header, 1});
  return {.vote = {{header.number, {{header.lineage[0], header.lineage[1]}}}, header.step, header.finite != 0},
          .leaves = header.leaves != 0,
          .stops = header.stops != 0,
          .saves = header.saves != 0,
          .audit_hash = header.audit_hash,
          .audit_probability = header.audit_probability,
          .update = header.update,
          .parameters = header.parameters,
          .own = std::clamp<Duration>(Duration{header.own}, Duration{0}, TimesSpent::own_max)};
}

float VoteExchange::sum_of_losses() const { return fold_leaves(std::span<const float>{losses_}, FoldFunctor{}); }

}  // namespace elrun::inline v0
