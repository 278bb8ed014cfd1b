#include "lib/job/save/save_interval.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace elrun::inline v0 {

void SaveInterval::begin(Instant now) {
  if (!last_save_) last_save_ = now;
  last_vote_.reset();
  stood_still_ = {};
  is_saving_ = false;
}

void SaveInterval::saved(Instant begun, Instant now) {
  last_save_ = begun;
  stood_still_ += now - begun;
  is_saving_ = true;
  costs_.push_back(now - begun);
  if (costs_.size() > costs_kept) costs_.pop_front();
}

bool SaveInterval::vote(std::uint64_t steps, Instant now, bool is_writing) {
  if (last_vote_) measure(std::max<Duration>(now - *last_vote_ - stood_still_, Duration{0}), is_writing);
  last_vote_ = now;
  stood_still_ = {};
  is_saving_ = is_writing;
  const bool is_asked = is_writing ? is_by_steps(steps) : is_wished(steps, now);
  return is_asked && is_affordable(now);
}

void SaveInterval::measure(Duration step, bool is_writing) {
  if (is_writing || is_saving_) {
    if (!costs_.empty() && !steps_.empty()) costs_.back() += std::max<Duration>(step - usual_step(), Duration{0});
    return;
  }
  steps_.push_back(step);
  if (steps_.size() > steps_kept) steps_.pop_front();
}

Duration SaveInterval::usual_step() const {
  std::vector<Duration> sorted(steps_.begin(), steps_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

std::optional<Duration> SaveInterval::cost() const {
  if (costs_.empty()) return {};
  return std::accumulate(costs_.begin(), costs_.end(), Duration{0}) / static_cast<std::int64_t>(costs_.size());
}

bool SaveInterval::is_by_steps(std::uint64_t steps) const { return wish_.steps > 0 && steps % wish_.steps == 0; }

bool SaveInterval::is_wished(std::uint64_t steps, Instant now) const {
  const bool by_time = wish_.time > Duration{0} && last_save_ && now - *last_save_ >= wish_.time;
  return is_by_steps(steps) || by_time || (wish_.steps == 0 && wish_.time == Duration{0} && wish_.budget > 0);
}

/// Before the first save nobody knows: after a few steps, which say what a step takes, one is made to learn it.
bool SaveInterval::is_affordable(Instant now) const {
  if (wish_.budget == 0) return true;
  const auto mean = cost();
  if (!mean) return steps_.size() >= steps_before_first;
  return std::chrono::duration<double>(*mean).count() <= wish_.budget * std::chrono::duration<double>(now - *last_save_).count();
}

}  // namespace elrun::inline v0
