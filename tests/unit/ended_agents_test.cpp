#include "rendezvous/round/ended_agents.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test::ended_agents {
namespace {

const NodeId a{"a"}, b{"b"};
Instant at(Duration since_start) { return Instant{} + since_start; }

}  // namespace

TEST_CASE("an agent that has ended stays so; its node's next agent has not", "[ended]") {
  EndedAgents agents;
  agents.end({a, 1}, at(1s));
  agents.remove(a);
  CHECK(agents.has_ended({a, 1}));
  CHECK_FALSE(agents.has_ended({a, 2}));
  CHECK_FALSE(agents.has_ended({b, 1}));
}

TEST_CASE("who has ended as its host says may come back, for that may be another one's word", "[ended]") {
  EndedAgents agents;
  agents.end({a, 1}, at(1s), EndedAgents::Witness::host);
  CHECK(agents.waited_for().at(a).witness == EndedAgents::Witness::host);
  CHECK_FALSE(agents.has_ended({a, 1}));
  agents.end({a, 1}, at(2s), EndedAgents::Witness::guard);
  CHECK(agents.waited_for().at(a).until == at(1s));
  CHECK(agents.has_ended({a, 1}));
}

TEST_CASE("the node of an agent that has ended is waited for until it is gone, and not longer by being told again", "[ended]") {
  EndedAgents agents;
  CHECK_FALSE(agents.next_due());
  agents.end({a, 1}, at(2s));
  agents.end({b, 1}, at(1s));
  agents.end({b, 1}, at(5s));
  CHECK(agents.next_due() == at(1s));
  CHECK(agents.waited_for().size() == 2);
  agents.remove(b);
  CHECK(agents.next_due() == at(2s));
  agents.remove(a);
  CHECK(agents.waited_for().empty());
}

TEST_CASE("as many ended agents are remembered as there is a bound for", "[ended]") {
  EndedAgents agents;
  for (std::uint64_t i = 0; i < 2 * ended_agents_max; ++i) agents.end({a, i}, at(1s)), agents.remove(a);
  std::size_t known = 0;
  for (std::uint64_t i = 0; i < 2 * ended_agents_max; ++i) known += agents.has_ended({a, i}) ? 1 : 0;
  CHECK(known == ended_agents_max);
  CHECK(agents.has_ended({a, 2 * ended_agents_max - 1}));
}

}  // namespace elrun::test::ended_agents
