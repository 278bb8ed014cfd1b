// The manifests of samples/kubernetes, started: each pod in a network namespace, with the environment and the options that its operator gives it, and
// another program in place of its own. Then what happens to pods.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/pods.hpp"

using namespace elrun::test;
using nlohmann::json;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using Time = std::chrono::steady_clock::time_point;

namespace {

double seconds_since(Time begin) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); }

/// What tests/manifests/pods.py says of all jobs; nothing, with the reason printed, where this machine cannot tell.
json all_jobs() {
  const std::string python = ::access("/usr/bin/python3", X_OK) == 0 ? "/usr/bin/python3" : "python3";
  Job reader{
      {.arguments = {python, "-B", source_path("tests/manifests/pods.py"), "--elrun", program_path("elrun"), "--tree", source_path(".")},
       .program = "/usr/bin/env"}};
  const int code = reader.wait();
  if (code == 77) std::printf("%s", reader.output().c_str());
  if (code == 77) return json::array();
  INFO(reader.output());
  REQUIRE(code == 0);
  return json::parse(reader.output());
}

/// The pods of one job, as its operator keeps them: what is deleted or lost comes back under its name, at another address.
class Operator {
 public:
  Operator(Fabric& fabric, const json& job) : fabric_{fabric}, job_(job) {  // in braces it would be an array of it
    std::ofstream{directory_.path() + "/token"} << "0123456789abcdef0123456789abcdef\n";
    std::filesystem::permissions(directory_.path() + "/token", std::filesystem::perms::owner_read);
    for (std::size_t i = 0; i < job_["pods"].size(); ++i) pods_.push_back(make(i)), world_ += workers(i);
  }
  [[nodiscard]] std::size_t size() const { return pods_.size(); }
  [[nodiscard]] Pod& pod(std::size_t index) { return *pods_[index]; }
  [[nodiscard]] std::size_t workers(std::size_t index) const { return job_["pods"][index]["workers"].get<std::size_t>(); }
  [[nodiscard]] bool is_elastic() const { return job_["nodes_min"].get<std::size_t>() < size(); }

  void start(std::size_t index) {
    json setting = job_["pods"][index];
    std::vector<std::string> options = setting["options"];
    options.insert(options.end(), {"--no_python", test_program_path("launcher_worker"), "until_file", directory_.path() + "/end"});
    auto environment = setting["environment"].get<std::map<std::string, std::string>>();
    environment["POD_IP"] = pod(index).address();
    environment["ELRUN_RDZV_TOKEN_FILE"] = directory_.path() + "/token";
    environment["XDG_RUNTIME_DIR"] = directory_.path();
    pod(index).run({.arguments = std::move(options), .environment = std::move(environment)});
  }
  /// The name of a pod: at once, or when it is ready, as its service says.
  void publish(std::size_t index) {
    if (job_["published_when_ready"]) REQUIRE(pod(index).job().line("health, status and metrics at http://"));
    fabric_.publish(job_["pods"][index]["name"], {pod(index).address()});
  }
  /// All workers of these pods are in a world of this size.
  void expect_world(const std::vector<std::size_t>& indexes, std::size_t size) {
    for (const std::size_t index : indexes) {
      if (workers(index) == 0) continue;
      const bool there = pod(index).job().line("world=" + std::to_string(size) + " ", 90s).has_value();
      INFO("pod " << job_["pods"][index]["host"] << " has no world of " << size << "; it said\n" << pod(index).job().output());
      REQUIRE(there);
    }
  }
  /// The pod is gone for the operator. What runs in it may live on, out of reach: it is kept until the end.
  void replace(std::size_t index) {
    lost_.push_back(std::move(pods_[index]));
    pods_[index] = make(index);
    start(index);
    publish(index);
  }
  [[nodiscard]] std::vector<std::size_t> all_but(std::size_t left_out) const {
    std::vector<std::size_t> indexes;
    for (std::size_t i = 0; i < size(); ++i)
      if (i != left_out) indexes.push_back(i);
    return indexes;
  }
  [[nodiscard]] std::size_t world() const { return world_; }
  void end() const { std::ofstream{directory_.path() + "/end"}; }

 private:
  std::unique_ptr<Pod> make(std::size_t index) {
    return std::make_unique<Pod>(fabric_, job_["pods"][index]["host"].get<std::string>(), next_address_++);
  }

  Fabric& fabric_;
  const json job_;
  TemporaryDirectory directory_;
  std::vector<std::unique_ptr<Pod>> pods_, lost_;
  std::size_t world_ = 0;
  int next_address_ = 10;
};

constexpr std::size_t nobody = ~std::size_t{0};

}  // namespace

TEST_CASE("each manifest's pods meet, go on without or with another pod after one is deleted or lost, and end with 0",
          "[pods][manifests][process]") {
  const json jobs = all_jobs();
  if (jobs.empty()) return;
  for (const json& job : jobs) {
    const std::string name = job["manifest"].get<std::string>().substr(std::string{"samples/kubernetes/"}.size());
    CAPTURE(name);
    const auto fabric = Fabric::create();
    if (!fabric) return;
    Operator pods{*fabric, job};
    const Time begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < pods.size(); ++i) pods.start(i);
    for (std::size_t i = 0; i < pods.size(); ++i) pods.publish(i);
    pods.expect_world(pods.all_but(nobody), pods.world());
    std::printf("| %s | all pods start | | %.1f s | | 0 |\n", name.c_str(), seconds_since(begin));

    // Deleted with grace: the last one. It leaves; the others go on without it, or as soon as another is there.
    const std::size_t last = pods.size() - 1;
    Time event = std::chrono::steady_clock::now();
    pods.pod(last).terminate();
    const int code = pods.pod(last).job().wait(30s);
    INFO(pods.pod(last).job().output());
    CHECK(code == 143);
    if (pods.is_elastic()) pods.expect_world(pods.all_but(last), pods.world() - pods.workers(last));
    const double seen = seconds_since(event);
    if (pods.is_elastic()) std::printf("| %s | a pod is deleted: the others go on | | %.1f s | %d | 0 |\n", name.c_str(), seen, code);
    event = std::chrono::steady_clock::now();
    pods.replace(last);
    pods.expect_world(pods.all_but(nobody), pods.world());
    std::printf("| %s | another pod takes its place | | %.1f s | | 1 |\n", name.c_str(), seconds_since(event));

    // The node of one is lost in silence: those that are enough go on, and later there is another.
    if (pods.is_elastic()) {
      event = std::chrono::steady_clock::now();
      pods.pod(last).cut_cable();
      pods.expect_world(pods.all_but(last), pods.world() - pods.workers(last));
      std::printf("| %s | a node is lost in silence: the others go on | | %.1f s | | 0 |\n", name.c_str(), seconds_since(event));
      pods.replace(last);
      pods.expect_world(pods.all_but(nobody), pods.world());
    }

    // The node of the pod that serves the rendezvous is lost in silence, and that pod comes back elsewhere under its name.
    event = std::chrono::steady_clock::now();
    pods.pod(0).cut_cable();
    REQUIRE(pods.pod(last).job().line("waiting for the coordinator", 60s));
    const double noticed = seconds_since(event);
    pods.replace(0);
    if (pods.workers(0) > 0) pods.expect_world(pods.all_but(nobody), pods.world());
    else  // it only coordinated: the others' workers went on all the time
      for (const std::size_t index : pods.all_but(0)) CHECK(pods.pod(index).job().line("is back", 60s));
    std::printf("| %s | the first pod's node is lost in silence | %.1f s | %.1f s | | 1 |\n", name.c_str(), noticed, seconds_since(event));

    pods.end();
    for (std::size_t i = 0; i < pods.size(); ++i) {
      const int ended = pods.pod(i).job().wait(60s);
      INFO(pods.pod(i).job().output());
      CHECK(ended == 0);
    }
  }
}
