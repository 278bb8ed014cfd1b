// A device's Memory, on fake devices: the host's cases, what it holds, and what faults become.

#include <optional>

#include <elrun/failure.hpp>

#include "lib/device/device_memory.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/support/memory_cases.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

const Device second{DeviceKind::cuda, 1};
const SteadyClock test_clock;
constexpr DeviceMemoryOptions small{.staging = 4_KiB, .packing = 3_KiB};  // so that runs take many turns

std::optional<Failure> failure_of_call(const std::function<void()>& call) {
  try {
    call();
    return std::nullopt;
  } catch (const Error& e) {
    return e.failure();
  }
}

}  // namespace

TEST_CASE("a device's memory does what a memory does", "[devices]") {
  {
    const auto memory = make_device_memory(second, test_clock, small);
    CHECK(memory->device() == second);
    check_memory(*memory, 30'000);
  }
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a device's memory holds nothing once it is gone", "[devices]") {
  const fakegpu::Holdings before = fakegpu::holdings();
  for (int i = 0; i < 200; ++i) {
    const auto memory = make_device_memory(second, test_clock, small);
    const InMemory made{*memory, 300};
    memory->fill_with_zeros(made.run());
  }
  CHECK(fakegpu::holdings() == before);
}

TEST_CASE("a device that has no memory left is exhausted, and its memory works on", "[devices]") {
  const auto memory = make_device_memory(second, test_clock, small);
  fakegpu::set_faults("malloc:1");
  const auto failed = failure_of_call([&] { memory->free(memory->allocate(64)); });
  REQUIRE(failed);
  CHECK(failed->code == Code::exhausted);
  CHECK(failed->what.find("on device 1") != std::string::npos);
  fakegpu::set_faults("");
  CHECK_FALSE(failure_of_call([&] { memory->free(memory->allocate(64)); }));
}

TEST_CASE("pages that come and go are refused on a device", "[devices]") {
  const auto memory = make_device_memory(second, test_clock, small);
  const auto refused = failure_of_call([&] { (void)memory->reserve(4096, Memory::Paging::comes_and_goes); });
  REQUIRE(refused);
  CHECK(refused->what.find("do not come and go on a device") != std::string::npos);
}

TEST_CASE("a hash of a device that is busy ends by its deadline", "[devices]") {
  const auto memory = make_device_memory(second, test_clock, {.staging = 4_KiB, .patience = 30ms});
  const InMemory made{*memory, 8000};
  fakegpu::set_faults("slow:1:500");
  const auto late = failure_of_call([&] { (void)memory->hash(made.run(), 0, 0); });
  REQUIRE(late);
  CHECK(late->code == Code::deadline_passed);
  CHECK(late->what.find("device 1 did not finish a hash") != std::string::npos);
  fakegpu::set_faults("");
}
