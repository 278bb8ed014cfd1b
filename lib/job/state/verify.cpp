// verify(): one hash per tensor and kind, of every copy there is.

#include <elrun/verify.hpp>

#include "lib/job/job_impl.hpp"
#include "lib/job/state/compare_copies.hpp"

namespace elrun::inline v0 {
namespace {

Verification verify_copies(JobParts& job) {
  job.require_callable();
  require(job.held.is_restored(), "verify comes after restore()");
  job.require_evaluations_ended();
  require(!job.slot.is_open() || job.world.over(), "verify is called inside a slot; call it between steps");
  job.scopes.require_all_closed("verify()");
  if (job.world.over() || !job.recovery.is_ready() || job.held.joined_running() || (job.gathers() && !job.scopes.end_phase(job.phase())))
    return {};
  job.world.now(Call::verify);
  if (!job.await_state()) return {};
  const auto mine = hash_tensors(job.state, job.declared.units(), job.plan().placement, job.plan().optimizer);
  const auto parts = job.world.all_gather(encode(mine, job.state.hash_part(job.shards.map, job.world.rank())));
  if (!parts.ok()) return {};
  auto compared =
      compare_copies(mine, *parts, job.shards.map, job.plan().placement.optimizer == Sharding::sharded_in_node, job.decided.applied());
  if (compared.ok()) return std::move(compared).value();
  job.world.end(compared.failure());
  return {};
}

}  // namespace

Verification verify(Job& job) { return verify_copies(job.impl_->parts); }

}  // namespace elrun::inline v0
