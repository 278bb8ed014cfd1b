// The owners of the device layer where there is no device: the host's are there and do nothing, a device's are refused.

#include <type_traits>

#include <catch2/catch.hpp>

#include "lib/device/current_device.hpp"
#include "lib/device/facts.hpp"
#include "lib/device/handles.hpp"
#include "lib/device/wait.hpp"
#include "tests/support/manual_clock.hpp"

using namespace elrun;

namespace {

template <class T>
constexpr bool moves_alone =
    std::is_nothrow_move_constructible_v<T>&& std::is_nothrow_destructible_v<T> && !std::is_copy_constructible_v<T>;
static_assert(moves_alone<OwnedStream> && moves_alone<OwnedEvent> && moves_alone<DeviceBuffer> && moves_alone<PinnedBuffer>);
static_assert(!std::is_constructible_v<Stream, int> && !std::is_constructible_v<Event, int> && !std::is_constructible_v<Stream, void*>);

}  // namespace

TEST_CASE("the host's stream and event need no device, and its event is always done", "[device]") {
  const CurrentDevice current{Device{}};
  OwnedStream stream;
  OwnedEvent event;
  event.record(stream.view());
  wait_in(stream.view(), event.view());
  ManualClock clock;
  CHECK(wait_for(event.view(), {.what = "nothing", .over = [] { return true; }, .deadline = {}}, clock).ok());
  CHECK(OwnedStream{Device{}}.view().device() == Device{});
  CHECK(OwnedEvent{Device{}}.view().handle() == nullptr);
}

TEST_CASE("where no device is visible its owners are refused with a remedy", "[device]") {
  const DeviceFacts facts = device_facts();
  if (facts.count > 0) return;  // tests/gpu is for such machines
  const Device device{DeviceKind::cuda, 0};
  const auto refused = [](const auto& make) {
    try {
      make();
      return false;
    } catch (const Error& e) {
      return e.failure().remedy == Remedy::fix_config;
    }
  };
  CHECK(refused([&] { const CurrentDevice current{device}; }));
  CHECK(refused([&] { const OwnedStream made{device}; }));
  CHECK(refused([&] { const OwnedEvent made{device}; }));
  CHECK(refused([&] { const DeviceBuffer made{device, 1}; }));
  CHECK(refused([&] { const PinnedBuffer made{device, 1}; }));
}

TEST_CASE("the machine's own facts lead to a decision", "[device]") {
  const DeviceFacts facts = device_facts();
  const auto chosen = choose_device({}, facts);
  REQUIRE(chosen.ok());
  CHECK((chosen.value().kind == DeviceKind::cuda) == (facts.count > 0));
}
