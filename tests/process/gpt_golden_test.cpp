// One training, one hash: bare, with other placements and thread counts, and as an operator's three processes.

#include <csignal>
#include <memory>
#include <set>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"

using namespace elrun::test;

namespace {
// The state after 12 steps on the text of seed 1. It moves when the arithmetic moves, and then `numeric` of the sample
// and libelrun's numeric version move with it: find out why before anything else.
constexpr const char* golden = "f8f0dc1fde1b3a71";
constexpr const char* golden_bf16 = "2273c9f54b99254c";  // with --leaves bf16
}  // namespace

TEST_CASE("a bare run ends in the golden state, whatever the placement and the threads", "[golden]") {
  const Folder folder;
  for (const char* zero : {"0", "1", "2", "3"})
    for (const char* threads : {"1", "2", "3"}) {
      if (*zero > '1' && *threads != '2') continue;
      const Ended ended = run("gpt", gpt_arguments(folder / "text", 12, {"--zero", zero}), {{"OMP_NUM_THREADS", threads}});
      INFO("zero " << zero << ", " << threads << " threads\n" << ended.output);
      CHECK(ended.code == 0);
      CHECK(ended.state == golden);
    }
  const Ended streamed = run("gpt", gpt_arguments(folder / "text", 12, {"--zero", "0", "--exchange", "slot"}));
  INFO(streamed.output);
  CHECK(streamed.state == golden);
}

TEST_CASE("leaves in bf16 end in a golden state of their own, whatever the placement", "[golden]") {
  const Folder folder;
  for (const char* zero : {"0", "3"})
    for (const char* exchange : {"step", "slot"}) {
      const Ended ended = run("gpt", gpt_arguments(folder / "text", 12, {"--zero", zero, "--exchange", exchange, "--leaves", "bf16"}));
      INFO("zero " << zero << ", exchange per " << exchange << "\n" << ended.output);
      CHECK(ended.code == 0);
      CHECK(ended.state == golden_bf16);
    }
  const Ended refused = run("gpt", gpt_arguments(folder / "text", 12, {"--leaves", "bf16", "--reduce", "fast"}));
  CHECK(refused.code == 78);
  CHECK(refused.says("Reduce::fast adds gradients up as they come"));
}

TEST_CASE("activations that are computed again are the same: the golden state, and that of two more blocks", "[golden]") {
  const Folder folder;
  for (const char* zero : {"0", "1"}) {
    const Ended ended = run("gpt", gpt_arguments(folder / "text", 12, {"--recompute", "--zero", zero}), {{"OMP_NUM_THREADS", "2"}});
    INFO(ended.output);
    CHECK(ended.code == 0);
    CHECK(ended.state == golden);
  }
  // The golden model has one block, whose activations are there when they are needed.
  const Ended kept = run("gpt", gpt_arguments(folder / "text", 6, {"--layers", "3"}));
  const Ended again = run("gpt", gpt_arguments(folder / "text", 6, {"--layers", "3", "--recompute"}));
  INFO(kept.output << again.output);
  CHECK(kept.state.size() == 16);
  CHECK(again.state == kept.state);
}

TEST_CASE("another seed and another text end in other states", "[golden]") {
  const Folder folder;
  const Ended seed = run("gpt", gpt_arguments(folder / "text", 12, {"--seed", "8"}));
  const Ended text = run("gpt", gpt_arguments(folder / "other", 12));
  CHECK(seed.state.size() == 16);
  CHECK(text.state.size() == 16);
  CHECK(std::set<std::string>{golden, seed.state, text.state}.size() == 3);
}

TEST_CASE("three processes with an operator's environment alone end in the golden state", "[golden]") {
  const Folder folder;
  const char* zero = GENERATE("0", "1", "2", "3");
  const std::string port = std::to_string(free_port());
  std::vector<std::unique_ptr<Job>> ranks;
  for (const char* rank : {"2", "1", "0"})  // rank 0, who hosts the store, comes last
    ranks.push_back(start("gpt", gpt_arguments(folder / "text", 12, {"--zero", zero, "--sample", "20"}),
                          {{"RANK", rank}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}}));
  std::string state;
  for (auto& rank : ranks) {
    const Ended ended = finish(*rank);
    INFO(ended.output);
    CHECK(ended.code == 0);
    if (!ended.state.empty()) state = ended.state;
  }
  CHECK(state == golden);
}

TEST_CASE("without elrun a lost peer ends the others, and they say whom they lost", "[golden]") {
  const Folder folder;
  const std::string port = std::to_string(free_port());
  std::vector<std::unique_ptr<Job>> ranks;
  for (const char* rank : {"0", "1", "2"})
    ranks.push_back(start("gpt", gpt_arguments(folder / "text", 100000),
                          {{"RANK", rank}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}}));
  REQUIRE(until(*ranks[0], "step=3 "));
  ranks[1]->signal(SIGKILL);
  for (const std::size_t survivor : {std::size_t{0}, std::size_t{2}}) {
    const Ended ended = finish(*ranks[survivor]);
    INFO(ended.output.substr(ended.output.size() > 2000 ? ended.output.size() - 2000 : 0));
    CHECK(ended.code == 1);
    CHECK(ended.says("rank 1"));
  }
}
