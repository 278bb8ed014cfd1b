#include "checkpoint/format/boxes.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

std::string text_of(const Box& box) {
  std::string text;
  for (const auto& [begin, end] : box) text += fmt::format("{}{}:{}", text.empty() ? "[" : ",", begin, end);
  return text + "]";
}

/// Appends the boxes of elements [begin, end) of the sub-tensor that `prefix` leaves: the rest of a first row, whole rows, the beginning of a last one.
void append_boxes(const Shape& shape, const Box& prefix, std::uint64_t begin, std::uint64_t end, std::vector<Box>& boxes) {
  const std::size_t dimension = prefix.size();
  const auto with = [&](std::uint64_t from, std::uint64_t until) {
    Box box = prefix;
    box.emplace_back(from, until);
    return box;
  };
  std::uint64_t row = 1;  // elements
  for (std::size_t d = dimension + 1; d < shape.size(); ++d) row *= shape[d];
  const std::uint64_t last = end / row;
  std::uint64_t first = begin / row;
  if (begin % row != 0) {
    append_boxes(shape, with(first, first + 1), begin % row, first == last ? end % row : row, boxes);
    if (first == last) return;
    ++first;
  }
  if (first < last) {
    boxes.push_back(with(first, last));
    for (std::size_t d = dimension + 1; d < shape.size(); ++d) boxes.back().emplace_back(0, shape[d]);
  }
  if (end % row != 0) append_boxes(shape, with(last, last + 1), 0, end % row, boxes);
}

}  // namespace

std::string without_bracket(const std::string& name) {
  std::string out;
  for (const char c : name) {
    if (c == '[') out += "%5B";
    else if (c == '%') out += "%25";
    else out += c;
  }
  return out;
}

std::vector<Box> boxes_of(const Shape& shape, std::uint64_t begin, std::uint64_t end) {
  if (shape.empty()) return {Box{}};
  std::vector<Box> boxes;
  append_boxes(shape, {}, begin, end, boxes);
  return boxes;
}

TensorNames::TensorNames(const ModelTable& model) : model_{&model} {
  std::set<std::string> taken;
  for (const UnitInfo& unit : model.units) {
    auto& names = names_.emplace_back();
    for (const TensorInfo& tensor : unit.tensors) {
      const std::string joined = without_bracket(unit.name + "." + tensor.name);
      std::string name = joined;
      for (int n = 2; !taken.insert(name).second; ++n) name = fmt::format("{}#{}", joined, n);  // unit a.b, tensor c; unit a, tensor b.c
      names.push_back(std::move(name));
    }
    auto& order = by_offset_.emplace_back(unit.tensors.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return unit.tensors[a].offset < unit.tensors[b].offset; });
  }
}

std::vector<NamedRun> TensorNames::cut(std::size_t unit, std::uint64_t begin, std::uint64_t end) const {
  const UnitInfo& info = model_->units[unit];
  std::vector<NamedRun> runs;
  const auto no_tensor = [&](std::uint64_t from, std::uint64_t until) {
    if (from < until)
      runs.push_back({fmt::format("{}[{}:{}]", without_bracket(info.name), from, until), {until - from}, until - from, false, 0});
  };
  std::uint64_t at = begin;
  for (const std::uint32_t index : by_offset_[unit]) {
    const TensorInfo& tensor = info.tensors[index];
    if (tensor.offset >= end) break;
    const std::uint64_t count = element_count(tensor.shape);
    // Where tensors share elements, the first one shows them.
    const std::uint64_t from = std::max(at, tensor.offset), until = std::min(end, tensor.offset + count);
    if (from >= until) continue;
    no_tensor(at, from);
    const bool is_whole = until - from == count;
    for (const Box& box : boxes_of(tensor.shape, from - tensor.offset, until - tensor.offset)) {
      NamedRun run{names_[unit][index] + (is_whole ? "" : text_of(box)), {}, 1, true, index};
      for (const auto& [first, last] : box) {
        run.shape.push_back(last - first);
        run.elements *= last - first;
      }
      runs.push_back(std::move(run));
    }
    at = until;
  }
  no_tensor(at, end);
  return runs;
}

}  // namespace elrun::inline v0
