// A kernel that calls a function of the host through one of both: nvcc only warns, and the kernel does nothing. tests/gpu/registers.sh must fail on it.

float of_the_host(float x) { return x * 2; }
__host__ __device__ float of_both(float x) { return of_the_host(x); }

__global__ void calling_kernel(float* out) { out[threadIdx.x] = of_both(out[threadIdx.x]); }
