// The idea: a caller that must wait is parked at exactly one key. When that key changes it is looked at again, and
// answered or parked at the next key that it misses; so a `set` costs as much as it has waiters, however many wait
// elsewhere. A barrier or all_gather is a room with one seat per caller that is answered whole, once it is full: whoever
// gave up or died before has left its seat, so it never opens on behalf of somebody who is no longer there.
//
// An answer may be lost with the stream that carried it. So a room keeps its last answer, and who asks again by the same
// number gets it. One is enough: nobody comes to the next gathering of a room without the answer of the last one.

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

std::uint64_t weight(const StoreRequest& request) {  // what a waiting call holds
  std::uint64_t bytes = request.value.size() + request.expected.size();
  for (const std::string& key : request.keys) bytes += key.size();
  return bytes;
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
  for (auto entry = keys_.begin(); entry != keys_.end();) {
    const auto here = entry++;
    if (!here->first.starts_with(store_job_prefix) && !ELRUN_PLANTED(torchrun_d3_stale_keys)) erase_key(here);
  }
  generation_ = generation;
  over_.reset();
  return answers;
}

std::vector<StoreAnswer> StoreCore::adopt_generation(const Generation& generation, std::uint32_t nodes) {
  Answers answers = begin_generation(generation);
  nodes_to_hear_ = nodes;
  return answers;
}

std::vector<StoreAnswer> StoreCore::end_generation(std::string why) {
  over_ = fmt::format("generation {} is over: {}", to_string(generation_), why);
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
  if (nodes_to_hear_ > 0) {
    bytes_ += weight(request);
    put_off_.push_back({from, std::move(request), now, scope});
  } else {
    serve(answers, id, std::move(request), now, scope);
  }
  return answers;
}

void StoreCore::serve(Answers& answers, const WaiterId& id, StoreRequest request, Instant now, StoreScope scope) {
  const auto entry = request.keys.empty() ? keys_.end() : keys_.find(request.keys[0]);
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
      if (entry != keys_.end()) {
        const std::string_view text = as_text(entry->second);
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
      if (entry == keys_.end() ? request.expected.empty() : entry->second == request.expected) {
        answer_change(with_value(request.value));
        put(answers, request.keys[0], std::move(request.value));
      } else {
        answer(answers, id, with_value(entry == keys_.end() ? request.expected : entry->second));
      }
      break;
    case StoreOp::remove:
      answer_change(with_number(entry != keys_.end()));
      if (entry != keys_.end()) take(answers, entry);
      break;
    case StoreOp::num_keys: {
      std::int64_t number = static_cast<std::int64_t>(keys_.size());
      if (!request.keys.empty()) {
        number = 0;
        for (auto at = keys_.lower_bound(request.keys[0]); at != keys_.end() && at->first.starts_with(request.keys[0]); ++at) ++number;
      }
      answer(answers, id, with_number(number));
      break;
    }
    case StoreOp::barrier:
    case StoreOp::all_gather: arrive(answers, id, std::move(request), now, scope); break;
    case StoreOp::relearned: ELRUN_ASSERT(false);  // refused, unless it is a replay
  }
}

// What a worker did in a store that is gone, told by its node. What is out of bounds was not done there either.
void StoreCore::replay(Answers& answers, StoreRequest request) {
  if (nodes_to_hear_ == 0 || request.generation != generation_ || over_) return;
  version_ = std::max(version_, request.version);
  if (request.op == StoreOp::relearned) {
    heard_.insert(request.rank);
    if (heard_.size() < nodes_to_hear_) return;
    for (StoreAnswer& late : serve_put_off()) answers.push_back(std::move(late));
    return;
  }
  if (out_of_bounds(request) || bytes_ + weight(request) > store_total_max.value()) return;
  if (gathers(request.op)) return replay_arrival(answers, std::move(request));
  if (request.op != StoreOp::set && request.op != StoreOp::remove) return;
  std::uint64_t& newest = replayed_[request.keys[0]];
  if (request.version <= newest) return;  // another node's worker changed it later
  newest = request.version;
  if (request.op == StoreOp::set) return put(answers, request.keys[0], std::move(request.value));
  if (const auto entry = keys_.find(request.keys[0]); entry != keys_.end()) take(answers, entry);
}

void StoreCore::replay_arrival(Answers& answers, StoreRequest request) {
  const auto room = rooms_.try_emplace({StoreScope::generation, request.op, request.keys[0], request.count}).first;
  if (request.version < room->second.past_version) return;  // others were through a later one, so all were through this
  if (request.version > room->second.past_version) {
    for (const auto& [asker, seat] : room->second.past) bytes_ -= seat.value.size();
    room->second.past.clear();
    room->second.past_version = request.version;
  }
  const std::uint64_t size = request.value.size();
  const Asker rank{0, request.rank};
  if (!room->second.past.try_emplace(rank, Seat{{}, {request.caller, request.rank}, request.turn, std::move(request.value)}).second) return;
  bytes_ += size;
  if (room->second.past.size() == request.count) finish(answers, room, std::exchange(room->second.past, {}), room->second.past_version);
}

// The end of an adoption: what was put off is served as if it came now, but waits no longer for that.
std::vector<StoreAnswer> StoreCore::serve_put_off() {
  nodes_to_hear_ = 0;
  heard_.clear();
  replayed_.clear();
  Answers answers;
  for (PutOff& call : std::exchange(put_off_, {})) {
    bytes_ -= weight(call.request);
    const WaiterId id{call.from, call.request.id};
    if (waiters_.contains(id))
      answer(answers, id, failed(Code::invalid_argument, fmt::format("call {} is under way already", call.request.id)));
    else serve(answers, id, std::move(call.request), call.since, call.scope);
  }
  return answers;
}

void StoreCore::forget(StoreCaller caller) {
  if (ELRUN_PLANTED(forgotten_caller_counts)) return;
  for (auto at = waiters_.lower_bound({caller, 0}); at != waiters_.end() && at->first.first == caller;) {
    const WaiterId id = (at++)->first;
    dismiss(id);
  }
  std::erase_if(put_off_, [&](const PutOff& call) {
    if (call.from != caller) return false;
    bytes_ -= weight(call.request);
    return true;
  });
}

std::vector<StoreAnswer> StoreCore::expire(Instant now) {
  Answers answers;
  // All who are late at one time get the same list of the missing, none of them on it: so first look, then dismiss.
  std::vector<WaiterId> late;
  for (auto at = expiries_.begin(); at != expiries_.end() && at->first <= now; ++at) late.push_back(at->second);
  for (const WaiterId& id : late) answer(answers, id, failed(Code::deadline_passed, waited_for(waiters_.at(id))));
  for (const WaiterId& id : late) dismiss(id);
  return answers;
}

std::optional<Instant> StoreCore::next_expiry() const {
  if (expiries_.empty()) return {};
  return expiries_.begin()->first;
}

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
  const bool waits = request.op == StoreOp::get || request.op == StoreOp::wait || request.op == StoreOp::watch || gathers(request.op);
  if ((grows || waits) && bytes_ + weight(request) > store_total_max.value())
    return failed(Code::exhausted, fmt::format("the store is full: it holds {} of {} bytes", bytes_, store_total_max.value()));
  if ((waits || nodes_to_hear_ > 0) && waiters_.size() + put_off_.size() >= store_waiters_max)
    return failed(Code::exhausted, fmt::format("{} callers wait already", waiters_.size() + put_off_.size()));
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
  look_at(answers, key);
}

void StoreCore::take(Answers& answers, Keys::iterator entry) {
  const std::string key = entry->first;
  erase_key(entry);
  look_at(answers, key);
}

void StoreCore::erase_key(Keys::iterator entry) {
  bytes_ -= entry->first.size() + entry->second.size();
  keys_.erase(entry);
}

// The key has changed.
void StoreCore::look_at(Answers& answers, const std::string& key) {
  if (ELRUN_PLANTED(waiter_not_woken)) return;
  const auto parked = parked_.find(key);
  if (parked == parked_.end()) return;
  const std::set<WaiterId> looked_at = parked->second;  // a copy: who is answered or parked elsewhere leaves the set
  for (const WaiterId& id : looked_at) {
    Waiter& waiter = waiters_.at(id);
    if (std::optional<StoreReply> reply = ready(waiter.request)) {
      dismiss(id);
      answer(answers, id, *std::move(reply));
    } else if (waiter.request.op == StoreOp::wait) {
      const auto here = parked_.find(key);
      here->second.erase(id);
      if (here->second.empty()) parked_.erase(here);
      waiter.parked_at = *missing_key(waiter.request);
      parked_[waiter.parked_at].insert(id);
    }
  }
}

void StoreCore::wait_or_answer(Answers& answers, const WaiterId& id, StoreRequest request, Instant now, StoreScope scope) {
  if (std::optional<StoreReply> reply = ready(request)) return answer(answers, id, *std::move(reply));
  if (request.wait <= Duration{0})
    return answer(answers, id, failed(Code::deadline_passed, waited_for({std::move(request), now, scope, {}})));
  const std::string at = request.op == StoreOp::watch ? request.keys[0] : *missing_key(request);
  enlist(id, std::move(request), now, scope).parked_at = at;
  parked_[at].insert(id);
}

void StoreCore::arrive(Answers& answers, const WaiterId& id, StoreRequest request, Instant now, StoreScope scope) {
  const RoomName name{scope, request.op, request.keys[0], request.count};
  const Asker asker{request.caller, request.rank};
  for (auto other = rooms_.lower_bound({scope, request.op, name.name, 0});
       other != rooms_.end() && other->first.name == name.name && other->first.op == name.op && other->first.scope == scope; ++other)
    if (other->first.count != name.count && !other->second.open.empty())
      return answer(answers, id,
                    failed(Code::mismatch, fmt::format("rank {} says that {} has {} callers, those before it said {}", request.rank,
                                                       shown(name.name), name.count, other->first.count)));
  const auto room = rooms_.try_emplace(name).first;
  if (room->second.finished && request.caller != 0) {
    const auto turn = room->second.finished->turns.find(asker);
    if (turn != room->second.finished->turns.end() && turn->second == request.turn)
      return answer(answers, id, *room->second.finished->reply);
  }
  // Clients outside have no ranks: a barrier counts them by who they are.
  const Asker place{scope == StoreScope::job && request.op == StoreOp::barrier ? request.caller : 0, request.rank};
  const bool past = !room->second.past.empty() && (!room->second.past.contains(place) || room->second.past.at(place).waiter);
  Seats& seats = past ? room->second.past : room->second.open;
  if (const auto seat = seats.find(place); seat != seats.end()) {
    if (request.caller == 0 || seat->second.asker != asker || seat->second.turn != request.turn)
      return answer(answers, id, failed(Code::already_exists, fmt::format("rank {} waits at {} already", request.rank, shown(name.name))));
    const WaiterId before = *seat->second.waiter;  // it asks again, and no longer hears what it asked before
    answer(answers, before, failed(Code::deadline_passed, fmt::format("rank {} asked again for {}", request.rank, shown(name.name))));
    seat->second.waiter = id;
    dismiss(before);
  } else {
    seats.emplace(place, Seat{id, asker, request.turn, {}});
  }
  const bool waits = request.wait > Duration{0};
  enlist(id, std::move(request), now, scope);
  if (seats.size() == name.count - (ELRUN_PLANTED(barrier_opens_early) && name.count > 1 ? 1 : 0))
    return finish(answers, room, std::exchange(seats, {}), past ? room->second.past_version : ++version_);
  if (waits) return;
  answer(answers, id, failed(Code::deadline_passed, waited_for(waiters_.at(id))));
  dismiss(id);
}

// All are there: each gets the answer, and the name can be used again.
void StoreCore::finish(Answers& answers, Rooms::iterator room, Seats seats, std::uint64_t version) {
  StoreReply reply;
  reply.version = version;
  Finished finished;
  finished.weight = room->first.name.size();
  for (auto& [place, seat] : seats) {
    if (room->first.op == StoreOp::all_gather) {
      reply.values.push_back(seat.waiter ? waiters_.at(*seat.waiter).request.value : std::move(seat.value));
      finished.weight += reply.values.back().size() + sizeof(ByteVector);
      if (!seat.waiter) bytes_ -= reply.values.back().size();
    }
    finished.weight += sizeof(Asker) + sizeof(std::uint64_t);
    if (seat.asker.first != 0) finished.turns.insert_or_assign(seat.asker, seat.turn);
  }
  for (const auto& [place, seat] : seats) {
    if (!seat.waiter) continue;
    answer(answers, *seat.waiter, reply);
    release(*seat.waiter);
  }
  finished.reply = std::make_shared<const StoreReply>(std::move(reply));
  keep(room, std::move(finished));
}

void StoreCore::keep(Rooms::iterator room, Finished finished) {
  drop_kept(room);
  if (finished.turns.empty()) return tidy(room);
  kept_bytes_ += finished.weight;
  finished.order = ++kept_made_;
  kept_.emplace(finished.order, room->first);
  room->second.finished = std::move(finished);
  while (kept_bytes_ > store_kept_max.value()) {
    const auto oldest = rooms_.find(kept_.begin()->second);
    drop_kept(oldest);
    tidy(oldest);
  }
}

void StoreCore::drop_kept(Rooms::iterator room) {
  if (!room->second.finished) return;
  kept_bytes_ -= room->second.finished->weight;
  kept_.erase(room->second.finished->order);
  room->second.finished.reset();
}

void StoreCore::tidy(Rooms::iterator room) {
  if (room->second.past.empty() && room->second.open.empty() && !room->second.finished) rooms_.erase(room);
}

StoreCore::Waiter& StoreCore::enlist(const WaiterId& id, StoreRequest request, Instant now, StoreScope scope) {
  request.wait = std::clamp(request.wait, Duration{0}, store_wait_max);
  Waiter waiter{std::move(request), {}, scope, {}};
  waiter.until = now + waiter.request.wait;
  bytes_ += weight(waiter.request);
  expiries_.emplace(waiter.until, id);
  const auto [at, fresh] = waiters_.emplace(id, std::move(waiter));
  ELRUN_ASSERT(fresh);
  return at->second;
}

// It no longer waits.
StoreCore::Waiter StoreCore::release(const WaiterId& id) {
  Waiter waiter = std::move(waiters_.extract(id).mapped());
  expiries_.erase({waiter.until, id});
  bytes_ -= weight(waiter.request);
  return waiter;
}

// It no longer waits, and counts nowhere.
void StoreCore::dismiss(const WaiterId& id) {
  const Waiter waiter = release(id);
  const StoreRequest& request = waiter.request;
  if (gathers(request.op)) {
    const auto room = rooms_.find({waiter.scope, request.op, request.keys[0], request.count});
    for (Seats* seats : {&room->second.past, &room->second.open}) {
      auto seat = seats->find({0, request.rank});
      if (seat == seats->end()) seat = seats->find({request.caller, request.rank});
      if (seat != seats->end() && seat->second.waiter == id) seats->erase(seat);
    }
    tidy(room);
  } else if (const auto parked = parked_.find(waiter.parked_at); parked != parked_.end()) {
    parked->second.erase(id);
    if (parked->second.empty()) parked_.erase(parked);
  }
}

// The answer of a call that may wait, as soon as there is one.
std::optional<StoreReply> StoreCore::ready(const StoreRequest& request) const {
  if (request.op == StoreOp::watch) {
    const auto entry = keys_.find(request.keys[0]);
    if (entry == keys_.end()) return request.absent ? std::nullopt : std::optional{StoreReply{}};
    return !request.absent && entry->second == request.expected ? std::nullopt : std::optional{with_value(entry->second)};
  }
  if (missing_key(request) != nullptr) return {};
  return request.op == StoreOp::get ? with_value(keys_.at(request.keys[0])) : StoreReply{};
}

const std::string* StoreCore::missing_key(const StoreRequest& request) const {
  const auto missing = std::find_if(request.keys.begin(), request.keys.end(), [&](const std::string& key) { return !keys_.contains(key); });
  return missing == request.keys.end() ? nullptr : &*missing;
}

// What the caller waited for in vain, and who is missing.
std::string StoreCore::waited_for(const Waiter& waiter) const {
  const StoreRequest& request = waiter.request;
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
  const auto room = rooms_.find({waiter.scope, request.op, request.keys[0], request.count});
  const bool past = room != rooms_.end() && room->second.past.contains({0, request.rank}) && room->second.past.at({0, request.rank}).waiter;
  const Seats none;
  const Seats& seats = room == rooms_.end() ? none : past ? room->second.past : room->second.open;
  if (waiter.scope == StoreScope::job && request.op == StoreOp::barrier)
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
  std::vector<WaiterId> all;
  for (const auto& [id, waiter] : waiters_)
    if (waiter.scope == StoreScope::generation) all.push_back(id);
  for (const WaiterId& id : all) {
    answer(answers, id, failed(Code::generation_over, why));
    dismiss(id);
  }
  for (auto room = rooms_.begin(); room != rooms_.end();) {
    const auto here = room++;
    if (here->first.scope != StoreScope::generation) continue;
    for (const auto& [place, seat] : here->second.past) bytes_ -= seat.value.size();
    drop_kept(here);
    rooms_.erase(here);
  }
  std::erase_if(put_off_, [&](const PutOff& call) {
    if (call.scope != StoreScope::generation) return false;
    answer(answers, {call.from, call.request.id}, failed(Code::generation_over, why));
    bytes_ -= weight(call.request);
    return true;
  });
  for (StoreAnswer& late : serve_put_off()) answers.push_back(std::move(late));
  return answers;
}

}  // namespace elrun::inline v0
