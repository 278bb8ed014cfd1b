/// The C interface of libnccl.so.2. Every entry point is watched: one thread at a time for each communicator, and none that was freed.

#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakegpu/nccl/communicator.hpp"
#include "tests/fakegpu/nccl/inspect.hpp"
#include "tests/fakegpu/nccl/settings.hpp"

using fakenccl::Communicator;
using fakenccl::Moves;
using fakenccl::settings;

namespace {

std::atomic<std::uint64_t> calls{0};
std::atomic<FakeNcclHook> hook{nullptr};
std::atomic<void*> hook_data{nullptr};
std::atomic<long> abort_ms{settings().abort_ms};

/// Handles are never used twice, so that one which was freed is known for good.
struct Registry {
  std::mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<Communicator>> live;
  std::uintptr_t last = 0x1000;
};
Registry& registry() {
  static Registry* const all = new Registry;  // never destroyed: used until the process ends
  return *all;
}

ncclComm_t add(std::unique_ptr<Communicator> made) {
  Registry& all = registry();
  const std::lock_guard lock{all.mutex};
  const auto handle = reinterpret_cast<ncclComm_t>(all.last += 16);
  all.live[handle] = std::move(made);
  return handle;
}

std::shared_ptr<Communicator> find(ncclComm_t handle) {
  Registry& all = registry();
  const std::lock_guard lock{all.mutex};
  const auto found = all.live.find(handle);
  return found == all.live.end() ? nullptr : found->second;
}

void forget(ncclComm_t handle) {
  Registry& all = registry();
  const std::lock_guard lock{all.mutex};
  all.live.erase(handle);
}

/// Counts a call. True: it has to give settings().failure.
bool counted(const char* name) {
  const std::uint64_t number = ++calls;
  if (const FakeNcclHook call = hook) call(hook_data, number, name);
  return number == settings().fail_at;
}

/// The communicator of one call, while the call lasts.
class Use {
 public:
  Use(ncclComm_t handle, const char* name) : comm_{find(handle)} {
    const char* nobody = nullptr;
    if (!comm_) fakegpu::report(std::string{"NCCL: "} + name + " with a communicator that was freed, or never made");
    else if (comm_->in_use.compare_exchange_strong(nobody, name)) mine_ = true;
    else fakegpu::report(std::string{"NCCL: one communicator on two threads at a time, in "} + name + " and " + nobody);
  }
  ~Use() {
    if (mine_) comm_->in_use = nullptr;
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  explicit operator bool() const { return comm_ != nullptr; }
  Communicator* operator->() const { return comm_.get(); }
  Communicator& operator*() const { return *comm_; }

 private:
  std::shared_ptr<Communicator> comm_;
  bool mine_ = false;
};

// --- groups: of this thread ---

struct Group {
  int depth = 0;
  struct Part {
    ncclComm_t comm;
    cudaStream_t stream;
    Moves moves;
  };
  std::vector<Part> parts;
  ncclResult_t error = ncclSuccess;
};
thread_local Group group;

ncclResult_t begin(const Use& comm, Moves moves, cudaStream_t stream) {
  const ncclResult_t usable = comm->check_usable();
  return usable == ncclSuccess ? comm->begin(std::move(moves), stream) : usable;
}

/// `add`: (Moves&, rank) -> false where the arguments do not fit.
template <class Add>
ncclResult_t call(const char* name, ncclComm_t handle, cudaStream_t stream, const Add& add) {
  if (counted(name)) return static_cast<ncclResult_t>(settings().failure);
  const Use comm{handle, name};
  if (!comm) return ncclInvalidArgument;
  if (const ncclResult_t usable = comm->check_usable(); usable != ncclSuccess) {
    if (group.depth > 0) group.error = usable;
    return usable;
  }
  if (group.depth == 0) {
    Moves moves{comm->ranks()};
    return add(moves, comm->rank()) ? begin(comm, std::move(moves), stream) : ncclInvalidArgument;
  }
  Group::Part* part = nullptr;
  for (Group::Part& each : group.parts)
    if (each.comm == handle) part = &each;
  if (part == nullptr) part = &group.parts.emplace_back(Group::Part{handle, stream, Moves{comm->ranks()}});
  if (part->stream != stream) {
    fakegpu::report(std::string{"NCCL: "} + name +
                    " on another stream than the calls before it in its group, which the fake does not know");
    group.error = ncclInvalidUsage;
  } else if (!add(part->moves, comm->rank())) {
    group.error = ncclInvalidArgument;
  }
  return group.error;
}

ncclResult_t make(ncclComm_t* to, std::unique_ptr<Communicator> made) {
  const bool blocking = made->blocking();
  Communicator* const comm = made.get();
  *to = add(std::move(made));
  return blocking ? comm->wait() : ncclInProgress;
}

ncclResult_t init(const char* name, ncclComm_t* to, int ranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
  *to = nullptr;
  if (counted(name)) return static_cast<ncclResult_t>(settings().failure);
  if (ranks < 1 || ranks > fakenccl::ranks_max || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  if (config != nullptr && config->magic != 0xcafebeef) return ncclInvalidArgument;
  if (cudaFree(nullptr) != cudaSuccess) return ncclUnhandledCudaError;  // no driver, or a device that is lost
  const char* forced = std::getenv("NCCL_COMM_BLOCKING");
  const bool blocking = forced != nullptr ? *forced != '0' : config == nullptr || config->blocking != 0;
  return make(to, std::make_unique<Communicator>(id.internal, ranks, rank, blocking));
}

[[maybe_unused]] bool has(int version, const char* name) {
  if (settings().version >= version) return true;
  fakegpu::report(std::string{"NCCL: this version has no "} + name);
  return false;
}

/// Until everything is out of the streams, which is never where a kernel ahead of it hangs.
void wait_for_end(const Communicator& comm) {
  while (!comm.ended()) {
    fakegpu::make_progress(1);  // devices go on by themselves
    std::this_thread::sleep_for(std::chrono::microseconds{100});
  }
  comm.tell_ended();
}

}  // namespace

extern "C" {

void fakenccl_set_hook(FakeNcclHook to_call, void* data) {
  hook = nullptr;
  hook_data = data;
  hook = to_call;
}
std::uint64_t fakenccl_calls() { return calls; }
std::uint64_t fakenccl_communicators() {
  Registry& all = registry();
  const std::lock_guard lock{all.mutex};
  return all.live.size();
}
void fakenccl_set_abort(long milliseconds) { abort_ms = milliseconds; }

ncclResult_t ncclGetVersion(int* version) {
  *version = settings().version;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  static const char* const texts[] = {"no error",         "unhandled cuda error", "unhandled system error", "internal error",
                                      "invalid argument", "invalid usage",        "remote error",           "in progress"};
  return result >= 0 && result < ncclNumResults ? texts[result] : "unknown result";
}
const char* ncclGetLastError(ncclComm_t) { return "the fake NCCL says no more"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (counted("ncclGetUniqueId")) return static_cast<ncclResult_t>(settings().failure);
  static std::atomic<unsigned> last{0};
  std::memset(id, 0, sizeof *id);
  const int length = std::snprintf(id->internal, sizeof id->internal, "%s/fakenccl-%d-%u-%llx", settings().folder.c_str(), ::getpid(),
                                   ++last, static_cast<unsigned long long>(std::chrono::steady_clock::now().time_since_epoch().count()));
  return length < static_cast<int>(sizeof id->internal) - 24 ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return init("ncclCommInitRankConfig", comm, ranks, id, rank, config);
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return init("ncclCommInitRank", comm, ranks, id, rank, nullptr);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int, ncclUniqueId* ids, ncclConfig_t* config) {
  return init("ncclCommInitRankScalable", comm, ranks, ids[0], rank, config);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* answer) {
  if (counted("ncclCommGetAsyncError")) return *answer = static_cast<ncclResult_t>(settings().failure), ncclSuccess;
  const Use comm{handle, "ncclCommGetAsyncError"};
  if (!comm) return ncclInvalidArgument;
  fakegpu::make_progress(1);  // devices go on by themselves
  *answer = comm->poll();
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  (void)counted("ncclCommAbort");
  if (handle == nullptr) return ncclSuccess;
  const Use comm{handle, "ncclCommAbort"};
  if (!comm) return ncclInvalidArgument;
  comm->give_up();
  for (long waited = 0; abort_ms < 0 || waited < abort_ms; ++waited) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  wait_for_end(*comm);
  forget(handle);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  if (counted("ncclCommFinalize")) return static_cast<ncclResult_t>(settings().failure);
  const Use comm{handle, "ncclCommFinalize"};
  if (!comm) return ncclInvalidArgument;
  const ncclResult_t usable = comm->check_usable();
  return usable == ncclSuccess ? comm->finalize() : usable;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  if (counted("ncclCommDestroy")) return static_cast<ncclResult_t>(settings().failure);
  if (handle == nullptr) return ncclSuccess;
  const Use comm{handle, "ncclCommDestroy"};
  if (!comm) return ncclInvalidArgument;
  if (!comm->is_finalized() && !comm->is_revoked()) (void)comm->finalize();  // with a dead peer it hangs, as the real one can
  (void)comm->wait();
  forget(handle);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  if (counted("ncclGroupStart")) return static_cast<ncclResult_t>(settings().failure);
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const bool fails = counted("ncclGroupEnd");
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0) return ncclSuccess;
  std::vector<Group::Part> parts = std::move(group.parts);
  const ncclResult_t error = fails ? static_cast<ncclResult_t>(settings().failure) : group.error;
  group = {};
  if (error != ncclSuccess) return error;
  ncclResult_t result = ncclSuccess;
  for (Group::Part& part : parts) {
    const Use comm{part.comm, "ncclGroupEnd"};
    if (!comm) return ncclInvalidArgument;
    const ncclResult_t begun = begin(comm, std::move(part.moves), part.stream);
    if (begun != ncclSuccess && (result == ncclSuccess || result == ncclInProgress)) result = begun;
  }
  return result;
}

ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return call("ncclAllGather", comm, stream,
              [&](Moves& moves, int me) { return fakenccl::add_all_gather(moves, me, in, out, count * fakenccl::size_of(type)), true; });
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return call("ncclBroadcast", comm, stream, [&](Moves& moves, int me) {
    if (root < 0 || root >= static_cast<int>(moves.out.size())) return false;
    return fakenccl::add_broadcast(moves, me, in, out, count * fakenccl::size_of(type), root), true;
  });
}
ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  return call("ncclAllReduce", comm, stream,
              [&](Moves& moves, int me) { return fakenccl::add_all_reduce(moves, me, in, out, count, type, op); });
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  return call("ncclReduceScatter", comm, stream,
              [&](Moves& moves, int me) { return fakenccl::add_reduce_scatter(moves, me, in, out, count, type, op); });
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call("ncclSend", comm, stream, [&](Moves& moves, int) {
    if (peer < 0 || peer >= static_cast<int>(moves.out.size())) return false;
    return fakenccl::add_send(moves, from, count * fakenccl::size_of(type), peer), true;
  });
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call("ncclRecv", comm, stream, [&](Moves& moves, int) {
    if (peer < 0 || peer >= static_cast<int>(moves.out.size())) return false;
    return fakenccl::add_receive(moves, to, count * fakenccl::size_of(type), peer), true;
  });
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* to, ncclConfig_t*) {
  *to = nullptr;
  if (counted("ncclCommSplit")) return static_cast<ncclResult_t>(settings().failure);
  const Use comm{handle, "ncclCommSplit"};
  if (!comm) return ncclInvalidArgument;
  if (const ncclResult_t usable = comm->check_usable(); usable != ncclSuccess && !comm->is_revoked()) return usable;
  auto child = comm->split(color, key);
  return child ? make(to, std::move(child)) : ncclSuccess;
}

#if FAKEGPU_NCCL_NEWEST >= 22703
ncclResult_t ncclCommShrink(ncclComm_t handle, int* excluded, int count, ncclComm_t* to, ncclConfig_t*, int flags) {
  *to = nullptr;
  if (counted("ncclCommShrink")) return static_cast<ncclResult_t>(settings().failure);
  const Use comm{handle, "ncclCommShrink"};
  if (!comm || !has(22703, "ncclCommShrink")) return ncclInvalidArgument;
  const std::vector<int> gone(excluded, excluded + count);
  for (const int rank : gone)
    if (rank < 0 || rank >= comm->ranks() || rank == comm->rank()) return ncclInvalidArgument;
  if (flags == 1) {  // blocks in the caller until what is in streams is out of them
    comm->give_up();
    wait_for_end(*comm);
  } else if (const ncclResult_t usable = comm->check_usable(); usable != ncclSuccess && !comm->is_revoked()) {
    return usable;
  }
  return make(to, comm->shrink(gone));
}
#endif

#if FAKEGPU_NCCL_NEWEST >= 22807
ncclResult_t ncclCommRevoke(ncclComm_t handle, int flags) {
  if (counted("ncclCommRevoke")) return static_cast<ncclResult_t>(settings().failure);
  const Use comm{handle, "ncclCommRevoke"};
  if (!comm || flags != 0 || !has(22807, "ncclCommRevoke")) return ncclInvalidArgument;
  return comm->revoke();
}
#endif

#if FAKEGPU_NCCL_NEWEST >= 22800
ncclResult_t ncclAlltoAll(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  if (!has(22800, "ncclAlltoAll")) return ncclInvalidUsage;
  return call("ncclAlltoAll", comm, stream,
              [&](Moves& moves, int me) { return fakenccl::add_all_to_all(moves, me, in, out, count * fakenccl::size_of(type)), true; });
}
#endif
}
