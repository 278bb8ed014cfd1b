/// A worker that reduces and gathers for ever, until somebody is lost, and says so when a result is wrong.
#include <cstdio>
#include <vector>

#include <elrun/process_group.hpp>

#include "lib/base/clock.hpp"

using namespace elrun;

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const SteadyClock clock;
  auto session = Session::open(WorkerKind::program, Deadline::after(clock.now(), 60s));
  if (!session.ok()) return std::printf("%s\n", message(session.failure()).c_str()), 2;
  auto group = ProcessGroup::join(**session);
  if (!group.ok()) return std::printf("%s\n", message(group.failure()).c_str()), 2;
  const std::uint32_t rank = group->membership().rank.value(), world = group->membership().world.value();
  std::vector<std::uint32_t> data(300'000), all(world * data.size());
  const auto element = [](std::uint32_t of, std::uint32_t call, std::size_t i) { return (of + 1) * (call * 7 + static_cast<std::uint32_t>(i)); };
  for (std::uint32_t call = 0;; ++call) {
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = element(rank, call, i);
    const auto gathered = group->all_gather(std::as_bytes(std::span{data}), std::as_writable_bytes(std::span{all}));
    if (!gathered.ok()) return std::printf("%s\n", message(gathered.failure()).c_str()), 1;
    const auto reduced = group->all_reduce(std::span{data});
    if (!reduced.ok()) return std::printf("%s\n", message(reduced.failure()).c_str()), 1;
    for (std::size_t i = 0; i < data.size(); ++i) {
      std::uint32_t sum = 0;
      for (std::uint32_t r = 0; r < world; ++r) {
        if (all[r * data.size() + i] != element(r, call, i)) return std::printf("wrong in the gather of call %u\n", call), 3;
        sum += element(r, call, i);
      }
      if (data[i] != sum) return std::printf("wrong in the sum of call %u\n", call), 3;
    }
    if (call == 0) std::printf("reducing\n");
  }
}
