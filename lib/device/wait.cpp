#include "lib/device/wait.hpp"

#include <thread>

#include <fmt/format.h>

#include "lib/base/words.hpp"
#include "lib/device/runtime.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration spin = 20us, pause = 50us;

}  // namespace

Result<void> wait_for(Event event, const EventWait& wait, const Clock& clock) {
  if (event.device().kind == DeviceKind::host) return {};
  const Instant begun = clock.now();
  for (;;) {
    ELRUN_TRY_ASSIGN(const bool done, runtime::is_done(event));
    if (done) return {};
    const Instant now = clock.now();
    if (wait.over && wait.over())
      return Failure{Code::generation_over, Remedy::rejoin,
                     fmt::format("the generation ended while device {} was working on {}", event.device().index, wait.what)};
    if (wait.deadline.passed(now))
      return Failure{Code::deadline_passed, Remedy::exit_process,
                     fmt::format("device {} did not finish {} within {}", event.device().index, wait.what, for_people(now - begun))};
    if (now - begun > spin) std::this_thread::sleep_for(pause);
  }
}

}  // namespace elrun::inline v0
