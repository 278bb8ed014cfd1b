#include "lib/job/commit/decided_update.hpp"

#include <cmath>

namespace elrun::inline v0 {

float norm_of(const JobParts& job, const Decision& decision) { return std::sqrt(decision.squares) * job.per_slot(); }

void apply_decided(JobParts& job) {
  job.finish_readers();
  const Decision& decision = job.decided.decision();
  if (!decision.skips()) {
    const UpdateRecord& updates = job.decided.updates();
    const float norm = norm_of(job, decision), most = updates.options().clip_norm;
    const float scale = most > 0 && norm > most ? job.per_slot() * (most / norm) : job.per_slot();
    job.state.update(updates.optimizer(), updates.options().lr, scale, job.decided.applied() + 1, job.reducer.reduced());
  }
  job.decided.apply();
  job.host.session.progress({StepNumber{job.decided.applied()}, job.plan().steps, job.decided.loss(),
                             job.times.decided(job.host.clock.now(), job.world.exchanged())});
}

}  // namespace elrun::inline v0
