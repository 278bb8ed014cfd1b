#include "lib/job/slot_loop.hpp"

#include "lib/base/planted.hpp"
#include "lib/job/declare/sampler.hpp"
#include "lib/job/fp_environment.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {

void SlotLoop::take() {
  job_.require_callable();
  job_.require_evaluations_ended();
  job_.step.take_slots(job_.world.over());
}

Slot* SlotLoop::first_slot() {
  job_.require_callable();
  job_.step.begin_loop();
  return next_slot();
}

Slot* SlotLoop::next_slot() {
  job_.require_callable();
  job_.require_scopes_ended_well();
  if (job_.slot.is_open()) close_slot();
  if (!job_.step.is_open() || job_.world.over()) return nullptr;
  const auto audited = job_.step.audit().take_slot();
  if (!audited && job_.step.slot() == job_.my_slots().size()) {
    if (job_.rounds.in_phases()) (void)job_.scopes.end_step(job_.decided.applied());
    return nullptr;
  }
  const std::uint32_t index = audited ? *audited : job_.my_slots()[job_.step.slot()];
  const std::uint64_t generation = job_.world.membership().generation.number;
  auto& samples = job_.slot.samples();
  samples.resize(job_.plan().micro_batch);
  samples_of_slot(job_.plan(), ELRUN_PLANTED(samples_by_generation) ? generation : job_.decided.applied(), index, samples);
  Slot& slot = job_.slot.begin(job_.handle, generation, index, slot_stream(job_.plan().seed, job_.decided.applied(), index));
  job_.scopes.begin_slot(job_.phase());
  job_.slot.begin_clock(job_.host.clock.now());
  return &slot;
}

void SlotLoop::close_slot() {
  const Phase ended = job_.phase();
  job_.slot.end();
  if (job_.world.over()) return job_.program_timeout.ended(job_.slot.begun());  // nothing of it will be used
  job_.program_timeout.ended_slot(job_.slot.begun());
  require(job_.slot.has_reported(), "a slot ended without slot.report(loss, tokens)");
  job_.scopes.require_no_gradient_open(job_.slot.index());
  job_.scopes.begin_unused_gradients(job_.step.own_slot());
  StepAudit& audit = job_.step.audit();
  if (audit.audits(job_.slot.index()) && !job_.await_loss()) return;
  if (audit.audits(job_.slot.index())) audit.note(job_.reducer.hash_of(job_.step.own_slot()), job_.slot.loss(), job_.slot.tokens());
  if (audit.end_slot()) return;
  job_.votes.set_slot(job_.step.slot(), job_.slot.loss(), job_.slot.tokens());
  if (job_.slot.loss_to_come()) job_.losses_to_come.push_back(job_.step.slot());
  if (job_.is_per_slot()) {
    job_.scopes.finish_leaves(ended, job_.step.own_slot());
  } else {
    // The program may have a mode of its own around its loop, and which sums are made here follows from the world.
    const DefaultFpEnvironment as_anywhere;
    job_.reducer.end_slot(job_.step.slot());
  }
  if (!job_.rounds.in_phases() || job_.rounds.end_slot(ended)) job_.step.end_slot();
}

void SlotLoop::report(const Slot& slot, float loss, std::uint64_t tokens) {
  job_.require_callable();
  job_.slot.report(slot, loss, tokens);
}

/// Of the host's memory it is there. Of a device it comes with the wait before the vote; that of a slot that is not counted with the step's, at once.
void SlotLoop::report(const Slot& slot, DeviceScalar loss, std::uint64_t tokens) {
  job_.require_callable();
  loss.stream = job_.streams.checked(loss.stream);
  if (loss.stream.device().kind == DeviceKind::host) return report(slot, *loss.pointer, tokens);
  job_.slot.report(slot, 0, tokens);
  const bool counts = !job_.step.is_evaluating() && !job_.step.audit().is_running();
  const std::size_t place = counts ? job_.step.slot() : job_.plan().slots();
  job_.losses->fetch(place, loss, job_.streams);
  job_.slot.expect_loss(place);
}

void SlotLoop::add(const Slot& slot, std::string_view name, double value) {
  job_.require_callable();
  job_.slot.add(slot, name, value, job_.step.is_evaluating());
}

bool SlotLoop::is_revoked(const Slot& slot) const {
  return job_.world.over() || SlotAccess::generation(slot) != job_.world.membership().generation.number;
}

// ---- what users hold

void Slot::report(float loss, std::uint64_t tokens) { static_cast<Job::Impl*>(impl_)->slots.report(*this, loss, tokens); }
void Slot::add(std::string_view name, double value) { static_cast<Job::Impl*>(impl_)->slots.add(*this, name, value); }
void Slot::report(DeviceScalar loss, std::uint64_t tokens) { static_cast<Job::Impl*>(impl_)->slots.report(*this, loss, tokens); }
bool Slot::revoked() const { return static_cast<const Job::Impl*>(impl_)->slots.is_revoked(*this); }

Step::Slots Step::slots() {
  static_cast<Job::Impl*>(impl_)->slots.take();
  return Slots{impl_};
}
Slot* Step::first_slot(void* impl) { return static_cast<Job::Impl*>(impl)->slots.first_slot(); }
Slot* Step::next_slot(void* impl) { return static_cast<Job::Impl*>(impl)->slots.next_slot(); }

}  // namespace elrun::inline v0
