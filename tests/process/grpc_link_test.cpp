// The coordinator and its links for real: gRPC on loopback, port 0, one loop for all.

#include <arpa/inet.h>
#include <sys/socket.h>

#include <functional>
#include <future>
#include <memory>
#include <system_error>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "lib/base/fd.hpp"
#include "lib/link/store_memory.hpp"
#include "rendezvous/net/lookup.hpp"
#include "rendezvous/net/node_link.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {
namespace {

constexpr Duration patience = 60s;  // only a failing test waits for so long

/// A loop that runs until something is so.
struct Stage {
  boost::asio::io_context loop;
  SteadyClock clock;
  Log log{"coordinator", [](Level, std::string_view) {}};
  Timeouts timeouts;
  std::unique_ptr<Coordinator> coordinator;
  std::uint16_t port = 0;

  Stage() { make(0); }
  void make(std::uint64_t floor) {
    coordinator = Coordinator::create(loop, clock, log, {.run = RunId{"run"}, .timeouts = timeouts, .generation_floor = floor});
  }
  void serve() {
    const auto bound = coordinator->serve("127.0.0.1", port);
    REQUIRE(bound.ok());
    port = bound.value();
  }
  bool until(const std::function<bool()>& so) {
    const Instant end = clock.now() + patience;
    while (!so()) {
      if (clock.now() > end) return false;
      loop.restart();
      loop.run_one_for(100ms);
    }
    return true;
  }
};

/// A coordinator whose loop runs on a thread of its own, and stands still when it is told to.
class StandingStill {
 public:
  explicit StandingStill(Stage& stage) : stage_{stage}, thread_{[this] { stage_.loop.run(); }} {}
  ~StandingStill() {
    go_on();
    work_.reset();
    stage_.loop.stop();
    thread_.join();
  }
  StandingStill(const StandingStill&) = delete;
  StandingStill& operator=(const StandingStill&) = delete;
  void stand_still() {
    std::promise<void> stands;
    boost::asio::post(stage_.loop, [&] {
      stands.set_value();
      goes_on_.get_future().wait();
    });
    stands.get_future().wait();
  }
  void go_on() {
    if (!std::exchange(went_on_, true)) goes_on_.set_value();
  }

 private:
  Stage& stage_;
  std::promise<void> goes_on_;
  bool went_on_ = false;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{stage_.loop.get_executor()};
  std::thread thread_;
};

/// An agent of few words: joins when it is connected, and keeps what it is told.
struct Agent {
  Stage& world;
  std::string name;
  std::uint64_t incarnation = 1;
  RoundOptions options{.nodes_min = 2, .nodes_max = 2};
  bool running = false, confirms_verdict = false, took_leave = false;
  Generation last{};
  std::vector<CoordinatorMessage> heard{};
  std::vector<Failure> down{};
  std::unique_ptr<NodeLink> link{};
  StoreMemory memory{};

  NodeLink::Handler handler() {
    return {.connected = [this] { join(running); },
            .disconnected = [this](const Failure& why) { down.push_back(why); },
            .message =
                [this](const CoordinatorMessage& message) {
                  heard.push_back(message);
                  if (const auto* began = std::get_if<World>(&message)) last = began->generation, running = true;
                  if (std::holds_alternative<Revoke>(message)) {
                    running = false;
                    link->send(Acknowledge{last});
                    join(false);
                  }
                },
            .took_leave = [this] { took_leave = true; }};
  }
  void connect() { link = connect_to_coordinator(world.loop, {"127.0.0.1", world.port}, world.timeouts, incarnation, handler()); }
  void connect_to(const std::string& host) {
    link = connect_to_coordinator(world.loop, {host, world.port}, world.timeouts, incarnation, handler());
  }
  void join(bool resuming) {
    Join message;
    message.who = {NodeId{name}, incarnation};
    message.run = RunId{"run"};
    message.version = "0.1.0";
    message.options = options;
    message.address = link->local_address();
    message.last = last;
    message.resuming = resuming;
    message.confirms_verdict = confirms_verdict;
    if (resuming) message.seat = last_heard<World>().seat;
    link->send(message);
  }
  template <class T>
  [[nodiscard]] std::size_t count() const {
    return static_cast<std::size_t>(std::count_if(heard.begin(), heard.end(), [](const auto& m) { return std::holds_alternative<T>(m); }));
  }
  template <class T>
  [[nodiscard]] const T& last_heard() const {
    for (auto m = heard.rbegin(); m != heard.rend(); ++m)
      if (const T* found = std::get_if<T>(&*m)) return *found;
    FAIL("not heard");
    std::abort();
  }
};

StoreRequest request(const Agent& agent, StoreOp op, std::uint64_t id, std::string key, std::string_view value = {}) {
  StoreRequest out;
  out.id = id;
  out.op = op;
  out.generation = agent.last;
  out.wait = 10s;
  out.keys = {std::move(key)};
  out.value = {as_bytes(value).begin(), as_bytes(value).end()};
  return out;
}

}  // namespace

TEST_CASE("a coordinator whose loop stands still is noticed, although gRPC answers for it", "[grpc]") {
  Stage coordinates, own;
  coordinates.serve();
  own.port = coordinates.port;
  own.timeouts.heartbeat = 20ms;
  own.timeouts.heartbeat_limit = 2s;  // more than a loop that turns stands still on a busy machine
  Agent agent{own, "a"};
  {
    StandingStill coordinator{coordinates};
    agent.connect();
    // It answers: the line stays for longer than the limit. Where the system does not run the coordinator's thread, or one of gRPC's, for the whole limit, the line
    // is given up rightly, and comes back. Answers that are not sent or not counted would end it each time.
    bool stays = false;
    for (int tries = 0; tries < 5 && !stays; ++tries) {
      const std::size_t before = agent.heard.size();
      REQUIRE(own.until([&] { return agent.heard.size() > before; }));
      agent.down.clear();
      const Instant well_until = own.clock.now() + 2 * own.timeouts.heartbeat_limit;
      REQUIRE(own.until([&] { return own.clock.now() > well_until || !agent.down.empty(); }));
      stays = agent.down.empty();
    }
    REQUIRE(stays);
    coordinator.stand_still();
    REQUIRE(own.until([&] { return !agent.down.empty(); }));
    CHECK(agent.down.front().code == Code::deadline_passed);
    CHECK(agent.down.front().what.find("nothing came from it for 2 s") != std::string::npos);
    const std::size_t before = agent.heard.size();
    coordinator.go_on();
    REQUIRE(own.until([&] { return agent.heard.size() > before; }));  // its line is back
    agent.link.reset();
  }
}

TEST_CASE("two nodes form a world over gRPC; one is killed; it comes back, and they form the next", "[grpc]") {
  Stage world;
  world.serve();
  Agent a{world, "a"}, b{world, "b"};
  a.connect();
  b.connect();
  REQUIRE(world.until([&] { return a.running && b.running; }));
  CHECK(a.last_heard<World>().seat.roster == b.last_heard<World>().seat.roster);
  CHECK(a.last_heard<World>().key == b.last_heard<World>().key);
  CHECK(a.last_heard<World>().master_address == "127.0.0.1");

  b.link.reset();
  REQUIRE(world.until([&] { return a.count<Revoke>() == 1; }));
  CHECK(a.last_heard<Revoke>().why.node == "b");
  Agent again{world, "b", 2};
  again.connect();
  REQUIRE(world.until([&] { return a.count<World>() == 2 && again.running; }));
  CHECK(again.last.number == 2);

  a.link->send(JobFinished{a.last});
  REQUIRE(world.until([&] { return a.count<Verdict>() == 1 && again.count<Verdict>() == 1; }));
  REQUIRE(world.until([&] { return world.coordinator->may_exit(); }));  // both have ended their streams by themselves
}

TEST_CASE("an agent in the coordinator's process and one outside are equal", "[grpc]") {
  Stage world;
  world.serve();
  Agent a{world, "a"}, b{world, "b"};
  a.link = world.coordinator->connect_in_process(a.handler());
  CHECK(a.heard.empty());  // never in the caller's stack
  b.connect_to("localhost");
  REQUIRE(world.until([&] { return a.running && b.running; }));
  bool may_exit = false;
  world.coordinator->on_may_exit([&] { may_exit = true; });
  b.link->send(WorkersDone{b.last});
  a.link->send(WorkersDone{a.last});
  REQUIRE(world.until([&] { return may_exit; }));
  CHECK(a.last_heard<Verdict>().exit_code == 0);
  CHECK(b.last_heard<Verdict>().exit_code == 0);
}

TEST_CASE("an agent in the coordinator's process whose workers end too late loses its line, and is a newcomer on the next one", "[grpc]") {
  Stage world;
  world.timeouts.revocation = world.timeouts.stop_grace = 50ms;
  world.timeouts.heartbeat = 50ms, world.timeouts.heartbeat_limit = 500ms;
  world.make(0);
  world.serve();
  Agent a{world, "a", 1, {.nodes_min = 1, .nodes_max = 2, .last_call = 2s}},
      b{world, "b", 2, {.nodes_min = 1, .nodes_max = 2, .last_call = 2s}};
  std::size_t connected = 0;
  bool ends_workers = false;
  NodeLink::Handler handler = a.handler();
  handler.connected = [&] { ++connected, a.join(!ends_workers && a.last.number > 0); };
  handler.message = [&](const CoordinatorMessage& message) {
    a.heard.push_back(message);
    if (const auto* began = std::get_if<World>(&message)) a.last = began->generation;
  };
  a.link = world.coordinator->connect_in_process(handler);
  b.link =
      world.coordinator->connect_in_process(b.handler());  // not over gRPC, whose threads may not be run for as long as these limits are
  REQUIRE(world.until([&] { return a.count<World>() == 1 && b.running; }));
  b.link.reset();
  REQUIRE(world.until([&] { return a.count<Revoke>() == 1; }));
  REQUIRE(world.until([&] { return a.down.size() == 1 && connected == 2; }));
  CHECK(a.down[0].what.find("in this process ended the line") != std::string::npos);
  ends_workers = true;
  a.join(false);
  REQUIRE(world.until([&] { return a.count<World>() == 2; }));
  CHECK(a.last.number == 2);
  CHECK(connected == 2);
}

TEST_CASE("a line in the coordinator's process does not come back after the last word", "[grpc]") {
  Stage world;
  Agent a{world, "a"};
  std::size_t connected = 0;
  NodeLink::Handler handler = a.handler();
  handler.connected = [&] {
    ++connected;
    a.link->send(Join{.who = {NodeId{"a"}, 1}, .run = RunId{"another"}, .version = "0.1.0", .options = a.options});
  };
  a.link = world.coordinator->connect_in_process(handler);
  REQUIRE(world.until([&] { return a.count<Refused>() == 1; }));
  const Instant later = world.clock.now() + 1s;
  REQUIRE(world.until([&] { return world.clock.now() > later; }));
  CHECK(connected == 1);
  CHECK(a.down.empty());
}

TEST_CASE("a verdict is confirmed: the host may go, and so may the others, without any grace", "[grpc]") {
  Stage world;
  world.timeouts.verdict_linger = 1h;
  world.make(0);
  world.serve();
  Agent a{world, "a"}, b{world, "b"};
  a.link = world.coordinator->connect_in_process(a.handler());
  b.confirms_verdict = GENERATE(true, false);  // or it is of an earlier version
  b.connect();
  REQUIRE(world.until([&] { return a.running && b.running; }));
  CHECK_FALSE(b.link->is_taking_leave());
  a.link->send(JobFinished{a.last});
  REQUIRE(world.until([&] { return b.took_leave && world.coordinator->may_exit(); }));
  CHECK(b.count<Verdict>() == 1);
  CHECK_FALSE(b.link->is_taking_leave());
  CHECK_FALSE(a.link->is_taking_leave());
  CHECK(b.down.empty());
}

TEST_CASE("store calls go through, wait, and are fenced", "[grpc]") {
  Stage world;
  world.serve();
  Agent a{world, "a"}, b{world, "b"};
  a.link = world.coordinator->connect_in_process(a.handler());
  b.connect();
  REQUIRE(world.until([&] { return a.running && b.running; }));
  a.link->send(StoreCall{7, request(a, StoreOp::get, 1, "k")});
  b.link->send(StoreCall{9, request(b, StoreOp::set, 5, "k", "value")});
  REQUIRE(world.until([&] { return a.count<StoreResult>() == 1 && b.count<StoreResult>() == 1; }));
  CHECK(a.last_heard<StoreResult>().worker == 7);
  CHECK(a.last_heard<StoreResult>().reply.id == 1);
  CHECK(as_text(a.last_heard<StoreResult>().reply.values.at(0)) == "value");
  CHECK(b.last_heard<StoreResult>().worker == 9);
  StoreRequest stale = request(b, StoreOp::get, 6, "k");
  stale.generation.lineage.bits[0] ^= 1;
  b.link->send(StoreCall{9, stale});
  REQUIRE(world.until([&] { return b.count<StoreResult>() == 2; }));
  CHECK(b.last_heard<StoreResult>().reply.code == Code::refused);
  SECTION("a large value") {
    const std::string large(store_value_max.value(), 'x');
    b.link->send(StoreCall{9, request(b, StoreOp::set, 7, "large", large)});
    a.link->send(StoreCall{7, request(a, StoreOp::get, 2, "large")});
    b.link->send(StoreCall{9, request(b, StoreOp::get, 8, "large")});
    REQUIRE(world.until([&] { return a.count<StoreResult>() == 2 && b.count<StoreResult>() == 4; }));
    CHECK(as_text(b.last_heard<StoreResult>().reply.values.at(0)) == large);
  }
  SECTION("a wait ends by its time") {
    StoreRequest wait = request(b, StoreOp::get, 7, "never");
    wait.wait = 50ms;
    b.link->send(StoreCall{9, wait});
    REQUIRE(world.until([&] { return b.count<StoreResult>() == 3; }));
    CHECK(b.last_heard<StoreResult>().reply.code == Code::deadline_passed);
  }
}

TEST_CASE("nodes outlive their coordinator: a fresh one goes on with their generation", "[grpc]") {
  Stage world;
  world.port = free_port();  // nobody else is given it while no coordinator has it
  world.timeouts.recovery = patience;
  world.serve();
  Agent a{world, "a"}, b{world, "b"};
  a.connect();
  b.connect();
  REQUIRE(world.until([&] { return a.running && b.running; }));
  world.coordinator.reset();
  REQUIRE(world.until([&] { return !a.down.empty() && !b.down.empty(); }));
  CHECK(a.down[0].code == Code::unreachable);
  CHECK(a.running);
  world.make(0);
  world.serve();
  REQUIRE(world.until([&] { return a.count<Resumed>() == 1 && b.count<Resumed>() == 1; }));
  CHECK(a.last_heard<Resumed>().fresh);
  CHECK(a.last_heard<Resumed>().generation == a.last_heard<World>().generation);
  CHECK(a.running);
  // Its store answers when both have said what they remember.
  a.link->send(StoreCall{7, request(a, StoreOp::get, 2, "k")});
  const auto replay = [](const Agent& agent, std::uint32_t node) {
    for (const StoreRequest& told : agent.memory.replay(agent.last, node)) agent.link->send(StoreCall{0, told});
  };
  StoreRequest set = request(b, StoreOp::set, 1, "k", "value");
  b.memory.note(set, {.version = 3});
  replay(a, 0);
  replay(b, 1);
  REQUIRE(world.until([&] { return a.count<StoreResult>() == 1; }));
  CHECK(as_text(a.last_heard<StoreResult>().reply.values.at(0)) == "value");
  b.link.reset();
  REQUIRE(world.until([&] { return a.count<Revoke>() == 1; }));
  Agent again{world, "b", 2};
  again.connect();
  REQUIRE(world.until([&] { return a.count<World>() == 2 && again.count<World>() == 1; }));
  CHECK(a.last.number == 2);
  CHECK(a.last.lineage != a.last_heard<Revoke>().generation.lineage);
}

TEST_CASE("a link tries until somebody serves, and says so once", "[grpc]") {
  Stage world;
  world.port = free_port();
  Agent a{world, "a", 1, {.nodes_min = 1, .nodes_max = 1}};
  a.connect();
  REQUIRE(world.until([&] { return !a.down.empty(); }));
  const Instant later = world.clock.now() + 300ms;
  REQUIRE(world.until([&] { return world.clock.now() > later; }));
  CHECK(a.down.size() <= 2);
  world.make(0);
  world.serve();
  REQUIRE(world.until([&] { return a.running; }));
}

TEST_CASE("what cannot be is said with its reason", "[grpc]") {
  Stage world;
  world.serve();
  SECTION("a port that is taken") {
    const auto second = Coordinator::create(world.loop, world.clock, world.log, {.timeouts = world.timeouts});
    const auto bound = second->serve("127.0.0.1", world.port);
    REQUIRE_FALSE(bound.ok());
    CHECK(bound.failure().code == Code::already_exists);
  }
  SECTION("an address of another machine") {
    const auto second = Coordinator::create(world.loop, world.clock, world.log, {.timeouts = world.timeouts});
    CHECK_FALSE(second->serve("192.0.2.1", 0).ok());
  }
  SECTION("a name that does not resolve") {
    Agent a{world, "a"};
    a.connect_to("no-such-host.invalid");
    REQUIRE(world.until([&] { return !a.down.empty(); }));
    CHECK(a.down[0].what.find("no-such-host.invalid") != std::string::npos);
  }
  SECTION("options that differ") {
    Agent a{world, "a"}, b{world, "b", 1, {.nodes_min = 2, .nodes_max = 3}};
    a.connect();
    REQUIRE(world.until([&] { return a.count<Waiting>() == 1; }));
    b.connect();
    REQUIRE(world.until([&] { return b.count<Refused>() == 1; }));
    CHECK(b.last_heard<Refused>().failure.what.find("--nnodes MAX: this node has 3, the job has 2") != std::string::npos);
  }
}

// In a process of its own: the size of stacks counts for the whole process, and where gRPC cannot start one of its threads it ends it.
TEST_CASE("a coordinator whose thread the system refuses", "[.][refused_thread]") {
  Stage world;
  pthread_attr_t usual, huge;
  REQUIRE(::pthread_getattr_default_np(&usual) == 0);
  REQUIRE(::pthread_attr_init(&huge) == 0);
  REQUIRE(::pthread_attr_setstacksize(&huge, std::size_t{1} << 50) == 0);  // no machine has room for it
  REQUIRE(::pthread_setattr_default_np(&huge) == 0);
  const auto refused = world.coordinator->serve("127.0.0.1", 0);
  REQUIRE(::pthread_setattr_default_np(&usual) == 0);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.failure().code == Code::exhausted);
  CHECK(refused.failure().what.find("serve the rendezvous: no thread could be started (pids.max, ulimit -u)") != std::string::npos);
  CHECK(world.coordinator->serve("127.0.0.1", 0).ok());
}

TEST_CASE("a coordinator whose thread the system refuses says so, and serves when it is asked again", "[grpc]") {
  Job alone{{.arguments = {"[refused_thread]"}, .program = "/proc/self/exe"}};
  const int code = alone.wait();
  INFO(alone.output());
  CHECK(code == 0);
  CHECK(alone.says("assertions"));  // the case was there
}

TEST_CASE("where the system refuses a thread, a name is not looked up, and may be again later", "[grpc]") {
  boost::asio::io_context loop;
  bool refuses = true;
  NameLookup lookup{loop, resolve, [&](std::function<void()> call) {
                      if (refuses) throw std::system_error{EAGAIN, std::generic_category()};
                      run_detached(std::move(call));
                    }};
  std::optional<Resolved> found;
  const auto look = [&] {
    found.reset();
    lookup.start({"localhost", 1}, [&](Resolved answer) { found = std::move(answer); });
    CHECK_FALSE(found);  // never in the caller's stack
    const auto work = boost::asio::make_work_guard(loop);
    loop.restart();
    while (!found) loop.run_one_for(100ms);
  };
  look();
  CHECK(found->addresses.empty());
  CHECK(found->problem.find("no thread to look up the name \"localhost\"") != std::string::npos);
  refuses = false;
  look();
  CHECK_FALSE(found->addresses.empty());
}

TEST_CASE("garbage on the port costs nothing", "[grpc]") {
  Stage world;
  world.serve();
  Agent a{world, "a"}, b{world, "b"};
  a.connect();
  std::vector<Fd> outsiders;
  for (int i = 0; i < 20; ++i) {
    Fd outsider{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(world.port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(outsider.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    const std::string garbage = i % 2 == 0 ? std::string(1000, static_cast<char>(i)) : "GET / HTTP/1.1\r\n\r\n";
    REQUIRE(::send(outsider.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL) > 0);
    outsiders.push_back(std::move(outsider));
  }
  b.connect();
  REQUIRE(world.until([&] { return a.running && b.running; }));
}

TEST_CASE("links and coordinators end at once, whatever they are doing", "[grpc]") {
  Stage world;
  world.serve();
  const Instant start = world.clock.now();
  for (int i = 0; i < 10; ++i) {
    Agent a{world, "a"}, b{world, "b", static_cast<std::uint64_t>(i)};
    a.connect();
    for (int turns = 0; turns < i; ++turns) world.loop.run_one_for(1ms), world.loop.restart();
    b.connect_to("localhost");
  }
  world.coordinator.reset();
  CHECK(world.clock.now() - start < patience);
}

TEST_CASE("a link may be destroyed by what it says", "[grpc]") {
  Stage world;
  world.serve();
  Agent a{world, "a", 1, {.nodes_min = 1, .nodes_max = 1}};
  NodeLink::Handler handler = a.handler();
  handler.message = [&a](const CoordinatorMessage& message) {
    a.heard.push_back(message);
    a.link.reset();
  };
  SECTION("over gRPC") { a.link = connect_to_coordinator(world.loop, {"127.0.0.1", world.port}, world.timeouts, 1, handler); }
  SECTION("in process") { a.link = world.coordinator->connect_in_process(handler); }
  REQUIRE(world.until([&] { return a.heard.size() == 1; }));
  CHECK_FALSE(a.link);
  world.loop.restart();
  world.loop.poll();
}

}  // namespace elrun::test
