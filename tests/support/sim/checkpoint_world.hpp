#pragma once
/// \file Checkpoints in a simulated world: the product's commit machine, starts, parts and retention on a storage that loses what was not
/// synced, with a store that loses, delays, repeats and reorders, members that die, freeze and thaw, and generations that follow each other.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <elrun/philox.hpp>

#include "checkpoint/commit/checkpointer.hpp"
#include "checkpoint/commit/votes.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/log.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/support/sim/checkpoint_bugs.hpp"
#include "tests/support/sim/checkpoint_place.hpp"
#include "tests/support/sim/checkpoint_truth.hpp"

namespace elrun::checkpoint_sim {

/// What a run came to.
struct Ran {
  std::string broken;              ///< The rule that was broken; empty: none.
  std::vector<std::string> trace;  ///< What happened, a line each.
  std::uint64_t acknowledged = 0, starts = 0, faults = 0, frozen = 0, damages = 0, failed_saves = 0;
};

enum class Where { files, objects, objects_with_stale_lists };

/// The whole life of a job on one root, from one seed.
[[nodiscard]] Ran run_checkpoints(std::uint64_t seed, Where where, Bug planted = Bug::none);

/// One process of one generation. That of rank 0 leads.
struct Member {
  std::uint64_t number = 0;  // of the process
  Generation generation{};
  std::uint32_t rank = 0, world = 1;
  bool alive = true, busy = false, has_state = false;
  Instant frozen_until{};
  std::unique_ptr<Tier> tier{};
  std::unique_ptr<Checkpointer> saver{};
  test::Held held{};
  std::set<CheckpointId> written{};  // tickets that it has acted upon
  // of a leader
  std::set<CheckpointId> marked{};  // as damaged, before its start
  std::optional<CommitMachine> save{};
  Instant wakes_at = Instant::max();
  std::uint64_t saves = 0;                                     // begun: what is on its way for an earlier one is dropped
  std::vector<std::pair<std::uint64_t, CommitAction>> todo{};  // of which save
  History state{};
  std::uint64_t step = 0;
  unsigned tries = 0, rejections = 0;
};

class CheckpointWorld {
 public:
  CheckpointWorld(std::uint64_t seed, Where where, Ran& ran);
  void run();

 private:
  using Who = std::shared_ptr<Member>;
  struct Item {
    Who who;  // none: the world itself
    std::function<void()> what;
  };

  // time
  void after(Duration delay, const Who& who, std::function<void()> what);
  bool run_next();
  void run_item(Item item);
  [[nodiscard]] Duration some(Duration most) {
    return Duration{static_cast<Duration::rep>(rng_.below(static_cast<std::uint64_t>(most.count()) + 1))};
  }
  void said(std::string line);

  // members
  void form(bool with_state);
  void kill(Member& m, const char* how);
  [[nodiscard]] Who leader_of(const Generation& generation) const;
  [[nodiscard]] bool is_current(const Member& m) const { return m.generation == current_; }

  // the storage
  template <class Call>
  auto on_storage(const Who& m, const char* what, Call call, bool may_fail = true);
  void between_operations();
  [[nodiscard]] std::vector<CheckpointId> on_disk() const;
  /// What a start would choose from: the newest fence inherits it, or it was saved under that one.
  [[nodiscard]] std::vector<CheckpointId> on_newest_timeline();
  [[nodiscard]] std::set<CheckpointId> quarantined() const;
  [[nodiscard]] std::vector<CheckpointId> line_of(FenceNumber fence);

  // what a leader does
  void start(const Who& m);
  void started(const Who& m, const Start& start, std::uint64_t promises);
  void start_failed(const Who& m, const Failure& why, bool had_fault);
  bool load(const Who& m, const Start& start);
  void begin_save(const Who& m);
  void hear(const Who& m, std::uint64_t save, const CommitEvent& event);
  void next(const Who& m, std::optional<CommitAction> action);
  void work(const Who& m);
  void ask_owner(const Who& m, std::uint64_t number);
  void announce(const Who& m);
  void poll(const Who& m, CheckpointId id);
  void save_over(const Who& m);
  // what each member does
  void on_ticket(const Who& m, const SaveTicket& ticket);
  void hide_shard(const Member& m, const CheckpointId& id);
  void cast(ByteVector vote, const VoteKey& key);

  // what happens to all of them
  void trouble();
  void power_loss();
  void damage();
  void bad_spot();
  void heal();
  void check_lost();

  Rng rng_;
  Ran& ran_;
  ManualClock clock_;
  std::unique_ptr<CheckpointPlace> place_;
  Log log_;
  ModelTable model_;
  std::multimap<Instant, Item> queue_;
  std::vector<Who> members_;
  std::vector<Member*> in_calls_;  // on the storage, the innermost last
  Generation current_{};
  std::vector<std::pair<std::string, ByteVector>> votes_;  // in the job's store
  CheckpointTruth truth_;
  std::string remembered_;  // by an agent: the newest acknowledgement
  std::optional<LossName> begin_anew_;
  Path bad_spot_;  // a file that cannot be read
  bool healthy_ = false;
  std::uint64_t processes_ = 0, damages_ = 0, faults_fired_ = 0, acknowledged_here_ = 0;
};

}  // namespace elrun::checkpoint_sim
