#include "tests/support/sim/checkpoint_truth.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace elrun::checkpoint_sim {
namespace {

bool came_from(const History& state, const History& earlier) {
  return std::find(state.begin(), state.end(), earlier.back()) != state.end();
}

}  // namespace

void CheckpointTruth::begun(const CheckpointId& id, const History& state) {
  if (!saves_.emplace(id, Save{.state = state}).second) throw Broken{fmt::format("the name {} is used twice", to_string(id))};
}

void CheckpointTruth::part_written(const CheckpointId& id, std::uint32_t rank) {
  saves_.at(id).parts.insert(rank);
  saves_.at(id).hidden.erase(rank);  // on an object store the same part may be put again
}

void CheckpointTruth::acknowledged(const CheckpointId& id) {
  if (!saves_.at(id).hidden.empty())
    throw Broken{fmt::format("{} is acknowledged, and a shard of it is where only its writer sees it", to_string(id))};
  saves_.at(id).promised = ++promises_;
}

std::vector<CheckpointId> CheckpointTruth::promises() const {
  std::vector<CheckpointId> ids;
  for (const auto& [id, save] : saves_)
    if (save.promised > 0 && !save.damaged && !save.lost) ids.push_back(id);
  std::sort(ids.begin(), ids.end(), [&](const auto& a, const auto& b) { return saves_.at(a).promised > saves_.at(b).promised; });
  return ids;
}

std::vector<CheckpointId> CheckpointTruth::all_lost() const {
  std::vector<CheckpointId> ids;
  for (const auto& [id, save] : saves_)
    if (save.lost) ids.push_back(id);
  return ids;
}

void CheckpointTruth::check_parts(const CheckpointId& id, std::uint32_t world) const {
  const auto& parts = saves_.at(id).parts;
  for (std::uint32_t rank = 0; rank < world; ++rank)
    if (!parts.contains(rank)) throw Broken{fmt::format("{} is to be committed without the part of rank {}", to_string(id), rank)};
}

void CheckpointTruth::check_choice(const std::optional<CheckpointId>& choice, FenceNumber own, std::uint64_t before) const {
  auto promised = promises();
  std::erase_if(promised, [&](const CheckpointId& id) { return id.fence > own && saves_.at(id).promised > before; });
  if (promised.empty()) return;
  if (!choice || !came_from(saves_.at(*choice).state, saves_.at(promised.front()).state))
    throw Broken{fmt::format("{} was acknowledged, and a job goes on from {}", to_string(promised.front()),
                             choice ? to_string(*choice) : std::string{"step 0"})};
}

void CheckpointTruth::check_line(const std::vector<CheckpointId>& line, const History* state) const {
  for (std::size_t i = 1; i < line.size(); ++i)
    if (!came_from(saves_.at(line[i]).state, saves_.at(line[i - 1]).state))
      throw Broken{fmt::format("two timelines: {} is inherited, and did not come from {}, which is, too", to_string(line[i]),
                               to_string(line[i - 1]))};
  if (state != nullptr && !line.empty() && !came_from(*state, saves_.at(line.back()).state))
    throw Broken{fmt::format("two timelines: {} is inherited by a job whose state did not come from it", to_string(line.back()))};
}

}  // namespace elrun::checkpoint_sim
