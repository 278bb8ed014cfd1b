// What the fake runtime promises as the real one does: when work runs, what errors do, which call is refused. Its faults, each at its call.

#include <atomic>
#include <chrono>
#include <thread>

#include "kernels/fold.hpp"
#include "tests/fakegpu/planted/on_device.hpp"
#include "tests/fakegpu/runtime/external.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::planted;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t count = 1000;

struct Arrays {
  DeviceSpan<float> left = new_array(count), right = new_array(count, 2.0f);
  void add(cudaStream_t stream) const { add_into_async(left, DeviceSpan<const float>{right}, view(stream)); }
};

/// Whether `done` becomes true within a while in which this thread does nothing.
bool soon(const std::function<bool()>& done) {
  for (const auto until = std::chrono::steady_clock::now() + 20s; std::chrono::steady_clock::now() < until;) {
    if (done()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

void reset() {
  fakegpu::set_faults("");
  (void)cudaDeviceReset();
  (void)cudaGetLastError();
  CHECK(reports() == "");
}

}  // namespace

TEST_CASE("work goes on while the host sleeps", "[devices]") {
  const Arrays a;
  const cudaStream_t stream = new_stream();
  std::atomic<int> ran{0};
  for (int i = 0; i < 20; ++i) {
    a.add(stream);
    must(cudaLaunchHostFunc(
        stream, [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); }, &ran));
  }
  CHECK(soon([&] { return ran == 20; }));
  must(cudaDeviceSynchronize());
  reset();
}

TEST_CASE("a function of the host runs in its place, and must not call the runtime", "[devices]") {
  const Arrays a;
  const cudaStream_t stream = new_stream();
  cudaError_t inside = cudaSuccess;
  a.add(stream);
  must(cudaLaunchHostFunc(
      stream, [](void* error) { *static_cast<cudaError_t*>(error) = cudaDeviceSynchronize(); }, &inside));
  must(cudaStreamSynchronize(stream));
  CHECK(inside == cudaErrorNotPermitted);
  reset();
}

TEST_CASE("each thread of the host has a current device, 0 at first", "[devices]") {
  must(cudaSetDevice(1));
  int here = -1, there = -1;
  must(cudaGetDevice(&here));
  std::thread{[&] { must(cudaGetDevice(&there)); }}.join();
  CHECK(here == 1);
  CHECK(there == 0);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaSuccess);
  must(cudaSetDevice(0));
  reset();
}

TEST_CASE("an event says when it happened, unless it was made without timing", "[devices]") {
  const Arrays a;
  const cudaStream_t stream = new_stream();
  const cudaEvent_t begin = new_event(cudaEventDefault), end = new_event(cudaEventDefault), silent = new_event();
  must(cudaEventRecord(begin, stream));
  a.add(stream);
  must(cudaEventRecord(end, stream));
  must(cudaEventRecord(silent, stream));
  must(cudaStreamSynchronize(stream));
  float ms = -1;
  must(cudaEventElapsedTime(&ms, begin, end));
  CHECK(ms >= 0);
  CHECK(cudaEventElapsedTime(&ms, begin, silent) == cudaErrorInvalidResourceHandle);
  reset();
}

TEST_CASE("an operation of another library ends when it is ready, and other streams go on before", "[devices]") {
  const Arrays a;
  const cudaStream_t waiting = new_stream(), other = new_stream();
  a.add(waiting);  // loads the kernel
  std::atomic<bool> may_end{false};
  std::atomic<int> started{0}, ran{0};
  fakegpu::TicketPtr ticket;
  must(fakegpu::enqueue(waiting,
                        {.name = "a receive",
                         .reads = {},
                         .writes = {{a.left.data, count * sizeof(float)}},
                         .start = [&] { ++started; },
                         .ready = [&] { return may_end.load(); },
                         .run = [&] { ++ran, std::fill_n(a.left.data, count, 7.0f); }},
                        &ticket));
  const DeviceSpan<float> elsewhere = new_array(count);
  add_into_async(elsewhere, DeviceSpan<const float>{a.right}, view(other));
  must(cudaStreamSynchronize(other));
  CHECK(soon([&] { return started == 1; }));
  CHECK(cudaStreamQuery(waiting) == cudaErrorNotReady);
  CHECK_FALSE(fakegpu::is_over(ticket));
  may_end = true;
  fakegpu::wake();
  must(cudaStreamSynchronize(waiting));
  CHECK(fakegpu::is_over(ticket));
  CHECK((started == 1 && ran == 1));
  float first = 0;
  must(cudaMemcpy(&first, a.left.data, sizeof first, cudaMemcpyDeviceToHost));
  CHECK(first == 7.0f);
  reset();
}

TEST_CASE("an operation that is given up is never run, and its stream goes on", "[devices]") {
  const Arrays a;
  const cudaStream_t stream = new_stream();
  fakegpu::TicketPtr ticket;
  bool ran = false;
  must(fakegpu::enqueue(stream,
                        {.name = "a receive",
                         .reads = {},
                         .writes = {{a.left.data, count * sizeof(float)}},
                         .start = {},
                         .ready = [] { return false; },
                         .run = [&] { ran = true; }},
                        &ticket));
  std::thread helper{[&] { fakegpu::give_up(ticket); }};
  must(cudaStreamSynchronize(stream));
  helper.join();
  CHECK(fakegpu::is_over(ticket));
  CHECK_FALSE(ran);
  reset();
}

TEST_CASE("the n-th allocation finds no memory, and the next one does", "[devices]") {
  fakegpu::set_faults("malloc:2,pinned:1");
  void *first = nullptr, *second = nullptr, *third = nullptr, *pinned = nullptr;
  CHECK(cudaMalloc(&first, 100) == cudaSuccess);
  CHECK(cudaMalloc(&second, 100) == cudaErrorMemoryAllocation);
  CHECK(second == nullptr);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(&third, 100) == cudaSuccess);
  CHECK(cudaMallocHost(&pinned, 100) == cudaErrorMemoryAllocation);
  reset();
}

TEST_CASE("a device has as much memory as it says, and gets it back", "[devices]") {
  std::size_t free = 0, total = 0, now = 0;
  must(cudaMemGetInfo(&free, &total));
  CHECK((free == total && total == std::size_t{16} << 30));
  void* p = nullptr;
  CHECK(cudaMalloc(&p, total + 1) == cudaErrorMemoryAllocation);
  (void)cudaGetLastError();
  must(cudaMalloc(&p, 1 << 20));
  must(cudaMemGetInfo(&now, &total));
  CHECK(now == free - (1 << 20));
  must(cudaFree(p));
  must(cudaMemGetInfo(&now, &total));
  CHECK(now == free);
  reset();
}

TEST_CASE("a launch that is refused leaves the device well", "[devices]") {
  const Arrays a;
  const cudaStream_t stream = new_stream();
  fakegpu::set_faults("launch:1");
  CHECK_THROWS_WITH(a.add(stream), Catch::Contains("cudaErrorLaunchOutOfResources"));
  a.add(stream);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  reset();
}

TEST_CASE("a kernel that breaks its device is told by every later call, and by no call of another device", "[devices]") {
  const Arrays a;
  const cudaStream_t stream = new_stream();
  fakegpu::set_faults("sticky:1,sticky:3:214");  // 214: an uncorrectable error of memory
  a.add(stream);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
  void* p = nullptr;
  CHECK(cudaMalloc(&p, 4) == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  int device = -1;
  CHECK((cudaGetDevice(&device) == cudaErrorIllegalAddress && device == 0));
  must(cudaSetDevice(1));
  CHECK(cudaMalloc(&p, 4) == cudaSuccess);
  must(cudaDeviceReset());
  CHECK(cudaSetDevice(0) == cudaErrorIllegalAddress);  // it is the current one all the same
  must(cudaDeviceReset());
  const Arrays b;
  b.add(nullptr);
  must(cudaDeviceSynchronize());
  b.add(nullptr);
  CHECK(cudaDeviceSynchronize() == cudaErrorECCUncorrectable);
  reset();
}

TEST_CASE("a kernel that is slow holds up its stream, one that is stuck holds it for ever", "[devices]") {
  const Arrays a;
  const cudaStream_t slow = new_stream(), stuck = new_stream(), other = new_stream();
  fakegpu::set_faults("slow:1:30,stuck:2");
  const auto begin = std::chrono::steady_clock::now();
  a.add(slow);
  CHECK((cudaStreamQuery(slow) == cudaErrorNotReady || std::chrono::steady_clock::now() - begin >= 30ms));
  must(cudaStreamSynchronize(slow));
  CHECK(std::chrono::steady_clock::now() - begin >= 30ms);
  a.add(stuck);
  const Arrays b;
  b.add(other);
  must(cudaStreamSynchronize(other));
  fakegpu::make_progress(1000);
  CHECK(cudaStreamQuery(stuck) == cudaErrorNotReady);
  reset();
}

TEST_CASE("what is destroyed and freed is gone", "[devices]") {
  const fakegpu::Holdings before = fakegpu::holdings();
  for (int i = 0; i < 1000; ++i) {
    const Arrays a;
    const cudaStream_t stream = new_stream();
    const cudaEvent_t event = new_event();
    float* const pinned = new_pinned(16);
    a.add(stream);
    must(cudaEventRecord(event, stream));
    must(cudaEventDestroy(event));
    must(cudaStreamSynchronize(stream));
    must(cudaStreamDestroy(stream));
    must(cudaFree(a.left.data)), must(cudaFree(a.right.data)), must(cudaFreeHost(pinned));
  }
  CHECK(fakegpu::holdings() == before);
  reset();
}

TEST_CASE("threads that use streams of their own do not disturb each other", "[devices]") {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      must(cudaSetDevice(t % 2));
      const Arrays a;
      const cudaStream_t stream = new_stream();
      for (int i = 0; i < 50; ++i) add_into_async(a.left, DeviceSpan<const float>{a.right}, view(stream, t % 2));
      std::vector<float> to(count);
      must(cudaMemcpyAsync(to.data(), a.left.data, count * sizeof(float), cudaMemcpyDeviceToHost, stream));
      if (to.front() != 101.0f || to.back() != 101.0f) std::abort();
      must(cudaStreamDestroy(stream));
    });
  for (std::thread& thread : threads) thread.join();
  reset();
}
