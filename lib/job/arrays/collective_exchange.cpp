#include "lib/job/arrays/collective_exchange.hpp"

#include "lib/device/current_device.hpp"
#include "lib/device/runtime.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration abort_margin = 30s;  // a Work ends by its own limit and an abort's; this is for a group that breaks its word

template <class Lists, class DeviceLists>
void copy(Lists lists, DeviceLists& out) {
  out.resize(lists.size());
  for (std::size_t r = 0; r < lists.size(); ++r) {
    out[r].clear();
    for (const auto& run : lists[r]) out[r].emplace_back(run.data(), run.size());
  }
}

}  // namespace

Result<void> CollectiveExchange::exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, const ArrayCall& call) {
  keep_current(call.stream.device());  // the communication thread has no other
  copy(sends, sends_);
  copy(receives, receives_);
  const Work work = group_->exchange(sends_, receives_, {.stream = call.stream, .limit = call.limit});
  auto done = work.wait(Deadline::after(clock_.now(), call.limit + abort_margin));
  if (!done.ok() && done.failure().code == Code::deadline_passed && done.failure().remedy == Remedy::retry) {
    Failure stuck = std::move(done).failure();  // the call goes on, and may still touch the lists
    stuck.remedy = Remedy::exit_process;
    return stuck;
  }
  // Programs may look at weights that did not come (Unit::use), and see zeros then, not what an abort left.
  if (!done.ok() && done.failure().remedy != Remedy::exit_process)
    for (const ReceiveList& list : receives)
      for (const auto& run : list)
        if (!run.empty()) runtime::fill_async(run, std::byte{0}, call.stream);
  return done;
}

}  // namespace elrun::inline v0
