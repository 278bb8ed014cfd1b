// The plan of a rehearsal: its text, and how it is drawn.
#include "launcher/chaos/fault_plan.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <elrun/philox.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

namespace elrun::launcher {
namespace {

const FaultWorld two_by_two{.nodes = 2, .workers = 2};

std::vector<std::string> problems_of(std::string_view text) { return parse_plan(text, two_by_two).problems; }

TEST_CASE("a plan says each failure in a line", "[chaos]") {
  const ParsedPlan parsed = parse_plan(
      "# what we saw last week\n"
      "12.5s   kill rank 1\n"
      "step 40 stop rank 0 for 1.5s   # here it was stopped\n"
      "\n"
      "300ms slow rank 3 to 25% for 3s\r\n"
      "20s slow rank 3 for 3 to 25%\n"
      "25s kill-agent node 1 for 2s\n"
      "1m coordinator for 1s\n"
      "2m\tcut node 0 for 250ms\n"
      "90 fill for 4s",
      two_by_two);
  CHECK(parsed.problems.empty());
  REQUIRE(parsed.faults.size() == 8);
  CHECK(parsed.faults[0] == Fault{.kind = FaultKind::kill, .at = 12500ms, .target = 1});
  CHECK(parsed.faults[1] == Fault{.kind = FaultKind::stop, .step = 40, .target = 0, .lasts = 1500ms});
  CHECK(parsed.faults[2] == Fault{.kind = FaultKind::slow, .at = 300ms, .target = 3, .lasts = 3s, .percent = 25});
  CHECK(parsed.faults[3] == Fault{.kind = FaultKind::slow, .at = 20s, .target = 3, .lasts = 3s, .percent = 25});
  CHECK(parsed.faults[4] == Fault{.kind = FaultKind::kill_agent, .at = 25s, .target = 1, .lasts = 2s});
  CHECK(parsed.faults[5] == Fault{.kind = FaultKind::coordinator, .at = 60s, .lasts = 1s});
  CHECK(parsed.faults[6] == Fault{.kind = FaultKind::cut, .at = 120s, .target = 0, .lasts = 250ms});
  CHECK(parsed.faults[7] == Fault{.kind = FaultKind::fill, .at = 90s, .lasts = 4s});
}

TEST_CASE("a wrong plan says all that is wrong, with the line and what would be right", "[chaos]") {
  const auto problems =
      problems_of("5s kil rank 1\n5s kill node 1\n5s kill rank 4\nsoon kill rank 1\n5s stop rank 1\n5s slow rank 1 for 2s\n");
  REQUIRE(problems.size() == 6);
  CHECK(problems[0].starts_with("line 1: `kil` is none of kill, stop, slow, cut, kill-agent, coordinator, fill; is kill meant?"));
  CHECK(problems[1] == "line 2: `kill` hits a rank: `kill rank N`");
  CHECK(problems[2] == "line 3: `rank 4`: there are rank 0 to 3");
  CHECK(problems[3].starts_with("line 4: `soon` is no time: "));
  CHECK(problems[4] == "line 5: `stop` needs how long it lasts: add `for 2s`");
  CHECK(problems[5] == "line 6: `slow` needs what share of its time is left: add `to 25%`");
  for (const char* wrong :
       {"5s kill rank 1 for 2s", "5s kill rank 1 x", "step 0 kill rank 1", "step kill rank 1", "-1s kill rank 1", "25h kill rank 0",
        "5s kill", "5s", "5s slow rank 1 to 0% for 2s", "5s slow rank 1 to 100% for 2s", "5s slow rank 1 to 0.5 for 2s",
        "5s cut node 2 for 1s", "5s stop rank 1 for 0s", "5s coordinator", "5s coordinator node 1 for 1s", "1x kill rank 1"}) {
    CAPTURE(wrong);
    CHECK(problems_of(wrong).size() == 1);
  }
  SECTION("of very many problems the first are told, and how many there are more") {
    std::string text;
    for (int i = 0; i < 100; ++i) text += "x\n";
    const auto many = problems_of(text);
    REQUIRE(many.size() == 33);
    CHECK(many.back() == "and 68 more");
  }
  SECTION("one that is too large is not read") { CHECK(problems_of(std::string(plan_bytes_max + 1, '#')).size() == 1); }
  SECTION("one with more failures than a plan may have is refused") {
    std::string text;
    for (std::size_t i = 0; i < faults_max; ++i) text += "5s kill rank 0\n";
    CHECK(problems_of(text).empty());
    CHECK(problems_of(text + "5s kill rank 0\n5s kill rank 0\n") ==
          std::vector<std::string>{"line 100001: a plan has at most 100000 failures"});
  }
  SECTION("what is no text is shown as text") { CHECK(problems_of("\x1b[2J kill rank 0")[0].find('\x1b') == std::string::npos); }
}

TEST_CASE("a plan that was drawn is read back as it was", "[chaos]") {
  test::for_all_seeds(200, [](Rng& rng) {
    const FaultWorld world{.nodes = 1 + static_cast<std::uint32_t>(rng.below(4)), .workers = 1 + static_cast<std::uint32_t>(rng.below(4))};
    const DrawOptions options{.mtbf = std::chrono::milliseconds{10 + rng.below(20'000)}, .time = 10min, .seed = rng.next64()};
    const auto drawn = draw_plan(options, all_fault_kinds, world);
    const ParsedPlan again = parse_plan(text_of(drawn), world);
    CHECK(again.problems.empty());
    CHECK(again.faults == drawn);
  });
}

TEST_CASE("the same seed draws the same failures, and a longer time only adds some", "[chaos]") {
  const auto draw = [](std::uint64_t seed, Duration time) {
    return draw_plan({.mtbf = 5s, .time = time, .seed = seed}, all_fault_kinds, two_by_two);
  };
  const auto shorter = draw(7, 2min), longer = draw(7, 10min);
  CHECK(draw(7, 2min) == shorter);
  CHECK(draw(8, 2min) != shorter);
  REQUIRE(longer.size() > shorter.size());
  CHECK(std::equal(shorter.begin(), shorter.end(), longer.begin()));
  // Known, so that a plan of today can be drawn tomorrow.
  const std::vector<FaultKind> kill{FaultKind::kill};
  CHECK(text_of(draw_plan({.mtbf = 5s, .time = 12s, .seed = 7}, kill, two_by_two)) == "232ms kill rank 3\n9.039s kill rank 3\n");
}

TEST_CASE("a draw of more failures than a plan may have ends, and can be told from one that fits", "[chaos]") {
  const std::vector<FaultKind> kill{FaultKind::kill};
  CHECK(draw_plan({.mtbf = 10ms, .time = fault_time_max}, kill, two_by_two).size() == faults_max + 1);
}

TEST_CASE("failures are drawn with the mean time between two, of all kinds and against all", "[chaos]") {
  const auto drawn = draw_plan({.mtbf = 1s, .time = 10'000s, .seed = 3}, all_fault_kinds, two_by_two);
  CHECK(drawn.size() > 9'500);
  CHECK(drawn.size() < 10'500);
  CHECK(std::ranges::is_sorted(drawn, {}, &Fault::at));
  std::map<FaultKind, std::map<std::uint32_t, int>> seen;
  for (const Fault& fault : drawn) {
    ++seen[fault.kind][fault.target];
    CHECK((fault.kind == FaultKind::kill) == (fault.lasts == Duration{0}));
    CHECK((fault.kind == FaultKind::slow) == (fault.percent > 0));
  }
  CHECK(seen.size() == all_fault_kinds.size());
  for (const auto& [kind, targets] : seen)
    CHECK(targets.size() == (target_of(kind) == FaultTarget::rank ? 4 : target_of(kind) == FaultTarget::node ? 2 : 1));
  // Exponentially: a third of the gaps, 1/e, are longer than the mean.
  std::size_t longer = 0;
  for (std::size_t i = 1; i < drawn.size(); ++i) longer += drawn[i].at - drawn[i - 1].at > 1s ? 1 : 0;
  CHECK(static_cast<double>(longer) / static_cast<double>(drawn.size()) == Approx(0.368).margin(0.02));
}

TEST_CASE("times have a unit, or are seconds", "[chaos]") {
  CHECK(parse_time("250ms") == 250ms);
  CHECK(parse_time("1.5s") == 1500ms);
  CHECK(parse_time("10m") == 10min);
  CHECK(parse_time("2h") == 2h);
  CHECK(parse_time("7") == 7s);
  CHECK(parse_time("24h") == fault_time_max);
  for (const char* wrong : {"", "s", "-1s", "1d", "1 s", "1.2.3s", "25h", "nan", "inf", "1e3s", "ms"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_time(wrong));
  }
  CHECK(time_text(250ms) == "250ms");
  CHECK(time_text(1500ms) == "1.5s");
  CHECK(time_text(600s) == "600s");
  CHECK(time_text(1001ms) == "1.001s");
}

}  // namespace
}  // namespace elrun::launcher
