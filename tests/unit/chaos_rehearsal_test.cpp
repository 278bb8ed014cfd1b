// Which fault of a plan begins or ends when.
#include "launcher/chaos/rehearsal.hpp"

#include <map>
#include <vector>

#include <elrun/philox.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

namespace elrun::launcher {
namespace {

using Actions = std::vector<FaultAction>;
using What = FaultAction::What;

const FaultWorld nodes_of_two{.nodes = 2, .workers = 2};

/// All workers run, and somebody coordinates.
RehearsalFacts all_there(Duration time, std::optional<std::uint64_t> step = {}) {
  return {.time = time, .step = step, .nodes = {{true, {true, true}}, {true, {true, true}}}, .has_coordinator = true};
}

Rehearsal rehearsal_of(const char* text) {
  ParsedPlan parsed = parse_plan(text, nodes_of_two);
  REQUIRE(parsed.problems.empty());
  return Rehearsal{std::move(parsed.faults), nodes_of_two};
}

TEST_CASE("a fault begins at its time, or with its step, and once", "[chaos]") {
  Rehearsal rehearsal = rehearsal_of("5s kill rank 1\nstep 40 kill rank 0\n");
  CHECK_FALSE(rehearsal.may_act(4999ms, 39));
  CHECK(rehearsal.on(all_there(4999ms, 39)).empty());
  CHECK(rehearsal.may_act(5s, 39));
  CHECK(rehearsal.on(all_there(5s, 39)) == Actions{{What::begin, 0}});
  CHECK_FALSE(rehearsal.may_act(6s, 39));
  CHECK(rehearsal.on(all_there(6s)).empty());
  CHECK(rehearsal.on(all_there(6s, 41)) == Actions{{What::begin, 1}});
  CHECK(rehearsal.on(all_there(100s, 50)).empty());
  CHECK(rehearsal.finish().empty());
}

TEST_CASE("with a node of its own, a rehearsal has no part in what hits others", "[chaos]") {
  ParsedPlan parsed =
      parse_plan("1s kill rank 1\n1s kill rank 2\n2s kill-agent node 0 for 1s\n2s kill-agent node 1 for 1s\n", nodes_of_two);
  const auto rehearsal_on = [&](std::uint32_t node) { return Rehearsal{parsed.faults, nodes_of_two, node}; };
  Rehearsal first = rehearsal_on(0), second = rehearsal_on(1);
  CHECK(first.on(all_there(1s)) == Actions{{What::begin, 0}});
  CHECK(first.on(all_there(1s)).empty());
  CHECK(second.on(all_there(1s)) == Actions{{What::begin, 1}});
  CHECK_FALSE(second.may_act(1500ms, {}));
  CHECK(first.on(all_there(2s)) == Actions{{What::begin, 2}});
  CHECK(second.on(all_there(2s)) == Actions{{What::begin, 3}});
  CHECK(first.on(all_there(3s)) == Actions{{What::end, 2}});
  CHECK(first.on(all_there(200s)).empty());  // nothing was waited for, so nothing is left out
  for (const std::size_t fault : {0u, 2u}) CHECK(hits_other_node(parsed.faults[fault], nodes_of_two, 1));
  for (const std::size_t fault : {1u, 3u}) CHECK_FALSE(hits_other_node(parsed.faults[fault], nodes_of_two, 1));
  CHECK_FALSE(hits_other_node(parsed.faults[0], nodes_of_two, {}));
  CHECK_FALSE(hits_other_node({.kind = FaultKind::coordinator}, nodes_of_two, 1));
}

TEST_CASE("who serves the rendezvous when it is due loses the coordinator, and the others leave it to that node", "[chaos]") {
  Rehearsal here = rehearsal_of("1s coordinator for 1s\n"), elsewhere = rehearsal_of("1s coordinator for 1s\n");
  RehearsalFacts facts = all_there(1s);
  facts.has_coordinator = false;
  CHECK(here.on(facts).empty());  // it is just lost, and comes back here
  facts.is_served_elsewhere = true;
  CHECK(elsewhere.on(facts) == Actions{{What::leave_to_others, 0}});
  CHECK(elsewhere.on(all_there(2s)).empty());
  CHECK(here.on(all_there(2s)) == Actions{{What::begin, 0}});
}

TEST_CASE("a node of its own whose workers have ended does not lose the coordinator", "[chaos]") {
  // Its job may be done: what it did then would be another one.
  Rehearsal own{parse_plan("1s coordinator for 1s\n", nodes_of_two).faults, nodes_of_two, 0}, all = rehearsal_of("1s coordinator for 1s\n");
  RehearsalFacts facts = all_there(1s);
  facts.nodes[0].workers = {false, false};
  CHECK(own.on(facts).empty());
  CHECK(all.on(facts) == Actions{{What::begin, 0}});
  CHECK(own.on(all_there(2s)) == Actions{{What::begin, 0}});
}

TEST_CASE("what lasts ends after its time, or with the job", "[chaos]") {
  Rehearsal rehearsal = rehearsal_of("1s stop rank 1 for 2s\n");
  CHECK(rehearsal.on(all_there(1500ms)) == Actions{{What::begin, 0}});
  CHECK_FALSE(rehearsal.may_act(3499ms, {}));
  SECTION("after its time") {
    CHECK(rehearsal.may_act(3500ms, {}));
    CHECK(rehearsal.on(all_there(3500ms)) == Actions{{What::end, 0}});
    CHECK(rehearsal.finish().empty());
  }
  SECTION("with the job") {
    CHECK(rehearsal.finish() == Actions{{What::end, 0}});
    CHECK(rehearsal.on(all_there(10s)).empty());
  }
}

TEST_CASE("what lasts ends in its time when nothing begins any more", "[chaos]") {
  Rehearsal rehearsal = rehearsal_of("1s stop rank 1 for 2s\n1s kill rank 3\n5s kill rank 0\n");
  RehearsalFacts facts = all_there(1s);
  facts.nodes[1].workers[1] = false;  // so the kill is due, and waits
  CHECK(rehearsal.on(facts) == Actions{{What::begin, 0}});
  rehearsal.begin_no_more();
  CHECK(rehearsal.on(all_there(2999ms)).empty());
  CHECK_FALSE(rehearsal.may_act(2999ms, {}));
  CHECK(rehearsal.on(all_there(3s)) == Actions{{What::end, 0}});
  CHECK_FALSE(rehearsal.may_act(100s, {}));
  CHECK(rehearsal.on(all_there(100s)).empty());
}

TEST_CASE("a fault that is due waits for what it hits", "[chaos]") {
  RehearsalFacts facts = all_there(10s);
  const auto waits_then_begins = [&](const char* text, const std::function<void(RehearsalFacts&, bool)>& set) {
    CAPTURE(text);
    Rehearsal rehearsal = rehearsal_of(text);
    set(facts, false);
    CHECK(rehearsal.on(facts).empty());
    CHECK(rehearsal.may_act(facts.time, {}));
    set(facts, true);
    CHECK(rehearsal.on(facts) == Actions{{What::begin, 0}});
  };
  waits_then_begins("5s kill rank 3", [](RehearsalFacts& f, bool there) { f.nodes[1].workers[1] = there; });
  waits_then_begins("5s kill rank 3", [](RehearsalFacts& f, bool there) { f.nodes[1].has_agent = there; });
  waits_then_begins("5s kill-agent node 0 for 1s", [](RehearsalFacts& f, bool there) { f.nodes[0].has_agent = there; });
  waits_then_begins("5s kill-agent node 0 for 1s", [](RehearsalFacts& f, bool there) { f.nodes[0].workers = {there, there}; });
  waits_then_begins("5s coordinator for 1s", [](RehearsalFacts& f, bool there) { f.has_coordinator = there; });
}

TEST_CASE("a fault whose worker has gone meanwhile waits for the next one", "[chaos]") {
  Rehearsal rehearsal = rehearsal_of("5s stop rank 3 for 1s\n");
  CHECK(rehearsal.on(all_there(5s)) == Actions{{What::begin, 0}});
  rehearsal.waits_again(0);
  RehearsalFacts facts = all_there(5500ms);
  facts.nodes[1].workers[1] = false;
  CHECK(rehearsal.on(facts).empty());
  CHECK(rehearsal.on(all_there(6s)) == Actions{{What::begin, 0}});
  CHECK(rehearsal.on(all_there(6900ms)).empty());
  CHECK(rehearsal.on(all_there(7s)) == Actions{{What::end, 0}});
}

TEST_CASE("what a fault waits for in vain is left out", "[chaos]") {
  Rehearsal rehearsal = rehearsal_of("5s kill rank 3\n");
  RehearsalFacts facts = all_there(5s);
  facts.nodes[1] = {};
  CHECK(rehearsal.on(facts).empty());
  facts.time = 5s + fault_patience - 1ms;
  CHECK(rehearsal.on(facts).empty());
  facts.time = 5s + fault_patience;
  CHECK(rehearsal.on(facts) == Actions{{What::leave_out, 0}});
  CHECK(rehearsal.on(all_there(200s)).empty());
}

TEST_CASE("two faults do not hit the same at once", "[chaos]") {
  SECTION("a worker that is stopped is not killed before it goes on") {
    Rehearsal rehearsal = rehearsal_of("1s stop rank 1 for 2s\n2s kill rank 1\n2s kill rank 0\n");
    CHECK(rehearsal.on(all_there(1s)) == Actions{{What::begin, 0}});
    CHECK(rehearsal.on(all_there(2s)) == Actions{{What::begin, 2}});  // another one's death does not wait
    CHECK(rehearsal.on(all_there(2s)).empty());
    CHECK(rehearsal.on(all_there(3s)) == Actions{{What::end, 0}, {What::begin, 1}});
  }
  SECTION("a node that is cut is not killed, and neither are its workers") {
    Rehearsal rehearsal = rehearsal_of("1s cut node 1 for 2s\n2s kill-agent node 1 for 1s\n2s kill rank 2\n2s kill rank 1\n");
    CHECK(rehearsal.on(all_there(1s)) == Actions{{What::begin, 0}});
    CHECK(rehearsal.on(all_there(2s)) == Actions{{What::begin, 3}});
    CHECK(rehearsal.on(all_there(3s)) == Actions{{What::end, 0}, {What::begin, 1}});
    CHECK(rehearsal.on(all_there(4s)) == Actions{{What::end, 1}, {What::begin, 2}});
  }
  SECTION("a disk that is full is not filled, and a store that is lost not lost again") {
    Rehearsal rehearsal = rehearsal_of("1s fill for 2s\n1s fill for 2s\n1s coordinator for 1s\n1s coordinator for 1s\n");
    CHECK(rehearsal.on(all_there(1s)) == Actions{{What::begin, 0}});
    CHECK(rehearsal.on(all_there(1s)) == Actions{{What::begin, 2}});
    CHECK(rehearsal.on(all_there(1s)).empty());
  }
}

TEST_CASE("whatever the job does, each fault begins at most once, ends exactly if it lasts, and never before its time", "[chaos]") {
  test::for_all_seeds(300, [](Rng& rng) {
    const DrawOptions options{.mtbf = 500ms, .time = 30s, .seed = rng.next64()};
    Rehearsal rehearsal{draw_plan(options, all_fault_kinds, nodes_of_two), nodes_of_two};
    std::map<std::size_t, Duration> began, ended;
    std::map<std::size_t, bool> left_out;
    const auto take = [&](const Actions& actions, Duration time) {
      for (const auto& [what, fault] : actions) {
        const Fault& f = rehearsal.faults()[fault];
        if (what == What::begin) {
          CHECK(began.try_emplace(fault, time).second);
          CHECK(time >= f.at);
          // Nothing else that lasts holds the same rank or node.
          for (const auto& [other, since] : began) {
            const Fault& o = rehearsal.faults()[other];
            if (other == fault || ended.contains(other) || o.lasts == Duration{0}) continue;
            CHECK_FALSE((o.kind == f.kind && o.target == f.target));
          }
        } else if (what == What::end) {
          REQUIRE(began.contains(fault));
          CHECK(f.lasts > Duration{0});
          CHECK(ended.try_emplace(fault, time).second);
        } else {
          CHECK(left_out.try_emplace(fault, true).second);
          CHECK_FALSE(began.contains(fault));
        }
      }
    };
    Duration time{0};
    while (time < 200s) {
      RehearsalFacts facts = all_there(time);
      for (auto& node : facts.nodes) {
        node.has_agent = rng.chance(0.8);
        for (std::size_t i = 0; i < 2; ++i) node.workers[i] = rng.chance(0.7);
      }
      facts.has_coordinator = rng.chance(0.9);
      for (Actions actions = rehearsal.on(facts); !actions.empty(); actions = rehearsal.on(facts)) {
        CHECK(actions.size() <= rehearsal.faults().size());
        take(actions, time);
      }
      time += std::chrono::milliseconds{1 + rng.below(500)};
    }
    take(rehearsal.finish(), time);
    for (std::size_t i = 0; i < rehearsal.faults().size(); ++i) {
      CHECK((began.contains(i) || left_out.contains(i)));
      CHECK(ended.contains(i) == (began.contains(i) && rehearsal.faults()[i].lasts > Duration{0}));
      if (ended.contains(i)) CHECK(ended[i] - began[i] >= rehearsal.faults()[i].lasts);
    }
  });
}

}  // namespace
}  // namespace elrun::launcher
