// Where a job's time went, with real processes: what the agent says at the end adds up, whatever happened on the way.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <numeric>

#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"

using namespace elrun::test;

namespace {

/// The line that the agent appends to its event log at the end.
nlohmann::json times_of(const std::string& event_log) {
  std::ifstream events{event_log};
  for (std::string line; std::getline(events, line);)
    if (auto json = nlohmann::json::parse(line, nullptr, false); json.is_object() && json.value("name", "") == "elrun.time")
      return json["metadata"];
  return {};
}

/// Of the workers that were started, in the order of their starts: the node's restarts until then.
std::vector<int> restarts_at_starts(const std::string& event_log) {
  std::ifstream events{event_log};
  std::vector<int> all;
  for (std::string line; std::getline(events, line);)
    if (auto json = nlohmann::json::parse(line, nullptr, false); json.is_object() && json.value("name", "").ends_with(".START"))
      all.push_back(json["metadata"]["agent_restarts"]);
  return all;
}

double sum_of(const nlohmann::json& causes) {
  return std::accumulate(causes.begin(), causes.end(), 0.0,
                         [](double sum, const nlohmann::json& part) { return sum + part.get<double>(); });
}

/// Two workers, of which one is killed some time after step 30; a checkpoint every 20. The end, and what the agent says of times.
std::pair<Ended, nlohmann::json> killed_once(const Folder& folder, const std::string& zero) {
  const auto job = start_held_gpt({"--nproc_per_node", "2", "--event-log", folder / "events"},
                                  gpt_arguments(folder / "text", 200, {"--zero", zero, "--every", "20", "--checkpoint", folder / "ck"}));
  REQUIRE(until(*job, "step=30 "));
  const auto workers = job->children_named("gpt");
  REQUIRE(workers.size() == 2);
  ::kill(workers[1], SIGKILL);
  Ended ended = finish(*job);
  return {std::move(ended), times_of(folder / "events")};
}

}  // namespace

TEST_CASE("a job that loses a worker says where its time went, and that adds up", "[ledger][process]") {
  const std::string zero = GENERATE("0", "1");
  const Folder folder;
  const auto begun = std::chrono::steady_clock::now();
  const auto [ended, times] = killed_once(folder, zero);
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  INFO("zero " << zero << "\n" << ended.output << times.dump(2));
  REQUIRE(ended.code == 0);
  REQUIRE(times.is_object());
  CHECK(restarts_at_starts(folder / "events") == std::vector{0, 0, 1});
  const double told = times["wall_seconds"];
  CHECK(told <= wall);
  CHECK(sum_of(times["by_cause"]) == Approx(told).epsilon(0.01));
  for (const char* cause : {"start", "steps", "steps_again", "saves", "recovery_stop", "recovery_agree", "end"}) {
    INFO(cause);
    CHECK(times["by_cause"][cause] > 0.0);
  }
  CHECK(ended.says("time: "));
  CHECK(ended.says("steps again "));
  SECTION("with the points of what happened, in their order") {
    REQUIRE(times["incidents"] >= 1);
    const nlohmann::json first = times["newest_incidents"][0];
    CHECK(first["generation"] == 1);
    CHECK(first["why"].get<std::string>().find("ended by signal 9") != std::string::npos);
    double last = 0;
    for (const char* point : {"last_step", "seen", "pushed", "stopped", "agreed", "connected", "restored", "first_step"}) {
      INFO(point);
      REQUIRE(first["at_seconds"].contains(point));
      const double at = first["at_seconds"][point];
      CHECK(at >= last);
      last = at;
    }
    CHECK(last <= told);
    if (zero == "1") CHECK(first["step"].get<int>() % 20 == 1);  // its shards went with the worker: the job goes back to a checkpoint
  }
}
