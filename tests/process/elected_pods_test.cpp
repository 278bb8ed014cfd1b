// Where etcd elects the coordinator, its node falls silent: a cut cable, no end of any connection. With default settings.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/etcd.hpp"
#include "tests/support/pods.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""s;
using std::chrono_literals::operator""ms;

namespace {

Job::Setting etcd_server(const Pod& pod, const std::string& data) {
  const std::string client = "http://" + pod.address() + ":2379", peer = "http://" + pod.address() + ":2380";
  return {.arguments = {"--name=test", "--data-dir=" + data, "--listen-client-urls=" + client, "--advertise-client-urls=" + client,
                        "--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=test=" + peer,
                        "--logger=zap", "--log-level=error", "--log-outputs=stderr"},
          .program = "/usr/bin/etcd"};
}

/// HOST:PORT of the agent that coordinates.
std::string leader_in(const Fabric& fabric, const Pod& etcd) {
  for (int tries = 0; tries < 12; ++tries) {  // etcdctl waits for 5 s, and etcd may be writing to a slow disk
    const auto get = fabric.run({.arguments = {"--endpoints=" + etcd.address() + ":2379", "get", "--print-value-only", "/elrun/job/leader"},
                                 .environment = {{"ETCDCTL_API", "3"}},
                                 .program = "/usr/bin/etcdctl"});
    if (get->wait() == 0) return get->output();
  }
  return {};
}

}  // namespace

TEST_CASE("an elected coordinator's node that falls silent is replaced in under 10 s, and comes back as a node", "[pods][process]") {
  if (!Etcd::installed()) {
    std::printf("SKIPPED: no etcd here\n");
    return;
  }
  const auto fabric = Fabric::create();
  if (!fabric) return;
  const TemporaryDirectory directory;
  const std::string end = directory.path() + "/end";
  Pod store{*fabric, "etcd", 10}, first{*fabric, "a", 11}, b{*fabric, "b", 12}, c{*fabric, "c", 13};
  store.run(etcd_server(store, directory.path() + "/etcd"));  // who comes before it is ready asks again
  const auto agent = [&](Pod& pod) -> Job& {
    return pod.run({.arguments = {"--nnodes", "2:3", "--rdzv_backend", "etcd", "--rdzv_endpoint", store.address() + ":2379", "--rdzv_id",
                                  "job", "--no_python", test_program_path("launcher_worker"), "until_file", end},
                    .environment = {{"XDG_RUNTIME_DIR", directory.path()}}});
  };
  REQUIRE(agent(first).line("elected to coordinate"));
  for (Pod* pod : {&b, &c}) agent(*pod);
  for (Pod* pod : {&first, &b, &c}) REQUIRE(pod->job().line("world=3"));

  // The lease is over after 5 s, and the rest is work. Where the system runs none of it for some seconds, the next one that coordinates falls silent, and so on.
  std::vector<Pod*> pods{&first, &b, &c};  // the one that coordinates is the first of them
  double took = 0;
  for (int tries = 0; tries < 4; ++tries) {
    const auto begin = std::chrono::steady_clock::now();
    pods[0]->cut_cable();
    for (Pod* pod : {pods[1], pods[2]}) REQUIRE(pod->job().line("world=2"));
    took = std::chrono::duration<double>{std::chrono::steady_clock::now() - begin}.count();
    std::printf("the coordinator's node was silent: the others are in the next world after %.1f s\n", took);
    pods[0]->mend_cable();
    for (Pod* pod : pods) REQUIRE(pod->job().line("world=3"));
    if (took < 10) break;
    const std::string leader = leader_in(*fabric, store);
    const auto leads = std::find_if(pods.begin(), pods.end(), [&](const Pod* pod) { return leader.find(pod->address()) != leader.npos; });
    REQUIRE(leads != pods.end());
    std::iter_swap(pods.begin(), leads);
  }
  INFO(b.job().output() << c.job().output());
  CHECK(took < 10);

  std::ofstream{end};
  for (Pod* pod : pods) CHECK(pod->job().wait() == 0);
}
