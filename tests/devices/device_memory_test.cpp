// A device's Memory, on fake devices: the host's cases, what it holds, and what faults become.

#include <atomic>
#include <memory>
#include <optional>

#include <elrun/failure.hpp>

#include "lib/device/current_device.hpp"
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

/// While it lives, the memory's stream does not get behind this.
class Held {
 public:
  explicit Held(const Memory& memory) {
    const CurrentDevice current{memory.device()};
    fakegpu::hold_stream(memory.stream().handle(), [released = released_] { return released->load(); });
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { *released_ = true; }

 private:
  std::shared_ptr<std::atomic<bool>> released_ = std::make_shared<std::atomic<bool>>(false);
};

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
  CHECK(refused->what.find("this device cannot allocate paged memory") != std::string::npos);
}

TEST_CASE("an optimizer phase is one launch, however many runs it has, and so is a reduction", "[devices]") {
  const auto memory = make_device_memory(second, test_clock, small);
  constexpr std::size_t count = 51, size = 100;
  const InMemory arrays{*memory, 4 * count * size * sizeof(float)}, run_table{*memory, count * sizeof(UpdateRun)};
  const auto array = [&](std::size_t i) { return reinterpret_cast<float*>(arrays.run().data()) + i * count * size; };
  std::vector<UpdateRun> runs;
  for (std::size_t i = 0; i < count; ++i) runs.push_back({i * size, i * size, i * size, size, i % 2});
  const std::uint64_t tiles = count_tiles(runs);
  memory->write(std::as_bytes(std::span{runs}), run_table.run());
  const UpdateTable table{reinterpret_cast<const UpdateRun*>(run_table.run().data()), count, tiles};
  const auto update = [&] { memory->update({array(0), {array(1), array(2)}, array(3)}, table, AdamWStep{.epsilon = 1}); };
  fakegpu::set_faults("launch:2");
  CHECK_FALSE(failure_of_call(update));
  CHECK(failure_of_call(update));

  std::vector<ReduceOperand> operands{{.base = array(0), .whole = true}, {.base = array(1)}, {.base = array(2), .additions = 1}};
  operands.push_back({.base = array(3), .additions = 2});
  std::vector<ReducePiece> pieces;
  for (std::size_t i = 0; i < 3; ++i) pieces.push_back({i * 1500, i * 1500, 1500});
  const std::uint64_t granules = count_tiles(pieces);
  const InMemory operand_table{*memory, operands.size() * sizeof(ReduceOperand)}, piece_table{*memory, pieces.size() * sizeof(ReducePiece)};
  const InMemory sums{*memory, granules * sizeof(float)};
  memory->write(std::as_bytes(std::span{operands}), operand_table.run());
  memory->write(std::as_bytes(std::span{pieces}), piece_table.run());
  const ReduceTable reduce_table{reinterpret_cast<const ReduceOperand*>(operand_table.run().data()),
                                 reinterpret_cast<const ReducePiece*>(piece_table.run().data()),
                                 4,
                                 3,
                                 granules,
                                 depth_of(operands)};
  const auto reduce = [&] { memory->reduce(reduce_table, array(0), reinterpret_cast<float*>(sums.run().data())); };
  fakegpu::set_faults("launch:2");
  CHECK_FALSE(failure_of_call(reduce));
  CHECK(failure_of_call(reduce));
  fakegpu::set_faults("");
}

TEST_CASE("memory that is freed beside work on the device is given back once that is done, and no free waits", "[devices]") {
  const auto memory = make_device_memory(second, test_clock, {.staging = 4_KiB, .timeout = 60s});
  const InMemory made{*memory, 8000};
  const std::span<float> floats{reinterpret_cast<float*>(made.run().data()), 2000};
  const std::size_t held = fakegpu::holdings().allocations;
  void* const first = memory->allocate(64);
  (void)made.read(0, 1);  // all that came before is done
  {
    const Held holds{*memory};
    memory->free(first);
    CHECK(fakegpu::holdings().allocations == held + 1);
  }
  (void)made.read(0, 1);
  void* const next = memory->allocate(64);  // finds the stream idle, and gives the first back
  CHECK(fakegpu::holdings().allocations == held + 1);
  memory->free(next);
  // None is left: waits for what was freed. Where this thread comes so late that the device had ended before, there is nothing to wait for.
  bool has_waited = false;
  for (int tries = 0; tries < 20 && !has_waited; ++tries) {
    void* const again = memory->allocate(64);
    (void)made.read(0, 1);
    fakegpu::set_faults("slow:1:300,malloc:1");
    memory->add_into(floats.first(1000), floats.last(1000));
    memory->free(again);
    has_waited = !failure_of_call([&] { memory->free(memory->allocate(64)); });
    fakegpu::set_faults("");
  }
  CHECK(has_waited);
}

TEST_CASE("memory is not given back while a memory beside it has work, for that would wait in CUDA", "[devices]") {
  const auto memory = make_device_memory(second, test_clock, small);
  auto beside = memory->beside();
  REQUIRE(beside);
  CHECK(beside->device() == second);
  const InMemory made{*memory, 64};
  void* const first = memory->allocate(64);
  (void)made.read(0, 1);  // the memory's own stream has nothing to do
  std::atomic<bool> released = false;
  {
    const CurrentDevice current{second};
    fakegpu::hold_stream(beside->stream().handle(), [&] { return released.load(); });
  }
  const std::size_t held = fakegpu::holdings().allocations;
  memory->free(first);
  CHECK(fakegpu::holdings().allocations == held);
  released = true;
  (void)beside->hash(made.run(), 0, 0);
  void* const next = memory->allocate(64);
  CHECK(fakegpu::holdings().allocations == held);
  beside.reset();
  memory->free(next);
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("an allocation that finds no memory left waits for the work of memories beside it, by its deadline, and not in CUDA",
          "[devices]") {
  const auto memory = make_device_memory(second, test_clock, {.staging = 4_KiB, .packing = 3_KiB, .timeout = 100ms});
  auto beside = memory->beside();
  void* const first = memory->allocate(64);
  (void)memory->hash({static_cast<std::byte*>(first), 64}, 0, 0);  // its own stream has nothing to do
  std::atomic<bool> released = false;
  {
    const CurrentDevice current{second};
    fakegpu::hold_stream(beside->stream().handle(), [&] { return released.load(); });
  }
  const std::size_t held = fakegpu::holdings().allocations;
  memory->free(first);
  fakegpu::set_faults("malloc:1");
  const auto failed = failure_of_call([&] { (void)memory->allocate(64); });
  REQUIRE(failed);
  CHECK(failed->code == Code::exhausted);
  CHECK(fakegpu::holdings().allocations == held);  // CUDA's own call would have waited for what is held
  released = true;
  fakegpu::set_faults("malloc:1");
  void* const next = memory->allocate(64);  // once that is over, `first` is given back
  fakegpu::set_faults("");
  CHECK(fakegpu::holdings().allocations == held);
  beside.reset();
  memory->free(next);
  CHECK(fakegpu::take_reports().empty());
}

TEST_CASE("a read beside the stream does not wait for what the stream was given", "[devices]") {
  const auto memory = make_device_memory(second, test_clock, {.staging = 4_KiB, .timeout = 500ms});
  const InMemory state{*memory, 20'000};
  memory->write(bytes_from(1, 20'000), state.run());
  (void)state.read(0, 1);
  const Held holds{*memory};
  ByteList seen(20'000);
  bool was_read = false;  // a busy machine may need longer for it than a wait may take
  for (int tries = 0; tries < 20 && !was_read; ++tries) was_read = !failure_of_call([&] { memory->read_beside(state.run(), seen); });
  CHECK(was_read);
  CHECK((seen == bytes_from(1, 20'000)));
  const auto late = failure_of_call([&] { (void)state.read(0, 1); });
  REQUIRE(late);
  CHECK(late->code == Code::deadline_passed);
}

TEST_CASE("a hash of a device that is busy ends by its deadline", "[devices]") {
  const auto memory = make_device_memory(second, test_clock, {.staging = 4_KiB, .timeout = 30ms});
  const InMemory made{*memory, 8000};
  const Held holds{*memory};
  const auto late = failure_of_call([&] { (void)memory->hash(made.run(), 0, 0); });
  REQUIRE(late);
  CHECK(late->code == Code::deadline_passed);
  CHECK(late->what.find("device 1 did not finish a hash") != std::string::npos);
}
