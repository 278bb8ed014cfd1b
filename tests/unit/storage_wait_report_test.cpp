// What a worker says while it waits for the storage, by the time; job_saves_test has it said.

#include "lib/job/save/storage_wait_report.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test {

TEST_CASE("a worker reports why it waits for the storage, until nothing moves for longer than an operation and its tries take",
          "[job_saves]") {
  const auto at = [](Duration time) { return Instant{} + time; };
  StorageWaitReport report{Rank{3}, 900s, at(0s)};
  CHECK(report.text({}, at(1s)) == "");  // it waits for the others
  CHECK(report.text({1, "list /ck/gens", 2s, 300s}, at(2s)) == "");
  CHECK(report.text({1, "list /ck/gens", 12s, 300s}, at(12s)) ==
        "rank 3: list /ck/gens has not returned for 12.0 s: is its server there, and the network to it?");
  CHECK(report.text({1, "list /ck/gens", 900s, 300s}, at(902s)));
  CHECK_FALSE(report.text({1, "list /ck/gens", 901s, 300s}, at(903s)));  // a hang: all of this has a deadline
  CHECK(report.text({2, "list /ck/gens", 1s, 300s}, at(904s)) == "");    // another operation was begun
  report.between_tries("try 1 failed", at(1000s));
  CHECK(report.text({2, "", {}, 300s}, at(1001s)) == "try 1 failed");
  CHECK(report.text({2, "", {}, 300s}, at(1900s)) == "try 1 failed");
  CHECK_FALSE(report.text({2, "", {}, 300s}, at(1901s)));
  report.moved(at(1902s));
  CHECK(report.text({2, "", {}, 300s}, at(1903s)) == "");
}

}  // namespace elrun::test
