#include "lib/comm/host_collectives.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/clock.hpp"
#include "lib/base/failure.hpp"
#include "lib/comm/cursor.hpp"
#include "lib/comm/fold.hpp"
#include "lib/comm/overlap.hpp"
#include "lib/comm/schedule.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Bytes scratch_max = 16_MiB;                 // for the blocks of all peers together, in a reduction
constexpr Bytes block_max = 512_KiB;                  // of one peer: large enough to fill a link, small enough to overlap rounds
constexpr Bytes block_least = 256_KiB;                // below, a round's own cost counts
constexpr std::uint64_t rounds_wanted = 4;            // so that blocks travel while others are folded, also in small calls
constexpr std::uint64_t gather_whole_max = 16384;     // bytes of all ranks: below it one round is worth more than fewer bytes
constexpr std::uint64_t scatter_first_min = 1 << 20;  // bytes from which a broadcast is cut among the ranks

/// A worker may only end by such a failure, and nobody else could tell which two hosts do not reach each other.
void tell_unreachable(Session& session, const Failure& why) {
  if (why.code == Code::unreachable && why.peer) session.cannot_go_on(why);
}

/// A call that is a part of another one stays of that one's kind.
CallOptions as(CallKind kind, CallOptions call) {
  if (call.label.kind == CallKind{}) call.label.kind = kind;
  return call;
}

CallLimit begins_now(const CallOptions& call) { return CallLimit::from(SteadyClock{}.now(), call.limit); }

}  // namespace

Result<std::unique_ptr<Collectives>> join_host_collectives(Session& session, const GroupToJoin& group) {
  const SteadyClock clock;
  const Deadline deadline = Deadline::after(clock.now(), group.whole.value_or(group.connect));
  auto mesh = Mesh::join(session, group);
  if (!mesh.ok()) return tell_unreachable(session, mesh.failure()), std::move(mesh).failure();
  auto joined = std::make_unique<HostCollectives>(session, std::move(*mesh));
  ELRUN_TRY(joined->agree(std::min(group.connect, deadline.left(clock.now()))));
  return std::unique_ptr<Collectives>{std::move(joined)};
}

HostCollectives::HostCollectives(Session& session, std::unique_ptr<Mesh> mesh)
    : session_{session},
      membership_{session.place().membership},
      mesh_{std::move(mesh)},
      sends_(membership_.world.value()),
      receives_(membership_.world.value()) {}

/// Where one pair could not share memory, only its two ranks know. Two ranks alone always know the same.
Result<void> HostCollectives::agree(Duration limit) {
  all_local_ = mesh_->all_local();
  if (world() < 3 || !mesh_->all_may_share_memory()) return {};
  const std::byte mine{all_local_};
  std::vector<std::byte> all(world());
  ELRUN_TRY(gather(std::span{&mine, 1}, all, {.limit = limit}));
  all_local_ = std::ranges::all_of(all, [](std::byte each) { return each == std::byte{true}; });
  return {};
}

Result<void> HostCollectives::told(Result<void> result) {
  if (!result.ok()) tell_unreachable(session_, result.failure());
  return result;
}

void HostCollectives::clear() {
  for (SendList& list : sends_) list.clear();
  for (ReceiveList& list : receives_) list.clear();
}

Result<void> HostCollectives::transfer(const CallLimit& limit, const CallOptions& call, std::optional<Rank> peer,
                                       const std::function<void()>& meanwhile) {
  return told(mesh_->transfer(sends_, receives_, peer, limit, call.label, meanwhile));
}

Result<void> HostCollectives::exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, const CallOptions& call) {
  if (sends.size() != world() || receives.size() != world()) {
    return invalid(fmt::format("an exchange needs one list per rank: {} to send and {} to receive in a world of {}", sends.size(),
                               receives.size(), world()));
  }
  const std::uint64_t given = Cursor<std::span<const std::byte>>{sends[me()]}.left(),
                      taken = Cursor<std::span<std::byte>>{receives[me()]}.left();
  if (given != taken) return invalid(fmt::format("this rank sends itself {} bytes and receives {} of them", given, taken));
  return told(mesh_->transfer(sends, receives, {}, begins_now(call), call.label));
}

Result<void> HostCollectives::all_gather(std::span<const std::byte> in, std::span<std::byte> out, const CallOptions& call) {
  if (out.size() != in.size() * world()) {
    return invalid(fmt::format("all_gather of {} bytes from {} ranks into {} bytes", in.size(), world(), out.size()));
  }
  ELRUN_TRY(check_apart("all_gather", {in.data(), in.size()}, {out.data(), out.size()}, in.data() == out.data() + me() * in.size()));
  return gather(in, out, as(CallKind::all_gather, call));
}

Result<void> HostCollectives::gather(std::span<const std::byte> in, std::span<std::byte> out, const CallOptions& call) {
  clear();
  for (std::uint32_t r = 0; r < world(); ++r) {
    sends_[r].push_back(in);
    receives_[r].push_back(out.subspan(r * in.size(), in.size()));
  }
  return transfer(begins_now(call), call);
}

Result<void> HostCollectives::all_to_all(std::span<const std::byte> in, std::span<std::byte> out, const CallOptions& call) {
  if (in.size() != out.size() || in.size() % world() != 0) {
    return invalid(
        fmt::format("all_to_all of {} bytes into {} bytes among {} ranks: both are equal, in equal parts", in.size(), out.size(), world()));
  }
  ELRUN_TRY(check_apart("all_to_all", {in.data(), in.size()}, {out.data(), out.size()}));
  const std::size_t part = in.size() / world();
  clear();
  for (std::uint32_t r = 0; r < world(); ++r) {
    sends_[r].push_back(in.subspan(r * part, part));
    receives_[r].push_back(out.subspan(r * part, part));
  }
  return transfer(begins_now(call), as(CallKind::all_to_all, call));
}

/// A small broadcast goes from the root to everybody. In a large one each rank gets a part from the root, then all ranks exchange their
/// parts; so the root sends everything once, not once per rank.
Result<void> HostCollectives::broadcast(std::span<std::byte> data, Rank root, const CallOptions& options) {
  if (root.value() >= world()) return invalid(fmt::format("broadcast from rank {} in a world of {}", root.value(), world()));
  const CallOptions call = as(CallKind::broadcast(root), options);
  const CallLimit limit = begins_now(call);
  const bool from_me = root == membership_.rank;
  clear();
  if (data.size() < scatter_first_min || world() == 2 || all_local_) {  // all ranks read shared memory at the same time
    for (std::uint32_t r = 0; r < world() && from_me; ++r)
      if (r != me()) sends_[r].push_back(data);
    if (!from_me) receives_[root.value()].push_back(data);
    return transfer(limit, call);
  }
  const auto part = [&](std::uint32_t r) {
    const Range range = part_of(Rank{r}, membership_.world, data.size());
    return data.subspan(range.begin, range.size());
  };
  for (std::uint32_t r = 0; r < world() && from_me; ++r)
    if (r != me()) sends_[r].push_back(part(r));
  if (!from_me) receives_[root.value()].push_back(part(me()));
  ELRUN_TRY(transfer(limit, call));
  clear();
  for (std::uint32_t r = 0; r < world(); ++r) {
    if (r == me()) continue;
    if (Rank{r} != root) sends_[r].push_back(part(me()));
    if (!from_me) receives_[r].push_back(part(r));
  }
  return transfer(limit, call);
}

Result<void> HostCollectives::send_receive(std::span<const std::byte> out, std::span<std::byte> in, Rank peer, const CallOptions& call) {
  if (peer.value() >= world()) return invalid(fmt::format("rank {} in a world of {}", peer.value(), world()));
  if (peer == membership_.rank) return invalid("a rank cannot send to itself, or receive from itself, in a call between two");
  clear();
  sends_[peer.value()].push_back(out);
  receives_[peer.value()].push_back(in);
  return transfer(begins_now(call), call, peer);
}

Result<void> HostCollectives::all_reduce(std::byte* data, std::size_t count, DType type, ReduceOp op, const CallOptions& options) {
  ELRUN_TRY(check_reduction(type, op));
  const CallOptions call = as(CallKind::all_reduce(type, op), options);
  if (count * size_of(type) * world() <= gather_whole_max) return reduce_small(data, count, type, op, call);
  return reduce(data, data, count, type, op, true, call);
}

Result<void> HostCollectives::reduce_scatter(const std::byte* in, std::size_t in_count, std::byte* out, std::size_t out_count, DType type,
                                             ReduceOp op, const CallOptions& call) {
  ELRUN_TRY(check_reduction(type, op));
  if (in_count != out_count * world()) {
    return invalid(fmt::format("reduce_scatter of {} elements to {} per rank in a world of {}", in_count, out_count, world()));
  }
  const std::size_t size = out_count * size_of(type);
  ELRUN_TRY(check_apart("reduce_scatter", {in, size * world()}, {out, size}, out == in + me() * size));
  return reduce(in, out, in_count, type, op, false, as(CallKind::reduce_scatter(type, op), call));
}

Result<void> HostCollectives::reduce_small(std::byte* data, std::size_t count, DType type, ReduceOp op, const CallOptions& call) {
  const std::size_t size = count * size_of(type);
  scratch_.resize(size * world());
  ELRUN_TRY(all_gather({data, size}, scratch_, call));
  std::vector<const std::byte*> inputs;
  for (std::uint32_t r = 0; r < world(); ++r) inputs.push_back(scratch_.data() + r * size);
  fold_ranks(inputs, data, count, type, op);
  return {};
}

/// By the rounds of ReduceSchedule. `gather`: `out` is `in`, and the folded blocks go to everybody. Otherwise `out` gets
/// this rank's part alone. While the blocks of a round travel, and the results of the round before the last, those of the
/// last round are folded: no rank writes in `out` where another has still to read, as only who folds a block reads it.
Result<void> HostCollectives::reduce(const std::byte* in, std::byte* out, std::size_t count, DType type, ReduceOp op, bool gather,
                                     const CallOptions& call) {
  if (all_local_) return mesh_->reduce(in, out, count, type, op, gather, call.limit, call.label);
  const CallLimit limit = begins_now(call);
  const std::size_t width = size_of(type);
  const std::uint64_t part = count * width / world();
  const std::uint64_t most = std::min(block_max.value(), scratch_max.value() / (2 * world())),
                      few = std::max(part / rounds_wanted, block_least.value());
  const std::uint64_t block = std::max<std::uint64_t>(1, std::min(most, few) / width);
  const ReduceSchedule schedule{membership_.world, count, block};
  const std::uint64_t rounds = schedule.rounds();
  scratch_.resize(2 * block * width * world());
  const Range mine = part_of(membership_.rank, membership_.world, count);
  std::vector<const std::byte*> inputs(world());
  const auto room = [&](std::uint64_t round, std::uint32_t of) { return scratch_.data() + ((round % 2) * world() + of) * block * width; };
  const auto fold = [&](std::uint64_t round) {
    const Range range = schedule.folded(membership_.rank, round);
    if (range.size() == 0) return;
    for (std::uint32_t r = 0; r < world(); ++r) inputs[r] = r == me() ? in + range.begin * width : room(round, r);
    fold_ranks(inputs, out + (gather ? range.begin : range.begin - mine.begin) * width, range.size(), type, op);
  };
  for (std::uint64_t round = 0; round < rounds + (gather ? 2 : 1); ++round) {
    const bool brings = round < rounds, returns = gather && round > 1;
    const auto fold_last = [&] {
      if (round > 0) fold(round - 1);
    };
    if (!brings && !returns) {
      fold_last();
      continue;
    }
    clear();
    for (std::uint32_t r = 0; r < world(); ++r) {
      if (r == me()) continue;
      const auto give = [&](const std::byte* from, Range range) {
        sends_[r].push_back({from + range.begin * width, range.size() * width});
      };
      if (brings) {
        give(in, schedule.folded(Rank{r}, round));
        receives_[r].push_back({room(round, r), schedule.folded(membership_.rank, round).size() * width});
      }
      if (returns) {
        give(out, schedule.folded(membership_.rank, round - 2));
        const Range given = schedule.folded(Rank{r}, round - 2);
        receives_[r].push_back({out + given.begin * width, given.size() * width});
      }
    }
    ELRUN_TRY(transfer(limit, call, {}, std::ref(fold_last)));
  }
  return {};
}

}  // namespace elrun::inline v0
