#include "lib/comm/nccl/version.hpp"

#include <fmt/format.h>

namespace elrun::inline v0 {

std::string to_string(NcclVersion version) {
  return fmt::format("{}.{}.{}", version.code / 10000, version.code / 100 % 100, version.code % 100);
}

std::optional<Failure> unusable_nccl(const std::vector<LoadedNccl>& loaded, std::string_view wanted) {
  if (loaded.empty())
    return Failure{.code = Code::not_found,
                   .remedy = Remedy::fix_config,
                   .what = fmt::format("{} was not found: install NCCL {} or newer, or name its folder in LD_LIBRARY_PATH", wanted,
                                       to_string(nccl_oldest))};
  for (const LoadedNccl& other : loaded) {
    if (other.version == loaded.front().version) continue;
    return Failure{
        .code = Code::mismatch,
        .remedy = Remedy::fix_config,
        .what = fmt::format("two versions of NCCL are in this process: {} ({}) and {} ({}); let all that use it load the same one "
                            "(LD_LIBRARY_PATH, or the environment of the other framework)",
                            to_string(loaded.front().version), loaded.front().path, to_string(other.version), other.path)};
  }
  if (loaded.front().version < nccl_oldest)
    return Failure{
        .code = Code::mismatch,
        .remedy = Remedy::fix_config,
        .what = fmt::format("NCCL {} ({}) is too old: elrun needs {} or newer; install one, or name its folder in LD_LIBRARY_PATH",
                            to_string(loaded.front().version), loaded.front().path, to_string(nccl_oldest))};
  return std::nullopt;
}

}  // namespace elrun::inline v0
