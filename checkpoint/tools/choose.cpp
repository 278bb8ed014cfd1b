#include "checkpoint/tools/choose.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/commit/fence.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {

std::optional<CheckpointName> parse_checkpoint_name(std::string root, std::string_view which) {
  CheckpointName name{.root = std::move(root)};
  name.id = parse_checkpoint_id(which);
  if (!name.id) name.step = parse_loss_name(which);
  if (!name.id && !name.step) return std::nullopt;
  return name;
}

CheckpointName parse_checkpoint_name(std::string_view text) {
  std::string_view path = text;
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const auto slash = path.rfind('/');
  const std::string_view last = slash == std::string_view::npos ? path : path.substr(slash + 1);
  if (const auto id = parse_checkpoint_id(last)) {
    const std::string_view parent = slash == std::string_view::npos ? std::string_view{} : path.substr(0, slash);
    constexpr std::string_view directory{checkpoints_directory};
    if (parent == directory) return {.root = ".", .id = id};
    if (parent.ends_with(directory) && parent.size() > directory.size() && parent[parent.size() - directory.size() - 1] == '/')
      return {.root = std::string{parent.substr(0, std::max<std::size_t>(1, parent.size() - directory.size() - 1))}, .id = id};
  }
  if (const auto colon = text.rfind(':'); colon != std::string_view::npos && colon > 0)
    if (auto named = parse_checkpoint_name(std::string{text.substr(0, colon)}, text.substr(colon + 1))) {
      named->word = text;
      return *std::move(named);
    }
  return {.root = std::string{text}};
}

std::variant<CheckpointId, std::string> choose(const CheckpointName& name, const std::vector<Found>& found,
                                               const std::vector<Found>& line) {
  const auto is_meant = [&](const CheckpointId& id) {
    return name.id ? id == *name.id : name.step && id.step == name.step->step && name.step->fence.value_or(id.fence) == id.fence;
  };
  std::optional<CheckpointId> best;
  int best_rank = -1;
  for (const Found& f : found) {
    if (!is_meant(f.id)) continue;
    const bool on_line = std::any_of(line.begin(), line.end(), [&](const Found& l) { return l.id == f.id; });
    const int rank = on_line ? 2 : f.committed ? 1 : 0;
    if (rank > best_rank || (rank == best_rank && *best < f.id)) best = f.id, best_rank = rank;
  }
  if (best) return *best;
  const std::string wanted = name.id ? to_string(*name.id) : fmt::format("step {}", name.step ? to_string(*name.step) : std::string{});
  std::vector<std::string> there;
  for (const Found& f : found) there.push_back(to_string(LossName{f.id.step, f.id.fence}));
  if (there.empty()) return fmt::format("{} holds no checkpoint at all", name.root);
  return fmt::format("{} holds no checkpoint of {}; it holds {} (STEP@FENCE; `elrun ckpt ls {}` says more)", name.root, wanted,
                     some_of(there), name.root);
}

}  // namespace elrun::inline v0
