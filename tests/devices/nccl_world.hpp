#pragma once
/// \file Ranks of one process, each on a thread and a fake device of its own, in a group that takes device memory.

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <elrun/process_group.hpp>

#include "lib/device/handles.hpp"
#include "tests/fakegpu/nccl/inspect.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/support/process_groups.hpp"

namespace elrun::test {

inline Device cuda(std::uint32_t index) { return {DeviceKind::cuda, static_cast<int>(index)}; }

/// What the fake NCCL offers to tests, in the library that the product has loaded.
template <class Function>
Function in_fake_nccl(const char* name) {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function>(library == nullptr ? nullptr : dlsym(library, name));
}

/// Elements in device memory.
template <class T>
class OnDevice {
 public:
  OnDevice(Stream stream, const std::vector<T>& values)
      : stream_{stream}, count_{values.size()}, memory_{stream.device(), values.size() * sizeof(T)} {
    if (cudaMemcpyAsync(memory_.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, native()) != cudaSuccess)
      std::abort();
    synchronize();
  }
  [[nodiscard]] DeviceSpan<T> span() const { return {reinterpret_cast<T*>(memory_.data()), count_}; }
  [[nodiscard]] DeviceSpan<const T> read() const { return span(); }
  [[nodiscard]] DeviceSpan<std::byte> bytes() const { return as_writable_bytes(span()); }
  /// In the order of the stream that it was made on.
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> values(count_);
    if (cudaMemcpyAsync(values.data(), memory_.data(), count_ * sizeof(T), cudaMemcpyDeviceToHost, native()) != cudaSuccess) std::abort();
    synchronize();
    return values;
  }

 private:
  [[nodiscard]] cudaStream_t native() const { return static_cast<cudaStream_t>(stream_.handle()); }
  void synchronize() const {
    if (cudaStreamSynchronize(native()) != cudaSuccess) std::abort();
  }
  Stream stream_;
  std::size_t count_;
  DeviceBuffer memory_;
};

/// One rank: its thread's current device is its own.
struct DeviceRank {
  std::uint32_t rank, world;
  ProcessGroup& group;
  OwnedStream stream;
  Complaints& complain;
  [[nodiscard]] DeviceCalls calls() const { return group.on(stream.view()); }
  void must(const Work& work, const std::string& what) const {
    complain.must(work.wait(deadline_in(60s)), what + " on rank " + std::to_string(rank));
  }
};

inline GroupOptions device_options(std::uint32_t rank) {
  GroupOptions options = patient;
  options.device = cuda(rank);
  return options;
}

/// Every rank of `local` joins with a device of its own, and runs its part on a thread of its own.
inline void run_devices(LocalWorld& local, Complaints& complaints, const std::function<void(DeviceRank&)>& body,
                        const std::function<GroupOptions(std::uint32_t)>& options = device_options) {
  local.run([&](std::uint32_t rank, Session& session) {
    if (cudaSetDevice(static_cast<int>(rank)) != cudaSuccess) return complaints(false, "no such device");
    auto group = ProcessGroup::join(session, options(rank));
    if (!group.ok()) return complaints(false, message(group.failure()));
    DeviceRank mine{rank, local.size(), *group, OwnedStream{cuda(rank)}, complaints};
    body(mine);
  });
}

inline std::string run_devices(std::uint32_t world, const std::function<void(DeviceRank&)>& body) {
  LocalWorld local{world};
  Complaints complaints;
  run_devices(local, complaints, body);
  return complaints.all();
}

/// What a process holds of the system and of the fakes.
struct HeldByProcess {
  std::size_t descriptors = 0, threads = 0, communicators = 0;
  fakegpu::Holdings devices;
  friend bool operator==(const HeldByProcess&, const HeldByProcess&) = default;
  [[nodiscard]] static HeldByProcess now() {
    const auto count = [](const char* folder) {
      const std::filesystem::directory_iterator entries{folder};
      return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
    };
    // A thread that was joined may still be listed: it ends.
    const auto lives = [](const std::filesystem::directory_entry& thread) {
      constexpr unsigned long ends = 0x4;  // in its flags
      std::ifstream file{thread.path() / "stat"};
      std::string text;
      std::getline(file, text);
      std::istringstream rest{text.substr(std::min(text.size(), text.rfind(')') + 1))};
      std::string state;
      long skipped = 0;
      unsigned long flags = ends;
      rest >> state;
      for (int i = 0; i < 5; ++i) rest >> skipped;
      rest >> flags;
      return (flags & ends) == 0;
    };
    const std::size_t descriptors = count("/proc/self/fd");
    const std::filesystem::directory_iterator tasks{"/proc/self/task"};
    const auto threads = static_cast<std::size_t>(std::count_if(begin(tasks), end(tasks), lives));
    const auto communicators = in_fake_nccl<std::uint64_t (*)()>("fakenccl_communicators");
    return {descriptors, threads, communicators == nullptr ? 0 : communicators(), fakegpu::holdings()};
  }
};

}  // namespace elrun::test
