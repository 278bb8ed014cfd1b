#pragma once
/// \file Program: a worker's process as the product runs it. Its Job is the product's, with all that it decides and does from one
/// generation to the next; simulated are the session to its agent, the connections to its peers, the storage and the clock.

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/ckptd/writer_machine.hpp"
#include "lib/job/job_host.hpp"
#include "lib/link/request_store.hpp"
#include "tests/support/sim/expected.hpp"
#include "tests/support/sim/observations.hpp"
#include "tests/support/sim/parcel.hpp"
#include "tests/support/sim/turns.hpp"

namespace elrun::sim {

class Simulation;

/// What happens to a small model in training. Its gradients follow from its weights, the samples and the slot.
class Trainer {
 public:
  virtual ~Trainer() = default;
  /// The job, from its declarations to its end.
  void train(Job& job, const Plan& wanted, const CheckpointOptions& checkpoint);

 protected:
  /// `begun`: host state, the steps that were begun. `weights`: by unit their hash, or none where they are sharded.
  virtual void handed_out(std::uint64_t step, std::uint64_t begun, const std::vector<std::uint64_t>& weights) = 0;
  virtual void read_weights(std::uint64_t, std::uint32_t /*unit*/, std::uint64_t /*hash*/) {}
  virtual void ran_slot(std::uint64_t, const elrun::Slot&) {}
  virtual void reported(std::uint64_t, const StepResult&) {}
  virtual void ended(const elrun::Outcome& outcome) = 0;
};

/// A worker's process, whose thread runs the product's Job: its end of everything that the product gets from outside. Its methods are what the
/// simulated session, store, peers and clock need of it (they are nested for that reason), and what comes in from the world.
class Program final : private Trainer {
 public:
  Program(Simulation& simulation, ProcessId id, Place place);
  ~Program() override;

  // What comes in: from the agent, from peers, and time.
  void on_place(const Place& place);
  void on_over(const Failure& why);
  void remembers(Session::Remembered what) { remembered_ = std::move(what); }
  void on_job_over() { job_over_ = true; }
  void asked_to_leave() { leaving_ = true; }
  void answered(const StoreReply& reply) { replies_[reply.id] = reply; }
  void lost_agent(const Failure& why);
  void receive(Parcel parcel);
  void lost_peer(const PeerLost& what);
  /// The connection to it is dead; it may live.
  void cannot_reach(const Generation& generation, Rank peer);
  /// From the writer of this node: a packet, or the end of the line.
  void hear_slot_line(launcher::WorkerLine line, std::optional<ByteVector> packet);
  /// A copy of the state that goes on beside the program, if it has not waited for it.
  void make_copy(std::uint64_t number);
  [[nodiscard]] bool is_connected() const { return peers_ != nullptr; }
  [[nodiscard]] Duration returns_within() const { return returns_within_; }

  /// Goes on if what it waits for is there. Nothing while its own code runs.
  void look();
  /// The process is gone.
  void end();
  /// A point between two actions: here it may be that its process ends, stands still, or that its thread is slow.
  void action(bool may_wait = true);
  [[nodiscard]] const Place& place() const { return place_; }

 private:
  class LocalClock;
  class SimulatedSession;
  class SimulatedStore;
  class SimulatedPeers;
  class SimulatedWriter;
  struct LineEnd {
    std::deque<ByteVector> inbox{};
    bool has_ended = false;
  };

  void run();
  void handed_out(std::uint64_t step, std::uint64_t begun, const std::vector<std::uint64_t>& weights) override;
  void read_weights(std::uint64_t step, std::uint32_t unit, std::uint64_t hash) override;
  void ran_slot(std::uint64_t step, const elrun::Slot& slot) override;
  void reported(std::uint64_t step, const StepResult& result) override;
  void ended(const elrun::Outcome& outcome) override;
  Result<std::unique_ptr<elrun::Peers>> join(Session& session);
  void sleep(Duration time);
  /// Until `ready`, at most for `time` of this process. Whether it is.
  bool wait(const std::function<bool()>& ready, Duration time);
  [[nodiscard]] Instant now() const;
  [[nodiscard]] bool gone() const;

  Simulation& simulation_;
  const ProcessId id_;
  Place place_;                // that the program has taken
  std::optional<Place> next_;  // told, and not taken
  Generation newest_;          // that a place was told of
  std::optional<Failure> over_, lost_;
  std::vector<Session::OnOver> on_over_;
  std::map<std::uint64_t, std::optional<StoreReply>> replies_;
  Session::Remembered remembered_;  // as of the newest place
  bool leaving_ = false, job_over_ = false, at_work_ = false;
  Duration returns_within_{};
  SimulatedPeers* peers_ = nullptr;  // of the generation at hand, once joined
  std::uint32_t groups_ = 0;         // joined in this generation
  std::vector<Parcel> early_;        // from peers that joined before this one did
  std::vector<PeerLost> lost_early_;
  std::map<launcher::WorkerLine, LineEnd> slot_lines_;
  std::map<std::uint64_t, std::function<void()>> copies_;  // under way
  std::uint64_t copies_made_ = 0;
  bool copies_now_ = false;
  const std::function<bool()>* ready_ = nullptr;
  Turns turns_;
};

}  // namespace elrun::sim
