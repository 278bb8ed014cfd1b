// Which final states a run comes to, and who said them.
#include "launcher/chaos/final_states.hpp"

#include <string>
#include <vector>

#include "tests/support/catch.hpp"

namespace elrun::launcher {
namespace {

using Said = std::vector<ReportedState>;

TEST_CASE("the state is the word after its mark", "[chaos]") {
  const auto state = [](std::string_view line) { return word_after(line, "state="); };
  CHECK(state("done step=60 loss=1.9 state=fa4e8401d799db47") == "fa4e8401d799db47");
  CHECK(state("{\"state\": \"state=sha256:aGVsbG8/Pz8+==\"}") == "sha256:aGVsbG8/Pz8+==");
  CHECK(state("state=a state=1,5, and more") == "1,5");
  CHECK(state("(the state=abc).") == "abc");
  CHECK(state("state=a last_state=b") == "a");
  CHECK(state("last_state=b") == std::nullopt);
  CHECK(state("state=") == std::nullopt);
  CHECK(state("saving state to disk") == std::nullopt);
  CHECK(state("state=" + std::string(5000, 'x')) == std::nullopt);
  CHECK(state("w = 0.494425, state=1243115423319154795") == "1243115423319154795");
  CHECK(word_after("w = 0.494425, hash 1243115423319154795", "hash ") == "1243115423319154795");
}

TEST_CASE("a state in brackets is compared to their end", "[chaos]") {
  const auto state = [](std::string_view line) { return word_after(line, "state="); };
  CHECK(state("state=[0.1, 0.2] after 3 s") == "[0.1, 0.2]");
  CHECK(state("state=[[1, 2], [3, 4]], saved") == "[[1, 2], [3, 4]]");
  CHECK(state("state=tensor(0.5, dtype=torch.float64).") == "tensor(0.5, dtype=torch.float64)");
  CHECK(state("(in the end state=tensor(0.5, grad_fn=<A>))") == "tensor(0.5, grad_fn=<A>)");
  CHECK(state("state={'w': [1, 2], \"b\": 3}") == "{'w': [1, 2], \"b\": 3}");
  CHECK(state("{\"message\": \"state=abc\"}") == "abc");
  // Of a part of a state nothing can be said: the next line has the rest.
  CHECK(state("state=tensor([1, 2,") == std::nullopt);
  CHECK(state("state=[1, 2)") == std::nullopt);
}

TEST_CASE("the worker of a line is the one that its prefix names", "[chaos]") {
  CHECK(worker_of("[default0]:done", 2) == 0);
  CHECK(worker_of("[default12]: done", 16) == 12);
  CHECK(worker_of("[my-role_1]:done", 2) == 1);
  for (const char* line : {"[default2]:x", "[default]:x", "[1]:x", "[12:30:01]: x", "[step 1]: x", "[default1] x", "default1]:x", "", "[",
                           "]:", "[]:x", "[a99999999999]:x", "[elrun] node 1"}) {
    CAPTURE(line);
    CHECK(worker_of(line, 2) == std::nullopt);
  }
}

TEST_CASE("where the role is known, digits and brackets of its name are no worker's", "[chaos]") {
  CHECK(worker_of("[w20]:done", 2, "w2") == 0);
  CHECK(worker_of("[w111]:done", 16, "w1") == 11);
  CHECK(worker_of("[8 x]:[0]:done", 2, "8 x]:[") == 0);
  CHECK(worker_of("[" + std::string(256, 'r') + "1]:done", 2, std::string(256, 'r')) == 1);
  for (const char* line : {"[w2]:done", "[w1]:done", "[w22]:done", "[x20]:done", "[w2 0]:done", "[w20x]:done", "w20]:done", "[w", "["}) {
    CAPTURE(line);
    CHECK(worker_of(line, 2, "w2") == std::nullopt);
  }
  FinalStates states{{.nodes = 1, .workers = 2}, "state=", "step=", "w1"};
  states.saw("[w10]:state=old", 0);
  states.lost(0, 0);
  states.saw("[w11]:state=a", 0);
  CHECK(states.states() == Said{{"a", {"rank 1"}}});
}

TEST_CASE("the last state of each rank is final, and all of them count", "[chaos]") {
  FinalStates states{{.nodes = 2, .workers = 2}, "state=", "step="};
  CHECK(states.states().empty());
  CHECK_FALSE(states.saw("[default0]:step=1", 0));
  CHECK(states.saw("[default0]:state=early", 0));
  CHECK(states.saw("[default0]:state=a", 0));
  CHECK(states.saw("[default1]:state=a", 0));
  CHECK(states.saw("[default0]:state=a", 1));
  CHECK(states.states() == Said{{"a", {"rank 0", "rank 1", "rank 2"}}});
  CHECK(states.saw("[default1]:state=b", 1));
  CHECK(states.states() == Said{{"a", {"rank 0", "rank 1", "rank 2"}}, {"b", {"rank 3"}}});
  SECTION("but for those of a worker or a node that was killed since") {
    states.lost(1, 1);
    CHECK(states.states() == Said{{"a", {"rank 0", "rank 1", "rank 2"}}});
    states.lost(0);
    CHECK(states.states() == Said{{"a", {"rank 2"}}});
  }
}

TEST_CASE("what a worker said that was killed after that counts where nobody says a state any more", "[chaos]") {
  FinalStates states{{.nodes = 2, .workers = 2}, "state=", "step="};
  states.saw("[default0]:state=a", 0);
  states.lost(0, 0);
  CHECK(states.states() == Said{{"a", {"rank 0"}}});
  CHECK(states.are_of_killed());
  SECTION("but not once another one has said one") {
    states.saw("[default1]:state=b", 1);
    CHECK(states.states() == Said{{"b", {"rank 3"}}});
    CHECK_FALSE(states.are_of_killed());
    states.lost(1);
    CHECK(states.states() == Said{{"b", {"rank 3"}}});  // the last that was said
  }
}

TEST_CASE("a state of an earlier step than the newest is not final, one without a step is", "[chaos]") {
  FinalStates states{{.nodes = 3, .workers = 1}, "state=", "step="};
  states.saw("step=50 state=half", 0);  // rank 0 was lost, and another one prints since
  states.saw("step=60 state=a", 1);
  CHECK(states.states() == Said{{"a", {"rank 1"}}});
  states.saw("state=b", 2);
  CHECK(states.states() == Said{{"a", {"rank 1"}}, {"b", {"rank 2"}}});
  states.saw("step=60 state=c", 0);
  CHECK(states.states() == Said{{"c", {"rank 0"}}, {"a", {"rank 1"}}, {"b", {"rank 2"}}});
  states.saw("step=40 state=b", 0);  // it went back: the last one counts
  states.saw("state=b", 1);
  CHECK(states.states() == Said{{"b", {"rank 0", "rank 1", "rank 2"}}});
}

TEST_CASE("of a node whose workers cannot be told apart all states of its newest step count", "[chaos]") {
  FinalStates states{{.nodes = 2, .workers = 2}, "state=", "step="};
  states.saw("step=50 state=half", 1);
  states.saw("step=60 state=a", 1);
  states.saw("step=50 state=half", 1);  // the slower rank's line comes later
  CHECK(states.states() == Said{{"a", {"node 1"}}});
  states.saw("step=60 state=b", 1);
  states.saw("step=60 state=a", 1);
  CHECK(states.states() == Said{{"a", {"node 1"}}, {"b", {"node 1"}}});
  states.saw("state=c", 1);  // the last word has no step
  states.saw("state=d", 1);
  CHECK(states.states() == Said{{"c", {"node 1"}}, {"d", {"node 1"}}});
  for (int i = 0; i < 100; ++i) states.saw("state=x" + std::to_string(i), 0);
  CHECK(states.states().size() == FinalStates::states_max + 2);
}

}  // namespace
}  // namespace elrun::launcher
