// The parts of LaneSet, each by itself: a peer's region, the slots, the wait, the doorbell, the copy. No peer runs: the test writes its words.

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <fstream>
#include <functional>
#include <future>
#include <new>
#include <string>
#include <thread>

#include "lib/base/pass_descriptors.hpp"
#include "lib/comm/copy.hpp"
#include "lib/comm/shm/buffer_registry.hpp"
#include "lib/comm/shm/doorbell.hpp"
#include "lib/comm/shm/lane_wait.hpp"
#include "lib/comm/shm/peer_lane.hpp"
#include "lib/comm/shm/peer_region.hpp"
#include "lib/comm/shm/slot_pool.hpp"
#include "lib/comm/shm/unmap_delay.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using Catch::Matchers::Contains;

namespace {

constexpr Generation generation{7, {{1, 2}}};
constexpr Membership me{generation, Rank{0}, WorldSize{3}};
constexpr std::size_t local = 2;  // ranks 0 and 1 are on one host

Fd copy_of(int file) { return Fd{::fcntl(file, F_DUPFD_CLOEXEC, 0)}; }

/// The region of rank 1, as that rank would have made it, and its doorbell.
struct TestPeer {
  SharedMemory region = SharedMemory::make(Bytes{slots_offset(local) + 8 * page}).value();
  Doorbell doorbell = Doorbell::make().value();
  RegionHeader& header = *new (region.data()) RegionHeader{};

  TestPeer() {
    header.magic = region_magic;
    header.size = region.size();
    header.generation = generation.number;
    header.lineage = generation.lineage.bits;
    header.rank = 1, header.world = 3, header.local = local;
    for (std::size_t i = 0; i < local; ++i) new (lane_at(region.data(), i)) Lane{};
  }
  /// Its lane for rank 0.
  [[nodiscard]] Lane& lane() { return *lane_at(region.data(), 0); }
  [[nodiscard]] Result<void> attach(PeerRegion& to) const {
    return to.attach({.owner = {generation, Rank{1}, me.world}, .local = local, .reader = 0}, copy_of(region.file()), Bytes{region.size()},
                     copy_of(doorbell.file()));
  }
  /// Whether somebody has rung since this was asked last.
  [[nodiscard]] bool was_rung() const {
    pollfd rung{doorbell.file(), POLLIN, 0};
    if (::poll(&rung, 1, 0) != 1) return false;
    doorbell.wait(60s);  // takes note of it
    return true;
  }
};

/// Rank 0's lanes with that peer.
struct Bench {
  TestPeer peer;
  SharedMemory region = SharedMemory::make(Bytes{slots_offset(local) + 8 * page}).value();
  RegionHeader& header = *new (region.data()) RegionHeader{};
  PeerLane lane;
  std::array<PeerLane*, 1> peers{&lane};

  Bench() {
    for (std::size_t i = 0; i < local; ++i) new (lane_at(region.data(), i)) Lane{};
    lane.place(Rank{1}, lane_at(region.data(), 1));
    const int post = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    REQUIRE(
        lane.attach(me, 0, local, copy_of(peer.region.file()), Bytes{peer.region.size()}, copy_of(peer.doorbell.file()), Fd{post}).ok());
    lane.begin_call(0);
  }
  [[nodiscard]] Lane& mine() { return *lane_at(region.data(), 1); }
};

const auto needed = [](const PeerLane&) { return true; };
const auto not_needed = [](const PeerLane&) { return false; };

}  // namespace

TEST_CASE("a peer's region is attached when it is that rank's, of this generation and world", "[shared_memory]") {
  TestPeer peer;
  PeerRegion region;
  const auto refused = [&](Code code) {
    const auto attached = peer.attach(region);
    REQUIRE_FALSE(attached.ok());
    CHECK(attached.failure().code == code);
    CHECK_FALSE(region.is_attached());
  };
  SECTION("as it is") {
    REQUIRE(peer.attach(region).ok());
    CHECK(region.is_attached());
    CHECK(region.memory().size() == peer.region.size());
    peer.lane().posted.store(5);
    CHECK(region.lane().posted.load() == 5);
    CHECK(peer.attach(region).failure().code == Code::protocol);  // once
  }
  SECTION("another magic") { peer.header.magic += 1, refused(Code::protocol); }
  SECTION("another size") { peer.header.size += 1, refused(Code::protocol); }
  SECTION("another rank") { peer.header.rank = 2, refused(Code::protocol); }
  SECTION("another world") { peer.header.world = 4, refused(Code::protocol); }
  SECTION("another number of ranks on the host") { peer.header.local = 3, refused(Code::protocol); }
  SECTION("another generation") { peer.header.generation = 6, refused(Code::refused); }
  SECTION("another lineage") { peer.header.lineage[1] = 3, refused(Code::refused); }
  SECTION("without room for lanes") {
    peer.region = SharedMemory::make(Bytes{slots_offset(local) - page}).value();
    CHECK_THAT(peer.attach(region).failure().what, Contains("without room for its lanes"));
    refused(Code::protocol);
  }
  SECTION("without a doorbell") {
    peer.doorbell = Doorbell{Fd{}};
    refused(Code::protocol);
  }
}

TEST_CASE("a peer is woken only while it sleeps, and what it withdrew is seen", "[shared_memory]") {
  TestPeer peer;
  PeerRegion region;
  REQUIRE(peer.attach(region).ok());
  region.wake();
  CHECK_FALSE(peer.was_rung());
  peer.header.asleep.store(1);
  region.wake();
  CHECK(peer.was_rung());
  CHECK_FALSE(region.is_withdrawn());
  peer.header.withdrawn.store(1);
  CHECK(region.is_withdrawn());
}

TEST_CASE("a slot is free once all its readers have taken it, or are lost", "[shared_memory]") {
  Bench bench;
  SlotPool slots{bench.region.data(), slots_offset(local), page, 3, 1};
  CHECK(slots.size() == 3);
  CHECK(slots.slot_size() == page);
  RegionSlot* const first = slots.free();
  REQUIRE(first != nullptr);
  CHECK(first->begin == bench.region.data() + slots_offset(local));
  slots.post(*first, 100, 300, {}, bench.peers);
  CHECK(bench.mine().posted.load() == 1);
  CHECK(bench.mine().chunks[0].offset == slots_offset(local));
  CHECK(bench.mine().chunks[0].length == 100);
  CHECK(bench.mine().chunks[0].total == 300);
  RegionSlot* const second = slots.free();
  CHECK(second->begin == first->begin + page);
  slots.post(*second, 100, 300, {}, bench.peers);
  slots.post(*slots.free(), 100, 300, {}, bench.peers);
  CHECK(slots.free() == nullptr);
  SECTION("in the order in which they were posted") {
    bench.peer.lane().taken.store(1);
    CHECK(slots.free() == first);
    slots.post(*first, 100, 300, {}, bench.peers);
    CHECK(slots.free() == nullptr);
    CHECK(first->readers.size() == 1);  // those of now
    bench.peer.lane().taken.store(2);
    CHECK(slots.free() == second);
    bench.peer.lane().taken.store(4);
    CHECK(slots.free() == first);
  }
  SECTION("a reader that is gone takes nothing any more") {
    bench.lane.lose();
    CHECK(slots.free() == first);
  }
}

TEST_CASE("a wait ends with what it is for, or with the reason why that will not come", "[shared_memory]") {
  Bench bench;
  const bool crowded = GENERATE(false, true);  // more ranks than cores
  LaneWait waiting{bench.header, Doorbell::make().value(), crowded ? 1'000'000u : 1u};
  const CallLimit late = waiting.begin(60s), soon = waiting.begin(20ms);
  const auto never = [] { return false; };
  const auto now = [] { return true; };
  SECTION("ready at once") { CHECK(waiting.until(now, needed, bench.peers, soon).ok()); }
  SECTION("ready when it is woken, which it says in its region that it needs") {
    std::atomic<bool> ready{false};
    auto waits = std::async(std::launch::async, [&] { return waiting.until([&] { return ready.load(); }, needed, bench.peers, late); });
    while (bench.header.asleep.load() == 0) std::this_thread::yield();
    ready.store(true);
    waiting.doorbell().ring();
    CHECK(waits.get().ok());
    CHECK(bench.header.asleep.load() == 0);
  }
  SECTION("a peer that is needed was lost") {
    bench.lane.lose();
    const auto failure = waiting.until(never, needed, bench.peers, late).failure();
    CHECK(failure.code == Code::peer_lost);
    CHECK(failure.peer == Rank{1});
  }
  SECTION("a peer that is not needed was lost") {
    bench.lane.lose();
    CHECK(waiting.until(never, not_needed, bench.peers, soon).failure().code == Code::deadline_passed);
  }
  SECTION("what a lost peer posted before counts") {
    bench.lane.lose();
    int looks = 0;
    CHECK(waiting.until([&] { return ++looks > 1'000'000 || bench.header.asleep.load() != 0; }, needed, bench.peers, late).ok());
  }
  SECTION("the generation is over, also for later waits") {
    auto waits = std::async(std::launch::async, [&] { return waiting.until(never, needed, bench.peers, late); });
    while (bench.header.asleep.load() == 0) std::this_thread::yield();
    waiting.end();
    CHECK(waits.wait_for(std::chrono::seconds{20}) == std::future_status::ready);  // nobody sleeps on until the deadline
    CHECK(waits.get().failure().code == Code::generation_over);
    CHECK(waiting.is_over());
    CHECK(waiting.until(never, needed, bench.peers, late).failure().code == Code::generation_over);
    CHECK(waiting.until(now, needed, bench.peers, late).ok());
  }
  SECTION("the time is over: those that are needed are named") {
    PeerLane other;
    other.place(Rank{0}, nullptr);
    const std::array<PeerLane*, 2> both{&bench.lane, &other};
    const auto failure = waiting.until(never, needed, both, soon).failure();
    CHECK(failure.code == Code::deadline_passed);
    CHECK(failure.peer == Rank{0});
    CHECK_THAT(failure.what, Contains("within 20 ms") && Contains("missing: ranks 0, 1"));
    const auto one = waiting
                         .until(
                             never, [&](const PeerLane& peer) { return &peer == &bench.lane; }, both, soon)
                         .failure();
    CHECK_THAT(one.what, Contains("missing: rank 1"));
  }
}

TEST_CASE("a buffer that came and was lost for want of a descriptor is not its owner's mistake later", "[shared_memory]") {
  const SharedMemory memory = SharedMemory::make_returnable(1_MiB).value();
  const Fd file = memory.for_reading().value();
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const Fd here{ends[0]};
  PeerBuffers buffers{Rank{1}, Fd{ends[1]}};
  const std::array<std::uint64_t, 2> words{1, memory.size()};
  REQUIRE(send_with(here.get(), std::as_bytes(std::span{words}), std::array{file.get()}).ok());
  rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(copy_of(0).get()), .rlim_max = usual.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto lost = buffers.find(1);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
  CHECK(lost.failure().code == Code::exhausted);
  const auto missed = buffers.find(1);
  CHECK(missed.failure().code == Code::exhausted);
  CHECK(missed.failure().peer == std::nullopt);
}

TEST_CASE("what peers showed is kept for a while after their group, if twice as much memory is left", "[shared_memory]") {
  CHECK(delay_before_unmapping(1_GiB, 2ull << 30) == unmap_delay);
  CHECK(delay_before_unmapping(1_GiB, (2ull << 30) - 1) == 0ms);
  CHECK(delay_before_unmapping(1_GiB, 0) == 0ms);
  CHECK(delay_before_unmapping(Bytes{~std::uint64_t{0}}, 1ull << 40) == 0ms);  // what peers say has no bound
  CHECK(delay_before_unmapping(1_GiB, ~std::uint64_t{0}) == unmap_delay);      // where the system does not say what is left
}

TEST_CASE("of a lane that is closed the peer's buffers stay, and no child has them", "[shared_memory]") {
  std::array<int, 2> shows{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, shows.data()) == 0);
  const Fd theirs{shows[0]};
  TestPeer peer;
  PeerLane lane;
  lane.place(Rank{1}, nullptr);
  REQUIRE(lane.open_post().ok());
  const Fd my_end = copy_of(lane.its_post());
  REQUIRE(
      lane.attach(me, 0, local, copy_of(peer.region.file()), Bytes{peer.region.size()}, copy_of(peer.doorbell.file()), Fd{shows[1]}).ok());
  SharedMemory buffer = SharedMemory::make_returnable(1_MiB).value();
  const std::array<std::uint64_t, 2> words{1, buffer.size()};
  REQUIRE(send_with(theirs.get(), std::as_bytes(std::span{words}), std::array{buffer.for_reading().value().get()}).ok());
  lane.take_shown();
  CHECK(lane.mapped() == 1_MiB);
  const auto flags = [] {  // of each view of such a buffer, as /proc tells them: "dc" is for no child
    std::ifstream maps{"/proc/self/smaps"};
    std::vector<std::string> found;
    bool is_view = false;
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:elrun") != std::string::npos) is_view = line.find(" r--s ") != std::string::npos;
      else if (is_view && line.starts_with("VmFlags:")) found.push_back(line + ' '), is_view = false;
    }
    return found;
  };
  CHECK(flags().size() == 2);  // the region, and the buffer
  lane.close();
  const auto left = flags();
  REQUIRE(left.size() == 1);
  CHECK_THAT(left.front(), Contains(" dc "));
  CHECK(lane.mapped() == 1_MiB);
  for (const int end : {theirs.get(), my_end.get()}) {
    pollfd hung_up{end, POLLIN, 0};
    CHECK(::poll(&hung_up, 1, 0) == 1);
    CHECK((hung_up.revents & POLLHUP) != 0);
  }
}

TEST_CASE("lists are copied over each other piece by piece", "[shared_memory]") {
  std::vector<std::byte> bytes(100);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i);
  const std::span<std::byte> all{bytes};
  const std::vector<std::byte> before = bytes;
  copy_lists({all.first(30), all.subspan(30, 20)}, {all.subspan(10, 25), all.subspan(60, 25)});
  CHECK(std::ranges::equal(all.subspan(10, 25), std::span{before}.first(25)));
  CHECK(std::ranges::equal(all.subspan(35, 25), std::span{before}.subspan(35, 25)));
}

TEST_CASE("a doorbell that was rung before the wait ends the wait", "[shared_memory]") {
  const Doorbell mine = Doorbell::make().value();
  const Doorbell theirs{Fd{::fcntl(mine.file(), F_DUPFD_CLOEXEC, 0)}};
  theirs.ring();
  theirs.ring();
  mine.wait(60s);
  const SteadyClock clock;
  const Instant before = clock.now();
  mine.wait(20ms);  // both rings were heard
  CHECK(clock.now() - before >= 20ms);
  auto rung = std::async(std::launch::async, [&] { theirs.ring(); });
  mine.wait(60s);
  CHECK(clock.now() - before < 60s);
}

TEST_CASE("a copy past the caches writes its bytes and no others", "[shared_memory]") {
  test::for_all_seeds(300, [](Rng& rng) {
    const std::size_t size = rng.chance(0.3) ? rng.below(200) : rng.below(20'000), from = rng.below(130), to = rng.below(130);
    std::vector<std::byte> source(from + size), target(to + size + 130, std::byte{1});
    for (std::byte& b : source) b = std::byte(rng.next());
    std::vector<std::byte> wanted = target;
    std::copy(source.begin() + static_cast<std::ptrdiff_t>(from), source.end(), wanted.begin() + static_cast<std::ptrdiff_t>(to));
    copy_streaming(target.data() + to, source.data() + from, size);
    CHECK(target == wanted);
  });
}
