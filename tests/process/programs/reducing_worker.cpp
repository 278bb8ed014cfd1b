/// A worker that reduces for ever, until somebody is lost.
#include <cstdio>
#include <vector>

#include <elrun/process_group.hpp>

#include "lib/base/clock.hpp"

using namespace elrun;

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const SteadyClock clock;
  auto session = Session::open(false, Deadline::after(clock.now(), 30s));
  if (!session.ok()) return std::printf("%s\n", message(session.failure()).c_str()), 2;
  auto group = ProcessGroup::join(**session);
  if (!group.ok()) return std::printf("%s\n", message(group.failure()).c_str()), 2;
  std::vector<float> data(100'000, 1.0f);
  for (bool first = true;; first = false) {
    const auto result = group->all_reduce(std::span{data}, ReduceOp::max);
    if (!result.ok()) return std::printf("%s\n", message(result.failure()).c_str()), 1;
    if (first) std::printf("reducing\n");
  }
}
