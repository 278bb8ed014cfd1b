#include "lib/link/session_state.hpp"

#include <utility>

#include <fmt/format.h>

#include "lib/base/wait_time.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration answer_slack = 1s;     // the loop ends every wait by its deadline; the caller's own clock only if it cannot
constexpr std::size_t calls_max = 65536;  // store calls under way in one process

}  // namespace

Result<void> SessionState::wait_until_ready(Deadline deadline) {
  std::unique_lock lock{mutex_};
  changed_.wait_for(lock, wait_time(deadline, clock_.now()) + answer_slack, [&] { return place_ || lost_; });
  if (place_) return {};
  if (lost_) return *lost_;
  return Failure{Code::deadline_passed, Remedy::retry, fmt::format("no word from {} in time", where_)};
}

Session::Remembered SessionState::remembered() const {
  const std::lock_guard lock{mutex_};
  return remembered_;
}

bool SessionState::is_leaving() const {
  const std::lock_guard lock{mutex_};
  return leaving_;
}

std::optional<Failure> SessionState::over() const {
  const std::lock_guard lock{mutex_};
  return over_;
}

Result<std::uint64_t> SessionState::begin_call() {
  const std::lock_guard lock{mutex_};
  if (auto failure = over_failure()) return *failure;
  if (calls_.size() >= calls_max) return Failure{Code::exhausted, Remedy::retry, fmt::format("{} store calls are under way", calls_max)};
  calls_.emplace(++last_call_, std::nullopt);
  return last_call_;
}

Result<StoreReply> SessionState::wait_for_answer(std::uint64_t call, const std::string& key, Deadline deadline) {
  std::unique_lock lock{mutex_};
  changed_.wait_for(lock, wait_time(deadline, clock_.now()), [&] { return over_ || calls_.at(call); });
  auto ended = calls_.extract(call);
  if (ended.mapped()) return std::move(*ended.mapped());
  if (auto failure = over_failure()) return *failure;
  return Failure{
      .code = Code::deadline_passed,
      .remedy = Remedy::retry,
      .what = fmt::format("a store call{} had no answer from {} in time", key.empty() ? "" : fmt::format(" (\"{}\")", key), where_),
      .rank = place_->membership.rank,
      .generation = place_->membership.generation};
}

Result<bool> SessionState::wait_until_over(Deadline deadline) {
  std::unique_lock lock{mutex_};
  changed_.wait_for(lock, wait_time(deadline, clock_.now()), [&] { return over_ || lost_; });
  if (over_ || lost_) return next_.has_value();
  return Failure{.code = Code::deadline_passed,
                 .remedy = Remedy::exit_process,
                 .what = fmt::format("{} has not said in time that the generation is over", where_),
                 .rank = place_->membership.rank,
                 .generation = place_->membership.generation};
}

Result<void> SessionState::next_place() {
  std::unique_lock lock{mutex_};
  changed_.wait(lock, [&] { return next_ || lost_; });
  if (lost_) return *lost_;
  place_ = std::exchange(next_, std::nullopt);
  over_.reset();
  return {};
}

Result<void> SessionState::wait_until_job_is_over(Deadline deadline) {
  std::unique_lock lock{mutex_};
  changed_.wait_for(lock, wait_time(deadline, clock_.now()), [&] { return job_over_ || lost_; });
  if (job_over_) return {};
  if (lost_) return *lost_;
  return Failure{Code::deadline_passed, Remedy::retry, fmt::format("{} has not confirmed in time that the job is over", where_)};
}

void SessionState::remember(const Session::Remembered& remembered) {
  const std::lock_guard lock{mutex_};
  remembered_ = remembered;
}

void SessionState::welcome(Place place, std::optional<Failure> over) {
  const std::lock_guard lock{mutex_};
  if (over) over_ = std::move(over);
  place_ = std::move(place);
  changed_.notify_all();
}

bool SessionState::offer_next(const Place& place) {
  const std::lock_guard lock{mutex_};
  if (!over_) return false;
  leaving_ = false;  // here, for the agent may say so again before the program takes its place
  next_ = place;
  changed_.notify_all();
  return true;
}

void SessionState::leave() {
  const std::lock_guard lock{mutex_};
  leaving_ = true;
}

void SessionState::answer(const StoreReply& reply) {
  const std::lock_guard lock{mutex_};
  if (const auto call = calls_.find(reply.id); call != calls_.end()) call->second = reply;
  changed_.notify_all();
}

void SessionState::job_is_over() {
  const std::lock_guard lock{mutex_};
  job_over_ = true;
  changed_.notify_all();
}

Failure SessionState::lose(Failure why) {
  const std::lock_guard lock{mutex_};
  why.rank = place_ ? place_->membership.rank : rank_;
  if (place_) why.generation = place_->membership.generation;
  if (!lost_) lost_ = why;
  return why;
}

void SessionState::end(const Failure& why) {
  const std::lock_guard lock{mutex_};
  next_.reset();
  if (!over_) over_ = why;
  changed_.notify_all();
}

std::optional<Failure> SessionState::over_failure() const {
  if (!over_) return {};
  Failure failure = *over_;
  failure.code = Code::generation_over;
  failure.what = fmt::format("the generation is over: {}", over_->what);
  failure.rank = place_ ? place_->membership.rank : rank_;
  if (place_) failure.generation = place_->membership.generation;
  return failure;
}

}  // namespace elrun::inline v0
