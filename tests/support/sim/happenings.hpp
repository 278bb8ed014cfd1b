#pragma once
/// \file What happens in a simulation: each event, and to whom.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include <elrun/ids.hpp>

#include "launcher/supervise/supervisor.hpp"
#include "lib/base/bytes.hpp"
#include "lib/link/message.hpp"
#include "rendezvous/messages.hpp"
#include "tests/support/sim/observations.hpp"
#include "tests/support/sim/parcel.hpp"
#include "tests/support/sim/profile.hpp"
#include "tests/support/sim/writer.hpp"

namespace elrun::sim {

using HostId = std::uint32_t;
[[nodiscard]] inline std::string address_of(HostId host) { return "10.0.0." + std::to_string(host); }
using StreamId = std::uint64_t;  ///< Also the coordinator's number for it.
using Slot = std::uint32_t;      ///< A node of the job, whoever runs it at the moment.

struct StreamArrives {
  StreamId stream;
};
struct StreamAccepted {
  StreamId stream;
};
struct Uplink {
  StreamId stream;
  NodeMessage message;
};
struct Downlink {
  StreamId stream;
  CoordinatorMessage message;
};
struct GuardArrives {
  AgentEnded ended;
};  ///< On a stream of its own
/// The answer of a host: this agent's process has ended.
struct HostAnswers {
  Incarnation ended;
};
struct OutsiderArrives {};  ///< Who can reach the coordinator, says that an agent has ended, and does not know its number
struct UplinkEnds {
  StreamId stream;
};
struct DownlinkEnds {
  StreamId stream;
  std::string why;
};
struct ConnectLimit {
  StreamId stream;
};
struct ConnectAgain {
  std::uint64_t epoch;
};
struct HeartbeatDue {
  StreamId stream;
};
struct SupervisorTimer {
  std::uint64_t epoch;
};
struct RoundTimer {
  std::uint64_t epoch;
};
struct StoreTimer {
  std::uint64_t epoch;
};
struct LingerOver {};
struct WorkerBegins {};
struct FromWorker {
  ProcessId worker;
  Message message;
};
struct SocketClosed {
  ProcessId worker;
};
struct ChildEnded {
  ProcessId worker;
  launcher::Ending ending;
};
struct ToWorker {
  Message message;
  std::optional<ProcessId> answered_by;
};
struct SignalArrives {
  int number;
};
struct WorkerExits {
  launcher::Ending ending;
};
struct StepComputed {
  Generation generation;
  std::uint64_t step;
};
struct StepTooLong {
  Generation generation;
  std::uint64_t step;
};
struct ComesBack {
  Generation generation;
};                  ///< A program, from its own code to its next generation
struct IsReady {};  ///< A program that was started beside a generation, for its place in the next one
struct Vote {
  Generation generation;
  std::uint32_t rank;
  std::uint64_t step;
};
struct PeerGone {
  Generation generation;
};
struct Injected {
  FaultKind kind;
};
struct Thaws {
  ProcessId process;
};
struct AgentArrives {
  Slot slot;
};
struct TakesOver {};
struct FreshCoordinator {};
struct Heal {};
struct ParcelArrives {
  Parcel parcel;
};
struct LooksAgain {};  ///< A program at what it waits for
struct JobInjected {
  JobFault kind;
};
/// In the instant in which one of its workers crashed.
struct NodeDies {
  ProcessId agent;
  bool with_host = false;  ///< Else its workers alone
};
struct CutBegins {
  std::size_t which;
};
struct SaysUnreachable {
  Generation generation;
  Rank peer;
};
// On the lines of workers to the writer of their node, and of that one to its agent
struct SlotLineSays {
  std::uint64_t line;
  LineWord word;
};
struct SlotPacket {
  std::uint64_t line;
  ByteVector packet;
};
struct SlotLineEnds {
  std::uint64_t line;
};
struct FromWriter {
  std::uint64_t connection;
  Message message;
};
struct WriterHangsUp {
  std::uint64_t connection;
};
struct WriterReply {
  std::uint64_t connection;
  StoreReply reply;
  std::optional<ProcessId> answered_by;
};
struct WriterLooks {
  std::uint64_t task;
};
struct WriterReadsAll {};
struct SaveIsOver {
  std::uint64_t task;
};
struct CopyIsMade {
  std::uint64_t copy;
};
struct CutLooks {};  ///< Workers at their connections, where nodes are or were cut from each other
using Happening =
    std::variant<StreamArrives, StreamAccepted, Uplink, Downlink, GuardArrives, HostAnswers, OutsiderArrives, UplinkEnds, DownlinkEnds,
                 ConnectLimit, ConnectAgain, HeartbeatDue, SupervisorTimer, RoundTimer, StoreTimer, LingerOver, WorkerBegins, FromWorker,
                 SocketClosed, ChildEnded, ToWorker, SignalArrives, WorkerExits, StepComputed, StepTooLong, ComesBack, IsReady, Vote,
                 PeerGone, Injected, Thaws, AgentArrives, TakesOver, FreshCoordinator, Heal, ParcelArrives, PeerLost, LooksAgain,
                 JobInjected, NodeDies, CutBegins, CutLooks, SaysUnreachable, SlotLineSays, SlotPacket, SlotLineEnds, FromWriter,
                 WriterHangsUp, WriterReply, WriterLooks, WriterReadsAll, SaveIsOver, CopyIsMade>;

}  // namespace elrun::sim
