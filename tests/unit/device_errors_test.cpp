// What each error of the CUDA runtime means: code, remedy, a sentence that names device, call and what to do.

#include <string>
#include <string_view>

#include <catch2/catch.hpp>

#include "kernels/cuda/errors.hpp"

using namespace elrun;

namespace {

CudaFailure failed(int error) {
  return {.error = error,
          .name = "cudaErrorOfThisTest",
          .text = "what the runtime says",
          .call = "cudaMalloc(&memory, bytes)",
          .place = "a.cpp:7",
          .device = 3,
          .driver_version = 13000,
          .needed_version = 13000};
}
bool says(const Failure& failure, std::string_view words) { return failure.what.find(words) != std::string::npos; }

}  // namespace

TEST_CASE("an error of CUDA names call, error, device and place", "[device]") {
  for (const int error : {1, 2, 209, 700}) {
    const Failure f = failure_of(failed(error));
    for (const char* word : {"cudaMalloc(&memory, bytes)", "cudaErrorOfThisTest", "what the runtime says", "on device 3", "a.cpp:7"}) {
      INFO(f.what);
      CHECK(says(f, word));
    }
  }
  CudaFailure unknown = failed(2);
  unknown.device = -1, unknown.place.clear();
  CHECK_FALSE(says(failure_of(unknown), "device -1"));
  CHECK_FALSE(says(failure_of(unknown), " at "));
}

TEST_CASE("an MPS server that is away or gives a process up is told from a bug", "[device]") {
  for (const int error : {805, 806, 807, 810}) {
    const Failure f = failure_of(failed(error));
    INFO(f.what);
    CHECK((f.code == Code::io && f.remedy == Remedy::exit_process && says(f, "MPS server")));
    CHECK(loses_device(error) == (error == 810));
  }
}

TEST_CASE("out of memory on a device is exhausted, and keeps the device", "[device]") {
  const Failure f = failure_of(failed(2));
  CHECK(f.code == Code::exhausted);
  CHECK(f.remedy == Remedy::exit_process);
  CHECK(says(f, "its memory is used up"));
  CHECK_FALSE(loses_device(2));
  CudaFailure pinned = failed(2);
  pinned.call = "cudaHostAlloc(&memory, bytes, cudaHostAllocPortable)";
  CHECK(says(failure_of(pinned), "page-locked memory"));
  CHECK_FALSE(says(failure_of(pinned), "nvidia-smi"));
}

TEST_CASE("a device error that only a person can repair has the remedy fix_config and a message with its cause", "[device]") {
  const std::pair<int, std::string_view> rows[] = {{34, "stub"},
                                                   {100, "shows no device"},
                                                   {101, "CUDA_VISIBLE_DEVICES"},
                                                   {98, "CMAKE_CUDA_ARCHITECTURES"},
                                                   {200, "no code"},
                                                   {209, "CMAKE_CUDA_ARCHITECTURES"},
                                                   {222, "no code"},
                                                   {304, "/dev/nvidia"},
                                                   {800, "not permit"},
                                                   {802, "nvidia-fabricmanager"},
                                                   {803, "different versions"},
                                                   {804, "cuda-compat"},
                                                   {36, "driver is too old"},
                                                   {808, "fewer workers on this device"},
                                                   {809, "CUDA_DEVICE_MAX_CONNECTIONS"}};
  for (const auto& [error, words] : rows) {
    const Failure f = failure_of(failed(error));
    INFO(error << ": " << f.what);
    CHECK(f.remedy == Remedy::fix_config);
    CHECK(says(f, words));
    CHECK_FALSE(loses_device(error));
  }
}

TEST_CASE("a driver that is not there is told from one that is too old, though CUDA has one error for both", "[device]") {
  CudaFailure f = failed(35);
  f.driver_version = 0;
  CHECK(says(failure_of(f), "there is no NVIDIA driver here"));
  CHECK_FALSE(says(failure_of(f), "newer driver"));
  f.driver_version = 12040;
  CHECK(says(failure_of(f), "CUDA 12.4 at most, and this program needs CUDA 13.0"));
  CHECK_FALSE(says(failure_of(f), "no NVIDIA driver"));
  f.driver_version = -1;
  CHECK(says(failure_of(f), "too old or not there"));
  CHECK(failure_of(f).remedy == Remedy::fix_config);
}

TEST_CASE("after an error that loses the device the process ends", "[device]") {
  for (const int error : {53, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999}) {
    const Failure f = failure_of(failed(error));
    INFO(error << ": " << f.what);
    CHECK(loses_device(error));
    CHECK(f.remedy == Remedy::exit_process);
    CHECK(says(f, "lost the device"));
  }
  for (const int hardware : {214, 220, 714}) CHECK(failure_of(failed(hardware)).code == Code::io);
}

TEST_CASE("an error that no row has is a bug: it ends the process and keeps the device", "[device]") {
  for (const int error : {1, 400, 701, 12345}) {
    CHECK(failure_of(failed(error)).code == Code::internal);
    CHECK(failure_of(failed(error)).remedy == Remedy::exit_process);
    CHECK_FALSE(loses_device(error));
  }
}
