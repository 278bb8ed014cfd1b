// What each operator puts into a pod's environment, times the command lines that its users write there: the plan of
// `--dry_run` in one line each, or what the refusal says. The words are taken apart as a shell does after it has put the
// variables in.
#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/commands/plan.hpp"
#include "launcher/options/options.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

struct Pod {
  std::string host_name;
  Variables environment{};
  std::uint32_t gpus = 8;
  std::string hosts_file{};
  std::set<std::string> names{};  // that resolve
};

// `$NAME`, `${NAME}` and `${NAME:-default}`, then words at blanks; what is empty is no word.
std::vector<std::string> words_of(std::string_view line, const Variables& environment) {
  std::string text;
  while (!line.empty()) {
    if (line[0] != '$') {
      text += line[0], line.remove_prefix(1);
      continue;
    }
    const bool braces = line.substr(1).starts_with('{');
    std::string_view name = line.substr(braces ? 2 : 1);
    name = name.substr(0, braces ? name.find('}') : name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_"));
    line.remove_prefix(name.size() + (braces ? 3 : 1));
    const auto otherwise = name.find(":-");
    const auto found = environment.find(name.substr(0, otherwise));
    if (found != environment.end() && !found->second.empty()) text += found->second;
    else if (otherwise != std::string_view::npos) text += name.substr(otherwise + 2);
  }
  std::vector<std::string> words;
  for (std::size_t begin = 0; (begin = text.find_first_not_of(' ', begin)) != std::string::npos;) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

Parsed parse(std::vector<std::string> words, const Pod& pod) {
  words.insert(words.begin(), "--dry-run");
  return parse_command(
      words, pod.environment,
      {.gpus =
           [&] {
             return Count{pod.gpus, "devices"};
           },
       .cpus =
           [] {
             return Count{6, "mask"};
           },
       .host_name = [&] { return pod.host_name; },
       .read_file = [&](const std::string& path) { return path == "/etc/hosts" ? std::optional{pod.hosts_file} : std::nullopt; },
       .resolves = [&](const std::string& name) { return pod.names.count(name) != 0; }});
}

nlohmann::json plan(const LaunchOptions& options, const Variables& environment = {}) {
  return nlohmann::json::parse(
      plan_text(options, without_secrets(environment), Command{"/usr/bin/python3", {"python3", "-u", options.program.name}}));
}

// "2 nodes x 8, h:29400 served by ..., run none, rank 1, t5.py": all that the nodes of a job must agree on, and this one.
std::string summary(std::string_view line, const Pod& pod) {
  const auto command = parse(words_of(line, pod.environment), pod);
  if (const auto* usage = std::get_if<Usage>(&command))
    return fmt::format("{}: {}", usage->exit_code, usage->text.substr(usage->text.find('\n') + 1));
  const auto& options = std::get<LaunchOptions>(command);
  REQUIRE(options.dry_run);
  const nlohmann::json p = plan(options, pod.environment);
  const std::string least = p["nodes"]["min"].dump(), most = p["nodes"]["max"].dump();
  return fmt::format("{} x {}, {} {}, run {}, rank {}, {}", least == most ? most : least + ":" + most, p["workers"]["value"].dump(),
                     p["meeting"].value("endpoint", ""), p["meeting"]["served_by"].get<std::string>(),
                     p["run_id"]["value"].is_null() ? "random" : p["run_id"]["value"].get<std::string>(), p["node_rank"]["value"].dump(),
                     options.program.name);
}

const Variables in_cluster{{"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base.insert_or_assign(name, value);
  return base;
}

// PyTorchJob: a master, then workers; `rank` counts both.
Pod pytorch_job(std::uint32_t rank, const char* nodes, const char* workers = "auto") {
  return {.host_name = rank == 0 ? "j-master-0" : fmt::format("j-worker-{}", rank - 1),
          .environment = with(in_cluster, {{"PYTHONUNBUFFERED", "1"},
                                           {"MASTER_ADDR", "j-master-0"},
                                           {"PET_MASTER_ADDR", "j-master-0"},
                                           {"MASTER_PORT", "23456"},
                                           {"PET_MASTER_PORT", "23456"},
                                           {"WORLD_SIZE", nodes},
                                           {"RANK", std::to_string(rank)},
                                           {"PET_NODE_RANK", std::to_string(rank)},
                                           {"PET_NPROC_PER_NODE", workers},
                                           {"PET_NNODES", nodes}})};
}

// PyTorchJob with an elasticPolicy and no master.
Pod elastic_job(std::uint32_t index, const char* nodes, const Variables& more = {}) {
  return {.host_name = fmt::format("j-worker-{}", index),
          .environment = with(with(in_cluster, {{"PYTHONUNBUFFERED", "1"},
                                                {"PET_NPROC_PER_NODE", "auto"},
                                                {"PET_NNODES", nodes},
                                                {"PET_RDZV_BACKEND", "c10d"},
                                                {"PET_RDZV_ENDPOINT", "j-worker-0:23456"}}),
                              more)};
}

// TrainJob with the torch policy.
Pod train_job(std::uint32_t index, const char* nodes, const char* workers = "auto") {
  const std::string i = std::to_string(index);
  return {.host_name = "t-node-0-" + i,
          .environment = with(in_cluster, {{"PET_NNODES", nodes},
                                           {"PET_NPROC_PER_NODE", workers},
                                           {"PET_NODE_RANK", i},
                                           {"PET_MASTER_ADDR", "t-node-0-0.t"},
                                           {"PET_MASTER_PORT", "29500"},
                                           {"JOB_COMPLETION_INDEX", i}}),
          .hosts_file = "10.2.0.7 t-node-0-" + i + ".t.ns.svc.cluster.local t-node-0-" + i + "\n"};
}

// A JobSet of one's own, or a TrainJob without spec.trainer: nothing but the names.
Pod job_set(std::uint32_t index) {
  Pod pod = train_job(index, "2");
  pod.environment = with(in_cluster, {{"JOB_COMPLETION_INDEX", std::to_string(index)}});
  pod.names = {"t-node-0-0.t", "t-node-0-1.t"};
  return pod;
}

Pod volcano(std::uint32_t index) {
  return {.host_name = fmt::format("v-worker-{}", index),
          .environment = with(in_cluster, {{"VC_TASK_INDEX", std::to_string(index)},
                                           {"MASTER_ADDR", "v-master-0.v"},
                                           {"MASTER_PORT", "23456"},
                                           {"WORLD_SIZE", "3"},
                                           {"RANK", std::to_string(index + 1)}})};
}

Pod slurm(std::uint32_t rank) {
  return {.host_name = fmt::format("n{}", rank + 1),
          .environment = {{"SLURM_JOB_ID", "17"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NUM_TASKS", "2"},
                          {"SLURM_PROCID", std::to_string(rank)},
                          {"SLURM_STEP_NODELIST", "n[1-2]"}}};
}

Pod mpirun(std::uint32_t rank) {
  return {
      .host_name = "launcher",
      .environment = {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}};
}

// The command lines of the tutorials, by their number.
constexpr const char* tutorial0 = "--nproc_per_node 8 --rdzv_id=elastic-job --rdzv_backend=c10d t5-fsdp.py";
constexpr const char* tutorial2 =
    "--nproc_per_node=8 --rdzv_id=elastic-job --rdzv_backend=c10d --rdzv_endpoint=${PET_MASTER_ADDR}:${PET_MASTER_PORT:-29500} t5-fsdp.py";
constexpr const char* tutorial3 =
    "--nproc_per_node=8 --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=:29400 full.py --bf16 True --deepspeed ds_full.json";
constexpr const char* tutorial4 =
    "--nnodes ${PET_NNODES} --nproc_per_node ${PET_NPROC_PER_NODE} --rdzv_id ${PET_RDZV_ID} --rdzv_backend ${PET_RDZV_BACKEND} "
    "--rdzv_endpoint ${PET_RDZV_ENDPOINT} mnist.py --checkpoint_path /tmp/mnist.pt";
constexpr const char* tutorial5 = "--nnodes 4 --nproc_per_node 1 t5-fsdp.py";
constexpr const char* plain = "train.py";

}  // namespace

TEST_CASE("each operator's pods and each tutorial's command line give one plan", "[dry run]") {
  struct Row {
    const char* line;
    std::string expected;  // the beginning of a summary, or what a refusal says
  };
  struct Table {
    const char* name;
    Pod pod;
    std::vector<Row> rows;
  };
  const std::string here = "this node", there = "another node", leads = "the node to which the endpoint leads",
                    alone = "1 x 8,  this process, for this node alone, run ";
  const auto joined = [](std::string a, const std::string& b, const std::string& c) { return std::move(a) + b + c; };
  const Table tables[] = {
      {"PyTorchJob, the master",
       pytorch_job(0, "2"),
       {{plain, joined("2 x 8, j-master-0:13456 ", here, ", run none, rank 0, train.py")},
        {tutorial0, joined("2 x 8, j-master-0:23456 ", leads, ", run elastic-job, rank 0, t5-fsdp.py")},
        {tutorial2, joined("2 x 8, j-master-0:23456 ", leads, ", run elastic-job, rank 0, t5-fsdp.py")},
        {tutorial3, joined("2 x 8, j-master-0:29400 ", leads, ", run none, rank 0, full.py")},
        {tutorial4, joined("2 x 8, j-master-0:13456 ", here, ", run none, rank 0, mnist.py")},
        {tutorial5, joined("4 x 1, j-master-0:13456 ", here, ", run none, rank 0, t5-fsdp.py")}}},
      {"PyTorchJob, a worker",
       pytorch_job(1, "2"),
       {{plain, joined("2 x 8, j-master-0:13456 ", there, ", run none, rank 1, train.py")},
        {tutorial0, joined("2 x 8, j-master-0:23456 ", leads, ", run elastic-job, rank 1, t5-fsdp.py")},
        {tutorial2, joined("2 x 8, j-master-0:23456 ", leads, ", run elastic-job, rank 1, t5-fsdp.py")},
        {tutorial3, joined("2 x 8, j-master-0:29400 ", leads, ", run none, rank 1, full.py")},
        {tutorial4, joined("2 x 8, j-master-0:13456 ", there, ", run none, rank 1, mnist.py")},
        {tutorial5, joined("4 x 1, j-master-0:13456 ", there, ", run none, rank 1, t5-fsdp.py")}}},
      {"PyTorchJob, elastic, without an id",
       elastic_job(1, "1:3"),
       {{plain, joined("1:3 x 8, j-worker-0:23456 ", leads, ", run none, rank 1, train.py")},
        {tutorial0, joined("1:3 x 8, j-worker-0:23456 ", leads, ", run elastic-job, rank 1, t5-fsdp.py")},
        {tutorial2, joined("1:3 x 8, j-worker-0:29500 ", leads, ", run elastic-job, rank 1, t5-fsdp.py")},
        {tutorial3, joined("2 x 8, j-worker-0:29400 ", leads, ", run none, rank 1, full.py")},
        {tutorial4, joined("1:3 x 8, j-worker-0:23456 ", leads, ", run none, rank 1, mnist.py")},
        {tutorial5, joined("4 x 1, j-worker-0:23456 ", leads, ", run none, rank 1, t5-fsdp.py")}}},
      {"PyTorchJob, elastic, all fields set",
       elastic_job(0, "1:3", {{"PET_RDZV_ID", "job"}, {"PET_MAX_RESTARTS", "3"}, {"PET_RDZV_CONF", "timeout=1200"}}),
       {{plain, joined("1:3 x 8, j-worker-0:23456 ", leads, ", run job, rank 0, train.py")},
        {tutorial0, joined("1:3 x 8, j-worker-0:23456 ", leads, ", run elastic-job, rank 0, t5-fsdp.py")},
        {tutorial3, joined("2 x 8, j-worker-0:29400 ", leads, ", run job, rank 0, full.py")},
        {tutorial4, joined("1:3 x 8, j-worker-0:23456 ", leads, ", run job, rank 0, mnist.py")}}},
      {"PyTorchJob, elastic, on one node",
       elastic_job(0, "1:1", {{"PET_STANDALONE", ""}}),
       {{plain, alone + "random, rank null, train.py"},
        {tutorial0, alone + "random, rank null, t5-fsdp.py"},
        {tutorial4, alone + "random, rank null, mnist.py"},
        {tutorial5, "78: elrun: --standalone means one node, but --nnodes 4 asks for more"}}},
      {"PyTorchJob of workers only: nothing but numbers",
       {"j-worker-1", with(in_cluster, {{"PET_NNODES", "2"}, {"PET_NPROC_PER_NODE", "auto"}})},
       {{plain, joined("2 x 8, j-worker-0:23456 ", leads, ", run none, rank 1, train.py")},
        {tutorial0, joined("2 x 8, j-worker-0:23456 ", leads, ", run elastic-job, rank 1, t5-fsdp.py")},
        {tutorial2, joined("2 x 8, j-worker-0:29500 ", leads, ", run elastic-job, rank 1, t5-fsdp.py")},
        {tutorial3, joined("2 x 8, j-worker-0:29400 ", leads, ", run none, rank 1, full.py")},
        {tutorial4, joined("2 x 8, j-worker-0:23456 ", leads, ", run none, rank 1, mnist.py")}}},
      {"TrainJob, the first pod",
       train_job(0, "2"),
       {{plain, joined("2 x 8, t-node-0-0.t:19500 ", here, ", run none, rank 0, train.py")},
        {tutorial0, joined("2 x 8, t-node-0-0.t:29500 ", leads, ", run elastic-job, rank 0, t5-fsdp.py")},
        {tutorial2, joined("2 x 8, t-node-0-0.t:29500 ", leads, ", run elastic-job, rank 0, t5-fsdp.py")},
        {tutorial3, joined("2 x 8, t-node-0-0.t:29400 ", leads, ", run none, rank 0, full.py")},
        {tutorial4, joined("2 x 8, t-node-0-0.t:19500 ", here, ", run none, rank 0, mnist.py")}}},
      {"TrainJob, the second pod",
       train_job(1, "2", "4"),
       {{plain, joined("2 x 4, t-node-0-0.t:19500 ", there, ", run none, rank 1, train.py")},
        {tutorial0, joined("2 x 8, t-node-0-0.t:29500 ", leads, ", run elastic-job, rank 1, t5-fsdp.py")},
        {tutorial2, joined("2 x 8, t-node-0-0.t:29500 ", leads, ", run elastic-job, rank 1, t5-fsdp.py")},
        {tutorial4, joined("2 x 4, t-node-0-0.t:19500 ", there, ", run none, rank 1, mnist.py")}}},
      {"TrainJob of one node",
       train_job(0, "1"),
       {{plain, alone + "none, rank 0, train.py"},
        {tutorial0, alone + "elastic-job, rank 0, t5-fsdp.py"},
        {tutorial2, joined("1 x 8, t-node-0-0.t:29500 ", leads, ", run elastic-job, rank 0, t5-fsdp.py")}}},
      {"JobSet without variables, the first pod: two worlds of one node would write one checkpoint",
       job_set(0),
       {{plain, "78: elrun: --nnodes is not given, and there is t-node-0-1.t"},
        {tutorial0, "78: elrun: --nnodes is not given"},
        {tutorial2, "78: elrun: --nnodes is not given"},
        {"--nnodes=1 train.py", "1 x 1,  this process, for this node alone, run random, rank null, train.py"},
        {"--nnodes=2 train.py", joined("2 x 1, t-node-0-0.t:29500 ", leads, ", run none, rank 0, train.py")},
        {tutorial3, joined("2 x 8, t-node-0-0.t:29400 ", leads, ", run none, rank 0, full.py")},
        {tutorial4, "64: elrun: --nnodes: needs a value"}}},
      {"JobSet without variables, the second pod",
       job_set(1),
       {{plain, "78: elrun: --nnodes is not given, and JOB_COMPLETION_INDEX=1"},
        {tutorial2, "78: elrun: --nnodes is not given"},
        {"--nnodes=2 train.py", joined("2 x 1, t-node-0-0.t:29500 ", leads, ", run none, rank 1, train.py")}}},
      {"Volcano's pytorch plugin",
       volcano(1),
       {{plain, "78: elrun: --nnodes is not given, and this pod is called v-worker-1"},
        {"--nnodes 3 train.py", joined("3 x 1, v-master-0.v:23456 ", leads, ", run none, rank 2, train.py")},
        {tutorial3, joined("2 x 8, v-master-0.v:29400 ", leads, ", run none, rank 2, full.py")}}},
      {"srun",
       slurm(1),
       {{plain, joined("2 x 1, n1:27305 ", leads, ", run slurm-17.0, rank 1, train.py")},
        {tutorial0, joined("2 x 8, n1:27305 ", leads, ", run elastic-job, rank 1, t5-fsdp.py")},
        {tutorial3, joined("2 x 8, n1:29400 ", leads, ", run slurm-17.0, rank 1, full.py")},
        {"--nnodes=1 train.py", "1 x 1,  this process, for this node alone, run random, rank null, train.py"},
        {"--standalone train.py", "1 x 1,  this process, for this node alone, run random, rank null, train.py"},
        {tutorial5, joined("4 x 1, n1:27305 ", leads, ", run slurm-17.0, rank 1, t5-fsdp.py")}}},
      {"mpirun on several machines",
       mpirun(1),
       {{plain, "mpirun does not tell it"},
        {"--rdzv_endpoint n1:5 train.py", joined("2 x 1, n1:5 ", leads, ", run none, rank 1, train.py")},
        {tutorial5, "mpirun does not tell it"}}},
      {"a machine that nothing is known of",
       {"box"},
       {{plain, "1 x 1,  this process, for this node alone, run random, rank null, train.py"},
        {tutorial0, alone + "elastic-job, rank null, t5-fsdp.py"},
        {tutorial2, "--rdzv_endpoint :29500 names no host, and needs a place where the nodes meet"},
        {tutorial5, "78: elrun: --nnodes 4 needs a place where the nodes meet"}}},
  };
  for (const Table& table : tables)
    for (const Row& row : table.rows) {
      INFO(table.name << ": elrun " << row.line);
      const std::string found = summary(row.line, table.pod);
      CAPTURE(found, row.expected);
      CHECK((found == row.expected || (found.find("elrun: ") != std::string::npos && found.find(row.expected) != std::string::npos)));
    }
}

TEST_CASE("the traps of the tutorials", "[dry run]") {
  SECTION("a host that no variable held is found, with one warning") {
    Pod pod = pytorch_job(1, "2");
    pod.environment["OMP_NUM_THREADS"] = '4';
    const auto command = parse(words_of(tutorial3, pod.environment), pod);
    REQUIRE(std::holds_alternative<LaunchOptions>(command));
    const auto& notes = std::get<LaunchOptions>(command).notes;
    REQUIRE(notes.size() == 1);
    CHECK(notes[0] == "--rdzv_endpoint :29400 names no host; the nodes meet at j-master-0:29400, by PET_MASTER_ADDR");
  }
  SECTION("timeout is the time to join, whatever torchrun makes of it") {
    const auto command = parse({"--rdzv_conf=timeout=1200", "s.py"}, {"box"});
    CHECK(plan(std::get<LaunchOptions>(command))["failures"]["seconds"]["join"] == 1200.0);
  }
  SECTION("a backslash that escapes a blank") {
    CHECK(std::get<Usage>(parse({"--max-restarts=3", " "}, {"box"})).text.find("a backslash followed by blanks") != std::string::npos);
  }
  SECTION("a master without GPUs, whose gpu or 0 leaves it without workers") {
    Pod master = pytorch_job(0, "3", "gpu");
    master.gpus = 0;
    CHECK(summary(plain, master) == "3 x 0, j-master-0:13456 this node, run none, rank 0, train.py");
    CHECK(summary("--nproc_per_node=0 train.py", master) == "3 x 0, j-master-0:13456 this node, run none, rank 0, train.py");
  }
  SECTION("the launcher of an MPI job is none of its nodes") {
    const Pod launcher{"m-launcher", with(in_cluster, {{"OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"},
                                                       {"OMPI_MCA_orte_set_default_slots", "8"}})};
    CHECK(summary(plain, launcher).find("start elrun by `mpirun --bind-to none -npernode 1`") != std::string::npos);
    CHECK(summary(plain, launcher).starts_with("64: "));
    CHECK(summary("--nnodes=1 train.py", launcher).starts_with("1 x 1, "));
    Pod started = launcher;
    started.environment = with(launcher.environment, mpirun(0).environment);
    CHECK(summary("--rdzv_endpoint n1 train.py", started).starts_with("2 x 1, n1:29500 "));
  }
  SECTION("a pod that is told its address tells it on") {
    const auto address = [](const std::vector<std::string>& words) {
      const auto command = parse(words, {"box", {{"POD_IP", "10.1.2.3"}}});
      return plan(std::get<LaunchOptions>(command))["meeting"]["address_of_this_node"];
    };
    CHECK(address({"--nnodes=2", "--rdzv_endpoint=h", "s.py"}) == "10.1.2.3");
    CHECK(address({"--nnodes=2", "--rdzv_endpoint=h", "--local-addr=node7", "s.py"}) == "node7");
    CHECK(address({"--rdzv_endpoint=h", "s.py"}) == "found out");  // of one node it is the loopback
  }
  SECTION("an address in every writing") {
    const auto at = [](const std::string& endpoint) {
      return summary("--nnodes 2 --rdzv_backend c10d --rdzv_endpoint " + endpoint + " s.py", {"box"});
    };
    CHECK(at("h").starts_with("2 x 1, h:29400 "));
    CHECK(at("h:").starts_with("2 x 1, h:29400 "));
    CHECK(at("h.ns.svc.cluster.local.:5").starts_with("2 x 1, h.ns.svc.cluster.local:5 "));
    CHECK(at("[fd00::7]:5").starts_with("2 x 1, [fd00::7]:5 "));
    CHECK(at("fd00::7").starts_with("2 x 1, [fd00::7]:29400 "));
    CHECK(at("h:0").starts_with("64: "));
    CHECK(at(":").find("none was found") != std::string::npos);
  }
}

TEST_CASE("a plan shows no secret and no variable that elrun does not set", "[dry run]") {
  const Variables environment{{"API_KEY", "s3cret"},
                              {"ELRUN_RDZV_TOKEN", "s3cret"},
                              {"PET_RDZV_CONF", "token=s3cret"},
                              {"OMP_NUM_THREADS", "5"},
                              {"RANK", "s3cret"}};
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"s.py"}, {"--rdzv_conf=token=s3cret", "s.py"}, {"--nnodes=2", "--rdzv_endpoint=h", "s.py"}}) {
    const auto command = parse(words, {"box", environment});
    REQUIRE(std::holds_alternative<LaunchOptions>(command));
    const std::string text = plan_text(std::get<LaunchOptions>(command), environment, Command{"/p", {"p"}});
    CHECK(text.find("s3cret") == std::string::npos);
    CHECK(text.find("API_KEY") == std::string::npos);
    CHECK(nlohmann::json::parse(text)["environment_of_local_rank_0"]["OMP_NUM_THREADS"] == "5");
  }
}

TEST_CASE("a plan tells what a worker would find whatever the generation, and what cannot start", "[dry run]") {
  const auto command =
      parse({"--nproc_per_node=3", "--role", "trainer", "--tee", "1:3", "--rdzv_id", "x", "s.py", "${local_rank}"}, {"box"});
  REQUIRE(std::holds_alternative<LaunchOptions>(command));
  const auto& options = std::get<LaunchOptions>(command);
  const nlohmann::json p = plan(options);
  const nlohmann::json expected{
      {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "3"}, {"ROLE_NAME", "trainer"}, {"TORCHELASTIC_RUN_ID", "x"}, {"OMP_NUM_THREADS", "1"}};
  for (const auto& [name, value] : expected.items()) CHECK(p["environment_of_local_rank_0"][name] == value);
  for (const char* changing : {"RANK", "WORLD_SIZE", "MASTER_PORT", "ELRUN_GENERATION", "TORCHELASTIC_RESTART_COUNT"})
    CHECK_FALSE(p["environment_of_local_rank_0"].contains(changing));
  CHECK(p["program"]["arguments_of_local_rank_0"] == nlohmann::json{"python3", "-u", "s.py", "0"});
  CHECK(p["logs"]["tee"] == nlohmann::json{{"others", "nothing"}, {"1", "both"}});
  CHECK(p["workers"]["from"] == "--nproc_per_node");
  const auto none = nlohmann::json::parse(plan_text(options, {}, NoCommand{66, "s.py: no such script"}));
  CHECK(none["program"]["exit_code"] == 66);
  const auto odd = parse({"s.py", "\xff\xfe"}, {"box"});  // no UTF-8, and still JSON
  CHECK(plan(std::get<LaunchOptions>(odd)).is_object());
}
