// Agents in pods of their own: names that come late or move, cables that are cut, nodes that freeze and thaw.
#include <cstdlib>
#include <fstream>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/pods.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""s;
using std::chrono_literals::operator""ms;

namespace {

const std::string endpoint = "coordinator.job:29400";

// A fabric, or the case is skipped.
#define A_FABRIC()                           \
  const auto made_fabric = Fabric::create(); \
  if (!made_fabric) return;                  \
  Fabric& fabric = *made_fabric

struct Cluster {
  TemporaryDirectory directory;

  /// The workers of every generation wait until `end` is called.
  [[nodiscard]] Job::Setting agent(const std::string& nodes, const std::string& times, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = options(nodes, times);
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), {"--no_python", test_program_path("launcher_worker"), "until_file", end_file()});
    return {.arguments = std::move(arguments), .environment = {{"XDG_RUNTIME_DIR", directory.path()}}};
  }
  /// The gpt sample, which has a result.
  [[nodiscard]] Job::Setting trainer(const std::string& nodes, const std::string& times, int rank,
                                     const std::vector<std::string>& gpt) const {
    std::vector<std::string> arguments = options(nodes, times);
    arguments.insert(arguments.end(), {"--node_rank", std::to_string(rank)});
    return {.arguments = under_elrun(std::move(arguments), gpt),
            .environment = {{"XDG_RUNTIME_DIR", directory.path()}, {"OMP_NUM_THREADS", "1"}}};
  }
  [[nodiscard]] static Job::Setting store(const std::string& times) {
    return {.arguments = {"store", "--host", "0.0.0.0", "--port", "29400", "--rdzv_conf", times}};
  }
  void end() const { std::ofstream{end_file()}; }

 private:
  [[nodiscard]] static std::vector<std::string> options(const std::string& nodes, const std::string& times) {
    return {"--nnodes",        nodes,    "--nproc_per_node", "1",   "--rdzv_backend", "c10d",
            "--rdzv_endpoint", endpoint, "--rdzv_id",        "job", "--rdzv_conf",    times};
  }
  [[nodiscard]] std::string end_file() const { return directory.path() + "/end"; }
};

// Last call is long, so that a slow machine forms the same worlds; a full round does not wait for it.
const std::string patient = "last_call_timeout=120";
// A node is silent after 4 s: longer than a busy machine keeps it so.
const std::string quick = patient + ",keep_alive_interval=0.8,keep_alive_max_attempt=5";
const std::string brisk = quick;  // an address that is dead is given up well within the recovery window

std::string undisturbed(const Folder& folder, unsigned steps) {
  const Ended ended = run("gpt", gpt_arguments(folder / "text", steps));
  INFO(ended.output);
  REQUIRE(ended.code == 0);
  REQUIRE(ended.state.size() == 16);
  return ended.state;
}

std::size_t reported_times(const Job& job, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = job.output().find(text, at)) != std::string::npos; at += text.size()) ++count;
  return count;
}

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
  for (Pod* pod : {&a, &b}) REQUIRE(pod->job().line("waiting for the coordinator", 60s));
  store.reset();
  Pod fresh{fabric, "coordinator", 20};
  REQUIRE(fresh.run(Cluster::store(patient)).line("serving"));
  fabric.publish("coordinator", {fresh.address()});
  // The end of the job needs a coordinator that has heard of both.
  for (Pod* pod : {&a, &b}) REQUIRE(pod->job().line("is back", 60s));
  cluster.end();
  for (Pod* pod : {&a, &b}) CHECK(pod->job().wait() == 0);
  CHECK(fresh.job().wait() == 0);
  for (Pod* pod : {&a, &b}) CHECK(reported_times(pod->job(), "ready ") == 1);  // no worker was started again
}

TEST_CASE("a name that moved while its old coordinator lives on: nodes that wait there follow the name", "[pods][process]") {
  A_FABRIC();
  Cluster cluster;
  Pod a{fabric, "a", 11}, b{fabric, "b", 12}, old{fabric, "coordinator", 10}, fresh{fabric, "coordinator", 20};
  REQUIRE(old.run(Cluster::store(patient)).line("serving"));
  fabric.publish("coordinator", {old.address()});
  REQUIRE(a.run(cluster.agent("2", patient)).line("1 of 2 nodes"));
  REQUIRE(fresh.run(Cluster::store(patient)).line("serving"));
  fabric.publish("coordinator", {fresh.address()});
  REQUIRE(b.run(cluster.agent("2", patient)).line("1 of 2 nodes"));
  CHECK(a.job().line("leads to " + fresh.address()));
  for (Pod* pod : {&a, &b}) CHECK(pod->job().line("world=2"));
  cluster.end();
  for (Pod* pod : {&a, &b}) CHECK(pod->job().wait() == 0);
}

TEST_CASE("a name that moves while its old address is dialled and does not answer: nobody waits for that one any longer",
          "[pods][process]") {
  A_FABRIC();
  Cluster cluster;
  Pod a{fabric, "a", 11}, old{fabric, "coordinator", 10}, fresh{fabric, "coordinator", 20};
  a.lose_packets_to(old);  // silence, and not a word from the network that nobody is there
  fabric.publish("coordinator", {old.address()});
  // An address would have 100 s to answer, and gRPC gives it 20. The coordinator has the same times, or it would refuse the node.
  const std::string slow = patient + ",keep_alive_interval=20";
  REQUIRE(fresh.run(Cluster::store(slow)).line("serving"));
  a.run(cluster.agent("1:1", slow));
  CHECK_FALSE(a.job().line("ready", 2s));
  fabric.publish("coordinator", {fresh.address()});
  CHECK(a.job().line("world=1", 15s));
  cluster.end();
  CHECK(a.job().wait() == 0);
}

TEST_CASE("a coordinator's pod without workers comes back 5 s later elsewhere: no worker restarts", "[pods][process][golden]") {
  A_FABRIC();
  Cluster cluster;
  const Folder folder;
  constexpr unsigned steps = 100000;
  const auto gpt = gpt_arguments(folder / "text", steps);
  Pod a{fabric, "a", 11}, b{fabric, "b", 12};
  const auto coordinate = [&](Pod& pod) {
    Job::Setting setting = cluster.agent("3", brisk, {"--nproc_per_node", "0"});
    REQUIRE(pod.run(std::move(setting)).line("serving the rendezvous"));
    fabric.publish("coordinator", {pod.address()});
  };
  auto coordinator = std::make_unique<Pod>(fabric, "coordinator", 10);
  coordinate(*coordinator);
  a.run(cluster.trainer("3", brisk, 1, gpt));
  b.run(cluster.trainer("3", brisk, 2, gpt));
  REQUIRE(until(a.job(), "world=2 "));
  const std::vector<pid_t> worker_a = a.processes("gpt"), worker_b = b.processes("gpt");

  coordinator->kill();
  fabric.publish("coordinator", {});
  const auto gone = std::chrono::steady_clock::now();
  for (Pod* pod : {&a, &b}) REQUIRE(pod->job().line("waiting for the coordinator", 60s));
  REQUIRE(until(a.job(), "step="));  // and it trains on
  coordinator.reset();
  listen(a.job(), std::chrono::duration_cast<Wait>(gone + 5s - std::chrono::steady_clock::now()));
  Pod fresh{fabric, "coordinator", 20};
  coordinate(fresh);
  for (Pod* pod : {&a, &b}) REQUIRE(pod->job().line("is back", 60s));
  REQUIRE(until(a.job(), "step="));
  listen(a.job(), 2s);  // the recovery window of the fresh one is over
  CHECK(a.processes("gpt") == worker_a);
  CHECK(b.processes("gpt") == worker_b);
  CHECK_FALSE(a.job().says("generation=2"));
}

TEST_CASE("a name with two addresses, the first of them dead", "[pods][process]") {
  A_FABRIC();
  Cluster cluster;
  // Of several addresses the one with the longest prefix in common is tried first: .13 by .12.
  Pod store{fabric, "coordinator", 64}, a{fabric, "a", 12};
  const std::string dead = "10.213.7.13";
  fabric.publish("coordinator", {store.address(), dead});
  auto order = a.resolve("coordinator.job");
  // The C library orders them once it finds a way to them: a link that was just made may not be up yet.
  for (int tries = 0; tries < 100 && (order.empty() || order.front() != dead); ++tries, let_pass(100ms))
    order = a.resolve("coordinator.job");
  REQUIRE(order.size() == 2);
  REQUIRE(order.front() == dead);
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
  for (Pod* pod : {&a, &b}) CHECK(pod->job().line("world=2", 60s));
  cluster.end();
  for (Pod* pod : {&a, &b, &store}) CHECK(pod->job().wait() == 0);
}

TEST_CASE("packets that are lost in one direction only: the node is lost, and comes back when it is heard again", "[pods][process]") {
  A_FABRIC();
  Cluster cluster;
  Pod store{fabric, "coordinator", 10}, a{fabric, "a", 11}, b{fabric, "b", 12};
  REQUIRE(store.run(Cluster::store(quick)).line("serving"));
  fabric.publish("coordinator", {store.address()});
  for (Pod* pod : {&a, &b}) pod->run(cluster.agent("1:2", quick));
  for (Pod* pod : {&a, &b}) REQUIRE(pod->job().line("world=2"));
  const bool heard = GENERATE(false, true);  // the node is heard, but hears nothing; or hears and is not heard
  INFO((heard ? "it is heard" : "it hears"));
  Pod& mute = heard ? store : b;
  mute.lose_packets_to(heard ? b : store);
  CHECK(a.job().line("world=1", 60s));
  mute.mend();
  for (Pod* pod : {&a, &b}) CHECK(pod->job().line("world=2", 60s));
  cluster.end();
  for (Pod* pod : {&a, &b, &store}) CHECK(pod->job().wait() == 0);
}

TEST_CASE("two nodes that cannot reach each other, while both reach the coordinator: they are named, and the job goes on without one",
          "[pods][process][golden]") {
  A_FABRIC();
  Cluster cluster;
  const Folder folder;
  constexpr unsigned steps = 100000;
  const auto gpt = gpt_arguments(folder / "text", steps);
  Pod store{fabric, "coordinator", 10}, a{fabric, "a", 11}, b{fabric, "b", 12}, c{fabric, "c", 13};
  REQUIRE(store.run(Cluster::store(patient)).line("serving"));
  fabric.publish("coordinator", {store.address()});
  enum class Cut { both_ways, one_way, from_the_beginning };
  const Cut cut = GENERATE(Cut::both_ways, Cut::one_way, Cut::from_the_beginning);
  CAPTURE(static_cast<int>(cut));
  const auto part = [&] {
    c.lose_packets_to(b);
    if (cut != Cut::one_way) b.lose_packets_to(c);
  };
  if (cut == Cut::from_the_beginning) part();
  int rank = 0;
  for (Pod* pod : {&a, &b, &c}) pod->run(cluster.trainer("2:3", patient, rank++, gpt));
  if (cut == Cut::from_the_beginning) {
    REQUIRE(a.job().line("generation 1: 3 nodes", 60s));
  } else {
    REQUIRE(until(a.job(), "world=3 "));
    REQUIRE(until(a.job(), "step="));
    part();
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto named = a.job().line("cannot reach each other, though both reach the coordinator", 60s);
  REQUIRE(named);
  CHECK_THAT(*named, Catch::Matchers::Contains("nodes b.") && Catch::Matchers::Contains(" and c.") &&
                         Catch::Matchers::Contains("the job goes on without c."));
  REQUIRE(a.job().line("world=2 generation=2", 60s));
  REQUIRE(a.job().line("step=", 60s));
  const auto took = std::chrono::steady_clock::now() - begin;
  std::printf("went on after %.1f s\n", std::chrono::duration<double>(took).count());
  CHECK(took < 60s);
  CHECK(b.runs("gpt", 1));
  CHECK(c.job().line("this node is excluded: it and b.", 60s));
  // Mended: it is let in again by itself, in the same process.
  for (Pod* pod : {&b, &c}) pod->mend();
  const bool back = a.job().line("world=3 generation=3", 90s).has_value();
  if (!back) listen(store.job(), 1s), listen(c.job(), 1s);
  INFO("coordinator: " << store.job().output() << "\nkept out: " << c.job().output());
  CHECK(back);
}

TEST_CASE("a network in two halves: the half without the coordinator decides nothing and says so", "[pods][process]") {
  A_FABRIC();
  Cluster cluster;
  const bool enough = GENERATE(true, false);  // for the minimum, on the coordinator's side
  const std::string nodes = enough ? "2:4" : "3:4", times = quick + ",coordinator_grace=8,join_timeout=10";
  Pod store{fabric, "coordinator", 10}, a{fabric, "a", 11}, b{fabric, "b", 12}, c{fabric, "c", 13}, d{fabric, "d", 14};
  REQUIRE(store.run(Cluster::store(times)).line("serving"));
  fabric.publish("coordinator", {store.address()});
  for (Pod* pod : {&a, &b, &c, &d}) pod->run(cluster.agent(nodes, times));
  for (Pod* pod : {&a, &b, &c, &d}) REQUIRE(pod->job().line("world=4"));

  for (Pod* here : {&store, &a, &b})
    for (Pod* there : {&c, &d}) {
      here->lose_packets_to(*there);
      there->lose_packets_to(*here);
    }
  for (Pod* pod : {&c, &d}) {
    CHECK(pod->job().wait() == 171);
    CHECK(pod->job().says("no coordinator for 8.0 s"));
    CHECK(reported_times(pod->job(), "ready ") == 1);  // no world after the first
    CHECK(pod->runs("launcher_worker", 0));
  }
  if (enough) {
    for (Pod* pod : {&a, &b}) CHECK(pod->job().line("world=2"));
    cluster.end();
  }
  for (Pod* pod : {&a, &b}) CHECK(pod->job().wait() == (enough ? 0 : 172));
}

TEST_CASE("a pod that is frozen, replaced and thawed: it is out, and the result is that of an undisturbed run", "[pods][process][golden]") {
  A_FABRIC();
  Cluster cluster;
  const Folder folder;
  constexpr unsigned steps = 1500;
  const std::string state = undisturbed(folder, steps);
  const auto gpt = gpt_arguments(folder / "text", steps, {"--every", "50", "--checkpoint", folder / "ck"});
  Pod store{fabric, "coordinator", 10}, a{fabric, "a", 11}, b{fabric, "b", 12}, spare{fabric, "spare", 13};
  REQUIRE(store.run(Cluster::store(quick)).line("serving"));
  fabric.publish("coordinator", {store.address()});
  a.run(cluster.trainer("2", quick, 0, gpt));
  b.run(cluster.trainer("2", quick, 1, gpt));
  REQUIRE(until(a.job(), "step=20 "));
  spare.run(cluster.trainer("2", quick, 2, gpt));
  REQUIRE(until(spare.job(), "this node is a spare"));
  const std::vector<pid_t> old = b.processes("gpt");
  REQUIRE(old.size() == 1);
  const Watch worker{old.front()};

  b.freeze();
  REQUIRE(until(a.job(), "world=2 generation=2"));
  CHECK_FALSE(worker.ended(0ms));
  b.thaw();
  CHECK(worker.ended(30s));
  const Ended ended = finish(a.job());
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK(ended.state == state);
  for (Pod* pod : {&b, &spare}) CHECK(pod->job().wait() == 0);
  CHECK_FALSE(b.job().says("done "));
}

TEST_CASE("a coordinator that is frozen, replaced and thawed decides nothing any more", "[pods][process]") {
  A_FABRIC();
  Cluster cluster;
  Pod old{fabric, "coordinator", 10}, a{fabric, "a", 11}, b{fabric, "b", 12};
  REQUIRE(old.run(Cluster::store(quick)).line("serving"));
  fabric.publish("coordinator", {old.address()});
  for (Pod* pod : {&a, &b}) pod->run(cluster.agent("2", quick));
  for (Pod* pod : {&a, &b}) REQUIRE(pod->job().line("world=2"));
  old.freeze();
  for (Pod* pod : {&a, &b}) REQUIRE(pod->job().line("waiting for the coordinator", 60s));
  Pod fresh{fabric, "coordinator", 20};
  REQUIRE(fresh.run(Cluster::store(quick)).line("serving"));
  fabric.publish("coordinator", {fresh.address()});
  for (Pod* pod : {&a, &b}) REQUIRE(pod->job().line("is back", 60s));
  old.thaw();
  CHECK(old.job().line("is lost"));
  cluster.end();
  for (Pod* pod : {&a, &b, &fresh}) CHECK(pod->job().wait() == 0);
  CHECK_FALSE(old.job().says("generation 2"));
}

TEST_CASE("two pods of one index at once: both are let in, and the second replaces the first", "[pods][process]") {
  A_FABRIC();
  Cluster cluster;
  Pod store{fabric, "coordinator", 10}, zero{fabric, "job-0", 11}, one{fabric, "job-1", 12}, again{fabric, "job-1", 13};
  REQUIRE(store.run(Cluster::store(patient)).line("serving"));
  fabric.publish("coordinator", {store.address()});
  zero.run(cluster.agent("2", patient, {"--node_rank", "0"}));
  one.run(cluster.agent("2", patient, {"--node_rank", "1"}));
  for (Pod* pod : {&zero, &one}) REQUIRE(pod->job().line("world=2"));
  again.run(cluster.agent("2", patient, {"--node_rank", "1"}));
  REQUIRE(again.job().line("this node is a spare"));
  CHECK(reported_times(one.job(), "is over") == 0);  // the new one pushed nobody out
  one.kill();
  CHECK(zero.job().line("ready rank=0 world=2"));
  CHECK(again.job().line("ready rank=1 world=2"));
  cluster.end();
  for (Pod* pod : {&zero, &again, &store}) CHECK(pod->job().wait() == 0);
}

TEST_CASE("all pods recreated at once: the job goes on from its checkpoint to the same result", "[pods][process][golden]") {
  A_FABRIC();
  Cluster cluster;
  const Folder folder;
  constexpr unsigned steps = 400;
  const std::string state = undisturbed(folder, steps);
  const auto gpt = gpt_arguments(folder / "text", steps, {"--every", "20", "--checkpoint", folder / "ck"});
  for (int life = 0; life < 2; ++life) {
    const int host = 10 + 10 * life;  // new pods have new addresses
    fabric.publish("coordinator", {});
    Pod coordinator{fabric, "coordinator", host}, other{fabric, "other", host + 1};
    for (const auto& [pod, rank] : {std::pair{&coordinator, 0}, std::pair{&other, 1}}) {
      Job::Setting trainer = cluster.trainer("2", patient, rank, gpt);
      trainer.arguments.insert(trainer.arguments.begin(), {"--checkpoint_root", folder / "ck"});
      pod->run(std::move(trainer));
    }
    REQUIRE(coordinator.job().line("serving the rendezvous"));
    fabric.publish("coordinator", {coordinator.address()});
    if (life == 0) {
      REQUIRE(until(coordinator.job(), "step=100 "));
      continue;  // killed where they are
    }
    const Ended ended = finish(coordinator.job());
    INFO(ended.output);
    CHECK(ended.code == 0);
    CHECK(ended.state == state);
    CHECK_FALSE(ended.says("step=1 "));
    CHECK(ended.says("generation 2"));  // above every earlier one
    CHECK(other.job().wait() == 0);
  }
}
