#include "lib/link/store_memory.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

std::uint64_t weight(const StoreRequest& request) { return sizeof request + request.keys[0].size() + request.value.size(); }

}  // namespace

void StoreMemory::note(StoreRequest request, const StoreReply& reply) {
  if (!reply.ok || reply.version == 0 || request.keys.size() != 1) return;  // it changed nothing
  if (request.op == StoreOp::add) {
    const std::string sum = fmt::format("{}", reply.number);
    request.value.assign(as_bytes(sum).begin(), as_bytes(sum).end());
  }
  if (request.op == StoreOp::add || request.op == StoreOp::compare_set) request.op = StoreOp::set;
  request.expected.clear();
  request.replay = true;
  request.version = reply.version;
  const bool meets = gathers(request.op);
  const Name name{meets ? request.op : StoreOp::set, request.keys[0], meets ? request.count : 0, meets ? request.rank : 0};
  if (const auto before = entries_.find(name); before != entries_.end()) {
    if (before->second.version > request.version) return;  // another worker's change, whose answer came first
    forget(before);
  }
  bytes_ += weight(request);
  by_version_[request.version].push_back(name);
  entries_.emplace(name, std::move(request));
  for (; bytes_ > store_memory_max.value(); has_forgotten_ = true) forget(entries_.find(by_version_.begin()->second.front()));
}

void StoreMemory::forget(std::map<Name, StoreRequest>::iterator entry) {
  bytes_ -= weight(entry->second);
  const auto same = by_version_.find(entry->second.version);
  std::erase(same->second, entry->first);
  if (same->second.empty()) by_version_.erase(same);
  entries_.erase(entry);
}

void StoreMemory::clear() { *this = {}; }

std::vector<StoreRequest> StoreMemory::replay(const Generation& generation, std::uint32_t node) const {
  std::vector<StoreRequest> all;
  all.reserve(entries_.size() + 1);
  for (const auto& [name, request] : entries_)
    if (!ELRUN_PLANTED(fresh_store_is_empty)) all.push_back(request);
  all.push_back({.op = StoreOp::relearned, .rank = node, .replay = true});
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].id = i;
    all[i].generation = generation;
  }
  return all;
}

}  // namespace elrun::inline v0
