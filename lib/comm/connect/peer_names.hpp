#pragma once
/// \file PeerNames: where peers listen, by what they have published.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <elrun/result.hpp>

#include "lib/base/clock.hpp"
#include "lib/comm/connect/address.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0 {

/// Looks each name up once, for ranks of one host publish the same.
class PeerNames {
 public:
  PeerNames(const Clock& clock, Deadline deadline, Resolver resolver)
      : clock_{clock}, deadline_{deadline}, resolver_{std::move(resolver)} {}
  /// All addresses, at least one. Blocks while a name is looked up; `deadline_passed` when there is no time left after that.
  Result<std::vector<SocketAddress>> find(const RankAddress& peer);

 private:
  const Clock& clock_;
  const Deadline deadline_;
  const Resolver resolver_;
  std::map<std::string, std::vector<SocketAddress>> known_;
};

}  // namespace elrun::inline v0
