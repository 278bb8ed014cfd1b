#include "lib/job/arrays/array_meeting.hpp"

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lib/base/digest.hpp"
#include "lib/job/arrays/collective_exchange.hpp"

namespace elrun::inline v0 {
namespace {

constexpr unsigned late_in_a_row_most = 2;  // a store that is away, or a peer that hangs before it comes, is no fault of this rank's NCCL

// Where all have come and NCCL is not done in time, each further try would cost a generation. There is a group then, which its remedy aborts. But one that stalls makes all others late: with
// others than those it is tried once more.
constexpr unsigned makings_late_most = 2;

bool is_of_making(const Failure& why) { return why.code == Code::deadline_passed && why.remedy == Remedy::abort_group; }

}  // namespace

void ArrayMeeting::tell(const JobWorld& world, std::string what) {
  if (world.leads() && what != logged_) log_.info(what);
  logged_ = std::move(what);
}

void ArrayMeeting::note(std::span<const NcclFacts> all, const Failure& why) {
  if (why.code == Code::generation_over || why.code == Code::peer_lost) return;
  if (is_of_making(why)) {
    problem_ = why.what;
    if (++makings_late_ < makings_late_most) late_of_ = processes_of(all);
    return;
  }
  const bool late = why.code == Code::unreachable || why.code == Code::deadline_passed;
  if (!late || ++late_in_a_row_ >= late_in_a_row_most) problem_ = why.what;
}

NcclFacts ArrayMeeting::facts() {
  NcclFacts mine = groups_.facts(memory_.device());
  if (process_ == 0) random_bytes(std::as_writable_bytes(std::span{&process_, 1}));
  mine.process = process_;
  if (!mine.problem.empty() || problem_.empty()) return mine;
  mine.problem = problem_;
  mine.late_of = late_of_;
  return mine;
}

Result<void> ArrayMeeting::meet(JobWorld& world) {
  if (memory_.device().kind == DeviceKind::host || world.size() == 1 || !groups_.facts) return {};
  ELRUN_TRY_ASSIGN(const auto parts, world.all_gather(encode(facts())));
  std::vector<NcclFacts> all;
  for (const ByteVector& part : parts) {
    auto said = decode_nccl_facts(part);
    if (!said.ok()) world.end(said.failure());
    if (!said.ok()) return std::move(said).failure();
    all.push_back(std::move(said).value());
  }
  if (is_past(all[world.rank()], all)) problem_.clear(), late_of_ = 0;
  if (const auto why = keeps_from_nccl(all)) {
    tell(world, fmt::format("what lies on devices is exchanged through the host's memory: {}", why->what));
    return {};
  }
  const GroupOptions defaults;
  const auto is_own = std::make_shared<std::atomic<bool>>(false);  // it was this rank's failure that ended the generation
  auto joined = groups_.join(session_, {.device = memory_.device(),
                                        .name = "job",
                                        .connect = defaults.connect,
                                        .lost_peer = world.lost_peer(),
                                        .failed = [is_own, end = world.ender()](const Failure& why) { is_own->store(end(why)); }});
  if (!joined.ok()) {
    const Failure& why = joined.failure();
    if (!world.over() || *is_own) note(all, why);
    world.end(why);
    if (why.remedy == Remedy::exit_process) throw Error{why};
    return why;
  }
  late_in_a_row_ = 0;
  world.use(std::make_unique<CollectiveExchange>(std::move(joined).value(), clock_));
  tell(world, fmt::format("what lies on devices is exchanged by NCCL {}", to_string(all.front().version)));
  return {};
}

}  // namespace elrun::inline v0
