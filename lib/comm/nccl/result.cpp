#include "lib/comm/nccl/result.hpp"

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

struct Meaning {
  NcclResult result;
  Code code;
  Remedy remedy;
  const char* text;
};

constexpr Meaning meanings[] = {
    // The context may be lost for the whole process, and nothing in NCCL tells whether it is.
    {NcclResult::unhandled_cuda_error, Code::internal, Remedy::exit_process,
     "a call of CUDA failed; look for the first CUDA error of this process"},
    {NcclResult::system_error, Code::io, Remedy::abort_group,
     "a call of the system failed (a socket, shared memory, a limit); NCCL_DEBUG=WARN names it"},
    {NcclResult::internal_error, Code::internal, Remedy::abort_group, "an error inside of NCCL; NCCL_DEBUG=WARN says more"},
    {NcclResult::invalid_argument, Code::invalid_argument, Remedy::abort_group, "an argument does not fit; NCCL_DEBUG=WARN names it"},
    {NcclResult::invalid_usage, Code::invalid_argument, Remedy::abort_group,
     "a call that NCCL does not allow here (two ranks on one device, another order of calls); NCCL_DEBUG=WARN says which"},
    {NcclResult::remote_error, Code::peer_lost, Remedy::rejoin, "a peer's process or the network to it is gone"},
};

}  // namespace

Failure from_nccl(NcclResult result, std::string_view call, std::string_view device, std::string_view detail) {
  for (const Meaning& each : meanings) {
    if (each.result != result) continue;
    return {.code = each.code,
            .remedy = each.remedy,
            .what = fmt::format("{} on {}: {}{}{}", call, device, each.text, detail.empty() ? "" : "; NCCL: ", detail)};
  }
  return {.code = Code::internal,
          .remedy = Remedy::abort_group,
          .what = fmt::format("{} on {} gave result {}, which elrun does not know", call, device, static_cast<int>(result))};
}

}  // namespace elrun::inline v0
