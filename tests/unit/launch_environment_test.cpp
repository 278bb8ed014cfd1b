#include <map>

#include "lib/link/environment.hpp"
#include "lib/link/roll_call.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;

namespace {

Result<LaunchEnvironment> read(const std::map<std::string, std::string>& variables) {
  return read_launch_environment([&](const char* name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional{at->second};
  });
}

Hello hello(std::uint32_t rank, std::uint32_t world) { return {.release = "0.1.0", .pid = 100 + rank, .rank = rank, .world = world}; }

}  // namespace

TEST_CASE("the environment says how a worker was started", "[link]") {
  SECTION("nothing set: alone") {
    CHECK(std::holds_alternative<Alone>(read({}).value()));
    CHECK(std::holds_alternative<Alone>(read({{"MASTER_ADDR", "left over in a shell"}}).value()));
  }
  SECTION("a socket: under elrun, whatever else is set") {
    const auto found =
        std::get<UnderAgent>(read({{"ELRUN_SOCKET", "/s"}, {"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}}).value());
    CHECK(found.socket == "/s");
    CHECK(found.rank == Rank{2});
    CHECK(found.world == WorldSize{4});
    CHECK_FALSE(found.local_rank);
    const auto second = std::get<UnderAgent>(
        read({{"ELRUN_SOCKET", "/s"}, {"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}, {"ELRUN_LOCAL_RANK", "1"}}).value());
    CHECK(second.local_rank == LocalRank{1});
    CHECK_FALSE(read({{"ELRUN_SOCKET", "/s"}, {"RANK", "2"}, {"WORLD_SIZE", "4"}, {"ELRUN_LOCAL_RANK", "one"}}).ok());
  }
  SECTION("rank and master: an operator's job") {
    const auto found = std::get<InOperatorsJob>(read({{"RANK", "2"},
                                                      {"WORLD_SIZE", "3"},
                                                      {"MASTER_ADDR", "node-a"},
                                                      {"MASTER_PORT", "29500"},
                                                      {"LOCAL_RANK", "1"},
                                                      {"LOCAL_WORLD_SIZE", "2"}})
                                                    .value());
    CHECK(found.rank == Rank{2});
    CHECK(found.world == WorldSize{3});
    CHECK(found.master_address == "node-a");
    CHECK(found.master_port == 29500);
    CHECK(found.local_rank == LocalRank{1});
    CHECK(found.local_world == 2);
  }
}

TEST_CASE("all problems of the environment are told at once, each with its value", "[link]") {
  const auto found = read({{"RANK", "x"}, {"WORLD_SIZE", "0"}, {"MASTER_PORT", "70000"}, {"LOCAL_RANK", "-1"}});
  REQUIRE(!found.ok());
  CHECK(found.failure().code == Code::invalid_argument);
  for (const char* part : {"RANK=x", "WORLD_SIZE=0", "MASTER_PORT=70000", "LOCAL_RANK=-1", "MASTER_ADDR is not set"}) {
    CHECK_THAT(found.failure().what, Catch::Contains(part));
  }
  CHECK_THAT(read({{"WORLD_SIZE", "2"}}).failure().what, Catch::Contains("RANK is not set") && Catch::Contains("MASTER_PORT is not set"));
  CHECK_THAT(read({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}).failure().what,
             Catch::Contains("RANK=2 is not below WORLD_SIZE=2"));
  CHECK_THAT(read({{"ELRUN_SOCKET", "/s"}}).failure().what, Catch::Contains("RANK is not set"));
}

TEST_CASE("a variable for the token that is empty leaves no world open", "[link]") {
  const std::map<std::string, std::string> place{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  const auto with = [&](std::map<std::string, std::string> tokens) {
    tokens.insert(place.begin(), place.end());
    return read(tokens);
  };
  CHECK(std::get<InOperatorsJob>(with({}).value()).token.empty());
  for (const char* name : {"ELRUN_RDZV_TOKEN", "ELRUN_RDZV_TOKEN_FILE"})
    for (const char* nothing : {"", " \n"}) {
      const auto found = with({{name, nothing}});
      REQUIRE_FALSE(found.ok());
      CHECK_THAT(found.failure().what, Catch::Contains(std::string{name} + " is set and empty"));
    }
  CHECK(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}, {"ELRUN_RDZV_TOKEN", ""}})
            .ok());  // meets nobody
  CHECK(std::get<InOperatorsJob>(with({{"ELRUN_RDZV_TOKEN", ""}, {"ELRUN_RDZV_TOKEN_FILE", "/t"}}).value()).token_file == "/t");
  CHECK(std::get<InOperatorsJob>(with({{"ELRUN_RDZV_TOKEN", "abc"}, {"ELRUN_RDZV_TOKEN_FILE", ""}}).value()).token == "abc");
}

TEST_CASE("a world is complete when each of its ranks is there once", "[link]") {
  RollCall roll{WorldSize{3}};
  CHECK(!roll.arrive(1, hello(2, 3), "10.0.0.7:4242"));
  CHECK(!roll.arrive(2, hello(0, 3)));
  CHECK(roll.missing() == std::vector{Rank{1}});
  CHECK(!roll.complete());

  SECTION("another size is refused with both values") {
    const auto failure = roll.arrive(3, hello(1, 4));
    REQUIRE(failure);
    CHECK_THAT(failure->what, Catch::Contains("WORLD_SIZE=4") && Catch::Contains("WORLD_SIZE=3"));
    CHECK(!roll.complete());
  }
  SECTION("a second worker with the same rank is refused with both processes and where they are") {
    const auto failure = roll.arrive(3, Hello{.pid = 999, .rank = 2, .world = 3}, "10.0.0.9:4711");
    REQUIRE(failure);
    CHECK_THAT(failure->what, Catch::Contains("RANK=2: process 102 at 10.0.0.7:4242 is here, process 999 at 10.0.0.9:4711 has come"));
  }
  SECTION("another version is refused with both versions") {
    Hello other = hello(1, 3);
    other.version = protocol_version + 1;
    const auto failure = roll.arrive(3, other);
    REQUIRE(failure);
    CHECK(failure->code == Code::mismatch);
  }
  SECTION("before it is complete a rank may leave and come again") {
    CHECK(!roll.leave(1));
    CHECK(roll.missing() == std::vector{Rank{1}, Rank{2}});
    CHECK(!roll.arrive(4, hello(2, 3)));
    CHECK(!roll.arrive(5, hello(1, 3)));
    CHECK(roll.complete());
  }
  SECTION("before it is complete a worker may come again although its earlier connection is not known to have ended") {
    Hello again = hello(2, 3);
    again.session = 7;
    CHECK(!roll.earlier_of(again));  // another worker is here, whatever its process number
    CHECK(!roll.leave(1));
    CHECK(!roll.earlier_of(again));
    CHECK(!roll.arrive(4, again));
    CHECK(!roll.earlier_of(hello(2, 3)));  // says no session
    Hello wrong = again;
    wrong.proof = "abcd";
    CHECK(!roll.earlier_of(wrong));
    CHECK(roll.earlier_of(again) == RollCall::Visitor{4});
    CHECK(roll.arrive(5, again));  // two of one rank are never members
    CHECK(!roll.leave(4));
    CHECK(!roll.arrive(5, again));
    CHECK(roll.rank_of(5) == Rank{2});
    CHECK(!roll.arrive(6, hello(1, 3)));
    CHECK(!roll.earlier_of(again));  // it is complete: to come again is a loss
  }
  SECTION("after that, leaving is a loss, and nobody comes any more") {
    CHECK(!roll.arrive(3, hello(1, 3)));
    CHECK(roll.complete());
    CHECK(roll.leave(1) == Rank{2});
    CHECK(!roll.leave(77));
    CHECK(roll.complete());
    CHECK(roll.arrive(9, hello(2, 3)));
  }
}

TEST_CASE("where rank 0 has a token, every rank shows the same", "[link]") {
  RollCall roll{WorldSize{2}, "abcd"};
  Hello one = hello(1, 2);
  CHECK_THAT(roll.arrive(1, one)->what, Catch::Contains("rank 1 shows no token, and rank 0 has one"));
  one.proof = "abce";
  CHECK_THAT(roll.arrive(1, one)->what, Catch::Contains("another token than rank 0"));
  CHECK(roll.missing().size() == 2);
  one.proof = "abcd";
  CHECK(!roll.arrive(1, one));
  RollCall open{WorldSize{2}};
  CHECK_THAT(open.arrive(1, one)->what, Catch::Contains("has a token, and rank 0 has none"));
}

TEST_CASE("a list of ranks stays readable", "[link]") {
  std::vector<Rank> ranks;
  for (std::uint32_t rank = 0; rank < 20; ++rank) ranks.push_back(Rank{rank});
  CHECK(list_ranks(std::span{ranks}.first(1)) == "rank 0");
  CHECK(list_ranks(std::span{ranks}.first(3)) == "ranks 0, 1, 2");
  CHECK(list_ranks(ranks) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more");
}

TEST_CASE("rank 0 is told last that the job is over, once, and waits for no rank that is gone", "[environment]") {
  RollCall roll{WorldSize{3}};
  for (std::uint32_t rank = 0; rank < 3; ++rank) REQUIRE_FALSE(roll.arrive(10 + rank, Hello{.pid = 1, .rank = rank, .world = 3}));
  EndOfJob end;
  CHECK_FALSE(end.has_begun());
  CHECK_FALSE(end.release_host(roll.members()));
  end.say(Rank{0}, 10);
  CHECK(end.has_begun());
  CHECK_FALSE(end.release_host(roll.members()));
  end.say(Rank{2}, 12);
  CHECK_FALSE(end.release_host(roll.members()));
  SECTION("all have said so") { end.say(Rank{1}, 11); }
  SECTION("one died before") { (void)roll.leave(11); }
  CHECK(end.release_host(roll.members()) == RollCall::Visitor{10});
  CHECK_FALSE(end.release_host(roll.members()));
}

TEST_CASE("nobody is told for rank 0 while it has not said that the job is over", "[environment]") {
  EndOfJob end;
  end.say(Rank{1}, 11);
  CHECK(end.has_begun());
  CHECK_FALSE(end.release_host({{Rank{1}, {11, 1}}}));
}
