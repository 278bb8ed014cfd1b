#include "rendezvous/round/root_cause.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test::root_cause {
namespace {

const NodeId a{"a"}, b{"b"};

RootCause::Death death(const NodeId& node, std::uint32_t local_rank, Duration at, std::int32_t exit_code = 3) {
  RootCause::Death death{Instant{} + at, exit_code, "exit code " + std::to_string(exit_code), {}};
  death.worker.node = node;
  death.worker.local_rank = local_rank;
  return death;
}

}  // namespace

TEST_CASE("the root cause is the report with the earliest time, whatever the order in which reports arrive", "[root_cause]") {
  RootCause root_cause;
  CHECK_FALSE(root_cause.any());
  CHECK(root_cause.first() == nullptr);
  root_cause.report(death(b, 0, 2s, 1));
  root_cause.report(death(a, 0, 1s, 7));
  root_cause.report(death(a, 1, 3s, 1));
  REQUIRE(root_cause.first() != nullptr);
  CHECK(root_cause.first()->exit_code == 7);
  const std::vector<WorkerDeath> workers = root_cause.workers();
  REQUIRE(workers.size() == 3);
  CHECK(workers[0].node == a);
  CHECK(workers[1].node == b);
  CHECK(workers[2].local_rank == 1);
  SECTION("a second report of one worker changes nothing") {
    root_cause.report(death(b, 0, 0s, 9));
    CHECK(root_cause.first()->exit_code == 7);
    CHECK(root_cause.workers().size() == 3);
  }
  SECTION("a report of a worker's end replaces one of when it lived, and keeps the time of that") {
    RootCause::Death lived = death(b, 1, 500ms, 1);
    lived.lived = true;
    root_cause.report(lived);
    RootCause::Death ended = death(b, 1, 2500ms, 137);
    ended.worker.traceback = std::string(death_traceback_max, 'x');
    root_cause.report(ended);
    CHECK(root_cause.first()->exit_code == 137);
    CHECK(root_cause.first()->what == "exit code 137");
    CHECK(root_cause.first()->at == Instant{} + 500ms);
    CHECK(root_cause.workers()[0].traceback == ended.worker.traceback);
    root_cause.report(lived), root_cause.report(death(b, 1, 0s, 9));
    CHECK(root_cause.first()->exit_code == 137);
    CHECK(root_cause.workers().size() == 4);
  }
  SECTION("a report can be taken out") {
    CHECK(root_cause.take(a, 0)->exit_code == 7);
    CHECK_FALSE(root_cause.take(a, 0));
    CHECK(root_cause.find(a, 0) == nullptr);
    CHECK(root_cause.first()->worker.node == b);
  }
  SECTION("a generation begins without any") {
    root_cause.begin();
    CHECK_FALSE(root_cause.any());
  }
}

TEST_CASE("a bounded number of deaths is kept, and little of those that are not the root cause", "[root_cause]") {
  RootCause root_cause;
  for (std::uint32_t i = 0; i < 2 * deaths_max; ++i) {
    RootCause::Death one = death(a, i, std::chrono::seconds{100 - i});
    one.worker.traceback = std::string(death_traceback_max, 'x');
    root_cause.report(std::move(one));
  }
  const std::vector<WorkerDeath> workers = root_cause.workers();
  REQUIRE(workers.size() == deaths_max);
  CHECK(workers[0].local_rank == 2 * deaths_max - 1);
  CHECK(workers[0].traceback.size() == death_traceback_max);
  for (std::size_t i = 1; i < workers.size(); ++i) CHECK(workers[i].traceback.size() == death_beside_max);
}

TEST_CASE("the loss of a member explains a failure only if its stream was broken before", "[root_cause]") {
  RootCause root_cause;
  root_cause.suspect(b);
  CHECK_FALSE(root_cause.explains(b));  // nothing failed
  root_cause.report(death(a, 0, 1s));
  CHECK_FALSE(root_cause.explains(a));
  CHECK(root_cause.explains(b));
  CHECK_FALSE(root_cause.explains(b));  // once
}

TEST_CASE("the verdict waits for the root cause window", "[root_cause]") {
  RootCause root_cause;
  CHECK_FALSE(root_cause.failing());
  root_cause.fail("no restart is left", Instant{10s});
  REQUIRE(root_cause.failing());
  CHECK(root_cause.failing()->until == Instant{10s} + root_cause_window);
  CHECK(root_cause.failing()->why == "no restart is left");
  root_cause.go_on();
  CHECK_FALSE(root_cause.failing());
}

}  // namespace elrun::test::root_cause
