#include "kernels/cuda/check.hpp"

#include <fmt/format.h>

#include <elrun/failure.hpp>

namespace elrun::inline v0 {

void cuda_failed(cudaError_t error, const char* expression, const char* file, int line) {
  int device = -1;
  (void)cudaGetDevice(&device);  // may fail for the same reason; -1 says so
  throw Error{{.code = Code::internal,
               .remedy = Remedy::exit_process,
               .what = fmt::format("{} gave {} ({}) on device {} at {}:{}", expression, cudaGetErrorName(error), cudaGetErrorString(error),
                                   device, file, line)}};
}

}  // namespace elrun::inline v0
