/// How the ranks of a generation come to a communicator: each loads NCCL and says so in the store, in one call, and all conclude the same; then the roots give their ids.

#include <cuda_runtime_api.h>

#include <array>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lib/base/clock.hpp"
#include "lib/base/failure.hpp"
#include "lib/comm/connect/listeners.hpp"
#include "lib/comm/device_collectives.hpp"
#include "lib/comm/environment.hpp"
#include "lib/comm/nccl/nccl_collectives.hpp"

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
  return std::unique_ptr<DeviceCollectives>{std::make_unique<NcclCollectives>(me, group.device, std::move(communicator))};
}

}  // namespace elrun::inline v0
