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

ChaosOptions taken(Words words) {
  words.insert(words.begin(), "chaos");
  Parsed parsed = test::parse(words);
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

TEST_CASE("the help of chaos has every option that it takes", "[chaos]") {
  const Usage help = std::get<Usage>(test::parse({"chaos", "--help"}));
  CHECK(help.exit_code == 0);
  for (const char* option : {"--mtbf", "--for", "--seed", "--kinds", "--plan", "--work", "--state-from", "--step-from", "--limit", "--disk",
                             "--store", "--json", "--dry-run", "--launcher", "--checkpoint-root"})
    CHECK(contains(help.text, option));
  for (const FaultKind kind : all_fault_kinds) CHECK(contains(help.text, word_of(kind).data()));
}

}  // namespace
}  // namespace elrun::launcher
