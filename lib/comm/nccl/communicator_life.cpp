#include "lib/comm/nccl/communicator_life.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

/// Calls that were issued and are not over. Each holds an event.
constexpr std::size_t calls_max = 4096;

constexpr const char* unnamed_peer = "NCCL does not say which rank is missing: look for the one that hangs, or makes other calls";

}  // namespace

CommunicatorLife::CommunicatorLife(CommunicatorPlace place, const CommunicatorLimits& limits, Instant now, Duration make)
    : place_{std::move(place)}, limits_{limits}, whole_{"making the communicator", Deadline::after(now, make), make} {}

std::string CommunicatorLife::device() const { return fmt::format("cuda:{}", place_.device.index); }

void CommunicatorLife::enter(CommunicatorState state) {
  ELRUN_ASSERT(may_follow(state_, state));
  state_ = state;
}

void CommunicatorLife::fail(Failure why) {
  if (!usable()) return;  // the first failure stays
  why.rank = place_.me.rank;
  why.generation = place_.me.generation;
  if (!place_.group.empty()) why.what = fmt::format("in the group \"{}\": {}", place_.group, why.what);
  if (!place_.settings.empty()) why.what += fmt::format(" (set by the user: {})", place_.settings);
  failure_ = std::move(why);
  enter(CommunicatorState::revoked);
}

Result<std::uint64_t> CommunicatorLife::begin_call(std::string name, Instant now, Duration limit) {
  if (failure_) return failure_so_far();
  ELRUN_ASSERT(state_ == CommunicatorState::ready);
  if (calls_.size() >= calls_max)
    return Failure{Code::exhausted, Remedy::retry,
                   fmt::format("{} calls on {} are not over: wait for some of them first", calls_max, device())};
  enter(CommunicatorState::issuing);
  calls_[++last_call_] = {std::move(name), Deadline::after(now, limit), limit};
  return last_call_;
}

Result<void> CommunicatorLife::begin_close(Instant now, Duration limit) {
  if (failure_) return failure_so_far();
  ELRUN_ASSERT(state_ == CommunicatorState::ready && calls_.empty());
  enter(CommunicatorState::closing);
  whole_ = {"the communicator's orderly end", Deadline::after(now, limit), limit};
  return {};
}

void CommunicatorLife::answered(std::string_view call, NcclResult result, std::string_view detail) {
  if (is_error(result)) fail(from_nccl(result, call, device(), detail));
}

CommunicatorLife::Next CommunicatorLife::go_on() const {
  switch (state_) {
    case CommunicatorState::ready: return calls_.empty() ? Next::rest : Next::look_again;
    case CommunicatorState::gone:
    case CommunicatorState::stuck: return Next::end;
    default: return Next::look_again;
  }
}

CommunicatorLife::Next CommunicatorLife::look(const CommunicatorView& view) {
  if (usable()) look_for_trouble(view);
  if (state_ == CommunicatorState::revoked) {
    enter(CommunicatorState::aborting);
    aborting_since_ = abort_counts_from_ = view.now;
    return Next::give_up;
  }
  if (state_ == CommunicatorState::aborting) {
    look_at_abort(view);
  } else if (view.answer == NcclResult::success) {
    if (state_ == CommunicatorState::making || state_ == CommunicatorState::issuing) enter(CommunicatorState::ready);
    else if (state_ == CommunicatorState::closing) enter(CommunicatorState::gone);
  }
  return go_on();
}

/// The generation's end explains more than a peer that is lost, which explains more than an error of NCCL or a deadline.
void CommunicatorLife::look_for_trouble(const CommunicatorView& view) {
  if (view.over != nullptr) {
    Failure why = *view.over;
    why.what = fmt::format("the generation is over: {}", why.what);
    why.code = Code::generation_over;
    return fail(std::move(why));
  }
  look_for_loss(view);
  if (!usable()) return;
  if (is_error(view.answer)) {
    const std::string name = calls_.empty() ? whole_.name : calls_.begin()->second.name;
    Failure why = from_nccl(view.answer, name, device(), view.detail);
    if (view.lost && view.answer != NcclResult::unhandled_cuda_error) {
      why.what = fmt::format("rank {} is gone: {}", view.lost->value(), why.what);
      why.code = Code::peer_lost, why.remedy = Remedy::rejoin, why.peer = view.lost;
    }
    return fail(std::move(why));
  }
  look_at_deadlines(view.now);
}

void CommunicatorLife::look_for_loss(const CommunicatorView& view) {
  if (!view.lost) return;
  if (!lost_since_) lost_since_ = view.now;
  if (go_on() == Next::rest || view.now - *lost_since_ < limits_.loss) return;
  fail({.code = Code::peer_lost,
        .remedy = Remedy::rejoin,
        .what = fmt::format("rank {} is gone, and {} on {} is not over", view.lost->value(),
                            calls_.empty() ? whole_.name : calls_.begin()->second.name, device()),
        .peer = view.lost});
}

void CommunicatorLife::look_at_deadlines(Instant now) {
  const auto late = [&](const Call& call) {
    fail({.code = Code::deadline_passed,
          .remedy = Remedy::abort_group,
          .what = fmt::format("{} on {} with {} ranks was not over within {} ms; {}", call.name, device(), place_.me.world.value(),
                              call.limit / 1ms, unnamed_peer)});
  };
  if ((state_ == CommunicatorState::making || state_ == CommunicatorState::closing) && whole_.deadline.passed(now)) return late(whole_);
  const auto passed = std::ranges::find_if(calls_, [&](const auto& each) { return each.second.deadline.passed(now); });
  if (passed != calls_.end()) late(passed->second);
}

void CommunicatorLife::look_at_abort(const CommunicatorView& view) {
  abort_returned_ = view.abort_returned;
  if (view.abort_returned && view.drained) return enter(CommunicatorState::gone);
  const bool a_call_is_late = std::ranges::any_of(calls_, [&](const auto& each) { return each.second.deadline.passed(view.now); });
  if (view.ahead && !a_call_is_late && view.now - aborting_since_ < limits_.ahead) abort_counts_from_ = view.now;
  else if (view.now - abort_counts_from_ >= limits_.abort) enter(CommunicatorState::stuck);
}

bool CommunicatorLife::call_ended(std::uint64_t number, NcclResult answer) {
  // An event behind a kernel that was aborted is over, too: only what ended while nothing had failed has succeeded.
  if (!usable() || is_error(answer)) return false;
  ELRUN_ASSERT(calls_.erase(number) == 1);
  return true;
}

Failure CommunicatorLife::failure_so_far() const {
  ELRUN_ASSERT(failure_.has_value());
  if (state_ != CommunicatorState::stuck) return *failure_;
  Failure stuck = *failure_;
  stuck.code = Code::deadline_passed;
  stuck.remedy = Remedy::exit_process;
  stuck.what =
      fmt::format("{} on {} within {} ms, so only the end of this process frees the device; aborted because of {}: {}",
                  abort_returned_ ? "what was issued did not leave its streams after ncclCommAbort" : "ncclCommAbort did not return",
                  device(), limits_.abort / 1ms, to_string(failure_->code), failure_->what);
  return stuck;
}

}  // namespace elrun::inline v0
