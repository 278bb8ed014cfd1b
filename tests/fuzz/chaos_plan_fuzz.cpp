// Any text is a plan within its bounds, which is read back as it was, or says what is wrong.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/philox.hpp>

#include "launcher/chaos/fault_plan.hpp"
#include "lib/base/assert.hpp"

using namespace elrun;
using namespace elrun::launcher;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const FaultWorld world{.nodes = 2, .workers = 3};
  const ParsedPlan parsed = parse_plan({reinterpret_cast<const char*>(data), size}, world);
  ELRUN_ASSERT(parsed.faults.size() <= faults_max && parsed.problems.size() <= 33);
  for (const std::string& problem : parsed.problems) ELRUN_ASSERT(!problem.empty() && problem.size() < 2000);
  for (const Fault& fault : parsed.faults) {
    const FaultTarget target = target_of(fault.kind);
    ELRUN_ASSERT(fault.target < (target == FaultTarget::rank ? 6u : target == FaultTarget::node ? 2u : 1u));
    ELRUN_ASSERT(fault.at >= Duration{0} && fault.at <= fault_time_max && fault.lasts <= fault_time_max && fault.percent < 100);
    ELRUN_ASSERT((fault.kind == FaultKind::kill) == (fault.lasts == Duration{0}) && (fault.kind == FaultKind::slow) == (fault.percent > 0));
  }
  const ParsedPlan again = parse_plan(text_of(parsed.faults), world);
  ELRUN_ASSERT(again.problems.empty() && again.faults == parsed.faults);
  return 0;
}

std::vector<std::string> fuzz_examples() {
  static constexpr const char* pieces[] = {
      "5s",         "12.5s",       "300ms", "1h",   "step", "40", "0",  "kill", "stop", "slow", "cut",
      "kill-agent", "coordinator", "fill",  "rank", "node", "1",  "5",  "for",  "to",   "2s",   "25%",
      "100%",       "#",           "\n",    "\n",   "\r\n", "\t", "-1", "nan",  "1e9s", "99h",  "18446744073709551616"};
  std::vector<std::string> examples{
      "5s kill rank 1\nstep 40 stop rank 0 for 1.5s\n20s slow rank 2 to 25% for 3s\n25s kill-agent node 1 for 2s\n30s coordinator for 1s\n"};
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng{seed};
    std::string& text = examples.emplace_back();
    for (auto n = rng.below(40); n > 0; --n) text += std::string{pieces[rng.below(std::size(pieces))]} + " ";
  }
  examples.push_back(text_of(draw_plan({.mtbf = 100ms, .time = 60s, .seed = 5}, all_fault_kinds, {.nodes = 2, .workers = 3})));
  return examples;
}
