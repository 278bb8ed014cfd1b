#include "lib/job/gather/pending_requests.hpp"

#include <algorithm>
#include <utility>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {

void PendingRequests::begin(const Phase& phase) {
  if (at_ == phase || next_ == phase) return;
  if (at_ && ended_) {
    ELRUN_ASSERT(!next_);
    next_ = phase;
  } else {
    ELRUN_ASSERT(!sent_ && leaves_.empty());
    at_ = phase;
  }
}

void PendingRequests::end() {
  ELRUN_ASSERT(at_ && !next_);
  ended_ = true;
}

void PendingRequests::want(std::uint32_t unit) {
  predicted_.reset();
  if (!comes(unit)) wanted_ = unit;
}

void PendingRequests::prefetch(std::uint32_t unit) {
  if (!comes(unit)) predicted_ = unit;
}

void PendingRequests::forget(std::uint32_t unit) {
  ELRUN_ASSERT(!sent_ || sent_->gather != unit);
  if (predicted_ == unit) predicted_.reset();
  here_[unit] = false;
}

Need PendingRequests::say() {
  ELRUN_ASSERT(has_request() && !sent_);
  Need need{.phase = *at_};
  if (const auto unit = wanted_ ? wanted_ : predicted_) need.gather = *unit;
  if (!leaves_.empty()) need.hand_off = leaves_.front();
  need.last = ended_ && leaves_.size() <= 1;
  std::exchange(wanted_ ? wanted_ : predicted_, std::nullopt);
  sent_ = need;
  return need;
}

void PendingRequests::heard(std::span<const Need> by_rank, std::uint32_t me) {
  ELRUN_ASSERT(sent_);
  if (sent_->gather != Need::nothing) here_[sent_->gather] = true;
  if (by_rank[me].hand_off != Need::nothing) leaves_.pop_front();
  sent_.reset();
  if (!std::ranges::all_of(by_rank, [](const Need& need) { return need.last != 0; })) return;
  at_ = std::exchange(next_, std::nullopt);
  ended_ = false;
}

}  // namespace elrun::inline v0
