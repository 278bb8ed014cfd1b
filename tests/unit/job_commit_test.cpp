#include "lib/job/commit/commit.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

const Generation seven{7, {{1, 2}}};
Membership member(std::uint32_t rank, std::uint32_t world, Generation g = seven) { return {g, Rank{rank}, WorldSize{world}}; }

}  // namespace

TEST_CASE("a step is decided for whoever has heard all votes of its generation", "[job]") {
  StepCommit a{member(0, 2), 5}, b{member(1, 2), 5};
  const Vote from_a = a.vote(true), from_b = b.vote(true);
  CHECK(a.hear(Rank{0}, from_a));
  CHECK_FALSE(a.decided());
  CHECK(a.hear(Rank{1}, from_b));
  CHECK(a.decided());
  CHECK_FALSE(b.decided());
  CHECK(a.knowledge() == Knowledge{5, 6, 6, seven, seven});
  a.applied();
  a.applied();  // again does nothing
  CHECK(a.knowledge() == Knowledge{6, 6, 6, seven, seven});
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
    const Recovered r = recover(m, Sums::alike);
    CHECK(r.next_step == 6);
    CHECK(r.members == std::vector<R>{R::apply, R::apply, R::go_on});
  }
  SECTION("nobody knows: the step is done again") {
    const std::vector<Knowledge> m{{5, 5, 6}, {5, 5, 5}};
    const Recovered r = recover(m, Sums::alike);
    CHECK(r.next_step == 5);
    CHECK(r.members == std::vector<R>{R::go_on, R::go_on});
  }
  SECTION("a newcomer fetches") {
    const std::vector<Knowledge> m{{5, 5, 5}, {0, 0, 0}};
    CHECK(recover(m, Sums::alike).members == std::vector<R>{R::go_on, R::fetch});
  }
  SECTION("a whole new world begins at nothing") { CHECK(recover(std::vector<Knowledge>(3), Sums::alike).next_step == 0); }
}

TEST_CASE("with sums of a generation only those count that the decision is of, with sums alike all do", "[job]") {
  using R = Recovery;
  const Generation six{6, {{9, 9}}}, eight{8, seven.lineage};
  const auto both = [](const std::vector<Knowledge>& m, const std::vector<R>& alike, const std::vector<R>& of_generation,
                       const Generation& decided_in) {
    CHECK(recover(m, Sums::alike).members == alike);
    const Recovered r = recover(m, Sums::of_generation);
    CHECK(r.members == of_generation);
    CHECK(r.decided_in == decided_in);
  };
  SECTION("who voted again, in a later generation, holds other sums than those that were decided") {
    both({{6, 6, 6, seven, seven}, {5, 5, 6, six, eight}, {5, 5, 6, six, seven}}, {R::go_on, R::apply, R::apply},
         {R::go_on, R::fetch, R::apply}, seven);
  }
  SECTION("of two that have decided it in two generations, the newer goes on") {
    both({{6, 6, 6, seven, seven}, {6, 6, 6, eight, eight}, {5, 5, 6, six, eight}, {5, 5, 6, six, seven}},
         {R::go_on, R::go_on, R::apply, R::apply}, {R::fetch, R::go_on, R::apply, R::fetch}, eight);
  }
  SECTION("a later step counts more than a later generation") {
    both({{6, 6, 6, six, six}, {5, 5, 6, eight, eight}}, {R::go_on, R::apply}, {R::go_on, R::fetch}, six);
  }
}

TEST_CASE("a member knows where its last step was decided, and where it voted", "[job]") {
  StepCommit a{member(0, 1), 5, Generation{6, {}}};
  CHECK(a.knowledge().decided_in.number == 6);
  CHECK(a.hear(Rank{0}, a.vote(true)));
  CHECK(a.knowledge().decided_in == seven);
  StepCommit b{member(0, 2, Generation{8, {}}), 5};
  (void)b.vote(true);
  CHECK(b.knowledge().voted_in.number == 8);
  b.learn(6, seven);
  CHECK(b.knowledge().decided_in == seven);
}

}  // namespace elrun::test
