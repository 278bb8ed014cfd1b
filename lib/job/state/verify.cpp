// verify(): one hash per tensor and kind, of every copy there is.

#include <elrun/verify.hpp>

#include "lib/job/job_impl.hpp"
#include "lib/job/state/compare_copies.hpp"

namespace elrun::inline v0 {

Verification Job::Impl::verify() {
  require(held_.is_restored(), "verify comes after restore()");
  require(!slot_.is_open() || world.over(), "verify is called inside a slot; call it between steps");
  scopes_.require_all_closed("verify()");
  if (world.over() || !recovery_.is_ready() || held_.joined_running() || (gathers() && !scopes_.end_phase(phase()))) return {};
  world.now(Call::verify);
  const auto mine = hash_tensors(state_, declared.units(), plan().placement, plan().optimizer);
  const auto parts = world.all_gather(encode(mine, state_.hash_part(shards_.map, world.rank())));
  if (!parts.ok()) return {};
  auto compared = compare_copies(mine, *parts, shards_.map, plan().placement.optimizer == Sharding::sharded_in_node, decided_.applied());
  if (compared.ok()) return std::move(compared).value();
  world.end(compared.failure());
  return {};
}

Verification verify(Job& job) { return job.impl_->verify(); }

}  // namespace elrun::inline v0
