#pragma once
/// \file What an error of the CUDA runtime means: code, remedy and a sentence. A table, without CUDA's headers, so that it is tested on machines
/// without CUDA: an error is a number, and the numbers are part of CUDA's ABI (check.cpp compares them with its header).

#include <cstdint>
#include <string>

#include <elrun/failure.hpp>

namespace elrun::inline v0 {

/// What is known where a call failed.
struct CudaFailure {
  int error = 0;            ///< As cudaError_t.
  std::string name, text;   ///< As cudaGetErrorName and cudaGetErrorString have it.
  std::string call;         ///< "cudaMalloc(&memory, bytes)", as it stands in the source.
  std::string place{};      ///< "kernels/fold.cu:23"; empty where it says nothing.
  int device = -1;          ///< -1: not known.
  int driver_version = -1;  ///< The newest CUDA that the driver can do: 13000 for 13.0. 0: there is no driver. -1: not asked.
  int needed_version = -1;  ///< The CUDA that this program was built with.
};

/// Names device, call, error and what to do. Out of memory is `exhausted`; what a person must mend (driver, visible devices, a build for other
/// devices) is `fix_config`; everything after which the process has lost its device is `exit_process`.
[[nodiscard]] Failure failure_of(const CudaFailure& failed);

/// The process has lost its device: every later call ends with the same error. Another process may use the device.
[[nodiscard]] bool loses_device(int error);

/// "13.0" for 13000.
[[nodiscard]] std::string cuda_version(int version);

}  // namespace elrun::inline v0
