#include "tests/fakegpu/nccl/shared_world.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace fakenccl {
namespace {

struct Words {
  RankWords ranks[ranks_max];
  Mailbox mailboxes[ranks_max][ranks_max];
};
constexpr std::size_t page = 4096, words_bytes = (sizeof(Words) + page - 1) / page * page;

}  // namespace

std::shared_ptr<SharedWorld> SharedWorld::open(const std::string& path, int ranks, std::uint64_t slot) {
  std::shared_ptr<SharedWorld> world{new SharedWorld{path, ranks, slot}};
  const std::size_t bytes = words_bytes + static_cast<std::size_t>(ranks * ranks) * slot;
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return nullptr;
  // Zeros are the first state of everything. Pages that nobody touches do not exist.
  void* const map = ::ftruncate(file, static_cast<off_t>(bytes)) == 0
                        ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0)
                        : MAP_FAILED;
  ::close(file);
  if (map == MAP_FAILED) return nullptr;
  (void)::madvise(map, bytes, MADV_RANDOM);  // else a page that is touched brings megabytes of others
  world->map_ = static_cast<std::byte*>(map);
  world->bytes_ = bytes;
  return world;
}

SharedWorld::~SharedWorld() {
  if (map_ != nullptr) ::munmap(map_, bytes_);
}

RankWords& SharedWorld::rank(int rank) const { return reinterpret_cast<Words*>(map_)->ranks[rank]; }
Mailbox& SharedWorld::mailbox(int from, int to) const { return reinterpret_cast<Words*>(map_)->mailboxes[from][to]; }
std::byte* SharedWorld::data(int from, int to) const { return map_ + words_bytes + static_cast<std::size_t>(from * ranks_ + to) * slot_; }

bool SharedWorld::all_joined() const {
  for (int r = 0; r < ranks_; ++r)
    if (rank(r).joined == 0) return false;
  return true;
}

bool SharedWorld::all_finalized() const {
  for (int r = 0; r < ranks_; ++r)
    if (rank(r).finalized == 0) return false;
  return true;
}

void SharedWorld::forget_name() { ::unlink(path_.c_str()); }

}  // namespace fakenccl
