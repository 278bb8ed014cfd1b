// The words after `elrun chaos`, and the command of each node that they come to.
#include "launcher/chaos/chaos_options.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/unit/options_given.hpp"

namespace elrun::launcher {
namespace {

using test::contains;
using Words = std::vector<std::string>;

ChaosOptions taken(Words words, const Variables& environment = {}) {
  words.insert(words.begin(), "chaos");
  Parsed parsed = test::parse(words, {.environment = environment});
  if (const auto* usage = std::get_if<Usage>(&parsed)) FAIL(usage->text);
  return std::get<ChaosOptions>(parsed);
}

Usage not_taken(Words words) {
  words.insert(words.begin(), "chaos");
  return test::refused(words);
}

TEST_CASE("chaos takes its own options, and keeps elrun's for its agents", "[chaos]") {
  const ChaosOptions options = taken({"--mtbf",
                                      "5s",
                                      "--for=10m",
                                      "--seed",
                                      "7",
                                      "--nnodes",
                                      "1:2",
                                      "--kinds",
                                      "kill,kill-agent",
                                      "--nproc_per_node=2",
                                      "--hang-timeout",
                                      "30",
                                      "--state-from",
                                      "hash=",
                                      "--json",
                                      "--",
                                      "./train",
                                      "--seed",
                                      "3",
                                      "--json"});
  CHECK(options.mtbf == 5s);
  CHECK(options.time == 10min);
  CHECK(options.seed == 7);
  CHECK(options.kinds == std::vector{FaultKind::kill, FaultKind::kill_agent});
  CHECK(options.world.nodes == 2);
  CHECK(options.world.workers == 2);
  CHECK(options.state_mark == "hash=");
  CHECK(options.as_json);
  CHECK(options.agent == Words{"--nnodes", "1:2", "--nproc_per_node=2", "--hang-timeout", "30"});
  CHECK(options.program == Words{"./train", "--seed", "3", "--json"});
  CHECK(taken({"train.py"}).mtbf == 5s);
  CHECK(taken({"--plan", "p", "-m", "train"}).plan_file == "p");
  CHECK(taken({"--plan", "p", "-m", "train"}).agent == Words{"-m"});
  CHECK_FALSE(taken({"--plan", "p", "train.py"}).mtbf);
  CHECK(taken({"--checkpoint-root", "{run}/ck", "train.py"}).checkpoint_root == "{run}/ck");
  CHECK(taken({"--role", "w2", "train.py"}).role == "w2");
  CHECK(taken({"--launcher", "other --role w2", "train.py"}).role.empty());
}

TEST_CASE("chaos tells all that is wrong with its words at once", "[chaos]") {
  const Usage usage = not_taken({"--mtbf", "soon", "--kinds", "kill,burn", "--nnodes", "3:2", "--hang-timeout=x", "train.py"});
  CHECK(usage.exit_code == 64);
  for (const char* part :
       {"--mtbf soon: must be a time", "`burn` is none of kill", "--nnodes 3:2", "did you mean 2:3", "--hang_timeout x"}) {
    CAPTURE(part, usage.text);
    CHECK(contains(usage.text, part));
  }
  for (const Words& wrong : std::vector<Words>{{},
                                               {"--mtbf", "5s"},
                                               {"--mtbf=0s", "a.py"},
                                               {"--seed=-1", "a.py"},
                                               {"--disk=0", "a.py"},
                                               {"--json=1", "a.py"},
                                               {"--plan"},
                                               {"--launcher", "torchrun 'x", "a.py"},
                                               {"--no-such-option", "a.py"},
                                               {"--nnodes=100", "--nproc_per_node=2000", "a.py"}}) {
    CAPTURE(fmt::format("{}", wrong));
    CHECK((not_taken(wrong).exit_code == 64 || not_taken(wrong).exit_code == 78));
  }
}

TEST_CASE("chaos refuses what contradicts itself", "[chaos]") {
  for (const Words& wrong : std::vector<Words>{{"--plan", "p", "--mtbf", "5s", "a.py"},
                                               {"--plan", "p", "--seed", "5", "a.py"},
                                               {"--rdzv-endpoint", "h:1", "a.py"},
                                               {"--node_rank=1", "a.py"},
                                               {"--event-log", "f", "a.py"},
                                               {"--launcher", "torchrun", "--hang-timeout", "3", "a.py"},
                                               {"--store", "a.py"},
                                               {"--checkpoint-root", "/data/ck", "a.py"},
                                               {"--nproc_per_node=0", "--nnodes=2", "a.py"},
                                               {"--nnodes=65", "a.py"}}) {
    CAPTURE(fmt::format("{}", wrong));
    CHECK(not_taken(wrong).exit_code == 78);
  }
}

TEST_CASE("each node is an agent of its own, with what chaos decides", "[chaos]") {
  const ChaosOptions options =
      taken({"--nnodes=2", "--nproc_per_node=3", "--no-python", "./train", "--out", "{run}/out", "{node}", "{other}"});
  Places places{.run = "/w/disturbed", .disk = "/w/disturbed/disk", .node = 1, .nodes = 2, .workers = 3, .host = "127.0.0.1", .port = 1234};
  CHECK(node_command(options, places, "/bin/elrun") == Words{"/bin/elrun",
                                                             "--nnodes=2",
                                                             "--nproc_per_node=3",
                                                             "--no-python",
                                                             "--tee",
                                                             "3",
                                                             "--log_dir",
                                                             "/w/disturbed/logs",
                                                             "--max_restarts",
                                                             "1000000",
                                                             "--event_log",
                                                             "/w/disturbed/events.1",
                                                             "--node_rank",
                                                             "1",
                                                             "--rdzv_backend",
                                                             "c10d",
                                                             "--rdzv_id",
                                                             "chaos",
                                                             "--rdzv_endpoint",
                                                             "127.0.0.1:1234",
                                                             "--",
                                                             "./train",
                                                             "--out",
                                                             "/w/disturbed/out",
                                                             "1",
                                                             "{other}"});
  // What it comes to is what elrun takes.
  Words agent = node_command(options, places, "/bin/elrun");
  agent.erase(agent.begin());
  const LaunchOptions launched = test::launch(agent);
  CHECK(launched.workers == 3);
  CHECK(launched.node_rank == 1);
  CHECK(launched.round.max_restarts == 1'000'000);

  SECTION("--max-restarts is the user's") {
    const Words words = node_command(taken({"--max-restarts", "3", "a.py"}), places, "elrun");
    CHECK(std::ranges::count(words, "--max_restarts") + std::ranges::count(words, "--max-restarts") == 1);
  }
  SECTION("where output goes is the user's to say") {
    for (const Words& given : std::vector<Words>{{"--redirects", "3"}, {"-t", "1"}, {"--log-dir=/l"}, {"--local_ranks_filter=0"}}) {
      CAPTURE(fmt::format("{}", given));
      Words words = given;
      words.emplace_back("a.py");
      CHECK(std::ranges::count(node_command(taken(words), places, "elrun"), "/w/disturbed/logs") == 0);
    }
  }
  SECTION("a single node is one whatever a scheduler says, and meets nobody") {
    places.nodes = 1;
    Words words = node_command(taken({"a.py"}), places, "elrun");
    CHECK(std::ranges::count(words, "--rdzv_endpoint") == 0);
    words.erase(words.begin());
    CHECK(test::launch(words, {.environment = {{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "4"}}}).round.nodes_max == 1);
  }
  SECTION("with --store no agent serves") {
    const Words words = node_command(taken({"--store", "--nnodes=2", "--rdzv_conf", "join_timeout=9", "a.py"}), places, "elrun");
    CHECK(std::ranges::count(words, "join_timeout=9,is_host=0") == 1);
  }
  SECTION("another launcher gets its own words") {
    const ChaosOptions other = taken({"--nnodes=2", "--nproc_per_node=3", "--launcher",
                                      "torchrun --nnodes {nnodes} --log 'a b' --rdzv_endpoint {host}:{port}", "--", "a.py", "{run}"});
    CHECK(node_command(other, places, "elrun") ==
          Words{"torchrun", "--nnodes", "2", "--log", "a b", "--rdzv_endpoint", "127.0.0.1:1234", "a.py", "/w/disturbed"});
  }
}

TEST_CASE("as one of a cluster's nodes chaos understands options and environment as elrun does", "[chaos]") {
  SECTION("an endpoint and a rank") {
    const ChaosOptions options = taken({"--nnodes=3:4", "--nproc_per_node=2", "--rdzv_backend=c10d", "--rdzv_endpoint=h:2000",
                                        "--rdzv_id=job", "--node-rank", "2", "--health_port=3000", "a.py", "{node}"});
    CHECK(options.own_node == 2u);
    CHECK(options.first_node() == 2);
    CHECK(options.nodes_here() == 1);
    CHECK((options.world.nodes == 4 && options.world.workers == 2));
    CHECK(options.endpoint_port == 2000);
    CHECK_FALSE(options.never_host);
    CHECK(options.meeting == "h:2000 (--rdzv_endpoint)");
    Words agent = node_command(options, {.run = "/w/disturbed", .node = 2, .nodes = 4, .workers = 2, .run_name = "disturbed"}, "elrun");
    CHECK(agent.back() == "2");
    agent.erase(agent.begin());
    const LaunchOptions launched = test::launch(agent);
    CHECK(launched.node_rank == 2);
    CHECK(launched.run == RunId{"job-disturbed"});
    CHECK((launched.endpoint->host == "h" && launched.endpoint->port == 2000));
    CHECK((launched.round.nodes_min == 3 && launched.round.nodes_max == 4));
    CHECK(launched.round.max_restarts == 1'000'000);
    CHECK(launched.event_log == "/w/disturbed/events.2");
    CHECK(options.disk_in("/w/disturbed") == "/w/disturbed/disk.2");
  }
  SECTION("variables of those who start elrun in a cluster") {
    const auto check = [](const Words& words, const Variables& environment, std::uint32_t node, std::uint32_t nodes, std::uint16_t port) {
      const ChaosOptions options = taken(words, environment);
      CAPTURE(fmt::format("{}", words), options.meeting);
      CHECK(options.own_node == node);
      CHECK(options.world.nodes == nodes);
      CHECK(options.endpoint_port == port);
      CHECK(options.run_id == "chaos");
    };
    check({"a.py"}, {{"PET_NNODES", "2"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "23456"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}}, 1, 2, 23456);
    check({"--nnodes=3:4", "a.py"}, {{"PET_NODE_RANK", "3"}, {"PET_MASTER_ADDR", "m"}, {"PET_RDZV_BACKEND", "c10d"}}, 3, 4, 29400);
    check({"--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=h", "a.py"}, {{"JOB_COMPLETION_INDEX", "1"}}, 1, 2, 29400);
    CHECK(taken({"a.py"}, {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}, {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_NODELIST", "n[1-4]"}})
              .own_node == 3u);
  }
  SECTION("a single node, and another launcher, are here whatever the environment says") {
    const Variables pod{{"MASTER_ADDR", "m"}, {"RANK", "1"}, {"PET_NPROC_PER_NODE", "8"}};
    for (const Words& words : std::vector<Words>{{"--nnodes=1", "a.py"}, {"a.py"}, {"--nnodes=2", "--launcher", "torchrun", "a.py"}}) {
      const ChaosOptions options = taken(words, pod);
      CHECK_FALSE(options.own_node);
      // A single node of elrun's has as many workers as elrun would start.
      CHECK(options.world.workers == (words.size() == 4 ? 1 : 8));
      CHECK(std::ranges::count(options.agent, "--nproc_per_node=8") == (words.size() == 4 ? 0 : 1));
    }
    CHECK(taken({"--nproc_per_node=2", "a.py"}, pod).world.workers == 2);
  }
  SECTION("a pod whose name says where the others are") {
    const Variables kubernetes{{"KUBERNETES_SERVICE_HOST", "k"}};
    const Machine machine{.host_name = [] { return std::string{"train-worker-1"}; }};
    const auto parsed = parse_chaos(Words{"--nnodes=4", "--nproc_per_node=2", "--work=/w", "a.py"}, kubernetes, machine);
    REQUIRE(std::holds_alternative<ChaosOptions>(parsed));
    CHECK(std::get<ChaosOptions>(parsed).own_node == 1u);
    CHECK(std::get<ChaosOptions>(parsed).meeting == "train-worker-0:23456 (the name of this pod)");
    const auto without = parse_chaos(Words{"a.py"}, kubernetes, machine);
    REQUIRE(std::holds_alternative<Usage>(without));
    CHECK(contains(std::get<Usage>(without).text, "this looks like one of several nodes; give --nnodes N"));
    CHECK(contains(std::get<Usage>(without).text, "env -u KUBERNETES_SERVICE_HOST"));
  }
  SECTION("an endpoint that leads nowhere else is none") {
    CHECK(contains(not_taken({"--nnodes=2", "--master_port=3000", "a.py"}).text, "--master_port: chaos starts the agents itself"));
  }
  SECTION("a checkpoint root by a variable is filled in as one of the words") {
    const ChaosOptions options =
        taken({"--nnodes=2", "--rdzv_endpoint=h", "--node_rank=1", "--work", "/w", "a.py"}, {{"PET_CHECKPOINT_ROOT", "{run}/ck"}});
    CHECK(options.checkpoint_root == "{run}/ck");
    CHECK(std::ranges::count(node_command(options, {.run = "/w/disturbed", .node = 1, .nodes = 2}, "elrun"), "/w/disturbed/ck") == 1);
  }
  SECTION("where no agent serves the rendezvous, which a node's number alone does not say") {
    CHECK(taken({"--nnodes=2", "--rdzv_endpoint=h", "--node_rank=1", "--rdzv_conf=is_host=0", "a.py"}).never_host);
    CHECK_FALSE(taken({"--nnodes=2", "--rdzv_endpoint=h", "--node_rank=1", "a.py"}).never_host);
  }
  SECTION("nodes with unequal plans have unequal ids") {
    const std::vector<Fault> one{{.at = 5s}}, other{{.at = 6s}};
    const std::string id = id_of_plan("job", one, {.nodes = 2, .workers = 1});
    CHECK(id.size() == std::string{"job-"}.size() + 8);
    CHECK(id == id_of_plan("job", one, {.nodes = 2, .workers = 1}));
    CHECK(id != id_of_plan("job", other, {.nodes = 2, .workers = 1}));
    CHECK(id != id_of_plan("job", one, {.nodes = 2, .workers = 2}));
    CHECK(id != id_of_plan("job", one, {.nodes = 3, .workers = 1}));
  }
  SECTION("refused") {
    const auto refused = [](Words words, const char* why, const Variables& environment = {}, const char* host = "") {
      words.emplace_back("a.py");
      const auto parsed = parse_chaos(words, environment, Machine{.host_name = [host] { return std::string{host}; }});
      REQUIRE(std::holds_alternative<Usage>(parsed));
      CAPTURE(std::get<Usage>(parsed).text);
      CHECK(std::get<Usage>(parsed).exit_code == 78);
      CHECK(contains(std::get<Usage>(parsed).text, why));
    };
    const Words place{"--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=h"},
        node = Words{"--nnodes=2", "--rdzv_endpoint=h", "--node_rank=1"};
    const auto with = [](Words words, const char* more) { return words.emplace_back(more), words; };
    refused(place, "nothing says which of the 2 nodes that meet at h:29400 (--rdzv_endpoint) this is: give each its --node_rank, 0 to 1");
    refused(place, "nothing says which", {}, "gpu-1");  // a machine may be called so
    refused(place, "this is node 2 (by the host's name), and a plan for 2 nodes has the nodes 0 to 1", {{"KUBERNETES_SERVICE_HOST", "k"}},
            "train-2");
    refused(with(place, "--node_rank=2"), "this is node 2 (by --node_rank)");
    refused({"--nnodes=2", "--rdzv_backend=c10d", "--node_rank=1"}, "none was found");
    refused({"--rdzv_endpoint=h", "--node_rank=1"}, "give --nnodes, --rdzv_endpoint and --node_rank");
    for (const char* own : {"--standalone", "--event_log=f", "--exit_codes=elrun"}) refused(with(node, own), "leave it out");
    refused(node, "give a --work on storage that outlives it", {{"KUBERNETES_SERVICE_HOST", "k"}});
    refused(with(node, "--store"), "start `elrun store` where the endpoint leads");
    refused(with(node, "--checkpoint_root={run}/ck"), "give all of them the same --work");
    refused(with(node, "--nproc_per_node=0"), "nothing to disturb");
    refused(with(node, "--checkpoint_root={disk}/ck"), "would be another disk on each node");
  }
}

TEST_CASE("the help of chaos has every option that it takes", "[chaos]") {
  const Usage help = std::get<Usage>(test::parse({"chaos", "--help"}));
  CHECK(help.exit_code == 0);
  for (const char* option : {"--mtbf", "--for", "--seed", "--kinds", "--plan", "--work", "--state-from", "--step-from", "--limit", "--disk",
                             "--store", "--json", "--dry-run", "--launcher", "--checkpoint-root", "--rdzv_endpoint", "--node_rank"})
    CHECK(contains(help.text, option));
  for (const FaultKind kind : all_fault_kinds) CHECK(contains(help.text, word_of(kind).data()));
}

}  // namespace
}  // namespace elrun::launcher
