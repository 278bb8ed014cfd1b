#pragma once
/// \file Simulation: agents, workers and coordinators of one job on one simulated clock. The agents' and the coordinators'
/// decisions are the product's own cores; what is simulated is everything around them. A value: a copy goes its own way,
/// which is how all interleavings of a small world are tried.
///
/// The idea: everything that will happen is an event with a time and a process that it happens to. An event of a process
/// that is dead is dropped, of one that is paused kept for it. A stream, a socket or a pidfd is a channel: its events stay
/// in their order, all others are free.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <elrun/philox.hpp>

#include "launcher/supervise/supervisor.hpp"
#include "lib/link/store_core.hpp"
#include "rendezvous/round/round.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/sim/checkers/checkers.hpp"
#include "tests/support/sim/fingerprint.hpp"
#include "tests/support/sim/happenings.hpp"
#include "tests/support/sim/parcel.hpp"
#include "tests/support/sim/planted_bugs.hpp"
#include "tests/support/sim/profile.hpp"
#include "tests/support/sim/writer.hpp"

namespace elrun::sim {

/// Events of one channel keep their order.
struct Channel {
  enum class Kind : std::uint8_t { none, up, down, from_worker, to_worker, peers, slot_words, slot_packets } kind = Kind::none;
  std::uint64_t number = 0;
  std::uint64_t generation = 0;  ///< Of peers: each generation connects its members anew.
  friend auto operator<=>(const Channel&, const Channel&) = default;
};

// --- who there is -------------------------------------------------------------------------------------------------

struct Process {
  enum class Kind : std::uint8_t { agent, coordinator, worker, writer } kind = Kind::worker;
  HostId host = 0;
  bool alive = false;
  bool paused = false;
  Duration clock_offset{};                    ///< Its monotonic clock against the world's
  std::optional<std::uint32_t> actions_left;  ///< Until something happens to it between two actions
  bool crashes_then = false;                  ///< That something: it crashes, or it is paused
  std::vector<Happening> kept;                ///< While paused
};

struct Stream {
  ProcessId agent, coordinator;
  bool in_process = false;
  bool agent_end = true, coordinator_end = false;  ///< Open
  std::optional<Instant> cut;                      ///< What arrives later is lost, both ways.
};

struct Agent {
  explicit Agent(launcher::SupervisorOptions options) : supervisor{std::move(options)} {}
  launcher::Supervisor supervisor;
  Incarnation who;
  Slot slot = 0;
  std::uint32_t workers = 1;
  std::deque<launcher::Event> inbox;
  std::deque<launcher::Action> undone;
  bool busy = false;
  std::map<LocalRank, ProcessId> children;
  std::optional<ProcessId> hosts;  ///< The coordinator in the same process
  std::uint16_t port = 0;
  Generation port_is_for{};
  bool finished = false, member_ever = false, asked = false;
  bool job_over = false;  // a worker said so
  std::uint64_t timer = 0;
  std::optional<Instant> wake;
  // The line.
  std::optional<StreamId> stream;
  bool up = false, over = false;
  Duration backoff{};
  std::uint64_t attempt = 0;
  std::string last_reason;
  std::optional<ProcessId> answers_from;  ///< The coordinator whose message came last
  std::optional<Instant> out_of_contact;  ///< Since, by its own clock; a line on which no coordinator stayed is no contact.
  std::optional<Instant> up_since;        ///< The line, by the same clock
  std::optional<ProcessId> guard_tells;   ///< Its guard, of its end: whose line it had last. None: its own, or it ends by itself
};

struct Coordinator {
  explicit Coordinator(RoundSetup setup) : round{std::move(setup)} {}
  using Caller = std::pair<StreamId, std::uint64_t>;
  Round round;
  StoreCore store;
  Lineage lineage;
  std::optional<Generation> serving;
  std::optional<ProcessId> agent;  ///< The agent in the same process
  std::deque<RoundAction> undone;
  std::uint64_t round_timer = 0, store_timer = 0;
  std::optional<Instant> store_wake;
  std::map<Caller, StoreCaller> callers;
  std::map<StoreCaller, Caller> caller_of;
  std::uint64_t callers_made = 0;
  std::map<std::pair<StoreCaller, std::uint64_t>, StoreRequest> calls;  ///< Under way
  bool verdict_seen = false;
  std::optional<GenerationBegan> began;  // and told to nobody yet
};

/// Of a worker that stays, in its generation.
struct Staying {
  bool welcomed = false;           ///< Its place was told
  bool acknowledged = false;       ///< It said that it knows of the end, and does nothing for it any more
  bool away = false;               ///< Its program is still in its own code
  bool pending = false;            ///< It was started beside a generation that is over, and has no place in another one yet
  bool says_ready = true;          ///< Of a pending worker: its libelrun tells when its program waits for a place
  std::optional<Instant> ready{};  ///< Since when it does
  bool loads =
      false;  ///< Of a pending worker: its program is not that far yet. A world may count it in, and tell it its place, all the same.
};

struct Worker {
  ProcessId agent;
  Incarnation who;
  LocalRank local_rank;
  Generation generation;
  std::uint32_t rank = 0, world = 1;
  bool deaf = false, wedged = false, hangs = false, over = false;
  Staying stay;
  std::uint64_t step = 0;
  std::vector<ProcessId> peers;
  std::map<std::uint64_t, std::set<std::uint32_t>> votes;
  std::map<std::uint64_t, StoreRequest> calls;
  struct {
    std::uint64_t made = 0, forgotten = 0, turns = 0;
  } counts;
};

struct Node {
  NodeId name;
  HostId host = 0;
  std::optional<ProcessId> agent;  ///< The newest
  bool left = false;               ///< For good
};

/// The connection of a worker to another one, as the first of them sees it.
struct Wire {
  Generation generation;
  Instant dead_until{};     ///< It was tried in vain for so long that it is tried again only then.
  std::uint32_t looks = 0;  ///< In a row that found no answer
};

class Program;

/// A worker's connection to the writer of its node.
struct SlotLine {
  ProcessId worker, writer;
  bool is_open = true;
  bool is_filling = false;                               ///< By what the worker said, and no save was started since
  std::deque<std::shared_ptr<const SlotView>> passed{};  ///< With words that are under way
};

// --- the simulation -----------------------------------------------------------------------------------------------

/// The world of one seed: time, hosts, the network between them, the processes on them, and their faults.
///
/// Its methods are many: half of them are one overload per kind of event (`on`) and per action of a core (`perform`), and each source file
/// has one part of the world (the headings below name it). It is one class because nearly every event touches several parts, a host that loses
/// its power all of them, and because the exhaustive search compares worlds as wholes (Fingerprint). What the cores have to keep is not in
/// here but in checkers/.
class Simulation {
 public:
  Simulation(Profile profile, bool traced);

  /// To the end: every agent has ended, or a rule is broken.
  void run();
  [[nodiscard]] const std::optional<Violation>& violation() const { return checkers_.report.first; }
  [[nodiscard]] const std::deque<std::string>& trace() const { return trace_; }
  [[nodiscard]] std::uint64_t events() const { return events_; }
  [[nodiscard]] std::uint64_t generations() const { return generations_; }
  /// Of workers whose Jobs are the product's.
  [[nodiscard]] std::uint64_t actions() const { return actions_; }
  /// A step that a living member had applied was done again.
  [[nodiscard]] bool went_back() const { return std::get<OneLossIsFree>(checkers_.all).went_back; }

 private:
  friend class Explorer;
  friend class Fingerprint;
  friend class Program;
  friend class Writer;

  // world.cpp: time, processes, network
  void happen(Instant at, std::optional<ProcessId> to, Happening what, Channel channel = {});
  void happen_after(Duration wait, std::optional<ProcessId> to, Happening what, Channel channel = {}) {
    happen(now_ + wait, to, std::move(what), channel);
  }
  void next();
  void deliver(std::optional<ProcessId> to, Happening what);
  ProcessId start_process(Process::Kind kind, HostId host);
  Process& process(ProcessId id) { return processes_[id.value()]; }
  [[nodiscard]] const Process& process(ProcessId id) const { return processes_[id.value()]; }
  [[nodiscard]] Instant local(ProcessId id) const { return now_ + process(id).clock_offset; }
  void crash(ProcessId id, bool with_host);
  void end_process(ProcessId id);
  void pause(ProcessId id, Duration length);
  void thaw(ProcessId id);
  void jump(ProcessId id, Duration by);
  [[nodiscard]] bool interrupted(ProcessId id);
  Duration delay();
  Duration random(Duration up_to) {
    return up_to <= Duration{0} || exact_ ? Duration{0}
                                          : Duration{static_cast<Duration::rep>(rng_.below(static_cast<std::uint64_t>(up_to.count())))};
  }
  Instant arrival(HostId from, HostId to);
  void send_up(StreamId stream, Happening what);
  void send_down(StreamId stream, Happening what);
  void close_agent_end(StreamId stream);
  void close_coordinator_end(StreamId stream);
  void lose_touch(HostId a, HostId b, std::optional<Duration> length);
  void lose_touch(ProcessId with, std::optional<Duration> length);

  // agents.cpp
  ProcessId start_agent(Slot slot);
  void connect(ProcessId agent);
  void link_down(ProcessId agent, const std::string& why);
  void connect_failed(ProcessId agent, const std::string& why);
  void feed(ProcessId agent, launcher::Event event);
  void work(ProcessId agent);
  void perform(ProcessId id, const launcher::Send& a);
  void perform(ProcessId id, const launcher::Spawn& a);
  void perform(ProcessId id, const launcher::SignalGroup& a);
  void perform(ProcessId id, const launcher::GiveUp& a);
  void perform(ProcessId id, const launcher::Release& a);
  void perform(ProcessId id, const launcher::EndOrphans& a);
  void perform(ProcessId id, const launcher::LookAgain& a);
  void perform(ProcessId id, const launcher::TakeStacks& a);
  void perform(ProcessId id, const launcher::Answer& a);
  void perform(ProcessId id, const launcher::HangUp& a);
  void perform(ProcessId id, const launcher::Say& a);
  void perform(ProcessId id, const launcher::Finish& a);
  void heard(ProcessId agent, const CoordinatorMessage& message);
  void end_agent(ProcessId agent);
  void end_agent_if_allowed(ProcessId agent);
  void guard_speaks(ProcessId agent);

  // coordinators.cpp
  ProcessId start_coordinator(HostId host, std::optional<ProcessId> agent);
  void step_down(ProcessId coordinator);
  [[nodiscard]] bool coordinator_is_gone() const { return named_ && !process(*named_).alive; }
  void feed(ProcessId coordinator, const RoundEvent& event);
  void work_coordinator(ProcessId coordinator);
  void perform(ProcessId id, const SendTo& a);
  void perform(ProcessId id, const CloseStream& a);
  void perform(ProcessId id, const AskHost& a);
  void perform(ProcessId id, const WakeAt& a);
  void perform(ProcessId id, const BeginGeneration& a);
  void perform(ProcessId id, const EndGeneration& a);
  void perform(ProcessId id, const HandOver&) { step_down(id); }
  void perform(ProcessId id, const elrun::Say& a);
  void store_call(ProcessId id, StreamId stream, const StoreCall& call);
  void deliver_answers(ProcessId id, const std::vector<StoreAnswer>& answers);
  void forget_caller(ProcessId id, const Coordinator::Caller& who);
  void drop_stream(ProcessId id, StreamId stream);

  // workers.cpp
  void say(ProcessId worker, Message message);
  void hear(ProcessId worker, const Message& message);
  void call_store(ProcessId worker, StoreRequest request);
  void store_answered(ProcessId worker, const StoreRequest& request, const StoreReply& reply);
  void begin_step(ProcessId worker);
  void count_votes(ProcessId worker);
  void some_store_call(ProcessId worker);
  void exit_worker(ProcessId worker, launcher::Ending ending);
  void worker_is_gone(ProcessId worker);

  // job_workers.cpp
  void prepare_jobs();
  void to_program(ProcessId id, const ToWorker& e);
  enum class AtAction : std::uint8_t { goes_on, ends, is_paused, is_slow };
  [[nodiscard]] AtAction action_of(ProcessId id, bool may_wait);
  std::uint64_t call_store_for(ProcessId id, StoreRequest request, const Generation& generation);
  void send_parcel(ProcessId from, ProcessId to, Parcel parcel);
  void connect_peers(ProcessId id, const Generation& generation, const std::vector<ProcessId>& members);
  void hang_up(ProcessId id, const PeerLost& what, const std::vector<ProcessId>& members);
  void drop_parcels(ProcessId from, std::optional<ProcessId> to);
  void program_is_gone(ProcessId id);
  void place_taken(ProcessId id, const Place& place);
  void waits_for_place(ProcessId worker);
  void step_applied(ProcessId id, const Generation& generation, std::uint64_t steps);
  void differ(std::string sentence) { checkers_.report.violate("jobs-hold", std::move(sentence)); }
  void job_failed(ProcessId id, const Failure& why);
  void program_is_over(ProcessId id, int code);
  void look_at(ProcessId id, Duration after) { happen_after(after, id, LooksAgain{}); }
  void look(ProcessId id);

  // slot_lines.cpp
  std::optional<launcher::WorkerLine> open_slot_line(ProcessId worker);
  void say_on_slot_line(launcher::WorkerLine line, LineWord word, std::shared_ptr<const SlotView> slot = {});
  void slot_packet(launcher::WorkerLine line, ByteVector packet);
  void end_slot_line(launcher::WorkerLine line);
  void close_slot_lines_of(ProcessId worker);
  std::uint64_t connect_to_agent(ProcessId writer);
  void writer_says(ProcessId writer, std::uint64_t connection, Message message);
  void hang_up_on_agent(ProcessId writer, std::uint64_t connection);
  bool answer_writer(ProcessId agent, const launcher::Answer& a);
  [[nodiscard]] bool dies_at_seal(ProcessId worker);
  [[nodiscard]] AtAction writer_action(ProcessId id);
  void end_writer_of(ProcessId agent, bool with_host);
  void end_writer(ProcessId id, bool with_host);
  void look_at_task(ProcessId writer, std::uint64_t task, Duration after) { happen_after(after, writer, WriterLooks{task}); }
  void acknowledged(ProcessId by, const std::string& text);

  // cuts.cpp
  [[nodiscard]] Instant cut_until(HostId a, HostId b) const;
  Instant peer_arrival(ProcessId from, ProcessId to);
  [[nodiscard]] bool is_connected(ProcessId from, ProcessId to) const;
  void look_at_wire(ProcessId from, ProcessId to);
  void cannot_reach(ProcessId from, ProcessId to);

  // faults.cpp
  void inject(FaultKind kind);
  void lose_power(ProcessId agent);
  void heal();
  void note(const std::string& what, std::optional<ProcessId> whom);
  void watch_liveness();
  void watch_the_ready();
  [[nodiscard]] std::size_t nodes_alive() const;
  [[nodiscard]] bool settled() const;
  [[nodiscard]] std::vector<ProcessId> alive(Process::Kind kind) const;
  [[nodiscard]] std::optional<ProcessId> any(Process::Kind kind);
  Duration some_time();

  // The events, one after the other.
  void on(ProcessId to, const StreamArrives& e);
  void on(ProcessId to, const StreamAccepted& e);
  void on(ProcessId to, const Uplink& e);
  void on(ProcessId to, const Downlink& e);
  void on(ProcessId to, const GuardArrives& e);
  void on(ProcessId to, const HostAnswers& e);
  void on(const OutsiderArrives& e);
  void on(ProcessId to, const UplinkEnds& e);
  void on(ProcessId to, const DownlinkEnds& e);
  void on(ProcessId to, const ConnectLimit& e);
  void on(ProcessId to, const ConnectAgain& e);
  void on(ProcessId to, const HeartbeatDue& e);
  void on(ProcessId to, const SupervisorTimer& e);
  void on(ProcessId to, const RoundTimer& e);
  void on(ProcessId to, const StoreTimer& e);
  void on(ProcessId to, const LingerOver& e);
  void on(ProcessId to, const WorkerBegins& e);
  void on(ProcessId to, const FromWorker& e);
  void on(ProcessId to, const SocketClosed& e);
  void on(ProcessId to, const ChildEnded& e);
  void on(ProcessId to, const ToWorker& e);
  void on(ProcessId to, const SignalArrives& e);
  void on(ProcessId to, const WorkerExits& e);
  void on(ProcessId to, const StepComputed& e);
  void on(ProcessId to, const StepTooLong& e);
  void on(ProcessId to, const ComesBack& e);
  void on(ProcessId to, const IsReady& e);
  void gather_peers(ProcessId id);
  void on(ProcessId to, const Vote& e);
  void on(ProcessId to, const PeerGone& e);
  void on(const Injected& e);
  void on(const Thaws& e);
  void on(const AgentArrives& e);
  void on(ProcessId to, const TakesOver& e);
  void on(const FreshCoordinator& e);
  void on(const Heal& e);
  void on(ProcessId to, const ParcelArrives& e);
  void on(ProcessId to, const PeerLost& e);
  void on(ProcessId to, const LooksAgain& e);
  void on(const JobInjected& e);
  void on(const NodeDies& e);
  void on(const CutBegins& e);
  void on(ProcessId to, const SaysUnreachable& e);
  void on(ProcessId to, const SlotLineSays& e);
  void on(ProcessId to, const SlotPacket& e);
  void on(ProcessId to, const SlotLineEnds& e);
  void on(ProcessId to, const FromWriter& e);
  void on(ProcessId to, const WriterHangsUp& e);
  void on(ProcessId to, const WriterReply& e);
  void on(ProcessId to, const WriterLooks& e);
  void on(ProcessId to, const WriterReadsAll& e);
  void on(ProcessId to, const SaveIsOver& e);
  void on(ProcessId to, const CopyIsMade& e);
  void on(const CutLooks& e);

  template <class Observation>
  void see(const Observation& observation) {
    if (exact_) seen_ += Fingerprint::of(observation);
    checkers_.see(observation, now_);
  }
  template <class... Arguments>
  void tell(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    if (traced_) record(fmt::format(text, std::forward<Arguments>(arguments)...));
  }
  void record(std::string line);
  [[nodiscard]] std::string name(ProcessId id) const;

  struct Queued {
    std::optional<ProcessId> to;
    Channel channel;
    Happening what;
  };

  Profile profile_;
  bool traced_;
  bool exact_;  // every delay is nothing, and numbers do not depend on the order of events: the explorer chooses it
  Rng rng_;
  Rng guards_;  // of what guards and outsiders do, so that the other choices of a seed stay what they were
  Instant now_{};
  std::uint64_t sequence_ = 0, events_ = 0, generations_ = 0, ports_ = 0;
  std::map<std::pair<Instant, std::uint64_t>, Queued> queue_;
  std::map<Channel, Instant> channels_;
  std::vector<Process> processes_;
  std::map<ProcessId, Agent> agents_;
  std::map<ProcessId, Coordinator> coordinators_;
  std::map<ProcessId, Worker> workers_;
  std::map<StreamId, Stream> streams_;
  std::vector<Node> nodes_;
  std::vector<bool> hosts_;                               // up
  std::map<std::pair<HostId, HostId>, Instant> blocked_;  // until
  std::optional<ProcessId> named_;                        // the coordinator that the endpoint's name leads to
  HostId coordinator_host_ = 0;
  std::uint64_t ledger_ = 0;                      // the newest generation on record
  std::uint64_t decided_ = 0;                     // what a checkpoint holds
  std::optional<std::int32_t> job_over_;          // the verdict of a coordinator that had the name
  std::map<GenerationKey, std::uint32_t> sizes_;  // nodes of each generation
  std::optional<Instant> healed_, settled_;
  Instant began_{};  // the newest generation
  Instant look_again_{};
  Checkers checkers_;
  std::uint64_t seen_ = 0;                   // all that the checkers were told, in whatever order: with it goes what they know
  std::map<HostId, std::uint32_t> started_;  // processes, by host, where the order must not matter
  std::deque<std::string> trace_;
  // Of pairs that are cut from each other.
  std::map<std::pair<HostId, HostId>, Instant> cut_;  // until
  std::map<std::pair<ProcessId, ProcessId>, Wire> wires_;
  // Of jobs that are the product's.
  std::shared_ptr<test::FaultyFiles> storage_;
  std::optional<ProcessId> at_work_;  // whose program has its turn
  std::uint64_t actions_ = 0;
  std::uint64_t slot_lines_made_ = 0, seals_ = 0, writer_connections_made_ = 0, writer_actions_ = 0;
  std::map<launcher::WorkerLine, SlotLine> slot_lines_;
  std::map<ProcessId, ProcessId> writer_of_;                                      // by agent, the newest
  std::map<std::uint64_t, ProcessId> writer_connections_;                         // to agents
  std::map<std::pair<std::uint64_t, std::uint64_t>, StoreRequest> writer_calls_;  // by connection and number
  std::map<ProcessId, std::shared_ptr<Writer>> writers_;
  std::map<ProcessId, std::shared_ptr<Program>> programs_;  // the last, for the first to go: they still end
};

/// One seed of one size, from its start to its end.
struct Outcome {
  std::optional<Violation> violation;
  std::uint64_t events = 0, generations = 0, actions = 0;
  bool went_back = false;
};
[[nodiscard]] Outcome simulate(const Profile& profile);
/// The same run again, every line of it.
[[nodiscard]] std::deque<std::string> trace_of(const Profile& profile, std::size_t lines);

}  // namespace elrun::sim
