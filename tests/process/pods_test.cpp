// Agents in pods of their own: names that come late or move, cables that are cut, nodes that freeze and thaw.
#include <cstdlib>
#include <fstream>

#include "tests/support/catch.hpp"
#include "tests/support/pods.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""s;
using std::chrono_literals::operator""ms;

namespace {

const std::string endpoint = "coordinator.job:29400";

// A fabric, or the case is skipped.
#define A_FABRIC()                            \
  const auto made_fabric = Fabric::create(); \
  if (!made_fabric) return;                   \
  Fabric& fabric = *made_fabric

struct Cluster {
  TemporaryDirectory directory;

  /// The workers of every generation wait until `end` is called.
  [[nodiscard]] Job::Setting agent(const std::string& nodes, const std::string& times, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"--nnodes", nodes, "--nproc_per_node", "1", "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint, "--rdzv_id", "job", "--rdzv_conf", times};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), {"--no_python", std::string{std::getenv("ELRUN_BIN")} + "/../tests/launcher_worker", "until_file", end_file()});
    return {.arguments = std::move(arguments), .environment = {{"XDG_RUNTIME_DIR", directory.path()}}};
  }
  [[nodiscard]] static Job::Setting store(const std::string& times) {
    return {.arguments = {"store", "--host", "0.0.0.0", "--port", "29400", "--rdzv_conf", times}};
  }
  void end() const { std::ofstream{end_file()}; }

 private:
  [[nodiscard]] std::string end_file() const { return directory.path() + "/end"; }
};

// Last call is long, so that a slow machine forms the same worlds; a full round does not wait for it.
const std::string patient = "last_call_timeout=120";
const std::string quick = patient + ",keep_alive_interval=0.1,keep_alive_max_attempt=5";

}  // namespace

TEST_CASE("a name that is published late: all wait for it, and none gives up", "[pods][process]") {
  A_FABRIC();
  Cluster cluster;
  Pod host{fabric, "coordinator", 10}, a{fabric, "a", 11}, b{fabric, "b", 12};
  const auto begin = std::chrono::steady_clock::now();
  for (Pod* pod : {&a, &b, &host}) pod->run(cluster.agent("3", patient));
  // It serves its own name before that leads anywhere, as a pod does that is not ready yet.
  REQUIRE(host.job().line("serving the rendezvous"));
  REQUIRE(a.job().line("does not resolve"));
  REQUIRE(b.job().line("does not resolve"));
  CHECK_FALSE(a.job().line("ready", std::chrono::duration_cast<Wait>(begin + 5s - std::chrono::steady_clock::now())));
  fabric.publish("coordinator", {host.address()});
  for (Pod* pod : {&host, &a, &b}) CHECK(pod->job().line("world=3"));
  cluster.end();
  for (Pod* pod : {&host, &a, &b}) CHECK(pod->job().wait() == 0);
}

TEST_CASE("a name that moved: the coordinator's pod is replaced, and the others find the new one", "[pods][process]") {
  A_FABRIC();
  Cluster cluster;
  Pod a{fabric, "a", 11}, b{fabric, "b", 12};
  auto store = std::make_unique<Pod>(fabric, "coordinator", 10);
  REQUIRE(store->run(Cluster::store(patient)).line("serving"));
  fabric.publish("coordinator", {store->address()});
  for (Pod* pod : {&a, &b}) pod->run(cluster.agent("2", patient));
  for (Pod* pod : {&a, &b}) REQUIRE(pod->job().line("world=2"));

  const bool silent = GENERATE(false, true);  // its node is lost; or its processes alone
  if (silent) store->cut_cable();
  else store->kill();
  for (Pod* pod : {&a, &b}) REQUIRE(pod->job().line("waiting for the coordinator", 30s));
  store.reset();
  Pod fresh{fabric, "coordinator", 20};
  REQUIRE(fresh.run(Cluster::store(patient)).line("serving"));
  fabric.publish("coordinator", {fresh.address()});
  // The end of the job needs a coordinator that has heard of both.
  for (Pod* pod : {&a, &b}) REQUIRE(pod->job().line("is back", 60s));
  cluster.end();
  for (Pod* pod : {&a, &b}) CHECK(pod->job().wait() == 0);
  CHECK(fresh.job().wait() == 0);
}

TEST_CASE("a name with two addresses, the first of them dead", "[pods][process]") {
  A_FABRIC();
  Cluster cluster;
  // Of several addresses the one with the longest prefix in common is tried first: .13 by .12.
  Pod store{fabric, "coordinator", 64}, a{fabric, "a", 12};
  const std::string dead = "10.213.7.13";
  fabric.publish("coordinator", {store.address(), dead});
  const auto order = a.resolve("coordinator.job");
  REQUIRE(order.size() == 2);
  CHECK(order.front() == dead);
  REQUIRE(store.run(Cluster::store(patient)).line("serving"));
  a.run(cluster.agent("1:1", patient));
  CHECK(a.job().line("world=1"));
  cluster.end();
  CHECK(a.job().wait() == 0);
}

TEST_CASE("a node that falls silent is lost by the heartbeat limit, and comes back as a newcomer", "[pods][process]") {
  A_FABRIC();
  Cluster cluster;
  Pod store{fabric, "coordinator", 10}, a{fabric, "a", 11}, b{fabric, "b", 12};
  REQUIRE(store.run(Cluster::store(quick)).line("serving"));
  fabric.publish("coordinator", {store.address()});
  for (Pod* pod : {&a, &b}) pod->run(cluster.agent("1:2", quick));
  for (Pod* pod : {&a, &b}) REQUIRE(pod->job().line("world=2"));
  const std::vector<pid_t> old = b.processes("launcher_worker");
  REQUIRE(old.size() == 1);
  const Watch worker{old.front()};

  b.cut_cable();
  CHECK(store.job().line("nothing was heard"));
  CHECK(a.job().line("world=1"));
  CHECK_FALSE(worker.ended(0ms));  // nobody told the node
  b.mend_cable();
  CHECK(worker.ended(30s));
  for (Pod* pod : {&a, &b}) CHECK(pod->job().line("world=2", 30s));
  cluster.end();
  for (Pod* pod : {&a, &b, &store}) CHECK(pod->job().wait() == 0);
}
