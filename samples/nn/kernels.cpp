#include "samples/nn/kernels.hpp"

namespace nn {

// Chosen by pointer at run time, not by ifunc or target_clones: those resolve before a sanitizer's run time is up.
extern const Kernels kernels_baseline;
#if defined(__x86_64__)
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
#endif

const Kernels* kernels(Isa isa) {
  switch (isa) {
    case Isa::baseline: return &kernels_baseline;
#if defined(__x86_64__)
    case Isa::avx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kernels_avx2 : nullptr;
    case Isa::avx512: return __builtin_cpu_supports("avx512f") ? &kernels_avx512 : nullptr;
#endif
    default: return nullptr;
  }
}

std::vector<Isa> available() {
  std::vector<Isa> found;
  for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
    if (kernels(isa) != nullptr) found.push_back(isa);
  return found;
}

const char* to_string(Isa isa) {
  switch (isa) {
    case Isa::baseline: return "baseline";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
  }
  return "unknown";
}

}  // namespace nn
