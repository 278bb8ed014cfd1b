#pragma once
/// \file Which NCCL this is, and whether elrun can use it. Pure.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/failure.hpp>

namespace elrun::inline v0 {

/// As `ncclGetVersion` says it: 2.28.9 is 22809.
struct NcclVersion {
  int code = 0;  ///< 0: there is none.
  friend constexpr auto operator<=>(NcclVersion, NcclVersion) = default;
};
[[nodiscard]] std::string to_string(NcclVersion version);

/// Communicators that never block, and their abort, work as elrun needs them from here on.
constexpr NcclVersion nccl_oldest{22600};
/// From here on NCCL lets two ranks use one device, if the user says so on both (NCCL_MULTI_RANK_GPU_ENABLE).
constexpr NcclVersion nccl_shares_devices{23000};

/// A copy of the library that is loaded in this process.
struct LoadedNccl {
  std::string path;
  NcclVersion version;
};

/// Why none of these copies can be used; nothing: the first one can. `wanted`: what was looked for.
[[nodiscard]] std::optional<Failure> unusable_nccl(const std::vector<LoadedNccl>& loaded, std::string_view wanted);

}  // namespace elrun::inline v0
