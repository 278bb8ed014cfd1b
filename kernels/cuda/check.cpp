#include "kernels/cuda/check.hpp"

#include <fmt/format.h>

#include "kernels/cuda/errors.hpp"

namespace elrun::inline v0 {

// The table has numbers, for machines without CUDA.
static_assert(cudaErrorMemoryAllocation == 2 && cudaErrorInitializationError == 3 && cudaErrorCudartUnloading == 4);
static_assert(cudaErrorStubLibrary == 34 && cudaErrorInsufficientDriver == 35 && cudaErrorCallRequiresNewerDriver == 36);
static_assert(cudaErrorDevicesUnavailable == 46 && cudaErrorPriorLaunchFailure == 53 && cudaErrorInvalidDeviceFunction == 98);
static_assert(cudaErrorNoDevice == 100 && cudaErrorInvalidDevice == 101 && cudaErrorInvalidKernelImage == 200);
static_assert(cudaErrorNoKernelImageForDevice == 209 && cudaErrorECCUncorrectable == 214 && cudaErrorInvalidPtx == 218);
static_assert(cudaErrorNvlinkUncorrectable == 220 && cudaErrorJitCompilerNotFound == 221 && cudaErrorUnsupportedPtxVersion == 222);
static_assert(cudaErrorJitCompilationDisabled == 223 && cudaErrorOperatingSystem == 304 && cudaErrorIllegalAddress == 700);
static_assert(cudaErrorLaunchTimeout == 702 && cudaErrorContextIsDestroyed == 709 && cudaErrorAssert == 710);
static_assert(cudaErrorHardwareStackError == 714 && cudaErrorIllegalInstruction == 715 && cudaErrorMisalignedAddress == 716);
static_assert(cudaErrorInvalidAddressSpace == 717 && cudaErrorInvalidPc == 718 && cudaErrorLaunchFailure == 719);
static_assert(cudaErrorNotPermitted == 800 && cudaErrorSystemNotReady == 802 && cudaErrorSystemDriverMismatch == 803);
static_assert(cudaErrorCompatNotSupportedOnDevice == 804 && cudaErrorUnknown == 999);

Failure cuda_failure(cudaError_t error, const char* call, const char* file, int line) {
  CudaFailure failed{.error = error,
                     .name = cudaGetErrorName(error),
                     .text = cudaGetErrorString(error),
                     .call = call,
                     .place = fmt::format("{}:{}", file, line),
                     .needed_version = CUDART_VERSION};
  (void)cudaGetLastError();
  // Each may fail for the same reason; what it was to say stays unknown then.
  if (cudaGetDevice(&failed.device) != cudaSuccess) failed.device = -1;
  if (cudaDriverGetVersion(&failed.driver_version) != cudaSuccess) failed.driver_version = -1;
  (void)cudaGetLastError();
  return failure_of(failed);
}

void cuda_failed(cudaError_t error, const char* call, const char* file, int line) { throw Error{cuda_failure(error, call, file, line)}; }

cudaStream_t cuda_stream(Stream stream) {
  if (stream.device().kind != DeviceKind::cuda)
    throw Error{{.code = Code::internal,
                 .remedy = Remedy::exit_process,
                 .what = "work for a device was given the host's stream, whose null handle would be CUDA's default stream"}};
  int current = -1;
  ELRUN_CUDA_CHECK(cudaGetDevice(&current));
  if (current != stream.device().index)
    throw Error{{.code = Code::internal,
                 .remedy = Remedy::exit_process,
                 .what = fmt::format("work for a stream of device {} comes from a thread whose current device is {}", stream.device().index,
                                     current)}};
  return static_cast<cudaStream_t>(stream.handle());
}

}  // namespace elrun::inline v0
