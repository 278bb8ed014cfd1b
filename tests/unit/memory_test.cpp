// The host's Memory.

#include "tests/support/memory_cases.hpp"

using namespace elrun;
using namespace elrun::test;

TEST_CASE("the host's memory does what a memory does", "[memory]") { check_memory(host_memory(), 100'000); }

TEST_CASE("the host's memory works in program order", "[memory]") { CHECK(host_memory().device() == Device{}); }
