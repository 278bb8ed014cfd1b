// A job is one process's: a child that is forked from it is refused whatever it calls.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include <elrun/verify.hpp>

#include "tests/unit/job_world.hpp"

namespace elrun::test {
namespace {

/// Whether `call` is refused for that this process is a child. For the child: what is not is said on standard error.
bool is_refused(const char* what, const std::function<void()>& call) {
  std::string got = "nothing";
  try {
    call();
  } catch (const Error& e) {
    if (e.failure().code == Code::refused && e.failure().remedy == Remedy::exit_process &&
        contains(e.failure().what, "was forked from worker"))
      return true;
    got = e.what();
  } catch (const std::exception& e) {
    got = e.what();
  }
  std::fprintf(stderr, "a forked child's %s: %s\n", what, got.c_str());
  return false;
}

}  // namespace

TEST_CASE("each call of a job in a forked child is refused, and the parent goes on", "[job]") {
  const bool overlaps = GENERATE(false, true);
  int status = -1;
  const auto members = run_world({}, [&](Job& job, Member& me) {
    Plan plan = toy_plan(0);
    plan.overlap = overlaps, plan.steps = 2;
    job.configure(plan);
    Unit unit = job.unit("layer");
    const auto weight = unit.tensor<float>("weight", {300});
    job.seal();
    (void)job.restore();
    const float loss = 1;
    float late = 0;
    while (auto step = job.next_step()) {
      auto slots = step->slots();
      for (auto slot = slots.begin(); slot != slots.end(); ++slot) {
        std::optional<UseScope> scope{unit.use_grad()};
        if (step->number() == 1 && (*slot).index() == 1) {
          const pid_t child = ::fork();
          must(child >= 0, "fork");
          if (child == 0) {
            ::alarm(60);  // by default it ends the process
            bool all = true;
            const auto check = [&](const char* what, const std::function<void()>& call) { all &= is_refused(what, call); };
            check("report", [&] { (*slot).report(1, 1); });
            check("report of a device", [&] { (*slot).report(DeviceScalar{&loss}, 1); });
            check("add", [&] { (*slot).add("hits", 1); });
            check("set", [&] { weight.set(std::vector<float>(300)); });
            check("set_grad", [&] { weight.set_grad(std::vector<float>(300)); });
            std::vector<float> values(300);  // what is made here may come to lie where the gradient was
            check("read", [&] { weight.read(values); });
            check("read_grad", [&] { weight.read_grad(values); });
            check("use_grad", [&] { (void)unit.use_grad(); });
            check("use", [&] { (void)unit.use(); });
            scope.reset();
            check("++ of slots", [&] { ++slot; });
            check("begin of slots", [&] { (void)slots.begin(); });
            check("slots", [&] { (void)step->slots(); });
            check("audit", [&] { step->audit(0.5); });
            check("apply", [&] { (void)step->apply(toy_adamw, {.lr = 0.1f}); });
            check("next_step", [&] { (void)job.next_step(); });
            check("evaluate", [&] { (void)job.evaluate(3, [](Slot&) {}); });
            check("verify", [&] { (void)verify(job); });
            check("stop", [&] { job.stop(); });
            check("outcome", [&] { (void)job.outcome(); });
            check("configure", [&] { job.configure(plan); });
            check("unit", [&] { (void)job.unit("other"); });
            check("tensor", [&] { (void)unit.tensor<float>("other", {3}); });
            check("state", [&] { job.state("late", late); });
            check("seal", [&] { job.seal(); });
            check("restore", [&] { (void)job.restore(); });
            ::_exit(all ? 0 : 1);
          }
          must(::waitpid(child, &status, 0) == child, "waitpid");
        }
        std::ranges::fill(weight.grad_span(), 1.0f);
        (*slot).report(1, 1);
        scope.reset();
      }
      (void)step->apply(toy_adamw, {.lr = 0.1f});
    }
    me.outcome = job.outcome();
  });
  INFO((members[0].failure ? message(*members[0].failure) : ""));
  CHECK(members[0].outcome.has_value());
  CHECK(status == 0);
}

}  // namespace elrun::test
