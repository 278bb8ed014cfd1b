#include "lib/job/job_end.hpp"

#include <thread>

#include <fmt/format.h>

#include "kernels/state_hash.hpp"
#include "lib/base/bytes.hpp"
#include "lib/job/revoked.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration finish_wait = 30s;  // for the agent to hear that the job is over
constexpr Duration leave_wait = 1s;    // for the agent to leave, once the job has saved
constexpr Duration leave_look = 10ms;  // whether it has

}  // namespace

void JobEnd::wait_until_left() {
  const Instant until = job_.host.clock.now() + leave_wait;
  while (job_.departure.is_reported() && job_.host.clock.now() < until) {
    if (job_.world.over()) revoked(job_.world);
    if (job_.host.sleep) job_.host.sleep(leave_look);
    else std::this_thread::sleep_for(leave_look);
  }
}

/// After the program's return: others may still use weights of which this rank holds a shard. Whatever fails, the job has
/// succeeded.
void JobEnd::serve_to_the_end() {
  if (job_.outcome.has_value() && job_.gathers()) (void)job_.scopes.end_phase(job_.phase());
}

void JobEnd::program_returned() {
  if (job_.outcome.has_value()) return serve_to_the_end();
  if (!job_.host.must_end) return;
  if (!job_.step.was_asked_for()) return end_without_steps();
  throw Error{Failure{
      .code = Code::refused,
      .remedy = Remedy::exit_process,
      .what = fmt::format(
          "the program returned {}, before the job's end was decided: go on until next_step() returns nothing, or call job.stop() to end early",
          job_.declared.is_sealed() ? fmt::format("at step {} of {}", job_.decided.applied(), job_.plan().steps) : "before seal()"),
      .rank = job_.world.membership().rank,
      .generation = job_.world.membership().generation}};
}

/// A program that only looks (at its plan, or at an evaluation) is done when it returns on all ranks.
void JobEnd::end_without_steps() {
  if (!job_.host.session.place().elastic) return;
  static constexpr std::string_view word = "the program returned before its first step";
  for (bool agreed = false; !agreed;) {
    try {
      if (job_.held.is_restored()) {
        change_.enter();
        if (job_.gathers() && !job_.scopes.end_phase(job_.phase())) revoked(job_.world);
      } else {
        if (job_.world.over()) change_.rejoin();
        expect(job_.world, job_.world.join());
      }
      job_.world.now(Call::end);
      for (const ByteVector& said : expect(job_.world, job_.world.all_gather(as_bytes(word))))
        if (as_text(said) != word)
          throw Error{Failure{
              Code::refused, Remedy::exit_process,
              "the program returned here before its first step, and goes on in another worker: all have to call next_step(), or none"}};
      agreed = true;
    } catch (const Revoked&) {
    }
  }
  if (const auto told = job_.host.session.finished(Deadline::after(job_.host.clock.now(), finish_wait)); !told.ok())
    job_.host.log.warning("the program is done, but its elrun could not be told: " + message(told.failure()));
}

void JobEnd::finish() {
  const std::uint64_t step = job_.decided.applied();
  if (job_.decided.ends() && step < job_.plan().steps && job_.world.leads())
    job_.host.log.info(fmt::format("the program ended the job after step {} of {}", step, job_.plan().steps));
  if (!job_.await_state()) revoked(job_.world);
  const Instant begun = job_.host.clock.now();
  job_.saves.save_at_the_end(step, job_.host_state());
  job_.times.saved(begun, job_.host.clock.now(), job_.world.exchanged());
  std::uint64_t hash = Mix{}(step, salt_of("step"));
  for (const ByteVector& part :
       expect(job_.world, job_.world.all_gather(bytes_of(job_.state.hash_part(job_.shards.map, job_.world.rank()))))) {
    ByteReader reader{part};
    hash += reader.get<std::uint64_t>();
    expect(job_.world, reader.finish("a part of the state hash"));
  }
  job_.outcome = Outcome{step, job_.decided.loss(), hash};
  job_.host.session.ended({StepNumber{step}, job_.plan().steps, job_.decided.loss(), job_.times.left()});
  // All members have decided that the job is over: whatever dies now, it has succeeded.
  if (const auto told = job_.host.session.finished(Deadline::after(job_.host.clock.now(), finish_wait)); !told.ok())
    job_.host.log.warning("the job is over, but its elrun could not be told: " + message(told.failure()));
}

}  // namespace elrun::inline v0
