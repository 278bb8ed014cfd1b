#pragma once
/// \file The world as a job sees it: its membership, the exchange of bytes, and whether it is over.

#include <sys/types.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include <elrun/process_group.hpp>
#include <elrun/session.hpp>

#include "lib/base/bytes.hpp"
#include "lib/base/clock.hpp"
#include "lib/device/memory.hpp"
#include "lib/job/arrays/array_exchange.hpp"

namespace elrun::inline v0 {

/// What a job's exchange is for.
enum class Call : std::uint16_t {
  none,
  meeting,  ///< Members of a new generation meet, from restore(), next_step() or apply().
  round,    ///< Ranks serve each other, in slots and scopes, and where phases end.
  next_step,
  apply,
  evaluate,
  verify,
  end,         ///< The program has returned, and never asked for a step.
  checkpoint,  ///< Parts of an in-memory checkpoint, from next_step().
  state,       ///< State on its way to newcomers and to those who get another shard, while members compute.
};
/// "job.evaluate()"
[[nodiscard]] const char* name_of_call(std::uint16_t call);

/// The one collective that a job needs, over the members of one generation. The product's is made of Collectives (group_peers.cpp);
/// tests bring one of memory.
class Peers {
 public:
  virtual ~Peers() = default;
  /// As Collectives::exchange.
  virtual Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives) = 0;
  /// As Collectives::share.
  virtual Result<void> share(const SharedBuffer&) { return {}; }
  /// Thread-safe; never waits.
  virtual void revoke(const Failure& why) = 0;
  /// As DeviceGroupToJoin::lost_peer. It may be called when these peers are gone.
  [[nodiscard]] virtual std::function<std::optional<Rank>()> lost_peer() const { return {}; }
  /// What exchanges that begin from now on are for: ranks that differ learn it as `mismatch`, where the exchange can tell.
  virtual void set_label(Call) {}
  /// How long exchanges that begin from now on may wait for a peer. Thread-safe.
  virtual void wait_at_most(Duration) {}
};
using JoinPeers = std::function<Result<std::unique_ptr<Peers>>(Session&)>;

/// Most bytes of one rank's part of an `all_gather`: host state and votes, no tensors.
inline constexpr std::uint64_t gather_bytes_max = std::uint64_t{64} << 20;

/// How long an exchange may last at least, whatever is known of programs.
inline constexpr Duration exchange_timeout_min = 600s;

/// Where the arrays of a job lie, as far as its world has to know.
struct WorldArrays {
  Memory* memory = nullptr;      ///< None: the host's.
  const Clock* clock = nullptr;  ///< For waits, with a device's memory, and for `exchanged`; none: it stays 0.
  bool one_thread = false;       ///< As JobHost has it.
};

/// The generation of a job that runs. Used from the job's thread, and in rounds from the communication thread, one at a time; the end of the
/// generation comes in from the session's. It has a few methods more than 25 because each question about the world, each way to exchange and each
/// end of a wait is one; most are a line.
class JobWorld {
 public:
  /// What `arrays` names outlives it.
  JobWorld(Session& session, JoinPeers join, WorldArrays arrays = {});

  [[nodiscard]] const Membership& membership() const { return membership_; }
  [[nodiscard]] std::uint32_t rank() const { return membership_.rank.value(); }
  [[nodiscard]] std::uint32_t size() const { return membership_.world.value(); }
  [[nodiscard]] bool leads() const { return rank() == 0; }
  /// Of this rank; empty without elrun.
  [[nodiscard]] const std::string& node() const { return session_.place().node.value(); }
  /// Another generation can come after this one: an agent of elrun is there.
  [[nodiscard]] bool elastic() const { return session_.place().elastic; }

  /// The session is in another generation now: forgets the old one, which is over.
  void renew();

  /// Connects to the peers; does nothing when that is done, or in a world of one. Throws Error where this host lacks what it takes (`exhausted`, to be changed
  /// by its administrator).
  Result<void> join();

  /// Whether the generation is over: its session said so, or a call failed.
  [[nodiscard]] bool over() const { return end_->over.load(std::memory_order_acquire); }
  [[nodiscard]] Failure why_over() const;
  void end(const Failure& why) { end_->set(why); }
  /// The same of this generation, from any thread and as long as the process lives. True: it was not over before.
  [[nodiscard]] std::function<bool(const Failure&)> ender() const {
    return [end = end_](const Failure& why) { return end->set(why); };
  }

  /// What this rank's program is in, for all exchanges but those of rounds. From the job's thread.
  void now(Call call) { call_.store(call, std::memory_order_relaxed); }

  /// How long an exchange may wait for the programs of others, which compute before they come. From the job's thread.
  void set_timeout(Duration timeout);
  [[nodiscard]] Duration timeout() const { return timeout_.load(std::memory_order_relaxed); }

  /// Once joined: shows memory to the peers of this host. A failure costs time alone.
  Result<void> share(const SharedBuffer& memory) { return peers_ == nullptr ? Result<void>{} : peers_->share(memory); }

  /// What `exchange_arrays` goes by until the generation is over; without one it is staged (staged_exchange.hpp). Joined, and on all ranks.
  void use(std::unique_ptr<ArrayExchange> exchange);
  [[nodiscard]] std::function<std::optional<Rank>()> lost_peer() const { return peers_ == nullptr ? nullptr : peers_->lost_peer(); }

  /// All calls below: on all ranks, in the same order. A failure ends the generation.
  /// A list for this rank itself is empty on both sides. `as`: what it is for, else what `now` said.
  /// `exchange` is for the host's memory; for what a member decides with on every machine. `exchange_arrays` is for what lies in the job's Memory
  /// (parameters, leaves, sums, moments): as ArrayExchange (array_exchange.hpp) on a device, and the same on the host. Throws Error where the device fails.
  Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Call> as = {});
  /// `exchange` on a thread of its own while this one goes on. Each exchange after it waits for its end first, so that all ranks make theirs in one order; another one beside waits on its own thread.
  /// The memory that the lists name, in the host's, stays until `finish_beside` has returned.
  /// `succeeded` is called there. `prepare`, too, before the exchange: it adds to what is received, for memory may be long in the making.
  void exchange_beside(std::vector<SendList> sends, std::vector<ReceiveList> receives, Call as, std::function<void()> succeeded,
                       std::function<void(std::vector<ReceiveList>&)> prepare = {});
  /// Waits for all that `exchange_beside` began, as long as an exchange may last. A failure ends the generation. Rethrows what was thrown there. Nothing under way: success.
  Result<void> finish_beside();
  /// Ends the generation where something is under way beside, and waits for this process's thread alone.
  void give_up_beside();
  /// `in`: the stream in whose order it works; none: that of the arrays' memory.
  Result<void> exchange_arrays(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Call> as = {},
                               std::optional<Stream> in = {});
  /// Waits for all that the arrays' stream was given, as `timeout` allows; `what` it was is for failures. On this rank alone, in any world: what is
  /// read after it is there. Fails as an exchange does, and throws Error where the device fails. On the host there is nothing to wait for.
  Result<void> wait_for_arrays(std::string_view what);
  /// How long the thread that made this world has been in `exchange` so far, with the waits for others.
  [[nodiscard]] Duration exchanged() const { return exchanged_; }
  /// Everybody's bytes, in rank order; they may differ in length.
  Result<std::vector<ByteVector>> all_gather(ByteSpan mine);
  /// The leader's bytes; what others pass does not matter.
  Result<ByteVector> from_leader(ByteSpan leaders);
  /// Success if it is success everywhere; else the failure of the first rank that has one, the same one on all ranks, with the rank that it is of, and that one's node.
  Result<void> agree(const Result<void>& mine);
  /// With this rank and its node, where it says no other ones: others hear of it.
  [[nodiscard]] Failure named(Failure failure) const;

 private:
  struct End {  // shared with the session's thread, which may outlive the world by a moment
    std::atomic<bool> over{false};
    std::mutex mutex;
    Failure why;
    Peers* peers = nullptr;
    // Apart from the others: who revokes a device's exchange may wait for a thread that asks the peers.
    std::mutex arrays_mutex;
    ArrayExchange* arrays = nullptr;
    bool set(const Failure& failure);  // true: it is the first one
  };
  struct Beside {
    std::vector<SendList> sends;
    std::vector<ReceiveList> receives;
    Result<void> done;
    std::exception_ptr thrown;
    std::function<void()> later;  // in place of the thread
    std::thread thread;
    pid_t owner = 0;                 // of the thread
    std::unique_ptr<Beside> before;  // which it waits for
  };
  static Result<void> finish(Beside& beside);
  Result<void> exchange_now(std::span<const SendList> sends, std::span<const ReceiveList> receives, Call as);
  void forget_peers();
  Result<void> ended(Failure why);
  Session& session_;
  JoinPeers join_;
  const WorldArrays arrays_;
  std::unique_ptr<ArrayExchange> staged_;         // none: arrays lie in the host's memory
  std::unique_ptr<ArrayExchange> of_generation_;  // none: they are staged
  std::unique_ptr<Beside> beside_;                // none: nothing is under way beside
  std::vector<SendList> nothing_to_send_;         // to the others, by rank
  std::vector<ReceiveList> nothing_to_receive_;
  Membership membership_;
  std::shared_ptr<End> end_;
  std::unique_ptr<Peers> peers_;
  std::atomic<Duration> timeout_{exchange_timeout_min};
  std::atomic<Call> call_{Call::none};
  const std::thread::id thread_ = std::this_thread::get_id();
  Duration exchanged_{};

 public:
  ~JobWorld();
  JobWorld(const JobWorld&) = delete;
  JobWorld& operator=(const JobWorld&) = delete;
};

/// A Result<void> as bytes, with the rank and the node of a failure.
[[nodiscard]] ByteVector encode_status(const Result<void>& status);
[[nodiscard]] Result<void> decode_status(ByteSpan bytes);

}  // namespace elrun::inline v0
