// The idea: a caller that must wait is parked at exactly one key that it misses. When that key appears it is looked at
// again, and answered or parked at the next key that is missing; so a `set` costs as much as it has waiters, however
// many wait elsewhere. A barrier or all_gather is a set of waiters by rank that is answered whole, once it is full:
// whoever gave up or died before has left the set, so it never opens on behalf of somebody who is no longer there.

#include "lib/link/store_core.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t named_max = 16;    // missing ranks or keys that one failure names
constexpr std::size_t shown_key_max = 80;

std::string shown(std::string_view key) {
  return key.size() <= shown_key_max ? fmt::format("\"{}\"", key) : fmt::format("\"{}...\"", key.substr(0, shown_key_max));
}

StoreReply failed(Code code, std::string what) {
  StoreReply reply;
  reply.ok = false;
  reply.code = code;
  reply.what = std::move(what);
  return reply;
}

StoreReply with_number(std::int64_t number) {
  StoreReply reply;
  reply.number = number;
  return reply;
}

StoreReply with_value(ByteVector value) {
  StoreReply reply;
  reply.values.push_back(std::move(value));
  return reply;
}

bool gathers(StoreOp op) { return op == StoreOp::barrier || op == StoreOp::all_gather; }

std::uint64_t weight(const StoreRequest& request) {  // what a waiting call holds
  std::uint64_t bytes = request.value.size() + request.expected.size();
  for (const std::string& key : request.keys) bytes += key.size();
  return bytes;
}

std::optional<std::string> out_of_bounds(const StoreRequest& r) {
  if (r.op < StoreOp::set || r.op > StoreOp::all_gather) return fmt::format("unknown operation {}", static_cast<unsigned>(r.op));
  const std::size_t keys_max = r.op == StoreOp::wait ? store_keys_per_call_max : 1;
  const std::size_t keys_min = r.op == StoreOp::num_keys || r.op == StoreOp::wait ? 0 : 1;
  if (r.keys.size() < keys_min || r.keys.size() > keys_max)
    return fmt::format("{} keys in one call; it takes {} to {}", r.keys.size(), keys_min, keys_max);
  for (const std::string& key : r.keys)
    if (key.size() > store_key_max.value())
      return fmt::format("key {} has {} bytes; {} are allowed", shown(key), key.size(), store_key_max.value());
  if (r.value.size() + r.expected.size() > store_value_max.value())
    return fmt::format("values for {} have {} bytes; {} are allowed", shown(r.keys.empty() ? "" : r.keys[0]),
                       r.value.size() + r.expected.size(), store_value_max.value());
  if (!gathers(r.op)) return {};
  if (r.count < 1 || r.count > store_count_max || r.rank >= r.count)
    return fmt::format("rank {} of {} callers at {}; a count is 1 to {}, ranks are below it", r.rank, r.count, shown(r.keys[0]),
                       store_count_max);
  if (r.value.size() * r.count > store_value_max.value())
    return fmt::format("all_gather {} of {} ranks takes at most {} bytes per rank, not {}", shown(r.keys[0]), r.count,
                       store_value_max.value() / r.count, r.value.size());
  return {};
}

}  // namespace

std::vector<StoreAnswer> StoreCore::begin_generation(const Generation& generation) {
  Answers answers = dismiss_all(fmt::format("generation {} is over; generation {} began", to_string(generation_), to_string(generation)));
  for (auto entry = keys_.begin(); entry != keys_.end();) {
    const auto here = entry++;
    if (!here->first.starts_with(store_job_prefix)) erase_key(here);
  }
  generation_ = generation;
  over_.reset();
  return answers;
}

std::vector<StoreAnswer> StoreCore::end_generation(std::string why) {
  over_ = fmt::format("generation {} is over: {}", to_string(generation_), why);
  return dismiss_all(*over_);
}

std::vector<StoreAnswer> StoreCore::call(StoreCaller from, const StoreRequest& request, Instant now) {
  Answers answers;
  const WaiterId id{from, request.id};
  if (std::optional<StoreReply> no = refusal(id, request)) return answer(answers, id, *std::move(no)), answers;
  const auto entry = request.keys.empty() ? keys_.end() : keys_.find(request.keys[0]);
  switch (request.op) {
    case StoreOp::set:
      answer(answers, id, {});
      put(answers, request.keys[0], request.value);
      break;
    case StoreOp::get:
    case StoreOp::wait:
      wait_or_answer(answers, id, request, now);
      break;
    case StoreOp::add: {
      std::int64_t sum = 0;
      if (entry != keys_.end()) {
        const std::string_view text = as_text(entry->second);
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum);
        if (error != std::errc{} || end != text.data() + text.size()) {
          answer(answers, id, failed(Code::invalid_argument, fmt::format("key {} holds no decimal number that add could add to", shown(request.keys[0]))));
          break;
        }
      }
      if (__builtin_add_overflow(sum, request.amount, &sum)) {
        answer(answers, id, failed(Code::invalid_argument, fmt::format("the counter {} would leave 64 bits", shown(request.keys[0]))));
        break;
      }
      const std::string text = fmt::format("{}", sum);
      answer(answers, id, with_number(sum));
      put(answers, request.keys[0], ByteVector(as_bytes(text).begin(), as_bytes(text).end()));
      break;
    }
    case StoreOp::compare_set:
      if (entry == keys_.end() ? request.expected.empty() : entry->second == request.expected) {
        answer(answers, id, with_value(request.value));
        put(answers, request.keys[0], request.value);
      } else {
        answer(answers, id, with_value(entry == keys_.end() ? request.expected : entry->second));
      }
      break;
    case StoreOp::remove:
      answer(answers, id, with_number(entry != keys_.end()));
      if (entry != keys_.end()) erase_key(entry);
      break;
    case StoreOp::num_keys:
      answer(answers, id, with_number(static_cast<std::int64_t>(keys_.size())));
      break;
    case StoreOp::barrier:
    case StoreOp::all_gather:
      arrive(answers, id, request, now);
      break;
  }
  return answers;
}

void StoreCore::forget(StoreCaller caller) {
  for (auto at = waiters_.lower_bound({caller, 0}); at != waiters_.end() && at->first.first == caller;) {
    const WaiterId id = (at++)->first;
    dismiss(id);
  }
}

std::vector<StoreAnswer> StoreCore::expire(Instant now) {
  Answers answers;
  // All who are late at one time get the same list of the missing, none of them on it: so first look, then dismiss.
  std::vector<WaiterId> late;
  for (auto at = expiries_.begin(); at != expiries_.end() && at->first <= now; ++at) late.push_back(at->second);
  for (const WaiterId& id : late) answer(answers, id, failed(Code::deadline_passed, waited_for(waiters_.at(id).request)));
  for (const WaiterId& id : late) dismiss(id);
  return answers;
}

std::optional<Instant> StoreCore::next_expiry() const {
  if (expiries_.empty()) return {};
  return expiries_.begin()->first;
}

// Why a call is not even tried, if so: checked before anything is kept of it.
std::optional<StoreReply> StoreCore::refusal(const WaiterId& id, const StoreRequest& request) const {
  if (auto problem = out_of_bounds(request)) return failed(Code::invalid_argument, *std::move(problem));
  if (generation_.number == 0) return failed(Code::refused, "no generation has begun in this store");
  if (request.generation != generation_) {
    const bool stale = request.generation.number < generation_.number;
    return failed(stale ? Code::generation_over : Code::refused,
                  fmt::format("the caller's generation {} is {}; the store serves generation {}", to_string(request.generation),
                              stale ? "over" : "not known here", to_string(generation_)));
  }
  if (over_) return failed(Code::generation_over, *over_);
  if (waiters_.contains(id)) return failed(Code::invalid_argument, fmt::format("call {} is under way already", request.id));
  const bool grows = request.op == StoreOp::set || request.op == StoreOp::add || request.op == StoreOp::compare_set;
  const bool waits = request.op == StoreOp::get || request.op == StoreOp::wait || gathers(request.op);
  if ((grows || waits) && bytes_ + weight(request) > store_total_max.value())
    return failed(Code::exhausted, fmt::format("the store is full: it holds {} of {} bytes", bytes_, store_total_max.value()));
  if (waits && waiters_.size() >= store_waiters_max)
    return failed(Code::exhausted, fmt::format("{} callers wait already", waiters_.size()));
  return {};
}

void StoreCore::answer(Answers& answers, const WaiterId& to, StoreReply reply) const {
  reply.id = to.second;
  answers.push_back({to.first, std::move(reply)});
}

void StoreCore::put(Answers& answers, const std::string& key, ByteVector value) {
  const auto [entry, fresh] = keys_.try_emplace(key);
  bytes_ += fresh ? key.size() : 0;
  bytes_ += value.size();
  bytes_ -= entry->second.size();
  entry->second = std::move(value);
  const auto parked = parked_.find(key);
  if (parked == parked_.end()) return;
  const std::set<WaiterId> looked_at = parked->second;  // a copy: re-parking changes the set
  for (const WaiterId& id : looked_at) {
    const Waiter waiter = dismiss(id);
    if (const std::string* missing = missing_key(waiter.request)) {
      const std::string next = *missing;
      Waiter& again = enlist(id, waiter.request, waiter.until - waiter.request.wait);
      again.parked_at = next;
      parked_[next].insert(id);
    } else {
      answer(answers, id, waiter.request.op == StoreOp::get ? with_value(keys_.at(waiter.request.keys[0])) : StoreReply{});
    }
  }
}

void StoreCore::erase_key(std::map<std::string, ByteVector>::iterator entry) {
  bytes_ -= entry->first.size() + entry->second.size();
  keys_.erase(entry);
}

void StoreCore::wait_or_answer(Answers& answers, const WaiterId& id, const StoreRequest& request, Instant now) {
  const std::string* missing = missing_key(request);
  if (missing == nullptr)
    return answer(answers, id, request.op == StoreOp::get ? with_value(keys_.at(request.keys[0])) : StoreReply{});
  if (request.wait <= Duration{0}) return answer(answers, id, failed(Code::deadline_passed, waited_for(request)));
  enlist(id, request, now).parked_at = *missing;
  parked_[*missing].insert(id);
}

void StoreCore::arrive(Answers& answers, const WaiterId& id, const StoreRequest& request, Instant now) {
  const GatheringName name{request.op, request.keys[0]};
  Gathering& gathering = gatherings_[name];
  if (gathering.arrived.empty()) gathering.count = request.count;
  if (gathering.count != request.count)
    return answer(answers, id, failed(Code::mismatch, fmt::format("rank {} says that {} has {} callers, those before it said {}", request.rank,
                                                                  shown(request.keys[0]), request.count, gathering.count)));
  if (gathering.arrived.contains(request.rank))
    return answer(answers, id, failed(Code::already_exists, fmt::format("rank {} waits at {} already", request.rank, shown(request.keys[0]))));
  gathering.arrived.emplace(request.rank, id);
  enlist(id, request, now);
  if (gathering.arrived.size() < gathering.count) {
    if (request.wait > Duration{0}) return;
    answer(answers, id, failed(Code::deadline_passed, waited_for(request)));
    dismiss(id);
    return;
  }
  const std::map<std::uint32_t, WaiterId> all = gathering.arrived;
  StoreReply reply;
  if (request.op == StoreOp::all_gather)
    for (const auto& [rank, waiter] : all) reply.values.push_back(waiters_.at(waiter).request.value);
  for (const auto& [rank, waiter] : all) {
    answer(answers, waiter, reply);
    dismiss(waiter);  // the last one takes the gathering with it: the name can be used again
  }
}

StoreCore::Waiter& StoreCore::enlist(const WaiterId& id, const StoreRequest& request, Instant now) {
  Waiter waiter{request, {}, {}};
  waiter.request.wait = std::clamp(request.wait, Duration{0}, store_wait_max);
  waiter.until = now + waiter.request.wait;
  bytes_ += weight(request);
  expiries_.emplace(waiter.until, id);
  const auto [at, fresh] = waiters_.emplace(id, std::move(waiter));
  ELRUN_ASSERT(fresh);
  return at->second;
}

StoreCore::Waiter StoreCore::dismiss(const WaiterId& id) {
  Waiter waiter = std::move(waiters_.extract(id).mapped());
  expiries_.erase({waiter.until, id});
  bytes_ -= weight(waiter.request);
  if (gathers(waiter.request.op)) {
    const auto gathering = gatherings_.find({waiter.request.op, waiter.request.keys[0]});
    gathering->second.arrived.erase(waiter.request.rank);
    if (gathering->second.arrived.empty()) gatherings_.erase(gathering);
  } else if (const auto parked = parked_.find(waiter.parked_at); parked != parked_.end()) {
    parked->second.erase(id);
    if (parked->second.empty()) parked_.erase(parked);
  }
  return waiter;
}

const std::string* StoreCore::missing_key(const StoreRequest& request) const {
  const auto missing = std::find_if(request.keys.begin(), request.keys.end(), [&](const std::string& key) { return !keys_.contains(key); });
  return missing == request.keys.end() ? nullptr : &*missing;
}

// What the caller waited for in vain, and who is missing.
std::string StoreCore::waited_for(const StoreRequest& request) const {
  const double seconds = std::chrono::duration<double>(std::max(request.wait, Duration{0})).count();
  std::string names;
  std::size_t missing = 0;
  const auto name = [&](const std::string& text) {
    if (++missing <= named_max) names += (missing > 1 ? ", " : "") + text;
  };
  if (!gathers(request.op)) {
    for (const std::string& key : request.keys)
      if (!keys_.contains(key)) name(shown(key));
    if (missing > named_max) names += fmt::format(" and {} more", missing - named_max);
    return fmt::format("waited {:.1f} s for {} {}", seconds, missing == 1 ? "key" : "keys", names);
  }
  const auto at = gatherings_.find({request.op, request.keys[0]});
  const Gathering none{request.count, {}};
  const Gathering& gathering = at == gatherings_.end() ? none : at->second;
  for (std::uint32_t rank = 0; rank < gathering.count; ++rank)
    if (!gathering.arrived.contains(rank)) name(fmt::format("{}", rank));
  if (missing > named_max) names += fmt::format(" and {} more", missing - named_max);
  return fmt::format("waited {:.1f} s at {} {}: {} of {} ranks are there; missing: {} {}", seconds,
                     request.op == StoreOp::barrier ? "barrier" : "all_gather", shown(request.keys[0]), gathering.count - missing,
                     gathering.count, missing == 1 ? "rank" : "ranks", names);
}

std::vector<StoreAnswer> StoreCore::dismiss_all(const std::string& why) {
  Answers answers;
  for (const auto& [id, waiter] : waiters_) answer(answers, id, failed(Code::generation_over, why));
  for (const auto& [id, waiter] : waiters_) bytes_ -= weight(waiter.request);
  waiters_.clear();
  expiries_.clear();
  parked_.clear();
  gatherings_.clear();
  return answers;
}

}  // namespace elrun::inline v0
