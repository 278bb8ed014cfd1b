/// A fake libcublasLt.so.13 on the fake devices: products of matrices that lie column after column, of bf16, with sums in float. What it keeps of the real one is what
/// programs get wrong: a call returns before its product is computed, in the order of its stream; a descriptor or handle that was destroyed is reported; an
/// algorithm runs for a shape that it was chosen or checked for; matrices begin on borders of 16 bytes. It has two algorithms, whose sums have orders of their own, so that nobody relies on one.
///
/// FAKEGPU_CUBLAS_FIRST=2: the heuristic's first choice is the second algorithm, as on another device. FAKEGPU_CUBLAS_VERSION: of another library, such as 130200.

#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakegpu/runtime/external.hpp"

namespace {

struct Product {
  cublasOperation_t of_a = CUBLAS_OP_N, of_b = CUBLAS_OP_N;
};
struct Layout {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t leading;
  [[nodiscard]] std::size_t element() const { return type == CUDA_R_32F ? 4 : 2; }
  [[nodiscard]] std::size_t bytes() const { return (static_cast<std::size_t>(leading) * (columns - 1) + rows) * element(); }
};

/// What is alive. Addresses of what was destroyed may come again: then a use of the old one is not seen.
std::mutex mutex;
std::set<const void*>& alive() {
  static auto* const all = new std::set<const void*>;
  return *all;
}
template <class T>
T* made(T* thing) {
  const std::lock_guard lock{mutex};
  alive().insert(thing);
  return thing;
}
bool known(const void* thing, const char* call) {
  const std::lock_guard lock{mutex};
  if (alive().contains(thing)) return true;
  fakegpu::report(std::string{"cuBLASLt: "} + call + " with a handle or descriptor that was destroyed, or never made");
  return false;
}
template <class T>
cublasStatus_t end(T* thing, const char* call) {
  if (!known(thing, call)) return CUBLAS_STATUS_INVALID_VALUE;
  const std::lock_guard lock{mutex};
  alive().erase(thing);
  delete thing;
  return CUBLAS_STATUS_SUCCESS;
}

Product* product_of(cublasLtMatmulDesc_t handle) { return reinterpret_cast<Product*>(handle); }
Layout* layout_of(cublasLtMatrixLayout_t handle) { return reinterpret_cast<Layout*>(handle); }

float element(const void* from, const Layout& layout, bool transposed, std::uint64_t row, std::uint64_t column) {
  if (transposed) std::swap(row, column);
  const std::uint64_t at = column * static_cast<std::uint64_t>(layout.leading) + row;
  if (layout.type == CUDA_R_32F) return static_cast<const float*>(from)[at];
  return std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(from)[at]} << 16);
}
void write(void* to, const Layout& layout, std::uint64_t row, std::uint64_t column, float value) {
  const std::uint64_t at = column * static_cast<std::uint64_t>(layout.leading) + row;
  if (layout.type == CUDA_R_32F) return void(static_cast<float*>(to)[at] = value);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  static_cast<std::uint16_t*>(to)[at] = static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/// What lies in the opaque algorithm, of which the first 8 of 64 bytes say that it was initialised.
struct Config {
  std::uint64_t mark = 0;
  std::int32_t id = 0;
  std::uint32_t tile = 0, stages = 0;
  std::int32_t splits = 1;
  std::uint32_t reduction = 0, swizzle = 0, custom = 0;
  std::uint16_t inner = 0, cluster = 0;
  friend auto operator<=>(const Config&, const Config&) = default;
};
static_assert(sizeof(Config) <= sizeof(cublasLtMatmulAlgo_t));
constexpr std::uint64_t initialised = 0x66616b65626c6173u;
constexpr std::uint32_t tile_of[] = {CUBLASLT_MATMUL_TILE_64x64,
                                     CUBLASLT_MATMUL_TILE_128x128};  // of algorithms 1 and 2: the only one that each has

Config config_of(const cublasLtMatmulAlgo_t& algorithm) {
  Config config;
  std::memcpy(&config, algorithm.data, sizeof config);
  return config;
}
void write(cublasLtMatmulAlgo_t& algorithm, const Config& config) { std::memcpy(algorithm.data, &config, sizeof config); }

/// Where an attribute lies, and its bytes; null for none that is known.
std::pair<void*, std::size_t> place_of(Config& c, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_ID: return {&c.id, sizeof c.id};
    case CUBLASLT_ALGO_CONFIG_TILE_ID: return {&c.tile, sizeof c.tile};
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM: return {&c.splits, sizeof c.splits};
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: return {&c.reduction, sizeof c.reduction};
    case CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING: return {&c.swizzle, sizeof c.swizzle};
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION: return {&c.custom, sizeof c.custom};
    case CUBLASLT_ALGO_CONFIG_STAGES_ID: return {&c.stages, sizeof c.stages};
    case CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID: return {&c.inner, sizeof c.inner};
    case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID: return {&c.cluster, sizeof c.cluster};
  }
  return {nullptr, 0};
}

std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// Which algorithm may run for which shape: it was chosen for it, or checked.
std::set<std::pair<Config, std::uint64_t>>& may_run() {
  static auto* const all = new std::set<std::pair<Config, std::uint64_t>>;
  return *all;
}

/// What an algorithm is for: a number that a call compares.
std::uint64_t shape_of(const Product& p, const Layout& a, const Layout& b, const Layout& d) {
  std::uint64_t hash = 1469598103934665603u;
  for (const std::uint64_t part :
       {std::uint64_t(p.of_a), std::uint64_t(p.of_b), a.rows, a.columns, b.rows, b.columns, d.rows, d.columns, std::uint64_t(d.type)})
    hash = (hash ^ part) * 1099511628211u;
  return hash;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(made(new int{}));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return end(reinterpret_cast<int*>(handle), "cublasLtDestroy"); }
size_t cublasLtGetVersion(void) { return number("FAKEGPU_CUBLAS_VERSION", CUBLAS_VERSION); }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                 : "CUBLAS_STATUS_INVALID_VALUE";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *product = reinterpret_cast<cublasLtMatmulDesc_t>(made(new Product));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) { return end(product_of(product), "cublasLtMatmulDescDestroy"); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  if (!known(product, "cublasLtMatmulDescSetAttribute") || bytes != sizeof(cublasOperation_t)) return CUBLAS_STATUS_INVALID_VALUE;
  if (attribute != CUBLASLT_MATMUL_DESC_TRANSA && attribute != CUBLASLT_MATMUL_DESC_TRANSB) return CUBLAS_STATUS_NOT_SUPPORTED;
  std::memcpy(attribute == CUBLASLT_MATMUL_DESC_TRANSA ? &product_of(product)->of_a : &product_of(product)->of_b, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t columns,
                                          int64_t leading) {
  if ((type != CUDA_R_16BF && type != CUDA_R_32F) || rows == 0 || columns == 0 || leading < static_cast<int64_t>(rows))
    return CUBLAS_STATUS_INVALID_VALUE;
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(made(new Layout{type, rows, columns, leading}));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return end(layout_of(layout), "cublasLtMatrixLayoutDestroy"); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(made(new int{}));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return end(reinterpret_cast<int*>(preference), "cublasLtMatmulPreferenceDestroy");
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return known(preference, "cublasLtMatmulPreferenceSetAttribute") ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  for (const void* each :
       {static_cast<const void*>(handle), static_cast<const void*>(product), static_cast<const void*>(a), static_cast<const void*>(b),
        static_cast<const void*>(c), static_cast<const void*>(d), static_cast<const void*>(preference)})
    if (!known(each, "cublasLtMatmulAlgoGetHeuristic")) return CUBLAS_STATUS_INVALID_VALUE;
  *found = 0;
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const auto first = static_cast<std::int32_t>(number("FAKEGPU_CUBLAS_FIRST", 1));
  const std::uint64_t shape = shape_of(*product_of(product), *layout_of(a), *layout_of(b), *layout_of(d));
  const std::lock_guard lock{mutex};
  for (*found = 0; *found < std::min(wanted, 2); ++*found) {
    Config config{.mark = initialised, .id = *found == 0 ? first : 3 - first, .cluster = CUBLASLT_CLUSTER_SHAPE_1x1x1};
    config.tile = tile_of[config.id - 1];
    results[*found] = {};
    write(results[*found].algo, config);
    may_run().emplace(config, shape);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType_t scale, cudaDataType_t a,
                                      cudaDataType_t b, cudaDataType_t c, cudaDataType_t d, int id, cublasLtMatmulAlgo_t* algorithm) {
  if (!known(handle, "cublasLtMatmulAlgoInit") || algorithm == nullptr || id < 1 || id > 2) return CUBLAS_STATUS_INVALID_VALUE;
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F || a != CUDA_R_16BF || b != CUDA_R_16BF || c != d)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (c != CUDA_R_16BF && c != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *algorithm = {};
  write(*algorithm, {.mark = initialised, .id = id});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  if (algorithm == nullptr || value == nullptr || attribute == CUBLASLT_ALGO_CONFIG_ID) return CUBLAS_STATUS_INVALID_VALUE;
  Config config = config_of(*algorithm);
  const auto [place, size] = place_of(config, attribute);
  if (config.mark != initialised || place == nullptr || bytes != size) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(place, value, bytes);
  write(*algorithm, config);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  if (algorithm == nullptr || (bytes == 0 ? written == nullptr : value == nullptr)) return CUBLAS_STATUS_INVALID_VALUE;
  Config config = config_of(*algorithm);
  const auto [place, size] = place_of(config, attribute);
  if (config.mark != initialised || place == nullptr || (bytes != 0 && bytes != size)) return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes != 0) std::memcpy(value, place, bytes);
  if (written != nullptr) *written = size;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result) {
  for (const void* each : {static_cast<const void*>(handle), static_cast<const void*>(product), static_cast<const void*>(a),
                           static_cast<const void*>(b), static_cast<const void*>(c), static_cast<const void*>(d)})
    if (!known(each, "cublasLtMatmulAlgoCheck")) return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm == nullptr || result == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const Config config = config_of(*algorithm);
  if (config.mark != initialised) return CUBLAS_STATUS_INVALID_VALUE;
  if (config.tile != tile_of[config.id - 1] || config.stages != 0 || config.splits != 1 ||
      config.reduction != CUBLASLT_REDUCTION_SCHEME_NONE || config.swizzle > 1 || config.inner != 0 ||
      config.cluster != CUBLASLT_CLUSTER_SHAPE_1x1x1)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = config.custom == 1 ? std::size_t{1} << 30 : 0;  // an algorithm that wants more than most programs have
  result->state = CUBLAS_STATUS_SUCCESS;
  const std::lock_guard lock{mutex};
  may_run().emplace(config, shape_of(*product_of(product), *layout_of(a), *layout_of(b), *layout_of(d)));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t of_a, const void* b, cublasLtMatrixLayout_t of_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t of_c, void* d, cublasLtMatrixLayout_t of_d, const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  for (const void* each : {static_cast<const void*>(handle), static_cast<const void*>(product), static_cast<const void*>(of_a),
                           static_cast<const void*>(of_b), static_cast<const void*>(of_c), static_cast<const void*>(of_d)})
    if (!known(each, "cublasLtMatmul")) return CUBLAS_STATUS_INVALID_VALUE;
  const Product p = *product_of(product);
  const Layout la = *layout_of(of_a), lb = *layout_of(of_b), ld = *layout_of(of_d);
  const bool ta = p.of_a != CUBLAS_OP_N, tb = p.of_b != CUBLAS_OP_N;
  const std::uint64_t m = ta ? la.columns : la.rows, k = ta ? la.rows : la.columns, n = tb ? lb.rows : lb.columns;
  if ((tb ? lb.columns : lb.rows) != k || ld.rows != m || ld.columns != n || c != d) return CUBLAS_STATUS_INVALID_VALUE;
  for (const void* each : {a, b, static_cast<const void*>(d)})
    if (reinterpret_cast<std::uintptr_t>(each) % 16 != 0) {
      fakegpu::report("cuBLASLt: a matrix does not begin on a border of 16 bytes, as the algorithm was chosen for");
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  const Config config = algorithm == nullptr ? Config{} : config_of(*algorithm);
  {
    const std::lock_guard lock{mutex};
    if (!may_run().contains({config, shape_of(p, la, lb, ld)})) {
      fakegpu::report("cuBLASLt: the algorithm was neither chosen nor checked for this shape");
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  const float times = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
  fakegpu::ExternalOperation operation;
  operation.name =
      "cublasLtMatmul of " + std::to_string(m) + " x " + std::to_string(k) + " and " + std::to_string(k) + " x " + std::to_string(n);
  operation.reads = {{a, la.bytes()}, {b, lb.bytes()}};
  if (kept != 0) operation.reads.push_back({d, ld.bytes()});
  operation.writes = {{d, ld.bytes()}};
  if (workspace_bytes > 0) operation.writes.push_back({workspace, workspace_bytes});
  operation.run = [=] {
    for (std::uint64_t column = 0; column < n; ++column)
      for (std::uint64_t row = 0; row < m; ++row) {
        float parts[2] = {};  // two halves of k, or what is even and what is odd, as no host adds them
        for (std::uint64_t i = 0; i < k; ++i)
          parts[config.id == 1 ? 2 * i >= k : i % 2] += element(a, la, ta, row, i) * element(b, lb, tb, i, column);
        const float sum = times * (parts[1] + parts[0]);
        write(d, ld, row, column, kept == 0 ? sum : sum + kept * element(d, ld, false, row, column));
      }
  };
  return fakegpu::enqueue(stream, std::move(operation), nullptr) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
