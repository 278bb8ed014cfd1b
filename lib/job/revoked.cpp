#include "lib/job/revoked.hpp"

namespace elrun::inline v0 {

void leave(const JobWorld& world, Failure why) {
  if (!why.rank.has_value()) why.rank = world.membership().rank;
  if (!why.generation.has_value()) why.generation = world.membership().generation;
  if (!world.elastic()) {
    why.what += "; a job that was not started by elrun is not elastic: start it again, it goes on from its newest checkpoint";
    why.remedy = Remedy::exit_process;
  }
  throw Error{std::move(why)};
}

void stop_if_ranks_differ(const JobWorld& world) {
  if (!world.over()) return;
  if (const Failure why = world.why_over(); why.code == Code::mismatch && why.remedy == Remedy::fix_config) throw Error{why};
}

void revoked(const JobWorld& world) {
  stop_if_ranks_differ(world);
  if (!world.elastic()) leave(world, world.why_over());
  throw Revoked{};
}

void failed(const JobWorld& world, Failure why) {
  if (world.over()) revoked(world);
  throw Error{std::move(why)};
}

}  // namespace elrun::inline v0
