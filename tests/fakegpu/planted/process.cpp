// What ends a process, or needs one of its own: host_touch, report, facts, hold, open. Started by processes_test.cpp.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/fold.hpp"
#include "tests/fakegpu/planted/on_device.hpp"

using namespace elrun;
using namespace elrun::planted;

namespace {

constexpr std::uint64_t count = 1000;

template <class Handle>
std::string text_of(const Handle& handle) {
  std::string text;
  char two[3];
  for (const char byte : handle.reserved) {
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(byte));
    text += two;
  }
  return text;
}

template <class Handle>
Handle handle_of(const char* text) {
  Handle handle{};
  for (std::size_t i = 0; i < sizeof handle.reserved && std::strlen(text) >= 2 * i + 2; ++i)
    handle.reserved[i] = static_cast<char>(std::stoi(std::string{text + 2 * i, 2}, nullptr, 16));
  return handle;
}

/// The host reads memory of a device, and does not come back.
int host_touch() {
  const DeviceSpan<float> array = new_array(count);
  std::printf("%f\n", static_cast<double>(array.data[3]));
  return 0;
}

/// A race, and an exit code of its own.
int report() {
  const DeviceSpan<float> left = new_array(count), right = new_array(count);
  add_into_async(left, DeviceSpan<const float>{right}, view(new_stream()));
  add_into_async(left, DeviceSpan<const float>{right}, view(new_stream()));
  must(cudaDeviceSynchronize());
  return 0;
}

/// What a program asks first, and what it is told.
int facts() {
  int devices = -1, driver = -1;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  must(cudaDriverGetVersion(&driver));
  void* p = nullptr;
  const cudaError_t malloc_error = cudaMalloc(&p, 4);
  std::printf("count %d, devices %d, driver %d, malloc %d, last %d %d\n", error, devices, driver, malloc_error, cudaGetLastError(),
              cudaGetLastError());
  return 0;
}

/// Offers memory and an event to other processes: fills the memory, records the event when told to, and ends when its input does.
int hold() {
  const DeviceSpan<float> array = new_array(count, 1.0f), more = new_array(count, 41.0f);
  const cudaStream_t stream = new_stream();
  const cudaEvent_t event = new_event(cudaEventDisableTiming | cudaEventInterprocess);
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t moment;
  must(cudaIpcGetMemHandle(&memory, array.data));
  must(cudaIpcGetEventHandle(&moment, event));
  add_into_async(array, DeviceSpan<const float>{more}, view(stream));
  must(cudaEventRecord(event, stream));
  std::printf("handles %s %s\n", text_of(memory).c_str(), text_of(moment).c_str());
  std::fflush(stdout);
  pause();
  return 0;
}

/// Reads what another process holds, behind its event, and changes it.
int open(char** handles) {
  void* p = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&p, handle_of<cudaIpcMemHandle_t>(handles[0]), cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) return std::printf("not opened: %s\n", cudaGetErrorName(error)), 0;
  cudaEvent_t event = nullptr;
  must(cudaIpcOpenEventHandle(&event, handle_of<cudaIpcEventHandle_t>(handles[1])));
  const DeviceSpan<float> theirs{static_cast<float*>(p), count}, mine = new_array(count, 1.0f);
  const cudaStream_t stream = new_stream();
  must(cudaStreamWaitEvent(stream, event, 0));
  add_into_async(theirs, DeviceSpan<const float>{mine}, view(stream));
  float first = 0;
  must(cudaMemcpyAsync(&first, theirs.data, sizeof first, cudaMemcpyDeviceToHost, stream));
  must(cudaStreamSynchronize(stream));
  must(cudaIpcCloseMemHandle(p));
  std::printf("read %.0f, imported %zu\n", static_cast<double>(first), fakegpu::holdings().imported);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "host_touch") return host_touch();
  if (what == "report") return report();
  if (what == "facts") return facts();
  if (what == "hold") return hold();
  if (what == "open" && argc == 4) return open(argv + 2);
  std::fprintf(stderr, "usage: %s host_touch|report|facts|hold|open MEMORY EVENT\n", argv[0]);
  return 64;
}
