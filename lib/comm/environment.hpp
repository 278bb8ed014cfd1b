#pragma once
/// \file What a worker's environment says about transports. The one place in lib/comm that reads the environment.

#include <string>
#include <string_view>

#include <elrun/process_group.hpp>
#include <elrun/result.hpp>

namespace elrun::inline v0 {

/// A value of ELRUN_TRANSPORT: `auto`, `tcp` or `shm`. Other words are `invalid_argument`.
[[nodiscard]] Result<Transport> parse_transport(std::string_view word);

/// What the program asks for. Where it leaves the choice open, ELRUN_TRANSPORT of this process decides.
[[nodiscard]] Result<Transport> transport_of_process(Transport by_program);

/// NCCL's variables that are set in this process, "NCCL_A=1, NCCL_B=2": elrun sets none, so they are the user's, and failures name them. A variable
/// whose name says that it holds a secret is named without its value; the text is bounded.
[[nodiscard]] std::string nccl_settings();

/// What NCCL takes for this process's host: the user's NCCL_HOSTID, or else `boot`. Machines that were cloned with their boot id need the variable.
[[nodiscard]] std::string host_for_nccl(std::string boot);

/// Why NCCL cannot be used as the user has set it; empty: it can. NCCL_COMM_ID is refused: it gives all groups of a process one address, those of one generation and those of the next.
[[nodiscard]] std::string nccl_set_wrong();

/// The user lets NCCL, 2.30 and newer, put several ranks on one device.
[[nodiscard]] bool nccl_may_share_devices();

}  // namespace elrun::inline v0
