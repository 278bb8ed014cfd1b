#pragma once
/// \file A recipe: which of cuBLASLt's algorithms computes each product of a model, as text that goes from one start of a job to the next, and to other nodes.
///
///     elrun recipe 1, cuBLASLt 13.1.0, chosen on NVIDIA H200
///     rows=16384 columns=2304 k=768 a=n b=t c=bf16: id=66 tile=394 stages=36 splits=1 reduction=0 swizzle=0 custom=5 inner=0 cluster=7

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nn {

/// Of a product c[rows][columns] (+)= a[rows][k] · b[k][columns]: all that an algorithm is chosen by. Matrices are of bf16, row after row without gaps; sums are float.
/// (Products do not come in batches, and nothing is done to c behind them.)
struct ProductShape {
  std::size_t rows, columns, k;
  bool a_transposed, b_transposed;  ///< What is multiplied is the transpose of the matrix in memory.
  bool to_float;                    ///< c is of float, else of bf16.
  friend auto operator<=>(const ProductShape&, const ProductShape&) = default;
};

/// An algorithm's configuration, in the order of `names`. Numbers mean what one version of cuBLASLt says (cublasLtMatmulAlgoConfigAttributes_t).
struct Algorithm {
  static constexpr std::array names{"id", "tile", "stages", "splits", "reduction", "swizzle", "custom", "inner", "cluster"};
  static constexpr std::size_t splits = 3, reduction = 4, first_optional = 7;  ///< Places in `names`.
  /// A library that does not know one of the last two has none.
  std::array<std::optional<std::uint32_t>, names.size()> values{};
  friend bool operator==(const Algorithm&, const Algorithm&) = default;
};

struct Recipe {
  std::string library, device;  ///< "cuBLASLt 13.1.0", and "NVIDIA H200": where the algorithms were chosen.
  std::map<ProductShape, Algorithm> algorithms;

  /// A header, and a line for each shape.
  [[nodiscard]] std::string text() const;
  /// 16 digits, of the algorithms and their shapes alone.
  [[nodiscard]] std::string hash() const;
};

/// "rows=8 columns=16 k=24 a=n b=t c=bf16", as a line begins.
[[nodiscard]] std::string to_string(const ProductShape&);

/// What is right in `text`. Appends a sentence to `problems` for each thing that is not.
[[nodiscard]] Recipe parse_recipe(std::string_view text, std::vector<std::string>& problems);

constexpr std::size_t recipe_bytes_max = std::size_t{1} << 20;
/// The text at `path`, or nullopt where there is nothing. Throws elrun::Error (`fix_config`) where it cannot be read, is no regular file, or is longer than `recipe_bytes_max`.
[[nodiscard]] std::optional<std::string> read_recipe(const std::string& path);
/// Writes a file that appears at once and whole, by a temporary one in the same folder. Never overwrites: of several processes, on several nodes of one file system, the first one writes,
/// and the others get false. (A file system without hard links lets the last one win.) Throws elrun::Error (`fix_config`) where that cannot be done.
bool write_recipe(const std::string& path, const std::string& text);

}  // namespace nn
