#include <elrun/process_group.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/comm/call_queue.hpp"
#include "lib/comm/cursor.hpp"
#include "lib/comm/environment.hpp"
#include "lib/comm/fold.hpp"
#include "lib/comm/mesh.hpp"
#include "lib/comm/schedule.hpp"
#include "lib/comm/split.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Bytes scratch_max = 16_MiB;                 // for the blocks of all peers together, in a reduction
constexpr Bytes block_max = 512_KiB;                  // of one peer: large enough to fill a link, small enough to overlap rounds
constexpr Bytes block_least = 256_KiB;                // below, a round's own cost counts
constexpr std::uint64_t rounds_wanted = 4;            // so that blocks travel while others are folded, also in small calls
constexpr std::uint64_t gather_whole_max = 16384;     // bytes of all ranks: below it one round is worth more than fewer bytes
constexpr std::uint64_t scatter_first_min = 1 << 20;  // bytes from which a broadcast is cut among the ranks

/// The session of a group that has a part of its ranks, while that group joins.
class PartOfSession final : public Session {
 public:
  PartOfSession(Session& whole, const Membership& membership) : whole_{whole}, place_{whole.place()} { place_.membership = membership; }
  [[nodiscard]] const Place& place() const override { return place_; }
  [[nodiscard]] Store& store() override { return whole_.store(); }
  void on_generation_over(OnOver call) override { whole_.on_generation_over(std::move(call)); }
  void progress(StepNumber decided) override { whole_.progress(decided); }
  Result<void> finished(Deadline deadline) override { return whole_.finished(deadline); }

 private:
  Session& whole_;
  Place place_;
};

void tell_unreachable(Session& session, Failure why, const std::vector<Rank>& members) {
  if (why.code != Code::unreachable || !why.peer) return;
  if (!members.empty()) why.peer = members[why.peer->value()];
  session.cannot_go_on(why);
}

}  // namespace

class ProcessGroup::Impl {
 public:
  /// `members`: of a part, the ranks in the session's world of its own ranks.
  Impl(Session& session, const Membership& membership, const GroupOptions& options, std::unique_ptr<Mesh> mesh,
       std::vector<Rank> members = {})
      : session_{session},
        membership_{membership},
        options_{options},
        mesh_{std::move(mesh)},
        members_{std::move(members)},
        sends_(world()),
        receives_(world()),
        calls_{std::make_unique<CallQueue>()} {}

  ~Impl() {
    if (!calls_->started()) return;
    if (::getpid() != owner_) {  // a forked child: the thread is the parent's
      (void)calls_.release();
      return;
    }
    mesh_->revoke(
        {.code = Code::generation_over, .remedy = Remedy::abort_group, .what = "the group was given up while calls were under way"});
  }

  CallQueue& calls() { return *calls_; }

  [[nodiscard]] const Membership& membership() const { return membership_; }
  [[nodiscard]] std::uint32_t me() const { return membership_.rank.value(); }
  [[nodiscard]] std::uint32_t world() const { return membership_.world.value(); }
  void revoke(const Failure& why) { mesh_->revoke(why); }
  void set_label(std::uint16_t label, LabelName name) { mesh_->set_label({label, name}); }
  void set_deadline(Duration collective) { collective_.store(collective, std::memory_order_relaxed); }

  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom = {}) {
    if (sends.size() != world() || receives.size() != world()) {
      return invalid(fmt::format("an exchange needs one list per rank: {} to send and {} to receive in a world of {}", sends.size(),
                                 receives.size(), world()));
    }
    const std::uint64_t given = Cursor<std::span<const std::byte>>{sends[me()]}.left(),
                        taken = Cursor<std::span<std::byte>>{receives[me()]}.left();
    if (given != taken)
      return Failure{Code::protocol, Remedy::abort_group,
                     fmt::format("this rank sends itself {} bytes and receives {} of them", given, taken)};
    return told(mesh_->exchange(sends, receives, whom, collective_.load(std::memory_order_relaxed)));
  }

  Result<void> all_gather(std::span<const std::byte> in, std::span<std::byte> out) {
    if (out.size() != in.size() * world()) {
      return invalid(fmt::format("all_gather of {} bytes from {} ranks into {} bytes", in.size(), world(), out.size()));
    }
    clear();
    for (std::uint32_t r = 0; r < world(); ++r) {
      sends_[r].push_back(in);
      receives_[r].push_back(out.subspan(r * in.size(), in.size()));
    }
    return exchange(sends_, receives_);
  }

  Result<void> all_to_all(std::span<const std::byte> in, std::span<std::byte> out) {
    if (in.size() != out.size() || in.size() % world() != 0) {
      return invalid(fmt::format("all_to_all of {} bytes into {} bytes among {} ranks: both are equal, in equal parts", in.size(),
                                 out.size(), world()));
    }
    const std::size_t part = in.size() / world();
    clear();
    for (std::uint32_t r = 0; r < world(); ++r) {
      sends_[r].push_back(in.subspan(r * part, part));
      receives_[r].push_back(out.subspan(r * part, part));
    }
    return exchange(sends_, receives_);
  }

  /// Small: from the root to everybody. Large: each rank gets a part from the root, then all give theirs to all, so the
  /// root sends everything once instead of once per rank.
  Result<void> broadcast(std::span<std::byte> data, Rank root) {
    if (root.value() >= world()) return invalid(fmt::format("broadcast from rank {} in a world of {}", root.value(), world()));
    const bool from_me = root == membership_.rank;
    clear();
    if (data.size() < scatter_first_min || world() == 2 || mesh_->all_local()) {  // memory is read by everybody at the same time
      for (std::uint32_t r = 0; r < world() && from_me; ++r)
        if (r != me()) sends_[r].push_back(data);
      if (!from_me) receives_[root.value()].push_back(data);
      return exchange(sends_, receives_);
    }
    const auto part = [&](std::uint32_t r) {
      const Range range = part_of(Rank{r}, membership_.world, data.size());
      return data.subspan(range.begin, range.size());
    };
    for (std::uint32_t r = 0; r < world() && from_me; ++r)
      if (r != me()) sends_[r].push_back(part(r));
    if (!from_me) receives_[root.value()].push_back(part(me()));
    ELRUN_TRY(exchange(sends_, receives_));
    clear();
    for (std::uint32_t r = 0; r < world(); ++r) {
      if (r == me()) continue;
      if (Rank{r} != root) sends_[r].push_back(part(me()));
      if (!from_me) receives_[r].push_back(part(r));
    }
    return exchange(sends_, receives_);
  }

  Result<void> between(std::span<const std::byte> out, std::span<std::byte> in, Rank whom) {
    if (whom.value() >= world()) return invalid(fmt::format("rank {} in a world of {}", whom.value(), world()));
    if (whom == membership_.rank) return invalid("a rank cannot send to itself, or receive from itself, in a call between two");
    clear();
    sends_[whom.value()].push_back(out);
    receives_[whom.value()].push_back(in);
    return exchange(sends_, receives_, whom);
  }

  Result<void> share(const SharedBuffer& buffer) { return mesh_->share(buffer); }

  Result<std::optional<ProcessGroup>> split(std::optional<std::uint32_t> color, std::int32_t key) {
    const SplitWord mine{color ? 1u : 0u, color.value_or(0), key};
    std::vector<SplitWord> words(world());
    ELRUN_TRY(all_gather(std::as_bytes(std::span{&mine, 1}), std::as_writable_bytes(std::span{words})));
    const std::uint64_t number = splits_++;  // counted alike everywhere
    const std::vector<Rank> members = members_of_split(words, membership_.rank);
    if (members.empty()) return std::optional<ProcessGroup>{};
    GroupOptions options = options_;
    options.collective = collective_.load(std::memory_order_relaxed);
    options.name = fmt::format("{}{}split {} color {}", options_.name, options_.name.empty() ? "" : ", ", number, *color);
    const auto rank = static_cast<std::uint32_t>(std::ranges::find(members, membership_.rank) - members.begin());
    PartOfSession part{session_, {membership_.generation, Rank{rank}, WorldSize{static_cast<std::uint32_t>(members.size())}}};
    std::vector<Rank> whole;  // this group may be a part itself
    for (const Rank member : members) whole.push_back(members_.empty() ? member : members_[member.value()]);
    auto mesh = Mesh::join(part, options.transport, options.name, options.connect);
    if (!mesh.ok()) return tell_unreachable(session_, mesh.failure(), whole), std::move(mesh).failure();
    return std::optional{
        ProcessGroup{std::make_unique<Impl>(session_, part.place().membership, options, std::move(*mesh), std::move(whole))}};
  }

  Result<void> barrier() {
    const std::byte here{1};
    std::vector<std::byte> there(world());
    return all_gather(std::span{&here, 1}, there);
  }

  Result<void> all_reduce(std::byte* data, std::size_t count, DType type, ReduceOp op) {
    ELRUN_TRY(check_reduction(type, op));
    if (count * size_of(type) * world() <= gather_whole_max) return all_reduce_small(data, count, type, op);
    return reduce(data, data, count, type, op, true);
  }

  Result<void> reduce_scatter(const std::byte* in, std::size_t in_count, std::byte* out, std::size_t out_count, DType type, ReduceOp op) {
    ELRUN_TRY(check_reduction(type, op));
    if (in_count != out_count * world()) {
      return invalid(fmt::format("reduce_scatter of {} elements to {} per rank in a world of {}", in_count, out_count, world()));
    }
    return reduce(in, out, in_count, type, op, false);
  }

 private:
  /// A program may only end by it; who else could tell which two hosts cannot reach each other?
  Result<void> told(Result<void> result) {
    if (!result.ok()) tell_unreachable(session_, result.failure(), members_);
    return result;
  }

  void clear() {
    for (SendList& list : sends_) list.clear();
    for (ReceiveList& list : receives_) list.clear();
  }

  Result<void> all_reduce_small(std::byte* data, std::size_t count, DType type, ReduceOp op) {
    const std::size_t size = count * size_of(type);
    scratch_.resize(size * world());
    ELRUN_TRY(all_gather({data, size}, scratch_));
    std::vector<const std::byte*> inputs;
    for (std::uint32_t r = 0; r < world(); ++r) inputs.push_back(scratch_.data() + r * size);
    fold_ranks(inputs, data, count, type, op);
    return {};
  }

  /// By the rounds of ReduceSchedule. `gather`: `out` is `in`, and the folded blocks go to everybody. Otherwise `out` gets
  /// this rank's part alone. While the blocks of a round travel, and the results of the round before the last, those of the
  /// last round are folded: no rank writes in `out` where another has still to read, as only who folds a block reads it.
  Result<void> reduce(const std::byte* in, std::byte* out, std::size_t count, DType type, ReduceOp op, bool gather) {
    if (mesh_->all_local()) return mesh_->reduce(in, out, count, type, op, gather, collective_.load(std::memory_order_relaxed));
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
      ELRUN_TRY(told(mesh_->exchange(sends_, receives_, {}, collective_.load(std::memory_order_relaxed), std::ref(fold_last))));
    }
    return {};
  }

  Session& session_;
  Membership membership_;
  GroupOptions options_;
  std::atomic<Duration> collective_{options_.collective};  // of calls that begin now
  std::unique_ptr<Mesh> mesh_;
  const std::vector<Rank> members_;
  // Kept between calls, so that a call allocates nothing once the first of its size was made.
  std::vector<SendList> sends_;
  std::vector<ReceiveList> receives_;
  std::vector<std::byte> scratch_;

  std::uint64_t splits_ = 0;
  const int owner_ = ::getpid();
  std::unique_ptr<CallQueue> calls_;  // the last member: its thread ends before what its calls use
};

Result<ProcessGroup> ProcessGroup::join(Session& session, const GroupOptions& options) {
  ELRUN_TRY_ASSIGN(const Transport transport, transport_of_process(options.transport));
  auto mesh = Mesh::join(session, transport, options.name, options.connect);
  if (!mesh.ok()) return tell_unreachable(session, mesh.failure(), {}), std::move(mesh).failure();
  GroupOptions chosen = options;
  chosen.transport = transport;
  return ProcessGroup{std::make_unique<Impl>(session, session.place().membership, chosen, std::move(*mesh))};
}

ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) : impl_{std::move(impl)} {}
ProcessGroup::ProcessGroup(ProcessGroup&&) noexcept = default;
ProcessGroup& ProcessGroup::operator=(ProcessGroup&&) noexcept = default;
ProcessGroup::~ProcessGroup() = default;

const Membership& ProcessGroup::membership() const { return impl_->membership(); }
void ProcessGroup::revoke(const Failure& why) { impl_->revoke(why); }
void ProcessGroup::set_label(std::uint16_t label, const char* (*name)(std::uint16_t)) { impl_->set_label(label, name); }
void ProcessGroup::set_deadline(Duration collective) { impl_->set_deadline(collective); }

Result<void> ProcessGroup::share(const SharedBuffer& buffer) {
  return impl_->calls().in_turn([&] { return impl_->share(buffer); });
}

Result<std::optional<ProcessGroup>> ProcessGroup::split(std::optional<std::uint32_t> color, std::int32_t key) {
  std::optional<Result<std::optional<ProcessGroup>>> part;
  ELRUN_TRY(impl_->calls().in_turn([&] {
    part.emplace(impl_->split(color, key));
    return Result<void>{};
  }));
  return std::move(*part);
}

// Each call in its two forms: in turn, and begun. `impl` stays where it is when the group is moved.
#define ELRUN_GROUP_CALL(name, parameters, ...)                                                             \
  Result<void> ProcessGroup::name parameters {                                                              \
    return impl_->calls().in_turn([=, impl = impl_.get()]() -> Result<void> { return impl->__VA_ARGS__; }); \
  }                                                                                                         \
  Work ProcessGroup::name##_async parameters {                                                              \
    return impl_->calls().begin([=, impl = impl_.get()]() -> Result<void> { return impl->__VA_ARGS__; });   \
  }
ELRUN_GROUP_CALL(all_gather, (std::span<const std::byte> in, std::span<std::byte> out), all_gather(in, out))
ELRUN_GROUP_CALL(broadcast, (std::span<std::byte> data, Rank root), broadcast(data, root))
ELRUN_GROUP_CALL(all_to_all, (std::span<const std::byte> in, std::span<std::byte> out), all_to_all(in, out))
ELRUN_GROUP_CALL(send, (std::span<const std::byte> data, Rank to), between(data, {}, to))
ELRUN_GROUP_CALL(receive, (std::span<std::byte> data, Rank from), between({}, data, from))
ELRUN_GROUP_CALL(barrier, (), barrier())
ELRUN_GROUP_CALL(exchange, (std::span<const SendList> sends, std::span<const ReceiveList> receives), exchange(sends, receives))
ELRUN_GROUP_CALL(all_reduce, (void* data, std::size_t count, DType type, ReduceOp op),
                 all_reduce(static_cast<std::byte*>(data), count, type, op))
ELRUN_GROUP_CALL(reduce_scatter, (const void* in, std::size_t in_count, void* out, std::size_t out_count, DType type, ReduceOp op),
                 reduce_scatter(static_cast<const std::byte*>(in), in_count, static_cast<std::byte*>(out), out_count, type, op))
#undef ELRUN_GROUP_CALL

}  // namespace elrun::inline v0
