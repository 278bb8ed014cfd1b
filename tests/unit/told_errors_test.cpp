#include "launcher/output/told_errors.hpp"

#include <cerrno>

#include "tests/support/catch.hpp"

namespace elrun::launcher {

TEST_CASE("an error that stays is told once, and what comes back after a minute is told again", "[told_errors]") {
  ToldErrors told;
  const Instant begin = Instant{} + 1h;
  CHECK(told.is_due(ENOSPC, begin));
  CHECK_FALSE(told.is_due(ENOSPC, begin));
  CHECK_FALSE(told.is_due(ENOSPC, begin + 59s));
  CHECK(told.is_due(EDQUOT, begin + 59s));
  CHECK_FALSE(told.is_due(EDQUOT, begin + 118s));
  CHECK(told.is_due(EDQUOT, begin + 120s));
  CHECK_FALSE(told.is_due(EDQUOT, begin + 121s));
}

}  // namespace elrun::launcher
