#include "rendezvous/round/status_messages.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test::status_messages {

constexpr Instant start{100s};

TEST_CASE("status messages are sent a debounce after the first change", "[status_messages]") {
  StatusMessages status;
  CHECK_FALSE(status.next());
  CHECK_FALSE(status.due(start));
  CHECK(status.next() == start + status_debounce);
  CHECK_FALSE(status.due(start + status_debounce - 1ns));
  CHECK(status.due(start + status_debounce));
  CHECK_FALSE(status.next());
}

TEST_CASE("the more nodes were told, the later the next status message", "[status_messages]") {
  StatusMessages status;
  status.sent(0, start);
  CHECK_FALSE(status.next());
  status.sent(1000, start);
  CHECK(status.next() == start + status_debounce + 5s);
  CHECK_FALSE(status.due(start + 5s));
}

TEST_CASE("nodes that join put the next status message off, but not for ever", "[status_messages]") {
  StatusMessages status;
  status.put_off(start, start);
  CHECK_FALSE(status.next());  // none is due
  CHECK_FALSE(status.due(start));
  status.put_off(start, start + 50ms);
  CHECK(status.next() == start + 50ms + status_debounce);
  status.put_off(start, start + 1min);
  CHECK(status.next() == start + status_put_off_max);
}

TEST_CASE("a reason has another number only if it differs", "[status_messages]") {
  StatusMessages status;
  const auto first = status.number_of({"1 of 2 nodes", start, "the job is given up"});
  CHECK(status.number_of({"1 of 2 nodes", start, "the job is given up"}) == first);
  CHECK(status.number_of({"1 of 2 nodes", start + 1s, "the job is given up"}) == first + 1);
  CHECK(status.number_of({"2 of 2 nodes", {}, {}}) == first + 2);
}

}  // namespace elrun::test::status_messages
