/// The idea: the Connector makes one connection to each peer and chooses a transport for it. A call is split by transport. Frames go on on the
/// communication thread, while what goes through shared memory runs on the caller's own thread. A call is over when both parts
/// are, or when the group fails: then all sockets are closed first, so that nothing touches the caller's memory any more.
///
/// A peer with which bytes go through memory keeps its connection: the connection's end tells of the peer's end.

#include "lib/comm/mesh.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <thread>

#include <fmt/format.h>

#include <boost/asio/error.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/system_error.hpp>

#include "lib/base/assert.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/comm/call_monitor.hpp"
#include "lib/comm/connect/connector.hpp"
#include "lib/comm/connect/loss_policy.hpp"
#include "lib/comm/copy.hpp"
#include "lib/comm/owner.hpp"
#include "lib/comm/shm/lanes.hpp"
#include "lib/comm/shm/local_peers.hpp"
#include "lib/comm/tcp/frame_transport.hpp"
#include "lib/link/roll_call.hpp"

namespace elrun::inline v0 {
namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

namespace {

/// What the communication thread is in. `over` is final.
enum class Stage : std::uint8_t { connecting, idle, calling, over };

// The system says ENOSPC of watches, too, which reads like a full disk.
Failure lacking(std::string_view what, const boost::system::system_error& error) {
  return {.code = Code::exhausted,
          .remedy = Remedy::fix_config,
          .what = fmt::format("{}: {} (a limit of this process or its user: descriptors, fs.epoll.max_user_watches, memory)", what,
                              error.code().value() == ENOSPC ? "no watch for a descriptor is left" : error.code().message())};
}

ConnectionEnd end_by(const ErrorCode& error) {
  if (error == asio::error::eof) return ConnectionEnd::closed;
  const bool silent =
      error == asio::error::timed_out || error == asio::error::host_unreachable || error == asio::error::network_unreachable;
  return silent ? ConnectionEnd::silent : ConnectionEnd::broken;
}

}  // namespace

/// Conducts: the connector, the transports, the loss policy, the timers, and the thread on which all but shared memory runs. Its 17 fields are
/// these and what they were made with.
class Mesh::State : public std::enable_shared_from_this<State> {
 public:
  State(const Place& place, const GroupToJoin& group)
      : me_{place.membership},
        name_{group.name},
        timer_{loop_},
        loss_timer_{loop_},
        wire_timer_{loop_},
        states_{me_.rank, me_.world},
        loss_{me_.world},
        frames_{me_, [this] { end_call(); },
                FrameEvents{.ended = [this](Rank peer, const ErrorCode& error) { lose(peer, error); },
                            .missed = [this](Rank peer) { miss(peer); },
                            .differed = [this](Rank peer, std::uint16_t theirs, std::uint16_t mine) { differ(peer, theirs, mine); },
                            .failed = [this](Failure failure) { fail(std::move(failure)); }}},
        connector_{loop_,
                   {.me = me_,
                    .key = name_.empty() ? place.key : hmac_sha256(place.key, as_bytes("group " + name_)),
                    .name = name_,
                    .transport = group.transport,
                    .connect = group.connect,
                    .deadline = Deadline::after(SteadyClock{}.now(), group.whole.value_or(group.connect))},
                   states_,
                   {.connected = [this](ConnectedPeer peer) { take(std::move(peer)); },
                    .complete = [this] { become_ready(); },
                    .failed = [this](Failure failure) { fail(std::move(failure)); }}},
        local_{me_} {}

  // --- on the caller's thread ---

  Result<void> connect(Session& session) {
    if (me_.world == WorldSize{1}) return {};  // nobody to connect to: no socket, no thread
    try_to_watch();
    ELRUN_TRY_ASSIGN(auto lanes, connector_.publish(session));
    local_.set_lanes(std::move(lanes));
    asio::post(loop_, [this] {
      if (stage_ != Stage::over) connector_.begin(local_.lanes());
    });
    auto thread = try_quiet_thread("make a process group", [self = shared_from_this()] { self->run_loop(); });
    if (!thread.ok()) return located(std::move(thread).failure());
    thread_ = std::move(*thread);
    return monitor_.wait_until_connected();
  }

  /// Asio does not tell where the loop itself got no watches. Then no timer would end a wait for peers. One more watch shows it: this throws.
  void try_to_watch() {
    const Fd any{::eventfd(0, EFD_CLOEXEC)};
    if (!any) throw boost::system::system_error{errno, boost::system::system_category()};
    asio::posix::stream_descriptor{loop_, any.get()}.release();
  }

  void stop() {
    if (!thread_.joinable()) return;
    loop_.stop();
    thread_.join();
  }

  Result<void> transfer(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom,
                        const CallLimit& limit, const CallLabel& label, const std::function<void()>& meanwhile) {
    const LocalPeers::Ways by = local_.ways_to(whom);
    const std::size_t me = me_.rank.value();
    if (!by.memory) copy_lists(sends[me], receives[me]);
    ELRUN_TRY(monitor_.begin(by.frames));
    if (by.frames) asio::post(loop_, [this, sends, receives, whom, limit, label] { begin_frames(sends, receives, whom, limit, label); });
    if (meanwhile) meanwhile();
    if (!thread_.joinable()) return {};  // a world of one moves nothing
    if (!by.memory) return monitor_.wait_for_end(true);
    return end_of_call(local_.lanes()->transfer(sends, receives, whom, limit, label));
  }

  Result<void> reduce(const std::byte* in, std::byte* out, std::size_t count, DType type, ReduceOp op, bool gather, Duration limit,
                      const CallLabel& label) {
    ELRUN_TRY(monitor_.begin(false));
    return end_of_call(local_.lanes()->reduce(in, out, count, type, op, gather, limit, label));
  }

  /// The texts of two labels that differ are the program's code, which runs on the caller's thread alone.
  Result<void> named(Result<void> result, const CallLabel& label) const {
    if (result.ok() || result.failure().code != Code::mismatch || !differing_) return result;
    return located(differing_labels(differing_->peer, differing_->theirs, {differing_->mine, label.name}));
  }

  [[nodiscard]] bool all_local() const { return local_.are_all(); }
  [[nodiscard]] bool all_may_share_memory() const { return connector_.all_may_share_memory(); }

  Result<void> share(const SharedBuffer& buffer) {
    ELRUN_TRY(monitor_.begin(false));
    if (local_.lanes() == nullptr) return {};
    const auto shared = local_.lanes()->share(buffer);
    return shared.ok() ? shared : Result<void>{located(shared.failure())};
  }

  [[nodiscard]] std::optional<Rank> lost_peer() const {
    const std::int64_t rank = first_lost_.load(std::memory_order_relaxed);
    return rank < 0 ? std::nullopt : std::optional{Rank{static_cast<std::uint32_t>(rank)}};
  }

  /// From any thread.
  void revoke(const Failure& why) {
    Failure failure = why;
    failure.code = Code::generation_over;
    failure.what = fmt::format("the generation is over: {}", why.what);
    end(failure);
  }
  void end(const Failure& why) {
    (void)monitor_.fail(located(why));
    local_.end();
    asio::post(loop_, [this] { close_all(); });  // the loop lives in this object: a posted task that owns it would keep both for ever
  }

 private:
  /// The communication thread judges what the lanes could not do.
  Result<void> end_of_call(const Result<void>& through_memory) {
    if (!through_memory.ok() && through_memory.failure().code != Code::generation_over) {  // that one said so first
      asio::post(loop_, [this, failure = through_memory.failure()] {
        if (stage_ == Stage::over) return;
        if (failure.code == Code::peer_lost) miss(*failure.peer, failure);
        else fail(failure);
      });
    }
    return monitor_.wait_for_end(through_memory.ok());
  }

  Failure located(Failure failure) const { return elrun::located(std::move(failure), me_, name_); }

  // --- the communication thread, on which all that follows runs ---

  /// What a handler throws (no memory, or no watch for a descriptor) ends the group, and not the process. The loop goes on: a caller may wait for what it
  /// has posted meanwhile.
  void run_loop() {
    for (;;) {
      try {
        loop_.run();
        return;
      } catch (const std::exception& error) {
        give_up(error);
      }
    }
  }

  void give_up(const std::exception& error) {
    const auto* const by_system = dynamic_cast<const boost::system::system_error*>(&error);
    Failure why{.code = Code::exhausted, .remedy = Remedy::exit_process};
    try {
      if (by_system != nullptr) why = lacking("run the group's communication thread", *by_system);
      else why.what = fmt::format("the group's communication thread failed: {}", error.what());
      why = located(std::move(why));
    } catch (const std::exception&) {  // not even the words can be had
    }
    (void)monitor_.fail(std::move(why));
    close_all();
  }

  // --- connecting ---

  void take(ConnectedPeer peer) {
    if (peer.transport == Transport::shm) local_.add(peer.rank);
    frames_.add(peer.rank, std::move(peer.socket), peer.transport == Transport::tcp, peer.checked);
  }

  void become_ready() {
    stage_ = Stage::idle;
    watch_the_wires();
    monitor_.set_connected();
  }

  /// TCP itself tries again for a quarter of an hour.
  void watch_the_wires() {
    if (!frames_.carries()) return;
    wire_timer_.expires_after(wire_look);
    wire_timer_.async_wait([this](const ErrorCode& error) {
      if (error || stage_ == Stage::over) return;
      frames_.look([this](FrameConnection& each) { return loss_.looked(each.peer(), stage_ == Stage::calling && each.is_unanswered()); });
      watch_the_wires();
    });
  }

  // --- calls through frames ---

  void begin_frames(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom,
                    const CallLimit& limit, const CallLabel& label) {
    if (stage_ == Stage::over) return monitor_.end(false);
    stage_ = Stage::calling;
    timer_.expires_after(limit.at.left(SteadyClock{}.now()));
    timer_.async_wait([this, whole = limit.whole](const ErrorCode& error) {
      // A timer that had expired when it was set anew still calls: its time is over only if no later one stands.
      if (!error && stage_ == Stage::calling && timer_.expiry() <= asio::steady_timer::clock_type::now()) fail(late(whole));
    });
    frames_.begin(sends, receives, whom, label);
  }

  void end_call() {
    stage_ = Stage::idle;
    timer_.cancel();
    monitor_.end(true);
  }

  Failure late(Duration limit) const {
    const std::vector<Rank> missing = frames_.busy();
    return {.code = Code::deadline_passed,
            .remedy = Remedy::abort_group,
            .what = fmt::format("a collective call was not over within {} ms; missing: {}", limit / 1ms, list_ranks(missing)),
            .peer = missing.empty() ? std::nullopt : std::optional{missing.front()}};
  }

  // --- the end ---

  /// A peer that has delivered what it owes may leave: only a rank that still needs it fails.
  void lose(Rank peer, const ErrorCode& error) {
    if (states_.of(peer) != PeerState::lost) states_.enter(peer, PeerState::lost);
    loss_.ended(peer, end_by(error), error.message());
    if (std::int64_t nobody = -1; stage_ != Stage::over) (void)first_lost_.compare_exchange_strong(nobody, peer.value());
    local_.lose(peer);
    if (stage_ == Stage::calling && frames_.is_busy_with(peer)) miss(peer);
  }

  /// The call cannot be completed any more. Its sides with this peer stay open until the group fails.
  void miss(Rank peer, const Failure& otherwise = {}) {
    if (!loss_.missed(peer, otherwise)) return;
    loss_timer_.expires_after(loss_grace);
    loss_timer_.async_wait([this](const ErrorCode& error) {
      if (!error && stage_ != Stage::over) fail(loss_.blame());
    });
  }

  void differ(Rank peer, std::uint16_t theirs, std::uint16_t mine) {
    differing_ = {peer, theirs, mine};
    fail(differing_labels(peer, theirs, {mine}));
  }

  void fail(Failure failure) {
    (void)monitor_.fail(located(std::move(failure)));
    close_all();
  }

  /// Afterwards nothing of this object touches a caller's memory; then whoever waits may go.
  void close_all() {
    const bool in_call = std::exchange(stage_, Stage::over) == Stage::calling;
    // Before the peers see the connections end and take this rank for gone: they must not read what its caller writes anew.
    local_.end();
    timer_.cancel();
    loss_timer_.cancel();
    wire_timer_.cancel();
    connector_.stop();
    frames_.close();
    if (in_call) monitor_.end(false);
    monitor_.wake();
  }

  const Membership me_;
  const std::string name_;
  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{loop_.get_executor()};

  // The communication thread's own.
  asio::steady_timer timer_, loss_timer_, wire_timer_;
  Stage stage_ = Stage::connecting;
  PeerStates states_;
  LossPolicy loss_;
  FrameTransport frames_;
  Connector connector_;

  struct Differing {
    Rank peer;
    std::uint16_t theirs, mine;
  };
  std::optional<Differing> differing_;        // labels; set before the group fails with them, and read after that
  std::atomic<std::int64_t> first_lost_{-1};  // a rank
  LocalPeers local_;
  CallMonitor monitor_;
  std::thread thread_;
};

Mesh::Mesh(std::shared_ptr<State> state) : state_{std::move(state)}, owner_{::getpid()} {}

Mesh::~Mesh() {
  if (::getpid() == owner_) state_->stop();
  // A forked child: thread, loop and sockets are the parent's.
  else (void)new std::shared_ptr<State>{std::move(state_)};  // NOLINT(bugprone-unhandled-exception-at-new)
}

/// Where the system gives no descriptor, or no watch for one, Asio throws.
Result<std::unique_ptr<Mesh>> Mesh::join(Session& session, const GroupToJoin& group) try {
  // Not make_shared: the session keeps a weak pointer for as long as the generation lasts, and that would keep the memory of all this.
  const std::shared_ptr<State> state{new State{session.place(), group}};
  std::unique_ptr<Mesh> mesh{new Mesh{state}};
  // From the first moment: a generation that ends while its members connect ends their waiting too.
  session.on_generation_over([weak = std::weak_ptr<State>{state}](const Failure& why) {
    if (const auto alive = weak.lock()) alive->revoke(why);
  });
  ELRUN_TRY(state->connect(session));
  return mesh;
} catch (const boost::system::system_error& error) {
  return located(lacking("make a process group", error), session.place().membership, group.name);
}

Result<void> Mesh::transfer(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom,
                            const CallLimit& limit, const CallLabel& label, const std::function<void()>& meanwhile) {
  ELRUN_TRY(check_owner(owner_));
  return state_->named(state_->transfer(sends, receives, whom, limit, label, meanwhile), label);
}

Result<void> Mesh::share(const SharedBuffer& buffer) {
  ELRUN_TRY(check_owner(owner_));
  return state_->share(buffer);
}

bool Mesh::all_local() const { return state_->all_local(); }

bool Mesh::all_may_share_memory() const { return state_->all_may_share_memory(); }

Result<void> Mesh::reduce(const std::byte* in, std::byte* out, std::size_t count, DType type, ReduceOp op, bool gather, Duration limit,
                          const CallLabel& label) {
  ELRUN_TRY(check_owner(owner_));
  return state_->named(state_->reduce(in, out, count, type, op, gather, limit, label), label);
}

std::optional<Rank> Mesh::lost_peer() const { return state_->lost_peer(); }

/// The region and the doorbell are the parent's where this is a forked child.
void Mesh::revoke(const Failure& why) {
  if (check_owner(owner_).ok()) state_->revoke(why);
}

void Mesh::end(const Failure& why) {
  if (check_owner(owner_).ok()) state_->end(why);
}

}  // namespace elrun::inline v0
