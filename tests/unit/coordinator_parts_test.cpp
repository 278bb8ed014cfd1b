#include "rendezvous/net/announcements.hpp"
#include "rendezvous/net/store_callers.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

const StreamNumber a{1}, b{2};
const Generation generation{7, {}};

RoundAction waiting(StreamNumber stream) { return SendTo{stream, Waiting{.why = "why"}}; }
RoundAction verdict(StreamNumber stream) { return SendTo{stream, Verdict{}}; }
// The streams of what may be sent now, 0 for the beginning of a generation.
std::vector<std::uint64_t> all(Announcements& announcements) {
  std::vector<std::uint64_t> streams;
  while (const auto action = announcements.next()) {
    const auto* send = std::get_if<SendTo>(&*action);
    streams.push_back(send == nullptr ? 0 : send->stream.value());
  }
  return streams;
}
using Streams = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("without a ledger nothing waits", "[announcements]") {
  Announcements announcements{false};
  announcements.add(BeginGeneration{generation, {}});
  announcements.add(verdict(a));
  CHECK(all(announcements) == Streams{0, 1});
  CHECK(announcements.empty());
  CHECK_FALSE(announcements.entry());
}

TEST_CASE("a generation is announced when the ledger has it, and what follows it waits as well", "[announcements]") {
  Announcements announcements{true};
  announcements.add(waiting(a));
  announcements.add(BeginGeneration{generation, {}});
  announcements.add(waiting(b));
  CHECK(all(announcements) == Streams{1});
  CHECK_FALSE(announcements.empty());
  const auto entry = announcements.entry();
  REQUIRE(entry);
  CHECK(entry->generation == generation);
  CHECK_FALSE(announcements.entry());  // asked for once
  CHECK(all(announcements).empty());
  announcements.add(waiting(a));
  CHECK(all(announcements).empty());
  announcements.cleared();
  CHECK_FALSE(announcements.entry());
  CHECK(all(announcements) == Streams{0, 2, 1});
  SECTION("the next generation is asked for again") {
    announcements.add(BeginGeneration{{8, {}}, {}});
    CHECK(all(announcements).empty());
    CHECK(announcements.entry()->generation->number == 8);
  }
}

TEST_CASE("the first verdict is written down before it is sent, the others follow it", "[announcements]") {
  Announcements announcements{true};
  announcements.add(verdict(a));
  announcements.add(verdict(b));
  CHECK(all(announcements).empty());
  const auto entry = announcements.entry();
  REQUIRE(entry);
  CHECK_FALSE(entry->generation);
  announcements.cleared();
  CHECK(all(announcements) == Streams{1, 2});
  announcements.add(verdict(a));
  CHECK(all(announcements) == Streams{1});
}

TEST_CASE("a caller of the store keeps its number until it is forgotten, and no number is used again", "[store_callers]") {
  StoreCallers callers;
  const StoreCaller first = callers.number_of({a, 5});
  CHECK(callers.number_of({a, 5}) == first);
  CHECK(callers.at(first) == StoreCallers::Caller{a, 5});
  const StoreCaller second = callers.number_of({a, 6}), other = callers.number_of({b, 5});
  CHECK(std::set{first, second, other}.size() == 3);
  SECTION("a worker has ended") {
    CHECK(callers.forget({a, 5}) == first);
    CHECK_FALSE(callers.forget({a, 5}));
    CHECK_FALSE(std::set{first, second, other}.contains(callers.number_of({a, 5})));
  }
  SECTION("a stream has ended") {
    CHECK(callers.forget(a) == std::vector{first, second});
    CHECK(callers.forget(a).empty());
    CHECK(callers.number_of({b, 5}) == other);
  }
}

}  // namespace elrun::test
