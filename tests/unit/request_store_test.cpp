// Calls of a store as requests: what breaks a bound is not sent.

#include "lib/link/request_store.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/manual_clock.hpp"

namespace elrun::test {
namespace {

/// Counts what is sent.
class CountingStore final : public RequestStore {
 public:
  explicit CountingStore(const Clock& clock) : RequestStore{clock, Generation{1, {{7, 7}}}} {}
  int sent = 0;

 private:
  Result<StoreReply> ask(StoreRequest request, Deadline) override {
    ++sent;
    StoreReply reply;
    reply.values.resize(request.op == StoreOp::all_gather ? request.count : 1);
    return reply;
  }
  [[nodiscard]] std::uint32_t rank() const override { return 0; }
};

}  // namespace

TEST_CASE("values that are too large together are refused before they are sent", "[store]") {
  const ManualClock clock;
  CountingStore store{clock};
  const Deadline soon = Deadline::after(clock.now(), 1s);
  const Store::Value half(store_value_max.value() / 2), more(half.size() + 1);
  CHECK(store.compare_set("k", half, half, soon).ok());
  CHECK(store.all_gather("g", Rank{0}, WorldSize{2}, half, soon).ok());
  CHECK(store.sent == 2);
  const auto swapped = store.compare_set("k", half, more, soon);
  const auto gathered = store.all_gather("g", Rank{0}, WorldSize{2}, more, soon);
  CHECK(store.sent == 2);
  REQUIRE(!swapped.ok());
  REQUIRE(!gathered.ok());
  CHECK(swapped.failure().code == Code::invalid_argument);
  CHECK_THAT(gathered.failure().what, Catch::Matchers::Contains("8388608 are possible"));
}

}  // namespace elrun::test
