#pragma once
/// \file NcclLibrary: NCCL's functions, found at run time. Only sources of this folder include it: it needs nccl.h.

#include <nccl.h>

#include <memory>
#include <string>

#include <elrun/result.hpp>

#include "lib/comm/nccl/result.hpp"
#include "lib/comm/nccl/version.hpp"

namespace elrun::inline v0 {

/// All copies refer to the one library of the process, which stays loaded: its threads may outlive every communicator. It has one field for each
/// function of NCCL that elrun calls, so more than 15.
class NcclLibrary {
 public:
  /// A copy that is loaded already (by another framework, for example) comes first, then what the system finds by `name`. Fails with `fix_config`: not
  /// there, too old, two versions in this process, or a function is missing.
  static Result<NcclLibrary> load(const std::string& name = "libnccl.so.2");

  [[nodiscard]] NcclVersion version() const { return loaded_.version; }
  [[nodiscard]] const std::string& path() const { return loaded_.path; }

  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankScalable) comm_init = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  /// Of newer versions; null: send and receive do its work. By its own type, for the header may be older.
  ncclResult_t (*all_to_all)(const void*, void*, std::size_t, ncclDataType_t, ncclComm_t, cudaStream_t) = nullptr;

 private:
  LoadedNccl loaded_;
};

[[nodiscard]] constexpr NcclResult result_of(ncclResult_t result) { return static_cast<NcclResult>(result); }
static_assert(result_of(ncclSuccess) == NcclResult::success && result_of(ncclUnhandledCudaError) == NcclResult::unhandled_cuda_error &&
              result_of(ncclSystemError) == NcclResult::system_error && result_of(ncclInternalError) == NcclResult::internal_error &&
              result_of(ncclInvalidArgument) == NcclResult::invalid_argument && result_of(ncclInvalidUsage) == NcclResult::invalid_usage &&
              result_of(ncclRemoteError) == NcclResult::remote_error && result_of(ncclInProgress) == NcclResult::in_progress);

}  // namespace elrun::inline v0
