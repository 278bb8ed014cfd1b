#include "rendezvous/round/failure_records.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lib/base/words.hpp"

namespace elrun::inline v0 {

std::optional<NodeId> FailureRecords::open(const NodeId& node, const std::string& place, const IsConnected& is_connected) {
  records_.insert_or_assign(node, "node " + node.value());
  if (place.empty()) return {};
  const Record record = "place " + place;
  std::optional<NodeId> before = holder_of(record);
  if (before == node) before.reset();
  if (before) {
    if (is_connected(*before)) return {};
    records_.insert_or_assign(*before, "node " + before->value());
  }
  holders_.insert_or_assign(record, node);
  records_.insert_or_assign(node, record);
  return before;
}

void FailureRecords::close(const NodeId& node) {
  const auto record = records_.find(node);
  if (record == records_.end()) return;
  if (const auto place = holders_.find(record->second); place != holders_.end() && place->second == node) holders_.erase(place);
  records_.erase(record);
}

FailureRecords::Record FailureRecords::record_of(const NodeId& node) const {
  const auto record = records_.find(node);
  return record == records_.end() ? "node " + node.value() : record->second;
}

std::optional<NodeId> FailureRecords::holder_of(const Record& record) const {
  NodeId id;
  if (const auto place = holders_.find(record); place != holders_.end()) id = place->second;
  else if (record.starts_with("node ")) id = NodeId{record.substr(5)};
  const auto node = records_.find(id);
  return node != records_.end() && node->second == record ? std::optional{id} : std::nullopt;
}

const FailureRecords::History& FailureRecords::note(const NodeId& node, const std::string& what, bool at_start) {
  const Record record = record_of(node);
  if (histories_.size() >= histories_max && !histories_.contains(record))
    std::erase_if(histories_, [](const auto& entry) { return !entry.second.until; });
  History& history = histories_[record];
  ++history.failures;
  history.at_start &= at_start;
  history.last = what.substr(0, failure_text_max);
  return history;
}

std::optional<NodeId> FailureRecords::take_back() {
  if (!blamed_) return {};
  const Record record = *std::exchange(blamed_, {});
  const auto history = histories_.find(record);
  if (history == histories_.end()) return {};
  if (history->second.until) --history->second.exclusions;
  history->second.until.reset();
  if (history->second.failures > 0) --history->second.failures;
  return holder_of(record);
}

void FailureRecords::forget(const IsMember& is_member) {
  std::erase_if(histories_, [&](const auto& entry) {
    const std::optional<NodeId> id = holder_of(entry.first);
    return !entry.second.until && id && is_member(*id);
  });
}

void FailureRecords::exclude(const NodeId& node, Duration held_up, Duration longest, Instant now, bool by_configuration) {
  History& history = histories_[record_of(node)];
  history.by_configuration = by_configuration;
  const int doubled = 1 << std::min(history.exclusions, exclusion_doublings_max);
  const Duration least = exclusion_first * (by_configuration ? 1 << exclusion_doublings_max : doubled);
  history.until = now + std::max<Duration>(least, std::min<Duration>(std::min<Duration>(held_up, longest) * doubled, longest));
  ++history.exclusions;
}

bool FailureRecords::is_excluded(const NodeId& node) const {
  const auto history = histories_.find(record_of(node));
  return history != histories_.end() && history->second.until;
}

std::string FailureRecords::why_excluded(const NodeId& node, Instant now) const {
  const History& history = histories_.at(record_of(node));
  return fmt::format("excluded: its workers failed{}{} (the last one by {}{}), and the others go on without it; it tries again in {:.0f} s",
                     history.failures == 1 ? "" : fmt::format(" {} times in a row", history.failures),
                     history.at_start ? " at their start" : " with no step decided between", history.last,
                     history.by_configuration ? ", for a person to mend: its output says what" : "",
                     std::ceil(seconds(std::max(history.until.value_or(now) - now, Duration{0}))));
}

std::vector<FailureRecords::Record> FailureRecords::due(Instant now) const {
  std::vector<Record> due;
  for (const auto& [record, history] : histories_)
    if (history.until && now >= *history.until) due.push_back(record);
  return due;
}

std::vector<std::pair<NodeId, Instant>> FailureRecords::excluded() const {
  std::vector<std::pair<NodeId, Instant>> excluded;
  for (const auto& [record, history] : histories_)
    if (const std::optional<NodeId> id = holder_of(record); id && history.until) excluded.emplace_back(*id, *history.until);
  return excluded;
}

}  // namespace elrun::inline v0
