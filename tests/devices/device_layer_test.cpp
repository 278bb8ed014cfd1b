// The device layer on fake devices: order between streams, waiting with a deadline, what is refused, what each fault becomes.

#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kernels/convert.hpp"
#include "kernels/fold.hpp"
#include "kernels/granule.hpp"
#include "kernels/update.hpp"
#include "lib/device/current_device.hpp"
#include "lib/device/facts.hpp"
#include "lib/device/handles.hpp"
#include "lib/device/runtime.hpp"
#include "lib/device/wait.hpp"
#include "tests/fakegpu/runtime/external.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/gpu/update_table.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;

namespace {

constexpr std::uint64_t count = 3000;
const Device first{DeviceKind::cuda, 0}, second{DeviceKind::cuda, 1};
const SteadyClock test_clock;

Deadline soon(Duration wait = 30s) { return Deadline::after(test_clock.now(), wait); }

std::optional<Failure> failure_of_call(const std::function<void()>& call) {
  try {
    call();
    return std::nullopt;
  } catch (const Error& e) {
    return e.failure();
  }
}

/// All that the stream was given is done: memory that it uses may go.
void finish(Stream stream) {
  OwnedEvent done{stream.device()};
  done.record(stream);
  REQUIRE(wait_for(done.view(), {.what = "the rest", .deadline = soon()}, test_clock).ok());
}

/// Floats on a device, with a way there and back through pinned memory.
struct Floats {
  Device device;
  DeviceBuffer there{device, count * sizeof(float)};
  PinnedBuffer here{device, count * sizeof(float)};
  [[nodiscard]] DeviceSpan<float> span() const { return {reinterpret_cast<float*>(there.data()), count}; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {there.data(), there.size()}; }
  void fill(float with, Stream stream) {
    const CurrentDevice current{device};
    const std::vector<float> values(count, with);
    std::memcpy(here.span().data(), values.data(), here.span().size());
    runtime::copy_async(here.span(), bytes(), stream);
  }
  void fetch(Stream stream) {
    const CurrentDevice current{device};
    runtime::copy_async(bytes(), here.span(), stream);
  }
  [[nodiscard]] float value(std::size_t i) const {
    float out;
    std::memcpy(&out, here.span().data() + i * sizeof(float), sizeof out);
    return out;
  }
};

/// `to` becomes 3, made on one stream, sent home on another. `waits`: the second waits for the first.
void add_and_fetch(Floats& to, Floats& from, bool waits) {
  OwnedStream compute{to.device}, copies{to.device};
  OwnedEvent made{to.device}, arrived{to.device};
  to.fill(1, compute.view());
  from.fill(2, compute.view());
  {
    const CurrentDevice current{to.device};
    add_into_async(to.span(), from.span(), compute.view());
  }
  made.record(compute.view());
  if (waits) wait_in(copies.view(), made.view());
  to.fetch(copies.view());
  arrived.record(copies.view());
  REQUIRE(wait_for(made.view(), {.what = "a sum", .deadline = soon()}, test_clock).ok());
  REQUIRE(wait_for(arrived.view(), {.what = "a copy", .deadline = soon()}, test_clock).ok());
}

}  // namespace

TEST_CASE("a stream that waits for an event sees what was done before it, on each device", "[devices]") {
  for (const Device device : {first, second})
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      fakegpu::set_seed(seed);
      Floats to{device}, from{device};
      add_and_fetch(to, from, true);
      CHECK(to.value(0) == 3.0f);
      CHECK(to.value(count - 1) == 3.0f);
    }
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("without the wait the fake devices report a race: the case above can fail", "[devices]") {
  fakegpu::set_seed(1);
  Floats to{first}, from{first};
  add_and_fetch(to, from, false);
  CHECK_FALSE(fakegpu::take_reports().empty());
}

TEST_CASE("work for a device refuses the host's stream, and a thread whose current device is another", "[devices]") {
  Floats to{second}, from{second};
  OwnedStream stream{second};
  to.fill(1, stream.view()), from.fill(2, stream.view());
  const auto host = failure_of_call([&] { add_into_async(to.span(), from.span(), Stream{}); });
  REQUIRE(host);
  CHECK(host->what.find("the host's stream") != std::string::npos);
  const auto other = failure_of_call([&] { add_into_async(to.span(), from.span(), stream.view()); });
  REQUIRE(other);
  CHECK(other->what.find("a stream of device 1 comes from a thread whose current device is 0") != std::string::npos);
  const CurrentDevice current{second};
  CHECK_FALSE(failure_of_call([&] { add_into_async(to.span(), from.span(), stream.view()); }));
  finish(stream.view());
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("the current device is put back at the scope's end", "[devices]") {
  {
    const CurrentDevice outer{second};
    CHECK(runtime::current_device() == 1);
    {
      const CurrentDevice inner{first};
      CHECK(runtime::current_device() == 0);
    }
    CHECK(runtime::current_device() == 1);
  }
  CHECK(runtime::current_device() == 0);
}

TEST_CASE("a wait for a device ends by its deadline and when the generation is over", "[devices]") {
  std::atomic<bool> released = false;
  Floats to{first}, from{first};
  OwnedStream stream{first};
  OwnedEvent done{first};
  to.fill(1, stream.view()), from.fill(2, stream.view());
  fakegpu::hold_stream(stream.view().handle(), [&] { return released.load(); });
  add_into_async(to.span(), from.span(), stream.view());
  done.record(stream.view());
  const auto late = wait_for(done.view(), {.what = "the norm of step 12", .deadline = soon(20ms)}, test_clock);
  REQUIRE_FALSE(late.ok());
  CHECK(late.failure().code == Code::deadline_passed);
  CHECK(late.failure().what.find("device 0 did not finish the norm of step 12 within") != std::string::npos);
  const auto over = wait_for(done.view(), {.what = "the norm", .over = [] { return true; }, .deadline = soon()}, test_clock);
  REQUIRE_FALSE(over.ok());
  CHECK(over.failure().code == Code::generation_over);
  CHECK(over.failure().remedy == Remedy::rejoin);
  released = true;
  CHECK(wait_for(done.view(), {.what = "the norm", .deadline = soon()}, test_clock).ok());
}

TEST_CASE("a device without memory is exhausted, and works on", "[devices]") {
  fakegpu::set_faults("malloc:1,pinned:1");
  const auto device = failure_of_call([] { const DeviceBuffer made{second, 64}; });
  REQUIRE(device);
  CHECK(device->code == Code::exhausted);
  CHECK(device->what.find("cudaMalloc") != std::string::npos);
  CHECK(device->what.find("on device 1") != std::string::npos);
  const auto pinned = failure_of_call([] { const PinnedBuffer made{first, 64}; });
  REQUIRE(pinned);
  CHECK(pinned->code == Code::exhausted);
  fakegpu::set_faults("");
  CHECK_FALSE(failure_of_call([] { const DeviceBuffer made{second, 64}; }));
}

namespace {

/// Every kernel of the job's, beside an operation of another library that waits for another process.
void launch_beside_a_waiting_operation(Device device) {
  const CurrentDevice current{device};
  OwnedStream compute{device}, collectives{device};
  DeviceBuffer memory{device, 16 * 1024};
  runtime::fill_async({memory.data(), memory.size()}, std::byte{0}, compute.view());
  const test::UpdateTableOnDevice table{{{.size = 512, .decays = 1}}};
  std::atomic<bool> may_end = false;
  REQUIRE(fakegpu::enqueue(static_cast<cudaStream_t>(collectives.view().handle()),
                           {.name = "a collective", .ready = [&] { return may_end.load(); }}, nullptr) == cudaSuccess);
  const auto part = [&]<class T>(T, std::size_t begin) { return DeviceSpan<T>{reinterpret_cast<T*>(memory.data() + begin), 512}; };
  add_into_async(part(0.0f, 0), part(0.0f, 4096), compute.view());
  add_into_async(part(0.0f, 0), part(bf16{}, 4096), compute.view());
  to_bf16_async(part(0.0f, 0), part(bf16{}, 4096), compute.view());
  to_float_async(part(bf16{}, 4096), part(0.0f, 8192), compute.view());
  const UpdateArrays arrays{part(0.0f, 0).data, {part(0.0f, 4096).data, part(0.0f, 8192).data}, part(0.0f, 12288).data};
  for (const OptimizerStep& step : {OptimizerStep{AdamWStep{.beta1 = 0.9f, .epsilon = 1.0f, .bias1 = 1, .bias2 = 1}},
                                    OptimizerStep{SgdStep{}}, OptimizerStep{LionStep{}}})
    update_async(arrays, table.view(), step, compute.view());
  sums_of_squares_async(part(0.0f, 0), {reinterpret_cast<float*>(memory.data() + 4096), 1}, compute.view());
  runtime::mix_sum_async({memory.data(), 1024}, 0, 0, {memory.data() + 8192, 8}, compute.view());
  finish(compute.view());
  may_end = true;
  finish(collectives.view());
}

}  // namespace

TEST_CASE("a kernel that was not loaded is reported beside a collective: the case below can fail", "[devices]") {
  launch_beside_a_waiting_operation(first);
  const std::vector<std::string> reports = fakegpu::take_reports();
  REQUIRE_FALSE(reports.empty());
  for (const std::string& report : reports) CHECK(report.find("is loaded while a collective") != std::string::npos);
}

TEST_CASE("once all kernels are loaded none is loaded beside a collective", "[devices]") {
  {
    const CurrentDevice current{second};
    CHECK(runtime::preload_kernels() >= 9);
  }
  launch_beside_a_waiting_operation(second);
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("making and destroying a thousand times leaks nothing", "[devices]") {
  const fakegpu::Holdings before = fakegpu::holdings();
  for (int i = 0; i < 1000; ++i) {
    const Device device = i % 2 == 0 ? first : second;
    OwnedStream stream{device};
    OwnedEvent event{device};
    DeviceBuffer memory{device, 256};
    PinnedBuffer pinned{device, 256};
    event.record(stream.view());
    OwnedStream moved{std::move(stream)};
    memory = DeviceBuffer{device, 512};
    finish(moved.view());
  }
  CHECK(fakegpu::holdings() == before);
}

TEST_CASE("no driver, an old driver, no device and a CUDA that does not start are facts that lead to the right decision", "[devices]") {
  CHECK(choose_device({.local_rank = 1}, device_facts()).value() == second);
  fakegpu::set_faults("no_driver");
  CHECK(choose_device({}, device_facts()).value() == Device{});
  const auto missing = choose_device({.device = "cuda"}, device_facts());
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.failure().what.find("there is no NVIDIA driver here") != std::string::npos);
  fakegpu::set_faults("old_driver");
  const auto old = choose_device({}, device_facts());
  REQUIRE_FALSE(old.ok());
  CHECK(old.failure().what.find("CUDA 12.2 at most") != std::string::npos);
  fakegpu::set_faults("no_device");
  CHECK(choose_device({}, device_facts()).value() == Device{});
  for (const auto& [fault, name] :
       {std::pair{"count:999", "cudaErrorUnknown (unknown error)"}, {"count:3", "cudaErrorInitializationError"}}) {
    fakegpu::set_faults(fault);
    const auto not_started = choose_device({}, device_facts());
    REQUIRE_FALSE(not_started.ok());
    CHECK(not_started.failure().remedy == Remedy::fix_config);
    CHECK(not_started.failure().what.find(name) != std::string::npos);
  }
  fakegpu::set_faults("");
}

// The last case: the device stays lost.
TEST_CASE("a device that is lost ends the process, wherever it is noticed", "[devices]") {
  OwnedStream stream{second};
  OwnedEvent done{second};
  Floats to{second}, from{second};
  to.fill(1, stream.view()), from.fill(2, stream.view());
  fakegpu::set_faults("sticky:1");
  {
    const CurrentDevice current{second};
    add_into_async(to.span(), from.span(), stream.view());
  }
  const auto lost = failure_of_call([&] {
    done.record(stream.view());
    wait_for(done.view(), {.what = "a sum", .deadline = soon()}, test_clock).value();
  });
  REQUIRE(lost);
  CHECK(lost->remedy == Remedy::exit_process);
  CHECK(lost->what.find("lost the device") != std::string::npos);
}
