#include "lib/job/gather/prefetch.hpp"

#include <algorithm>
#include <utility>

namespace elrun::inline v0 {

void PrefetchPredictor::begin() {
  if (!now_.empty()) std::swap(before_, now_);  // both keep their memory
  now_.clear();
  at_ = 0;
}

std::optional<std::uint32_t> PrefetchPredictor::used(std::uint32_t unit) {
  if (now_.size() < uses_max) now_.push_back(unit);
  const auto rest = before_.begin() + static_cast<std::ptrdiff_t>(at_);
  const auto found = std::find(rest, before_.end(), unit);
  if (found == before_.end()) return std::nullopt;  // it did not come in this place before: what follows may yet be as it was
  at_ = static_cast<std::size_t>(found - before_.begin()) + 1;
  if (at_ == before_.size()) return std::nullopt;
  return before_[at_];
}

std::optional<std::uint32_t> PrefetchPredictor::next_slots_first() const {
  if (now_.empty()) return std::nullopt;
  return now_.front();
}

}  // namespace elrun::inline v0
