#include "checkpoint/format/names.hpp"

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

/// Takes exactly `width` digits from the front of `text`.
std::optional<std::uint64_t> digits(std::string_view& text, std::size_t width) {
  if (text.size() < width) return std::nullopt;
  std::uint64_t value = 0;
  for (const char c : text.substr(0, width)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  text.remove_prefix(width);
  return value;
}

bool literal(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

}  // namespace

std::string to_string(const CheckpointId& id) { return fmt::format("s{:012}.g{:08}.a{:02}", id.step, id.fence, id.attempt); }

std::string checkpoint_directory(const CheckpointId& id) { return fmt::format("{}/{}", checkpoints_directory, to_string(id)); }

std::optional<CheckpointId> parse_checkpoint_id(std::string_view name) {
  if (!literal(name, "s")) return std::nullopt;
  const auto step = digits(name, 12);
  if (!step || !literal(name, ".g")) return std::nullopt;
  const auto fence = digits(name, 8);
  if (!fence || !literal(name, ".a")) return std::nullopt;
  const auto attempt = digits(name, 2);
  if (!attempt || !name.empty()) return std::nullopt;
  return CheckpointId{*step, *fence, static_cast<std::uint32_t>(*attempt)};
}

std::string claim_name(FenceNumber number) { return fmt::format("g{:08}.claim", number); }
std::string fence_name(FenceNumber number) { return fmt::format("g{:08}.json", number); }

std::optional<FenceNumber> parse_fence_number(std::string_view name) {
  if (!literal(name, "g")) return std::nullopt;
  const auto number = digits(name, 8);
  if (!number || (name != ".claim" && name != ".json")) return std::nullopt;
  return number;
}

std::string acknowledgement_name(const CheckpointId& id) {
  return fmt::format("g{:08}.s{:012}.a{:02}.acknowledged", id.fence, id.step, id.attempt);
}

std::optional<CheckpointId> parse_acknowledgement_name(std::string_view name) {
  if (!literal(name, "g")) return std::nullopt;
  const auto fence = digits(name, 8);
  if (!fence || !literal(name, ".s")) return std::nullopt;
  const auto step = digits(name, 12);
  if (!step || !literal(name, ".a")) return std::nullopt;
  const auto attempt = digits(name, 2);
  if (!attempt || name != ".acknowledged") return std::nullopt;
  return CheckpointId{*step, *fence, static_cast<std::uint32_t>(*attempt)};
}

std::string to_string(const LossName& name) {
  return name.fence ? fmt::format("{}@{}", name.step, *name.fence) : fmt::format("{}", name.step);
}

std::optional<LossName> parse_loss_name(std::string_view text) {
  const auto number = [](std::string_view part, std::uint64_t most) -> std::optional<std::uint64_t> {
    const std::size_t width = part.size();
    const auto value = width > 0 && width <= 12 ? digits(part, width) : std::nullopt;
    return value && *value <= most ? value : std::nullopt;
  };
  const std::size_t at = text.find('@');
  const auto step = number(text.substr(0, at), step_max);
  if (!step) return std::nullopt;
  if (at == std::string_view::npos) return LossName{*step, {}};
  const auto fence = number(text.substr(at + 1), fence_max);
  return fence ? std::optional{LossName{*step, *fence}} : std::nullopt;
}

std::string shard_name(std::uint32_t rank, std::uint32_t world) { return fmt::format("r{:05}-of-{:05}.safetensors", rank, world); }
std::string part_name(std::uint32_t rank, std::uint32_t world) { return fmt::format("r{:05}-of-{:05}.part.json", rank, world); }

}  // namespace elrun::inline v0
