#include "launcher/options/environment.hpp"

#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

World two_nodes() {
  World w;
  w.generation = {7, {{1, 2}}};
  w.seat = {.group_rank = 1, .base_rank = 2, .nodes = 2, .world_size = 5};
  w.restarts.generations = 4;
  w.cause = "worker 3 ended by exit code 1: ValueError: a\nb";
  w.address = "10.0.0.2";
  w.master_address = "10.0.0.1";
  w.master_port = 5001;
  w.role = {1, 4};
  return w;
}

Variables environment_of(std::uint32_t local_rank, Variables own = {}) {
  LaunchOptions options;
  options.round.max_restarts = 5;
  options.workers = 3;
  const World world = two_nodes();
  return worker_environment(std::move(own), {.options = options,
                                             .world = world,
                                             .run = RunId{"job"},
                                             .node = NodeId{"b"},
                                             .local_rank = LocalRank{local_rank},
                                             .node_restarts = 1,
                                             .socket = "/run/x/agent.sock",
                                             .place = local_rank,
                                             .error_file = "/run/x/attempt_1/error.json"});
}

}  // namespace

TEST_CASE("a worker finds torchrun's variables and ours", "[environment]") {
  const Variables expected{{"HOME", "/root"},
                           {"RANK", "4"},
                           {"LOCAL_RANK", "2"},
                           {"ELRUN_LOCAL_RANK", "2"},
                           {"WORLD_SIZE", "5"},
                           {"LOCAL_WORLD_SIZE", "3"},
                           {"GROUP_RANK", "1"},
                           {"GROUP_WORLD_SIZE", "2"},
                           {"ROLE_NAME", "default"},
                           {"ROLE_RANK", "3"},
                           {"ROLE_WORLD_SIZE", "4"},
                           {"MASTER_ADDR", "10.0.0.1"},
                           {"MASTER_PORT", "5001"},
                           {"TORCHELASTIC_RUN_ID", "job"},
                           {"TORCHELASTIC_RESTART_COUNT", "1"},
                           {"TORCHELASTIC_MAX_RESTARTS", "5"},
                           {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                           {"TORCHELASTIC_ERROR_FILE", "/run/x/attempt_1/error.json"},
                           {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
                           {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                           {"OMP_NUM_THREADS", "1"},
                           {"ELRUN_SOCKET", "/run/x/agent.sock"},
                           {"ELRUN_NODE", "b"},
                           {"ELRUN_NODE_ADDRESS", "10.0.0.2"},
                           {"ELRUN_GENERATION", "7"},
                           {"ELRUN_RESTART_COUNT", "4"},
                           {"ELRUN_RESTART_CAUSE", "worker 3 ended by exit code 1: ValueError: a b"}};
  CHECK(environment_of(2, {{"HOME", "/root"}, {"RANK", "99"}}) == expected);
}

TEST_CASE("what a person has set for threads and NCCL stays", "[environment]") {
  const Variables e = environment_of(0, {{"OMP_NUM_THREADS", "8"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}});
  CHECK(e.at("OMP_NUM_THREADS") == "8");
  CHECK(e.at("TORCH_NCCL_ASYNC_ERROR_HANDLING") == "3");
}

TEST_CASE("where no roles were told, all workers have one", "[environment]") {
  LaunchOptions options;
  options.workers = 3;
  World world = two_nodes();
  world.role = {};
  const Variables e = worker_environment({}, {.options = options, .world = world, .local_rank = LocalRank{1}, .place = 1});
  CHECK(e.at("ROLE_RANK") == "3");
  CHECK(e.at("ROLE_WORLD_SIZE") == "5");
}

TEST_CASE("an empty value is none", "[environment]") {
  const Variables e = environment_of(0, {{"OMP_NUM_THREADS", ""}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING", ""}});
  CHECK(e.at("OMP_NUM_THREADS") == "1");
  CHECK(e.at("TORCH_NCCL_ASYNC_ERROR_HANDLING") == "1");
}

TEST_CASE("a virtual local rank is 0, with one device of those that are visible", "[environment]") {
  LaunchOptions options;
  options.workers = 3;
  options.virtual_local_rank = true;
  const World world = two_nodes();
  const auto of = [&](std::uint32_t local, Variables own) {
    return worker_environment(std::move(own), {.options = options, .world = world, .local_rank = LocalRank{local}, .place = local});
  };
  const Variables named{{"CUDA_VISIBLE_DEVICES", " 4,GPU-7f, 5"}};
  CHECK(of(1, named).at("LOCAL_RANK") == "0");
  CHECK(of(1, named).at("ELRUN_LOCAL_RANK") == "1");
  CHECK(of(1, named).at("RANK") == "3");
  CHECK(of(0, named).at("CUDA_VISIBLE_DEVICES") == "4");
  CHECK(of(1, named).at("CUDA_VISIBLE_DEVICES") == "GPU-7f");
  CHECK(of(2, named).at("CUDA_VISIBLE_DEVICES") == "5");
  CHECK(of(2, {}).at("CUDA_VISIBLE_DEVICES") == "2");
  CHECK(of(2, {{"CUDA_VISIBLE_DEVICES", ""}}).at("CUDA_VISIBLE_DEVICES").empty());
  // A device plugin names the parts of a GPU here alone. They have no numbers; whole GPUs have.
  CHECK(of(1, {{"NVIDIA_VISIBLE_DEVICES", "MIG-a,MIG-b,MIG-c"}}).at("CUDA_VISIBLE_DEVICES") == "MIG-b");
  CHECK(of(1, {{"NVIDIA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c"}}).at("CUDA_VISIBLE_DEVICES") == "1");
  CHECK(of(1, {{"CUDA_VISIBLE_DEVICES", "3,4,5"}, {"NVIDIA_VISIBLE_DEVICES", "MIG-a,MIG-b"}}).at("CUDA_VISIBLE_DEVICES") == "4");
}

TEST_CASE("a lone worker of a node keeps all its threads", "[environment]") {
  LaunchOptions options;
  options.workers = 1;
  const World world = two_nodes();
  CHECK(worker_environment({}, {.options = options, .world = world, .local_rank = LocalRank{0}}).count("OMP_NUM_THREADS") == 0);
}

TEST_CASE("the signals that elrun handles are told by name", "[environment]") {
  LaunchOptions options;
  options.signals_to_handle = {SIGTERM, SIGUSR1};
  const World world = two_nodes();
  CHECK(worker_environment({}, {.options = options, .world = world, .local_rank = LocalRank{0}}).at("TORCHELASTIC_SIGNALS_TO_HANDLE") ==
        "SIGTERM,SIGUSR1");
}

TEST_CASE("macros of arguments", "[environment]") {
  const auto at3 = [](const char* text) { return substitute_macros(text, LocalRank{3}); };
  CHECK(at3("${local_rank}") == "3");
  CHECK(at3("a$local_rank.b") == "a3.b");
  CHECK(at3("$$") == "$");
  CHECK(at3("$$local_rank") == "$local_rank");
  for (const char* stays : {"${other}", "$", "${", "${local_rank", "$local_rank_x", "$LOCAL_RANK", "$ local_rank", "plain", ""})
    CHECK(at3(stays) == stays);
}

TEST_CASE("text without a dollar passes unchanged", "[environment][property]") {
  elrun::test::for_all_seeds(200, [](Rng& rng) {
    std::string text;
    for (auto n = rng.below(40); n > 0; --n) {
      const char c = static_cast<char>(rng.below(256));
      text += c == '$' ? '_' : c;
    }
    CHECK(substitute_macros(text, LocalRank{1}) == text);
  });
}

TEST_CASE("a program is found before anything starts", "[environment]") {
  const std::map<std::string, FoundFile> files{{"/v/bin/python", {FileKind::executable}},
                                               {"/b/python3", {FileKind::executable, "\177ELF"}},
                                               {"/e/bin/python3", {FileKind::executable}},
                                               {"/e/bin/torchrun", {FileKind::executable}},
                                               {"/e/bin/../pyvenv.cfg", {FileKind::not_executable}},
                                               {"/d/torchrun", {FileKind::executable}},
                                               {"/d/elrun", {FileKind::executable}},
                                               {"/d/python", {FileKind::executable}},
                                               {"/b/tool", {FileKind::not_executable}},
                                               {"/c/tool", {FileKind::executable}},
                                               {"/b/data", {FileKind::not_executable}},
                                               {"s.py", {FileKind::not_executable}},
                                               {"both.py", {FileKind::executable, "#!/bin/sh\n"}},
                                               {"run.sh", {FileKind::not_executable, "#!/bin/sh\necho\n"}},
                                               {"./x", {FileKind::executable}},
                                               {"./elf", {FileKind::executable, "\177ELF\2"}},
                                               {"./copied", {FileKind::not_executable, "\177ELF\2"}}};
  const LookUp look_up = [&](const std::string& path) { return files.count(path) ? files.at(path) : FoundFile{}; };
  const auto resolve = [&](Program::Kind kind, const char* name, Variables environment, const char* elrun_name = "/bin/elrun") {
    environment.try_emplace("PATH", "/a:/b:/c");
    return resolve_command({kind, name, {}}, environment, look_up, elrun_name);
  };
  const auto found = [](const auto& r) { return std::get<Command>(r).path; };
  const auto code = [](const auto& r) { return std::get<NoCommand>(r).exit_code; };
  using K = Program::Kind;

  CHECK(found(resolve(K::script, "s.py", {})) == "/b/python3");
  CHECK(std::get<Command>(resolve(K::script, "s.py", {})).arguments == std::vector<std::string>{"python3", "-u", "s.py"});
  CHECK(std::get<Command>(resolve(K::module, "pkg", {})).arguments == std::vector<std::string>{"python3", "-u", "-m", "pkg"});
  const auto by_path = std::get<Command>(resolve(K::run_path, "s.py", {})).arguments;
  REQUIRE(by_path.size() == 5);
  CHECK(by_path[2] == "-c");
  CHECK(by_path[4] == "s.py");
  CHECK(code(resolve(K::run_path, "missing.py", {})) == 66);
  CHECK(found(resolve(K::script, "s.py", {{"VIRTUAL_ENV", "/v"}})) == "/v/bin/python");
  CHECK(found(resolve(K::script, "s.py", {{"VIRTUAL_ENV", "/nowhere"}})) == "/b/python3");
  CHECK(found(resolve(K::script, "s.py", {{"PYTHON_EXEC", "tool"}, {"VIRTUAL_ENV", "/v"}})) == "/c/tool");
  CHECK(code(resolve(K::script, "s.py", {{"PYTHON_EXEC", "/nowhere"}})) == 127);
  SECTION("the interpreter beside elrun, where it is in a virtual environment or called torchrun") {
    const auto python = [&](const char* elrun_name, Variables environment = {}) {
      return found(resolve(K::script, "s.py", std::move(environment), elrun_name));
    };
    CHECK(python("/e/bin/torchrun") == "/e/bin/python3");
    CHECK(python("/e/bin/elrun") == "/e/bin/python3");
    CHECK(python("/e/bin/torchrun", {{"VIRTUAL_ENV", "/v"}}) == "/e/bin/python3");
    CHECK(python("torchrun", {{"PATH", "/b:/e/bin"}}) == "/e/bin/python3");
    CHECK(python("/e/bin/torchrun", {{"PYTHON_EXEC", "/v/bin/python"}}) == "/v/bin/python");
    CHECK(python("/d/torchrun") == "/d/python");
    CHECK(python("/d/elrun") == "/b/python3");  // one for all environments
    CHECK(python("/d/torchrun", {{"VIRTUAL_ENV", "/v"}}) == "/v/bin/python");
    CHECK(python("/d/torchrun", {{"CONDA_PREFIX", "/v"}}) == "/b/python3");
    CHECK(python("/nowhere/torchrun") == "/b/python3");
  }
  CHECK(code(resolve(K::script, "missing.py", {})) == 66);
  CHECK(found(resolve(K::executable, "tool", {})) == "/c/tool");  // one that cannot be executed does not hide the next
  CHECK(found(resolve(K::executable, "./x", {})) == "./x");
  CHECK(found(resolve(K::executable, "./elf", {})) == "./elf");
  CHECK(code(resolve(K::script, "./elf", {})) == 126);  // Python would only say that it is no text
  CHECK(code(resolve(K::script, "./copied", {})) == 126);
  CHECK(code(resolve(K::executable, "./copied", {})) == 126);
  CHECK(std::get<Command>(resolve(K::script, "run.sh", {})).warning.find("names sh") != std::string::npos);
  CHECK(std::get<Command>(resolve(K::script, "both.py", {})).warning.empty());  // whoever calls it so says what it is
  CHECK(std::get<Command>(resolve(K::script, "s.py", {})).warning.empty());
  CHECK(code(resolve(K::executable, "data", {})) == 126);
  CHECK(code(resolve(K::executable, "nothing", {})) == 127);
}

TEST_CASE("a script's first line tells whether it is another interpreter's", "[environment]") {
  for (const auto& [line, name] : std::map<std::string, std::string>{{"#!/bin/sh", "sh"},
                                                                     {"#! /bin/bash -e\necho\n", "bash"},
                                                                     {"#!/usr/bin/env perl\r\n", "perl"},
                                                                     {"#!/usr/bin/env -S bash -x\n", "bash"},
                                                                     {"#!/usr/bin/env python3\n", ""},
                                                                     {"#!/opt/bin/python3.12 -u\n", ""},
                                                                     {"#!/usr/bin/env -S uv run --script\n", ""},
                                                                     {"#!/usr/bin/env\n", ""},
                                                                     {"#!", ""},
                                                                     {"#!\n/bin/sh\n", ""},
                                                                     {"import torch  # not #!/bin/sh\n", ""},
                                                                     {"", ""}})
    CHECK(other_interpreter(line) == name);
}

TEST_CASE("arguments of a worker: macros everywhere but in the name of an executable", "[environment]") {
  const Program program{Program::Kind::executable, "p$local_rank", {"--out", "${local_rank}.txt"}};
  CHECK(worker_arguments({"/p", {"p$local_rank"}}, program, LocalRank{2}) == std::vector<std::string>{"p$local_rank", "--out", "2.txt"});
  const Program script{Program::Kind::script, "s$local_rank.py", {}};
  CHECK(worker_arguments({"/py", {"py", "-u", "s$local_rank.py"}}, script, LocalRank{2}).back() == "s2.py");
}
