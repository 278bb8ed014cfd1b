#include "checkpoint/tools/difference.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/format/boxes.hpp"

namespace elrun::inline v0 {
namespace {

template <class T>
T element_at(ByteSpan bytes, std::uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

double widened(bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }
template <class T>
double widened(T x) {
  return static_cast<double>(x);
}

/// Integers of 64 bits are subtracted as such: as doubles, neighbours could be equal.
template <class T>
double distance(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<double>(a < b ? static_cast<U>(static_cast<U>(b) - static_cast<U>(a))
                                     : static_cast<U>(static_cast<U>(a) - static_cast<U>(b)));
  } else {
    return std::abs(widened(a) - widened(b));
  }
}

template <class T>
void add_elements(Difference& d, ByteSpan a, ByteSpan b) {
  for (std::uint64_t i = 0; i < a.size() / sizeof(T); ++i) {
    if (std::memcmp(a.data() + i * sizeof(T), b.data() + i * sizeof(T), sizeof(T)) == 0) continue;
    const T x = element_at<T>(a, i), y = element_at<T>(b, i);
    if (d.different++ == 0) d.first = d.elements + i, d.first_a = widened(x), d.first_b = widened(y);
    const double apart = distance(x, y);
    if (!std::isfinite(apart)) ++d.not_numbers;
    else d.largest = std::max(d.largest, apart);
  }
}

}  // namespace

std::vector<StoredTensor> tensors_of(const ModelTable& model) {
  const TensorNames names{model};
  std::vector<StoredTensor> all;
  for (const KindInfo& kind : model.kinds)
    for (std::uint64_t u = 0; u < model.units.size(); ++u) {
      const UnitInfo& unit = model.units[u];
      const std::string prefix = kind.name + "/";
      if (unit.tensors.empty()) all.push_back({prefix + without_bracket(unit.name), kind.name, u, 0, kind.dtype, {unit.elements}});
      for (std::size_t t = 0; t < unit.tensors.size(); ++t)
        all.push_back({prefix + names.name(u, t), kind.name, u, unit.tensors[t].offset, kind.dtype, unit.tensors[t].shape});
    }
  return all;
}

void Difference::add(DType type, ByteSpan a, ByteSpan b) {
  if (std::memcmp(a.data(), b.data(), a.size()) != 0) {
    switch (type) {
      case DType::f32: add_elements<float>(*this, a, b); break;
      case DType::bf16: add_elements<bf16>(*this, a, b); break;
      case DType::f64: add_elements<double>(*this, a, b); break;
      case DType::i32: add_elements<std::int32_t>(*this, a, b); break;
      case DType::i64: add_elements<std::int64_t>(*this, a, b); break;
      case DType::u8: add_elements<std::uint8_t>(*this, a, b); break;
      case DType::u32: add_elements<std::uint32_t>(*this, a, b); break;
      case DType::u64: add_elements<std::uint64_t>(*this, a, b); break;
    }
  }
  elements += a.size() / size_of(type);
}

std::vector<TensorPair> pairs(const std::vector<StoredTensor>& a, const std::vector<StoredTensor>& b) {
  std::map<std::string_view, std::ptrdiff_t> by_name;
  for (std::size_t i = 0; i < b.size(); ++i) by_name.emplace(b[i].name, static_cast<std::ptrdiff_t>(i));
  std::vector<TensorPair> all;
  std::vector<bool> met(b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto at = by_name.find(a[i].name);
    all.push_back({static_cast<std::ptrdiff_t>(i), at == by_name.end() ? -1 : at->second});
    if (at != by_name.end()) met[static_cast<std::size_t>(at->second)] = true;
  }
  for (std::size_t i = 0; i < b.size(); ++i)
    if (!met[i]) all.push_back({-1, static_cast<std::ptrdiff_t>(i)});
  return all;
}

std::string index_text(std::uint64_t element, const Shape& shape) {
  std::vector<std::uint64_t> index(shape.size());
  for (std::size_t i = shape.size(); i-- > 0 && shape[i] > 0;) index[i] = element % shape[i], element /= shape[i];
  return shape_text(index);
}

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace elrun::inline v0
