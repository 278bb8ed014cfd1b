#include "lib/job/errands.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {

void Errands::begin(const Phase& phase) {
  if (at_ == phase || next_ == phase) return;
  if (at_ && ended_) {
    ELRUN_ASSERT(!next_);
    next_ = phase;
  } else {
    ELRUN_ASSERT(!said_ && leaves_.empty());
    at_ = phase;
  }
}

void Errands::end() {
  ELRUN_ASSERT(at_ && !next_);
  ended_ = true;
}

void Errands::want(std::uint32_t unit) {
  foreseen_.reset();
  if (!comes(unit)) wanted_ = unit;
}

void Errands::foresee(std::uint32_t unit) {
  if (!comes(unit)) foreseen_ = unit;
}

void Errands::forget(std::uint32_t unit) {
  ELRUN_ASSERT(!said_ || said_->gather != unit);
  if (foreseen_ == unit) foreseen_.reset();
  here_[unit] = false;
}

Need Errands::say() {
  ELRUN_ASSERT(has_word() && !said_);
  Need need{.phase = *at_};
  if (const auto unit = wanted_ ? wanted_ : foreseen_) need.gather = *unit;
  if (!leaves_.empty()) need.hand_off = leaves_.front();
  need.last = ended_ && leaves_.size() <= 1;
  std::exchange(wanted_ ? wanted_ : foreseen_, std::nullopt);
  said_ = need;
  return need;
}

void Errands::heard(std::span<const Need> by_rank, std::uint32_t me) {
  ELRUN_ASSERT(said_);
  if (said_->gather != Need::nothing) here_[said_->gather] = true;
  if (by_rank[me].hand_off != Need::nothing) leaves_.pop_front();
  said_.reset();
  if (!std::ranges::all_of(by_rank, [](const Need& need) { return need.last != 0; })) return;
  at_ = std::exchange(next_, std::nullopt);
  ended_ = false;
}

}  // namespace elrun::inline v0
