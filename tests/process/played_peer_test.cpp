// What a rank makes of a peer of which the test plays each step of its connection.

#include <sys/socket.h>

#include <future>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "lib/comm/connect/address.hpp"
#include "lib/comm/connect/connector.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/local_world.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

/// One rank of a world of two. It connects as in a group; the other one is played.
class OneOfTwo {
 public:
  explicit OneOfTwo(Rank me, Transport transport = Transport::automatic, Duration handshake = 10s)
      : me_{me},
        states_{me, WorldSize{2}},
        connector_{loop,
                   {.me = local_.place(me.value()).membership,
                    .key = local_.place(me.value()).key,
                    .name = {},
                    .transport = transport,
                    .handshake = handshake,
                    .connect = 1s,
                    .deadline = within(60s)},
                   states_,
                   {.connected = [this](ConnectedPeer peer) { connected = std::move(peer); },
                    .complete = [] {},
                    .failed = [this](Failure failure) { failed = std::move(failure); }}} {}

  /// Both ranks publish where they listen. Returns what this one has published.
  RankAddress meet(const RankAddress& played) {
    auto others = std::async(std::launch::async, [&] {
      const Rank rank{1 - me_.value()};
      return local_.session(rank.value())
          .store()
          .all_gather("elrun/comm/addresses", rank, WorldSize{2}, as_bytes(encode(played)), within(60s));
    });
    lanes = connector_.publish(local_.session(me_.value())).value();
    const auto published = others.get().value();
    return decode_rank_address(me_, as_text(published[me_.value()])).value();
  }
  /// Until it is connected or has failed.
  void connect() {
    connector_.begin(lanes.get());
    while (!connected && !failed) loop.run_one();
    connector_.stop();
  }

  boost::asio::io_context loop;
  std::unique_ptr<Lanes> lanes;
  std::optional<ConnectedPeer> connected;
  std::optional<Failure> failed;

 private:
  [[nodiscard]] Deadline within(Duration wait) const { return Deadline::after(local_.clock().now(), wait); }

  LocalWorld local_{2};
  const Rank me_;
  PeerStates states_;
  Connector connector_;
};

}  // namespace

TEST_CASE("a peer that accepts connections and says nothing is said to be stopped or busy", "[connector]") {
  const Fd stopped = listen_on(resolve("127.0.0.1", 0).value().front()).value();
  OneOfTwo rank{Rank{1}, Transport::automatic, 200ms};
  (void)rank.meet({.port = local_address(stopped.get()).port(), .host = "127.0.0.1", .boot = {}, .socket = {}});
  rank.connect();
  REQUIRE(rank.failed);
  CHECK(rank.failed->code == Code::deadline_passed);
  CHECK(rank.failed->peer == Rank{0});
  CHECK_THAT(rank.failed->what, Catch::Contains("has not answered within 200 ms: its process is stopped or busy"));
}
