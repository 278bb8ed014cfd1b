#include "samples/nn/cublas_lt.hpp"

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include <elrun/result.hpp>

namespace nn {
namespace {

constexpr std::size_t workspace_bytes = std::size_t{32} << 20;  // what NVIDIA advises for Hopper

/// Of each of Algorithm::names, and how many bytes the library wants it in.
constexpr struct {
  cublasLtMatmulAlgoConfigAttributes_t attribute;
  std::size_t bytes;
} configuration[] = {{CUBLASLT_ALGO_CONFIG_ID, 4},
                     {CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
                     {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
                     {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
                     {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
                     {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
                     {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
                     {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
                     {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2}};
static_assert(std::size(configuration) == Algorithm::names.size());

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
  decltype(&cublasLtMatmulAlgoInit) algorithm_init = nullptr;
  decltype(&cublasLtMatmulAlgoConfigSetAttribute) algorithm_set = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_get = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) algorithm_check = nullptr;
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
    find("cublasLtMatmulAlgoInit", algorithm_init);
    find("cublasLtMatmulAlgoConfigSetAttribute", algorithm_set);
    find("cublasLtMatmulAlgoConfigGetAttribute", algorithm_get);
    find("cublasLtMatmulAlgoCheck", algorithm_check);
    find("cublasLtMatmul", multiply);
  }

  void check(cublasStatus_t status, const char* call) const {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw elrun::Error{
        {.code = elrun::Code::internal, .remedy = elrun::Remedy::exit_process, .what = std::string{call} + ": " + status_name(status)}};
  }
};

struct CublasLt::Handle {
  const Library& library = Library::get();
  cublasLtHandle_t get = nullptr;
  Handle() { library.check(library.create(&get), "cublasLtCreate"); }
  ~Handle() { (void)library.destroy(get); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
};

/// cuBLASLt's matrices lie column after column, so it sees each of ours transposed, and computes cᵀ = bᵀ · aᵀ.
struct CublasLt::Planned {
  const Library& library;
  const ProductShape shape;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  Planned(const Library& l, const ProductShape& s) : library{l}, shape{s} {
    const cublasOperation_t of_a = s.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, of_b = s.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    l.check(l.product_create(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    l.check(l.product_set(product, CUBLASLT_MATMUL_DESC_TRANSA, &of_b, sizeof of_b), "cublasLtMatmulDescSetAttribute");
    l.check(l.product_set(product, CUBLASLT_MATMUL_DESC_TRANSB, &of_a, sizeof of_a), "cublasLtMatmulDescSetAttribute");
    const auto layout = [&](cublasLtMatrixLayout_t& to, cudaDataType type, std::size_t rows, std::size_t columns) {
      l.check(l.layout_create(&to, type, columns, rows, static_cast<std::int64_t>(columns)), "cublasLtMatrixLayoutCreate");
    };
    s.a_transposed ? layout(a, CUDA_R_16BF, s.k, s.rows) : layout(a, CUDA_R_16BF, s.rows, s.k);
    s.b_transposed ? layout(b, CUDA_R_16BF, s.columns, s.k) : layout(b, CUDA_R_16BF, s.k, s.columns);
    layout(c, type_of_c(), s.rows, s.columns);
  }
  ~Planned() {
    (void)library.layout_destroy(a), (void)library.layout_destroy(b), (void)library.layout_destroy(c);
    (void)library.product_destroy(product);
  }
  Planned(const Planned&) = delete;
  Planned& operator=(const Planned&) = delete;

  [[nodiscard]] cudaDataType type_of_c() const { return shape.to_float ? CUDA_R_32F : CUDA_R_16BF; }

  void choose(cublasLtHandle_t handle) {
    const Library& l = library;
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
      fail(elrun::Code::mismatch, "cuBLASLt has no algorithm for a product of " + std::to_string(shape.rows) + " x " +
                                      std::to_string(shape.k) + " and " + std::to_string(shape.k) + " x " + std::to_string(shape.columns) +
                                      ": choose multiples of 8");
    algorithm = chosen.algo;
  }

  [[nodiscard]] Algorithm described() const {
    Algorithm out;
    for (std::size_t i = 0; i < std::size(configuration); ++i) {
      std::uint32_t wide = 0;
      std::uint16_t narrow = 0;
      std::size_t written = 0;
      const auto [attribute, bytes] = configuration[i];
      const cublasStatus_t status =
          library.algorithm_get(&algorithm, attribute, bytes == 2 ? static_cast<void*>(&narrow) : &wide, bytes, &written);
      if (status != CUBLAS_STATUS_SUCCESS && i >= Algorithm::first_optional) continue;  // an older library
      library.check(status, "cublasLtMatmulAlgoConfigGetAttribute");
      out.values[i] = bytes == 2 ? narrow : wide;
    }
    return out;
  }

  /// Takes what a recipe says. Nullopt, or why it is refused.
  [[nodiscard]] std::optional<std::string> take(cublasLtHandle_t handle, const Algorithm& given) {
    const auto refused = [&](cublasStatus_t status, const std::string& call) -> std::optional<std::string> {
      if (status == CUBLAS_STATUS_SUCCESS) return std::nullopt;
      return "the algorithm for " + to_string(shape) + " is refused here (" + call + ": " + library.status_name(status) + ")";
    };
    const int id = static_cast<int>(*given.values[0]);
    if (auto why = refused(library.algorithm_init(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF, CUDA_R_16BF, type_of_c(),
                                                  type_of_c(), id, &algorithm),
                           "cublasLtMatmulAlgoInit"))
      return why;
    for (std::size_t i = 1; i < std::size(configuration); ++i) {  // the id was set before
      if (!given.values[i]) continue;
      const std::uint32_t wide = *given.values[i];
      const auto narrow = static_cast<std::uint16_t>(wide);
      const auto [attribute, bytes] = configuration[i];
      const bool fits = bytes != 2 || wide <= std::numeric_limits<std::uint16_t>::max();
      if (auto why =
              refused(fits ? library.algorithm_set(&algorithm, attribute, bytes == 2 ? static_cast<const void*>(&narrow) : &wide, bytes)
                           : CUBLAS_STATUS_INVALID_VALUE,
                      std::string{"cublasLtMatmulAlgoConfigSetAttribute of "} + Algorithm::names[i]))
        return why;
    }
    cublasLtMatmulHeuristicResult_t result{};
    if (auto why = refused(library.algorithm_check(handle, product, b, a, c, c, &algorithm, &result), "cublasLtMatmulAlgoCheck"))
      return why;
    if (result.workspaceSize <= workspace_bytes) return std::nullopt;
    return "the algorithm for " + to_string(shape) + " wants " + std::to_string(result.workspaceSize) + " bytes of workspace, and has " +
           std::to_string(workspace_bytes);
  }
};

CublasLt::CublasLt(elrun::Stream stream, Algorithms given)
    : library_{Library::get()},
      stream_{stream},
      workspace_{stream, workspace_bytes},
      given_{std::move(given)},
      handle_{std::make_unique<Handle>()} {}
CublasLt::~CublasLt() = default;

void CublasLt::product(const ProductShape& shape, const elrun::bf16* a, const elrun::bf16* b, void* c, Into into) {
  std::unique_ptr<Planned>& planned = planned_[shape];
  if (!planned) {
    auto fresh = std::make_unique<Planned>(library_, shape);
    if (const auto given = given_.find(shape); given == given_.end()) fresh->choose(handle_->get);
    else if (const auto why = fresh->take(handle_->get, given->second)) fail(elrun::Code::mismatch, *why);
    planned = std::move(fresh);
  }
  const float one = 1, kept = into == Into::sum ? 1 : 0;
  library_.check(library_.multiply(handle_->get, planned->product, &one, b, planned->b, a, planned->a, &kept, c, planned->c, c, planned->c,
                                   &planned->algorithm, workspace_.data(), workspace_bytes, static_cast<cudaStream_t>(stream_.handle())),
                 "cublasLtMatmul");
}

Algorithms CublasLt::choose(std::span<const ProductShape> shapes) {
  const Handle handle;
  Algorithms out;
  for (const ProductShape& shape : shapes) {
    Planned planned{handle.library, shape};
    planned.choose(handle.get);
    out.emplace(shape, planned.described());
  }
  return out;
}

std::vector<std::string> CublasLt::refused(const Algorithms& algorithms) {
  const Handle handle;
  std::vector<std::string> out;
  for (const auto& [shape, algorithm] : algorithms)
    if (auto why = Planned{handle.library, shape}.take(handle.get, algorithm)) out.push_back(*std::move(why));
  return out;
}

std::string CublasLt::version() {
  const std::size_t v = Library::get().version();
  return "cuBLASLt " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

}  // namespace nn
