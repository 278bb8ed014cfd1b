// How shared memory gets its pages, under a kernel that interrupts, does part of what was asked, or refuses.

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include "lib/comm/shm/shared_memory.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;

namespace {

// What the kernel does to the thread that sets them.
thread_local int interruptions_left = 0;
thread_local std::size_t written_most = ~std::size_t{0};
thread_local std::size_t writes_until_refused = ~std::size_t{0};
thread_local int refused_with = 0;

/// What /proc tells of the one mapping of `size` bytes for writing.
struct Mapping {
  std::size_t resident = 0;  ///< Bytes.
  bool in_children = false;
};

Mapping mapping_of(std::size_t size) {
  std::ifstream maps{"/proc/self/smaps"};
  Mapping found;
  bool is_it = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:elrun") != std::string::npos) is_it = line.find(" rw-s ") != std::string::npos;
    else if (is_it && line.starts_with("Size:")) is_it = std::stoull(line.substr(5)) << 10 == size;
    else if (is_it && line.starts_with("Rss:")) found.resident = std::stoull(line.substr(4)) << 10;
    else if (is_it && line.starts_with("VmFlags:")) found.in_children = (line + ' ').find(" dc ") == std::string::npos;
  }
  return found;
}

struct Advice {
  int advice = 0;
  Mapping before;
};
thread_local std::vector<Advice> advices;  // of the thread that is watched
thread_local bool is_watched = false;

}  // namespace

/// In the place of the C library's.
extern "C" ssize_t pwrite(int file, const void* bytes, std::size_t size, off_t offset) {
  if (interruptions_left > 0) return --interruptions_left, errno = EINTR, -1;
  if (writes_until_refused != ~std::size_t{0} && writes_until_refused-- == 0) return errno = refused_with, refused_with == 0 ? 0 : -1;
  return ::syscall(SYS_pwrite64, file, bytes, std::min(size, written_most), offset);
}

/// In the place of the C library's.
extern "C" int madvise(void* begin, std::size_t size, int advice) noexcept {
  if (is_watched) advices.push_back({advice, mapping_of(size)});
  return static_cast<int>(::syscall(SYS_madvise, begin, size, advice));
}

TEST_CASE("the pages of shared memory are entered after it was mapped, and no child has it before all are there", "[shared_memory]") {
  constexpr std::size_t size = 9 << 20;
  advices.clear();
  is_watched = true;
  const auto made = SharedMemory::make_returnable(Bytes{size});
  is_watched = false;
  REQUIRE(made.ok());
  REQUIRE(advices.size() == 2);
  CHECK(advices[0].advice == MADV_DONTFORK);
  CHECK(advices[0].before.resident == 0);
  CHECK(advices[1].advice == MADV_DOFORK);
  CHECK(advices[1].before.resident == size);
  CHECK_FALSE(advices[1].before.in_children);
  CHECK(mapping_of(size).in_children);
  CHECK(std::ranges::all_of(std::span{made->data(), made->size()}, [](std::byte b) { return b == std::byte{0}; }));
}

TEST_CASE("shared memory is made although signals come, and not tried for ever", "[shared_memory]") {
  interruptions_left = 20;
  CHECK(SharedMemory::make(8_MiB).ok());
  CHECK(interruptions_left == 0);
  interruptions_left = 1 << 20;
  const auto made = SharedMemory::make(8_MiB);
  CHECK(interruptions_left > 0);
  interruptions_left = 0;
  REQUIRE_FALSE(made.ok());
  CHECK(made.failure().what.find("8388608 bytes of shared memory") != std::string::npos);
}

TEST_CASE("shared memory has all of its pages, also where the system gives a few at a time", "[shared_memory]") {
  written_most = 5000;
  const auto made = SharedMemory::make(Bytes{100'001});
  written_most = ~std::size_t{0};
  REQUIRE(made.ok());
  CHECK(made->size() == 100'001);
  CHECK(made->data()[100'000] == std::byte{0});
}

TEST_CASE("where the system has no pages left shared memory is a failure, and no signal", "[shared_memory]") {
  refused_with = GENERATE(ENOSPC, ENOMEM, 0);  // 0: it takes nothing, and says nothing
  CAPTURE(refused_with);
  writes_until_refused = 3;
  const auto made = SharedMemory::make(8_MiB);
  writes_until_refused = ~std::size_t{0};
  REQUIRE_FALSE(made.ok());
  CHECK(made.failure().code == (refused_with == ENOMEM ? Code::exhausted : Code::no_space));
  CHECK(made.failure().what.find("8388608 bytes of shared memory") != std::string::npos);
}
