#include <elrun/process_group.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/failure.hpp"
#include "lib/comm/call_queue.hpp"
#include "lib/comm/device_collectives.hpp"
#include "lib/comm/environment.hpp"
#include "lib/comm/host_collectives.hpp"
#include "lib/comm/split.hpp"

namespace elrun::inline v0 {
namespace {

/// The session of a group that was split off: it has some of the session's ranks, under numbers of its own.
class PartOfSession final : public Session {
 public:
  /// `members`: by rank in the part, the rank in the session's world.
  PartOfSession(Session& whole, const Membership& membership, std::vector<Rank> members)
      : whole_{whole}, place_{whole.place()}, members_{std::move(members)} {
    place_.membership = membership;
  }
  [[nodiscard]] const Place& place() const override { return place_; }
  [[nodiscard]] Store& store() override { return whole_.store(); }
  void on_generation_over(OnOver call) override { whole_.on_generation_over(std::move(call)); }
  void progress(const StepProgress& progress) override { whole_.progress(progress); }
  Result<void> finished(Deadline deadline) override { return whole_.finished(deadline); }
  void cannot_go_on(const Failure& why) override {
    Failure told = why;
    if (told.peer) told.peer = members_[told.peer->value()];
    whole_.cannot_go_on(told);
  }
  [[nodiscard]] const std::vector<Rank>& members() const { return members_; }

 private:
  Session& whole_;
  Place place_;
  const std::vector<Rank> members_;
};

}  // namespace

/// Adds to Collectives: deadlines and labels that last for many calls, asynchronous calls in order, and groups that are split off.
class ProcessGroup::Impl {
 public:
  /// `transport`: the environment was asked. `part`: of a group that is split off.
  static Result<std::unique_ptr<Impl>> join(Session& session, const GroupOptions& options, std::unique_ptr<PartOfSession> part) {
    Session& members = part ? static_cast<Session&>(*part) : session;
    ELRUN_TRY_ASSIGN(std::shared_ptr<Collectives> host,
                     join_host_collectives(members, {.transport = options.transport, .name = options.name, .connect = options.connect}));
    std::unique_ptr<DeviceCollectives> device;
    if (options.device.kind != DeviceKind::host) {
      const auto lost_peer = [weak = std::weak_ptr{host}]() -> std::optional<Rank> {
        const auto alive = weak.lock();
        return alive ? alive->lost_peer() : std::nullopt;
      };
      const auto failed = [weak = std::weak_ptr{host}](const Failure& why) {
        if (const auto alive = weak.lock()) alive->revoke(why);
      };
      ELRUN_TRY_ASSIGN(device, join_device_collectives(members, {.device = options.device,
                                                                 .name = options.name,
                                                                 .connect = options.connect,
                                                                 .connect_pairs = options.connect_pairs,
                                                                 .lost_peer = lost_peer,
                                                                 .failed = failed}));
    }
    return std::make_unique<Impl>(session, options, std::move(part), std::move(host), std::move(device));
  }

  Impl(Session& session, const GroupOptions& options, std::unique_ptr<PartOfSession> part, std::shared_ptr<Collectives> collectives,
       std::unique_ptr<DeviceCollectives> device)
      : session_{session},
        options_{options},
        part_{std::move(part)},
        collectives_{std::move(collectives)},
        device_{std::move(device)},
        calls_{std::make_unique<CallQueue>([this](const Failure& why) { end(why); })} {}

  ~Impl() {
    if (!calls_->started()) return;
    if (::getpid() != owner_) {  // a forked child: the thread is the parent's
      (void)calls_.release();
      return;
    }
    collectives_->revoke(
        {.code = Code::generation_over, .remedy = Remedy::abort_group, .what = "the group was given up while calls were under way"});
  }

  CallQueue& calls() { return *calls_; }
  Collectives& collectives() { return *collectives_; }
  /// A call on device memory.
  template <class Call>
  Work on_device(Stream stream, const Call& call) {
    if (device_) return call(*device_, DeviceCall{stream, collective_.load(std::memory_order_relaxed)});
    const WorkPromise refused;
    refused.end(invalid("a call on device memory in a group of host memory: join it with GroupOptions::device"));
    return refused.work();
  }
  void revoke(const Failure& why) {
    if (::getpid() != owner_) return;
    collectives_->revoke(why);
    if (device_) device_->revoke(why);
  }
  /// Of this group alone: the generation lives on.
  void end(const Failure& why) {
    collectives_->end(why);
    if (device_) device_->revoke(why);
  }
  Result<void> finish(const CallOptions& call) {
    // The barrier comes last: nobody leaves while a peer's communicator is still closing, which would be given up over that.
    if (device_) ELRUN_TRY(device_->close(call.limit));
    ELRUN_TRY(barrier(call));
    end({.code = Code::refused, .remedy = Remedy::abort_group, .what = "the group was finished"});
    return {};
  }
  /// Of a call that begins now. By the thread that makes the calls.
  [[nodiscard]] CallOptions call() const { return {.limit = collective_.load(std::memory_order_relaxed), .label = label_}; }
  void set_label(const CallLabel& label) { label_ = label; }
  void set_deadline(Duration collective) { collective_.store(collective, std::memory_order_relaxed); }

  Result<void> barrier(CallOptions call) {
    call.label.kind = CallKind::barrier;
    const std::byte here{1};
    std::vector<std::byte> there(collectives_->membership().world.value());
    return collectives_->all_gather(std::span{&here, 1}, there, call);
  }

  Result<std::optional<ProcessGroup>> split(std::optional<std::uint32_t> color, std::int32_t key, CallOptions call) {
    call.label.kind = CallKind::split;
    const Membership& membership = collectives_->membership();
    const SplitRequest mine{color ? 1u : 0u, color.value_or(0), key};
    std::vector<SplitRequest> requests(membership.world.value());
    ELRUN_TRY(collectives_->all_gather(std::as_bytes(std::span{&mine, 1}), std::as_writable_bytes(std::span{requests}), call));
    const std::uint64_t number = splits_++;  // all ranks count alike
    std::vector<Rank> members = members_of_split(requests, membership.rank);
    if (members.empty()) return std::optional<ProcessGroup>{};
    GroupOptions options = options_;
    options.collective = collective_.load(std::memory_order_relaxed);
    options.name = fmt::format("{}{}split {} color {}", options_.name, options_.name.empty() ? "" : ", ", number, *color);
    const Membership in_part{membership.generation,
                             Rank{static_cast<std::uint32_t>(std::ranges::find(members, membership.rank) - members.begin())},
                             WorldSize{static_cast<std::uint32_t>(members.size())}};
    if (part_)  // this group was split off itself
      for (Rank& member : members) member = part_->members()[member.value()];
    auto part = std::make_unique<PartOfSession>(session_, in_part, std::move(members));
    ELRUN_TRY_ASSIGN(auto joined, join(session_, options, std::move(part)));
    return std::optional{ProcessGroup{std::move(joined)}};
  }

 private:
  Session& session_;
  GroupOptions options_;
  std::atomic<Duration> collective_{options_.collective};  // of calls that begin now
  CallLabel label_;                                        // likewise
  std::unique_ptr<PartOfSession> part_;                    // of a group that was split off
  std::shared_ptr<Collectives> collectives_;
  std::unique_ptr<DeviceCollectives> device_;  // none: the group serves host memory alone
  std::uint64_t splits_ = 0;
  const int owner_ = ::getpid();
  std::unique_ptr<CallQueue> calls_;  // the last member: its thread ends before what its calls use
};

Result<ProcessGroup> ProcessGroup::join(Session& session, const GroupOptions& options) {
  GroupOptions chosen = options;
  ELRUN_TRY_ASSIGN(chosen.transport, transport_of_process(options.transport));
  ELRUN_TRY_ASSIGN(auto joined, Impl::join(session, chosen, nullptr));
  return ProcessGroup{std::move(joined)};
}

ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) : impl_{std::move(impl)} {}
ProcessGroup::ProcessGroup(ProcessGroup&&) noexcept = default;
ProcessGroup& ProcessGroup::operator=(ProcessGroup&&) noexcept = default;
ProcessGroup::~ProcessGroup() = default;

namespace {

Failure was_moved() { return {.code = Code::refused, .remedy = Remedy::abort_group, .what = "the group was moved from"}; }
Work refused_work() {
  const WorkPromise refused;
  refused.end(was_moved());
  return refused.work();
}

}  // namespace

const Membership& ProcessGroup::membership() const {
  ELRUN_ASSERT(impl_ != nullptr);
  return impl_->collectives().membership();
}
void ProcessGroup::revoke(const Failure& why) {
  if (impl_) impl_->revoke(why);
}
DeviceCalls ProcessGroup::on(Stream stream) { return {*this, stream}; }
void ProcessGroup::set_label(std::uint16_t label, const char* (*name)(std::uint16_t)) {
  if (impl_) impl_->set_label({label, name});
}
void ProcessGroup::set_deadline(Duration collective) {
  if (impl_) impl_->set_deadline(collective);
}

Result<void> ProcessGroup::finish() {
  if (!impl_) return was_moved();
  return impl_->calls().in_turn([&, call = impl_->call()] { return impl_->finish(call); });
}

Result<void> ProcessGroup::share(const SharedBuffer& buffer) {
  if (!impl_) return was_moved();
  return impl_->calls().in_turn([&] { return impl_->collectives().share(buffer); });
}

Result<std::optional<ProcessGroup>> ProcessGroup::split(std::optional<std::uint32_t> color, std::int32_t key) {
  if (!impl_) return was_moved();
  std::optional<Result<std::optional<ProcessGroup>>> part;
  ELRUN_TRY(impl_->calls().in_turn([&, call = impl_->call()] {
    part.emplace(impl_->split(color, key, call));
    return Result<void>{};
  }));
  return std::move(*part);
}

// Each call in its two forms: made in turn, and begun. `impl` stays where it is when the group is moved. `call`: the deadline and the
// label are those that stood when it was begun.
#define ELRUN_GROUP_CALL(name, parameters, ...)                                                                             \
  Result<void> ProcessGroup::name parameters {                                                                              \
    if (!impl_) return was_moved();                                                                                         \
    return impl_->calls().in_turn([=, impl = impl_.get(), call = impl_->call()]() -> Result<void> { return __VA_ARGS__; }); \
  }                                                                                                                         \
  Work ProcessGroup::name##_async parameters {                                                                              \
    if (!impl_) return refused_work();                                                                                      \
    return impl_->calls().begin([=, impl = impl_.get(), call = impl_->call()]() -> Result<void> { return __VA_ARGS__; });   \
  }
ELRUN_GROUP_CALL(all_gather, (std::span<const std::byte> in, std::span<std::byte> out), impl->collectives().all_gather(in, out, call))
ELRUN_GROUP_CALL(broadcast, (std::span<std::byte> data, Rank root), impl->collectives().broadcast(data, root, call))
ELRUN_GROUP_CALL(all_to_all, (std::span<const std::byte> in, std::span<std::byte> out), impl->collectives().all_to_all(in, out, call))
ELRUN_GROUP_CALL(send, (std::span<const std::byte> data, Rank to), impl->collectives().send_receive(data, {}, to, call))
ELRUN_GROUP_CALL(receive, (std::span<std::byte> data, Rank from), impl->collectives().send_receive({}, data, from, call))
ELRUN_GROUP_CALL(barrier, (), impl->barrier(call))
ELRUN_GROUP_CALL(exchange, (std::span<const SendList> sends, std::span<const ReceiveList> receives),
                 impl->collectives().exchange(sends, receives, call))
ELRUN_GROUP_CALL(all_reduce, (void* data, std::size_t count, DType type, ReduceOp op),
                 impl->collectives().all_reduce(static_cast<std::byte*>(data), count, type, op, call))
ELRUN_GROUP_CALL(reduce_scatter, (const void* in, std::size_t in_count, void* out, std::size_t out_count, DType type, ReduceOp op),
                 impl->collectives().reduce_scatter(static_cast<const std::byte*>(in), in_count, static_cast<std::byte*>(out), out_count,
                                                    type, op, call))
#undef ELRUN_GROUP_CALL

#define ELRUN_DEVICE_CALL(name, parameters, ...)                                                                              \
  Work DeviceCalls::name parameters const {                                                                                   \
    if (!group_->impl_) return refused_work();                                                                                \
    return group_->impl_->on_device(stream_, [&](DeviceCollectives& device, const DeviceCall& call) { return __VA_ARGS__; }); \
  }
ELRUN_DEVICE_CALL(all_gather, (DeviceSpan<const std::byte> in, DeviceSpan<std::byte> out), device.all_gather(in, out, call))
ELRUN_DEVICE_CALL(broadcast, (DeviceSpan<std::byte> data, Rank root), device.broadcast(data, root, call))
ELRUN_DEVICE_CALL(all_to_all, (DeviceSpan<const std::byte> in, DeviceSpan<std::byte> out), device.all_to_all(in, out, call))
ELRUN_DEVICE_CALL(send, (DeviceSpan<const std::byte> data, Rank to), device.send_receive(data, {}, to, call))
ELRUN_DEVICE_CALL(receive, (DeviceSpan<std::byte> data, Rank from), device.send_receive({}, data, from, call))
ELRUN_DEVICE_CALL(exchange, (std::span<const DeviceSendList> sends, std::span<const DeviceReceiveList> receives),
                  device.exchange(sends, receives, call))
ELRUN_DEVICE_CALL(all_reduce, (void* data, std::uint64_t count, DType type, ReduceOp op),
                  device.all_reduce(static_cast<std::byte*>(data), count, type, op, call))
ELRUN_DEVICE_CALL(reduce_scatter, (const void* in, std::uint64_t in_count, void* out, std::uint64_t out_count, DType type, ReduceOp op),
                  device.reduce_scatter(static_cast<const std::byte*>(in), in_count, static_cast<std::byte*>(out), out_count, type, op,
                                        call))
#undef ELRUN_DEVICE_CALL

}  // namespace elrun::inline v0
