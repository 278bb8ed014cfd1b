/// How the ranks of a generation come to a communicator: each loads NCCL and says so in the store, in one call, and all conclude the same; then the roots give their ids.

#include <cuda_runtime_api.h>

#include <array>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lib/base/clock.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/comm/connect/listeners.hpp"
#include "lib/comm/device_collectives.hpp"
#include "lib/comm/environment.hpp"
#include "lib/comm/nccl/nccl_collectives.hpp"
#include "lib/device/current_device.hpp"
#include "lib/device/handles.hpp"
#include "lib/device/runtime.hpp"
#include "lib/device/wait.hpp"

namespace elrun::inline v0 {
namespace {

/// What is wrong with this rank is said, too: the others would wait for it.
NcclFacts facts_of(const Result<NcclLibrary>& nccl, Device device) {
  NcclFacts facts{.host = host_for_nccl(boot_of_host()), .shares_device = nccl_may_share_devices()};
  if (!nccl.ok()) {
    facts.problem = nccl.failure().what;
    return facts;
  }
  facts.version = nccl->version();
  if (facts.problem = nccl_set_wrong(); !facts.problem.empty()) return facts;
  std::array<char, 64> address{};
  if (const cudaError_t error = cudaDeviceGetPCIBusId(address.data(), address.size(), device.index); error != cudaSuccess) {
    facts.problem = fmt::format("cuda:{} cannot be used: {}", device.index, cudaGetErrorString(error));
    (void)cudaGetLastError();  // or the program's next launch would report it
    return facts;
  }
  facts.device = address.data();
  return facts;
}

/// The id by which the others find this rank, in `facts`.
void draw_id(const NcclLibrary& nccl, Device device, NcclFacts& facts) {
  ncclUniqueId id{};
  if (const ncclResult_t got = nccl.get_unique_id(&id); got != ncclSuccess) {
    const char* text = nccl.get_last_error(nullptr);
    facts.problem = from_nccl(result_of(got), "ncclGetUniqueId", fmt::format("cuda:{}", device.index), text == nullptr ? "" : text).what;
    return;
  }
  facts.has_id = true;
  std::ranges::copy(std::as_bytes(std::span{id.internal}), facts.id.begin());
}

/// First all say what they have; the roots draw their ids once nothing keeps the ranks from NCCL. For each id NCCL has a socket and a thread, which stay where nobody uses it.
Result<std::vector<NcclId>> agree(Session& session, const DeviceGroupToJoin& group, const Result<NcclLibrary>& nccl) {
  const Membership& me = session.place().membership;
  const Deadline deadline = Deadline::after(SteadyClock{}.now(), group.connect);
  NcclFacts mine = facts_of(nccl, group.device);
  ELRUN_TRY_ASSIGN(const auto said, session.store().all_gather("nccl/" + group.name, me.rank, me.world, encode(mine), deadline));
  std::vector<NcclFacts> all;
  for (const Store::Value& each : said) {
    ELRUN_TRY_ASSIGN(auto facts, decode_nccl_facts(each));
    all.push_back(std::move(facts));
  }
  if (auto why = keeps_from_nccl(all)) return *std::move(why);
  const std::vector<Rank> roots = nccl_roots(me.world);
  const bool is_root = std::ranges::find(roots, me.rank) != roots.end();
  if (is_root) draw_id(*nccl, group.device, mine);
  ELRUN_TRY_ASSIGN(const auto ids, session.store().all_gather("nccl/" + group.name + "/ids", me.rank, me.world,
                                                              is_root ? encode(mine) : std::vector<std::byte>{}, deadline));
  for (const Rank root : roots) {
    ELRUN_TRY_ASSIGN(all[root.value()], decode_nccl_facts(ids[root.value()]));
  }
  return agree_on_nccl(all);
}

/// What the wait for a call may take beyond its limit: an abort, and the owner's way there.
constexpr Duration connect_grace = CommunicatorLimits{}.ahead + CommunicatorLimits{}.abort + std::chrono::seconds{2};

/// A byte from each rank to each other, in one group of calls: in it NCCL connects every pair, in both directions at the same time, so no rank's order can block another.
Result<void> exchange_bytes(DeviceCollectives& group, const Membership& me, Duration limit) {
  const Device device = group.device();
  keep_current(device);
  const std::size_t world = me.world.value();
  const OwnedStream stream{device};
  DeviceBuffer bytes{device, 2 * world};
  runtime::fill_async({bytes.data(), bytes.size()}, std::byte{1}, stream.view());
  OwnedEvent filled{device};
  filled.record(stream.view());
  std::vector<DeviceSendList> sends(world);
  std::vector<DeviceReceiveList> receives(world);
  for (std::size_t r = 0; r < world; ++r) {
    if (r == me.rank.value()) continue;
    sends[r] = {{bytes.data() + r, 1}};
    receives[r] = {{bytes.data() + world + r, 1}};
  }
  const Work work = group.exchange(sends, receives, {stream.view(), limit});
  Result<void> done = work.wait(Deadline::after(SteadyClock{}.now(), limit + connect_grace));
  if (done.ok()) return done;
  Failure why = std::move(done).failure();
  if (!work.done()) why.remedy = Remedy::exit_process;  // its owner is lost inside NCCL
  const EventWait until_filled{.what = "the bytes for connecting", .deadline = Deadline::after(SteadyClock{}.now(), connect_grace)};
  // Where a kernel may still write, freeing the memory would wait for that.
  if (why.remedy == Remedy::exit_process || !wait_for(filled.view(), until_filled, SteadyClock{}).ok())
    (void)new DeviceBuffer{std::move(bytes)};  // NOLINT(bugprone-unhandled-exception-at-new)
  why.what = fmt::format("connecting all pairs of ranks: {}", why.what);
  return why;
}

/// On a thread of its own: the program's thread keeps its current device, and none is put back there, which would make a context on device 0.
Result<void> connect_pairs(DeviceCollectives& group, const Membership& me, Duration limit) {
  Result<void> done;
  ELRUN_TRY_ASSIGN(std::thread thread, try_quiet_thread("connect all pairs of ranks", [&] {
                     try {
                       done = exchange_bytes(group, me, limit);
                     } catch (const Error& error) {  // of the device layer: no memory, say
                       done = error.failure();
                     } catch (const std::bad_alloc&) {
                       done = Failure{Code::exhausted, Remedy::abort_group, "connecting all pairs of ranks: no memory"};
                     }
                   }));
  thread.join();
  return done;
}

}  // namespace

NcclFacts nccl_facts(Device device) { return facts_of(NcclLibrary::load(), device); }

Result<std::unique_ptr<DeviceCollectives>> join_device_collectives(Session& session, const DeviceGroupToJoin& group) {
  const Membership me = session.place().membership;
  const Result<NcclLibrary> nccl = NcclLibrary::load();
  const auto ids = agree(session, group, nccl);
  if (!ids.ok()) return located(ids.failure(), me, group.name);
  NcclGroup wanted{.place = {me, group.device, group.name, nccl_settings()},
                   .ids = *ids,
                   .connect = group.connect,
                   .lost_peer = group.lost_peer,
                   .failed = group.failed};
  wanted.on_generation_over = [&session](std::function<void(const Failure&)> call) { session.on_generation_over(std::move(call)); };
  ELRUN_TRY_ASSIGN(auto communicator, NcclCommunicator::make(*nccl, std::move(wanted)));
  std::unique_ptr<DeviceCollectives> made = std::make_unique<NcclCollectives>(me, group.device, std::move(communicator));
  if (group.connect_pairs && me.world.value() > 1) {
    if (const auto connected = connect_pairs(*made, me, group.connect); !connected.ok())
      return connected.failure().rank ? connected.failure() : located(connected.failure(), me, group.name);
  }
  return made;
}

}  // namespace elrun::inline v0
