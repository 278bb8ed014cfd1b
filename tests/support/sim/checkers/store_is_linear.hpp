#pragma once
/// \file The store's history is linearizable, key by key. A key of a generation lives as long as that, also when another
/// coordinator goes on with it; one with the prefix `job/` in one coordinator's store. The workload helps: no value is written twice, and counters only grow by one; so it is enough
/// to compare pairs of calls. Not so with the keys of saves, which are removed: the rules of saves are saves_hold.hpp's. A barrier opens for nobody before all its callers have called.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct StoreIsLinear {
  static constexpr std::string_view name = "store-is-linear";
  void on(const StoreCalled& called, Report& report) {
    if (is_removed(called.request)) return;
    begun_[{called.worker, called.request.id}] = report.now;
    const Place place = place_of(called.generation, called.request);
    if (called.request.op == StoreOp::set || called.request.op == StoreOp::compare_set)  // perhaps
      written_[place].insert(text(called.request.value));
    if (called.request.op == StoreOp::add) ++adds_[place];
    if (called.request.op == StoreOp::barrier || called.request.op == StoreOp::all_gather) callers_[place].insert(called.request.rank);
  }
  void on(const StoreAnswered& answered, Report& report) {
    const StoreRequest& request = answered.request;
    if (is_removed(request)) return;
    const Instant begin = begun_[{answered.worker, request.id}];
    begun_.erase({answered.worker, request.id});
    if (!answered.reply.ok) return;  // done or not: nothing is promised
    const Place place = place_of(answered.generation, request);
    const History key = history_of(answered.coordinator, place);
    if (request.op == StoreOp::set || request.op == StoreOp::add || gathers(request.op) || has_exchanged(request, answered.reply))
      done_.insert(key);
    switch (request.op) {
      case StoreOp::set: writes_[key][text(request.value)] = {begin, report.now}; break;
      case StoreOp::compare_set:
        if (has_exchanged(request, answered.reply)) writes_[key].try_emplace(text(request.value), Interval{begin, report.now});
        else if (!answered.reply.values.empty() && answered.reply.values[0] != request.expected)  // else the key may be absent
          read(key, begin, text(answered.reply.values[0]), report);
        break;
      case StoreOp::add: added(key, begin, answered.reply.number, report); break;
      case StoreOp::get:
        if (!answered.reply.values.empty()) read(key, begin, text(answered.reply.values[0]), report);
        break;
      case StoreOp::barrier:
      case StoreOp::all_gather:
        if (callers_[place].size() < request.count)
          report.violate(name, fmt::format("\"{}\" opened for rank {} when {} of {} had called", request.keys[0], request.rank,
                                           callers_[place].size(), request.count));
        if (request.op == StoreOp::all_gather && answered.reply.values.size() != request.count)
          report.violate(
              name, fmt::format("\"{}\" gathered {} values of {} ranks", request.keys[0], answered.reply.values.size(), request.count));
        break;
      default: break;
    }
  }
  void on(const GenerationBegan& began, Report&) { keeper_[key_of(began.generation)] = began.coordinator; }
  /// Nobody removes keys: one that was written while a caller waits for it ends the wait. A gathering that was over for one
  /// is over for all. Both hold for a fresh coordinator's store as well: whoever had an answer remembers it.
  void on(const StoreServed& served, Report& report) {
    if (is_removed(served.request)) return;
    const Place place = place_of(served.request.generation, served.request);
    const std::pair key{served.coordinator, place};
    if (served.reply.ok &&
        (served.request.op == StoreOp::set || served.request.op == StoreOp::add || has_exchanged(served.request, served.reply)))
      present_.insert(key);
    if (!served.reply.ok && served.reply.code == Code::deadline_passed && served.request.op == StoreOp::get &&
        (present_.contains(key) || known(served, place)))
      report.violate(
          name, fmt::format("a caller waited {} ms for \"{}\" in vain, although it is there", served.request.wait / 1ms, place.second));
    if (!served.reply.ok && served.reply.code == Code::deadline_passed && gathers(served.request.op) && known(served, place))
      report.violate(name, fmt::format("rank {} waited for others at \"{}\", where all of them had met: {}", served.request.rank,
                                       place.second, served.reply.what));
  }

 private:
  using Place = std::pair<GenerationKey, std::string>;  // what a key means to those who use it
  using History = std::pair<ProcessId, Place>;          // and in whose store, where that matters
  struct Interval {
    Instant begun, done;
  };
  struct Count {
    Instant begun, done;
    std::int64_t value;
  };

  [[nodiscard]] static bool is_removed(const StoreRequest& request) {
    return !request.keys.empty() && request.keys[0].starts_with("job/elrun/save/");
  }
  /// The key has the wished value now, by this call or an earlier one.
  [[nodiscard]] static bool has_exchanged(const StoreRequest& request, const StoreReply& reply) {
    return request.op == StoreOp::compare_set && !reply.values.empty() && reply.values[0] == request.value;
  }
  [[nodiscard]] static std::string text(const ByteVector& value) { return std::string{as_text(value)}; }
  [[nodiscard]] static Place place_of(const Generation& generation, const StoreRequest& request) {
    const std::string key = request.keys.empty() ? std::string{} : request.keys[0];
    return {key.starts_with(store_job_prefix) ? GenerationKey{} : key_of(generation), key};
  }
  [[nodiscard]] static History history_of(ProcessId coordinator, const Place& place) {
    return {place.first == GenerationKey{} ? coordinator : ProcessId{}, place};
  }
  [[nodiscard]] bool known(const StoreServed& served, const Place& place) const {
    const auto keeper = keeper_.find(key_of(served.request.generation));
    return keeper != keeper_.end() && keeper->second == served.coordinator && done_.contains(history_of(served.coordinator, place));
  }
  void added(const History& key, Instant begin, std::int64_t value, Report& report) {
    const std::string& shown = key.second.second;
    if (value < 1 || value > adds_[key.second])
      report.violate(name, fmt::format("a counter \"{}\" that was raised {} times stands at {}", shown, adds_[key.second], value));
    for (const Count& other : counts_[key]) {
      if (other.value == value) report.violate(name, fmt::format("two calls raised \"{}\" to the same {}", shown, value));
      if (other.done < begin && other.value > value)
        report.violate(name, fmt::format("\"{}\" stood at {} before it was raised to {}", shown, other.value, value));
    }
    counts_[key].push_back({begin, report.now, value});
  }
  void read(const History& key, Instant begin, const std::string& value, Report& report) {
    const std::string& shown = key.second.second;
    if (!written_[key.second].contains(value))
      return report.violate(name, fmt::format("\"{}\" was read as \"{}\", which nobody wrote there in generation number {}", shown, value,
                                              key.second.first.first));
    const auto& writes = writes_[key];
    const auto mine = writes.find(value);
    if (mine == writes.end()) return;
    for (const auto& [other, write] : writes)
      if (other != value && write.begun > mine->second.done && write.done < begin)
        report.violate(
            name, fmt::format("\"{}\" was read as \"{}\" although \"{}\" was written after it and before the read", shown, value, other));
  }

  std::map<std::pair<ProcessId, std::uint64_t>, Instant> begun_;
  std::map<Place, std::set<std::string>> written_;
  std::set<std::pair<ProcessId, Place>> present_;
  std::set<History> done_;                     // a worker has the answer: the key is set, the gathering was over
  std::map<GenerationKey, ProcessId> keeper_;  // who serves it now
  std::map<Place, std::int64_t> adds_;
  std::map<Place, std::set<std::uint32_t>> callers_;
  std::map<History, std::map<std::string, Interval>> writes_;
  std::map<History, std::vector<Count>> counts_;
};

}  // namespace elrun::sim
