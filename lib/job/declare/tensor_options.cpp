#include "lib/job/declare/tensor_options.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <string_view>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

constexpr std::string_view entry = "elrun.tensors";
constexpr std::size_t tensors_told = 5;  // of each change
constexpr std::size_t tensors_kept_max =
    32'768;  // of a larger model nothing is kept: host state goes to a newcomer in one piece, and has a limit

// A byte of each tensor. Decay of a frozen one says nothing.
constexpr std::byte trains{0}, decays{1}, frozen{2};

std::byte code_of(const TensorOptions& options) { return options.frozen ? frozen : options.decay ? decays : trains; }

/// Calls `see(unit, tensor)` for each, by units, and in a unit by their place: so a checkpoint's table has them, in whatever order they are declared.
template <class See>
void for_each(const std::vector<UnitSpec>& units, const Layout& layout, See see) {
  for (std::size_t u = 0; u < units.size(); ++u) {
    std::vector<std::size_t> order(units[u].tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {}, [&](std::size_t i) { return layout.units[u].offsets[i]; });
    for (const std::size_t i : order) see(units[u], units[u].tensors[i]);
  }
}

class Names {
 public:
  void add(const UnitSpec& unit, const TensorSpec& tensor) {
    if (++count_ <= tensors_told) text_ += fmt::format("{}{}/{}", text_.empty() ? "" : ", ", unit.name, tensor.name);
  }
  void tell(std::string& to, std::string_view what) const {
    if (count_ == 0) return;
    to += fmt::format("\n{}: {}", what, text_);
    if (count_ > tensors_told) to += fmt::format(" and {} more", count_ - tensors_told);
  }

 private:
  std::string text_;
  std::size_t count_ = 0;
};

}  // namespace

void append_tensor_options(std::vector<Aux>& aux, const std::vector<UnitSpec>& units, const Layout& layout) {
  std::vector<std::byte> codes;
  for_each(units, layout, [&](const UnitSpec&, const TensorSpec& tensor) { codes.push_back(code_of(tensor.options)); });
  if (codes.size() <= tensors_kept_max) aux.push_back({std::string{entry}, std::move(codes)});
}

std::optional<std::string> tensor_options_doubt(const std::vector<Aux>& aux, const std::vector<UnitSpec>& units, const Layout& layout) {
  const auto at = std::ranges::find(aux, entry, &Aux::name);
  if (at == aux.end()) return std::nullopt;
  Names thawed, frozen_now, decays_now, decays_no_more;
  std::size_t i = 0;
  for_each(units, layout, [&](const UnitSpec& unit, const TensorSpec& tensor) {
    const std::byte now = code_of(tensor.options), then = i < at->bytes.size() ? at->bytes[i] : now;
    ++i;
    if (then == now) return;
    Names& names = now == frozen ? frozen_now : then == frozen ? thawed : now == decays ? decays_now : decays_no_more;
    names.add(unit, tensor);
  });
  std::string changes;
  thawed.tell(changes, "frozen in the checkpoint, and trained now, with moments that begin at zero");
  frozen_now.tell(changes, "trained in the checkpoint, and frozen now; their moments are given up");
  decays_now.tell(changes, "without weight decay in the checkpoint, and with it now");
  decays_no_more.tell(changes, "with weight decay in the checkpoint, and without it now");
  if (changes.empty()) return std::nullopt;
  return "tensors are declared otherwise than in the checkpoint, and the bits follow from it:" + changes;
}

}  // namespace elrun::inline v0
