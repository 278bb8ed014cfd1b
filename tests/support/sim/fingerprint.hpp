#pragma once
/// \file Fingerprint: all that decides how a simulation goes on, as one number. Two orders of events that lead to the same
/// fingerprint have the same future, so the explorer follows only one of them.
///
/// Plain structs are taken apart field by field; the cores' classes too, and there each member is named: one that is added
/// and left out here does not compile.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/supervise/supervisor.hpp"
#include "lib/link/store_core.hpp"
#include "rendezvous/round/round.hpp"

namespace elrun::sim {

class Simulation;

class Fingerprint {
 public:
  [[nodiscard]] std::uint64_t value() const { return value_; }
  template <class... Values>
  static std::uint64_t of(const Values&... values) {
    Fingerprint print;
    (print.add(values), ...);
    return print.value();
  }

  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void add(T number) {
    std::uint64_t x = value_ ^ (static_cast<std::uint64_t>(number) + 0x9e3779b97f4a7c15u);  // splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    value_ = (x ^ (x >> 31)) + (value_ << 7);
  }
  void add(std::monostate) { add(0); }
  void add(Duration d) { add(d.count()); }
  void add(Instant t) { add(t.time_since_epoch().count()); }
  template <class Tag, class Rep>
  void add(const Strong<Tag, Rep>& strong) {
    add(strong.value());
  }
  template <class A, class B>
  void add(const std::pair<A, B>& pair) {
    add(pair.first), add(pair.second);
  }
  template <class... T>
  void add(const std::tuple<T...>& tuple) {
    std::apply([this](const auto&... part) { (add(part), ...); }, tuple);
  }
  template <class T>
  void add(const std::optional<T>& maybe) {
    add(maybe.has_value());
    if (maybe) add(*maybe);
  }
  template <class... T>
  void add(const std::variant<T...>& one) {
    add(one.index());
    std::visit([this](const auto& value) { add(value); }, one);
  }
  template <class T>
  void add(const std::shared_ptr<T>& shared) {
    add(shared != nullptr);
    if (shared) add(*shared);
  }
  template <class Range>
  requires requires(const Range& range) { range.begin(), range.end(), range.size(); }
  void add(const Range& range) {
    add(range.size());
    for (const auto& each : range) add(each);
  }
  template <class T>
  requires std::is_aggregate_v<T> &&(!requires(const T& range) { range.begin(), range.size(); }) void add(const T& plain) {
    add_fields(plain);
  }

  void add(const Round& round);
  void add(const JobTerms& terms);
  void add(const NodeNames& names);
  void add(const EndedAgents& ended);
  void add(const ExcludedNodes& excluded);
  void add(const EarlierGenerations& earlier);
  void add(const Forming& forming);
  void add(const GenerationState& state);
  void add(const UnreachablePairs& unreachable);
  void add(const PendingJudgement& pending);
  void add(const VerdictDelivery& delivery);
  void add(const Succession& succession);
  void add(const WakeUp& wake_up);
  void add(const NodeTable& table);
  void add(const StatusMessages& status);
  void add(const StartWatch& watch);
  void add(const FailureRecords& failures);
  void add(const Growth& growth);
  void add(const RestartBudget& budget);
  void add(const RootCause& root_cause);
  void add(const RecoveryWindow& recovery);
  void add(const Exclusions& exclusions);
  void add(const StoreCore& store);
  void add(const StoreKeys& keys);
  void add(const StoreWaiters& waiters);
  void add(const StoreRooms& rooms);
  void add(const StoreAdoption& adoption);
  void add(const StoreMemory& memory);
  void add(const launcher::Deadlines& deadlines);
  void add(const launcher::StallCompensation& stall);
  void add(const launcher::StoreCalls& store_calls);
  void add(const launcher::Departure& departure);
  void add(const launcher::StopPlan& stop);
  void add(const launcher::SuccessorWait& successors);
  void add(const launcher::WorkerLife& life);
  void add(const launcher::NodeWorkers& workers);
  void add(const launcher::NodeGeneration& generation);
  void add(const launcher::JobProgress& job);
  void add(const launcher::CoordinatorLine& line);
  void add(const launcher::LostPeers& lost);
  void add(const launcher::RecoveryTime& recovery);
  void add(const launcher::Supervisor& supervisor);
  void add(const Simulation& simulation);

 private:
  template <class... Values>
  void all(const Values&... values) {
    (add(values), ...);
  }
  template <class T>
  void add_fields(const T& s);

  std::uint64_t value_ = 0x243f6a8885a308d3u;
};

template <class T>
void Fingerprint::add_fields(const T& s) {
  if constexpr (std::is_empty_v<T>) {
  } else if constexpr (requires {
                         T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
                       }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u, v, w, x, y, z, one, last] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u, v, w, x, y, z, one, last);
  } else if constexpr (requires {
                         T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
                       }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u, v, w, x, y, z, last] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u, v, w, x, y, z, last);
  } else if constexpr (requires {
                         T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
                       }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u, v, w, x, y, z] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u, v, w, x, y, z);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u, v, w, x, y] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u, v, w, x, y);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u, v, w, x] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u, v, w, x);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u, v, w] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u, v, w);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u, v] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u, v);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t, u);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, t);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l, m);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = s;
    all(a, b, c, d, e, f, g, h, i, j, k, l);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k] = s;
    all(a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i, j] = s;
    all(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h, i] = s;
    all(a, b, c, d, e, f, g, h, i);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g, h] = s;
    all(a, b, c, d, e, f, g, h);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f, g] = s;
    all(a, b, c, d, e, f, g);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e, f] = s;
    all(a, b, c, d, e, f);
  } else if constexpr (requires { T{{}, {}, {}, {}, {}}; }) {
    const auto& [a, b, c, d, e] = s;
    all(a, b, c, d, e);
  } else if constexpr (requires { T{{}, {}, {}, {}}; }) {
    const auto& [a, b, c, d] = s;
    all(a, b, c, d);
  } else if constexpr (requires { T{{}, {}, {}}; }) {
    const auto& [a, b, c] = s;
    all(a, b, c);
  } else if constexpr (requires { T{{}, {}}; }) {
    const auto& [a, b] = s;
    all(a, b);
  } else {
    const auto& [a] = s;
    all(a);
  }
}

}  // namespace elrun::sim
