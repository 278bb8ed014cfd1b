#include "rendezvous/round/job_terms.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {
namespace {

std::optional<std::uint32_t> major_of(std::string_view version) {
  std::uint32_t major = 0;
  const auto [end, error] = std::from_chars(version.data(), version.data() + version.size(), major);
  if (error != std::errc{} || end == version.data() + version.size() || *end != '.') return {};
  return major;
}

}  // namespace

std::vector<std::string> RoundOptions::problems() const {
  std::vector<std::string> problems;
  if (nodes_min < 1 || nodes_min > nodes_max || nodes_max > nodes_limit)
    problems.push_back(fmt::format("--nnodes {}:{}: needs 1 <= MIN <= MAX <= {}", nodes_min, nodes_max, nodes_limit));
  if (last_call < Duration{0} || last_call > 24h) problems.push_back(fmt::format("last_call {} s: needs 0 to 86400", seconds(last_call)));
  if (max_restarts < -1) problems.push_back(fmt::format("--max_restarts {}: needs 0 or more", max_restarts));
  return problems;
}

std::vector<std::string> JobTerms::contradictions(const Join& join, std::uint64_t newest) const {
  std::vector<std::string> all = join.options.problems();
  const auto differ = [&](std::string_view what, const auto& here, const auto& there) {
    if (here != there) all.push_back(fmt::format("{}: this node has {}, the job has {}", what, there, here));
  };
  if (!run_.value().empty()) differ("run id (--rdzv_id)", run_.value(), join.run.value());
  if (const auto here = major_of(given_.version), there = major_of(join.version); !here || here != there)
    all.push_back(
        fmt::format("version: this node runs elrun {}, the coordinator {}; the major versions must agree", join.version, given_.version));
  if (join.heartbeat >= given_.heartbeat_limit)
    all.push_back(fmt::format(
        "--rdzv_conf keep_alive_interval: this node says every {:.3g} s that it lives, and the coordinator counts a node as lost that is silent for {:.3g} s",
        seconds(join.heartbeat), seconds(given_.heartbeat_limit)));
  if (join.workers > workers_per_node_limit)
    all.push_back(fmt::format("--nproc_per_node {}: needs 0 to {}", join.workers, workers_per_node_limit));
  if (join.who.node.value().empty()) all.push_back("the node has no name");
  // Names are shown in logs and told to others.
  for (const auto& [what, name] : {std::pair{"the node's name", &join.who.node.value()}, std::pair{"its address", &join.address},
                                   std::pair{"--rdzv_id", &join.run.value()}, std::pair{"--topology", &join.topology},
                                   std::pair{"--role", &join.role}, std::pair{"version", &join.version}})
    if (printable(*name) != *name) all.push_back(fmt::format("{} has characters that cannot be shown: {}", what, printable(*name)));
  // What nobody can have been told: a number that is believed stands for all generations below it.
  if (const std::uint64_t said = std::max(join.last.number, join.heard);
      said > generation_number_max || said > newest + generation_jump_max)
    all.push_back(fmt::format("generation {} is out of bounds: the newest that this coordinator knows of is {}", said, newest));
  if (given_.nodes_max > 0) {
    differ("--nnodes MIN", given_.nodes_min, join.options.nodes_min);
    differ("--nnodes MAX", given_.nodes_max, join.options.nodes_max);
  } else if (options_) {
    differ("--nnodes MIN", options_->nodes_min, join.options.nodes_min);
    differ("--nnodes MAX", options_->nodes_max, join.options.nodes_max);
  }
  if (options_) {
    differ("last_call (seconds)", seconds(options_->last_call), seconds(join.options.last_call));
    differ("--max_restarts (-1: not given)", options_->max_restarts, join.options.max_restarts);
  }
  return all;
}

void JobTerms::agree(const Join& join) {
  if (!options_) options_ = join.options;
  if (run_.value().empty()) run_ = join.run;
  refused_.erase(join.who.node);
}

void JobTerms::refuse(const NodeId& node, const std::string& why) {
  if (refused_.size() < refused_max || refused_.contains(node)) refused_[node] = why.substr(0, refused_text_max);
}

}  // namespace elrun::inline v0
