// A kernel that takes four floats one by one, as the compiler's narrowed accesses do. tests/gpu/registers.sh must fail on it.

__global__ void narrow_kernel(const float* in, float* out) {
  const float* const from = in + threadIdx.x * 4;
  out[threadIdx.x] = from[0] + from[1] + from[2] + from[3];
}
