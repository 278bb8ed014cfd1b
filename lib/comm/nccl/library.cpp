#include "lib/comm/nccl/library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

template <class Function>
bool find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  return function != nullptr;
}

std::string path_of(void* handle) {
  link_map* map = nullptr;
  return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr ? map->l_name : "";
}

NcclVersion version_of(void* handle) {
  decltype(&ncclGetVersion) get = nullptr;
  NcclVersion version;
  if (!find(handle, "ncclGetVersion", get) || get(&version.code) != ncclSuccess) version.code = 0;
  return version;
}

/// The files of this process that are called as NCCL's library is.
std::vector<std::string> loaded_paths() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        const std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
        const std::string name = path.substr(path.rfind('/') + 1);
        if (name.starts_with("libnccl.so")) static_cast<std::vector<std::string>*>(to)->push_back(path);
        return 0;
      },
      &paths);
  return paths;
}

/// Never closed. Of a loaded file only when `flags` say so.
void* open(const std::string& name, int flags) { return dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | flags); }

}  // namespace

Result<NcclLibrary> NcclLibrary::load(const std::string& name) {
  void* handle = open(name, RTLD_NOLOAD);
  if (const auto paths = loaded_paths(); handle == nullptr && !paths.empty()) handle = open(paths.front(), RTLD_NOLOAD);
  if (handle == nullptr) handle = open(name, 0);
  if (handle == nullptr) {
    // So glibc says it of a file that is not there. Of one that needs another, it names that one; and of one that is damaged, what is wrong.
    const char* why = dlerror();
    if (why == nullptr || std::string_view{why}.starts_with(name + ": cannot open shared object file")) return *unusable_nccl({}, name);
    return Failure{.code = Code::mismatch,
                   .remedy = Remedy::fix_config,
                   .what = fmt::format("{} cannot be loaded: {}; install a whole one, or name its folder in LD_LIBRARY_PATH", name, why)};
  }
  std::vector<LoadedNccl> loaded{{path_of(handle), version_of(handle)}};
  for (const std::string& path : loaded_paths()) {
    if (path == loaded.front().path) continue;
    if (void* other = open(path, RTLD_NOLOAD); other != nullptr && other != handle) loaded.push_back({path, version_of(other)});
  }
  if (auto unusable = unusable_nccl(loaded, name)) return *std::move(unusable);
  NcclLibrary nccl;
  const char* missing = nullptr;
  const auto need = [&](const char* function, auto& to) {
    if (!find(handle, function, to) && missing == nullptr) missing = function;
  };
  need("ncclGetUniqueId", nccl.get_unique_id);
  need("ncclCommInitRankScalable", nccl.comm_init);
  need("ncclCommGetAsyncError", nccl.comm_get_async_error);
  need("ncclCommAbort", nccl.comm_abort);
  need("ncclCommFinalize", nccl.comm_finalize);
  need("ncclCommDestroy", nccl.comm_destroy);
  need("ncclGetLastError", nccl.get_last_error);
  need("ncclGroupStart", nccl.group_start);
  need("ncclGroupEnd", nccl.group_end);
  need("ncclAllReduce", nccl.all_reduce);
  need("ncclReduceScatter", nccl.reduce_scatter);
  need("ncclAllGather", nccl.all_gather);
  need("ncclBroadcast", nccl.broadcast);
  need("ncclSend", nccl.send);
  need("ncclRecv", nccl.receive);
  if (missing != nullptr)
    return Failure{.code = Code::mismatch,
                   .remedy = Remedy::fix_config,
                   .what = fmt::format("NCCL {} ({}) has no {}: install a whole one", to_string(loaded.front().version),
                                       loaded.front().path, missing)};
  (void)find(handle, "ncclAlltoAll", nccl.all_to_all);
  nccl.loaded_ = std::move(loaded.front());
  return nccl;
}

}  // namespace elrun::inline v0
