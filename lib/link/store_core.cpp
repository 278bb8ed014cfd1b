// The idea: a caller that must wait is parked at exactly one key. When that key changes it is looked at again, and
// answered or parked at the next key that it misses; so a `set` costs as much as it has waiters, however many wait
// elsewhere. A barrier or all_gather is a room (store_rooms.hpp): each caller has a seat, and all are answered once the room is full.

#include "lib/link/store_core.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/planted.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t named_max = 16;  // missing ranks or keys that one failure names
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

void answer(std::vector<StoreAnswer>& answers, const WaiterId& to, StoreReply reply) {
  reply.id = to.second;
  answers.push_back({to.first, std::move(reply)});
}

std::optional<std::string> out_of_bounds(const StoreRequest& r) {
  if (r.op < StoreOp::set || r.op > StoreOp::watch) return fmt::format("unknown operation {}", static_cast<unsigned>(r.op));
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
  Answers answers =
      dismiss_generation(fmt::format("generation {} is over; generation {} began", to_string(generation_), to_string(generation)));
  keys_.drop_generation();
  generation_ = generation;
  over_.reset();
  return answers;
}

std::vector<StoreAnswer> StoreCore::adopt_generation(const Generation& generation, std::uint32_t nodes) {
  Answers answers = begin_generation(generation);
  adoption_.begin(nodes);
  return answers;
}

std::vector<StoreAnswer> StoreCore::end_generation(std::string why) {
  if (!over_) over_ = fmt::format("generation {} is over: {}", to_string(generation_), why);
  return dismiss_generation(*over_);
}

std::vector<StoreAnswer> StoreCore::call(StoreCaller from, StoreRequest request, Instant now, StoreScope scope) {
  Answers answers;
  const WaiterId id{from, request.id};
  if (request.replay) {
    if (scope == StoreScope::generation) replay(answers, std::move(request));
    return answers;
  }
  if (std::optional<StoreReply> no = refusal(id, request, scope)) return answer(answers, id, *std::move(no)), answers;
  if (scope == StoreScope::job) {
    if (request.op == StoreOp::num_keys && request.keys.empty()) request.keys.emplace_back();
    for (std::string& key : request.keys) key.insert(0, store_job_prefix);
  }
  if (adoption_.is_under_way()) adoption_.put_off({from, std::move(request), now, scope});
  else serve(answers, id, std::move(request), now, scope);
  return answers;
}

void StoreCore::serve(Answers& answers, const WaiterId& id, StoreRequest request, Instant now, StoreScope scope) {
  const ByteVector* const value = request.keys.empty() ? nullptr : keys_.find(request.keys[0]);
  const auto answer_change = [&](StoreReply reply) {
    reply.version = ++version_;
    answer(answers, id, std::move(reply));
  };
  switch (request.op) {
    case StoreOp::set:
      answer_change({});
      put(answers, request.keys[0], std::move(request.value));
      break;
    case StoreOp::get:
    case StoreOp::wait:
    case StoreOp::watch: wait_or_answer(answers, id, std::move(request), now, scope); break;
    case StoreOp::add: {
      std::int64_t sum = 0;
      if (value != nullptr) {
        const std::string_view text = as_text(*value);
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum);
        if (error != std::errc{} || end != text.data() + text.size()) {
          answer(
              answers, id,
              failed(Code::invalid_argument, fmt::format("key {} holds no decimal number that add could add to", shown(request.keys[0]))));
          break;
        }
      }
      if (__builtin_add_overflow(sum, request.amount, &sum)) {
        answer(answers, id, failed(Code::invalid_argument, fmt::format("the counter {} would leave 64 bits", shown(request.keys[0]))));
        break;
      }
      const std::string text = fmt::format("{}", sum);
      answer_change(with_number(sum));
      put(answers, request.keys[0], ByteVector(as_bytes(text).begin(), as_bytes(text).end()));
      break;
    }
    case StoreOp::compare_set:
      if (value == nullptr ? request.expected.empty() : *value == request.expected) {
        answer_change(with_value(request.value));
        put(answers, request.keys[0], std::move(request.value));
      } else {
        answer(answers, id, with_value(value == nullptr ? request.expected : *value));
      }
      break;
    case StoreOp::remove:
      answer_change(with_number(value != nullptr));
      if (value != nullptr) take(answers, request.keys[0]);
      break;
    case StoreOp::num_keys:
      answer(answers, id, with_number(static_cast<std::int64_t>(request.keys.empty() ? keys_.size() : keys_.count(request.keys[0]))));
      break;
    case StoreOp::barrier:
    case StoreOp::all_gather: arrive(answers, id, std::move(request), now, scope); break;
    case StoreOp::relearned: ELRUN_ASSERT(false);  // refused, unless it is a replay
  }
}

// What a worker did in a store that is gone, told by its node. What is out of bounds was not done there either.
void StoreCore::replay(Answers& answers, StoreRequest request) {
  if (!adoption_.is_under_way() || request.generation != generation_ || over_) return;
  version_ = std::max(version_, request.version);
  if (request.op == StoreOp::relearned) {
    if (!adoption_.note_reported(request.rank)) return;
    for (StoreAnswer& late : end_adoption()) answers.push_back(std::move(late));
    return;
  }
  if (out_of_bounds(request) || held().value() + held_by(request) > store_total_max.value()) return;
  if (gathers(request.op)) return replay_arrival(answers, std::move(request));
  if (request.op != StoreOp::set && request.op != StoreOp::remove) return;
  if (!adoption_.is_newest(request.keys[0], request.version)) return;
  if (request.op == StoreOp::set) return put(answers, request.keys[0], std::move(request.value));
  if (keys_.contains(request.keys[0])) take(answers, request.keys[0]);
}

void StoreCore::replay_arrival(Answers& answers, StoreRequest request) {
  const RoomName name{StoreScope::generation, request.op, request.keys[0], request.count};
  RoomSeat seat{.waiter = {}, .asker = {request.caller, request.rank}, .turn = request.turn, .value = std::move(request.value)};
  if (auto full = rooms_.replay(name, request.rank, std::move(seat), request.version)) finish(answers, name, *std::move(full));
}

// The end of an adoption: what was put off is served as if it came now, but waits no longer for that.
std::vector<StoreAnswer> StoreCore::end_adoption() {
  Answers answers;
  for (PutOffCall& call : adoption_.end()) {
    const WaiterId id{call.from, call.request.id};
    if (waiters_.contains(id))
      answer(answers, id, failed(Code::invalid_argument, fmt::format("call {} is under way already", call.request.id)));
    else serve(answers, id, std::move(call.request), call.since, call.scope);
  }
  return answers;
}

void StoreCore::forget(StoreCaller caller) {
  if (ELRUN_PLANTED(forgotten_caller_counts)) return;
  for (const WaiterId& id : waiters_.of(caller)) dismiss(id);
  adoption_.forget(caller);
}

std::vector<StoreAnswer> StoreCore::expire(Instant now) {
  Answers answers;
  // All who are late at one time get the same list of the missing, none of them on it: so first look, then dismiss.
  const std::vector<WaiterId> late = waiters_.late(now);
  for (const WaiterId& id : late) {
    const StoreWaiter& waiter = waiters_.at(id);
    answer(answers, id, failed(Code::deadline_passed, waited_for(waiter.request, waiter.scope)));
  }
  for (const WaiterId& id : late) dismiss(id);
  return answers;
}

std::optional<Instant> StoreCore::next_expiry() const { return waiters_.next_expiry(); }

// Why a call is not even tried, if so: checked before anything is kept of it.
std::optional<StoreReply> StoreCore::refusal(const WaiterId& id, const StoreRequest& request, StoreScope scope) const {
  if (auto problem = out_of_bounds(request)) return failed(Code::invalid_argument, *std::move(problem));
  const bool fenced = scope == StoreScope::generation && !ELRUN_PLANTED(store_serves_stale_generation);
  if (fenced && generation_.number == 0) return failed(Code::refused, "no generation has begun in this store");
  if (fenced && request.generation != generation_) {
    const bool stale = request.generation.number < generation_.number;
    return failed(stale ? Code::generation_over : Code::refused,
                  fmt::format("the caller's generation {} is {}; the store serves generation {}", to_string(request.generation),
                              stale ? "over" : "not known here", to_string(generation_)));
  }
  if (fenced && over_) return failed(Code::generation_over, *over_);
  if (waiters_.contains(id)) return failed(Code::invalid_argument, fmt::format("call {} is under way already", request.id));
  const bool grows = request.op == StoreOp::set || request.op == StoreOp::add || request.op == StoreOp::compare_set;
  const bool waits = may_wait(request.op);
  if ((grows || waits) && held().value() + held_by(request) > store_total_max.value())
    return failed(Code::exhausted, fmt::format("the store is full: it holds {} of {} bytes", held().value(), store_total_max.value()));
  const std::size_t waiting = waiters_.size() + adoption_.calls();
  if ((waits || adoption_.is_under_way()) && waiting >= store_waiters_max)
    return failed(Code::exhausted, fmt::format("{} callers wait already", waiting));
  return {};
}

void StoreCore::put(Answers& answers, const std::string& key, ByteVector value) {
  keys_.put(key, std::move(value));
  look_at(answers, key);
}

void StoreCore::take(Answers& answers, const std::string& key) {
  keys_.erase(key);
  look_at(answers, key);
}

// The key has changed. A caller that waits for many goes on from where it is parked, and looks at all once more before it is answered: so keys that come in
// the order in which they are waited for cost two looks each, and one that was removed meanwhile is waited for again.
void StoreCore::look_at(Answers& answers, const std::string& key) {
  if (ELRUN_PLANTED(waiter_not_woken)) return;
  for (const WaiterId& id : waiters_.parked_at(key)) {
    const StoreWaiter& waiter = waiters_.at(id);
    if (waiter.request.op == StoreOp::wait)
      if (const std::size_t next = keys_.missing(waiter.request, *waiter.parked_at); next < waiter.request.keys.size()) {
        waiters_.park(id, next);
        continue;
      }
    if (std::optional<StoreReply> reply = ready(waiter.request)) {
      dismiss(id);
      answer(answers, id, *std::move(reply));
    } else if (waiter.request.op == StoreOp::wait) {
      waiters_.park(id, keys_.missing(waiter.request));
    }
  }
}

void StoreCore::wait_or_answer(Answers& answers, const WaiterId& id, StoreRequest request, Instant now, StoreScope scope) {
  if (std::optional<StoreReply> reply = ready(request)) return answer(answers, id, *std::move(reply));
  if (request.wait <= Duration{0}) return answer(answers, id, failed(Code::deadline_passed, waited_for(request, scope)));
  const std::size_t at = request.op == StoreOp::watch ? 0 : keys_.missing(request);
  waiters_.add(id, std::move(request), now, scope);
  waiters_.park(id, at);
}

void StoreCore::arrive(Answers& answers, const WaiterId& id, StoreRequest request, Instant now, StoreScope scope) {
  const RoomName name{scope, request.op, request.keys[0], request.count};
  const Asker asker{request.caller, request.rank};
  if (const auto other = rooms_.other_count(name))
    return answer(answers, id,
                  failed(Code::mismatch, fmt::format("rank {} says that {} has {} callers, those before it said {}", request.rank,
                                                     shown(name.name), name.count, *other)));
  if (request.caller != 0)
    if (const auto kept = rooms_.kept_answer(name, asker, request.turn)) return answer(answers, id, *kept);
  // Clients outside have no ranks: a barrier counts them by who they are.
  const Asker place{scope == StoreScope::job && request.op == StoreOp::barrier ? request.caller : 0, request.rank};
  StoreRooms::Arrival arrival = rooms_.arrive(name, place, RoomSeat{.waiter = id, .asker = asker, .turn = request.turn});
  if (arrival.is_refused)
    return answer(answers, id, failed(Code::already_exists, fmt::format("rank {} waits at {} already", request.rank, shown(name.name))));
  if (arrival.replaced) {
    answer(answers, *arrival.replaced,
           failed(Code::deadline_passed, fmt::format("rank {} asked again for {}", request.rank, shown(name.name))));
    waiters_.release(*arrival.replaced);
  }
  const bool waits = request.wait > Duration{0};
  waiters_.add(id, std::move(request), now, scope);
  if (arrival.full) return finish(answers, name, *std::move(arrival.full));
  if (waits) return;
  answer(answers, id, failed(Code::deadline_passed, waited_for(waiters_.at(id).request, scope)));
  dismiss(id);
}

// All are there: each gets the answer, and the name can be used again.
void StoreCore::finish(Answers& answers, const RoomName& name, FullRoom room) {
  StoreReply reply;
  reply.version = room.version ? *room.version : ++version_;
  std::map<Asker, std::uint64_t> turns;
  std::uint64_t weight = name.name.size();
  for (auto& [place, seat] : room.seats) {
    if (name.op == StoreOp::all_gather) {
      reply.values.push_back(seat.waiter ? ByteVector{waiters_.at(*seat.waiter).request.value} : std::move(seat.value));
      weight += reply.values.back().size() + sizeof(ByteVector);
    }
    weight += sizeof(Asker) + sizeof(std::uint64_t);
    if (seat.asker.first != 0) turns.insert_or_assign(seat.asker, seat.turn);
  }
  for (const auto& [place, seat] : room.seats) {
    if (!seat.waiter) continue;
    answer(answers, *seat.waiter, reply);
    waiters_.release(*seat.waiter);
  }
  rooms_.keep(name, std::move(turns), std::make_shared<const StoreReply>(std::move(reply)), weight);
}

// It no longer waits, and counts nowhere.
void StoreCore::dismiss(const WaiterId& id) {
  const StoreWaiter waiter = waiters_.release(id);
  const StoreRequest& request = waiter.request;
  if (gathers(request.op)) rooms_.leave({waiter.scope, request.op, request.keys[0], request.count}, {request.caller, request.rank}, id);
}

// The answer of a call that may wait, as soon as there is one.
std::optional<StoreReply> StoreCore::ready(const StoreRequest& request) const {
  if (request.op == StoreOp::watch) {
    const ByteVector* const value = keys_.find(request.keys[0]);
    if (value == nullptr) return request.absent ? std::nullopt : std::optional{StoreReply{}};
    return !request.absent && *value == request.expected ? std::nullopt : std::optional{with_value(*value)};
  }
  if (keys_.missing(request) < request.keys.size()) return {};
  return request.op == StoreOp::get ? with_value(*keys_.find(request.keys[0])) : StoreReply{};
}

// What the caller waited for in vain, and who is missing.
std::string StoreCore::waited_for(const StoreRequest& request, StoreScope scope) const {
  const double seconds = std::chrono::duration<double>(std::max(request.wait, Duration{0})).count();
  if (request.op == StoreOp::watch) return fmt::format("waited {:.1f} s for key {} to change", seconds, shown(request.keys[0]));
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
  const std::string_view what = request.op == StoreOp::barrier ? "barrier" : "all_gather";
  const RoomSeats none;
  const RoomSeats* const taken = rooms_.seats_of({scope, request.op, request.keys[0], request.count}, request.rank);
  const RoomSeats& seats = taken == nullptr ? none : *taken;
  if (scope == StoreScope::job && request.op == StoreOp::barrier)
    return fmt::format("waited {:.1f} s at {} {}: {} of {} callers are there", seconds, what, shown(request.keys[0]), seats.size(),
                       request.count);
  // A caller may say that there are a million of them: only as many are looked at as are there, and named.
  const std::size_t absent = request.count - seats.size();
  for (std::uint32_t rank = 0; rank < request.count && missing < std::min(absent, named_max); ++rank)
    if (!seats.contains({0, rank})) name(fmt::format("{}", rank));
  if (absent > named_max) names += fmt::format(" and {} more", absent - named_max);
  return fmt::format("waited {:.1f} s at {} {}: {} of {} ranks are there; missing: {} {}", seconds, what, shown(request.keys[0]),
                     seats.size(), request.count, absent == 1 ? "rank" : "ranks", names);
}

// Ends what belongs to this generation alone: its waiting calls, the callers that have arrived at a barrier, and the answers that were kept.
std::vector<StoreAnswer> StoreCore::dismiss_generation(const std::string& why) {
  Answers answers;
  for (const WaiterId& id : waiters_.of(StoreScope::generation)) {
    answer(answers, id, failed(Code::generation_over, why));
    dismiss(id);
  }
  rooms_.drop_generation();
  for (const PutOffCall& call : adoption_.drop_generation())
    answer(answers, {call.from, call.request.id}, failed(Code::generation_over, why));
  for (StoreAnswer& late : end_adoption()) answers.push_back(std::move(late));
  return answers;
}

}  // namespace elrun::inline v0
