#include "launcher/supervise/node_generation.hpp"

#include <utility>

#include <fmt/format.h>

#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {

World NodeGeneration::begin(const World& world, Instant now) {
  World before = std::exchange(world_, world);
  before_ = before.generation;
  began_at_ = now;
  failed_here_ = false;
  step_ = 0;  // steps may be done again
  lost_peers_.clear();
  return before;
}

bool NodeGeneration::lacks_places(const World& world) const {
  return world.seat.base_rank + places_ > world.seat.world_size ||
         (world.role.world_size > 0 && world.role.base_rank + places_ > world.role.world_size);
}

bool NodeGeneration::has_rank(Rank rank) const {
  return rank.value() >= world_.seat.base_rank && rank.value() < world_.seat.base_rank + places_;
}

bool NodeGeneration::decide(std::uint64_t step) {
  if (step <= step_) return false;
  step_ = step;
  return true;
}

std::string describe_world(const NodeGeneration& generation, const WorldSummary& news) {
  const World& world = generation.world();
  const Seat& seat = world.seat;
  const std::uint32_t places = generation.places();
  std::string text =
      fmt::format("generation {}: {}, {}", world.generation.number, count_of(seat.nodes, "node"), count_of(seat.world_size, "worker"));
  if (seat.nodes > 1 && news.has_workers)
    text += places == 1 ? fmt::format(", rank {} here", seat.base_rank)
                        : fmt::format(", ranks {}-{} here", seat.base_rank, seat.base_rank + places - 1);
  if (news.staying > 0) text += fmt::format(", {} {} on here in the same process", news.staying, news.staying == 1 ? "goes" : "go");
  if (news.ready > 0)
    text +=
        fmt::format(", {} that {} started meanwhile {}", news.ready, news.ready == 1 ? "was" : "were", news.ready == 1 ? "joins" : "join");
  if (news.recovering) text += fmt::format(", started {} after the loss", for_people(*news.recovering));
  if (world.restarts.used > 0)
    text += fmt::format("; {} of {} used", world.restarts.used, count_of(static_cast<std::size_t>(news.max_restarts), "restart"));
  if (news.beside > 0)
    text += fmt::format("; {} being started here, and joins when it is ready",
                        news.beside == 1 ? "1 worker is" : fmt::format("{} workers are", news.beside));
  return text;
}

}  // namespace elrun::inline v0::launcher
