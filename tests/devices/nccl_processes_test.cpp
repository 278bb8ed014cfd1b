// Device collectives between processes, over the fake NCCL: what is found at run time, what is refused, and who notices a rank that is killed.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;

namespace {

using Environment = std::map<std::string, std::string>;

/// `world` workers as an operator would start them, each with a device of its own. `of`: what else is in a rank's environment.
class Workers {
 public:
  Workers(std::uint32_t world, const std::vector<Environment>& of = {}, const std::vector<std::string>& arguments = {"200"}) {
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
      if (rank < of.size())
        for (const auto& [name, value] : of[rank]) environment[name] = value;
      jobs_.push_back(std::make_unique<Job>(Job::Setting{arguments, environment, test_program_path("nccl_worker")}));
    }
  }
  Job& operator[](std::size_t rank) { return *jobs_[rank]; }

 private:
  TemporaryDirectory folder_;
  std::vector<std::unique_ptr<Job>> jobs_;
};

}  // namespace

TEST_CASE("processes with a device each reduce and gather to the end", "[nccl]") {
  Workers workers{3};
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const int code = workers[rank].wait();
    INFO(workers[rank].output());
    CHECK(code == 0);
    CHECK(workers[rank].says("done"));
    CHECK(!workers[rank].says("fakegpu"));
  }
}

TEST_CASE("when a rank is killed in the middle of a call, the others abort, name it, and use nothing of that call", "[nccl]") {
  const std::string at = GENERATE("1", "2", "37");
  Workers workers{3, {{}, {{"FAKEGPU_NCCL_KILL_AT", at}}, {}}};
  CHECK(workers[1].wait() == 128 + 9);
  for (const std::size_t rank : {0, 2}) {
    CHECK(workers[rank].wait() == 1);
    INFO(workers[rank].output());
    CHECK(workers[rank].says("the process of rank 1 is gone"));
    CHECK(!workers[rank].says("done"));
    CHECK((!workers[rank].says("wrong") && !workers[rank].says("fakegpu")));
  }
}

TEST_CASE("an abort that does not return ends in a failure whose remedy is the end of the process", "[nccl]") {
  Workers workers{2, {{{"FAKEGPU_NCCL_ABORT_MS", "-1"}}, {{"FAKEGPU_NCCL_KILL_AT", "5"}}}};
  CHECK(workers[0].wait() == 70);
  INFO(workers[0].output());
  CHECK(workers[0].says("ncclCommAbort did not return on cuda:0 within 5000 ms"));
  CHECK((workers[0].says("the process of rank 1 is gone") && workers[0].says("; exit")));
}

TEST_CASE("a kernel that hangs ahead of a call keeps its abort from returning, and the process has to end", "[nccl]") {
  Workers workers{2, {{{"FAKEGPU_FAULTS", "stuck:3"}}, {}}, {"200", "500"}};
  CHECK(workers[0].wait() == 70);
  CHECK(workers[1].wait() == 1);
  INFO(workers[0].output() + workers[1].output());
  CHECK(workers[0].says("ncclCommAbort did not return on cuda:0 within 5000 ms"));
  // On a busy machine the other rank, whose limit is the same, may have given up and ended first.
  CHECK((workers[0].says("was not over within 500 ms") || workers[0].says("the process of rank 1 is gone")));
  CHECK(workers[0].says("; exit"));
  CHECK((!workers[1].says("ncclCommAbort") && !workers[1].says("wrong")));
}

TEST_CASE("an abort waits for the program's own work ahead of a call", "[nccl]") {
  Workers workers{2, {{{"FAKEGPU_FAULTS", "slow:3:7000"}}, {{"FAKEGPU_NCCL_KILL_AT", "3"}}}};
  CHECK(workers[0].wait() == 1);
  INFO(workers[0].output());
  CHECK(workers[0].says("the process of rank 1 is gone"));
  CHECK((!workers[0].says("did not return") && !workers[0].says("wrong")));
}

TEST_CASE("NCCL's version decides at run time, and every rank says why it cannot begin", "[nccl]") {
  SECTION("too old on all") {
    const Environment old{{"FAKEGPU_NCCL_VERSION", "22501"}};
    Workers workers{2, {old, old}};
    for (const std::size_t rank : {0, 1}) {
      CHECK(workers[rank].wait() == 1);
      INFO(workers[rank].output());
      CHECK((workers[rank].says("NCCL 2.25.1") && workers[rank].says("too old") && workers[rank].says("2.26.0")));
    }
  }
  SECTION("another one on one rank, which all name") {
    Workers workers{2, {{}, {{"FAKEGPU_NCCL_VERSION", "22707"}}}};
    for (const std::size_t rank : {0, 1}) {
      CHECK(workers[rank].wait() == 1);
      INFO(workers[rank].output());
      CHECK(workers[rank].says("rank 0 has NCCL 2.28.9, and rank 1 has 2.27.7"));
    }
  }
  SECTION("two ranks on one device, which NCCL would refuse later") {
    Workers workers{2, {{}, {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}}};
    for (const std::size_t rank : {0, 1}) {
      CHECK(workers[rank].wait() == 1);
      INFO(workers[rank].output());
      CHECK(workers[rank].says("ranks 0 and 1 use one device"));
    }
  }
}

TEST_CASE("a call that fails inside NCCL ends with the user's NCCL variables in its failure", "[nccl]") {
  const Environment failing{
      {"FAKEGPU_NCCL_FAIL_AT", "30"}, {"FAKEGPU_NCCL_FAILURE", "2"}, {"NCCL_DEBUG", "WARN"}, {"NCCL_NET_TOKEN", "hidden"}};
  Workers workers{2, {failing, {}}};
  CHECK(workers[0].wait() == 1);
  CHECK(workers[1].wait() == 1);
  INFO(workers[0].output());
  CHECK((workers[0].says("a call of the system failed") && workers[0].says("NCCL_DEBUG=WARN") && workers[0].says("NCCL_NET_TOKEN")));
  CHECK(!workers[0].says("hidden"));
}
