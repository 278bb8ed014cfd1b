// Programs that are written for devices, as processes: which device each worker gets, and what is refused.

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;

namespace {

using Environment = std::map<std::string, std::string>;

/// The workers of one node, as an operator would start them.
class Workers {
 public:
  explicit Workers(std::uint32_t world, const Environment& more = {}, const std::vector<std::string>& arguments = {}) {
    const std::string port = std::to_string(free_port());
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      Environment environment{{"RANK", std::to_string(rank)},
                              {"WORLD_SIZE", std::to_string(world)},
                              {"LOCAL_RANK", std::to_string(rank)},
                              {"LOCAL_WORLD_SIZE", std::to_string(world)},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", port},
                              {"FAKEGPU_DEVICES", std::to_string(world)},
                              {"FAKEGPU_NCCL_DIR", folder_.path()}};
      for (const auto& [name, value] : more) environment[name] = value;
      jobs_.push_back(std::make_unique<Job>(Job::Setting{arguments, environment, test_program_path("job_worker")}));
    }
  }
  Job& operator[](std::size_t rank) { return *jobs_[rank]; }
  /// The line with the state hash.
  std::string hash() {
    std::string line;
    for (const auto& job : jobs_) {
      const int code = job->wait();
      INFO(job->output());
      CHECK(code == 0);
      CHECK(!job->says("fakegpu"));
      const std::string output = job->output();
      if (const auto at = output.find("done "); at != std::string::npos) line = output.substr(at, 21);
    }
    return line;
  }

 private:
  TemporaryDirectory folder_;
  std::vector<std::unique_ptr<Job>> jobs_;
};

}  // namespace

TEST_CASE("each worker of a program for devices gets the one of its LOCAL_RANK, and the bits are the host's", "[devices]") {
  Workers host{1, {{"ELRUN_DEVICE", "cpu"}}};
  const std::string hash = host.hash();
  REQUIRE(hash.size() == 21);
  CHECK(host[0].says("computes on the host"));
  Workers two{2};
  CHECK(two.hash() == hash);
  CHECK(two[0].says("computes on cuda:0"));
  CHECK(two[1].says("computes on cuda:1"));
  Workers sharing{2, {{"ELRUN_DEVICE", "cuda:1"}}};
  CHECK(sharing.hash() == hash);
  CHECK(sharing[0].says("computes on cuda:1"));
  Workers without{1, {{"FAKEGPU_FAULTS", "no_driver"}}};
  CHECK(without.hash() == hash);
  CHECK(without[0].says("computes on the host"));
  CHECK(without[0].says("computes on the CPU, for no CUDA device can be used here: "));
  CHECK(without[0].says("there is no NVIDIA driver here"));
  CHECK_FALSE(host[0].says("computes on the CPU"));  // it was asked to
  CHECK_FALSE(two[0].says("computes on the CPU"));
}

TEST_CASE("a worker without a device among others that have one is told where to look", "[devices]") {
  const TemporaryDirectory folder;
  Workers workers{2, {}, {"once", "FAKEGPU_FAULTS=no_driver", folder.path() + "/had", "1"}};
  CHECK(workers[1].wait() == 78);
  INFO(workers[1].output());
  CHECK(workers[1].says("rank 1: device: cpu"));
  CHECK(workers[1].says("look at the NVIDIA driver and at CUDA_VISIBLE_DEVICES"));
  CHECK_FALSE(workers[1].says("the same program and flags"));
}

TEST_CASE("workers on different models of GPU do not train together, unless the program says that its bits are the same on all",
          "[devices]") {
  const std::string other = "FAKEGPU_MULTIPROCESSORS=114";
  const TemporaryDirectory folder;
  Workers differ{2, {}, {"once", other, folder.path() + "/differ", "1"}};
  CHECK(differ[1].wait() == 78);
  INFO(differ[1].output());
  CHECK(differ[1].says("rank 0: model: compute capability 9.0, 132 multiprocessors"));
  CHECK(differ[1].says("rank 1: model: compute capability 9.0, 114 multiprocessors"));
  CHECK_FALSE(differ[1].says("the worker on the CPU"));
  CHECK(differ[1].says("RunOptions::any_device_model"));
  Workers host{1, {{"ELRUN_DEVICE", "cpu"}}};
  Workers any{2, {{"ANY_MODEL", "1"}}, {"once", other, folder.path() + "/any", "1"}};
  CHECK(any.hash() == host.hash());
}

TEST_CASE("a node with another model of GPU that comes to a job that trains is kept out, and both sides say why", "[devices]") {
  const TemporaryDirectory folder;
  const std::string until = folder.path() + "/over";
  const std::string port = std::to_string(free_port());
  const auto node = [&](const std::string& rank, const std::string& multiprocessors) {
    return Job{{.arguments = {"--nnodes", "1:2", "--node_rank", rank, "--rdzv_backend", "c10d", "--rdzv_endpoint", "127.0.0.1:" + port,
                              "--rdzv_conf", "last_call_timeout=1,is_host=" + std::string{rank == "0" ? "1" : "0"}, "--no_python",
                              test_program_path("job_worker")},
                .environment = {{"FAKEGPU_NCCL_DIR", folder.path()}, {"FAKEGPU_MULTIPROCESSORS", multiprocessors}, {"UNTIL", until}}}};
  };
  Job trains = node("0", "132");
  REQUIRE(trains.line("step 1 is decided"));
  Job other = node("1", "114");
  CHECK(other.line("it tries again in 256 s"));
  CHECK(trains.line("it tries again in 256 s"));
  std::ofstream{until};
  const int code = trains.wait(Wait{120000});
  INFO(trains.output() << "\n" << other.output());
  CHECK(code == 0);
  CHECK(other.wait() == 0);  // the job is done
  for (Job* const each : {&trains, &other}) {
    CHECK(each->says("rank 1 has another model of GPU than rank 0"));
    CHECK(each->says("rank 0: node: "));
    CHECK(each->says("rank 1: node: "));
    CHECK(each->says("rank 0: model: compute capability 9.0, 132 multiprocessors"));
    CHECK(each->says("rank 1: model: compute capability 9.0, 114 multiprocessors"));
    CHECK(each->says("give all workers one model of GPU"));
    CHECK(each->says(
        "(the last one by exit code 78, for a person to mend: its output says what), and the others go on without it; it tries again in 256 s"));
  }
  const std::string said = trains.output(), refused = "has another model of GPU than";
  CHECK(said.find(refused) == said.rfind(refused));  // once: it has not come again
}

TEST_CASE("with --virtual_local_rank each worker sees one device, and computes on it", "[devices]") {
  const TemporaryDirectory folder;
  Job job{{.arguments = {"--nproc_per_node", "2", "--virtual_local_rank", "--no_python", test_program_path("job_worker")},
           .environment = {{"FAKEGPU_DEVICES", "2"}, {"FAKEGPU_NCCL_DIR", folder.path()}}}};
  const int code = job.wait(Wait{120000});
  INFO(job.output());
  CHECK(code == 0);
  CHECK(job.says("computes on cuda:0"));
  CHECK_FALSE(job.says("computes on cuda:1"));
  CHECK(job.says("exchanged by NCCL"));  // which refuses two ranks on one device
}

TEST_CASE("a worker that is killed in the middle of an exchange by NCCL is replaced, and the bits stay", "[devices]") {
  Workers host{1, {{"ELRUN_DEVICE", "cpu"}}};
  const std::string hash = host.hash();
  for (const std::string at : {"3", "9"}) {
    const TemporaryDirectory folder;
    Job job{{.arguments = {"--nproc_per_node", "3", "--max_restarts", "3", "--no_python", test_program_path("job_worker"), "once",
                           "FAKEGPU_NCCL_KILL_AT=" + at, folder.path() + "/killed"},
             .environment = {{"FAKEGPU_DEVICES", "3"}, {"FAKEGPU_NCCL_DIR", folder.path()}}}};
    CHECK(job.wait(Wait{120000}) == 0);
    INFO(job.output());
    CHECK(job.says(hash));
    CHECK(job.says("exchanged by NCCL"));
    CHECK(!job.says("fakegpu["));
  }
}

TEST_CASE("a device that is asked for and cannot be had ends the process with 78", "[devices]") {
  for (const auto& [environment, word] : std::vector<std::pair<Environment, const char*>>{
           {{{"ELRUN_DEVICE", "cuda"}, {"FAKEGPU_FAULTS", "no_driver"}}, "there is no NVIDIA driver"},
           {{{"ELRUN_DEVICE", "cuda:7"}}, "not visible"}}) {
    Workers workers{1, environment};
    CHECK(workers[0].wait() == 78);
    INFO(workers[0].output());
    CHECK(workers[0].says(word));
  }
  Workers too_many{2, {{"FAKEGPU_DEVICES", "1"}}};
  CHECK(too_many[1].wait() == 78);
  CHECK(too_many[1].says("has no device of its own"));
}

TEST_CASE("a program that is not written for devices stays on the host, and is told when it is asked to one", "[devices]") {
  Workers host{1, {}, {"host"}};
  CHECK(host.hash().size() == 21);
  CHECK(host[0].says("computes on the host"));
  Workers asked{1, {{"ELRUN_DEVICE", "cuda"}}, {"host"}};
  CHECK(asked[0].wait() == 78);
  CHECK(asked[0].says("RunOptions::devices"));
}
