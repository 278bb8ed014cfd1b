// How fast is the samples' product, whose bits depend on nothing, against OpenBLAS on one thread? One line per shape of
// a small transformer: GFLOP/s of both and the ratio. OpenBLAS is loaded at run time, where it is installed.

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "samples/nn/engine.hpp"

namespace {

enum { row_major = 101, no_transpose = 111, transpose = 112 };
using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);

Sgemm open_blas() {
  setenv("OPENBLAS_NUM_THREADS", "1", 1);
  // Processors that it does not know get its slowest kernels: name what this one can do.
  setenv("OPENBLAS_CORETYPE", nn::available().back() == nn::Isa::avx512 ? "SkylakeX" : "Haswell", 0);
  void* library = dlopen("libopenblas.so.0", RTLD_NOW);
  return library == nullptr ? nullptr : reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
}

template <class F>
double gflops(double flops, F f) {
  double best = 0;
  for (int round = 0; round < 7; ++round) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    int calls = 0;
    double seconds = 0;
    do {
      f();
      ++calls;
      seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    } while (seconds < 0.05);
    best = std::max(best, flops * calls / seconds * 1e-9);
  }
  return best;
}

}  // namespace

int main() {
  const Sgemm sgemm = open_blas();
  if (sgemm == nullptr) std::puts("gemm: OpenBLAS is not installed (libopenblas0); no ratio");
  struct Case {
    const char* form;
    nn::Extent extent;
    bool transpose_a, transpose_b;
  };
  std::vector<Case> cases;
  for (const std::size_t c : {std::size_t{128}, std::size_t{512}}) {
    const std::size_t rows = c == 128 ? 128 : 1024;
    cases.push_back({"C = A·Bᵀ", {rows, 4 * c, c}, false, true});
    cases.push_back({"dX = dY·B", {rows, c, 4 * c}, false, false});
    cases.push_back({"dW = dYᵀ·X", {4 * c, c, rows}, true, false});
  }
  nn::Engine engine{1};
  for (const Case& t : cases) {
    const auto [m, n, k] = t.extent;
    std::vector<float> a(m * k, 0.5f), b(k * n, 0.25f), c(m * n);
    const nn::View va = t.transpose_a ? nn::View{a.data(), m}.transposed() : nn::View{a.data(), k};
    const nn::View vb = t.transpose_b ? nn::View{b.data(), k}.transposed() : nn::View{b.data(), n};
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    const double own = gflops(flops, [&] { engine.product(t.extent, va, vb, {c.data(), n}); });
    const auto i = [](std::size_t x) { return static_cast<int>(x); };
    const double peer = sgemm == nullptr ? 0 : gflops(flops, [&] {
      sgemm(row_major, t.transpose_a ? transpose : no_transpose, t.transpose_b ? transpose : no_transpose, i(m), i(n), i(k), 1.0f, a.data(),
            t.transpose_a ? i(m) : i(k), b.data(), t.transpose_b ? i(k) : i(n), 0.0f, c.data(), i(n));
    });
    std::printf("gemm: %s %zux%zux%zu, %s: %.1f GFLOP/s", t.form, m, n, k, nn::to_string(nn::available().back()), own);
    if (sgemm != nullptr) std::printf(" (OpenBLAS, one thread: %.1f; ratio %.2f)", peer, own / peer);
    std::puts("");
  }
}
