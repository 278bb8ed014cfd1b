#include <string>

#include "samples/gpt/text.hpp"
#include "tests/support/catch.hpp"

TEST_CASE("generated text is safe for a terminal", "[gpt]") {
  const std::string raw = "a\x1b[31m\n\\\xff";
  CHECK(gpt::printable({reinterpret_cast<const unsigned char*>(raw.data()), raw.size()}) == "a\\x1b[31m\n\\x5c\\xff");
}
