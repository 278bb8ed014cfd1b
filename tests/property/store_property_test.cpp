// The store against an obvious model: a map, and a list of waiting calls that is looked through after every event.

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "lib/link/store_core.hpp"
#include "tests/support/property.hpp"

namespace elrun::test {
namespace {

using Seen = std::tuple<std::uint64_t, std::uint64_t, bool, Code, std::vector<ByteVector>, std::int64_t>;

std::vector<Seen> sorted(const std::vector<StoreAnswer>& answers) {
  std::vector<Seen> seen;
  for (const auto& [to, r] : answers) seen.emplace_back(to.value(), r.id, r.ok, r.ok ? Code::internal : r.code, r.values, r.number);
  std::sort(seen.begin(), seen.end());
  return seen;
}

class Model {
 public:
  std::vector<StoreAnswer> begin_generation(const Generation& g) {
    std::vector<StoreAnswer> out = drop_all();
    std::erase_if(keys_, [](const auto& entry) { return entry.first.substr(0, 4) != "job/"; });
    generation_ = g;
    over_ = false;
    return out;
  }
  std::vector<StoreAnswer> end_generation() { return over_ = true, drop_all(); }
  std::vector<StoreAnswer> call(StoreCaller from, const StoreRequest& r, Instant now) {
    if (r.generation != generation_) return {no(from, r, r.generation.number < generation_.number ? Code::generation_over : Code::refused)};
    if (over_) return {no(from, r, Code::generation_over)};
    const std::string key = r.keys.empty() ? "" : r.keys[0];
    StoreReply yes{.id = r.id};
    switch (r.op) {
      case StoreOp::set: keys_[key] = r.value; break;
      case StoreOp::add: {
        std::int64_t sum = 0;
        const std::string text{as_text(keys_[key])};
        if (!text.empty()) sum = std::stoll(text);
        yes.number = sum + r.amount;
        const std::string now_text = std::to_string(yes.number);
        keys_[key] = {as_bytes(now_text).begin(), as_bytes(now_text).end()};
        break;
      }
      case StoreOp::compare_set:
        if (!keys_.contains(key) && !r.expected.empty()) yes.values = {r.expected};
        else if (keys_.contains(key) && keys_[key] != r.expected) yes.values = {keys_[key]};
        else yes.values = {keys_[key] = r.value};
        break;
      case StoreOp::remove: yes.number = static_cast<std::int64_t>(keys_.erase(key)); break;
      case StoreOp::num_keys: yes.number = static_cast<std::int64_t>(keys_.size()); break;
      default:
        for (const Waiting& w : waiting_)
          if (w.request.op == r.op && gathers(r) && w.request.keys == r.keys) {
            if (w.request.count != r.count) return {no(from, r, Code::mismatch)};
            if (w.request.rank == r.rank) return {no(from, r, Code::already_exists)};
          }
        waiting_.push_back({from, r, now + r.wait});
        {
          std::vector<StoreAnswer> out = look();
          if (r.wait <= 0s)
            for (StoreAnswer& late : expire(now)) out.push_back(std::move(late));
          return out;
        }
    }
    std::vector<StoreAnswer> out = look();
    out.push_back({from, yes});
    return out;
  }
  void forget(StoreCaller caller) {
    std::erase_if(waiting_, [&](const Waiting& w) { return w.from == caller; });
  }
  std::vector<StoreAnswer> expire(Instant now) {
    std::vector<StoreAnswer> out;
    for (const Waiting& w : waiting_)
      if (w.until <= now) out.push_back(no(w.from, w.request, Code::deadline_passed));
    std::erase_if(waiting_, [&](const Waiting& w) { return w.until <= now; });
    return out;
  }
  [[nodiscard]] bool waits(StoreCaller from, std::uint64_t id) const {
    return std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& w) { return w.from == from && w.request.id == id; });
  }
  [[nodiscard]] std::size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    StoreCaller from;
    StoreRequest request;
    Instant until;
  };
  static bool gathers(const StoreRequest& r) { return r.op == StoreOp::barrier || r.op == StoreOp::all_gather; }
  static StoreAnswer no(StoreCaller to, const StoreRequest& r, Code code) { return {to, {.id = r.id, .ok = false, .code = code}}; }
  std::vector<StoreAnswer> drop_all() {
    std::vector<StoreAnswer> out;
    for (const Waiting& w : waiting_) out.push_back(no(w.from, w.request, Code::generation_over));
    waiting_.clear();
    return out;
  }
  std::vector<StoreAnswer> look() {
    std::vector<StoreAnswer> out;
    std::vector<bool> free(waiting_.size());
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      const StoreRequest& r = waiting_[i].request;
      StoreReply reply{.id = r.id};
      if (gathers(r)) {
        std::map<std::uint32_t, ByteVector> there;
        for (const Waiting& w : waiting_)
          if (w.request.op == r.op && w.request.keys == r.keys) there[w.request.rank] = w.request.value;
        free[i] = there.size() == r.count;
        if (r.op == StoreOp::all_gather)
          for (const auto& [rank, value] : there) reply.values.push_back(value);
      } else {
        free[i] = std::all_of(r.keys.begin(), r.keys.end(), [&](const std::string& k) { return keys_.contains(k); });
        if (free[i] && r.op == StoreOp::get) reply.values = {keys_[r.keys[0]]};
      }
      if (free[i]) out.push_back({waiting_[i].from, reply});
    }
    std::size_t i = 0;
    std::erase_if(waiting_, [&](const Waiting&) { return static_cast<bool>(free[i++]); });
    return out;
  }
  Generation generation_{};
  bool over_ = false;
  std::map<std::string, ByteVector> keys_;
  std::vector<Waiting> waiting_;
};

StoreRequest any_request(Rng& rng, const Generation& generation) {
  StoreRequest r;
  r.op = static_cast<StoreOp>(1 + rng.below(9));
  r.generation = generation;
  if (rng.chance(0.03)) r.generation.number -= 1;
  if (rng.chance(0.03)) r.generation.lineage.bits[1] = 9;
  r.wait = std::chrono::milliseconds(rng.below(5) * 100);
  const auto any_key = [&] { return (rng.chance(0.3) ? "job/" : "") + std::string(1, static_cast<char>('a' + rng.below(4))); };
  const auto any_number = [&] {
    const std::string text = std::to_string(rng.below(3));
    return ByteVector(as_bytes(text).begin(), as_bytes(text).end());
  };
  for (std::uint64_t keys = r.op == StoreOp::wait ? rng.below(4) : 1; keys > 0; --keys) r.keys.push_back(any_key());
  if (r.op == StoreOp::set || r.op == StoreOp::compare_set || r.op == StoreOp::all_gather) r.value = any_number();
  if (r.op == StoreOp::compare_set && rng.chance(0.7)) r.expected = any_number();
  r.amount = static_cast<std::int64_t>(rng.below(5)) - 2;
  r.count = rng.chance(0.05) ? 3 : 2;
  r.rank = static_cast<std::uint32_t>(rng.below(r.count));
  return r;
}

}  // namespace

TEST_CASE("the store answers what the obvious store answers", "[store][property]") {
  for_all_seeds(300, [](Rng& rng) {
    StoreCore store;
    Model model;
    Generation generation{5, {{1, 2}}};
    CHECK(sorted(store.begin_generation(generation)) == sorted(model.begin_generation(generation)));
    Instant now{};
    std::uint64_t id = 0;
    for (int event = 0; event < 400; ++event) {
      const StoreCaller caller{rng.below(5)};
      std::vector<StoreAnswer> got, expected;
      switch (rng.below(40)) {
        case 0:
          generation.number += 1;
          got = store.begin_generation(generation), expected = model.begin_generation(generation);
          break;
        case 1:
          if (!rng.chance(0.2)) continue;
          got = store.end_generation("a node was lost"), expected = model.end_generation();
          break;
        case 2: store.forget(caller), model.forget(caller); break;
        case 3:
        case 4:
        case 5:
          now += std::chrono::milliseconds(rng.below(200));
          got = store.expire(now), expected = model.expire(now);
          break;
        default: {
          StoreRequest request = any_request(rng, generation);
          request.id = ++id;
          got = store.call(caller, request, now), expected = model.call(caller, request, now);
        }
      }
      REQUIRE(sorted(got) == sorted(expected));
      REQUIRE(store.next_expiry().has_value() == (model.waiting() > 0));
    }
  });
}

}  // namespace elrun::test
