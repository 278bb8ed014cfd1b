#pragma once
/// \file LossReserve: host memory that the next loss will need, made on a thread of its own while steps run. Memory that is touched for the first time costs
/// several times as much as a copy into it, and until a loss has it nobody goes on. Shared buffers come first: slots wait for them, while moments and other ranks' sums arrive after those have begun.
///
/// What a loss has taken of it comes back: old moments and buffers that a smaller world does not need are kept for the world that is whole again. So a rank holds all the time
/// what it would take for a while at a loss, and a loss finds it when the machine has nothing left. Nothing is reserved where `memory_per_rank` sets a limit, and where the machine has too little.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <elrun/units.hpp>

#include "lib/job/gradients/gradients.hpp"
#include "lib/job/recover/loss_needs.hpp"
#include "lib/job/state/arena.hpp"
#include "lib/job/state/model_state.hpp"
#include "lib/job/state/shared_buffers.hpp"

namespace elrun::inline v0 {

/// Called by the job's thread. A forked child may only destroy it.
class LossReserve {
 public:
  using Touch = std::function<void(std::span<std::byte> pages)>;
  static void touch_pages(std::span<std::byte> pages) { host_memory().make_resident(pages); }
  /// `shared_buffers` outlives it, and is on the host where anything is prepared. `bytes_min`: fewer are there sooner than a thread, so
  /// nothing is reserved. `touch`: makes pages of private memory resident, some at a time; for tests another one.
  LossReserve(SharedBuffers& shared_buffers, std::uint64_t bytes_min, Touch touch = touch_pages)
      : shared_buffers_{shared_buffers}, bytes_min_{bytes_min}, touch_{std::move(touch)} {}
  LossReserve(const LossReserve&) = delete;
  LossReserve& operator=(const LossReserve&) = delete;
  ~LossReserve() { give_up(); }

  /// Another world, or other slots in it: what it has is taken from `gradients` and from the state's reserved moments. In a larger world than it was made for nobody waits for what is still
  /// being made, and memory that depends on the world's size is given back.
  void begin_world(ModelState& state, std::uint32_t world);
  /// The world is over: from now on nothing more is made but the shared buffer that is just being made. Of other memory there are the addresses, and pages that are not there yet come when they
  /// are touched: beside the slots of the next world's first step, while a loss would wait for them here.
  void stop_making();
  /// What a job had that ended in this process is this one's. Both are for one layout.
  void continue_from(LossReserve& before);
  /// A step begins in a world of so many. True: it is time to look what a loss would need. Some steps after a world began, so that the start of one has its cores to itself; and in a world that is
  /// smaller than one before only once it has been that small for a minute, for until then a successor is likely.
  [[nodiscard]] bool is_due(std::uint32_t world, Instant now);

  /// What this world has of its own.
  struct InUse {
    std::uint64_t buffers = 0;  ///< For whole gradients.
    std::uint64_t room = 0;     ///< Elements of other ranks' sums that can arrive.
  };
  struct Prepared {
    std::uint64_t bytes = 0;    ///< Held for a loss once all of it has been made.
    std::uint64_t refused = 0;  ///< Bytes that would be held, but for `left`.
  };
  /// Begins to make what is missing, and to give back what is not needed. `left`: bytes that this process may take. Where they are too few nothing is reserved any more.
  Prepared prepare(const LossNeeds& needs, ModelState& state, InUse in_use, std::uint64_t left);
  struct Outcome {
    std::uint64_t bytes = 0;    ///< Held for a loss.
    std::uint64_t missing = 0;  ///< Bytes that were to be held and could not be had: the loss makes them.
  };
  /// What `prepare` came to, once: nothing while memory is still being made, or where none was to be held.
  [[nodiscard]] std::optional<Outcome> take_outcome();
  /// All that was begun is there. For tests.
  void await();

  GradientBuffers gradients;

 private:
  struct Making;
  void begin_to_make(std::shared_ptr<Making> making);
  void give_up();
  SharedBuffers& shared_buffers_;
  std::uint64_t bytes_min_;
  Touch touch_;
  std::shared_ptr<Making> making_;  // what the thread shares with this object, or did
  std::thread thread_;
  pid_t owner_ = 0;                 // of the thread
  std::uint32_t made_for_ = 0;      // the size of the world for which it was prepared
  bool looked_ = false;             // in this world
  std::optional<Outcome> outcome_;  // as if none of what is being made could be had
  std::uint32_t steps_ = 0;
  std::optional<Instant> begun_;
};

}  // namespace elrun::inline v0
