#include "checkpoint/format/model.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/format/json.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t problems_told = 64;

constexpr std::array<std::pair<DType, const char*>, 8> dtypes{{{DType::f32, "F32"},
                                                               {DType::bf16, "BF16"},
                                                               {DType::f64, "F64"},
                                                               {DType::i32, "I32"},
                                                               {DType::i64, "I64"},
                                                               {DType::u8, "U8"},
                                                               {DType::u32, "U32"},
                                                               {DType::u64, "U64"}}};

/// Lines that say how two texts by name differ, in the order of `mine`, then what only `saved` has.
std::vector<std::string> compare(const std::vector<std::pair<std::string, std::string>>& saved,
                                 const std::vector<std::pair<std::string, std::string>>& mine, std::size_t limit) {
  const std::map<std::string, std::string> old(saved.begin(), saved.end()), now(mine.begin(), mine.end());
  std::vector<std::string> lines;
  for (const auto& [name, value] : mine) {
    const auto at = old.find(name);
    if (at == old.end()) lines.push_back(fmt::format("{}: the checkpoint has none, this job has {}", name, value));
    else if (at->second != value) lines.push_back(fmt::format("{}: the checkpoint has {}, this job has {}", name, at->second, value));
  }
  for (const auto& [name, value] : saved)
    if (!now.contains(name)) lines.push_back(fmt::format("{}: the checkpoint has {}, this job has none", name, value));
  if (lines.size() > limit) {
    const std::size_t more = lines.size() - limit;
    lines.resize(limit);
    lines.push_back(fmt::format("and {} more", more));
  }
  return lines;
}

std::vector<std::pair<std::string, std::string>> flatten(const ModelTable& table) {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const KindInfo& kind : table.kinds) lines.emplace_back("state " + kind.name, dtype_name(kind.dtype));
  for (const UnitInfo& unit : table.units) {
    lines.emplace_back("unit " + unit.name, fmt::format("{} elements", unit.elements));
    for (const TensorInfo& tensor : unit.tensors)
      lines.emplace_back(fmt::format("tensor {}.{}", unit.name, tensor.name),
                         fmt::format("{}[{}] at {}", dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "), tensor.offset));
  }
  return lines;
}

std::vector<std::pair<std::string, std::string>> split(std::string_view description) {
  std::vector<std::pair<std::string, std::string>> lines;
  while (!description.empty()) {
    const std::string_view line = description.substr(0, description.find('\n'));
    description.remove_prefix(std::min(line.size() + 1, description.size()));
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) lines.emplace_back(line, "set");
    else lines.emplace_back(line.substr(0, colon), line.substr(std::min(line.find_first_not_of(' ', colon + 1), line.size())));
  }
  return lines;
}

/// Product of the extents, or more than any unit can have when it overflows.
std::uint64_t bounded_count(const Shape& shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape)
    if (__builtin_mul_overflow(count, extent, &count)) return ~std::uint64_t{0};
  return count;
}

/// The first contradictions in sentences, and how many more there are: a table from a file may have millions, with a long name in each.
class Problems {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    if (++count_ <= problems_told) told_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  [[nodiscard]] std::vector<std::string> told() && {
    if (count_ > problems_told) told_.push_back(fmt::format("and {} more", count_ - problems_told));
    return std::move(told_);
  }

 private:
  std::vector<std::string> told_;
  std::size_t count_ = 0;
};

/// Whether a tensor is there in both, alike but for its offset.
bool only_moved(const ModelTable& saved, const ModelTable& mine) {
  std::map<std::pair<std::string_view, std::string_view>, const TensorInfo*> old;
  for (const UnitInfo& unit : saved.units)
    for (const TensorInfo& tensor : unit.tensors) old[{unit.name, tensor.name}] = &tensor;
  return std::ranges::any_of(mine.units, [&](const UnitInfo& unit) {
    return std::ranges::any_of(unit.tensors, [&](const TensorInfo& tensor) {
      const auto at = old.find({unit.name, tensor.name});
      return at != old.end() && at->second->dtype == tensor.dtype && at->second->shape == tensor.shape &&
             at->second->offset != tensor.offset;
    });
  });
}

}  // namespace

const char* dtype_name(DType type) {
  for (const auto& [known, name] : dtypes)
    if (known == type) return name;
  return "?";
}

bool dtype_from_name(const std::string& name, DType& type) {
  for (const auto& [known, known_name] : dtypes)
    if (name == known_name) return type = known, true;
  return false;
}

std::vector<std::string> problems(const ModelTable& table) {
  Problems all;
  std::set<std::string> kinds, units;
  if (table.kinds.empty()) all.add("a checkpoint needs at least one kind of state");
  if (table.kinds.size() > kinds_max) all.add("{} kinds of state; at most {} can be saved", table.kinds.size(), kinds_max);
  if (table.units.size() > units_max)
    all.add("{} units; at most {} can be saved: use fewer and larger ones", table.units.size(), units_max);
  std::uint64_t bytes = 0;
  for (const KindInfo& kind : table.kinds) {
    if (!is_plain_text(kind.name) || kind.name.find_first_of("/@[") != std::string::npos || kind.name == "aux" ||
        kind.name.starts_with("__"))
      all.add("kind of state \"{}\": use a short name without '/', '@', '[' or leading underscores, and not \"aux\"",
              as_plain_text(kind.name));
    if (!kinds.insert(kind.name).second) all.add("two kinds of state are called {}", kind.name);
  }
  for (const UnitInfo& unit : table.units) {
    const std::string shown = as_plain_text(unit.name);
    if (!is_plain_text(unit.name) || unit.name.find('@') != std::string::npos)
      all.add("unit \"{}\": use a name of printable characters without '@'", shown);
    if (!units.insert(unit.name).second) all.add("two units are called {}", shown);
    std::uint64_t size = 0;
    for (const KindInfo& kind : table.kinds)
      if (__builtin_mul_overflow(unit.elements, size_of(kind.dtype), &size) || __builtin_add_overflow(bytes, size, &bytes) ||
          bytes > json_integer_max) {
        all.add("unit {}: more than 2^53 bytes of state", shown);
        bytes = 0;
      }
    if (unit.tensors.size() > tensors_max) all.add("unit {}: {} tensors; at most {} can be saved", shown, unit.tensors.size(), tensors_max);
    std::set<std::string> tensors;
    for (const TensorInfo& tensor : unit.tensors) {
      if (!is_plain_text(tensor.name)) all.add("unit {}: a tensor's name is empty or not printable", shown);
      if (!tensors.insert(tensor.name).second) all.add("unit {}: two tensors are called {}", shown, as_plain_text(tensor.name));
      if (tensor.shape.size() > 8) all.add("unit {}: tensor {} has more than 8 dimensions", shown, as_plain_text(tensor.name));
      const std::uint64_t count = bounded_count(tensor.shape);
      if (count > unit.elements || tensor.offset > unit.elements - count)
        all.add("unit {}: tensor {} reaches beyond the unit's {} elements", shown, as_plain_text(tensor.name), unit.elements);
    }
  }
  return std::move(all).told();
}

std::vector<std::string> problems(const PlanIdentity& plan) {
  std::vector<std::string> all;
  if (!is_plain_text(plan.hash)) all.emplace_back("the plan's hash is empty, longer than 256 bytes or not printable");
  if (plan.description.size() > plan_description_max)
    all.push_back(fmt::format("the plan's description has {} bytes; at most {}", plan.description.size(), plan_description_max));
  return all;
}

std::vector<std::string> differences(const ModelTable& saved, const ModelTable& mine, std::size_t limit) {
  if (saved == mine) return {};
  std::vector<std::string> lines = compare(flatten(saved), flatten(mine), limit);
  if (lines.empty()) lines.emplace_back("the same units and tensors, but in another order");
  if (only_moved(saved, mine))
    lines.emplace_back(
        "a tensor of the same shape lies at another place in its unit: is it declared frozen in one of both, or in another order, or has the unit other tensors?");
  return lines;
}

std::vector<std::string> differences(const PlanIdentity& saved, const PlanIdentity& mine, std::size_t limit) {
  if (saved.hash == mine.hash) return {};  // the description may gain lines without being another plan
  std::vector<std::string> lines = compare(split(saved.description), split(mine.description), limit);
  const auto is_numeric = [](const std::string& line) {
    return line.starts_with("architecture:") || line.starts_with("elrun.numeric:") || line.starts_with("program.numeric:");
  };
  if (std::ranges::any_of(lines, is_numeric))
    lines.emplace_back(
        "architecture, elrun.numeric and program.numeric are the numeric class: with another one the same steps "
        "give other bits, so what was saved cannot be continued exactly");
  if (lines.empty()) lines.push_back(fmt::format("plan: the checkpoint has {}, this job has {}", saved.hash, mine.hash));
  return lines;
}

std::uint64_t state_bytes(const ModelTable& table) {
  std::uint64_t bytes = 0;
  for (const KindInfo& kind : table.kinds)
    for (const UnitInfo& unit : table.units) bytes += unit.elements * size_of(kind.dtype);
  return bytes;
}

}  // namespace elrun::inline v0
