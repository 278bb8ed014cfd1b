#pragma once
/// \file Stalls: how many living nodes a limit of silence loses, where machines stand still for a while now and then. The product's Round, which
/// decides who is silent, and a Supervisor for each node exchange their messages under simulated time. Nothing ever dies there, so each loss is a
/// false one.
///
/// The first of 50 nodes hosts the coordinator, and stands still with it. Agents say that they live, break a line on which the coordinator
/// answers nothing, and connect again as rendezvous/net/client.cpp does. A connection itself never ends: its keep-alives are slower than the limits.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/units.hpp>

namespace elrun::sim {

/// One cause for which a machine stands still. It comes by chance, at any time alike; its length is log-normal, cut at both ends.
struct StallKind {
  std::string_view what;
  double per_day = 0;  ///< Of one node, in reality
  Duration median{};
  double sigma = 0;  ///< Of the logarithm
  Duration least{}, most{};
};

/// Which machines the nodes are.
struct Surroundings {
  std::string_view name;
  std::vector<StallKind> stalls;
};
/// The model, with the public figures that it follows (rendezvous/MEASURED.md has them).
[[nodiscard]] const std::vector<Surroundings>& all_surroundings();

struct StallSetup {
  std::uint64_t node_hours = 10'000;
  std::uint64_t seed = 0;
  double times = 100;  ///< As often as in reality
  unsigned threads = 1;
};
struct StallCount {
  std::uint64_t silent = 0;       ///< Nodes that were lost because nothing was heard of them
  std::uint64_t unreturned = 0;   ///< Nodes that were lost because their line to a coordinator that stood still itself broke
  std::uint64_t may = 0;          ///< Stalls as long as the limit less two signs of life: without one of these nobody is lost
  std::uint64_t must = 0;         ///< Stalls longer than the limit and a sign of life, of nodes that do not host the coordinator
  std::uint64_t stalls = 0;       ///< All of them
  std::uint64_t generations = 0;  ///< That began
  std::uint64_t beats = 0;        ///< Signs of life
  std::string wrong;              ///< A node that was lost for another reason, or an agent that gave up; empty: none
  [[nodiscard]] std::uint64_t lost() const { return silent + unreturned; }
};
/// Of one limit of silence. A node says five times in it that it lives, as by default. The stalls of a seed are the same with each limit.
[[nodiscard]] StallCount count_false_losses(const Surroundings& surroundings, Duration limit, const StallSetup& setup);

}  // namespace elrun::sim
