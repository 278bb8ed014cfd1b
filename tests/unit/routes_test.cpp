#include "launcher/output/routes.hpp"

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

TEST_CASE("a stream goes where it was sent", "[logs]") {
  CHECK(route({}) == Route::inherit);
  CHECK(route({.redirected = true}) == Route::file);
  CHECK(route({.teed = true}) == Route::tee);
  CHECK(route({.redirected = true, .teed = true}) == Route::tee);
  CHECK(route({.has_filters = true}) == Route::inherit);
}

TEST_CASE("a rank that is not to be seen still has its files", "[logs]") {
  CHECK(route({.seen = false}) == Route::null);
  CHECK(route({.redirected = true, .seen = false}) == Route::file);
  CHECK(route({.teed = true, .seen = false}) == Route::file);
  CHECK(route({.teed = true, .seen = false, .has_filters = true}) == Route::tee_unseen);
}

TEST_CASE("without files nothing is redirected, teed or prefixed", "[logs]") {
  CHECK(route({.redirected = true, .teed = true, .has_files = false}) == Route::inherit);
  CHECK(route({.teed = true, .seen = false, .has_files = false, .has_filters = true}) == Route::null);
}

TEST_CASE("the prefix names role, ranks and host", "[logs]") {
  const PrefixNames names{"trainer", LocalRank{3}, Rank{11}, "node7.cluster.example"};
  CHECK(line_prefix("", names) == "[trainer3]:");
  CHECK(line_prefix("${hostname}:${rank}: ", names) == "node7:11: ");
  CHECK(line_prefix("$role_name/$local_rank|", names) == "trainer/3|");
  CHECK(line_prefix("$$ ${other} $nothing ${rank", names) == "$ ${other} $nothing ${rank");
  CHECK(line_prefix("$ranks $rank.$", names) == "$ranks 11.$");
  CHECK(line_prefix("${}${ rank}$", names) == "${}${ rank}$");
}
