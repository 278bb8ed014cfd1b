#include "tests/support/pod_operator.hpp"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

namespace elrun::test {

using nlohmann::json;

std::size_t JobPlan::world() const {
  return std::accumulate(pods.begin(), pods.end(), std::size_t{0}, [](std::size_t sum, const Member& m) { return sum + m.workers; });
}

std::vector<JobPlan> job_plans() {
  const std::string python = ::access("/usr/bin/python3", X_OK) == 0 ? "/usr/bin/python3" : "python3";
  Job reader{
      {.arguments = {python, "-B", source_path("tests/manifests/pods.py"), "--elrun", program_path("elrun"), "--tree", source_path(".")},
       .program = "/usr/bin/env"}};
  const int code = reader.wait();
  if (code == 77) return std::printf("%s", reader.output().c_str()), std::vector<JobPlan>{};
  if (code != 0) throw std::runtime_error{"tests/manifests/pods.py ends with " + std::to_string(code) + ": " + reader.output()};
  std::vector<JobPlan> plans;
  for (const json& job : json::parse(reader.output())) {
    JobPlan plan{.manifest = job["manifest"].get<std::string>().substr(std::string{"samples/kubernetes/"}.size()),
                 .published_when_ready = job["published_when_ready"],
                 .nodes_min = job["nodes_min"],
                 .pods = {}};
    for (const json& pod : job["pods"])
      plan.pods.push_back({.host = pod["host"],
                           .name = pod["name"],
                           .environment = pod["environment"].get<std::map<std::string, std::string>>(),
                           .options = pod["options"].get<std::vector<std::string>>(),
                           .workers = pod["workers"]});
    plans.push_back(std::move(plan));
  }
  return plans;
}

Operator::Operator(Fabric& fabric, JobPlan plan, const TemporaryDirectory& folder, std::vector<std::string> program)
    : fabric_{fabric}, plan_{std::move(plan)}, folder_{folder}, program_{std::move(program)} {
  const std::string token = folder_.path() + "/token";
  std::ofstream{token} << "0123456789abcdef0123456789abcdef\n";
  std::filesystem::permissions(token, std::filesystem::perms::owner_read);
  for (std::size_t i = 0; i < size(); ++i) pods_.push_back(make(i));
}

std::vector<std::size_t> Operator::all() const { return all_but(size()); }

std::vector<std::size_t> Operator::all_but(std::size_t left_out) const {
  std::vector<std::size_t> indexes;
  for (std::size_t i = 0; i < size(); ++i)
    if (i != left_out) indexes.push_back(i);
  return indexes;
}

Job& Operator::start(std::size_t index) {
  const JobPlan::Member& member = plan_.pods[index];
  std::vector<std::string> words = member.options;
  words.push_back("--no_python");
  words.insert(words.end(), program_.begin(), program_.end());
  auto environment = member.environment;
  environment["POD_IP"] = pod(index).address();
  environment["ELRUN_RDZV_TOKEN_FILE"] = folder_.path() + "/token";
  environment["XDG_RUNTIME_DIR"] = runtime_folder(pod(index));
  std::filesystem::create_directories(environment["XDG_RUNTIME_DIR"]);
  std::filesystem::permissions(environment["XDG_RUNTIME_DIR"], std::filesystem::perms::owner_all);
  return pod(index).run({.arguments = std::move(words), .environment = std::move(environment)});
}

bool Operator::publish(std::size_t index) {
  const std::string ready = "health, status and metrics at http://";
  Job& job = pod(index).job();
  if (plan_.published_when_ready && !job.says(ready) && !job.line(ready)) return false;
  fabric_.publish(plan_.pods[index].name, {pod(index).address()});
  return true;
}

std::unique_ptr<Pod> Operator::exchange(std::size_t index) { return std::exchange(pods_[index], make(index)); }

std::string Operator::runtime_folder(const Pod& pod) const { return folder_.path() + "/" + pod.address(); }

std::unique_ptr<Pod> Operator::make(std::size_t index) { return std::make_unique<Pod>(fabric_, plan_.pods[index].host, next_address_++); }

}  // namespace elrun::test
