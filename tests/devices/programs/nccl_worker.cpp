/// A worker that runs a kernel, reduces and gathers on its device until a call fails, or as often as its first argument says, and says how it ended. The second: a
/// call's deadline in milliseconds.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <elrun/process_group.hpp>

#include "kernels/convert.hpp"
#include "lib/device/handles.hpp"

using namespace elrun;

namespace {

constexpr std::size_t count = 3000;

int ended(const char* what, const Failure& why) {
  std::printf("%s: %s\n", what, message(why).c_str());
  return why.remedy == Remedy::exit_process && why.what.find("ncclCommAbort") != std::string::npos ? 70 : 1;
}

/// The buffers of a call that failed are read by nobody. Its stream has passed it, and ends with what the program itself has given it.
int failed(const char* what, const Failure& why, cudaStream_t stream) {
  const int code = ended(what, why);
  if (code != 70 && cudaStreamSynchronize(stream) != cudaSuccess) return 3;
  return code;
}

int train(ProcessGroup& group, Stream stream, int steps) {
  const std::uint32_t rank = group.membership().rank.value(), world = group.membership().world.value();
  const auto native = static_cast<cudaStream_t>(stream.handle());
  const DeviceBuffer memory{stream.device(), (1 + world) * count * 4};
  const DeviceSpan<std::uint32_t> data{reinterpret_cast<std::uint32_t*>(memory.data()), count};
  const DeviceSpan<std::uint32_t> all{data.data + count, world * count};
  std::vector<std::uint32_t> values(count), gathered(world * count);
  for (int step = 0; step < steps; ++step) {
    std::ranges::fill(values, rank + static_cast<std::uint32_t>(step));
    if (cudaMemcpyAsync(data.data, values.data(), count * 4, cudaMemcpyHostToDevice, native) != cudaSuccess) return 3;
    if (cudaStreamSynchronize(native) != cudaSuccess) return 3;
    to_float_async({reinterpret_cast<const bf16*>(data.data), count}, {reinterpret_cast<float*>(all.data), count}, stream);
    const Work gather = group.on(stream).all_gather(as_bytes(data), as_writable_bytes(all));
    const Work sum = group.on(stream).all_reduce(data);
    if (const auto over = gather.wait(deadline_in(60s)); !over.ok()) return failed("all_gather", over.failure(), native);
    if (const auto over = sum.wait(deadline_in(60s)); !over.ok()) return failed("all_reduce", over.failure(), native);
    if (cudaMemcpyAsync(values.data(), data.data, count * 4, cudaMemcpyDeviceToHost, native) != cudaSuccess) return 3;
    if (cudaMemcpyAsync(gathered.data(), all.data, world * count * 4, cudaMemcpyDeviceToHost, native) != cudaSuccess) return 3;
    if (cudaStreamSynchronize(native) != cudaSuccess) return 3;
    std::uint32_t expected = 0;
    for (std::uint32_t r = 0; r < world; ++r) {
      expected += r + static_cast<std::uint32_t>(step);
      if (gathered[r * count] != r + static_cast<std::uint32_t>(step)) return std::printf("a part that was gathered is wrong\n"), 4;
    }
    if (values.front() != expected || values.back() != expected) return std::printf("a sum is wrong\n"), 4;
    if (step == 0) std::printf("training\n");
  }
  if (const auto over = group.finish(); !over.ok()) return ended("finish", over.failure());
  std::printf("done\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const int steps = argc > 1 ? std::atoi(argv[1]) : 200;
  const auto limit = std::chrono::milliseconds{argc > 2 ? std::atoi(argv[2]) : 20'000};
  auto session = Session::open(WorkerKind::program, deadline_in(60s));
  if (!session.ok()) return ended("session", session.failure());
  const int local_rank = static_cast<int>((*session)->place().local_rank.value());
  const Device device{DeviceKind::cuda, local_rank};
  if (cudaSetDevice(local_rank) != cudaSuccess) return std::printf("no device\n"), 3;
  auto group = ProcessGroup::join(**session, {.connect = 20s, .collective = limit, .device = device});
  if (!group.ok()) return ended("join", group.failure());
  int code = 0;
  {
    const OwnedStream stream{device};
    code = train(*group, stream.view(), steps);
  }
  if (code == 70) std::_Exit(code);  // a kernel is stuck: nothing that waits for the device may run
  if (code != 0) return code;
  if (const auto told = (*session)->finished(deadline_in(20s)); !told.ok()) return ended("the job's end", told.failure());
  return 0;
}
