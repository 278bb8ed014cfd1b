#pragma once
/// \file Communicator: what stands behind an ncclComm_t of the fake.

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/fakegpu/nccl/calls.hpp"
#include "tests/fakegpu/nccl/shared_world.hpp"
#include "tests/fakegpu/runtime/external.hpp"

namespace fakenccl {

/// A group of calls in a stream. It moves its messages once all of its peers have come to theirs, so two that are not in one group can block each other. Only what ncclSend sends is
/// over without its receive, where it fits in a buffer and nothing is in that. Those of one communicator run one after the other, whatever their streams.
class Exchange {
 public:
  /// `before`: whether the communicator's last one has run. Null: there is none.
  Exchange(std::shared_ptr<SharedWorld> world, int me, Moves moves, std::shared_ptr<const std::atomic<bool>> before)
      : world_{std::move(world)}, me_{me}, moves_{std::move(moves)}, before_{std::move(before)} {}
  /// The numbers of its messages to and from each rank.
  std::vector<std::uint64_t> out_numbers, in_numbers;
  // By the fake runtime, in this order (external.hpp).
  void start();
  [[nodiscard]] bool ready();
  void run();
  [[nodiscard]] const Moves& moves() const { return moves_; }
  [[nodiscard]] std::shared_ptr<const std::atomic<bool>> has_run() const { return has_run_; }

 private:
  void post(std::size_t to);
  [[nodiscard]] bool agrees(std::size_t from);
  /// What goes to this rank needs no receive to be over.
  [[nodiscard]] bool is_buffered(std::size_t to) const;

  const std::shared_ptr<SharedWorld> world_;
  const int me_;
  Moves moves_;
  std::vector<std::vector<std::byte>> staged_;  // copied when it started, for a mailbox that was not free then
  std::vector<bool> posted_;
  bool mismatched_ = false;
  std::shared_ptr<const std::atomic<bool>> before_;
  const std::shared_ptr<std::atomic<bool>> has_run_ = std::make_shared<std::atomic<bool>>(false);
};

class Communicator {
 public:
  /// `path`: of the file. `blocking`: calls return when they are done.
  Communicator(std::string path, int ranks, int rank, bool blocking);
  ~Communicator();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] bool blocking() const { return blocking_; }
  [[nodiscard]] bool is_member() const { return ranks_ > 0; }

  /// How far it is: the first answers are ncclInProgress, and progress is made by asking. Once it is an error it stays one.
  ncclResult_t poll();
  /// As `poll`, until it is no longer in progress.
  ncclResult_t wait();
  /// What stands in the way of a call now; ncclSuccess: nothing.
  [[nodiscard]] ncclResult_t check_usable();

  ncclResult_t begin(Moves moves, cudaStream_t stream);
  ncclResult_t finalize();
  /// Gives all that is in streams up. `ended`: whether its streams went on; they may never.
  void give_up();
  [[nodiscard]] bool ended() const;
  /// The caller of the library has waited for that.
  void tell_ended() const;
  ncclResult_t revoke();
  [[nodiscard]] bool is_revoked() const { return revoked_; }
  [[nodiscard]] bool is_finalized() const { return finalizing_; }

  std::unique_ptr<Communicator> split(int color, int key);
  std::unique_ptr<Communicator> shrink(const std::vector<int>& excluded);

  /// One thread at a time: whoever finds it taken reports that.
  std::atomic<const char*> in_use{nullptr};

 private:
  struct Child {
    std::shared_ptr<SharedWorld> parent;
    int parent_rank, parent_ranks;
    std::uint64_t number;
    int color;
    std::string path;
  };
  void join();
  bool advance_split();
  [[nodiscard]] ncclResult_t shared_device() const;
  /// The peers of sends and receives have come to theirs, once for each ordered pair: before that the real one is in progress, too.
  [[nodiscard]] bool connected();
  ncclResult_t enqueue_pending();

  std::string path_;
  int ranks_, rank_, device_ = 0;
  const bool blocking_;
  std::shared_ptr<SharedWorld> world_;
  std::optional<Child> unsplit_;  // until all ranks of the parent have said their color
  enum class Stage : std::uint8_t { joining, idle, issuing, finalizing, revoking } stage_ = Stage::joining;
  ncclResult_t error_ = ncclSuccess;
  int polls_left_ = 0;
  struct Pending {
    std::shared_ptr<Exchange> exchange;
    cudaStream_t stream;
  };
  std::vector<Pending> pending_;
  std::vector<fakegpu::TicketPtr> tickets_;
  std::vector<std::uint64_t> out_count_, in_count_;
  std::shared_ptr<const std::atomic<bool>> last_has_run_;
  std::uint64_t splits_ = 0, shrinks_ = 0;
  bool revoked_ = false, finalizing_ = false;
};

}  // namespace fakenccl
