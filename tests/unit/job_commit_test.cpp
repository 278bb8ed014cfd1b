#include "lib/job/commit.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

const Generation seven{7, {{1, 2}}};
Membership member(std::uint32_t rank, std::uint32_t world, Generation g = seven) {
  return {g, Rank{rank}, WorldSize{world}};
}

}  // namespace

TEST_CASE("a step is decided for whoever has heard all votes of its generation", "[job]") {
  StepCommit a{member(0, 2), 5}, b{member(1, 2), 5};
  const Vote from_a = a.vote(true), from_b = b.vote(true);
  CHECK(a.hear(Rank{0}, from_a));
  CHECK_FALSE(a.decided());
  CHECK(a.hear(Rank{1}, from_b));
  CHECK(a.decided());
  CHECK_FALSE(b.decided());
  CHECK(a.knowledge() == Knowledge{5, 6, 6});
  a.applied();
  a.applied();  // again does nothing
  CHECK(a.knowledge() == Knowledge{6, 6, 6});
}

TEST_CASE("votes of another generation, step or member are dropped", "[job]") {
  StepCommit a{member(0, 2), 5};
  CHECK(a.hear(Rank{0}, a.vote(true)));
  CHECK_FALSE(a.hear(Rank{1}, Vote{Generation{8, seven.lineage}, 5, true}));
  CHECK_FALSE(a.hear(Rank{1}, Vote{Generation{7, {{9, 9}}}, 5, true}));
  CHECK_FALSE(a.hear(Rank{1}, Vote{seven, 4, true}));
  CHECK_FALSE(a.hear(Rank{1}, Vote{seven, 6, true}));
  CHECK_FALSE(a.hear(Rank{2}, Vote{seven, 5, true}));
  CHECK_FALSE(a.hear(Rank{0}, Vote{seven, 5, true}));  // twice
  CHECK_FALSE(a.decided());
}

TEST_CASE("one member's gradient that is no number leaves the update out for all", "[job]") {
  StepCommit a{member(0, 2), 0};
  CHECK(a.hear(Rank{0}, a.vote(true)));
  CHECK(a.hear(Rank{1}, Vote{seven, 0, false}));
  CHECK(a.decided());
  CHECK_FALSE(a.finite());
  a.applied();
  CHECK(a.finite());
}

TEST_CASE("a new generation goes on from what its members know", "[job]") {
  using R = Recovery;
  SECTION("one knows: all who voted apply") {
    const std::vector<Knowledge> m{{5, 6, 6}, {5, 5, 6}, {6, 6, 6}};
    const Recovered r = recover(m);
    CHECK(r.next_step == 6);
    CHECK(r.members == std::vector<R>{R::apply, R::apply, R::go_on});
  }
  SECTION("nobody knows: the step is done again") {
    const std::vector<Knowledge> m{{5, 5, 6}, {5, 5, 5}};
    const Recovered r = recover(m);
    CHECK(r.next_step == 5);
    CHECK(r.members == std::vector<R>{R::go_on, R::go_on});
  }
  SECTION("a newcomer fetches") {
    const std::vector<Knowledge> m{{5, 5, 5}, {0, 0, 0}};
    CHECK(recover(m).members == std::vector<R>{R::go_on, R::fetch});
  }
  SECTION("a whole new world begins at nothing") { CHECK(recover(std::vector<Knowledge>(3)).next_step == 0); }
}

}  // namespace elrun::test
