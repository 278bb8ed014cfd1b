// The manifests of samples/kubernetes but the tutorials' (tutorial_pods_test), started: each pod in a network namespace, with the environment and the options that its operator
// gives it, and another program in place of its own. Then what happens to pods.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/pod_operator.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""s;
using Time = std::chrono::steady_clock::time_point;

namespace {

double seconds_since(Time begin) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); }

/// A job whose workers do nothing until they are to end.
struct Waiting {
  TemporaryDirectory folder;
  Operator pods;
  std::vector<std::unique_ptr<Pod>> lost;

  Waiting(Fabric& fabric, JobPlan plan)
      : pods{fabric, std::move(plan), folder, {test_program_path("launcher_worker"), "until_file", folder.path() + "/end"}} {}

  /// All workers of these pods are in a world of this size.
  void expect_world(const std::vector<std::size_t>& indexes, std::size_t size) {
    for (const std::size_t index : indexes) {
      if (pods.workers(index) == 0) continue;
      const bool there = pods.pod(index).job().line("world=" + std::to_string(size) + " ", 90s).has_value();
      INFO("pod " << pods.plan().pods[index].host << " has no world of " << size << "; it said\n" << pods.pod(index).job().output());
      REQUIRE(there);
    }
  }
  /// The pod is gone for the operator. What runs in it may live on, out of reach: it is kept until the end.
  void replace(std::size_t index) {
    lost.push_back(pods.exchange(index));
    pods.start(index);
    REQUIRE(pods.publish(index));
  }
  void end() const { std::ofstream{folder.path() + "/end"}; }
};

}  // namespace

TEST_CASE("each manifest's pods meet, go on without or with another pod after one is deleted or lost, and end with 0",
          "[pods][manifests][process]") {
  for (const JobPlan& plan : job_plans()) {
    const std::string& name = plan.manifest;
    if (name.starts_with("tutorials/")) continue;
    CAPTURE(name);
    const auto fabric = Fabric::create();
    if (!fabric) return;
    Waiting job{*fabric, plan};
    Operator& pods = job.pods;
    const std::size_t world = plan.world();
    const Time begin = std::chrono::steady_clock::now();
    for (const std::size_t i : pods.all()) pods.start(i);
    for (const std::size_t i : pods.all()) REQUIRE(pods.publish(i));
    job.expect_world(pods.all(), world);
    std::printf("| %s | all pods start | | %.1f s | | 0 |\n", name.c_str(), seconds_since(begin));

    // Deleted with grace: the last one. It leaves; the others go on without it, or as soon as another is there.
    const std::size_t last = pods.size() - 1;
    Time event = std::chrono::steady_clock::now();
    pods.pod(last).terminate();
    const int code = pods.pod(last).job().wait(30s);
    INFO(pods.pod(last).job().output());
    CHECK(code == 143);
    if (plan.is_elastic()) job.expect_world(pods.all_but(last), world - pods.workers(last));
    const double seen = seconds_since(event);
    if (plan.is_elastic()) std::printf("| %s | a pod is deleted: the others go on | | %.1f s | %d | 0 |\n", name.c_str(), seen, code);
    event = std::chrono::steady_clock::now();
    job.replace(last);
    job.expect_world(pods.all(), world);
    std::printf("| %s | another pod takes its place | | %.1f s | | 1 |\n", name.c_str(), seconds_since(event));

    // The node of one is lost in silence: those that are enough go on, and later there is another.
    if (plan.is_elastic()) {
      event = std::chrono::steady_clock::now();
      pods.pod(last).cut_cable();
      job.expect_world(pods.all_but(last), world - pods.workers(last));
      std::printf("| %s | a node is lost in silence: the others go on | | %.1f s | | 0 |\n", name.c_str(), seconds_since(event));
      job.replace(last);
      job.expect_world(pods.all(), world);
    }

    // The node of the pod that serves the rendezvous is lost in silence, and that pod comes back elsewhere under its name.
    event = std::chrono::steady_clock::now();
    pods.pod(0).cut_cable();
    REQUIRE(pods.pod(last).job().line("waiting for the coordinator", 60s));
    const double noticed = seconds_since(event);
    job.replace(0);
    if (pods.workers(0) > 0) job.expect_world(pods.all(), world);
    else  // it only coordinated: the others' workers went on all the time
      for (const std::size_t index : pods.all_but(0)) CHECK(pods.pod(index).job().line("is back", 60s));
    std::printf("| %s | the first pod's node is lost in silence | %.1f s | %.1f s | | 1 |\n", name.c_str(), noticed, seconds_since(event));

    job.end();
    for (const std::size_t i : pods.all()) {
      const int ended = pods.pod(i).job().wait(60s);
      INFO(pods.pod(i).job().output());
      CHECK(ended == 0);
    }
  }
}
