// A kernel that spills: an array with an index that the compiler does not know lies in local memory. tests/gpu/registers.sh must fail on it.

#include <cstdint>

__global__ void spilling_kernel(const float* in, float* out, const unsigned* order) {
  float values[64];
  for (unsigned i = 0; i < 64; ++i) values[order[i] % 64] = in[threadIdx.x * 64 + i];
  float sum = 0;
  for (unsigned i = 0; i < 64; ++i) sum += values[order[i + 64] % 64] * static_cast<float>(i);
  out[threadIdx.x] = sum;
}
