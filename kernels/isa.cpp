#include "kernels/isa.hpp"

namespace elrun::inline v0 {

Isa isa_of_this_machine() noexcept {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  static const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::portable;
#else
  return Isa::portable;
#endif
}

}  // namespace elrun::inline v0
