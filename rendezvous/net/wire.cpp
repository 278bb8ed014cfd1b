// Every field of a message that comes in passes through a Checker, which keeps the first rule that was broken: a reader
// below reads like the list of fields, and cannot forget to check one without reading it raw.

#include "rendezvous/net/wire.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "lib/base/printable.hpp"
#include "lib/link/message.hpp"
#include "rendezvous.pb.h"
#include "rendezvous/round/round.hpp"

namespace elrun::inline v0 {
namespace {

static_assert(wire_message_max > message_max + 1_MiB, "a store call fits a message");

class Checker {
 public:
  explicit Checker(std::string_view kind) : kind_{kind} {}
  template <class T>
  T number(std::string_view field, T value, T least, T most) {
    if (value < least || value > most) fail(fmt::format("{} is {}, out of {} to {}", field, value, least, most));
    return value;
  }
  std::string text(std::string_view field, const std::string& value, std::size_t max) {
    if (value.size() <= max) return value;
    fail(fmt::format("{} has {} bytes, more than {}", field, value.size(), max));
    return {};
  }
  /// A name or an address: it is compared, shown, and told to others as it is.
  std::string name(std::string_view field, const std::string& value) {
    if (printable(value) != value)
      fail(fmt::format("{} has characters that cannot be shown: {}", field, printable(value.substr(0, wire_name_max))));
    return text(field, value, wire_name_max);
  }
  /// What people read, as it may be shown; no longer than before.
  std::string said(std::string_view field, const std::string& value, std::size_t max, Lines lines = Lines::one) {
    return printable(text(field, value, max), lines, Bytes8::kept).substr(0, max);
  }
  /// A value from a later version is read as this version's last one.
  template <class Choice>
  static Choice known(std::uint32_t value, Choice last) {
    return static_cast<Choice>(std::min(value, static_cast<std::uint32_t>(last)));
  }
  Generation generation(const wire::Generation& in) {
    return {number<std::uint64_t>("generation", in.number(), 0, generation_number_max), {{in.lineage_high(), in.lineage_low()}}};
  }
  Failure failure(const wire::Failure& in) {
    Failure out;
    out.code = known(in.code(), Code::internal);
    out.remedy = known(in.remedy(), Remedy::exit_process);
    out.what = said("what", in.what(), wire_text_max, Lines::many);
    if (in.has_rank()) out.rank = Rank{in.rank()};
    if (in.has_peer()) out.peer = Rank{in.peer()};
    if (in.has_generation()) out.generation = generation(in.generation());
    out.node = said("node", in.node(), wire_name_max);
    return out;
  }
  Seat seat(const wire::Seat& in) {
    Seat out;
    out.nodes = number<std::uint32_t>("seat.nodes", in.nodes(), 1, nodes_limit);
    out.group_rank = number<std::uint32_t>("seat.group_rank", in.group_rank(), 0, out.nodes - 1);
    out.world_size = number<std::uint32_t>("seat.world_size", in.world_size(), 1, nodes_limit * workers_per_node_limit);
    out.base_rank = number<std::uint32_t>("seat.base_rank", in.base_rank(), 0, out.world_size - 1);
    out.roster = in.roster();
    return out;
  }
  WorkerDeath death(const wire::WorkerDeath& in) {
    WorkerDeath out;
    out.node = NodeId{said("death.node", in.node(), wire_name_max)};
    out.generation = generation(in.generation());
    out.rank = number<std::uint32_t>("death.rank", in.rank(), 0, nodes_limit * workers_per_node_limit - 1);
    out.local_rank = number<std::uint32_t>("death.local_rank", in.local_rank(), 0, workers_per_node_limit - 1);
    out.host = said("death.host", in.host(), death_line_max);
    out.pid = number<std::int64_t>("death.pid", in.pid(), 0, INT32_MAX);
    out.exit_code = number<std::int32_t>("death.exit_code", in.exit_code(), 0, 255);
    out.signal = number<std::int32_t>("death.signal", in.signal(), 0, 127);
    out.wall_ns = number<std::int64_t>("death.wall_ns", in.wall_ns(), 0, INT64_MAX);
    out.program = said("death.program", in.program(), death_line_max);
    out.error_file = said("death.error_file", in.error_file(), death_line_max);
    out.error = said("death.error", in.error(), death_line_max);
    out.traceback = said("death.traceback", in.traceback(), death_traceback_max, Lines::many);
    out.last_lines = said("death.last_lines", in.last_lines(), death_last_lines_max, Lines::many);
    out.evidence = said("death.evidence", in.evidence(), death_line_max);
    out.never_ran = in.never_ran();
    return out;
  }
  template <class Wire>
  std::optional<std::uint32_t> coordinated_by(const Wire& in) {
    if (!in.has_coordinated_by()) return {};
    return number<std::uint32_t>("coordinated_by", in.coordinated_by(), 0, nodes_limit - 1);
  }
  std::uint16_t port(std::string_view field, std::uint32_t value) {
    return static_cast<std::uint16_t>(number<std::uint32_t>(field, value, 0, UINT16_MAX));
  }
  void fail(std::string why) {
    if (problem_.empty()) problem_ = std::move(why);
  }
  template <class Variant, class Message>
  Result<std::optional<Variant>> finish(Message message) {
    if (problem_.empty()) return std::optional<Variant>{std::move(message)};
    return Failure{Code::protocol, Remedy::abort_group, fmt::format("{}: {}", kind_, problem_)};
  }

 private:
  std::string_view kind_;
  std::string problem_;
};

std::string cut(const std::string& text) { return text.substr(0, wire_text_max); }

void put(const Generation& generation, wire::Generation& out) {
  out.set_number(generation.number);
  out.set_lineage_high(generation.lineage.bits[0]);
  out.set_lineage_low(generation.lineage.bits[1]);
}

void put(const Failure& failure, wire::Failure& out) {
  out.set_code(static_cast<std::uint32_t>(failure.code));
  out.set_remedy(static_cast<std::uint32_t>(failure.remedy));
  out.set_what(cut(failure.what));
  if (failure.rank) out.set_rank(failure.rank->value());
  if (failure.peer) out.set_peer(failure.peer->value());
  if (failure.generation) put(*failure.generation, *out.mutable_generation());
  out.set_node(failure.node);
}

void put(const Seat& seat, wire::Seat& out) {
  out.set_group_rank(seat.group_rank);
  out.set_base_rank(seat.base_rank);
  out.set_nodes(seat.nodes);
  out.set_world_size(seat.world_size);
  out.set_roster(seat.roster);
}

void put(const WorkerDeath& any, wire::WorkerDeath& out) {
  const WorkerDeath death = bounded(any);
  out.set_node(death.node.value());
  put(death.generation, *out.mutable_generation());
  out.set_rank(death.rank);
  out.set_local_rank(death.local_rank);
  out.set_host(death.host);
  out.set_pid(death.pid);
  out.set_exit_code(death.exit_code);
  out.set_signal(death.signal);
  out.set_wall_ns(death.wall_ns);
  out.set_program(death.program);
  out.set_error_file(death.error_file);
  out.set_error(death.error);
  out.set_traceback(death.traceback);
  out.set_last_lines(death.last_lines);
  out.set_evidence(death.evidence);
  out.set_never_ran(death.never_ran);
}

void put(const RestartCounts& counts, wire::RestartCounts& out) {
  out.set_generations(counts.generations);
  out.set_used(counts.used);
}

RestartCounts read(const wire::RestartCounts& in) { return {in.generations(), in.used()}; }

ByteSpan bytes_of(const std::string& text) { return as_bytes(text); }

struct PutNodeMessage {
  wire::ToCoordinator& out;
  void operator()(const Join& m) const {
    wire::Join& join = *out.mutable_join();
    join.set_node(m.who.node.value());
    join.set_incarnation(m.who.number);
    join.set_run(m.run.value());
    join.set_version(m.version);
    wire::RoundOptions& options = *join.mutable_options();
    options.set_nodes_min(m.options.nodes_min);
    options.set_nodes_max(m.options.nodes_max);
    options.set_last_call_ns(m.options.last_call.count());
    options.set_max_restarts(m.options.max_restarts);
    join.set_workers(m.workers);
    join.set_address(m.address);
    join.set_master_port(m.master_port);
    join.set_hint(m.hint);
    put(m.last, *join.mutable_last());
    join.set_resuming(m.resuming);
    if (m.seat) put(*m.seat, *join.mutable_seat());
    put(m.restarts, *join.mutable_restarts());
    join.set_topology(m.topology);
    join.set_heard(m.heard);
    join.set_broken(m.broken);
    join.set_role(m.role);
    if (m.coordinated_by) join.set_coordinated_by(*m.coordinated_by);
    join.set_place(m.place);
    join.set_confirms_verdict(m.confirms_verdict);
    join.set_coordinator_fell_silent(m.coordinator_fell_silent);
    join.set_may_coordinate(m.may_coordinate);
    join.set_stop_grace_ns(m.stop_grace.count());
    join.set_heartbeat_ns(m.heartbeat.count());
    join.set_prepares(m.prepares);
    join.set_preparedness(static_cast<std::uint32_t>(m.preparedness));
    join.set_has_trained(m.has_trained);
    if (m.liveness) join.set_liveness_address(m.liveness->address), join.set_liveness_port(m.liveness->port);
  }
  void operator()(const NodeAlive&) const { out.mutable_alive(); }
  void operator()(const Acknowledge& m) const { put(m.generation, *out.mutable_acknowledge()->mutable_generation()); }
  void operator()(const WorkerFailed& m) const {
    wire::WorkerFailed& failed = *out.mutable_worker_failed();
    put(m.generation, *failed.mutable_generation());
    failed.set_local_rank(m.local_rank);
    failed.set_exit_code(m.exit_code);
    failed.set_what(cut(m.what));
    failed.set_is_job(m.is_job);
    failed.set_ago_ns(m.ago.count());
    put(m.death, *failed.mutable_death());
    if (m.rank) failed.set_rank(*m.rank);
    failed.set_before_session(m.before_session);
    failed.set_before_return(m.before_return);
    if (m.successor_in) put(*m.successor_in, *failed.mutable_successor_in());
  }
  void operator()(const WorkersDone& m) const {
    put(m.generation, *out.mutable_workers_done()->mutable_generation());
    out.mutable_workers_done()->set_before_session(m.before_session);
  }
  void operator()(const JobFinished& m) const { put(m.generation, *out.mutable_job_finished()->mutable_generation()); }
  void operator()(const Progress& m) const {
    put(m.generation, *out.mutable_progress()->mutable_generation());
    out.mutable_progress()->set_step(m.step);
  }
  void operator()(const Leave& m) const { out.mutable_leave()->set_why(cut(m.why)); }
  void operator()(const StoreCall& m) const {
    const ByteVector request = encode_payload(m.request);
    out.mutable_store_call()->set_worker(m.worker);
    out.mutable_store_call()->set_request(request.data(), request.size());
  }
  void operator()(const StoreCallerGone& m) const { out.mutable_store_caller_gone()->set_worker(m.worker); }
  void operator()(const VerdictReceived&) const { out.mutable_verdict_heard(); }
  void operator()(const MoreWorkers& m) const {
    put(m.generation, *out.mutable_more_workers()->mutable_generation());
    out.mutable_more_workers()->set_count(m.count);
  }
  void operator()(const WorkersAreJob& m) const {
    put(m.generation, *out.mutable_workers_are_job()->mutable_generation());
    out.mutable_workers_are_job()->set_stays(m.stays);
  }
  void operator()(const PeerUnreachable& m) const {
    wire::PeerUnreachable& unreachable = *out.mutable_peer_unreachable();
    put(m.generation, *unreachable.mutable_generation());
    unreachable.set_rank(m.rank);
    unreachable.set_peer(m.peer);
    unreachable.set_is_job(m.is_job);
    unreachable.set_what(cut(m.what));
  }
  void operator()(const WorkersStarting& m) const {
    wire::WorkersStarting& starting = *out.mutable_workers_starting();
    put(m.generation, *starting.mutable_generation());
    starting.set_rank(m.rank);
    starting.set_count(m.count);
    starting.set_ago_ns(m.ago.count());
    starting.set_opened(m.opened);
    starting.set_watched(m.watched);
  }
  void operator()(const AgentEnded& m) const {
    wire::AgentEnded& ended = *out.mutable_agent_ended();
    ended.set_node(m.who.node.value());
    ended.set_incarnation(m.who.number);
    put(m.last, *ended.mutable_last());
  }
  void operator()(const NotPrepared& m) const {
    wire::NotPrepared& not_prepared = *out.mutable_not_prepared();
    put(m.beside, *not_prepared.mutable_beside());
    not_prepared.set_what(cut(m.what));
    not_prepared.set_exit_code(m.exit_code);
    not_prepared.set_before_session(m.before_session);
  }
};

void put(const World& m, wire::World& world) {
  put(m.generation, *world.mutable_generation());
  world.set_key(m.key.data(), m.key.size());
  put(m.seat, *world.mutable_seat());
  world.set_address(m.address);
  world.set_master_address(m.master_address);
  world.set_master_port(m.master_port);
  put(m.restarts, *world.mutable_restarts());
  world.set_cause(cut(m.cause));
  world.set_role_base_rank(m.role.base_rank);
  world.set_role_world_size(m.role.world_size);
  if (m.coordinated_by) world.set_coordinated_by(*m.coordinated_by);
  world.set_takes_more(m.takes_more);
}

void put(const Verdict& m, wire::Verdict& out) {
  out.set_exit_code(m.exit_code);
  out.set_report(cut(m.report));
  for (std::size_t i = 0; i < std::min(m.deaths.size(), deaths_max); ++i) put(m.deaths[i], *out.add_deaths());
  if (m.generation.number != 0) put(m.generation, *out.mutable_generation());
}

struct PutCoordinatorMessage {
  wire::ToNode& out;
  void operator()(const Refused& m) const { put(m.failure, *out.mutable_refused()->mutable_failure()); }
  void operator()(const Waiting& m) const {
    out.mutable_waiting()->set_why(cut(m.why));
    if (m.running.number != 0) put(m.running, *out.mutable_waiting()->mutable_running());
    out.mutable_waiting()->set_for_this_node(m.for_this_node);
    if (m.decided) put(*m.decided, *out.mutable_waiting()->mutable_decided());
  }
  void operator()(const World& m) const { put(m, *out.mutable_world()); }
  void operator()(const Prepare& m) const { put(m.beside, *out.mutable_prepare()->mutable_beside()); }
  void operator()(const Revoke& m) const {
    put(m.generation, *out.mutable_revoke()->mutable_generation());
    put(m.why, *out.mutable_revoke()->mutable_why());
    if (m.cause) out.mutable_revoke()->set_cause(static_cast<std::uint32_t>(*m.cause));
  }
  void operator()(const Resumed& m) const {
    put(m.generation, *out.mutable_resumed()->mutable_generation());
    out.mutable_resumed()->set_fresh(m.fresh);
    if (m.coordinated_by) out.mutable_resumed()->set_coordinated_by(*m.coordinated_by);
  }
  void operator()(const Verdict& m) const { put(m, *out.mutable_verdict()); }
  void operator()(const StoreResult& m) const {
    const ByteVector reply = encode_payload(m.reply);
    out.mutable_store_result()->set_worker(m.worker);
    out.mutable_store_result()->set_reply(reply.data(), reply.size());
  }
};

Result<std::optional<NodeMessage>> read(const wire::Join& in) {
  Checker check{"Join"};
  Join out;
  out.who.node = NodeId{check.text("node", in.node(), wire_name_max)};
  out.who.number = in.incarnation();
  out.run = RunId{check.text("run", in.run(), wire_name_max)};
  out.version = check.text("version", in.version(), wire_name_max);
  out.options.nodes_min = check.number<std::uint32_t>("nodes_min", in.options().nodes_min(), 0, nodes_limit);
  out.options.nodes_max = check.number<std::uint32_t>("nodes_max", in.options().nodes_max(), 0, nodes_limit);
  out.options.last_call = Duration{check.number<std::int64_t>("last_call", in.options().last_call_ns(), 0, Duration{24h}.count())};
  out.options.max_restarts = check.number<std::int32_t>("max_restarts", in.options().max_restarts(), -1, INT32_MAX);
  out.workers = check.number<std::uint32_t>("workers", in.workers(), 0, workers_per_node_limit);
  out.address = check.text("address", in.address(), wire_name_max);
  out.master_port = check.port("master_port", in.master_port());
  out.hint = check.number<std::int32_t>("hint", in.hint(), -1, INT32_MAX);
  out.last = check.generation(in.last());
  out.resuming = in.resuming();
  if (in.has_seat()) out.seat = check.seat(in.seat());
  out.restarts = read(in.restarts());
  out.topology = check.text("topology", in.topology(), wire_name_max);
  out.heard = check.number<std::uint64_t>("heard", in.heard(), 0, generation_number_max);
  out.broken = in.broken();
  out.role = check.text("role", in.role(), wire_name_max);
  out.coordinated_by = check.coordinated_by(in);
  out.place = check.text("place", in.place(), wire_name_max);
  out.confirms_verdict = in.confirms_verdict();
  out.coordinator_fell_silent = in.coordinator_fell_silent();
  out.may_coordinate = in.may_coordinate();
  out.stop_grace = Duration{check.number<std::int64_t>("stop_grace", in.stop_grace_ns(), 0, stop_grace_told_max.count())};
  out.heartbeat = Duration{check.number<std::int64_t>("heartbeat", in.heartbeat_ns(), 0, heartbeat_told_max.count())};
  out.prepares = in.prepares();
  if (in.preparedness() <= static_cast<std::uint32_t>(preparedness_last))  // what only a later version knows is none
    out.preparedness = static_cast<Preparedness>(in.preparedness());
  out.has_trained = in.has_trained();
  const std::string liveness_address = check.text("liveness_address", in.liveness_address(), wire_name_max);
  const std::uint16_t liveness_port = check.port("liveness_port", in.liveness_port());
  if (!liveness_address.empty() && liveness_port != 0) out.liveness = LivenessPort{liveness_address, liveness_port};
  return check.finish<NodeMessage>(std::move(out));
}

Result<std::optional<NodeMessage>> read(const wire::WorkerFailed& in) {
  Checker check{"WorkerFailed"};
  WorkerFailed out;
  out.generation = check.generation(in.generation());
  out.local_rank = check.number<std::uint32_t>("local_rank", in.local_rank(), 0, workers_per_node_limit - 1);
  out.exit_code = check.number<std::int32_t>("exit_code", in.exit_code(), 0, 255);
  out.what = check.said("what", in.what(), wire_text_max);
  out.is_job = in.is_job();
  out.ago = Duration{check.number<std::int64_t>("ago", in.ago_ns(), 0, Duration{24h}.count())};
  if (in.has_death()) out.death = check.death(in.death());
  if (in.has_rank()) out.rank = check.number<std::uint32_t>("rank", in.rank(), 0, nodes_limit * workers_per_node_limit - 1);
  out.before_session = in.before_session();
  out.before_return = in.before_return();
  if (in.has_successor_in()) out.successor_in = check.generation(in.successor_in());
  return check.finish<NodeMessage>(std::move(out));
}

Result<std::optional<NodeMessage>> read(const wire::PeerUnreachable& in) {
  Checker check{"PeerUnreachable"};
  PeerUnreachable out;
  out.generation = check.generation(in.generation());
  out.rank = check.number<std::uint32_t>("rank", in.rank(), 0, nodes_limit * workers_per_node_limit - 1);
  out.peer = check.number<std::uint32_t>("peer", in.peer(), 0, nodes_limit * workers_per_node_limit - 1);
  out.is_job = in.is_job();
  out.what = check.text("what", in.what(), wire_text_max);
  return check.finish<NodeMessage>(std::move(out));
}

Result<std::optional<NodeMessage>> read(const wire::WorkersStarting& in) {
  Checker check{"WorkersStarting"};
  WorkersStarting out;
  out.generation = check.generation(in.generation());
  out.rank = check.number<std::uint32_t>("rank", in.rank(), 0, nodes_limit * workers_per_node_limit - 1);
  out.count = check.number<std::uint32_t>("count", in.count(), 0, workers_per_node_limit);
  out.ago = Duration{check.number<std::int64_t>("ago", in.ago_ns(), 0, Duration{24h}.count())};
  out.opened = in.opened();
  out.watched = in.watched();
  return check.finish<NodeMessage>(out);
}

Result<std::optional<NodeMessage>> read(const wire::AgentEnded& in) {
  Checker check{"AgentEnded"};
  AgentEnded out;
  out.who.node = NodeId{check.text("node", in.node(), wire_name_max)};
  out.who.number = in.incarnation();
  out.last = check.generation(in.last());
  return check.finish<NodeMessage>(std::move(out));
}

Result<std::optional<NodeMessage>> read(const wire::NotPrepared& in) {
  Checker check{"NotPrepared"};
  NotPrepared out;
  out.beside = check.generation(in.beside());
  out.what = check.said("what", in.what(), wire_text_max);
  out.exit_code = check.number<std::int32_t>("exit_code", in.exit_code(), 0, 255);
  out.before_session = in.before_session();
  return check.finish<NodeMessage>(std::move(out));
}

World world_of(const wire::World& in, Checker& check) {
  World out;
  out.generation = check.generation(in.generation());
  if (in.key().size() == out.key.size()) std::memcpy(out.key.data(), in.key().data(), out.key.size());
  else check.fail(fmt::format("the key has {} bytes, not {}", in.key().size(), out.key.size()));
  out.seat = check.seat(in.seat());
  out.address = check.name("address", in.address());
  out.master_address = check.name("master_address", in.master_address());
  out.master_port = check.port("master_port", in.master_port());
  out.restarts = read(in.restarts());
  out.cause = check.said("cause", in.cause(), wire_text_max, Lines::many);
  out.role.world_size = check.number<std::uint32_t>("role_world_size", in.role_world_size(), 0, out.seat.world_size);
  out.role.base_rank = check.number<std::uint32_t>("role_base_rank", in.role_base_rank(), 0, std::max(out.role.world_size, 1u) - 1);
  out.coordinated_by = check.coordinated_by(in);
  out.takes_more = in.takes_more();
  return out;
}

Result<std::optional<CoordinatorMessage>> read(const wire::World& in) {
  Checker check{"World"};
  World out = world_of(in, check);
  return check.finish<CoordinatorMessage>(std::move(out));
}

Result<std::optional<CoordinatorMessage>> read(const wire::Prepare& in) {
  Checker check{"Prepare"};
  Prepare out{world_of(in.beside(), check)};
  return check.finish<CoordinatorMessage>(std::move(out));
}

template <class Message>
Result<std::optional<NodeMessage>> read_generation(std::string_view kind, const wire::Generation& in) {
  Checker check{kind};
  return check.finish<NodeMessage>(Message{check.generation(in)});
}

template <class Wire, class Value>
Result<std::optional<Value>> parse(ByteSpan bytes) {
  Wire in;
  if (bytes.size() > wire_message_max.value() || !in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return Failure{Code::protocol, Remedy::abort_group, "not a message of elrun's rendezvous"};
  return from_wire(in);
}

template <class Wire, class Value>
ByteVector serialize(const Value& message) {
  Wire out;
  to_wire(message, out);
  ByteVector bytes(out.ByteSizeLong());
  out.SerializeToArray(bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

}  // namespace

void to_wire(const NodeMessage& message, wire::ToCoordinator& out) { std::visit(PutNodeMessage{out}, message); }
void to_wire(const CoordinatorMessage& message, wire::ToNode& out) { std::visit(PutCoordinatorMessage{out}, message); }

Result<std::optional<NodeMessage>> from_wire(const wire::ToCoordinator& in) {
  switch (in.content_case()) {
    case wire::ToCoordinator::kJoin: return read(in.join());
    case wire::ToCoordinator::kAlive: return std::optional<NodeMessage>{NodeAlive{}};
    case wire::ToCoordinator::kAcknowledge: return read_generation<Acknowledge>("Acknowledge", in.acknowledge().generation());
    case wire::ToCoordinator::kWorkerFailed: return read(in.worker_failed());
    case wire::ToCoordinator::kWorkersDone: {
      Checker check{"WorkersDone"};
      return check.finish<NodeMessage>(WorkersDone{check.generation(in.workers_done().generation()), in.workers_done().before_session()});
    }
    case wire::ToCoordinator::kJobFinished: return read_generation<JobFinished>("JobFinished", in.job_finished().generation());
    case wire::ToCoordinator::kProgress: {
      Checker check{"Progress"};
      return check.finish<NodeMessage>(Progress{check.generation(in.progress().generation()), in.progress().step()});
    }
    case wire::ToCoordinator::kLeave: {
      Checker check{"Leave"};
      return check.finish<NodeMessage>(Leave{check.said("why", in.leave().why(), wire_text_max)});
    }
    case wire::ToCoordinator::kStoreCall: {
      ELRUN_TRY_ASSIGN(StoreRequest request, decode_store_request(bytes_of(in.store_call().request())));
      return std::optional<NodeMessage>{StoreCall{in.store_call().worker(), std::move(request)}};
    }
    case wire::ToCoordinator::kStoreCallerGone: return std::optional<NodeMessage>{StoreCallerGone{in.store_caller_gone().worker()}};
    case wire::ToCoordinator::kVerdictHeard: return std::optional<NodeMessage>{VerdictReceived{}};
    case wire::ToCoordinator::kMoreWorkers: {
      Checker check{"MoreWorkers"};
      const auto count = check.number<std::uint32_t>("count", in.more_workers().count(), 0, workers_per_node_limit);
      return check.finish<NodeMessage>(MoreWorkers{check.generation(in.more_workers().generation()), count});
    }
    case wire::ToCoordinator::kWorkersAreJob: {
      Checker check{"WorkersAreJob"};
      return check.finish<NodeMessage>(WorkersAreJob{check.generation(in.workers_are_job().generation()), in.workers_are_job().stays()});
    }
    case wire::ToCoordinator::kPeerUnreachable: return read(in.peer_unreachable());
    case wire::ToCoordinator::kWorkersStarting: return read(in.workers_starting());
    case wire::ToCoordinator::kAgentEnded: return read(in.agent_ended());
    case wire::ToCoordinator::kNotPrepared: return read(in.not_prepared());
    case wire::ToCoordinator::CONTENT_NOT_SET: break;
  }
  return std::optional<NodeMessage>{};
}

Verdict verdict(Checker& check, const wire::Verdict& in) {
  Verdict out;
  out.exit_code = check.number<std::int32_t>("exit_code", in.exit_code(), 0, 255);
  out.report = check.said("report", in.report(), wire_text_max, Lines::many);
  for (const wire::WorkerDeath& death : in.deaths())
    if (out.deaths.size() < deaths_max) out.deaths.push_back(check.death(death));
  if (in.has_generation()) out.generation = check.generation(in.generation());
  return out;
}

Result<std::optional<CoordinatorMessage>> from_wire(const wire::ToNode& in) {
  switch (in.content_case()) {
    case wire::ToNode::kRefused: {
      Checker check{"Refused"};
      return check.finish<CoordinatorMessage>(Refused{check.failure(in.refused().failure())});
    }
    case wire::ToNode::kWaiting: {
      Checker check{"Waiting"};
      const std::string why = check.said("why", in.waiting().why(), wire_text_max, Lines::many);
      Waiting out{why, check.generation(in.waiting().running()), in.waiting().for_this_node()};
      if (in.waiting().has_decided()) out.decided = verdict(check, in.waiting().decided());
      return check.finish<CoordinatorMessage>(std::move(out));
    }
    case wire::ToNode::kWorld: return read(in.world());
    case wire::ToNode::kRevoke: {
      Checker check{"Revoke"};
      const Generation generation = check.generation(in.revoke().generation());
      std::optional<EndCause> cause;
      if (in.revoke().has_cause())  // one that only a later version knows is another
        cause = in.revoke().cause() <= static_cast<std::uint32_t>(end_cause_last) ? static_cast<EndCause>(in.revoke().cause())
                                                                                  : EndCause::other;
      return check.finish<CoordinatorMessage>(Revoke{generation, check.failure(in.revoke().why()), cause});
    }
    case wire::ToNode::kResumed: {
      Checker check{"Resumed"};
      const Generation generation = check.generation(in.resumed().generation());
      return check.finish<CoordinatorMessage>(Resumed{generation, in.resumed().fresh(), check.coordinated_by(in.resumed())});
    }
    case wire::ToNode::kVerdict: {
      Checker check{"Verdict"};
      Verdict out = verdict(check, in.verdict());
      return check.finish<CoordinatorMessage>(std::move(out));
    }
    case wire::ToNode::kStoreResult: {
      ELRUN_TRY_ASSIGN(StoreReply reply, decode_store_reply(bytes_of(in.store_result().reply())));
      return std::optional<CoordinatorMessage>{StoreResult{in.store_result().worker(), std::move(reply)}};
    }
    case wire::ToNode::kPrepare: return read(in.prepare());
    case wire::ToNode::kAlive:  // the shell's
    case wire::ToNode::CONTENT_NOT_SET: break;
  }
  return std::optional<CoordinatorMessage>{};
}

Result<std::optional<NodeMessage>> node_message_from_bytes(ByteSpan bytes) { return parse<wire::ToCoordinator, NodeMessage>(bytes); }
Result<std::optional<CoordinatorMessage>> coordinator_message_from_bytes(ByteSpan bytes) {
  return parse<wire::ToNode, CoordinatorMessage>(bytes);
}
ByteVector to_wire_bytes(const NodeMessage& message) { return serialize<wire::ToCoordinator>(message); }
ByteVector to_wire_bytes(const CoordinatorMessage& message) { return serialize<wire::ToNode>(message); }

}  // namespace elrun::inline v0
