/// A fake libcublasLt.so.13 on the fake devices: products of matrices that lie column after column, of bf16, with sums in float. What it keeps of the real one is what
/// programs get wrong: a call returns before its product is computed, in the order of its stream; a descriptor or handle that was destroyed is reported; an
/// algorithm belongs to the shape it was chosen for; matrices begin on borders of 16 bytes. Its sums have an order of their own, so that nobody relies on it.

#include <cublasLt.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
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
size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
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
  results[0] = {};
  results[0].algo.data[0] = shape_of(*product_of(product), *layout_of(a), *layout_of(b), *layout_of(d));
  *found = 1;
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
  if (algorithm == nullptr || algorithm->data[0] != shape_of(p, la, lb, ld)) {
    fakegpu::report("cuBLASLt: the algorithm was chosen for another shape");
    return CUBLAS_STATUS_INVALID_VALUE;
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
        float parts[2] = {};  // two halves of k, as no host adds them
        for (std::uint64_t i = 0; i < k; ++i) parts[2 * i >= k] += element(a, la, ta, row, i) * element(b, lb, tb, i, column);
        const float sum = times * (parts[1] + parts[0]);
        write(d, ld, row, column, kept == 0 ? sum : sum + kept * element(d, ld, false, row, column));
      }
  };
  return fakegpu::enqueue(stream, std::move(operation), nullptr) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
