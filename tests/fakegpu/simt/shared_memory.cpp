#include "tests/fakegpu/simt/shared_memory.hpp"

#include <link.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/fakegpu/simt/device_side.hpp"

namespace fakegpu {
namespace {

constexpr std::size_t dynamic_shared_max = 256 << 10;

/// The data of the library that a twin lies in: its variables of static duration are the shared memory.
struct Module {
  std::uintptr_t begin = 0, end = 0;
  SharedMemory shared;
};

struct Search {
  std::uintptr_t code;
  Module* module;
};

int find_module(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  bool is_it = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    is_it |= part.p_type == PT_LOAD && search.code - (info->dlpi_addr + part.p_vaddr) < part.p_memsz;
  }
  if (!is_it) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_W) == 0) continue;
    search.module->begin = info->dlpi_addr + part.p_vaddr;
    search.module->end = search.module->begin + part.p_memsz;
  }
  return 1;
}

/// Of the twin that runs, and what `extern __shared__` would be.
Module* module_now = nullptr;
SharedMemory& dynamic_now = *new SharedMemory;
alignas(1024) std::byte dynamic_bytes[dynamic_shared_max];

Module& module_of(TwinBody body) {
  static auto& modules = *new std::vector<std::unique_ptr<Module>>;
  static auto& known = *new std::vector<std::pair<std::uintptr_t, Module*>>;
  const auto code = reinterpret_cast<std::uintptr_t>(body);
  for (const auto& [at, module] : known)
    if (at == code) return *module;
  Module found;
  Search search{code, &found};
  dl_iterate_phdr(find_module, &search);
  for (const auto& module : modules)
    if (module->begin == found.begin) return known.emplace_back(code, module.get()), *module;
  found.shared.place.kind = MemoryKind::shared;
  found.shared.place.size = found.end - found.begin;
  modules.push_back(std::make_unique<Module>(std::move(found)));
  known.emplace_back(code, modules.back().get());
  return *modules.back();
}

}  // namespace

void set_shared_memory(TwinBody body, std::size_t dynamic_size) {
  module_now = &module_of(body);
  dynamic_now.place.kind = MemoryKind::shared;
  dynamic_now.place.size = dynamic_size;
}

SharedPlace shared_place_of(const void* p) {
  const auto at = reinterpret_cast<std::uintptr_t>(p), dynamic = reinterpret_cast<std::uintptr_t>(dynamic_bytes);
  if (at - module_now->begin < module_now->end - module_now->begin) return {&module_now->shared, at - module_now->begin};
  if (at - dynamic < dynamic_shared_max) return {&dynamic_now, at - dynamic};
  return {};
}

void* dynamic_shared_memory() { return dynamic_bytes; }

}  // namespace fakegpu
