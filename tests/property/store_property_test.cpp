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
      case StoreOp::num_keys:
        yes.number = std::count_if(keys_.begin(), keys_.end(), [&](const auto& entry) { return entry.first.starts_with(key); });
        break;
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
      } else if (r.op == StoreOp::watch) {
        const bool there = keys_.contains(r.keys[0]);
        free[i] = r.absent ? there : !there || keys_[r.keys[0]] != r.expected;
        if (there) reply.values = {keys_[r.keys[0]]};
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
  r.op = static_cast<StoreOp>(1 + rng.below(10));
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
  if ((r.op == StoreOp::compare_set || r.op == StoreOp::watch) && rng.chance(0.7)) r.expected = any_number();
  r.absent = r.op == StoreOp::watch && rng.chance(0.3);
  if (r.op == StoreOp::num_keys && rng.chance(0.5)) r.keys.clear();
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

// A few ranks gather under a few names, again and again. Requests and answers are lost, and stores die: a fresh one then
// relearns the generation from what each rank remembers, which is the last gathering of each name and the changes it made.
TEST_CASE("whatever is lost, every rank gets the same values of each gathering, and no change is forgotten", "[store][property]") {
  for_all_seeds(300, [](Rng& rng) {
    constexpr std::uint32_t ranks = 3, names = 2;
    constexpr int rounds = 6;
    const Generation generation{3, {{1, 2}}};
    struct Worker {
      std::vector<std::uint32_t> plan{};  // the name of each of its gatherings: all the same
      std::size_t done = 0;
      std::optional<StoreRequest> under_way{};
      std::vector<std::vector<ByteVector>> got{};
      std::map<std::pair<StoreOp, std::string>, StoreRequest> memory{};  // as its node would replay it
    };
    std::vector<std::uint32_t> plan;
    for (int i = 0; i < rounds; ++i) plan.push_back(static_cast<std::uint32_t>(rng.below(names)));
    std::vector<Worker> workers(ranks, Worker{plan});
    StoreCore store;
    (void)store.begin_generation(generation);
    std::uint64_t streams = 0, ids = 0, sum = 0;
    std::map<StoreCaller, std::uint32_t> stream_of;
    std::vector<StoreCaller> current(ranks);
    for (std::uint32_t r = 0; r < ranks; ++r) stream_of[current[r] = StoreCaller{++streams}] = r;
    const auto hear = [&](const std::vector<StoreAnswer>& answers, double loss) {
      for (const StoreAnswer& a : answers) {
        Worker& w = workers[stream_of.at(a.to)];
        if (rng.chance(loss) || current[stream_of.at(a.to)] != a.to || !w.under_way || w.under_way->id != a.reply.id || !a.reply.ok)
          continue;
        REQUIRE(a.reply.values.size() == ranks);
        w.got.push_back(a.reply.values);
        StoreRequest memory = *w.under_way;
        memory.replay = true, memory.version = a.reply.version;
        w.memory.insert_or_assign({memory.op, memory.keys[0]}, memory);
        w.under_way.reset();
        ++w.done;
      }
    };
    const auto all_done = [&] { return std::all_of(workers.begin(), workers.end(), [](const Worker& w) { return w.done == rounds; }); };
    int turns = 0;
    for (; turns < 5000 && !all_done(); ++turns) {
      const double loss = turns < 400 ? 0.3 : 0;
      const auto rank = static_cast<std::uint32_t>(rng.below(ranks));
      Worker& w = workers[rank];
      if (loss > 0 && rng.chance(0.02)) {  // another store, and all nodes come to it
        store = StoreCore{};
        hear(store.adopt_generation(generation, ranks), 0);
        for (std::uint32_t r = 0; r < ranks; ++r) stream_of[current[r] = StoreCaller{++streams}] = r;
        for (std::uint32_t r = 0; r < ranks; ++r) {
          for (auto& [name, memory] : workers[r].memory) {
            memory.id = ++ids;
            hear(store.call(current[r], memory, Instant{}), 0);
          }
          if (workers[r].under_way) hear(store.call(current[r], *workers[r].under_way, Instant{}), loss);
          hear(store.call(current[r], {.id = ++ids, .op = StoreOp::relearned, .generation = generation, .rank = r, .replay = true},
                          Instant{}),
               loss);
        }
      } else if (rng.chance(0.1)) {  // the stream breaks; the call under way is sent again
        store.forget(current[rank]);
        stream_of[current[rank] = StoreCaller{++streams}] = rank;
        if (w.under_way) hear(store.call(current[rank], *w.under_way, Instant{}), loss);
      } else if (rng.chance(0.2)) {  // a change, whose answer always comes
        const auto answers =
            store.call(current[rank], {.id = ++ids, .op = StoreOp::add, .generation = generation, .keys = {"sum"}, .amount = 1}, Instant{});
        REQUIRE(answers.size() == 1);
        REQUIRE(answers[0].reply.number == static_cast<std::int64_t>(++sum));
        const std::string text = std::to_string(sum);
        w.memory.insert_or_assign({StoreOp::set, "sum"}, StoreRequest{.op = StoreOp::set,
                                                                      .generation = generation,
                                                                      .keys = {"sum"},
                                                                      .value = {as_bytes(text).begin(), as_bytes(text).end()},
                                                                      .replay = true,
                                                                      .version = answers[0].reply.version});
      } else if (!w.under_way && w.done < rounds) {
        const std::string value = fmt::format("{} of {}", w.done, rank);
        w.under_way = StoreRequest{.id = ++ids,
                                   .op = StoreOp::all_gather,
                                   .generation = generation,
                                   .wait = 1h,
                                   .keys = {fmt::format("g{}", w.plan[w.done])},
                                   .value = {as_bytes(value).begin(), as_bytes(value).end()},
                                   .rank = rank,
                                   .count = ranks,
                                   .caller = 100 + rank,
                                   .turn = w.done + 1};
        hear(store.call(current[rank], *w.under_way, Instant{}), loss);
      }
    }
    REQUIRE(all_done());
    for (std::size_t i = 0; i < rounds; ++i) {
      for (std::uint32_t r = 0; r < ranks; ++r) {
        REQUIRE(workers[r].got[i] == workers[0].got[i]);
        REQUIRE(as_text(workers[0].got[i][r]) == fmt::format("{} of {}", i, r));
      }
    }
    REQUIRE(store.held() <= Bytes{3 + 20 + store_key_overhead});  // the sum alone
  });
}

}  // namespace elrun::test
