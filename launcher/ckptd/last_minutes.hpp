#pragma once
/// \file LastMinutes: which saves of an `elrun ckptd` are of a generation that is over.

#include <algorithm>
#include <map>
#include <string>

#include "checkpoint/format/names.hpp"

namespace elrun::inline v0::launcher {

/// Pure. Each generation saves under a fence of its own, so what was under way when a worker said that its generation is over has a fence that is known then, or
/// an older one. A save with a newer one is of a later generation, and has all its time, however long the old ones take to settle.
class LastMinutes {
 public:
  /// A save under way, or a slot that is being filled, when a generation ends.
  void settle(const std::string& root, FenceNumber fence) {
    FenceNumber& newest = newest_[root];
    newest = std::max(newest, fence);
  }
  [[nodiscard]] bool has(const std::string& root, FenceNumber fence) const {
    const auto at = newest_.find(root);
    return at != newest_.end() && fence <= at->second;
  }

 private:
  std::map<std::string, FenceNumber> newest_;  // by checkpoint root: a program may save one job after another
};

}  // namespace elrun::inline v0::launcher
