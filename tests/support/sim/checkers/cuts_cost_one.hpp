#pragma once
/// \file Where nothing goes wrong but that pairs of nodes are cut from each other: the job goes on within a minute without one of
/// each pair at most, nobody else is excluded, it costs nothing, and whoever was excluded comes back once the cut is mended.

#include <algorithm>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct CutsCostOne {
  static constexpr std::string_view name = "cuts-cost-one";
  static constexpr Duration goes_on_within = 60s;
  /// Whoever is out tries again after a minute at most, as long as cuts last here; and a world that has grown in vain waits to do so again.
  static constexpr Duration back_within = 110s;
  /// Set by the plan: nothing else goes wrong, and the minimum holds without one of each pair.
  bool only_that = false, can_be_spared = false;

  void on(const PairIsCut& pair, Report& report) {
    cuts_.push_back(pair);
    cut_at_ = std::max(cut_at_, report.now);
    mended_ = std::max(mended_, pair.until);
  }
  void on(const GenerationBegan& began, Report& report) {
    if (!only_that) return;
    running_ = {began.nodes.begin(), began.nodes.end()};
    began_ = report.now;
    for (const NodeId& node : members_ever_) {
      if (running_.contains(node)) continue;
      if (std::none_of(cuts_.begin(), cuts_.end(), [&](const PairIsCut& cut) { return cut.a == node || cut.b == node; }))
        report.violate(name, fmt::format("{} is not in generation {}, and was cut from nobody", node.value(), to_string(began.generation)));
      if (!can_be_spared)
        report.violate(name,
                       fmt::format("{} is not in generation {}, though the minimum needs it", node.value(), to_string(began.generation)));
    }
    for (const PairIsCut& cut : cuts_)
      if (members_ever_.contains(cut.a) && members_ever_.contains(cut.b) && !running_.contains(cut.a) && !running_.contains(cut.b))
        report.violate(name, fmt::format("{} and {} were cut from each other, and neither is in generation {}", cut.a.value(),
                                         cut.b.value(), to_string(began.generation)));
    members_ever_.insert(running_.begin(), running_.end());
  }
  void on(const GenerationRevoked& revoked, Report& report) {
    if (!only_that) return;
    running_.clear();
    if (revoked.why.find("cannot reach each other") == std::string::npos && !revoked.why.starts_with("the world grows"))
      report.violate(name, fmt::format("generation {} was ended for another reason: {}", to_string(revoked.generation), revoked.why));
  }
  void on(const StepWasDecided&, Report& report) { stepped_ = report.now; }
  void on(const VerdictGiven&, Report&) { over_ = true; }
  void on(const AgentFinished& finished, Report& report) {
    if (only_that && can_be_spared && finished.exit_code != 0)
      report.violate(name, fmt::format("agent {} ended with {}: {}", finished.agent.value(), finished.exit_code, finished.why));
  }
  void on(const CutsLookedAt& looked, Report& report) {
    over_ = over_ || looked.over;
    if (!only_that || over_ || cuts_.empty() || members_ever_.empty()) return;
    for (const PairIsCut& cut : cuts_)
      if (cut.until > report.now && running_.contains(cut.a) && running_.contains(cut.b) &&
          report.now - std::max(began_, cut_at_) > goes_on_within)
        report.violate(name, fmt::format("{} and {} are cut from each other, and a generation has had both for more than {} s",
                                         cut.a.value(), cut.b.value(), goes_on_within / 1s));
    if (!can_be_spared) return;
    if (report.now - std::max({stepped_, cut_at_, first()}) > goes_on_within)
      report.violate(name, fmt::format("no step was decided for {} s", goes_on_within / 1s));
    if (report.now - mended_ <= back_within) return;
    for (const NodeId& node : looked.alive)
      if (!running_.empty() && !running_.contains(node))
        report.violate(name, fmt::format("{} s after all cuts were mended {} is still excluded", back_within / 1s, node.value()));
  }

 private:
  [[nodiscard]] Instant first() const { return stepped_ == Instant{} ? began_ : Instant{}; }

  std::vector<PairIsCut> cuts_;
  std::set<NodeId> running_, members_ever_;
  Instant began_{}, stepped_{}, cut_at_{}, mended_{};
  bool over_ = false;
};

}  // namespace elrun::sim
