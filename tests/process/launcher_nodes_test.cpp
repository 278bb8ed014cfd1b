// Several agents on this machine's loopback, as several nodes would be.
#include <arpa/inet.h>
#include <sys/socket.h>

#include <csignal>
#include <cstdlib>
#include <optional>

#include "lib/base/fd.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

using elrun::Fd;
using namespace elrun::test;
using namespace std::chrono_literals;

namespace {

std::string worker() { return test_program_path("launcher_worker"); }

struct Cluster {
  TemporaryDirectory directory;
  std::string endpoint = "127.0.0.1:" + std::to_string(free_port());

  [[nodiscard]] Job::Setting agent(const std::string& nodes, std::vector<std::string> mode, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"--nnodes",        nodes,    "--nproc_per_node", "2",  "--rdzv_backend", "c10d",
                                       "--rdzv_endpoint", endpoint, "--rdzv_id",        "job"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), {"--no_python", worker()});
    arguments.insert(arguments.end(), mode.begin(), mode.end());
    return {.arguments = std::move(arguments), .environment = {{"XDG_RUNTIME_DIR", directory.path()}}};
  }
};

const std::vector<std::string> elastic{"--rdzv_conf", "last_call_timeout=60"};  // the test waits for two, however slow the machine

}  // namespace

TEST_CASE("two agents make one world", "[launcher][process][grpc]") {
  Cluster cluster;
  Job a{cluster.agent("2", {"environment", "WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})};
  Job b{cluster.agent("2", {"environment", "WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})};
  CHECK(a.wait() == 0);
  CHECK(b.wait() == 0);
  const std::string all = a.output() + b.output();
  for (const char* rank : {"rank 0:", "rank 1:", "rank 2:", "rank 3:"})
    CHECK(all.find(std::string{rank} + " WORLD_SIZE=4 GROUP_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1") != std::string::npos);
  const auto port = [](const std::string& text) { return number_after(text.substr(text.find("MASTER_ADDR")), "MASTER_PORT"); };
  CHECK(port(a.output()) == port(b.output()));
  CHECK(port(a.output()) > 0);
  CHECK(cluster.directory.names().empty());
}

TEST_CASE("the root cause's code is every node's", "[launcher][process][grpc]") {
  Cluster cluster;
  Job a{cluster.agent("2", {"exit", "3", "9"})};
  Job b{cluster.agent("2", {"exit", "3", "9"})};
  CHECK(a.wait() == 9);
  CHECK(b.wait() == 9);
  CHECK(a.says("exit code 9"));
  CHECK(b.says("exit code 9"));
}

TEST_CASE("a worker's death restarts the workers of all nodes", "[launcher][process][grpc]") {
  Cluster cluster;
  Job a{cluster.agent("2", {"job", "die_once"})};
  Job b{cluster.agent("2", {"job", "die_once"})};
  CHECK(a.wait() == 0);
  CHECK(b.wait() == 0);
  CHECK(a.says("generation=2"));
  CHECK(b.says("generation=2"));
}

TEST_CASE("who may serve the rendezvous takes all descriptors it can have; its workers have what elrun was started with",
          "[launcher][process][grpc]") {
  Cluster cluster;
  const auto agent = [&](const std::string& limits, const std::string& nodes) {
    return Job::Setting{
        .arguments = {"-c", limits + " && exec \"$ELRUN\" --nnodes " + nodes + " --rdzv_backend c10d --rdzv_id job --rdzv_endpoint " +
                                cluster.endpoint +
                                " --rdzv_conf last_call_timeout=0.1 --no_python /bin/sh -c '"
                                "echo a worker has $(ulimit -Sn); set -- $(grep \"open files\" /proc/$PPID/limits); echo elrun has $4'"},
        .environment = {{"XDG_RUNTIME_DIR", cluster.directory.path()}, {"ELRUN", program_path("elrun")}},
        .program = "/bin/sh"};
  };
  Job few{agent("ulimit -n 1000 && ulimit -Sn 256", "1:1000")};
  CHECK(few.wait() == 0);
  CHECK(few.says("a worker has 256"));
  CHECK(few.says("elrun has 1000"));
  CHECK(few.says("too few for 1000 nodes"));
  Job enough{agent("ulimit -n 1000", "1:800")};
  CHECK(enough.wait() == 0);
  CHECK_FALSE(enough.says("too few"));
}

TEST_CASE("a node that is killed leaves no worker, and the other goes on alone", "[launcher][process][grpc]") {
  Cluster cluster;
  Job store{{.arguments = {"store", "--host", "127.0.0.1", "--port", cluster.endpoint.substr(10)}}};
  REQUIRE(store.line("serving"));
  Job a{cluster.agent("1:2", {"until_world", "2"}, elastic)};
  Job b{cluster.agent("1:2", {"until_world", "2"}, elastic)};
  REQUIRE(a.line("world=4"));
  REQUIRE(b.line("world=4"));
  Job& victim = GENERATE(0, 1) == 0 ? a : b;
  Job& survivor = &victim == &a ? b : a;
  const std::vector<Watch> children = victim.children();
  victim.signal(SIGKILL);
  for (const Watch& child : children) CHECK(child.ended(10s));
  CHECK(survivor.wait() == 0);
  CHECK(survivor.says("world=2"));
  CHECK(survivor.says("time: "));
  CHECK(survivor.says("program "));
  CHECK_FALSE(survivor.says("this agent's account"));
  CHECK(store.wait() == 0);
  CHECK(cluster.directory.names().empty());
}

TEST_CASE("where the time of a program went is said by exactly one node, whoever serves the rendezvous", "[launcher][process][grpc]") {
  Cluster cluster;
  const std::string served = GENERATE("by elrun store", "by an agent");
  std::optional<Job> store;
  if (served == "by elrun store") {
    store.emplace(Job::Setting{.arguments = {"store", "--host", "127.0.0.1", "--port", cluster.endpoint.substr(10)}});
    REQUIRE(store->line("serving"));
  }
  Job a{cluster.agent("2", {"environment", "RANK"})};
  Job b{cluster.agent("2", {"environment", "RANK"})};
  CHECK(a.wait() == 0);
  CHECK(b.wait() == 0);
  INFO(served << "\n" << a.output() << b.output());
  const bool a_leads = a.says("rank 0:");
  CHECK((a_leads ? a : b).says("time: "));
  CHECK_FALSE((a_leads ? b : a).says("time: "));
}

TEST_CASE("the host of the rendezvous is killed: another agent of the machine takes over", "[launcher][process][grpc]") {
  Cluster cluster;
  Job a{cluster.agent("1:2", {"until_world", "2"}, elastic)};
  REQUIRE(a.line("serving the rendezvous"));
  Job b{cluster.agent("1:2", {"until_world", "2"}, elastic)};
  REQUIRE(a.line("world=4"));
  REQUIRE(b.line("world=4"));
  a.signal(SIGKILL);
  CHECK(b.wait(60s) == 0);
  CHECK(b.says("serving the rendezvous"));
  CHECK(b.says("world=2"));
}

TEST_CASE("a connection has the endpoint's port for a while: the node serves the rendezvous once it is free", "[launcher][process][grpc]") {
  Cluster cluster;
  Fd held{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(std::stoi(cluster.endpoint.substr(10))));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(held.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
  Job a{cluster.agent("1", {"environment", "RANK"}, {"--rdzv_conf", "is_host=1,last_call_timeout=0.1,join_timeout=60"})};
  REQUIRE(a.line("is taken already"));
  REQUIRE(a.line("waiting for the coordinator"));
  CHECK_FALSE(a.line("serving the rendezvous", 1500ms));  // and its line has nothing new to say from here on
  held = Fd{};
  CHECK(a.wait() == 0);
  CHECK(a.says("serving the rendezvous"));
}

TEST_CASE("the host of the rendezvous is killed with its workers: whoever takes over does not wait for them to come back",
          "[launcher][process][grpc]") {
  const bool is_job = GENERATE(false, true);  // which says that it has lost a peer
  Cluster cluster;
  const std::vector<std::string> mode = is_job ? std::vector<std::string>{"job", "cut_off"} : std::vector<std::string>{"until_world", "2"};
  Job a{cluster.agent("1:2", mode, elastic)};
  REQUIRE(a.line("serving the rendezvous"));
  Job b{cluster.agent("1:2", mode, elastic)};
  REQUIRE(a.line("world=4"));
  REQUIRE(b.line("world=4"));
  a.signal(SIGKILL);
  CHECK(b.wait(60s) == 0);
  CHECK(b.says("the missing one coordinated it"));
  CHECK(b.says("world=2"));
}

TEST_CASE("a node that is asked to leave leaves, and the other goes on", "[launcher][process][grpc]") {
  Cluster cluster;
  Job store{{.arguments = {"store", "--host=127.0.0.1", "--port", cluster.endpoint.substr(10)}}};
  REQUIRE(store.line("serving"));
  Job a{cluster.agent("1:2", {"until_world", "2"}, elastic)};
  Job b{cluster.agent("1:2", {"until_world", "2"}, elastic)};
  REQUIRE(a.line("world=4"));
  REQUIRE(b.line("world=4"));
  a.signal(SIGTERM);
  CHECK(a.wait() == 143);
  CHECK(b.wait() == 0);
}

TEST_CASE("an endpoint that nobody serves: told at once, tried until the join deadline", "[launcher][process][grpc]") {
  Cluster cluster;
  SECTION("at once") {  // with a deadline that no machine comes near
    Job a{cluster.agent("2", {"wait"}, {"--rdzv_conf", "join_timeout=3600,is_host=0"})};
    CHECK(a.line("waiting for the coordinator at " + cluster.endpoint));
    a.signal(SIGTERM);
    CHECK(a.wait() == 128 + SIGTERM);
  }
  SECTION("until the deadline") {
    Job a{cluster.agent("2", {"wait"}, {"--rdzv_conf", "join_timeout=4,is_host=0"})};
    CHECK(a.wait() == 170);
    CHECK(a.says("cause: the nodes did not meet within 4.0 s"));
  }
}

TEST_CASE("a partner that never comes: the deadline names how many are missing", "[launcher][process][grpc]") {
  Cluster cluster;
  Job a{cluster.agent("2", {"wait"}, {"--rdzv_conf", "join_timeout=4"})};
  CHECK(a.wait() == 170);
  CHECK(a.says("1 of at least 2 nodes"));
}

TEST_CASE("a node of another job is refused, with both values named", "[launcher][process][grpc]") {
  Cluster cluster;
  Job a{cluster.agent("2", {"wait"})};
  REQUIRE(a.line("serving"));
  REQUIRE(a.line("joined"));
  Job b{cluster.agent("2", {"wait"}, {"--rdzv_id", "other"})};
  CHECK(b.wait() == 78);
  CHECK(b.says("other"));
  a.signal(SIGTERM);
  CHECK(a.wait() == 143);
}

TEST_CASE("a node without workers coordinates, and leaves with the job", "[launcher][process][grpc]") {
  Cluster cluster;
  Job a{cluster.agent("2", {"wait"}, {"--nproc_per_node", "0"})};
  Job b{cluster.agent("2", {"environment", "WORLD_SIZE"})};
  CHECK(b.wait() == 0);
  CHECK(a.wait() == 0);
  CHECK(b.says("rank 1: WORLD_SIZE=2"));
}

TEST_CASE("the node that coordinates tells the whole job's story, also without a worker of its own", "[launcher][process][grpc]") {
  Cluster cluster;
  Job coordinator{cluster.agent("3", {"job", "die_once"}, {"--nproc_per_node", "0", "--max_restarts", "1"})};
  REQUIRE(coordinator.line("serving", 60s));
  Job a{cluster.agent("3", {"job", "die_once"}, {"--max_restarts", "1"})};
  Job b{cluster.agent("3", {"job", "die_once"}, {"--max_restarts", "1"})};
  for (const char* told : {"joined", "joined", "begins: 2 nodes, 4 workers", "step 1 is decided", "SIGKILL", "begins: 2 nodes, 4 workers",
                           "step 1 is decided", "the job is done"}) {
    INFO(told << " after\n" << coordinator.output());
    REQUIRE(coordinator.line(told, 60s));
  }
  CHECK(coordinator.wait(60s) == 0);
  CHECK(a.wait(60s) == 0);
  CHECK(b.wait(60s) == 0);
  const auto once = [&](const std::string& text) { return coordinator.output().find(text) == coordinator.output().rfind(text); };
  CHECK(once("is over: "));
  CHECK(once("the job is done"));
}
