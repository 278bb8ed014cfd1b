// The checker between launches: the right use of streams, events and memory gives no report, each mistake is found, whatever the seed.

#include <atomic>
#include <chrono>
#include <functional>
#include <string_view>
#include <thread>

#include "kernels/cuda/preload.hpp"
#include "kernels/fold.hpp"
#include "kernels/update.hpp"
#include "tests/fakegpu/planted/answers.hpp"
#include "tests/fakegpu/planted/on_device.hpp"
#include "tests/fakegpu/runtime/external.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::planted;

namespace {

constexpr std::uint64_t seeds = 20;
constexpr std::uint64_t count = 3000;
constexpr std::size_t bytes = count * sizeof(float);

/// A table of one run, and the host has waited for it.
UpdateRun* one_run() {
  const UpdateRun run{.size = count, .decays = 1};
  void* p = nullptr;
  must(cudaMalloc(&p, sizeof run));
  must(cudaMemcpy(p, &run, sizeof run, cudaMemcpyHostToDevice));
  return static_cast<UpdateRun*>(p);
}

/// Two streams and arrays as a step has them: gradients come on one stream, the update reads them on the other.
struct Step {
  cudaStream_t compute = new_stream(), comm = new_stream();
  cudaEvent_t event = new_event();
  DeviceSpan<float> parameter = new_array(count), exp_avg = new_array(count, 0.5f), exp_avg_sq = new_array(count, 0.25f);
  DeviceSpan<float> gradient = new_array(count), received = new_array(count, 2.0f);
  UpdateRun* run = one_run();

  Step() {
    update(compute);  // loads the kernel
    must(cudaStreamSynchronize(compute));
  }
  void add(cudaStream_t stream) const { add_into_async(gradient, DeviceSpan<const float>{received}, view(stream)); }
  void update(cudaStream_t stream) const {
    const AdamWStep values{
        .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f, .bias1 = 0.1f, .bias2 = 0.05f};
    update_async({parameter.data, {exp_avg.data, exp_avg_sq.data}, gradient.data}, {run, 1, tile_count(count, update_tile)}, values,
                 view(stream));
  }
  void record(cudaStream_t stream) const { must(cudaEventRecord(event, stream)); }
  void wait(cudaStream_t stream) const { must(cudaStreamWaitEvent(stream, event, 0)); }
};

struct Mistake {
  std::string_view name;
  std::string_view found;  ///< Empty: it is none.
  std::function<void(Step&)> make;
};

void clear(DeviceSpan<float> array, cudaStream_t stream) { must(cudaMemsetAsync(array.data, 0, bytes, stream)); }
/// A launch past the product's own checks of the stream.
void number(Step& s, Stream stream) { where_async(Extent{1}, Extent{32}, reinterpret_cast<std::uint64_t*>(s.gradient.data), stream); }
/// The table of the optimizer phase comes anew.
void copy_table(Step& s) {
  void* pinned = nullptr;
  must(cudaMallocHost(&pinned, sizeof(UpdateRun)));
  *static_cast<UpdateRun*>(pinned) = {.size = count};
  must(cudaMemcpyAsync(s.run, pinned, sizeof(UpdateRun), cudaMemcpyHostToDevice, s.comm));
}
void ignore(cudaError_t) { (void)cudaGetLastError(); }

const std::vector<Mistake>& orders() {
  static const std::vector<Mistake> all{
      {"an event between two streams", "", [](Step& s) { s.add(s.comm), s.record(s.comm), s.wait(s.compute), s.update(s.compute); }},
      {"no event between two streams", "race: ", [](Step& s) { s.add(s.comm), s.update(s.compute); }},
      {"a wait without a record", "race: ", [](Step& s) { s.add(s.comm), s.wait(s.compute), s.update(s.compute); }},
      {"a record behind its wait", "race: ", [](Step& s) { s.add(s.comm), s.wait(s.compute), s.record(s.comm), s.update(s.compute); }},
      {"an event that is recorded again before it is waited for", "race: ",
       [](Step& s) {
         s.add(s.comm), s.record(s.comm);
         const cudaStream_t other = new_stream();
         s.record(other);  // the same event
         s.wait(s.compute), s.update(s.compute);
       }},
      {"an event that is recorded again after it was waited for", "",
       [](Step& s) {
         s.add(s.comm), s.record(s.comm), s.wait(s.compute), s.update(s.compute);
         const cudaStream_t other = new_stream();
         s.record(other);
       }},
      {"a buffer that is cleared before its reader ran", "race: ", [](Step& s) { s.update(s.compute), clear(s.gradient, s.comm); }},
      {"a buffer that is cleared behind its reader", "",
       [](Step& s) { s.update(s.compute), s.record(s.compute), s.wait(s.comm), clear(s.gradient, s.comm); }},
      {"a buffer that is cleared behind one of two readers", "race: ",
       [](Step& s) {
         const cudaStream_t other = new_stream();
         const DeviceSpan<float> sum = new_array(count);
         add_into_async(sum, DeviceSpan<const float>{s.gradient}, view(other));
         s.update(s.compute), s.record(s.compute), s.wait(s.comm), clear(s.gradient, s.comm);
       }},
      {"a wait of the host", "", [](Step& s) { s.add(s.comm), must(cudaStreamSynchronize(s.comm)), s.update(s.compute); }},
      {"a wait of the host for another stream",
       "race: ", [](Step& s) { s.add(s.comm), must(cudaStreamSynchronize(s.compute)), s.update(s.compute); }},
      {"a wait of the host for an event", "",
       [](Step& s) { s.add(s.comm), s.record(s.comm), must(cudaEventSynchronize(s.event)), s.update(s.compute); }},
      {"an event that the host asks until it has happened", "",
       [](Step& s) {
         s.add(s.comm), s.record(s.comm);
         while (cudaEventQuery(s.event) == cudaErrorNotReady) std::this_thread::yield();
         s.update(s.compute);
       }},
      {"a function of the host that the host waits for", "",
       [](Step& s) {
         std::atomic<bool> told{false};
         s.add(s.comm);
         must(cudaLaunchHostFunc(
             s.comm, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &told));
         const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
         while (!told && std::chrono::steady_clock::now() < until) std::this_thread::yield();
         s.update(s.compute);
       }},
      {"a wait of one thread, and a launch of another", "",
       [](Step& s) {
         s.add(s.comm);
         std::thread{[&] { must(cudaStreamSynchronize(s.comm)); }}.join();
         s.update(s.compute);
       }},
      {"no event, on a stream that has the place of one that was destroyed", "race: ",
       [](Step& s) {
         const cudaStream_t old = new_stream();
         for (int i = 0; i < 5; ++i) s.add(old);
         s.record(old), s.wait(s.compute), clear(s.gradient, s.compute), s.record(s.compute);
         must(cudaStreamDestroy(old));
         fakegpu::make_progress(100);  // all of it has run, and the host does not know
         clear(s.exp_avg, new_stream());
         fakegpu::make_progress(100);
         s.update(s.compute);
       }},
      {"a table of runs that another stream has copied, behind an event", "",
       [](Step& s) { copy_table(s), s.record(s.comm), s.wait(s.compute), s.update(s.compute); }},
      {"a table of runs that another stream still copies", "race: ", [](Step& s) { copy_table(s), s.update(s.compute); }},
      {"two copies into one buffer from two streams", "race: ",
       [](Step& s) {
         must(cudaMemcpyAsync(s.gradient.data, s.received.data, bytes, cudaMemcpyDeviceToDevice, s.comm));
         must(cudaMemcpyAsync(s.gradient.data, s.parameter.data, bytes, cudaMemcpyDeviceToDevice, s.compute));
       }},
      {"the legacy stream beside a stream that does not wait for it", "race: ",
       [](Step& s) {
         s.add(s.comm);
         std::vector<float> to(count);
         must(cudaMemcpy(to.data(), s.gradient.data, bytes, cudaMemcpyDeviceToHost));
       }},
      {"the legacy stream behind a stream that it waits for", "",
       [](Step& s) {
         s.add(new_stream(cudaStreamDefault));
         std::vector<float> to(count);
         must(cudaMemcpy(to.data(), s.gradient.data, bytes, cudaMemcpyDeviceToHost));
       }},
      {"a stream that waits for the legacy stream", "", [](Step& s) { s.add(nullptr), s.update(new_stream(cudaStreamDefault)); }},
      {"a stream that does not wait for the legacy stream", "race: ", [](Step& s) { s.add(nullptr), s.update(s.compute); }},
  };
  return all;
}

const std::vector<Mistake>& memory() {
  static const std::vector<Mistake> all{
      {"a buffer that is freed behind its reader", "",
       [](Step& s) { s.update(s.compute), must(cudaStreamSynchronize(s.compute)), must(cudaFree(s.gradient.data)); }},
      {"a buffer that is freed before its reader has ended", "freed allocation|has not waited for",
       [](Step& s) { s.update(s.compute), must(cudaFree(s.gradient.data)); }},
      {"a buffer that is used after it was freed", "freed allocation",
       [](Step& s) { must(cudaFree(s.gradient.data)), s.update(s.compute); }},
      {"a buffer that is freed twice", "frees again",
       [](Step& s) { ignore(cudaFree(s.gradient.data)), ignore(cudaFree(s.gradient.data)); }},
      {"a read of what was never written", "reads what nothing has written",
       [](Step& s) { s.received = empty_array(count), s.add(s.comm); }},
      {"a copy of what was never written", "reads what nothing has written",
       [](Step& s) {
         const DeviceSpan<float> from = empty_array(count);
         must(cudaMemcpyAsync(s.gradient.data, from.data, bytes, cudaMemcpyDeviceToDevice, s.comm));
       }},
      {"a launch beyond the end", "outside of allocation", [](Step& s) { s.received.data += 8, s.add(s.comm); }},
      {"a launch before the begin", "outside of allocation", [](Step& s) { s.received.data -= 8, s.add(s.comm); }},
      {"a copy beyond the end", "writes outside of any allocation",
       [](Step& s) { ignore(cudaMemcpyAsync(s.gradient.data + 1, s.received.data, bytes, cudaMemcpyDeviceToDevice, s.comm)); }},
      {"a copy of the wrong kind", "is not where the memory lies",
       [](Step& s) {
         std::vector<float> from(count);
         ignore(cudaMemcpyAsync(s.gradient.data, from.data(), bytes, cudaMemcpyDeviceToHost, s.comm));
       }},
      {"pinned memory that the host keeps as it is", "",
       [](Step& s) {
         float* const pinned = new_pinned(count);
         std::fill_n(pinned, count, 3.0f);
         must(cudaMemcpyAsync(s.gradient.data, pinned, bytes, cudaMemcpyHostToDevice, s.comm));
         must(cudaStreamSynchronize(s.comm));
         pinned[7] = 4.0f;
       }},
      {"a stream that was destroyed", "does not exist, or was destroyed",
       [](Step& s) {
         must(cudaStreamDestroy(s.comm));
         CHECK_THROWS(s.add(s.comm));
         (void)cudaGetLastError();
       }},
  };
  return all;
}

const std::vector<Mistake>& devices() {
  static const auto on_the_other = [](const std::function<void()>& what) {
    must(cudaSetDevice(1));
    what();
    must(cudaDeviceSynchronize());
    must(cudaSetDevice(0));
  };
  static const std::vector<Mistake> all{
      {"a launch while another device is current", "while device 1 is current",
       [](Step& s) {
         must(cudaSetDevice(1));
         CHECK_THROWS(number(s, view(s.comm)));
         must(cudaSetDevice(0));
         (void)cudaGetLastError();
       }},
      {"a launch on another thread, whose device nobody has set", "while device 0 is current",
       [](Step& s) {
         on_the_other([&] {
           const cudaStream_t stream = new_stream();
           std::thread{[&] { CHECK_THROWS(number(s, view(stream, 1))); }}.join();
         });
       }},
      {"memory of another device", "peer access to it is not enabled",
       [](Step& s) {
         must(cudaSetDevice(1));
         const DeviceSpan<float> here = new_array(count);
         add_into_async(here, DeviceSpan<const float>{s.received}, view(new_stream(), 1));
         ignore(cudaDeviceSynchronize());
         must(cudaDeviceReset());
         must(cudaSetDevice(0));
       }},
      {"memory of another device, with peer access", "",
       [](Step& s) {
         on_the_other([&] {
           must(cudaDeviceEnablePeerAccess(0, 0));
           const DeviceSpan<float> here = new_array(count);
           add_into_async(here, DeviceSpan<const float>{s.received}, view(new_stream(), 1));
           must(cudaDeviceSynchronize());
           must(cudaDeviceReset());
         });
       }},
      {"an event between two devices", "",
       [](Step& s) {
         s.add(s.comm), s.record(s.comm);
         on_the_other([&] {
           const cudaStream_t stream = new_stream();
           s.wait(stream);
           const DeviceSpan<float> here = empty_array(count);
           must(cudaMemcpyPeerAsync(here.data, 1, s.gradient.data, 0, bytes, stream));
         });
       }},
      {"a copy between two devices without an event", "race: ",
       [](Step& s) {
         s.add(s.comm);
         on_the_other([&] {
           const DeviceSpan<float> here = empty_array(count);
           must(cudaMemcpyPeerAsync(here.data, 1, s.gradient.data, 0, bytes, new_stream()));
         });
       }},
      {"an event of another device", "is recorded on",
       [](Step& s) { on_the_other([&] { ignore(cudaEventRecord(s.event, new_stream())); }); }},
  };
  return all;
}

/// An operation of another library that writes the gradients, once `may_end`.
fakegpu::TicketPtr receive(Step& s, const std::shared_ptr<bool>& may_end) {
  fakegpu::TicketPtr ticket;
  must(fakegpu::enqueue(s.comm,
                        {.name = "a receive",
                         .reads = {},
                         .writes = {{s.gradient.data, bytes}},
                         .start = {},
                         .ready = [=] { return *may_end; },
                         .run = [=] { std::fill_n(s.gradient.data, count, 5.0f); }},
                        &ticket));
  return ticket;
}

const std::vector<Mistake>& other_libraries() {
  static const auto begin = [](Step& s, bool ends) { return receive(s, std::make_shared<bool>(ends)); };
  static const std::vector<Mistake> all{
      {"what another library wrote, behind an event", "",
       [](Step& s) { begin(s, true), s.record(s.comm), s.wait(s.compute), s.update(s.compute); }},
      {"what another library wrote, without an event", "race: ", [](Step& s) { begin(s, true), s.update(s.compute); }},
      {"what an operation left behind that was given up", "left behind when it was given up",
       [](Step& s) {
         const auto ticket = begin(s, false);
         s.record(s.comm), s.wait(s.compute), s.update(s.compute);
         fakegpu::give_up(ticket);
       }},
      {"the same, after it was written again", "",
       [](Step& s) {
         const auto ticket = begin(s, false);
         s.record(s.comm), s.wait(s.compute), clear(s.gradient, s.compute), s.update(s.compute);
         fakegpu::give_up(ticket);
       }},
      {"an operation that was given up, and nobody read", "", [](Step& s) { fakegpu::give_up(begin(s, false)); }},
      {"a kernel that is loaded while another library may wait", "may wait for another process",
       [](Step& s) {
         const auto ticket = begin(s, false);
         const DeviceSpan<float> elsewhere = new_array(count);
         add_into_async(elsewhere, DeviceSpan<const float>{s.received}, view(s.compute));
         fakegpu::give_up(ticket);
       }},
      {"kernels that are loaded before another library may wait", "",
       [](Step& s) {
         (void)preload_kernels();
         const auto ticket = begin(s, false);
         const DeviceSpan<float> elsewhere = new_array(count);
         add_into_async(elsewhere, DeviceSpan<const float>{s.received}, view(s.compute));
         fakegpu::give_up(ticket);
       }},
      {"a range outside of its allocation", "is to write",
       [](Step& s) {
         s.gradient.data += 1;
         CHECK_THROWS(begin(s, true));
         (void)cudaGetLastError();
       }},
  };
  return all;
}

bool says_one_of(const std::string& text, std::string_view wanted) {
  for (std::size_t begin = 0; begin <= wanted.size();) {
    const std::size_t end = std::min(wanted.find('|', begin), wanted.size());
    if (text.find(wanted.substr(begin, end - begin)) != text.npos) return true;
    begin = end + 1;
  }
  return false;
}

void check(const std::vector<Mistake>& mistakes) {
  for (const Mistake& mistake : mistakes) {
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      fakegpu::set_seed(seed);
      Step step;
      mistake.make(step);
      (void)cudaDeviceSynchronize();
      const std::string text = reports();
      INFO(mistake.name << ", seed " << seed << ": " << text);
      if (mistake.found.empty()) CHECK(text == "");
      else CHECK(says_one_of(text, mistake.found));
      must(cudaDeviceReset());
    }
  }
}

}  // namespace

TEST_CASE("two uses of one buffer need a stream, an event or a wait of the host between them", "[devices]") { check(orders()); }
TEST_CASE("memory is used as long as it lives, where it lies, and after it was written", "[devices]") { check(memory()); }
TEST_CASE("a device is used by threads that have set it, with memory that it reaches", "[devices]") { check(devices()); }
TEST_CASE("what another library does on a stream is ordered like a launch", "[devices]") { check(other_libraries()); }

TEST_CASE("pinned memory must not change before its copy ran, and is not there before its copy ran", "[devices]") {
  Step s;
  float* const pinned = new_pinned(count);
  std::fill_n(pinned, count, 3.0f);
  fakegpu::set_faults("stuck:1");  // so that nothing behind it has run yet
  s.add(s.comm);
  must(cudaMemcpyAsync(pinned, s.gradient.data, bytes, cudaMemcpyDeviceToHost, s.comm));
  CHECK(pinned[0] != pinned[0]);  // NaN
  must(cudaDeviceReset());
  fakegpu::set_faults("");

  Step t;
  fakegpu::set_faults("slow:1:20");
  t.add(t.comm);
  std::fill_n(pinned, count, 3.0f);
  must(cudaMemcpyAsync(t.gradient.data, pinned, bytes, cudaMemcpyHostToDevice, t.comm));
  pinned[7] = 4.0f;
  must(cudaStreamSynchronize(t.comm));
  CHECK_THAT(reports(), Catch::Contains("pinned memory was changed by the host"));
  fakegpu::set_faults("");
  must(cudaDeviceReset());
}

TEST_CASE("a copy into pinned memory may stand behind a copy out of it", "[devices]") {
  Step s;
  float* const pinned = new_pinned(count);
  std::fill_n(pinned, count, 3.0f);
  fakegpu::set_faults("slow:1:20");  // so that neither has run when the second is enqueued
  s.add(s.comm);
  must(cudaMemcpyAsync(s.gradient.data, pinned, bytes, cudaMemcpyHostToDevice, s.comm));
  must(cudaMemcpyAsync(pinned, s.received.data, bytes, cudaMemcpyDeviceToHost, s.comm));
  must(cudaStreamSynchronize(s.comm));
  CHECK(reports().empty());
  CHECK(pinned[0] == 2.0f);
  fakegpu::set_faults("");
  must(cudaDeviceReset());
}
