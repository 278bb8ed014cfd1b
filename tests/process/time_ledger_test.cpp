// Where a job's time went, with real processes: what the agent says at the end adds up, whatever happened on the way.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <numeric>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/http.hpp"

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

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Told {
  Ended ended;
  nlohmann::json times;  ///< What the agent says at the end.
  double least = 0;      ///< Seconds from a line of the agent to the kill of a worker.
};

/// Two workers, of which one is killed some time after step 30; a checkpoint every 20.
Told killed_once(const Folder& folder, const std::string& zero) {
  const auto job = start_held_gpt({"--nproc_per_node", "2", "--event-log", folder / "events"},
                                  gpt_arguments(folder / "text", 200, {"--zero", zero, "--every", "20", "--checkpoint", folder / "ck"}));
  REQUIRE(until(*job, "generation 1: "));
  const auto lives = Clock::now();
  REQUIRE(until(*job, "step=30 "));
  const auto workers = job->children_named("gpt");
  REQUIRE(workers.size() == 2);
  const double least = seconds_since(lives);
  ::kill(workers[1], SIGKILL);
  Ended ended = finish(*job);
  return {std::move(ended), times_of(folder / "events"), least};
}

/// An agent of two, with one worker and a health port.
struct Agent {
  Agent(const Folder& folder, const std::string& endpoint, const std::string& rank)
      : events{folder / ("events-" + rank)},
        begun{Clock::now()},
        job{start_held_gpt({"--nnodes", "2", "--node_rank", rank, "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint, "--rdzv_id", "job",
                            "--health_port", "127.0.0.1:0", "--event-log", events},
                           gpt_arguments(folder / "text", 600, {"--zero", "0"}))} {
    const auto line = job->line("health, status and metrics at http://", Wait{60000});
    lives = Clock::now();
    REQUIRE(line);
    port = static_cast<std::uint16_t>(std::stoul(line->substr(line->rfind(':') + 1)));
  }
  std::string events;
  Clock::time_point begun, lives;
  std::unique_ptr<Job> job;
  std::uint16_t port = 0;
};

/// The values of all lines of metrics that begin so, added up.
double sum_of_lines(const std::string& metrics, const std::string& begin) {
  double sum = 0;
  std::istringstream lines{metrics};
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(begin)) sum += std::stod(line.substr(line.rfind(' ')));
  return sum;
}

}  // namespace

TEST_CASE("a job that loses a worker says where its time went, and that adds up", "[ledger][process]") {
  const std::string zero = GENERATE("0", "1");
  const Folder folder;
  const auto begun = Clock::now();
  const auto [ended, times, least] = killed_once(folder, zero);
  const double wall = seconds_since(begun);
  INFO("zero " << zero << "\n" << ended.output << times.dump(2));
  REQUIRE(ended.code == 0);
  REQUIRE(times.is_object());
  CHECK(restarts_at_starts(folder / "events") == std::vector{0, 0, 1});
  const double told = times["wall_seconds"];
  CHECK(told <= wall);
  CHECK(told >= least);
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

TEST_CASE("of two agents, each one's status, metrics and events account for all of its time, and one tells people", "[ledger][process]") {
  const Folder folder;
  const std::string port = std::to_string(free_port());
  Job store{{.arguments = {"store", "--host", "127.0.0.1", "--port", port}}};
  REQUIRE(store.line("serving", Wait{60000}));
  Agent first{folder, "127.0.0.1:" + port, "0"}, second{folder, "127.0.0.1:" + port, "1"};
  REQUIRE(until(*first.job, "step=30 "));
  const auto workers = second.job->children_named("gpt");
  REQUIRE(workers.size() == 1);
  const double least[] = {seconds_since(first.lives), seconds_since(second.lives)};
  ::kill(workers[0], SIGKILL);
  const auto has_recovered = [](const Agent& agent) {
    return http_get(agent.port, "/metrics").find("elrun_recovery_phase_seconds_count{phase=\"restore\"}") != std::string::npos;
  };
  for (const auto begun = Clock::now(); !(has_recovered(first) && has_recovered(second));) {
    REQUIRE(seconds_since(begun) < 60);
    listen(*first.job, Wait{20});  // the rank that prints goes on
  }
  // Nobody reads now: the job stands in the middle of what may be a long step.
  for (const Agent* agent : {&first, &second}) {
    const double least_now = seconds_since(agent->lives);
    const auto page = http_get(agent->port, "/statusz"), metrics = http_get(agent->port, "/metrics");
    const double most_now = seconds_since(agent->begun);
    INFO(page << "\n" << metrics);
    const auto status = nlohmann::json::parse(page.substr(page.find('{')));
    const double wall = status["time"]["wall_seconds"], counted = sum_of_lines(metrics, "elrun_time_seconds_total{");
    CHECK(wall >= least_now);
    CHECK(wall <= most_now);
    CHECK(sum_of(status["time"]["by_cause"]) == Approx(wall).epsilon(0.01));
    CHECK(counted >= least_now - 0.1);  // a reply is kept so long
    CHECK(counted <= most_now);
    CHECK(counted == Approx(sum_of_lines(metrics, "elrun_time_wall_seconds ")).epsilon(0.001));
    CHECK(counted == Approx(sum_of_lines(metrics, "elrun_up_seconds ")).epsilon(0.01));
    CHECK(sum_of_lines(metrics, "elrun_incidents_total ") >= 1);
  }
  const auto [ended, other] = finish_together(*first.job, *second.job);
  INFO(ended.output << "\n--- second\n" << other.output);
  CHECK(ended.code == 0);
  CHECK(other.code == 0);
  CHECK(store.wait() == 0);
  for (const auto& [agent, atleast] : {std::pair{&first, least[0]}, std::pair{&second, least[1]}}) {
    const auto times = times_of(agent->events);
    REQUIRE(times.is_object());
    const double told = times["wall_seconds"];
    CHECK(told >= atleast);
    CHECK(told <= seconds_since(agent->begun));
    CHECK(sum_of(times["by_cause"]) == Approx(told).epsilon(0.01));
  }
  CHECK(ended.says("time: "));  // it has rank 0; no agent coordinates
  CHECK_FALSE(other.says("time: "));
}
