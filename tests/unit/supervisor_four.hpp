#pragma once
/// \file A supervisor of four workers of a Job, for tests of what becomes of the places of those that die.

#include "tests/unit/supervisor_node.hpp"

namespace elrun::test::supervisor_pending {

inline Message acknowledgement(std::uint64_t number) { return GenerationOver{generation(number), {.code = Code::generation_over}}; }

/// Of four workers, on connections 10 to 13, all can stay.
inline Node running() {
  Node node{4};
  node.on(LinkUp{});
  node.hear(world(1, 4));
  for (std::uint32_t i = 0; i < 4; ++i) {
    node.on(WorkerStarted{LocalRank{i}, 100 + i});
    node.tell(10 + i, Hello{.pid = 100 + i, .rank = i, .world = 4, .is_job = true, .stays = true, .says_ready = true});
  }
  return node;
}

/// The generation ends, and all that live acknowledge it.
inline Words end(Node& node, std::uint64_t number, std::initializer_list<ConnectionId> living) {
  Words last = node.hear(Revoke{generation(number), revoked});
  for (const ConnectionId from : living) last = node.tell(from, acknowledgement(number));
  return last;
}

inline const Message successor = Hello{.pid = 201, .rank = 1, .world = 4, .is_job = true, .stays = true, .says_ready = true};

inline Place place_in(const Action& action) { return std::get<Welcome>(std::get<Answer>(action).message).place; }

}  // namespace elrun::test::supervisor_pending
