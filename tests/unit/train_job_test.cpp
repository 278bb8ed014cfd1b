// What Kubeflow Trainer is told of a job's progress, and when.
#include "launcher/report/train_job.hpp"

#include <map>

#include <nlohmann/json.hpp>

#include "lib/base/failure.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;
using Json = nlohmann::json;

namespace {

constexpr std::int64_t wall = 1'700'000'000'500'000'000;

World world(std::uint32_t base_rank = 0) {
  World w;
  w.generation.number = 3;
  w.seat = {.group_rank = base_rank / 4, .base_rank = base_rank, .nodes = 2, .world_size = 8};
  w.restarts.generations = 1;
  return w;
}

Json status_of(const std::string& body) { return Json::parse(body).at("trainerStatus"); }

std::optional<TrainJobServer> server(const std::map<std::string, std::string>& variables, std::vector<std::string>& notes) {
  return train_job_server(
      [&](std::string_view name) {
        const auto found = variables.find(std::string{name});
        return found == variables.end() ? std::nullopt : std::optional{found->second};
      },
      notes);
}

const HttpReply good{.status = 200}, forbidden{.status = 403, .body = R"({"kind":"Status","message":"no \u001b[2Jrights"})"};

}  // namespace

TEST_CASE("where the status goes stands in three variables, and what is wrong with them is only noted", "[train_job]") {
  std::vector<std::string> notes;
  CHECK_FALSE(server({}, notes));
  CHECK(notes.empty());
  std::map<std::string, std::string> all{{"KUBEFLOW_TRAINER_SERVER_URL", "https://s.n.svc:10443/apis/a/status"},
                                         {"KUBEFLOW_TRAINER_SERVER_CA_CERT", "/ca"},
                                         {"KUBEFLOW_TRAINER_SERVER_TOKEN", "/token"}};
  const auto found = server(all, notes);
  REQUIRE(found);
  CHECK(found->url.server.host == "s.n.svc");
  CHECK(found->url.server.port == 10443);
  CHECK(found->url.path == "/apis/a/status");
  CHECK(notes.empty());
  for (const char* missing : {"KUBEFLOW_TRAINER_SERVER_CA_CERT", "KUBEFLOW_TRAINER_SERVER_TOKEN"}) {
    auto some = all;
    some.erase(missing);
    notes.clear();
    CHECK_FALSE(server(some, notes));
    REQUIRE(notes.size() == 1);
    CHECK(notes.front().starts_with(missing));
  }
  for (const char* url : {"http://s/x", "s:1", "https://", "https://u@s/", "https://s/a b"}) {
    all["KUBEFLOW_TRAINER_SERVER_URL"] = url;
    notes.clear();
    CHECK_FALSE(server(all, notes));
    CHECK(notes.size() == 1);
  }
}

TEST_CASE("a status has what is known, within the bounds of Trainer's interface", "[train_job]") {
  TrainJobFigures f{.step = 30, .steps = 40, .loss = 0.25f, .left = 2500ms, .workers = 8, .nodes = 2, .generation = 3, .restarts = 1};
  const Json all = status_of(train_job_body(f, wall));
  CHECK(all["lastUpdatedTime"] == "2023-11-14T22:13:20.500000000Z");
  CHECK(all["progressPercentage"] == 75);
  CHECK(all["estimatedRemainingSeconds"] == 3);
  CHECK(all["metrics"][0] == Json{{"name", "loss"}, {"value", "0.25"}});
  CHECK(all["metrics"].size() == 6);
  for (const Json& metric : all["metrics"]) {
    CHECK(metric["name"].get<std::string>().size() <= 64);
    CHECK_FALSE(metric["value"].get<std::string>().empty());
  }
  const Json little = status_of(train_job_body({.step = 5}, wall));
  CHECK_FALSE(little.contains("progressPercentage"));
  CHECK_FALSE(little.contains("estimatedRemainingSeconds"));
  CHECK(status_of(train_job_body({.step = 50, .steps = 40}, wall))["progressPercentage"] == 100);
  f.loss = std::numeric_limits<float>::quiet_NaN(), f.left = Duration::max();
  const Json odd = status_of(train_job_body(f, wall));
  CHECK(odd["metrics"][0]["name"] == "step");
  CHECK(odd["estimatedRemainingSeconds"] == 0x7fffffff);
}

TEST_CASE("only the node of rank 0 posts, one at a time, and the newest at most every 20 s", "[train_job]") {
  TrainJobStatus status;
  Instant now{};
  status.began(world(4));
  status.decided({StepNumber{1}, 100, {}}, now);
  CHECK_FALSE(status.due_at());
  status.began(world(0));
  CHECK_FALSE(status.due_at());  // what it did not lead is not its news
  status.decided({StepNumber{2}, 100, {}}, now);
  REQUIRE(status.due_at() == Instant{});
  CHECK(status_of(status.begin(now, wall))["metrics"][0]["value"] == "2");
  status.decided({StepNumber{3}, 100, {}}, now += 1s);
  CHECK_FALSE(status.due_at());  // one is under way
  CHECK_FALSE(status.answered(good, now));
  CHECK(status.due_at() == now + train_job_every);
  status.decided({StepNumber{12}, 100, {}}, now += train_job_every);
  const Json body = status_of(status.begin(now, wall));
  CHECK(body["progressPercentage"] == 12);
  CHECK(body["estimatedRemainingSeconds"] == 185);  // 10 steps in 21 s, 88 to go
  CHECK_FALSE(status.answered(good, now));
  CHECK_FALSE(status.due_at());  // no news
  status.decided({StepNumber{13}, 100, {}}, now);
  (void)status.begin(now, wall);
  status.began(world(4));  // rank 0 is elsewhere now, and says newer steps
  (void)status.answered(forbidden, now);
  CHECK_FALSE(status.due_at());
}

TEST_CASE("a server that takes nothing is told of once, asked less and less often, and awaited by nobody", "[train_job]") {
  TrainJobStatus status;
  Instant now{};
  status.began(world());
  status.decided({StepNumber{1}, 10, {}}, now);
  (void)status.begin(now, wall);
  const auto told = status.answered(forbidden, now);
  REQUIRE(told);
  CHECK(told->level == Level::warning);
  CHECK(told->text == "TrainJob status: the server answers 403: no \\x1b[2Jrights; the job goes on, and elrun keeps trying");
  for (const Duration pause : {80s, 160s, 300s, 300s, 300s}) {
    REQUIRE(status.due_at());  // what was not taken is news still
    (void)status.begin(now = *status.due_at(), wall);
    CHECK_FALSE(status.answered(Failure{Code::unreachable, Remedy::retry, "x"}, now));
    CHECK(*status.due_at() == now + pause);
  }
  CHECK_FALSE(status.is_awaited());
  status.finish();
  CHECK_FALSE(status.due_at());
}

TEST_CASE("when the server is back it is said, and the pace is the old one", "[train_job]") {
  TrainJobStatus status;
  Instant now{};
  status.began(world());
  status.decided({StepNumber{1}, 10, {}}, now);
  (void)status.begin(now, wall);
  REQUIRE(status.answered(forbidden, now));
  (void)status.begin(now, wall);
  const auto told = status.answered(good, now);
  REQUIRE(told);
  CHECK(told->level == Level::info);
  status.decided({StepNumber{2}, 10, {}}, now);
  CHECK(status.due_at() == now + train_job_every);
}

TEST_CASE("a job that ends before the server has answered at all waits for its answer, and goes by it", "[train_job]") {
  TrainJobStatus status;
  const Instant now{};
  status.began(world());
  CHECK_FALSE(status.is_awaited());  // there is no step that it could hear of
  status.decided({StepNumber{1}, 10, {}}, now);
  (void)status.begin(now, wall);
  status.decided({StepNumber{10}, 10, {}}, now);
  status.finish();
  CHECK(status.is_awaited());
  SECTION("it takes it, and the end") {
    (void)status.answered(good, now);
    CHECK(status.is_awaited());
    CHECK(status_of(status.begin(now, wall))["progressPercentage"] == 100);
    (void)status.answered(good, now);
  }
  SECTION("it does not, which is told") { CHECK(status.answered(forbidden, now)); }
  SECTION("it is silent") { status.give_up(); }
  CHECK_FALSE(status.is_awaited());
}

TEST_CASE("at the end of the job the last step is posted at once, to a server that took the last status", "[train_job]") {
  TrainJobStatus status;
  Instant now{};
  status.began(world());
  status.decided({StepNumber{1}, 10, {}}, now);
  (void)status.begin(now, wall);
  (void)status.answered(good, now);
  CHECK_FALSE(status.is_awaited());
  status.decided({StepNumber{10}, 10, 0.5f}, now += 1s);
  status.finish();
  CHECK(status.is_awaited());
  CHECK(status.due_at() == Instant{});
  CHECK(status_of(status.begin(now, wall))["progressPercentage"] == 100);
  CHECK(status.is_awaited());
  SECTION("it is taken") { (void)status.answered(good, now); }
  SECTION("it takes too long") { status.give_up(); }
  CHECK_FALSE(status.is_awaited());
}

TEST_CASE("a job that goes back to a checkpoint is measured anew", "[train_job]") {
  TrainJobStatus status;
  Instant now{};
  status.began(world());
  status.decided({StepNumber{50}, 100, {}}, now);
  status.decided({StepNumber{60}, 100, {}}, now += 10s);
  status.decided({StepNumber{40}, 100, {}}, now += 1000s);
  CHECK_FALSE(status_of(status.begin(now, wall)).contains("estimatedRemainingSeconds"));
  (void)status.answered(good, now);
  status.decided({StepNumber{50}, 100, {}}, now += 10s);
  CHECK(status_of(status.begin(now, wall))["estimatedRemainingSeconds"] == 50);
}
