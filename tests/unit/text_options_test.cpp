#include <string>
#include <vector>

#include "samples/gpt/options.hpp"
#include "tests/support/catch.hpp"

using Catch::Matchers::Contains;
using gpt::parse;

TEST_CASE("options are read as --name value and --name=value", "[gpt]") {
  const auto parsed = parse(
      {"--data", "a.txt", "--steps=7", "--zero", "0", "--lr=1e-4", "--checkpoint", "c", "--every", "3", "--seed=18446744073709551615"});
  CHECK(parsed.problems.empty());
  CHECK(parsed.options.data == "a.txt");
  CHECK(parsed.options.steps == 7);
  CHECK(parsed.options.zero == "0");
  CHECK(parsed.options.lr == 1e-4);
  CHECK(parsed.options.every == 3);
  CHECK(parsed.options.seed == ~std::uint64_t{0});
  CHECK(parse({"--data", "a", "--steps", "1", "--steps", "2"}).options.steps == 2);
}

TEST_CASE("a flag that is there or not takes no value", "[gpt]") {
  const auto parsed = parse({"--data", "a", "--recompute", "--steps", "7"});
  CHECK(parsed.problems.empty());
  CHECK(parsed.options.recompute);
  CHECK(parsed.options.steps == 7);
  CHECK_FALSE(parse({"--data", "a"}).options.recompute);
  CHECK(parse({"--recompute", "--data", "a"}).problems.empty());
  const auto wrong = parse({"--data", "a", "--recompute=1"});
  REQUIRE(wrong.problems.size() == 1);
  CHECK_THAT(wrong.problems[0], Contains("'--recompute=1'") && Contains("takes no value"));
}

TEST_CASE("all problems are told at once, each with option, value and remedy", "[gpt]") {
  const auto parsed = parse({"--data", "a", "--steps", "0", "--bogus", "3", "--heads=x", "extra", "--global-batch", "10", "--micro-batch",
                             "4", "--lr", "-1", "--every"});
  CHECK(parsed.exit_code == flags::usage);
  REQUIRE(parsed.problems.size() == 7);
  CHECK_THAT(parsed.problems[0], Contains("--steps '0'") && Contains("at least 1"));
  CHECK_THAT(parsed.problems[1], Contains("--bogus") && Contains("--help"));
  CHECK_THAT(parsed.problems[2], Contains("--heads 'x'"));
  CHECK_THAT(parsed.problems[3], Contains("'extra'"));
  CHECK_THAT(parsed.problems[4], Contains("--lr '-1'"));
  CHECK_THAT(parsed.problems[5], Contains("--every needs a value"));
  CHECK_THAT(parsed.problems[6], Contains("--micro-batch 4") && Contains("--global-batch 10"));
}

TEST_CASE("a missing text is told beside other problems, and only once", "[gpt]") {
  CHECK(parse({"--bogus"}).problems.size() == 2);
  CHECK(parse({"--steps", "0"}).problems.size() == 2);
  CHECK(parse({"--data"}).problems.size() == 1);
  CHECK(parse({"--data="}).problems.size() == 1);
}

TEST_CASE("contradictions have an exit code of their own", "[gpt]") {
  const auto parsed = parse({"--data", "a", "--channels", "100", "--heads", "3", "--every", "5"});
  CHECK(parsed.exit_code == flags::configuration);
  REQUIRE(parsed.problems.size() == 2);
  CHECK_THAT(parsed.problems[0], Contains("--channels 100") && Contains("--heads 3") && Contains("try --channels 102"));
  CHECK_THAT(parsed.problems[1], Contains("--every 5") && Contains("--checkpoint"));
}

TEST_CASE("a placement is a stage, plain, inside of each node, or mirrored", "[gpt]") {
  for (const char* good : {"0", "1", "2", "3", "hybrid2", "hybrid3", "mirrored1", "mirrored2", "mirrored3"})
    CHECK(parse({"--data", "a", "--zero", good}).problems.empty());
  for (const char* bad : {"4", "hybrid", "hybrid1", "hybrid4", "mirrored", "mirrored0", "mirrored4", "03"}) {
    const auto parsed = parse({"--data", "a", std::string{"--zero="} + bad});
    CAPTURE(bad);
    CHECK(parsed.problems.size() == 1);
    CHECK(parsed.exit_code != 0);
  }
  CHECK(parse({"--data", "a", "--plan", "8", "--per-node", "4"}).problems.empty());
  CHECK_THAT(parse({"--data", "a", "--per-node", "4"}).problems.at(0), Contains("--per-node 4") && Contains("--plan"));
}

TEST_CASE("a recipe belongs to bf16", "[gpt]") {
  CHECK(parse({"--data", "a", "--precision", "bf16", "--recipe", "r"}).options.recipe == "r");
  const auto parsed = parse({"--data", "a", "--recipe", "r"});
  CHECK(parsed.exit_code == flags::configuration);
  REQUIRE(parsed.problems.size() == 1);
  CHECK_THAT(parsed.problems[0], Contains("--recipe r") && Contains("--precision bf16: add it"));
}

TEST_CASE("an audit has a probability", "[gpt]") {
  CHECK(parse({"--data", "a", "--audit", "0.25", "--verify", "10"}).problems.empty());
  CHECK(parse({"--data", "a", "--audit", "1"}).problems.empty());
  const auto parsed = parse({"--data", "a", "--audit", "1.5"});
  REQUIRE(parsed.problems.size() == 1);
  CHECK_THAT(parsed.problems[0], Contains("--audit 1.5") && Contains("probability"));
  CHECK(parse({"--data", "a", "--audit", "0"}).exit_code == flags::usage);
}

TEST_CASE("numbers are bounded and read whole", "[gpt]") {
  for (const char* bad : {"", " 1", "1 ", "+1", "-1", "1e3", "0x10", "99999999999999999999", "2.5"}) {
    CAPTURE(bad);
    CHECK(parse({"--data", "a", "--layers", bad}).exit_code == flags::usage);
  }
  for (const char* bad : {"0", "nan", "inf", "-0.1", "1x", "1000"}) CHECK(parse({"--data", "a", "--lr", bad}).exit_code == flags::usage);
  CHECK(parse({"--data", "a", "--keep", "1"}).exit_code == flags::usage);
  CHECK(parse({}).exit_code == flags::usage);
  CHECK(parse({"--data="}).exit_code == flags::usage);
}

TEST_CASE("help names every option with its default, and wins over problems", "[gpt]") {
  const auto parsed = parse({"--help"});
  CHECK(parsed.options.help);
  CHECK(parsed.problems.empty());
  for (const char* name : {"--data", "--steps",    "--global-batch", "--micro-batch", "--layers", "--channels", "--heads",      "--context",
                           "--zero", "--exchange", "--overlap",      "--reduce",      "--seed",   "--lr",       "--checkpoint", "--every",
                           "--keep", "--sample",   "--plan",         "--recompute",   "--audit",  "--verify",   "--per-node"})
    CHECK_THAT(gpt::help(), Contains(name));
  CHECK_THAT(gpt::help(), Contains("(60)"));
}

TEST_CASE("the learning rate warms up over a tenth of the steps and ends at a tenth", "[gpt]") {
  gpt::Options options;
  for (const std::uint64_t steps : {std::uint64_t{1}, std::uint64_t{9}, std::uint64_t{100}}) {
    options.steps = steps;
    const elrun::Schedule s = gpt::schedule(options);
    CHECK(s.warm_up == std::max<std::uint64_t>(steps / 10, 1));
    CHECK(s.steps == steps);
    CHECK(s.highest == options.lr);
    CHECK(s.last == 0.1);
  }
}
