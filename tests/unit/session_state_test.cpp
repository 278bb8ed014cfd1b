// What the callers' threads and the link thread share in a session. No connection: the test plays the link thread.
#include <optional>
#include <thread>

#include "lib/link/known_generation.hpp"
#include "lib/link/session_state.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

using Catch::Matchers::Contains;

Place place_in(std::uint64_t generation, std::uint32_t rank = 1) {
  Place place;
  place.membership = {Generation{generation, {{7, 7}}}, Rank{rank}, WorldSize{2}};
  return place;
}

struct Bench {
  SteadyClock clock;
  SessionState state{clock, "the agent", Rank{1}};
  [[nodiscard]] Deadline soon() const { return Deadline::after(clock.now(), 20ms); }
  [[nodiscard]] Deadline late() const { return Deadline::after(clock.now(), 60s); }
};

const Failure over{Code::peer_lost, Remedy::rejoin, "node b is lost"};

}  // namespace

TEST_CASE("a session waits for its place until the deadline, and for no longer than the other end is there", "[session]") {
  Bench bench;
  CHECK(bench.state.wait_until_ready(bench.soon()).failure().code == Code::deadline_passed);
  SECTION("the place comes") {
    std::thread link{[&] { bench.state.welcome(place_in(1), {}); }};
    CHECK(bench.state.wait_until_ready(bench.late()).ok());
    link.join();
    CHECK(bench.state.place().membership == place_in(1).membership);
    CHECK_FALSE(bench.state.over());
  }
  SECTION("the other end goes: the failure names this worker's rank") {
    CHECK(bench.state.lose({Code::peer_lost, Remedy::exit_process, "the agent is gone"}).rank == Rank{1});
    CHECK(bench.state.wait_until_ready(bench.late()).failure().rank == Rank{1});
  }
  SECTION("the place comes, and its generation is over already") {
    bench.state.welcome(place_in(1), over);
    CHECK(bench.state.wait_until_ready(bench.late()).ok());
    CHECK(bench.state.over()->what == over.what);
    CHECK(bench.state.begin_call().failure().code == Code::generation_over);
  }
}

TEST_CASE("when the other end goes, the first reason counts, with the rank and generation of the place", "[session]") {
  Bench bench;  // rank 1, until it has a place
  bench.state.welcome(place_in(7, 0), {});
  const Failure first = bench.state.lose({Code::peer_lost, Remedy::exit_process, "the agent is gone"});
  CHECK(first.what == "the agent is gone");
  CHECK(first.rank == Rank{0});
  CHECK(first.generation == place_in(7).membership.generation);
  CHECK(bench.state.lose({Code::protocol, Remedy::exit_process, "the last frame is torn"}).what == "the last frame is torn");
  for (const auto& waited : {bench.state.next_place(), bench.state.wait_until_job_is_over(bench.late())}) {
    REQUIRE_FALSE(waited.ok());
    CHECK(waited.failure().what == first.what);
    CHECK(waited.failure().rank == first.rank);
    CHECK(waited.failure().generation == first.generation);
  }
  CHECK_FALSE(bench.state.wait_until_over(bench.late()).value());  // nobody will offer a place
}

TEST_CASE("of two reasons for which a generation is over, the first is told, with the rank and generation of the place", "[session]") {
  Bench bench;
  bench.state.welcome(place_in(7, 0), {});
  bench.state.end(over);
  bench.state.end({Code::peer_lost, Remedy::rejoin, "node c is lost"});
  CHECK(bench.state.over()->what == over.what);
  const Failure failure = bench.state.begin_call().failure();
  CHECK(failure.what == "the generation is over: node b is lost");
  CHECK(failure.rank == Rank{0});
  CHECK(failure.generation == place_in(7).membership.generation);
}

TEST_CASE("what the agent remembers of the job is there for the program", "[session]") {
  Bench bench;
  CHECK(bench.state.remembered().checkpoint.empty());
  bench.state.remember({.decided = 12, .checkpoint = "s12"});
  CHECK(bench.state.remembered().decided == 12);
  CHECK(bench.state.remembered().checkpoint == "s12");
}

TEST_CASE("a store call ends with its answer, with its generation, or at its deadline, and names the key", "[session]") {
  Bench bench;
  bench.state.welcome(place_in(1), {});
  const std::uint64_t call = bench.state.begin_call().value(), other = bench.state.begin_call().value();
  CHECK(call != other);
  SECTION("an answer that comes before anybody waits") {
    StoreReply reply;
    reply.id = call;
    bench.state.answer(reply);
    CHECK(bench.state.wait_for_answer(call, "k", bench.late())->id == call);
  }
  SECTION("an answer to a call that nobody waits for any more, or that never was, changes no other") {
    CHECK_FALSE(bench.state.wait_for_answer(call, "k", bench.soon()).ok());
    for (const std::uint64_t late : {call, other + 1}) {
      StoreReply reply;
      reply.id = late;
      bench.state.answer(reply);
    }
    CHECK(bench.state.wait_for_answer(other, "k", bench.soon()).failure().code == Code::deadline_passed);
  }
  SECTION("an answer that came before the generation was over counts") {
    StoreReply reply;
    reply.id = call;
    bench.state.answer(reply);
    bench.state.end(over);
    CHECK(bench.state.wait_for_answer(call, "k", bench.late())->id == call);
  }
  SECTION("none in time") {
    CHECK_THAT(bench.state.wait_for_answer(call, "k", bench.soon()).failure().what, Contains("(\"k\")") && Contains("the agent"));
  }
  SECTION("the generation is over") {
    bench.state.end(over);
    CHECK(bench.state.wait_for_answer(call, "k", bench.late()).failure().code == Code::generation_over);
    CHECK(bench.state.begin_call().failure().code == Code::generation_over);
  }
}

TEST_CASE("the next place is taken only after the generation is over, and a generation that ends before that was never entered",
          "[session]") {
  Bench bench;
  bench.state.welcome(place_in(1), {});
  bench.state.leave();
  CHECK_FALSE(bench.state.offer_next(place_in(2)));
  CHECK(bench.state.is_leaving());
  CHECK(bench.state.wait_until_over(bench.soon()).failure().remedy == Remedy::exit_process);
  bench.state.end(over);
  CHECK(bench.state.wait_until_over(bench.late()).value() == false);  // nothing was offered yet
  CHECK(bench.state.offer_next(place_in(2)));
  CHECK_FALSE(bench.state.is_leaving());  // what was said of the generation before
  SECTION("it is taken") {
    CHECK(bench.state.wait_until_over(bench.late()).value());
    CHECK(bench.state.next_place().ok());
    CHECK(bench.state.place().membership.generation.number == 2);
    CHECK_FALSE(bench.state.over());
  }
  SECTION("it ends first") {
    bench.state.end({Code::peer_lost, Remedy::rejoin, "node c is lost"});
    CHECK_FALSE(bench.state.wait_until_over(bench.late()).value());
    CHECK(bench.state.offer_next(place_in(3)));
    CHECK(bench.state.next_place().ok());
    CHECK(bench.state.place().membership.generation.number == 3);
  }
  SECTION("the agent asks again to prepare to leave, before the place is taken") {
    bench.state.leave();
    CHECK(bench.state.next_place().ok());
    CHECK(bench.state.is_leaving());
  }
  SECTION("the other end goes") {
    bench.state.end(bench.state.lose(over));
    CHECK_FALSE(bench.state.wait_until_over(bench.late()).value());
    CHECK_FALSE(bench.state.next_place().ok());
  }
}

TEST_CASE("a wait that has no end waits for what it is for", "[session]") {
  Bench bench;
  const Deadline never = Deadline::after(bench.clock.now(), Duration::max());
  const auto while_waiting = [&](auto wait, auto then) {
    std::thread link{[&] {
      std::this_thread::sleep_for(20ms);
      then();
    }};
    const bool came = wait().ok();
    link.join();
    return came;
  };
  CHECK(while_waiting([&] { return bench.state.wait_until_ready(never); }, [&] { bench.state.welcome(place_in(1), {}); }));
  StoreReply reply;
  reply.id = bench.state.begin_call().value();
  CHECK(while_waiting([&] { return bench.state.wait_for_answer(reply.id, "k", never); }, [&] { bench.state.answer(reply); }));
  CHECK(while_waiting([&] { return bench.state.wait_until_over(never); }, [&] { bench.state.end(over); }));
  CHECK(while_waiting([&] { return bench.state.wait_until_job_is_over(never); }, [&] { bench.state.job_is_over(); }));
}

TEST_CASE("the end of a job is confirmed in time, or it is said that it was not", "[session]") {
  Bench bench;
  bench.state.welcome(place_in(1), {});
  CHECK(bench.state.wait_until_job_is_over(bench.soon()).failure().code == Code::deadline_passed);
  bench.state.job_is_over();
  CHECK(bench.state.wait_until_job_is_over(bench.late()).ok());
}

TEST_CASE("a word about another generation than the newest is passed over; an end that comes before the first place counts with it",
          "[session]") {
  const Generation first{3, {{7, 7}}}, next{4, {{7, 7}}}, foreign{3, {{8, 8}}};
  KnownGeneration told;
  CHECK_FALSE(told.has_place());
  CHECK_FALSE(told.is_newest(Generation{}));  // of which no end can be told
  SECTION("the end of its own generation") {
    told.note_early_end({.generation = first, .why = over});
    CHECK(told.enter_first(first)->what == over.what);
  }
  SECTION("the end of another") {
    told.note_early_end({.generation = first, .why = over});
    told.note_early_end({.generation = foreign, .why = over});
    CHECK_FALSE(told.enter_first(first));
  }
  SECTION("one after the other") {
    CHECK_FALSE(told.enter_first(first));
    CHECK(told.has_place());
    CHECK(told.is_newest(first));
    CHECK_FALSE(told.is_newest(foreign));
    CHECK_FALSE(told.is_later(foreign));  // by the number
    CHECK_FALSE(told.is_later(first));
    CHECK(told.is_later(next));
    told.enter_next(next);
    CHECK(told.newest() == next);
    CHECK_FALSE(told.is_newest(first));
    CHECK_FALSE(told.is_later(first));
  }
}

}  // namespace elrun::test
