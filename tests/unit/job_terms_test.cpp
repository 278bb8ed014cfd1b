#include "rendezvous/round/job_terms.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test::job_terms {
namespace {

using Texts = std::vector<std::string>;

Join a_join() {
  Join join;
  join.who = {NodeId{"a"}, 1};
  join.run = RunId{"run"};
  join.version = "1.0.3";
  join.options = {.nodes_min = 2, .nodes_max = 4};
  join.workers = 2;
  join.address = "a.local";
  return join;
}
JobTerms open_terms() { return JobTerms{{.run = {}, .version = "1.2.0"}}; }

}  // namespace

TEST_CASE("the first node sets what the coordinator was not given, and others are compared with it", "[job_terms]") {
  JobTerms terms = open_terms();
  CHECK_FALSE(terms.are_known());
  CHECK(terms.nodes_max() == 0);
  Join join = a_join();
  CHECK(terms.contradictions(join, 0).empty());
  terms.agree(join);
  CHECK(terms.are_known());
  CHECK(terms.nodes_max() == 4);
  CHECK(terms.contradictions(join, 0).empty());
  join.run = RunId{"other"};
  join.options = {.nodes_min = 1, .nodes_max = 3, .last_call = 5s, .max_restarts = 2};
  CHECK(terms.contradictions(join, 0) ==
        Texts{"run id (--rdzv_id): this node has other, the job has run", "--nnodes MIN: this node has 1, the job has 2",
              "--nnodes MAX: this node has 3, the job has 4", "last_call (seconds): this node has 5, the job has 30",
              "--max_restarts (-1: not given): this node has 2, the job has -1"});
  SECTION("a second node changes nothing") {
    terms.agree(join);
    CHECK(terms.options() == a_join().options);
    CHECK(terms.contradictions(a_join(), 0).empty());
  }
  SECTION("when nobody is here, the next node sets them") {
    terms.forget();
    CHECK_FALSE(terms.are_known());
    CHECK(terms.contradictions(join, 0).empty());
  }
}

TEST_CASE("what the coordinator was given, no node sets", "[job_terms]") {
  JobTerms terms{{.run = RunId{"mine"}, .nodes_min = 2, .nodes_max = 5, .version = "1.2.0"}};
  const Texts both{"run id (--rdzv_id): this node has run, the job has mine", "--nnodes MAX: this node has 4, the job has 5"};
  CHECK(terms.contradictions(a_join(), 0) == both);
  terms.agree(a_join());
  terms.forget();
  CHECK(terms.contradictions(a_join(), 0) == both);
}

TEST_CASE("a node of another major version does not fit", "[job_terms]") {
  Join join = a_join();
  for (const char* version : {"2.0.0", "1", "", "x.1"}) {
    join.version = version;
    CHECK(open_terms().contradictions(join, 0).size() == 1);
  }
  join.version = "1.99.0";
  CHECK(open_terms().contradictions(join, 0).empty());
}

TEST_CASE("a node that is heard too seldom to count as alive does not fit", "[job_terms]") {
  Join join = a_join();
  join.heartbeat = 4s;
  CHECK(open_terms().contradictions(join, 0).empty());
  join.heartbeat = 10s;
  CHECK(open_terms().contradictions(join, 0) == Texts{"--rdzv_conf keep_alive_interval: this node says every 10 s that it lives, and the "
                                                      "coordinator counts a node as lost that is silent for 5 s"});
  CHECK(JobTerms{{.version = "1.2.0", .heartbeat_limit = 50s}}.contradictions(join, 0).empty());
}

TEST_CASE("names that cannot be shown, and sizes out of bounds, do not fit", "[job_terms]") {
  Join join = a_join();
  SECTION("a control character") {
    join.address = "a\x1b[2J";
    CHECK(open_terms().contradictions(join, 0).size() == 1);
  }
  SECTION("no name") {
    join.who.node = NodeId{};
    CHECK(open_terms().contradictions(join, 0) == Texts{"the node has no name"});
  }
  SECTION("too many workers") {
    join.workers = workers_per_node_limit + 1;
    CHECK(open_terms().contradictions(join, 0).size() == 1);
  }
}

TEST_CASE("a generation far above the newest that is known here is nobody's", "[job_terms]") {
  Join join = a_join();
  join.last.number = 7 + generation_jump_max;
  CHECK(open_terms().contradictions(join, 7).empty());
  CHECK(open_terms().contradictions(join, 6).size() == 1);
  join.last.number = 0;
  join.heard = 8 + generation_jump_max;
  CHECK(open_terms().contradictions(join, 7).size() == 1);
}

TEST_CASE("refused nodes are remembered until they fit or a generation begins", "[job_terms]") {
  JobTerms terms = open_terms();
  terms.refuse(NodeId{"a"}, "why");
  terms.refuse(NodeId{"b"}, std::string(1000, 'x'));
  CHECK(terms.refused().at(NodeId{"a"}) == "why");
  CHECK(terms.refused().at(NodeId{"b"}).size() == refused_text_max);
  SECTION("it fits") {
    terms.agree(a_join());
    CHECK(terms.refused().size() == 1);
  }
  SECTION("a generation begins") {
    terms.begin();
    CHECK(terms.refused().empty());
  }
  SECTION("not more than a few") {
    for (std::size_t i = 0; i < refused_max; ++i) terms.refuse(NodeId{"n" + std::to_string(i)}, "why");
    CHECK(terms.refused().size() == refused_max);
    terms.refuse(NodeId{"a"}, "another reason");
    CHECK(terms.refused().at(NodeId{"a"}) == "another reason");
  }
}

}  // namespace elrun::test::job_terms
