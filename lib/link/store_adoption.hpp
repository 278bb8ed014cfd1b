#pragma once
/// \file StoreAdoption: a generation that ran already, with a store that is gone, and what its nodes have said of it so far. Pure.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/planted.hpp"
#include "lib/link/store_call.hpp"

namespace elrun::inline v0 {

/// A call that came while a generation was adopted.
struct PutOffCall {
  StoreCaller from;
  StoreRequest request;
  Instant since;
  StoreScope scope;
};

/// Under way from `begin` until all nodes have said what they remember, or `end`. Calls that come meanwhile are put off, in their order. A value.
class StoreAdoption {
 public:
  void begin(std::uint32_t nodes) { nodes_expected_ = nodes; }
  [[nodiscard]] bool is_under_way() const { return nodes_expected_ > 0; }
  /// This node has said all that it remembers. True: so have all nodes; `end` is to follow.
  [[nodiscard]] bool note_reported(std::uint32_t node) {
    reported_.insert(node);
    return reported_.size() >= nodes_expected_;
  }
  /// A change of this key, with its version, as a node remembers it. False: another node's worker changed it later.
  [[nodiscard]] bool is_newest(const std::string& key, std::uint64_t version) {
    const auto [newest, fresh] = replayed_.try_emplace(key);
    if (fresh) bytes_ += key.size() + store_key_overhead;
    if (version <= newest->second) return false;
    newest->second = version;
    return true;
  }
  void put_off(PutOffCall call) {
    bytes_ += held_by(call.request);
    put_off_.push_back(std::move(call));
  }
  /// The calls that were put off.
  [[nodiscard]] std::vector<PutOffCall> end() { return std::exchange(*this, {}).put_off_; }
  void forget(StoreCaller caller) {
    (void)take([&](const PutOffCall& call) { return call.from == caller; });
  }
  /// The calls of workers, which no longer wait.
  [[nodiscard]] std::vector<PutOffCall> drop_generation() {
    return take([](const PutOffCall& call) { return call.scope == StoreScope::generation; });
  }
  [[nodiscard]] std::size_t calls() const { return put_off_.size(); }
  /// What the calls and the names of the replayed keys hold.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::vector<PutOffCall> take(auto which) {
    const auto rest = std::stable_partition(put_off_.begin(), put_off_.end(), [&](const PutOffCall& call) { return !which(call); });
    std::vector<PutOffCall> taken{std::make_move_iterator(rest), std::make_move_iterator(put_off_.end())};
    put_off_.erase(rest, put_off_.end());
    for (const PutOffCall& call : taken) bytes_ -= held_by(call.request);
    return taken;
  }

  std::uint32_t nodes_expected_ = 0;               // 0: there is none
  std::set<std::uint32_t> reported_;               // nodes, by group rank
  std::map<std::string, std::uint64_t> replayed_;  // versions of the keys that were replayed, also of those removed
  std::vector<PutOffCall> put_off_;
  std::uint64_t bytes_ = 0;
};

}  // namespace elrun::inline v0
