#pragma once
/// \file StoreCallers: who calls the store. A stream and a worker on it have one number for the store, until they are forgotten. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "lib/link/store_core.hpp"
#include "rendezvous/round/node_table.hpp"

namespace elrun::inline v0 {

class StoreCallers {
 public:
  struct Caller {
    StreamNumber stream;
    std::uint64_t worker = 0;
    friend auto operator<=>(const Caller&, const Caller&) = default;
  };

  /// Its number; a new one where it has none. No number is used again.
  [[nodiscard]] StoreCaller number_of(const Caller& caller) {
    const auto [at, fresh] = numbers_.try_emplace(caller, StoreCaller{made_ + 1});
    if (fresh) callers_.emplace(StoreCaller{++made_}, caller);
    return at->second;
  }
  /// Only of a number that is not forgotten.
  [[nodiscard]] const Caller& at(StoreCaller number) const { return callers_.at(number); }
  /// The number that it had. The store is to forget it as well, and gives it no answers from then on.
  std::optional<StoreCaller> forget(const Caller& caller) {
    const auto at = numbers_.find(caller);
    if (at == numbers_.end()) return {};
    const StoreCaller number = at->second;
    callers_.erase(number);
    numbers_.erase(at);
    return number;
  }
  /// The stream has ended: the numbers of all its callers.
  std::vector<StoreCaller> forget(StreamNumber stream) {
    std::vector<StoreCaller> numbers;
    for (auto at = numbers_.lower_bound({stream, 0}); at != numbers_.end() && at->first.stream == stream; at = numbers_.erase(at)) {
      callers_.erase(at->second);
      numbers.push_back(at->second);
    }
    return numbers;
  }

 private:
  std::map<Caller, StoreCaller> numbers_;
  std::map<StoreCaller, Caller> callers_;
  std::uint64_t made_ = 0;
};

}  // namespace elrun::inline v0
