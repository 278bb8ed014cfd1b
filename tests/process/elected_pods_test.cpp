// Where etcd elects the coordinator, its node falls silent: a cut cable, no end of any connection. With default settings.
#include <chrono>
#include <cstdio>
#include <fstream>

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

  const auto begin = std::chrono::steady_clock::now();
  first.cut_cable();
  for (Pod* pod : {&b, &c}) REQUIRE(pod->job().line("world=2"));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  INFO(b.job().output() << c.job().output());
  CHECK(took.count() < 10);
  std::printf("the coordinator's node was silent: the others are in the next world after %.1f s\n", took.count());

  first.mend_cable();
  for (Pod* pod : {&first, &b, &c}) CHECK(pod->job().line("world=3"));
  std::ofstream{end};
  for (Pod* pod : {&first, &b, &c}) CHECK(pod->job().wait() == 0);
}
