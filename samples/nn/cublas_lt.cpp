#include "samples/nn/cublas_lt.hpp"

#include <cublasLt.h>
#include <dlfcn.h>

#include <compare>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <elrun/result.hpp>

namespace nn {
namespace {

constexpr std::size_t workspace_bytes = std::size_t{32} << 20;  // what NVIDIA advises for Hopper

[[noreturn]] void fail(elrun::Code code, std::string what) {
  throw elrun::Error{{.code = code, .remedy = elrun::Remedy::fix_config, .what = std::move(what)}};
}

}  // namespace

/// The functions that are used, of a library that is never closed.
struct CublasLt::Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtGetStatusName) status_name = nullptr;
  decltype(&cublasLtMatmulDescCreate) product_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) product_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) product_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;

  /// Of the version whose header this was compiled with.
  static const Library& get() {
    static const Library library;
    return library;
  }
  Library() {
    const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr)
      fail(elrun::Code::not_found,
           name + " was not found: " + dlerror() +
               "; it comes with the CUDA toolkit and with PyTorch: name its folder in LD_LIBRARY_PATH, or leave --precision bf16 out");
    const auto find = [&](const char* function, auto& to) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(handle, function));
      if (to == nullptr) fail(elrun::Code::mismatch, name + " has no " + function + ": install a whole one");
    };
    find("cublasLtCreate", create);
    find("cublasLtDestroy", destroy);
    find("cublasLtGetVersion", version);
    find("cublasLtGetStatusName", status_name);
    find("cublasLtMatmulDescCreate", product_create);
    find("cublasLtMatmulDescDestroy", product_destroy);
    find("cublasLtMatmulDescSetAttribute", product_set);
    find("cublasLtMatrixLayoutCreate", layout_create);
    find("cublasLtMatrixLayoutDestroy", layout_destroy);
    find("cublasLtMatmulPreferenceCreate", preference_create);
    find("cublasLtMatmulPreferenceDestroy", preference_destroy);
    find("cublasLtMatmulPreferenceSetAttribute", preference_set);
    find("cublasLtMatmulAlgoGetHeuristic", choose);
    find("cublasLtMatmul", multiply);
  }

  void check(cublasStatus_t status, const char* call) const {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw elrun::Error{
        {.code = elrun::Code::internal, .remedy = elrun::Remedy::exit_process, .what = std::string{call} + ": " + status_name(status)}};
  }
};

/// What an algorithm is chosen by.
struct CublasLt::Shape {
  std::size_t rows, columns, k;
  bool a_transposed, b_transposed, to_float, adds;
  friend auto operator<=>(const Shape&, const Shape&) = default;
};

/// cuBLASLt's matrices lie column after column, so it sees each of ours transposed, and computes cᵀ = bᵀ · aᵀ.
struct CublasLt::Planned {
  const Library& library;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  Planned(const Library& l, cublasLtHandle_t handle, const Shape& s) : library{l} {
    const cublasOperation_t of_a = s.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, of_b = s.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    l.check(l.product_create(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    l.check(l.product_set(product, CUBLASLT_MATMUL_DESC_TRANSA, &of_b, sizeof of_b), "cublasLtMatmulDescSetAttribute");
    l.check(l.product_set(product, CUBLASLT_MATMUL_DESC_TRANSB, &of_a, sizeof of_a), "cublasLtMatmulDescSetAttribute");
    const auto layout = [&](cublasLtMatrixLayout_t& to, cudaDataType type, std::size_t rows, std::size_t columns) {
      l.check(l.layout_create(&to, type, columns, rows, static_cast<std::int64_t>(columns)), "cublasLtMatrixLayoutCreate");
    };
    s.a_transposed ? layout(a, CUDA_R_16BF, s.k, s.rows) : layout(a, CUDA_R_16BF, s.rows, s.k);
    s.b_transposed ? layout(b, CUDA_R_16BF, s.columns, s.k) : layout(b, CUDA_R_16BF, s.k, s.columns);
    layout(c, s.to_float ? CUDA_R_32F : CUDA_R_16BF, s.rows, s.columns);

    cublasLtMatmulPreference_t preference = nullptr;
    l.check(l.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
    // Parts of a sum that is split over k are stored, and added up by one owner; or nothing is split.
    const std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulHeuristicResult_t chosen{};
    int found = 0;
    cublasStatus_t status =
        l.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes);
    if (status == CUBLAS_STATUS_SUCCESS)
      status = l.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    if (status == CUBLAS_STATUS_SUCCESS) status = l.choose(handle, product, b, a, c, c, preference, 1, &chosen, &found);
    (void)l.preference_destroy(preference);
    l.check(status, "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0)
      fail(elrun::Code::mismatch, "cuBLASLt has no algorithm for a product of " + std::to_string(s.rows) + " x " + std::to_string(s.k) +
                                      " and " + std::to_string(s.k) + " x " + std::to_string(s.columns) + ": choose multiples of 8");
    algorithm = chosen.algo;
  }
  ~Planned() {
    (void)library.layout_destroy(a), (void)library.layout_destroy(b), (void)library.layout_destroy(c);
    (void)library.product_destroy(product);
  }
  Planned(const Planned&) = delete;
  Planned& operator=(const Planned&) = delete;
};

CublasLt::CublasLt(elrun::Stream stream) : library_{Library::get()}, stream_{stream}, workspace_{stream, workspace_bytes} {
  cublasLtHandle_t handle = nullptr;
  library_.check(library_.create(&handle), "cublasLtCreate");
  handle_ = handle;
}
CublasLt::~CublasLt() {
  planned_.clear();
  (void)library_.destroy(static_cast<cublasLtHandle_t>(handle_));
}

void CublasLt::multiply(const Shape& shape, const void* a, const void* b, void* c) {
  const auto handle = static_cast<cublasLtHandle_t>(handle_);
  std::unique_ptr<Planned>& planned = planned_[shape];
  if (!planned) planned = std::make_unique<Planned>(library_, handle, shape);
  const float one = 1, kept = shape.adds ? 1 : 0;
  library_.check(library_.multiply(handle, planned->product, &one, b, planned->b, a, planned->a, &kept, c, planned->c, c, planned->c,
                                   &planned->algorithm, workspace_.data(), workspace_bytes, static_cast<cudaStream_t>(stream_.handle())),
                 "cublasLtMatmul");
}

void CublasLt::product(Extent e, Factor a, Factor b, elrun::bf16* c, Into into) {
  multiply({e.rows, e.columns, e.k, a.transposed, b.transposed, false, into == Into::sum}, a.data, b.data, c);
}
void CublasLt::product(Extent e, Factor a, Factor b, float* c, Into into) {
  multiply({e.rows, e.columns, e.k, a.transposed, b.transposed, true, into == Into::sum}, a.data, b.data, c);
}

std::string CublasLt::version() {
  const std::size_t v = Library::get().version();
  return "cuBLASLt " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

}  // namespace nn
