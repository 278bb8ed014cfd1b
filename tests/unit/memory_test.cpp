// The host's Memory.

#include <fstream>
#include <optional>

#include <elrun/failure.hpp>

#include "tests/support/memory_cases.hpp"

using namespace elrun;
using namespace elrun::test;

TEST_CASE("the host's memory does what a memory does", "[memory]") { check_memory(host_memory(), 100'000); }

TEST_CASE("the host's memory works in program order", "[memory]") { CHECK(host_memory().device() == Device{}); }

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need mappings of their own
TEST_CASE("a process that may have no more mappings is told of the limit, and can still give pages back", "[memory]") {
  std::size_t most = 0;
  std::ifstream{"/proc/sys/vm/max_map_count"} >> most;
  if (most == 0 || most > 300'000) {
    WARN("SKIPPED: vm.max_map_count is " << most << ", too many to use up here");
    return;
  }
  Memory& memory = host_memory();
  const std::size_t page = memory.page_bytes(), pages = 2 * most + 8;
  auto* const at = static_cast<std::byte*>(memory.reserve(pages * page, Memory::Paging::comes_and_goes));
  memory.hold({at, 3 * page});
  std::optional<Failure> refused;
  for (std::size_t i = 4; i < pages && !refused; i += 2) try {
      memory.hold({at + i * page, page});
    } catch (const Error& e) {
      refused = e.failure();
    }
  memory.give_back({at + page, page});  // it would be a mapping of its own between the two others
  memory.unreserve(at, pages * page);
  REQUIRE(refused);
  CHECK(refused->code == Code::exhausted);
  CHECK(refused->what.find("vm.max_map_count") != std::string::npos);
}
#endif
