#include "lib/comm/shm/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <future>
#include <new>
#include <optional>
#include <string>
#include <thread>

#include "lib/base/clock.hpp"
#include "lib/base/memory_left.hpp"
#include "lib/base/pass_descriptors.hpp"
#include "lib/comm/shm/lanes.hpp"
#include "lib/comm/shm/region.hpp"
#include "lib/comm/shm/unmap_delay.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/file_size_limit.hpp"

using namespace elrun;

namespace {

bool no_memory_to_take = false;

Fd copy_of(int file) { return Fd{::fcntl(file, F_DUPFD_CLOEXEC, 0)}; }

std::pair<Fd, Fd> connected() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  return {Fd{ends[0]}, Fd{ends[1]}};
}

}  // namespace

/// In the place of the C library's: as if an allocation beside it failed.
extern "C" ssize_t recvmsg(int socket, msghdr* message, int flags) {
  if (no_memory_to_take) throw std::bad_alloc{};
  return ::syscall(SYS_recvmsg, socket, message, flags);
}

TEST_CASE("shared memory is written by one, and read by others", "[shared_memory]") {
  const SharedMemory mine = SharedMemory::make(8_KiB).value();
  REQUIRE(mine.size() == 8192);
  CHECK(std::ranges::all_of(std::span{mine.data(), mine.size()}, [](std::byte b) { return b == std::byte{0}; }));
  const SharedMemory theirs = SharedMemory::view(copy_of(mine.file()), 8_KiB).value();
  mine.data()[8191] = std::byte{9};
  CHECK(theirs.data()[8191] == std::byte{9});

  SECTION("nobody can cut it under a reader") { CHECK(::ftruncate(mine.file(), 0) != 0); }
  SECTION("who has the descriptor cannot write to it") {
    if ((::fcntl(mine.file(), F_GET_SEALS) & F_SEAL_FUTURE_WRITE) == 0) return;  // a kernel before 5.1
    CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, mine.file(), 0) == MAP_FAILED);
    CHECK(::pwrite(mine.file(), "x", 1, 0) < 0);
  }
  SECTION("it outlives whoever made it") {
    { const SharedMemory gone = std::move(const_cast<SharedMemory&>(mine)); }
    CHECK(theirs.data()[8191] == std::byte{9});
  }
}

TEST_CASE("shared memory that is larger than files may be is a failure, and no signal", "[shared_memory]") {
  const test::FileSizeLimit limit{1_MiB};
  CHECK(SharedMemory::make(1_MiB).ok());
  CHECK(SharedMemory::make(4_MiB).failure().code == Code::no_space);
}

TEST_CASE("what is no sealed memory of the promised size is not mapped", "[shared_memory]") {
  const SharedMemory mine = SharedMemory::make(8_KiB).value();
  CHECK(SharedMemory::view(copy_of(mine.file()), 4_KiB).failure().code == Code::protocol);
  CHECK(SharedMemory::view(copy_of(mine.file()), 1_GiB).failure().code == Code::protocol);
  CHECK(SharedMemory::view(copy_of(mine.file()), 0_B).failure().code == Code::protocol);
  Fd loose{::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  REQUIRE(::ftruncate(loose.get(), 8192) == 0);
  CHECK(SharedMemory::view(std::move(loose), 8_KiB).failure().code == Code::protocol);
  CHECK(SharedMemory::view(Fd{::open("/dev/zero", O_RDONLY | O_CLOEXEC)}, 8_KiB).failure().code == Code::protocol);
}

TEST_CASE("pages that are given back are gone for those who map them, and nobody writes by what they were given", "[shared_memory]") {
  SharedMemory mine = SharedMemory::make_returnable(8_KiB).value();
  Fd file = mine.for_reading().value();
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0) == MAP_FAILED);
  CHECK(::ftruncate(mine.file(), 0) != 0);
  const SharedMemory theirs = SharedMemory::view(copy_of(file.get()), 8_KiB).value();
  mine.data()[8191] = std::byte{9};
  CHECK(theirs.data()[8191] == std::byte{9});
  mine.give_back();
  struct stat status {};
  REQUIRE(::fstat(file.get(), &status) == 0);
  CHECK(status.st_blocks == 0);
  CHECK(theirs.data()[8191] == std::byte{0});
}

TEST_CASE("descriptors are handed over with their message, or not at all", "[shared_memory]") {
  const auto [here, there] = connected();
  const SharedMemory memory = SharedMemory::make(4_KiB).value();
  const std::array<std::byte, 16> words{std::byte{1}};
  std::array<std::byte, 16> read{};
  std::array<Fd, 2> files;

  SECTION("both") {
    REQUIRE(send_with(here.get(), words, std::array{memory.file(), memory.file()}).ok());
    REQUIRE(receive_with(there.get(), read, files).ok());
    CHECK(read == words);
    CHECK((::fcntl(files[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK(SharedMemory::view(std::move(files[1]), 4_KiB).ok());
  }
  SECTION("none") {
    REQUIRE(send_with(here.get(), words, {}).ok());
    REQUIRE(receive_with(there.get(), read, files).ok());
    CHECK(!files[0]);
  }
  SECTION("one too few") {
    REQUIRE(send_with(here.get(), words, std::array{memory.file()}).ok());
    CHECK(receive_with(there.get(), read, files).failure().code == Code::protocol);
  }
  SECTION("one too many, and none of them stays open") {
    const int before = ::fcntl(here.get(), F_DUPFD, 0);
    ::close(before);
    REQUIRE(send_with(here.get(), words, std::array{memory.file(), memory.file(), memory.file()}).ok());
    CHECK(receive_with(there.get(), read, files).failure().code == Code::protocol);
    files = {};
    const int after = ::fcntl(here.get(), F_DUPFD, 0);
    ::close(after);
    CHECK(after == before);
  }
  SECTION("a message that is cut short") {
    REQUIRE(send_with(here.get(), std::span{words}.first(5), std::array{memory.file(), memory.file()}).ok());
    CHECK(receive_with(there.get(), read, files).failure().code == Code::protocol);
  }
}

TEST_CASE("a region is attached only by a rank of its generation and world, once", "[shared_memory]") {
  const std::vector<Rank> both{Rank{0}, Rank{1}};
  const Generation now{7, {{1, 2}}}, earlier{6, {{1, 2}}}, foreign{7, {{1, 3}}};
  const auto lanes_of = [&](const Generation& generation, std::uint32_t rank, std::uint32_t world) {
    return Lanes::make({generation, Rank{rank}, WorldSize{world}}, both).value();
  };
  const auto mine = lanes_of(now, 0, 2);
  const auto attach = [&](const Lanes& theirs, std::uint32_t as = 1) {
    const auto offer = theirs.offer(Rank{0});
    return mine->attach(Rank{as}, copy_of(offer.region), offer.size, copy_of(offer.doorbell), copy_of(offer.doorbell));
  };
  CHECK(attach(*lanes_of(earlier, 1, 2)).failure().code == Code::refused);
  CHECK(attach(*lanes_of(foreign, 1, 2)).failure().code == Code::refused);
  CHECK(attach(*lanes_of(now, 0, 2)).failure().code == Code::protocol);
  CHECK(attach(*lanes_of(now, 1, 3)).failure().code == Code::protocol);
  CHECK(attach(*lanes_of(now, 1, 2), 2).failure().code == Code::protocol);
  const SharedMemory small = SharedMemory::make(4_KiB).value();
  CHECK(mine->attach(Rank{1}, copy_of(small.file()), 4_KiB, copy_of(small.file()), copy_of(small.file())).failure().code == Code::protocol);
  const SharedMemory blank = SharedMemory::make(1_MiB).value();
  CHECK(mine->attach(Rank{1}, copy_of(blank.file()), 1_MiB, copy_of(blank.file()), copy_of(blank.file())).failure().code == Code::protocol);
  CHECK_FALSE(mine->attached(Rank{1}));
  CHECK(attach(*lanes_of(now, 1, 2)).ok());
  CHECK(mine->attached(Rank{1}));
  CHECK(attach(*lanes_of(now, 1, 2)).failure().code == Code::protocol);
}

TEST_CASE("nothing travels through memory to a peer that could not attach this rank, and no call waits for it", "[shared_memory]") {
  const Generation generation{1, {{5, 6}}};
  std::array<std::unique_ptr<Lanes>, 3> lanes;
  for (std::uint32_t r = 0; r < 3; ++r) lanes[r] = Lanes::make({generation, Rank{r}, WorldSize{3}}, {Rank{0}, Rank{1}, Rank{2}}).value();
  const auto attach = [&](std::uint32_t to, std::uint32_t from) {
    const auto offer = lanes[from]->offer(Rank{to});
    REQUIRE(lanes[to]->attach(Rank{from}, copy_of(offer.region), offer.size, copy_of(offer.doorbell), copy_of(offer.post)).ok());
  };
  attach(0, 1);  // and not the other way round
  attach(0, 2);
  attach(2, 0);
  lanes[0]->forget(Rank{1});
  CHECK_FALSE(lanes[0]->attached(Rank{1}));
  CHECK(lanes[0]->attached(Rank{2}));
  const std::vector<std::byte> data(1000, std::byte{4});
  std::array<std::vector<std::byte>, 3> got;
  std::vector<ReceiveList> receives(3);
  for (std::uint32_t r = 0; r < 3; ++r) got[r].resize(1000), receives[r].push_back(got[r]);
  const std::vector<SendList> sends(3, SendList{data}), to_first{{data}, {}, {}};
  REQUIRE(lanes[2]->transfer(to_first, std::vector<ReceiveList>(3), {}, 60s).ok());
  const auto result = lanes[0]->transfer(sends, receives, {}, 2s);
  CHECK((result.ok() ? "" : message(result.failure())) == "");
  CHECK(got[2] == data);
  CHECK(got[1] != data);  // frames bring it
}

TEST_CASE("a call that finds no slot names the rank that has not taken what earlier calls put there", "[shared_memory]") {
  const Generation generation{1, {{5, 6}}};
  std::array<std::unique_ptr<Lanes>, 3> lanes;
  for (std::uint32_t r = 0; r < 3; ++r) lanes[r] = Lanes::make({generation, Rank{r}, WorldSize{3}}, {Rank{0}, Rank{1}, Rank{2}}).value();
  for (const auto& [to, from] : {std::pair{0u, 1u}, {1u, 0u}, {0u, 2u}}) {
    const auto offer = lanes[from]->offer(Rank{to});
    REQUIRE(lanes[to]->attach(Rank{from}, copy_of(offer.region), offer.size, copy_of(offer.doorbell), copy_of(offer.post)).ok());
  }
  const std::vector<std::byte> data(100, std::byte{4});
  std::vector<std::byte> got(100);
  const std::vector<SendList> nothing(3), to_both{{}, {data}, {data}}, to_one{{}, {data}, {}};
  std::vector<ReceiveList> none(3), receives(3);
  receives[0].push_back(got);
  const int untaken = GENERATE(0, 1);  // by rank 1, which may wait itself: rank 2 has taken nothing
  for (int slots = 12; slots > 0; --slots) {
    REQUIRE(lanes[0]->transfer(to_both, none, {}, 60s).ok());
    if (slots > untaken) REQUIRE(lanes[1]->transfer(nothing, receives, {}, 60s).ok());
  }
  const auto late = lanes[0]->transfer(to_one, none, Rank{1}, 30ms);
  CHECK(late.failure().code == Code::deadline_passed);
  CHECK(late.failure().peer == Rank{2});
  CHECK_THAT(late.failure().what, Catch::EndsWith("missing: rank 2"));
}

TEST_CASE("what a peer posted before it went counts; what it owes is missed at once", "[shared_memory]") {
  const Generation generation{1, {{5, 6}}};
  const std::vector<Rank> both{Rank{0}, Rank{1}};
  std::array<std::unique_ptr<Lanes>, 2> lanes;
  for (std::uint32_t r = 0; r < 2; ++r) lanes[r] = Lanes::make({generation, Rank{r}, WorldSize{2}}, both).value();
  for (std::uint32_t r = 0; r < 2; ++r) {
    const auto offer = lanes[1 - r]->offer(Rank{r});
    REQUIRE(lanes[r]->attach(Rank{1 - r}, copy_of(offer.region), offer.size, copy_of(offer.doorbell), copy_of(offer.post)).ok());
  }
  const std::vector<std::byte> data(1000, std::byte{4});
  std::vector<std::byte> got(1000);
  const std::vector<SendList> nothing(2);
  std::vector<SendList> sends(2);
  sends[0].push_back(data);
  std::vector<ReceiveList> none(2), receives(2);
  receives[1].push_back(got);
  REQUIRE(lanes[1]->transfer(sends, none, {}, 60s).ok());
  lanes[0]->lose(Rank{1});
  CHECK(lanes[0]->transfer(nothing, receives, {}, 60s).ok());
  CHECK(got == data);

  SECTION("a lost one") {
    const auto missed = lanes[0]->transfer(nothing, receives, {}, 600s);
    CHECK(missed.failure().code == Code::peer_lost);
    CHECK(missed.failure().peer == Rank{1});
  }
  SECTION("the end of the generation comes first") {
    lanes[0]->end();
    CHECK(lanes[0]->transfer(nothing, receives, {}, 600s).failure().code == Code::generation_over);
  }
  SECTION("a deadline names who is late") {
    std::vector<ReceiveList> more(2);
    more[0].push_back(got);
    const auto late = lanes[1]->transfer(nothing, more, {}, 30ms);
    CHECK(late.failure().code == Code::deadline_passed);
    CHECK_THAT(late.failure().what, Catch::Contains("missing: rank 0"));
  }
  SECTION("another length is another call") {
    REQUIRE(lanes[0]->transfer(nothing, none, {}, 60s).ok());  // the counts of both are equal again
    std::vector<SendList> other(2);
    other[1].push_back(std::span{data}.first(999));
    REQUIRE(lanes[0]->transfer(other, none, {}, 60s).ok());
    std::vector<ReceiveList> more(2);
    more[0].push_back(got);
    REQUIRE(lanes[1]->transfer(nothing, none, {}, 60s).ok());
    REQUIRE(lanes[1]->transfer(nothing, none, {}, 60s).ok());
    const auto differs = lanes[1]->transfer(nothing, more, {}, 60s);
    CHECK(differs.failure().code == Code::protocol);
    CHECK_THAT(differs.failure().what, Catch::Contains("999 bytes") && Catch::Contains("different calls"));
  }
}

namespace {

/// Two ranks that reach each other, on one thread or two.
struct Pair {
  Pair() {
    const std::vector<Rank> both{Rank{0}, Rank{1}};
    for (std::uint32_t r = 0; r < 2; ++r) lanes[r] = Lanes::make({{1, {{5, 6}}}, Rank{r}, WorldSize{2}}, both).value();
    attach(0, copy_of(lanes[1]->offer(Rank{0}).post));
    attach(1, copy_of(lanes[0]->offer(Rank{1}).post));
  }
  void attach(std::uint32_t r, Fd post) {
    const auto offer = lanes[1 - r]->offer(Rank{r});
    REQUIRE(lanes[r]->attach(Rank{1 - r}, copy_of(offer.region), offer.size, copy_of(offer.doorbell), std::move(post)).ok());
  }
  Result<void> send(std::uint32_t from, std::span<const std::byte> data, Duration limit = 60s) {
    std::vector<SendList> sends(2);
    sends[1 - from].push_back(data);
    return lanes[from]->transfer(sends, none, {}, limit);
  }
  Result<void> receive(std::uint32_t by, std::span<std::byte> data, Duration limit = 60s) {
    std::vector<ReceiveList> receives(2);
    receives[1 - by].push_back(data);
    return lanes[by]->transfer(nothing, receives, {}, limit);
  }
  std::array<std::unique_ptr<Lanes>, 2> lanes;
  std::vector<SendList> nothing{2};
  std::vector<ReceiveList> none{2};
};

}  // namespace

TEST_CASE("a call through memory ends at its limit, also while bytes come without a pause", "[shared_memory]") {
  constexpr std::size_t size = 72 << 20;  // is read in pieces of 1 MiB; each 64th looks at the clock
  Pair pair;
  const SharedBuffer buffer = SharedBuffer::make(Bytes{size}).value();
  REQUIRE(pair.lanes[0]->share(buffer).ok());
  auto sent = std::async(std::launch::async, [&] { return pair.send(0, buffer.bytes()); });
  std::this_thread::sleep_for(200ms);  // all of it is there to be read
  std::vector<std::byte> got(size);
  const auto late = pair.receive(1, got, 1ns);
  REQUIRE_FALSE(late.ok());
  CHECK(late.failure().code == Code::deadline_passed);
  pair.lanes[0]->end();
  CHECK(sent.get().failure().code == Code::generation_over);
}

TEST_CASE("large memory shared by a peer is unmapped a while after the group's end, by a thread that nobody waits for", "[shared_memory]") {
  constexpr std::size_t size = 64 << 20;
  const auto mapped = [] {  // bytes
    std::ifstream maps{"/proc/self/maps"};
    std::size_t bytes = 0;
    for (std::string line; std::getline(maps, line);) {
      std::size_t end = 0;
      const auto from = std::stoull(line, &end, 16), to = std::stoull(line.substr(end + 1), nullptr, 16);
      if (line.find("memfd:elrun") != std::string::npos) bytes += to - from;
    }
    return bytes;
  };
  const std::size_t before = mapped();
  auto pair = std::make_optional<Pair>();
  auto buffer = std::make_optional(SharedBuffer::make(Bytes{size}).value());
  for (auto& lanes : pair->lanes) REQUIRE(lanes->share(*buffer).ok());
  auto sent = std::async(std::launch::async, [&] { return pair->send(0, buffer->bytes().first(1 << 20)); });
  std::vector<std::byte> got(1 << 20);
  REQUIRE(pair->receive(1, got).ok());
  REQUIRE(sent.get().ok());
  CHECK(mapped() >= before + 2 * size);  // the owner's, and the reader's
  // Far more than is needed for that, so that what others take meanwhile changes nothing.
  const bool is_memory_left = delay_before_unmapping(Bytes{16 * size}, memory_left(text_of_system)) > 0ns;
  const SteadyClock clock;
  const Instant begin = clock.now();
  pair.reset();
  buffer.reset();
  for (const Instant until = begin + 60s; mapped() > before && clock.now() < until;) std::this_thread::yield();
  CHECK(mapped() <= before);
  if (is_memory_left) CHECK(clock.now() - begin >= unmap_delay);
}

TEST_CASE("of a peer's buffer the pages are mapped that are read", "[shared_memory]") {
  constexpr std::size_t size = 32 << 20, read = 1 << 20;  // less than what a thread lets go of
  const auto resident = [] {                              // bytes of mappings for reading
    std::ifstream maps{"/proc/self/smaps"};
    std::size_t kib = 0;
    bool is_view = false;
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:elrun") != std::string::npos) is_view = line.find(" r--s ") != std::string::npos;
      else if (is_view && line.starts_with("Rss:")) kib += std::stoull(line.substr(4)), is_view = false;
    }
    return kib << 10;
  };
  const bool reader_shares_first = GENERATE(false, true);  // then it has taken what it was shown before it reads
  CAPTURE(reader_shares_first);
  Pair pair;
  const SharedBuffer buffer = SharedBuffer::make(Bytes{size}).value(), own = SharedBuffer::make(64_KiB).value();
  REQUIRE(pair.lanes[0]->share(buffer).ok());
  if (reader_shares_first) REQUIRE(pair.lanes[1]->share(own).ok());
  const std::size_t before = resident();
  std::vector<std::byte> got(read);
  auto sent = std::async(std::launch::async, [&] { return pair.send(0, buffer.bytes().first(read)); });
  REQUIRE(pair.receive(1, got).ok());
  REQUIRE(sent.get().ok());
  CHECK(resident() >= before + read);  // in place
  CHECK(resident() < before + 4 * read);
}

TEST_CASE("a rank waits for the readers of its shared buffer; what it withdrew is nobody's result", "[shared_memory]") {
  Pair pair;
  const SharedBuffer buffer = SharedBuffer::make(1_MiB).value();
  REQUIRE(pair.lanes[0]->share(buffer).ok());
  std::vector<std::byte> got(1 << 20);
  std::ranges::fill(buffer.bytes(), std::byte{3});
  SECTION("a send") {
    const auto late = pair.send(0, buffer.bytes(), 30ms);
    CHECK(late.failure().code == Code::deadline_passed);
    CHECK_THAT(late.failure().what, Catch::Contains("missing: rank 1"));
    const auto withdrawn = pair.receive(1, got);
    CHECK(withdrawn.failure().code == Code::peer_lost);
    CHECK(withdrawn.failure().peer == Rank{0});
  }
  SECTION("a reduction") {
    CHECK(
        pair.lanes[0]->reduce(buffer.bytes().data(), buffer.bytes().data(), 1 << 20, DType::u8, ReduceOp::sum, true, 30ms).failure().code ==
        Code::deadline_passed);
    const SharedBuffer other = SharedBuffer::make(1_MiB).value();
    if (GENERATE(false, true)) REQUIRE(pair.lanes[1]->share(other).ok());  // whether all have shared buffers, or one
    CHECK(pair.lanes[1]->reduce(other.bytes().data(), other.bytes().data(), 1 << 20, DType::u8, ReduceOp::sum, true, 60s).failure().code ==
          Code::peer_lost);
  }
  SECTION("with a reader it is over") {
    auto sent = std::async(std::launch::async, [&] { return pair.send(0, buffer.bytes()); });
    CHECK(pair.receive(1, got).ok());
    CHECK(sent.get().ok());
    CHECK(std::ranges::equal(got, buffer.bytes()));
  }
  SECTION("one that is gone is not waited for") {
    pair.lanes[0]->lose(Rank{1});
    CHECK(pair.send(0, buffer.bytes(), 600s).failure().code == Code::peer_lost);
  }
}

TEST_CASE("a rank whose generation is over posts no result: its peers may have reused what it folded", "[shared_memory]") {
  Pair pair;
  std::array<std::vector<std::byte>, 2> data{std::vector<std::byte>(1000, std::byte{3}), std::vector<std::byte>(1000, std::byte{4})};
  const auto reduce = [&](std::uint32_t rank, Duration limit) {
    return pair.lanes[rank]->reduce(data[rank].data(), data[rank].data(), data[rank].size(), DType::u8, ReduceOp::sum, true, limit);
  };
  const auto offer = pair.lanes[1]->offer(Rank{0});
  const SharedMemory region = SharedMemory::view(copy_of(offer.region), offer.size).value();
  const auto* const lane = reinterpret_cast<const Lane*>(lane_at(region.data(), 0));
  CHECK(reduce(0, 30ms).failure().code == Code::deadline_passed);  // what rank 1 is to fold is there
  pair.lanes[1]->end();
  CHECK(reduce(1, 60s).failure().code == Code::generation_over);
  CHECK(lane->posted.load() == 1);  // what rank 0 is to fold
}

TEST_CASE("memory that lies where a shared buffer was is not taken for it", "[shared_memory]") {
  Pair pair;
  std::byte* place = nullptr;
  {
    const SharedBuffer buffer = SharedBuffer::make(1_MiB).value();
    REQUIRE(pair.lanes[0]->share(buffer).ok());
    place = buffer.bytes().data();
  }
  void* const again = ::mmap(place, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (again != place) return;  // somebody else was quicker
  std::memset(again, 7, 1 << 20);
  std::vector<std::byte> got(1 << 20);
  auto sent = std::async(std::launch::async, [&] { return pair.send(0, {place, got.size()}); });
  CHECK(pair.receive(1, got).ok());
  CHECK(sent.get().ok());
  CHECK(std::ranges::all_of(got, [](std::byte b) { return b == std::byte{7}; }));
  ::munmap(again, 1 << 20);
}

TEST_CASE("a buffer that was not shown, or is none, is no memory to read", "[shared_memory]") {
  const std::vector<Rank> both{Rank{0}, Rank{1}};
  std::array<std::unique_ptr<Lanes>, 2> lanes;
  for (std::uint32_t r = 0; r < 2; ++r) lanes[r] = Lanes::make({{1, {{5, 6}}}, Rank{r}, WorldSize{2}}, both).value();
  auto [here, there] = connected();  // in place of the socket by which rank 0 shows its buffers
  for (std::uint32_t r = 0; r < 2; ++r) {
    const auto offer = lanes[1 - r]->offer(Rank{r});
    REQUIRE(lanes[r]
                ->attach(Rank{1 - r}, copy_of(offer.region), offer.size, copy_of(offer.doorbell),
                         r == 0 ? copy_of(offer.post) : std::move(there))
                .ok());
  }
  const SharedBuffer buffer = SharedBuffer::make(1_MiB).value();
  REQUIRE(lanes[0]->share(buffer).ok());
  const SharedMemory small = SharedMemory::make(64_KiB).value();
  const Fd loose{::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  REQUIRE(::ftruncate(loose.get(), 1 << 20) == 0);
  const auto show = [&](std::uint64_t number, std::uint64_t size, int file) {
    const std::array words{number, size};
    REQUIRE(send_with(here.get(), std::as_bytes(std::span{words}), std::array{file}).ok());
  };
  SECTION("nothing came") {}
  SECTION("another number") { show(2, small.size(), small.file()); }
  SECTION("a smaller one than what is read of it") { show(1, small.size(), small.file()); }
  SECTION("another size than was said") { show(1, 1 << 20, small.file()); }
  SECTION("one that can be cut under its reader") { show(1, 1 << 20, loose.get()); }
  std::vector<SendList> sends(2), nothing(2);
  std::vector<ReceiveList> none(2), receives(2);
  std::vector<std::byte> got(1 << 20);
  sends[1].push_back(buffer.bytes());
  receives[0].push_back(got);
  CHECK(lanes[0]->transfer(sends, none, {}, 30ms).failure().code == Code::deadline_passed);
  const auto refused = lanes[1]->transfer(nothing, receives, {}, 60s);
  CHECK(refused.failure().code == Code::protocol);
  CHECK(refused.failure().peer == Rank{0});
}

TEST_CASE("a rank without a free descriptor says so, and blames no peer", "[shared_memory]") {
  Pair pair;
  const SharedBuffer buffer = SharedBuffer::make(1_MiB).value();
  REQUIRE(pair.lanes[0]->share(buffer).ok());
  CHECK(pair.send(0, buffer.bytes(), 30ms).failure().code == Code::deadline_passed);  // it posted
  std::vector<std::byte> got(1 << 20);
  rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(copy_of(0).get()), .rlim_max = usual.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto failed = pair.receive(1, got);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  REQUIRE(!failed.ok());
  CHECK(failed.failure().code == Code::exhausted);
  CHECK(failed.failure().peer == std::nullopt);
  CHECK_THAT(failed.failure().what, Catch::Contains("no descriptor free") && Catch::Contains("ulimit -n"));
}

TEST_CASE("a rank that shares with its last descriptor, or with none, loses no buffer of its peer", "[shared_memory]") {
  Pair pair;
  const SharedBuffer buffer = SharedBuffer::make(1_MiB).value(), another = SharedBuffer::make(1_MiB).value();
  REQUIRE(pair.lanes[0]->share(buffer).ok());
  rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const bool has_one = GENERATE(true, false);
  const rlimit few{.rlim_cur = static_cast<rlim_t>(copy_of(0).get() + (has_one ? 1 : 0)), .rlim_max = usual.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  const auto shared = pair.lanes[1]->share(another);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  CHECK(shared.ok() == has_one);
  auto sent = std::async(std::launch::async, [&] { return pair.send(0, buffer.bytes()); });
  std::vector<std::byte> got(1 << 20);
  const auto received = pair.receive(1, got);
  pair.lanes[0]->lose(Rank{1});
  CHECK(sent.get().ok());
  CHECK(received.ok());
}

TEST_CASE("a call that an exception leaves half way fails, and what peers could read in place is withdrawn", "[shared_memory]") {
  Pair pair;
  const SharedBuffer buffer = SharedBuffer::make(1_MiB).value();
  REQUIRE(pair.lanes[0]->share(buffer).ok());
  const auto offer = pair.lanes[1]->offer(Rank{0});
  const SharedMemory region = SharedMemory::view(copy_of(offer.region), offer.size).value();
  const auto* const header = reinterpret_cast<const RegionHeader*>(region.data());
  auto sent = std::async(std::launch::async, [&] { return pair.send(0, buffer.bytes()); });
  std::vector<std::byte> got(1 << 20);
  no_memory_to_take = true;
  const auto failed = pair.receive(1, got);
  no_memory_to_take = false;
  pair.lanes[0]->end();
  (void)sent.get();
  REQUIRE(!failed.ok());
  CHECK(failed.failure().code == Code::exhausted);
  CHECK_THAT(failed.failure().what, Catch::Contains("bad_alloc"));
  CHECK(header->withdrawn.load() == 1);
}

TEST_CASE("a buffer that is gone before its peer looks costs no memory", "[shared_memory]") {
  Pair pair;
  auto [here, there] = connected();  // in place of the socket by which rank 0 shows its buffers
  pair.lanes[1] = Lanes::make({{1, {{5, 6}}}, Rank{1}, WorldSize{2}}, {Rank{0}, Rank{1}}).value();
  pair.lanes[0] = Lanes::make({{1, {{5, 6}}}, Rank{0}, WorldSize{2}}, {Rank{0}, Rank{1}}).value();
  pair.attach(0, copy_of(pair.lanes[1]->offer(Rank{0}).post));
  pair.attach(1, std::move(there));
  SharedMemory gone = SharedMemory::make_returnable(1_MiB).value();
  const SharedMemory used = SharedMemory::make_returnable(1_MiB).value();
  gone.give_back();
  const auto show = [&](std::uint64_t number, const SharedMemory& memory) {
    const std::array<std::uint64_t, 2> words{number, memory.size()};
    const Fd file = memory.for_reading().value();
    REQUIRE(send_with(here.get(), std::as_bytes(std::span{words}), std::array{file.get()}).ok());
  };
  show(7, gone);
  show(1, used);
  std::memset(used.data(), 5, used.size());
  const SharedBuffer buffer = SharedBuffer::make(1_MiB).value();
  REQUIRE(pair.lanes[0]->share(buffer).ok());
  std::vector<std::byte> got(1 << 20);
  auto sent = std::async(std::launch::async, [&] { return pair.send(0, buffer.bytes()); });
  CHECK(pair.receive(1, got).ok());
  CHECK(sent.get().ok());
  CHECK(std::ranges::all_of(got, [](std::byte b) { return b == std::byte{5}; }));
  struct stat status {};
  REQUIRE(::fstat(gone.file(), &status) == 0);
  CHECK(status.st_blocks == 0);
}

TEST_CASE("a peer that takes no notice is shown a bounded number of buffers", "[shared_memory]") {
  Pair pair;
  std::vector<SharedBuffer> buffers;
  Result<void> shared;
  while (shared.ok() && buffers.size() < 2000) {
    buffers.push_back(SharedBuffer::make(4_KiB).value());
    shared = pair.lanes[0]->share(buffers.back());
    if (shared.ok()) CHECK(pair.lanes[0]->share(buffers.back()).ok());  // is no other buffer
  }
  CHECK(shared.failure().code == Code::exhausted);
  CHECK(buffers.size() > 16);
}
