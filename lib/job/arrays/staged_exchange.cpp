#include "lib/job/arrays/staged_exchange.hpp"

#include <algorithm>

#include "lib/device/current_device.hpp"
#include "lib/device/runtime.hpp"
#include "lib/device/wait.hpp"

namespace elrun::inline v0 {
namespace {

/// Makes room for `runs` of the device, by rank, as the same bytes of `blocks`. `each`: a part of a run, and where it is there.
template <class Runs, class Staged, class Each>
void stage(PinnedBlocks& blocks, std::span<const Runs> runs, std::vector<Staged>& staged, const Each& each) {
  blocks.begin();
  staged.resize(runs.size());
  for (std::size_t r = 0; r < runs.size(); ++r) {
    staged[r].clear();
    for (auto run : runs[r])
      while (!run.empty()) {
        const std::span<std::byte> at = blocks.take(run.size());
        each(run.first(at.size()), at);
        staged[r].push_back(at);
        run = run.subspan(at.size());
      }
  }
}

}  // namespace

StagedExchange::StagedExchange(Device device, const Clock& clock)
    : device_{device}, clock_{clock}, out_{device, clock}, in_{device, clock} {}

Result<void> StagedExchange::wait(Event event, std::string_view what, const ArrayCall& call) const {
  return wait_for(event, {.what = what, .over = call.over, .deadline = Deadline::after(clock_.now(), call.limit)}, clock_);
}

Result<void> StagedExchange::exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, const ArrayCall& call) {
  keep_current(device_);  // the communication thread has no other
  stage(out_, sends, sends_, [&](std::span<const std::byte> run, std::span<std::byte> at) { runtime::copy_async(run, at, call.stream); });
  if (std::ranges::any_of(sends_, [](const SendList& list) { return !list.empty(); })) {
    out_.record(call.stream);
    ELRUN_TRY(wait(out_.used(), "what is to be sent", call));
  }
  // Copies from here to the device of the call before. Who sends nothing waits for no other work of the stream.
  ELRUN_TRY(wait(in_.used(), "what came before", call));
  stage(in_, receives, receives_, [](std::span<std::byte>, std::span<std::byte>) {});
  ELRUN_TRY(call.host(sends_, receives_));
  std::size_t r = 0;
  for (const ReceiveList& list : receives_) {
    std::size_t piece = 0;
    for (auto run : receives[r++])
      while (!run.empty()) {
        const std::span<std::byte> from = list[piece++];
        runtime::copy_async(from, run.first(from.size()), call.stream);
        run = run.subspan(from.size());
      }
  }
  in_.record(call.stream);
  return {};
}

}  // namespace elrun::inline v0
