// Two connections of one thread that send each other frames, without the group around them.

#include "lib/comm/tcp/frame_connection.hpp"

#include <sys/socket.h>

#include <vector>

#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>

#include "tests/support/catch.hpp"

using namespace elrun;
namespace asio = boost::asio;

namespace {

constexpr Generation now{7, {{1, 2}}}, earlier{6, {{1, 2}}};

/// One end, and what it reports.
struct End {
  End(asio::io_context& loop, int socket, std::uint32_t me, const Generation& generation, bool carries)
      : connection{Rank{1 - me}, {generation, Rank{me}, WorldSize{2}}, adopt(loop, Fd{socket}, AF_UNIX), carries, true, sides, events} {
    connection.start();
  }
  /// A call of its own, with this function's hold on it, as FrameTransport has one.
  void begin(SendList out, ReceiveList in, std::uint16_t label = 0) {
    sends = std::move(out), receives = std::move(in);  // borrowed until the call is over
    done = false;
    sides.open = 1;
    connection.begin(sends, receives, {label});
    sides.close();
  }
  SendList sends;
  ReceiveList receives;
  bool done = false, ended = false, missed = false;
  std::optional<Failure> failure;
  CallSides sides{.done = [this] { done = true; }};
  const FrameEvents events{
      .ended = [this](Rank, const boost::system::error_code&) { ended = true; },
      .missed = [this](Rank) { missed = true; },
      .differed = [this](Rank peer, std::uint16_t theirs, std::uint16_t mine) { failure = differing_labels(peer, theirs, {mine}); },
      .failed = [this](Failure why) { failure = std::move(why); }};
  FrameConnection connection;
};

struct Pair {
  explicit Pair(const Generation& of_zero = now, bool one_carries = true) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    zero.emplace(loop, ends[0], 0, of_zero, true);
    one.emplace(loop, ends[1], 1, now, one_carries);
  }
  /// Until nothing more can happen at once.
  void run() {
    loop.restart();
    while (loop.poll() > 0) {
    }
  }
  asio::io_context loop;
  std::optional<End> zero, one;
};

std::vector<std::byte> some(std::size_t size, int first) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(first + static_cast<int>(i % 251));
  return bytes;
}

}  // namespace

TEST_CASE("both directions of a call arrive, whatever its length and its pieces", "[frames]") {
  const std::size_t size = GENERATE(1u, 100'000u, 2'000'003u);  // in one frame and in several
  Pair pair;
  const auto there = some(size, 1), back = some(size, 2);
  std::vector<std::byte> got_there(size), got_back(size);
  const std::span<const std::byte> all{there};
  const std::span<std::byte> into{got_there};
  pair.zero->begin({all.first(size / 3), all.subspan(size / 3)}, {got_back});
  pair.one->begin({back}, {into.first(size / 2), into.subspan(size / 2)});
  pair.run();
  CHECK(pair.zero->done);
  CHECK(pair.one->done);
  CHECK((got_there == there));
  CHECK((got_back == back));
  CHECK_FALSE(pair.zero->connection.is_busy());
}

TEST_CASE("a frame whose call this rank has not begun waits, and the sender is busy no longer than its socket takes it", "[frames]") {
  Pair pair;
  const auto data = some(1000, 3);
  std::vector<std::byte> got(1000);
  pair.zero->begin({data}, {});
  pair.run();
  CHECK(pair.zero->done);
  CHECK_FALSE(pair.one->connection.is_busy());
  CHECK_FALSE(pair.one->failure);
  pair.one->begin({}, {got});
  pair.run();
  CHECK(pair.one->done);
  CHECK((got == data));
}

TEST_CASE("other lengths, labels and calls fail, and say so", "[frames]") {
  Pair pair;
  const auto data = some(1000, 4);
  std::vector<std::byte> got(1000);
  SECTION("another length") {
    pair.zero->begin({std::span{data}.first(999)}, {});
    pair.one->begin({}, {got});
    pair.run();
    REQUIRE(pair.one->failure);
    CHECK(pair.one->failure->code == Code::protocol);
    CHECK_THAT(pair.one->failure->what, Catch::Contains("rank 0 sent 999 bytes") && Catch::Contains("1000 bytes belong"));
  }
  SECTION("another label") {
    pair.zero->begin({data}, {}, 5);
    pair.one->begin({}, {got}, 6);
    pair.run();
    REQUIRE(pair.one->failure);
    CHECK(pair.one->failure->code == Code::mismatch);
  }
  SECTION("bytes in a call in which none belong") {
    pair.zero->begin({data}, {});
    pair.one->begin({}, {});
    pair.run();
    REQUIRE(pair.one->failure);
    CHECK(pair.one->failure->code == Code::protocol);
  }
  CHECK(pair.one->failure->peer == Rank{0});
}

TEST_CASE("a frame of another generation is refused", "[frames]") {
  Pair pair{earlier};
  const auto data = some(10, 5);
  pair.zero->begin({data}, {});
  pair.run();
  REQUIRE(pair.one->failure);
  CHECK(pair.one->failure->code == Code::refused);
}

TEST_CASE("a frame on a connection whose bytes go through memory is an error", "[frames]") {
  Pair pair{now, false};
  const auto data = some(10, 6);
  pair.zero->begin({data}, {});
  pair.run();
  REQUIRE(pair.one->failure);
  CHECK(pair.one->failure->code == Code::protocol);
  CHECK_THAT(pair.one->failure->what, Catch::Contains("through memory"));
}

TEST_CASE("the end of a connection is told once it is seen, and is fatal only to calls that need the peer", "[frames]") {
  Pair pair;
  std::vector<std::byte> got(10);
  pair.zero->connection.close();
  pair.run();
  CHECK(pair.one->ended);
  CHECK(pair.one->connection.has_ended());
  pair.one->begin({}, {});
  CHECK(pair.one->done);
  CHECK_FALSE(pair.one->missed);
  pair.one->begin({}, {got});
  CHECK_FALSE(pair.one->done);
  CHECK(pair.one->missed);
  CHECK(pair.one->connection.is_busy());
}

TEST_CASE("a closed connection reports nothing and touches no buffer", "[frames]") {
  Pair pair;
  const auto data = some(1000, 7);
  std::vector<std::byte> got(1000);
  pair.one->begin({}, {got});
  pair.one->connection.close();
  pair.zero->begin({data}, {});
  pair.run();
  CHECK_FALSE(pair.one->done);
  CHECK_FALSE(pair.one->ended);
  CHECK_FALSE(pair.one->failure);
  CHECK((got == std::vector<std::byte>(1000)));
  CHECK(pair.zero->ended);
}
