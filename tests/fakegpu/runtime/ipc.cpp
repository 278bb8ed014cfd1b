#include "tests/fakegpu/runtime/ipc.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace fakegpu {
namespace {

constexpr std::uint64_t mark = 0x656c72756e697063u;

/// What a handle's 64 bytes hold.
struct Word {
  std::uint64_t mark;
  std::int32_t process, file, device, unused;
  std::uint64_t offset, size, page_bytes;
};

template <class Handle>
Handle packed(const Word& word) {
  static_assert(sizeof(Word) <= sizeof(Handle));
  Handle handle{};
  std::memcpy(&handle, &word, sizeof word);
  return handle;
}

/// The memory file that a handle names; -1 where there is none any more.
template <class Handle>
int opened_file(const Handle& handle, Word& word) {
  std::memcpy(&word, &handle, sizeof word);
  if (word.mark != mark || word.process == getpid()) return -1;
  const std::string path = "/proc/" + std::to_string(word.process) + "/fd/" + std::to_string(word.file);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

SharedEventPtr mapped_event(int file) {
  void* p = mmap(nullptr, sizeof(SharedEvent), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (p == MAP_FAILED) return nullptr;
  return {static_cast<SharedEvent*>(p), [](SharedEvent* e) { munmap(e, sizeof(SharedEvent)); }};
}

}  // namespace

cudaIpcMemHandle_t Ipc::handle_of(Memory& memory, const Allocation& a) const {
  return packed<cudaIpcMemHandle_t>(
      {mark, getpid(), memory.file_of(a.device), settings().physical[a.device], 0, memory.offset_in_file(a), a.size, a.page_bytes});
}

Allocation* Ipc::open(Memory& memory, const cudaIpcMemHandle_t& handle) {
  const std::string key{reinterpret_cast<const char*>(&handle), sizeof handle};
  if (const auto known = opened_.find(key); known != opened_.end()) {
    ++known->second.times;
    return known->second.allocation;
  }
  Word word{};
  const int file = opened_file(handle, word);
  if (file < 0) return nullptr;
  const int* const begin = settings().physical;
  const int* const device = std::find(begin, begin + settings().devices, word.device);
  if (device == begin + settings().devices) return ::close(file), nullptr;  // a device that this process does not see
  Allocation* const a = memory.import(file, word.offset, word.size, word.page_bytes, static_cast<int>(device - begin));
  ::close(file);
  opened_.emplace(key, Opened{a, 1});
  return a;
}

bool Ipc::close(Memory& memory, const void* p) {
  const auto found = std::ranges::find_if(opened_, [&](const auto& o) { return o.second.allocation->base == p; });
  if (found == opened_.end()) return false;
  if (--found->second.times > 0) return true;
  memory.free(*found->second.allocation);
  opened_.erase(found);
  return true;
}

SharedEventPtr Ipc::make_event(int& file) {
  file = memfd_create("fakegpu-event", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, sizeof(SharedEvent)) != 0) return nullptr;
  return mapped_event(file);
}

cudaIpcEventHandle_t Ipc::handle_of_event(int file) { return packed<cudaIpcEventHandle_t>({mark, getpid(), file, 0, 0, 0, 0, 0}); }

SharedEventPtr Ipc::open_event(const cudaIpcEventHandle_t& handle) {
  Word word{};
  const int file = opened_file(handle, word);
  if (file < 0) return nullptr;
  const SharedEventPtr event = mapped_event(file);
  ::close(file);
  return event;
}

}  // namespace fakegpu
