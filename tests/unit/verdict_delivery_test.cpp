#include "rendezvous/round/verdict_delivery.hpp"

#include "rendezvous/round/succession.hpp"
#include "rendezvous/round/wake_up.hpp"
#include "tests/support/a_table.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test::verdict_delivery {
namespace {

constexpr Instant given{100s};
constexpr Duration linger = 5s;
const NodeId a{"a"}, b{"b"};

VerdictDelivery delivery_of(std::int32_t exit_code) {
  VerdictDelivery delivery;
  delivery.give({.exit_code = exit_code, .report = {}, .deaths = {}}, given);
  return delivery;
}

}  // namespace

TEST_CASE("without a verdict the coordinator stays", "[verdict_delivery]") {
  CHECK_FALSE(VerdictDelivery{}.may_end({}, 2, linger, given + 1h));
}

TEST_CASE("the coordinator stays until every node has heard of a failure, or had long enough", "[verdict_delivery]") {
  VerdictDelivery delivery = delivery_of(1);
  Table table;
  table.wait("a", given);
  CHECK_FALSE(delivery.may_end(table.nodes, 2, linger, given + linger - 1ms));
  CHECK(delivery.may_end(table.nodes, 2, linger, given + linger));
  delivery.confirmed(a);
  table.nodes.erase(a);
  CHECK(delivery.may_end(table.nodes, 2, linger, given));
  CHECK_FALSE(delivery.lingers_until(table.nodes, 2));
}

TEST_CASE("after success it stays for nodes that come late, unless as many as there is room for have heard it", "[verdict_delivery]") {
  VerdictDelivery delivery = delivery_of(0);
  Table table;
  table.wait("a", given);
  CHECK(delivery.lingers_until(table.nodes, 2) == given + late_linger);
  CHECK_FALSE(delivery.may_end(table.nodes, 2, linger, given + linger));
  CHECK(delivery.may_end(table.nodes, 2, linger, given + late_linger));
  delivery.confirmed(a);
  table.nodes.erase(a);
  CHECK_FALSE(delivery.may_end(table.nodes, 2, linger, given + linger));
  SECTION("a node that is here counts as well") {
    table.wait("b", given);
    CHECK_FALSE(delivery.lingers_until(table.nodes, 2));
    CHECK(delivery.may_end(table.nodes, 2, linger, given + linger));
  }
  SECTION("all have heard it") {
    delivery.confirmed(b);
    CHECK(delivery.may_end(table.nodes, 2, linger, given));
  }
  SECTION("no node has said how many there may be") { CHECK_FALSE(delivery.lingers_until(table.nodes, 0)); }
}

TEST_CASE("why the coordinator stays is told once, when all that are here have heard the verdict", "[verdict_delivery]") {
  VerdictDelivery delivery = delivery_of(0);
  Table table;
  table.wait("a", given);
  CHECK_FALSE(delivery.linger_text(table.nodes, 3, given));
  delivery.confirmed(a);
  table.nodes.erase(a);
  CHECK(delivery.linger_text(table.nodes, 3, given + 1s) ==
        "the job is done; the coordinator stays for another 9 s: 2 nodes more may come (--nnodes), and would begin the job again if nobody "
        "told them");
  CHECK_FALSE(delivery.linger_text(table.nodes, 3, given + 2s));
}

TEST_CASE("a stream that ends confirms the verdict only of a node that would not say so", "[verdict_delivery]") {
  const VerdictDelivery delivery = delivery_of(0);
  Join join;
  CHECK(delivery.end_of_stream_confirms(join, false));
  join.confirms_verdict = true;
  CHECK_FALSE(delivery.end_of_stream_confirms(join, false));
  CHECK(delivery.end_of_stream_confirms(join, true));  // its process is this one
}

TEST_CASE("an elected coordinator whose own node leaves hands over, once", "[succession]") {
  Succession elected{true}, other{false};
  CHECK_FALSE(elected.is_due());
  for (Succession* succession : {&elected, &other}) succession->own_node_leaves();
  CHECK(elected.is_due());
  CHECK(elected.hand_over());
  CHECK(elected.is_due());
  CHECK_FALSE(elected.hand_over());
  SECTION("where nobody else can be elected, it goes on") {
    CHECK_FALSE(other.is_due());
    CHECK_FALSE(other.hand_over());
  }
}

TEST_CASE("the timer is set to the first of all deadlines, and again only when that changes", "[wake_up]") {
  WakeUp wake_up;
  const std::vector<RoundDeadline> rows{{"x", given + 7s, ""}, {"y", given + 3s, ""}};
  CHECK_FALSE(wake_up.next({}, false, 1s, given));
  CHECK(wake_up.next(rows, false, 1s, given) == given + 3s);
  CHECK_FALSE(wake_up.next(rows, false, 1s, given + 1s));
  wake_up.fired();
  CHECK(wake_up.next(rows, false, 1s, given + 1s) == given + 3s);
  SECTION("while there are streams, it fires with each heartbeat") {
    CHECK(wake_up.next(rows, true, 1s, given + 1s) == given + 2s);
    CHECK_FALSE(wake_up.next(rows, true, 1s, given + 1500ms));
    CHECK(wake_up.next(rows, true, 1s, given + 2s) == given + 3s);
  }
}

TEST_CASE("a process that was stopped is late by the time since its timer was due", "[wake_up]") {
  WakeUp wake_up;
  CHECK(wake_up.late(given) == 0s);
  CHECK(wake_up.next({{"x", given, ""}}, false, 1s, given - 1s) == given);
  CHECK(wake_up.late(given + 4s) == 4s);
  wake_up.caught_up(given + 4s);
  CHECK(wake_up.late(given + 5s) == 1s);
}

}  // namespace elrun::test::verdict_delivery
