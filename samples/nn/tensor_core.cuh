#pragma once
/// \file What the tensor cores of a device (sm_80 and newer) do with a warp's 32 lanes, copies into shared memory that go on beside the code, and functions of
/// numbers that are fast there. The tests have the same names for a host (tests/fakegpu/simt/tensor_core.hpp). Fragments lie as PTX says for mma.m16n8k16: lane L has, of rows L / 4 and L / 4 + 8, the pairs of
/// columns that begin with 2 · (L mod 4). A left factor of 16 x 16 has four such pairs: rows r and r + 8 at columns c, then both at columns c + 8.

#include <cstdint>

namespace nn {
namespace {

#ifdef ELRUN_TWIN
using fakegpu::copy_async;
using fakegpu::end_of_copies;
using fakegpu::exp2_fast;
using fakegpu::load_matrices;
using fakegpu::load_matrices_transposed;
using fakegpu::multiply_add;
using fakegpu::pack_bf16;
using fakegpu::wait_for_copies;
#else

/// sum[16][8] += a[16][16] · b[16][8]; `b0` has rows 0 to 7 of b, `b1` rows 8 to 15. Sums are in float.
__device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four matrices of 8 x 8 from shared memory: lane L says where row L mod 8 of matrix L / 8 begins, on a border of 16 bytes. It gets of each matrix, in row
/// L / 4, the pair of elements that begins with 2 · (L mod 4).
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}
/// The same of each matrix's transpose.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

/// 16 bytes from global to shared memory, some time between here and the wait for the group of copies that they belong to. Both begin on a border of 16 bytes.
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "l"(global)
               : "memory");
}
/// The copies that this thread began since the last end are a group, also where they are none.
__device__ __forceinline__ void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until all groups of this thread but the newest `left` are there. Only this thread sees them then; others do behind a barrier.
template <unsigned left>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/// Two floats, rounded to nearest, ties to even; `low` comes first in memory.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

/// 2^x to about 2 ulp; 0 for what would be subnormal.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

/// The dynamic shared memory of the block. In place of `extern __shared__`.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
#ifdef ELRUN_TWIN
  return static_cast<T*>(ELRUN_TWIN_DYNAMIC_SHARED);
#else
  extern __shared__ __align__(16) unsigned char nn_dynamic_shared[];
  return reinterpret_cast<T*>(nn_dynamic_shared);
#endif
}

__device__ __forceinline__ float low_float(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_float(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

}  // namespace
}  // namespace nn
