#include "lib/comm/choose.hpp"

namespace elrun::inline v0 {

bool connects_by_unix_socket(const PairFacts& facts) {
  return facts.wanted != Transport::tcp && facts.same_boot && facts.both_listen && facts.same_network != Known::no;
}

std::optional<Transport> choose(const PairFacts& facts) {
  if (connects_by_unix_socket(facts) && facts.memory != Known::no) return Transport::shm;
  if (facts.wanted == Transport::shm) return std::nullopt;
  return Transport::tcp;
}

}  // namespace elrun::inline v0
