#include "rendezvous/net/wire.hpp"

#include "rendezvous/round/round.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

#include <vector>

namespace elrun::test {
namespace {

using Catch::Matchers::Contains;

const Generation twelve{12, {{0x0123456789abcdef, 0xfedcba9876543210}}};

Join a_join() {
  Join join;
  join.who = {NodeId{"node-a"}, 0xffffffffffffffff};
  join.run = RunId{"run"};
  join.version = "0.1.0";
  join.options = {.nodes_min = 2, .nodes_max = 5, .last_call = 1500ms, .max_restarts = -1};
  join.workers = 8;
  join.address = "fe80::1";
  join.master_port = 65535;
  join.hint = -1;
  join.last = twelve;
  join.resuming = true;
  join.seat = Seat{2, 9, 5, 21, 0xfedcba9876543210};
  join.restarts = {3, 2};
  join.topology = "zone-1/rack 7/host";
  join.heard = 11;
  join.broken = true;
  join.role = "trainer";
  join.coordinated_by = 0;
  join.place = "00ff";
  join.confirms_verdict = true;
  join.coordinator_fell_silent = true;
  join.may_coordinate = true;
  join.heartbeat = 10s;
  join.stop_grace = 300s;
  join.prepares = true;
  join.preparedness = Preparedness::ready;
  join.has_trained = true;
  join.liveness = LivenessPort{"10.0.0.2", 41000};
  return join;
}

World a_world() {
  World world;
  world.generation = twelve;
  world.key.fill(std::byte{0xa5});
  world.seat = {1, 3, 2, 5, 77};
  world.address = "10.0.0.2";
  world.master_address = "10.0.0.1";
  world.master_port = 2;
  world.restarts = {4, 1};
  world.cause = "node c is lost";
  world.role = {2, 4};
  world.coordinated_by = 1;
  world.takes_more = true;
  return world;
}

WorkerDeath a_death() {
  return {NodeId{"node-b"},
          twelve,
          21,
          3,
          "pod-7",
          4711,
          0,
          9,
          1'700'000'000'123'456'789,
          "train.py",
          "/logs/error.json",
          "ValueError: \xff",
          "Traceback",
          "last words",
          "oom_kill",
          true};
}

NodeMessage there_and_back(const NodeMessage& message) {
  const auto back = node_message_from_bytes(to_wire_bytes(message));
  REQUIRE(back.ok());
  REQUIRE(back.value());
  CHECK(to_wire_bytes(**back) == to_wire_bytes(message));
  return **back;
}
CoordinatorMessage there_and_back(const CoordinatorMessage& message) {
  const auto back = coordinator_message_from_bytes(to_wire_bytes(message));
  REQUIRE(back.ok());
  REQUIRE(back.value());
  CHECK(to_wire_bytes(**back) == to_wire_bytes(message));
  return **back;
}

template <class Message>
std::string refusal(Message message) {
  const auto back = [&] {
    if constexpr (std::is_constructible_v<NodeMessage, Message>) return node_message_from_bytes(to_wire_bytes(NodeMessage{message}));
    else return coordinator_message_from_bytes(to_wire_bytes(CoordinatorMessage{message}));
  }();
  REQUIRE_FALSE(back.ok());
  CHECK(back.failure().code == Code::protocol);
  return back.failure().what;
}

}  // namespace

TEST_CASE("why a connection could not be made is told in the system's words", "[wire]") {
  CHECK(
      in_plain_words(
          "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused") ==
      "Connection refused");
  CHECK(in_plain_words("Failed to connect to remote host: ") == "");
  CHECK(in_plain_words("no answer within 5 s") == "no answer within 5 s");
  for (const char* silence :
       {"keepalive watchdog timeout", "ping timeout, keepalive", "recvmsg:Connection timed out", "recvmsg: No route to host"})
    CHECK(tells_of_silence(silence));
  for (const char* end : {"Connection reset by peer", "Socket closed", "Connection refused", "GOAWAY received", "no answer within 5 s", ""})
    CHECK_FALSE(tells_of_silence(end));
}

TEST_CASE("every message arrives as it was sent", "[wire]") {
  const auto join = std::get<Join>(there_and_back(NodeMessage{a_join()}));
  CHECK(join.who == a_join().who);
  CHECK(join.run == a_join().run);
  CHECK(join.version == "0.1.0");
  CHECK(join.options == a_join().options);
  CHECK(join.workers == 8);
  CHECK(join.address == "fe80::1");
  CHECK(join.master_port == 65535);
  CHECK(join.hint == -1);
  CHECK(join.last == twelve);
  CHECK(join.resuming);
  CHECK(join.broken);
  CHECK(join.coordinated_by == 0);
  CHECK(join.place == "00ff");
  CHECK(join.confirms_verdict);
  CHECK(join.may_coordinate);
  CHECK(join.heartbeat == 10s);
  CHECK(join.stop_grace == 300s);
  CHECK(join.prepares);
  CHECK(join.preparedness == Preparedness::ready);
  CHECK(join.has_trained);
  CHECK(join.liveness == LivenessPort{"10.0.0.2", 41000});
  CHECK(std::get<Prepare>(there_and_back(CoordinatorMessage{Prepare{a_world()}})).beside == a_world());
  const auto not_prepared = std::get<NotPrepared>(there_and_back(NodeMessage{NotPrepared{twelve, "exit code 3 \xff", 3, true}}));
  CHECK(not_prepared.beside == twelve);
  CHECK(not_prepared.what == "exit code 3 \xff");
  CHECK(not_prepared.exit_code == 3);
  CHECK(not_prepared.before_session);
  CHECK(std::get<World>(there_and_back(CoordinatorMessage{a_world()})) == a_world());

  there_and_back(NodeMessage{NodeAlive{}});
  CHECK(std::holds_alternative<VerdictReceived>(there_and_back(NodeMessage{VerdictReceived{}})));
  CHECK(std::get<Acknowledge>(there_and_back(NodeMessage{Acknowledge{twelve}})).generation == twelve);
  const auto failed = std::get<WorkerFailed>(
      there_and_back(NodeMessage{WorkerFailed{twelve, 3, 137, "signal 9 (SIGKILL) \xff\xfe", true, 70ms, a_death()}}));
  CHECK(failed.local_rank == 3);
  CHECK(failed.exit_code == 137);
  CHECK(failed.what == "signal 9 (SIGKILL) \xff\xfe");  // what a worker printed need not be UTF-8
  CHECK(failed.is_job);
  CHECK(failed.ago == 70ms);
  CHECK(failed.death == a_death());
  CHECK_FALSE(failed.rank);
  CHECK(std::get<WorkerFailed>(there_and_back(NodeMessage{WorkerFailed{twelve, 3, 1, "exit code 1", true, 0s, {}, 6}})).rank == 6);
  CHECK(std::get<MoreWorkers>(there_and_back(NodeMessage{MoreWorkers{twelve, 3}})).generation == twelve);
  CHECK(std::get<MoreWorkers>(there_and_back(NodeMessage{MoreWorkers{twelve, 3}})).count == 3);
  CHECK(std::get<WorkersAreJob>(there_and_back(NodeMessage{WorkersAreJob{twelve, true}})).generation == twelve);
  CHECK(std::get<WorkersAreJob>(there_and_back(NodeMessage{WorkersAreJob{twelve, true}})).stays);
  const auto unreachable = std::get<PeerUnreachable>(there_and_back(NodeMessage{PeerUnreachable{twelve, 3, 5, true, "no answer"}}));
  CHECK(unreachable.generation == twelve);
  CHECK(unreachable.rank == 3);
  CHECK(unreachable.peer == 5);
  CHECK(unreachable.is_job);
  CHECK(unreachable.what == "no answer");
  const auto starting = std::get<WorkersStarting>(there_and_back(NodeMessage{WorkersStarting{twelve, 3, 2, 15s, true, true}}));
  CHECK(starting.generation == twelve);
  CHECK(starting.rank == 3);
  CHECK(starting.count == 2);
  CHECK(starting.ago == 15s);
  CHECK((starting.opened && starting.watched));
  CHECK(std::get<Waiting>(there_and_back(CoordinatorMessage{Waiting{"for you", twelve, true}})).for_this_node);
  const auto decided =
      std::get<Waiting>(there_and_back(CoordinatorMessage{Waiting{"for etcd", {}, false, Verdict{3, "report", {a_death()}, twelve}}}))
          .decided;
  REQUIRE(decided);
  CHECK((decided->exit_code == 3 && decided->report == "report" && decided->deaths == std::vector{a_death()} &&
         decided->generation == twelve));
  CHECK(std::get<WorkersDone>(there_and_back(NodeMessage{WorkersDone{twelve}})).generation == twelve);
  CHECK(std::get<WorkersDone>(there_and_back(NodeMessage{WorkersDone{twelve, true}})).before_session);
  CHECK(std::get<WorkerFailed>(
            there_and_back(NodeMessage{WorkerFailed{.generation = twelve, .what = "exit code 127", .before_session = true}}))
            .before_session);
  for (const bool away : {false, true}) {
    const auto away_failed = std::get<WorkerFailed>(
        there_and_back(NodeMessage{WorkerFailed{.generation = twelve, .what = "exit code 3", .before_return = away}}));
    CHECK(away_failed.before_return == away);
    CHECK_FALSE(away_failed.before_session);
  }
  CHECK_FALSE(failed.successor_in);
  CHECK(std::get<WorkerFailed>(there_and_back(NodeMessage{
                                   WorkerFailed{.generation = twelve, .what = "exit code 3", .successor_in = Generation{11, {{5, 6}}}}}))
            .successor_in == Generation{11, {{5, 6}}});
  CHECK(std::get<JobFinished>(there_and_back(NodeMessage{JobFinished{twelve}})).generation == twelve);
  CHECK(std::get<Progress>(there_and_back(NodeMessage{Progress{twelve, 99}})).step == 99);
  CHECK(std::get<Leave>(there_and_back(NodeMessage{Leave{"why"}})).why == "why");
  CHECK(std::get<StoreCallerGone>(there_and_back(NodeMessage{StoreCallerGone{5}})).worker == 5);
  const auto ended = std::get<AgentEnded>(there_and_back(NodeMessage{AgentEnded{{NodeId{"a"}, ~std::uint64_t{0}}, twelve}}));
  CHECK(ended.who == Incarnation{NodeId{"a"}, ~std::uint64_t{0}});
  CHECK(ended.last == twelve);
  StoreRequest request{
      .id = 4, .op = StoreOp::all_gather, .generation = twelve, .wait = 3s, .keys = {"k"}, .value = ByteVector(5), .rank = 1, .count = 2};
  const auto call = std::get<StoreCall>(there_and_back(NodeMessage{StoreCall{6, request}}));
  CHECK(call.worker == 6);
  CHECK(call.request.id == 4);
  CHECK(call.request.keys == request.keys);
  CHECK(call.request.generation == twelve);

  const Failure why{Code::peer_lost, Remedy::rejoin, "gone", Rank{3}, Rank{0}, twelve, "node-b"};
  CHECK(message(std::get<Refused>(there_and_back(CoordinatorMessage{Refused{why}})).failure) == message(why));
  CHECK(message(std::get<Revoke>(there_and_back(CoordinatorMessage{Revoke{twelve, why}})).why) == message(why));
  for (const auto cause : {EndCause::other, EndCause::failure, EndCause::loss, EndCause::leave, EndCause::growth, EndCause::hang,
                           EndCause::unreachable, EndCause::stale})
    CHECK(std::get<Revoke>(there_and_back(CoordinatorMessage{Revoke{twelve, why, cause}})).cause == cause);
  CHECK_FALSE(std::get<Revoke>(there_and_back(CoordinatorMessage{Revoke{twelve, why}})).cause);
  const auto later = coordinator_message_from_bytes(to_wire_bytes(CoordinatorMessage{Revoke{twelve, why, static_cast<EndCause>(99)}}));
  REQUIRE(later.ok());
  CHECK(std::get<Revoke>(**later).cause == EndCause::other);
  CHECK(std::get<Waiting>(there_and_back(CoordinatorMessage{Waiting{"for you"}})).why == "for you");
  CHECK(std::get<Resumed>(there_and_back(CoordinatorMessage{Resumed{twelve}})).generation == twelve);
  CHECK_FALSE(std::get<Resumed>(there_and_back(CoordinatorMessage{Resumed{twelve}})).coordinated_by);
  CHECK(std::get<Resumed>(there_and_back(CoordinatorMessage{Resumed{twelve, true, 3}})).coordinated_by == 3);
  CHECK(std::get<Verdict>(there_and_back(CoordinatorMessage{Verdict{0, "", {}, twelve}})).generation == twelve);
  const auto verdict = std::get<Verdict>(there_and_back(CoordinatorMessage{Verdict{3, "report", {a_death(), {}}}}));
  CHECK(verdict.exit_code == 3);
  REQUIRE(verdict.deaths.size() == 2);
  CHECK(verdict.deaths[0] == a_death());
  StoreReply reply;
  reply.id = 8;
  reply.values = {ByteVector(3), {}};
  CHECK(std::get<StoreResult>(there_and_back(CoordinatorMessage{StoreResult{1, reply}})).reply.values == reply.values);
}

TEST_CASE("what people read comes in as it may be shown", "[wire]") {
  const std::string nasty = "a\x1b[2J\nb";
  WorkerFailed failed;
  failed.what = nasty;
  failed.death.error = nasty;
  failed.death.traceback = nasty;
  const auto in = std::get<WorkerFailed>(node_message_from_bytes(to_wire_bytes(NodeMessage{failed})).value().value());
  CHECK(in.what == "a\\x1b[2J\\x0ab");
  CHECK(in.death.error == in.what);
  CHECK(in.death.traceback == "a\\x1b[2J\nb");
  CHECK(std::get<Leave>(node_message_from_bytes(to_wire_bytes(NodeMessage{Leave{std::string(wire_text_max, '\x1b')}})).value().value())
            .why.size() <= wire_text_max);
  World world = a_world();
  world.master_address = nasty;
  CHECK_THAT(refusal(world), Contains("master_address has characters that cannot be shown"));
}

TEST_CASE("what is out of bounds is refused, with the field's name", "[wire]") {
  Join join = a_join();
  SECTION("a long name") {
    join.who.node = NodeId{std::string(wire_name_max + 1, 'n')};
    CHECK_THAT(refusal(join), Contains("node has 1025 bytes"));
  }
  SECTION("a long name of an agent that has ended") {
    CHECK_THAT(refusal(AgentEnded{{NodeId{std::string(wire_name_max + 1, 'n')}, 1}, twelve}), Contains("node has 1025 bytes"));
  }
  SECTION("too many nodes") {
    join.options.nodes_max = nodes_limit + 1;
    CHECK_THAT(refusal(join), Contains("nodes_max is 131073"));
  }
  SECTION("too many workers") {
    join.workers = workers_per_node_limit + 1;
    CHECK_THAT(refusal(join), Contains("workers"));
  }
  SECTION("a generation that leaves no room above it") {
    join.last.number = generation_number_max + 1;
    CHECK_THAT(refusal(join), Contains("generation"));
  }
  SECTION("a last call of a year") {
    join.options.last_call = 24h * 365;
    CHECK_THAT(refusal(join), Contains("last_call"));
  }
  SECTION("a sign of life a week") {
    join.heartbeat = 24h * 7;
    CHECK_THAT(refusal(join), Contains("heartbeat"));
  }
  SECTION("workers that take half a day to end") {
    join.stop_grace = 12h;
    CHECK_THAT(refusal(join), Contains("stop_grace"));
  }
  SECTION("a world in which the receiver has no place") {
    World world = a_world();
    world.seat.group_rank = 2;
    CHECK_THAT(refusal(world), Contains("group_rank is 2"));
  }
  SECTION("a world whose ranks end before the receiver's") {
    World world = a_world();
    world.seat.base_rank = 5;
    CHECK_THAT(refusal(world), Contains("base_rank is 5"));
  }
  SECTION("a place in a role that ends before it") {
    World world = a_world();
    world.role = {4, 4};
    CHECK_THAT(refusal(world), Contains("role_base_rank is 4"));
  }
  SECTION("a role that has more workers than the world") {
    World world = a_world();
    world.role = {0, 6};
    CHECK_THAT(refusal(world), Contains("role_world_size is 6"));
  }
  SECTION("a seat among more nodes than there may be") {
    join.seat->nodes = nodes_limit + 1;
    CHECK_THAT(refusal(join), Contains("seat.nodes is 131073"));
  }
  SECTION("a world of nobody") {
    World world = a_world();
    world.seat.nodes = 0;
    CHECK_THAT(refusal(world), Contains("seat.nodes is 0"));
  }
  SECTION("a failure of last year") { CHECK_THAT(refusal(WorkerFailed{twelve, 0, 1, "", false, 24h * 365, {}}), Contains("ago is")); }
  SECTION("a rank beyond all ranks") {
    WorkerDeath death = a_death();
    death.rank = ~std::uint32_t{0};
    CHECK_THAT(refusal(Verdict{1, "", {death}}), Contains("death.rank is 4294967295"));
  }
  SECTION("a signal that no system has") {
    WorkerDeath death = a_death();
    death.signal = 128;
    CHECK_THAT(refusal(Verdict{1, "", {death}}), Contains("death.signal is 128"));
  }
  SECTION("an exit code that no process has") { CHECK_THAT(refusal(Verdict{256, "", {}}), Contains("exit_code is 256")); }
}

namespace {

using FieldNumber = std::uint32_t;

void put_varint(ByteVector& out, std::uint64_t value) {
  for (; value >= 128; value >>= 7) out.push_back(static_cast<std::byte>(value | 128));
  out.push_back(static_cast<std::byte>(value));
}
ByteVector length_delimited(FieldNumber field, ByteSpan content) {
  ByteVector out;
  put_varint(out, field << 3 | 2);
  put_varint(out, content.size());
  out.insert(out.end(), content.begin(), content.end());
  return out;
}
/// One field of each shape, under numbers that this version does not have.
ByteVector unknown_fields() {
  ByteVector out;
  put_varint(out, 1000 << 3 | 0);
  put_varint(out, ~std::uint64_t{0});
  put_varint(out, 1001 << 3 | 1);
  out.resize(out.size() + 8, std::byte{0x5a});
  put_varint(out, 1002 << 3 | 5);
  out.resize(out.size() + 4, std::byte{0x5a});
  const ByteVector text = length_delimited(1003, ByteVector(300, std::byte{0xff}));
  out.insert(out.end(), text.begin(), text.end());
  return out;
}
/// The message as a later version would send it: with fields unknown here beside its content, in it, and in those messages
/// within that are named. (A message that occurs twice is one, says protobuf, with the fields of both.)
ByteVector from_a_later_version(const ByteVector& bytes, const std::vector<FieldNumber>& within) {
  ByteVector more = unknown_fields();
  for (const FieldNumber field : within) {
    const ByteVector nested = length_delimited(field, unknown_fields());
    more.insert(more.end(), nested.begin(), nested.end());
  }
  ByteVector later = unknown_fields();
  later.insert(later.end(), bytes.begin(), bytes.end());
  const ByteVector content = length_delimited(std::to_integer<FieldNumber>(bytes.at(0)) >> 3, more);
  later.insert(later.end(), content.begin(), content.end());
  return later;
}

}  // namespace

TEST_CASE("what only a later version says within a message is ignored, in both directions", "[wire]") {
  StoreRequest request{.id = 4, .op = StoreOp::add, .generation = twelve, .keys = {"k"}, .amount = 3};
  const std::pair<NodeMessage, std::vector<FieldNumber>> to_coordinator[] = {
      {a_join(), {5, 10, 12, 13}},
      {NodeAlive{}, {}},
      {Acknowledge{twelve}, {1}},
      {WorkerFailed{twelve, 3, 137, "signal 9", true, 1s, a_death()}, {1, 7}},
      {WorkersDone{twelve}, {1}},
      {JobFinished{twelve}, {1}},
      {Progress{twelve, 9}, {1}},
      {Leave{"why"}, {}},
      {StoreCall{6, request}, {}},
      {StoreCallerGone{5}, {}},
      {VerdictReceived{}, {}},
      {MoreWorkers{twelve}, {1}},
      {WorkersAreJob{twelve, true}, {1}},
      {PeerUnreachable{twelve, 3, 5, true, "why"}, {1}},
      {WorkersStarting{twelve, 3, 2, 15s, true, true}, {1}},
      {NotPrepared{twelve, "exit code 3", 3, true}, {1}}};
  for (const auto& [message, within] : to_coordinator) {
    CAPTURE(message.index());
    const auto understood = node_message_from_bytes(from_a_later_version(to_wire_bytes(message), within));
    REQUIRE(understood.ok());
    REQUIRE(understood.value());
    CHECK(to_wire_bytes(**understood) == to_wire_bytes(message));
  }
  const Failure why{Code::peer_lost, Remedy::rejoin, "gone", Rank{3}, Rank{0}, twelve, "node-b"};
  const std::pair<CoordinatorMessage, std::vector<FieldNumber>> to_node[] = {{Refused{why}, {1}},
                                                                             {Waiting{"for you", twelve}, {2}},
                                                                             {Waiting{"for etcd", twelve, false, Verdict{}}, {2, 4}},
                                                                             {a_world(), {1, 3, 7}},
                                                                             {Revoke{twelve, why, EndCause::loss}, {1, 2}},
                                                                             {Resumed{twelve, true, 2}, {1}},
                                                                             {Verdict{3, "report", {}}, {}},
                                                                             {StoreResult{1, StoreReply{.id = 8}}, {}},
                                                                             {Prepare{a_world()}, {1}}};
  for (const auto& [message, within] : to_node) {
    CAPTURE(message.index());
    const auto understood = coordinator_message_from_bytes(from_a_later_version(to_wire_bytes(message), within));
    REQUIRE(understood.ok());
    REQUIRE(understood.value());
    CHECK(to_wire_bytes(**understood) == to_wire_bytes(message));
  }
}

TEST_CASE("why a generation ended follows from the failure's code where an older coordinator did not tell it", "[wire]") {
  const auto cause = [](Failure why) { return end_cause_of(Revoke{twelve, std::move(why)}); };
  CHECK(cause({Code::generation_over, Remedy::rejoin, "the world grows by n"}) == EndCause::growth);
  CHECK(cause({Code::peer_lost, Remedy::rejoin, "worker 2 ended", Rank{2}}) == EndCause::failure);
  CHECK(cause({Code::peer_lost, Remedy::rejoin, "node m is lost"}) == EndCause::loss);
  CHECK(cause({Code::refused, Remedy::rejoin, "for another reason"}) == EndCause::other);
  CHECK(end_cause_of(Revoke{twelve, {Code::generation_over, Remedy::rejoin, "generation 12 is over"}, EndCause::stale}) == EndCause::stale);
}

TEST_CASE("a code or a remedy that only a later version knows is the gravest of this one", "[wire]") {
  const Failure later{static_cast<Code>(99), static_cast<Remedy>(99), "a new kind of failure"};
  const auto understood = coordinator_message_from_bytes(to_wire_bytes(CoordinatorMessage{Revoke{twelve, later}}));
  REQUIRE(understood.ok());
  const Failure& why = std::get<Revoke>(**understood).why;
  CHECK(why.code == Code::internal);
  CHECK(why.remedy == Remedy::exit_process);
  CHECK(why.what == later.what);
}

TEST_CASE("what an earlier version does not say has its default", "[wire]") {
  const ByteVector bytes = length_delimited(1, length_delimited(1, as_bytes("node-a")));  // a Join of a name alone
  const auto understood = node_message_from_bytes(bytes);
  REQUIRE(understood.ok());
  REQUIRE(understood.value());
  const Join& join = std::get<Join>(**understood);
  CHECK(join.who.node == NodeId{"node-a"});
  CHECK_FALSE(join.seat);
  CHECK_FALSE(join.resuming);
  CHECK_FALSE(join.coordinated_by);
  CHECK_FALSE(join.confirms_verdict);
  CHECK_FALSE(join.may_coordinate);
  CHECK(join.heartbeat == 0s);
  CHECK(join.stop_grace == 0s);
  CHECK_FALSE(join.has_trained);
  CHECK_FALSE(join.liveness);
  CHECK(join.restarts == RestartCounts{});
  CHECK(join.topology.empty());
}

TEST_CASE("a message of a kind that is not known is nothing, and garbage is refused", "[wire]") {
  const ByteVector newer{std::byte{0xba}, std::byte{0x06}, std::byte{0x00}};  // field 103, empty
  const auto message = node_message_from_bytes(newer);
  REQUIRE(message.ok());
  CHECK_FALSE(message.value());
  CHECK_FALSE(node_message_from_bytes(ByteVector(7, std::byte{0xff})).ok());
  CHECK_FALSE(coordinator_message_from_bytes(ByteVector(7, std::byte{0xff})).ok());
}

TEST_CASE("a long report is cut to what the other side takes", "[wire]") {
  const auto verdict = std::get<Verdict>(there_and_back(CoordinatorMessage{Verdict{1, std::string(10 * wire_text_max, 'x'), {}}}));
  CHECK(verdict.report.size() == wire_text_max);
}

TEST_CASE("what is known of a dead worker is cut where it matters least", "[wire]") {
  WorkerDeath death;
  death.error = "ValueError" + std::string(100'000, 'x');
  death.traceback = std::string(100'000, 'x') + "line 7";
  death.last_lines = std::string(100'000, 'x') + "last";
  const auto verdict = std::get<Verdict>(there_and_back(CoordinatorMessage{Verdict{1, "", std::vector(20, death)}}));
  REQUIRE(verdict.deaths.size() == deaths_max);
  CHECK(verdict.deaths[7].error.size() == death_line_max);
  CHECK_THAT(verdict.deaths[7].error, Catch::Matchers::StartsWith("ValueError"));
  CHECK(verdict.deaths[7].traceback.size() == death_traceback_max);
  CHECK_THAT(verdict.deaths[7].traceback, Catch::Matchers::EndsWith("line 7"));
  CHECK(verdict.deaths[7].last_lines.size() == death_last_lines_max);
  CHECK_THAT(verdict.deaths[7].last_lines, Catch::Matchers::EndsWith("last"));
}

TEST_CASE("bytes that were damaged on the way are a message, nothing, or refused; never more", "[wire][property]") {
  for_all_seeds(2000, [](Rng& rng) {
    ByteVector bytes = rng.chance(0.5) ? to_wire_bytes(NodeMessage{a_join()}) : to_wire_bytes(CoordinatorMessage{a_world()});
    for (std::uint64_t flips = 1 + rng.below(4); flips > 0; --flips)
      bytes[rng.below(bytes.size())] ^= std::byte{1} << static_cast<int>(rng.below(8));
    if (rng.chance(0.3)) bytes.resize(rng.below(bytes.size()));
    if (const auto in = node_message_from_bytes(bytes); in.ok() && in.value()) there_and_back(**in);
    if (const auto in = coordinator_message_from_bytes(bytes); in.ok() && in.value()) there_and_back(**in);
  });
}

}  // namespace elrun::test
