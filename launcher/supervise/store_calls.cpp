#include "launcher/supervise/store_calls.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace elrun::inline v0::launcher {
namespace {

// Doing it twice is the same as doing it once, so a call whose answer was lost may be sent again.
bool may_repeat(StoreOp op) {
  return (op != StoreOp::add || ELRUN_PLANTED(add_repeated_after_reconnect)) && op != StoreOp::compare_set && op != StoreOp::remove;
}

}  // namespace

StoreReply failed_call(const StoreRequest& call, Code code, std::string what) {
  StoreReply reply;
  reply.id = call.id;
  reply.ok = false;
  reply.code = code;
  reply.what = std::move(what);
  return reply;
}

std::optional<StoreReply> StoreCalls::add(ConnectionId from, const StoreRequest& call, Instant now) {
  const auto under_way = std::distance(calls_.lower_bound(first_of(from)), calls_.upper_bound(last_of(from)));
  if (static_cast<std::size_t>(under_way) >= store_calls_per_worker_max)
    return failed_call(call, Code::exhausted,
                       fmt::format("{} store calls of this worker are under way already", store_calls_per_worker_max));
  if (!calls_.try_emplace({from, call.id}, call, now).second)
    return failed_call(call, Code::protocol, fmt::format("a store call with the number {} is under way already", call.id));
  return std::nullopt;
}

std::optional<StoreOp> StoreCalls::answered(const StoreResult& result) {
  auto call = calls_.extract({result.worker, result.reply.id});
  if (call.empty()) return std::nullopt;
  StoreRequest& request = call.mapped().first;
  const StoreOp op = request.op;
  memory_.note(std::move(request), result.reply);
  return op;
}

std::vector<std::pair<ConnectionId, StoreReply>> StoreCalls::coordinator_lost() {
  std::vector<std::pair<ConnectionId, StoreReply>> answers;
  for (auto call = calls_.begin(); call != calls_.end();) {
    const StoreRequest& request = call->second.first;
    if (may_repeat(request.op)) {
      ++call;
      continue;
    }
    answers.emplace_back(call->first.first,
                         failed_call(request, Code::unreachable,
                                     "the coordinator was lost while this call was under way; whether it was done is not known"));
    call = calls_.erase(call);
  }
  return answers;
}

std::vector<std::pair<ConnectionId, StoreReply>> StoreCalls::end_late(Instant now) {
  std::vector<std::pair<ConnectionId, StoreReply>> answers;
  for (auto call = calls_.begin(); call != calls_.end();) {
    const auto& [request, since] = call->second;
    // One that does not wait at all asks how things are: it is asked again.
    if (!may_wait(request.op) || request.wait <= Duration{0} || request.wait > now - since) {
      ++call;
      continue;
    }
    answers.emplace_back(call->first.first,
                         failed_call(request, Code::deadline_passed, "its time to wait was over before the coordinator came back"));
    call = calls_.erase(call);
  }
  return answers;
}

void StoreCalls::forget(ConnectionId caller) { calls_.erase(calls_.lower_bound(first_of(caller)), calls_.upper_bound(last_of(caller))); }

bool StoreCalls::is_gathering(ConnectionId caller) const {
  return std::any_of(calls_.lower_bound(first_of(caller)), calls_.upper_bound(last_of(caller)),
                     [](const auto& call) { return call.second.first.op == StoreOp::all_gather; });
}

std::vector<StoreCall> StoreCalls::to_send_again(bool fresh, const World& world, Instant now) const {
  std::vector<StoreCall> calls;
  if (fresh)
    for (StoreRequest& request : memory_.replay(world.generation, world.seat.group_rank)) calls.push_back({0, std::move(request)});
  for (const auto& [call, asked] : calls_) {
    calls.push_back({call.first, asked.first});
    if (may_wait(asked.first.op)) calls.back().request.wait = std::max<Duration>(asked.first.wait - (now - asked.second), Duration{0});
  }
  return calls;
}

}  // namespace elrun::inline v0::launcher
