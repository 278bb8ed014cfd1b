// Statements 23 to 32: what a worker finds around it.
#include <csignal>
#include <set>

#include "tests/compat/support.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""s;

namespace {

// What the worker of each rank found, of one agent.
struct Found {
  std::string output;
  int code = -1;
  std::map<std::string, Variables> ranks;
  [[nodiscard]] std::string of(const std::string& rank, const std::string& name) const {
    const auto found = ranks.find(rank);
    if (found == ranks.end()) return "(no rank " + rank + ")";
    const auto variable = found->second.find(name);
    return variable == found->second.end() ? "(unset)" : variable->second;
  }
};

Found found(const std::vector<std::string>& options, std::size_t ranks, Variables environment = {}) {
  Meeting meeting;
  TemporaryDirectory left;
  Job job{meeting.alone(joined(options, leave_environment(left.path())), std::move(environment))};
  Found out;
  out.code = job.wait(patience);
  out.output = job.output();
  for (std::size_t rank = 0; rank < ranks; ++rank)
    if (auto variables = environment_of(left.path(), std::to_string(rank)); !variables.empty())
      out.ranks.emplace(std::to_string(rank), std::move(variables));
  return out;
}

}  // namespace

TEST_CASE("23 two workers find exactly the variables that torchrun sets, and elrun's own", "[compat][process]") {
  Meeting meeting;
  TemporaryDirectory left;
  const Variables own{{"XDG_RUNTIME_DIR", meeting.folder.path()}, {"MINE", "kept"}, {"RANK", ""}};
  Job bare{{.arguments = {program_of_test("environment.sh"), left.path()}, .environment = own, .program = "/bin/sh"}};
  REQUIRE(bare.wait(patience) == 0);
  Job job{meeting.alone(
      joined({"--nproc_per_node", "2", "--rdzv_id", "job", "--max_restarts", "3", "--role", "trainer"}, leave_environment(left.path())),
      own)};
  REQUIRE(job.wait(patience) == 0);

  std::set<std::string> ports;
  for (const std::string rank : {"0", "1"}) {
    INFO("rank " << rank);
    Variables expected = environment_of(left.path(), "own");
    REQUIRE(expected.at("MINE") == "kept");
    expected["PYTHON_EXEC"] = torch_python();
    for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) expected[name] = rank;
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"}) expected[name] = "2";
    expected.insert({{"GROUP_RANK", "0"}, {"GROUP_WORLD_SIZE", "1"}, {"ROLE_NAME", "trainer"}, {"MASTER_ADDR", "127.0.0.1"}});
    expected.insert({{"TORCHELASTIC_RUN_ID", "job"}, {"TORCHELASTIC_RESTART_COUNT", "0"}, {"TORCHELASTIC_MAX_RESTARTS", "3"}});
    expected.insert({{"TORCHELASTIC_USE_AGENT_STORE", "False"}, {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"}});
    expected.insert({{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"}, {"OMP_NUM_THREADS", "1"}});

    Variables variables = environment_of(left.path(), rank);
    const auto take = [&](const std::string& name) {
      const auto node = variables.extract(name);
      INFO(name);
      CHECK_FALSE(node.empty());
      return node.empty() ? std::string{} : node.mapped();
    };
    // What cannot be known before.
    ports.insert(take("MASTER_PORT"));
    const std::string error_file = take("TORCHELASTIC_ERROR_FILE");
    CHECK(error_file.starts_with("/"));
    CHECK(error_file.ends_with("/attempt_0/" + rank + "/error.json"));
    std::map<std::string, std::string> elrun;
    for (auto it = variables.begin(); it != variables.end();)
      if (it->first.starts_with("ELRUN_")) elrun.insert(variables.extract(it++));
      else ++it;
    for (auto it = expected.begin(); it != expected.end();)  // of the test itself
      if (it->first.starts_with("ELRUN_")) it = expected.erase(it);
      else ++it;
    CHECK(variables == expected);
    for (const char* name :
         {"ELRUN_SOCKET", "ELRUN_NODE", "ELRUN_NODE_ADDRESS", "ELRUN_GENERATION", "ELRUN_RESTART_COUNT", "ELRUN_RESTART_CAUSE"}) {
      INFO(name);
      CHECK(elrun.contains(name));
    }
    CHECK(elrun["ELRUN_GENERATION"] == "1");
    CHECK(elrun["ELRUN_RESTART_COUNT"] == "0");
  }
  CHECK(ports.size() == 1);
  CHECK(std::atoi(ports.begin()->c_str()) > 0);
}

TEST_CASE("24 OMP_NUM_THREADS is 1 for several workers of a node, with a warning, unless it was set", "[compat][process]") {
  const std::string warning = "OMP_NUM_THREADS";
  const Found two = found({"--nproc_per_node", "2"}, 2);
  CHECK(two.of("0", "OMP_NUM_THREADS") == "1");
  CHECK(two.of("1", "OMP_NUM_THREADS") == "1");
  CHECK(reported_times(two.output, warning) == 1);
  const Found one = found({"--nproc_per_node", "1"}, 1);
  CHECK(one.of("0", "OMP_NUM_THREADS") == "(unset)");
  CHECK(reported_times(one.output, warning) == 0);
  const Found set = found({"--nproc_per_node", "2"}, 2, {{"OMP_NUM_THREADS", "7"}});
  CHECK(set.of("1", "OMP_NUM_THREADS") == "7");
  CHECK(reported_times(set.output, warning) == 0);
}

TEST_CASE("25 TORCH_NCCL_ASYNC_ERROR_HANDLING is 1 unless it was set", "[compat][process]") {
  CHECK(found({}, 1).of("0", "TORCH_NCCL_ASYNC_ERROR_HANDLING") == "1");
  CHECK(found({}, 1, {{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}}).of("0", "TORCH_NCCL_ASYNC_ERROR_HANDLING") == "3");
}

TEST_CASE("26 an unmodified gloo program finds itself over two nodes", "[compat][process][torch]") {
  if (!has_torch()) return;
  Meeting meeting;
  Job a{meeting.node("2", {sample("all_reduce.py")})};
  Job b{meeting.node("2", {sample("all_reduce.py")})};
  CHECK(a.wait(patience) == 0);
  CHECK(b.wait(patience) == 0);
  const std::string all = a.output() + b.output();
  INFO(all);
  CHECK(reported_times(all, "rank 0 of 2: sum 3, all collectives right") == 1);
  CHECK(reported_times(all, "rank 1 of 2: sum 3, all collectives right") == 1);
}

TEST_CASE("27 the same after each of 12 forced restarts", "[compat][process][torch]") {
  if (!has_torch()) return;
  Meeting meeting;
  Job job{meeting.alone({"--nproc_per_node", "2", "--max_restarts", "12", "--no_python", "/bin/sh", program_of_test("fail_after.sh"), "12",
                         torch_python(), "-u", sample("all_reduce.py")})};
  CHECK(job.wait(4 * patience) == 0);
  INFO(job.output());
  CHECK(reported_times(job.output(), "rank 0 of 2: sum 3, all collectives right") == 13);
  CHECK(reported_times(job.output(), "rank 1 of 2: sum 3, all collectives right") == 13);
  CHECK(reported_times(job.output(), "generation 13: ") == 1);
}

TEST_CASE("28 a program may meet at a tcp:// address of its own: rank 0 hosts it", "[compat][process][torch]") {
  if (!has_torch()) return;
  Meeting meeting;
  Job job{meeting.alone({"--nproc_per_node", "2", program_of_test("tcp_init.py"), std::to_string(free_port())})};
  CHECK(job.wait(patience) == 0);
  INFO(job.output());
  CHECK(job.says("rank 0 of 2: sum 2"));
  CHECK(job.says("rank 1 of 2: sum 2"));
}

TEST_CASE("29 with --virtual-local-rank each worker is local rank 0, and sees one device", "[compat][process]") {
  const auto with_devices = [](const Variables& devices) { return found({"--virtual-local-rank", "--nproc_per_node", "2"}, 2, devices); };
  SECTION("of those that were named") {
    const Found two = with_devices({{"CUDA_VISIBLE_DEVICES", "4, 5"}});
    for (const std::string rank : {"0", "1"}) {
      CHECK(two.of(rank, "RANK") == rank);
      CHECK(two.of(rank, "LOCAL_RANK") == "0");
      CHECK(two.of(rank, "LOCAL_WORLD_SIZE") == "2");
    }
    CHECK(two.of("0", "CUDA_VISIBLE_DEVICES") == "4");
    CHECK(two.of("1", "CUDA_VISIBLE_DEVICES") == "5");
  }
  SECTION("of all, in order") {
    const Found two = with_devices({});
    CHECK(two.of("0", "CUDA_VISIBLE_DEVICES") == "0");
    CHECK(two.of("1", "CUDA_VISIBLE_DEVICES") == "1");
    CHECK(two.of("1", "LOCAL_RANK") == "0");
  }
  SECTION("and fewer devices than workers are an error that says so") {
    const Found none = with_devices({{"CUDA_VISIBLE_DEVICES", "4"}});
    CHECK(none.code == 78);
    CHECK(none.ranks.empty());
    CHECK(none.output.find("CUDA_VISIBLE_DEVICES=4") != std::string::npos);
  }
  SECTION("without the option nothing of it") {
    const Found two = found({"--nproc_per_node", "2"}, 2, {{"CUDA_VISIBLE_DEVICES", "4, 5"}});
    CHECK(two.of("1", "LOCAL_RANK") == "1");
    CHECK(two.of("1", "CUDA_VISIBLE_DEVICES") == "4, 5");
  }
}

TEST_CASE("30 nodes may have different numbers of workers", "[compat][process]") {
  Meeting meeting;
  TemporaryDirectory left;
  Job a{meeting.node("2", joined({"--nproc_per_node", "2"}, leave_environment(left.path())))};
  Job b{meeting.node("2", joined({"--nproc_per_node", "3"}, leave_environment(left.path())))};
  CHECK(a.wait(patience) == 0);
  CHECK(b.wait(patience) == 0);
  std::map<std::string, std::vector<int>> ranks;  // by the size of their node
  std::map<std::string, std::string> groups;
  for (int rank = 0; rank < 5; ++rank) {
    Variables worker = environment_of(left.path(), std::to_string(rank));
    INFO("rank " << rank);
    CHECK(worker["WORLD_SIZE"] == "5");
    ranks[worker["LOCAL_WORLD_SIZE"]].push_back(rank);
    CHECK(worker["LOCAL_RANK"] == std::to_string(ranks[worker["LOCAL_WORLD_SIZE"]].size() - 1));
    groups[worker["LOCAL_WORLD_SIZE"]] += worker["GROUP_RANK"];
  }
  const bool small_first = ranks["2"] == std::vector<int>{0, 1};
  CHECK(ranks["2"] == (small_first ? std::vector<int>{0, 1} : std::vector<int>{3, 4}));
  CHECK(ranks["3"] == (small_first ? std::vector<int>{2, 3, 4} : std::vector<int>{0, 1, 2}));
  CHECK(groups["2"] == (small_first ? "00" : "11"));
  CHECK(groups["3"] == (small_first ? "111" : "000"));
}

TEST_CASE("31 workers of one role are numbered among themselves, beside all others", "[compat][process]") {
  Meeting meeting;
  TemporaryDirectory left;
  const auto agent = [&](const std::string& role, const std::string& workers) {
    return meeting.node("3", joined({"--role", role, "--nproc_per_node", workers}, leave_environment(left.path())));
  };
  Job a{agent("a", "2")}, b{agent("b", "1")}, more{agent("a", "1")};
  for (Job* job : {&a, &b, &more}) CHECK(job->wait(patience) == 0);
  std::map<std::string, std::vector<std::string>> places;  // of a role, in the order of all ranks
  for (int rank = 0; rank < 4; ++rank) {
    Variables worker = environment_of(left.path(), std::to_string(rank));
    INFO("rank " << rank);
    CHECK(worker["RANK"] == std::to_string(rank));
    CHECK(worker["WORLD_SIZE"] == "4");
    places[worker["ROLE_NAME"]].push_back(worker["ROLE_RANK"] + " of " + worker["ROLE_WORLD_SIZE"]);
  }
  CHECK(places["a"] == std::vector<std::string>{"0 of 3", "1 of 3", "2 of 3"});
  CHECK(places["b"] == std::vector<std::string>{"0 of 1"});
}

TEST_CASE("32 a worker leads a session and a process group of its own, with the agent's input and folder", "[compat][process]") {
  Meeting meeting;
  TemporaryDirectory folder;
  const std::string command =
      "cd " + folder.path() + " && echo a_word | " + program_path("elrun") + " --no_python /bin/sh " + program_of_test("place.sh");
  Job job{{.arguments = {"-c", command}, .environment = {{"XDG_RUNTIME_DIR", meeting.folder.path()}}, .program = "/bin/sh"}};
  const auto line = job.line("pid=", patience);
  REQUIRE(line);
  CHECK(job.wait(patience) == 0);
  CHECK(word_after(*line, "group") == word_after(*line, "pid"));
  CHECK(word_after(*line, "session") == word_after(*line, "pid"));
  CHECK(word_after(*line, "folder") == std::filesystem::canonical(folder.path()).string());
  CHECK(word_after(*line, "input") == "a_word");
}
