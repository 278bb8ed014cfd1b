/// A worker that reduces and gathers for ever, until somebody is lost, and says so when a result is wrong. With the argument
/// `shared` its memory is a shared buffer, which its peers read in place, and it writes there as soon as a call has failed.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <span>
#include <vector>

#include <elrun/process_group.hpp>

#include "lib/base/clock.hpp"

using namespace elrun;

int main(int argc, char**) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const SteadyClock clock;
  auto session = Session::open(WorkerKind::program, Deadline::after(clock.now(), 60s));
  if (!session.ok()) return std::printf("%s\n", message(session.failure()).c_str()), 2;
  auto group = ProcessGroup::join(**session);
  if (!group.ok()) return std::printf("%s\n", message(group.failure()).c_str()), 2;
  const std::uint32_t rank = group->membership().rank.value(), world = group->membership().world.value();
  constexpr std::size_t count = 300'000;
  const bool shares = argc > 1;
  std::vector<std::uint32_t> own(shares ? 0 : (1 + world) * count);
  std::optional<SharedBuffer> buffer;
  if (shares) {
    buffer.emplace(SharedBuffer::make(Bytes{(1 + world) * count * sizeof(std::uint32_t)}).value());
    group->share(*buffer).value();
  }
  const std::span<std::uint32_t> memory = shares ? buffer->as<std::uint32_t>() : std::span{own}, data = memory.first(count),
                                 all = memory.subspan(count, world * count);
  const auto gone = [&](const Failure& why) {
    std::ranges::fill(memory, 0xffff'ffffu);
    std::printf("%s\n", message(why).c_str());
    return 1;
  };
  const auto element = [](std::uint32_t of, std::uint32_t call, std::size_t i) {
    return (of + 1) * (call * 7 + static_cast<std::uint32_t>(i));
  };
  for (std::uint32_t call = 0;; ++call) {
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = element(rank, call, i);
    const auto gathered = group->all_gather(std::as_bytes(data), std::as_writable_bytes(all));
    if (!gathered.ok()) return gone(gathered.failure());
    const auto reduced = group->all_reduce(data);
    if (!reduced.ok()) return gone(reduced.failure());
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
