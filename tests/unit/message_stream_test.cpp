// When a connection counts as silent.

#include "lib/link/message_stream.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include "lib/base/clock.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;

namespace {

/// One end of a connection, and the raw bytes of the other, which come in slices. All on one loop.
class SlowPeer {
 public:
  explicit SlowPeer(MessageStream::Limits limits) {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
    other_.emplace(adopt(loop_, Fd{ends[1]}, AF_UNIX));
    stream_ = std::make_shared<MessageStream>(
        adopt(loop_, Fd{ends[0]}, AF_UNIX), limits,
        MessageStream::Handler{[this](const Message& message) { heard.push_back(message); }, [this](const Failure& why) { closed = why; }});
    stream_->start();
  }
  ~SlowPeer() { stream_->drop(); }

  /// Sends the message in so many slices, with this pause after each.
  void say(const Message& message, std::size_t slices, Duration pause) {
    bytes_ = encode(message);
    const std::size_t size = (bytes_.size() + slices - 1) / slices;
    for (std::size_t at = 0; at < bytes_.size() && !closed; at += size) {
      bool written = false;
      boost::asio::async_write(*other_, boost::asio::buffer(bytes_.data() + at, std::min(size, bytes_.size() - at)),
                               [&](const auto&, std::size_t) { written = true; });
      stay(pause);
      while (!written) stay(pause);
    }
  }
  void stay(Duration pause) {
    const Instant begun = clock_.now();
    loop_.restart();
    loop_.run_for(pause);
    longest_stay = std::max(longest_stay, clock_.now() - begun);
  }

  std::vector<Message> heard;
  std::optional<Failure> closed;
  Duration longest_stay{};  // more than the pause where the system did not run this thread, which writes and listens

 private:
  SteadyClock clock_;
  boost::asio::io_context loop_;
  std::optional<StreamSocket> other_;
  std::shared_ptr<MessageStream> stream_;
  ByteVector bytes_;
};

constexpr Duration silence = 2s, between = 100ms;
constexpr std::size_t slices = 30;  // together longer than the silence

}  // namespace

TEST_CASE("an end from which a large message comes slowly is not silent, and one from which nothing comes is", "[link]") {
  std::optional<SlowPeer> met;
  for (int tries = 0; tries < 20; ++tries) {
    SlowPeer& peer = met.emplace(MessageStream::Limits{.silence = silence});
    peer.say(Alive{}, 1, between);
    peer.say(StoreReply{.values = {ByteVector(1 << 20)}}, slices, between);
    if (peer.longest_stay < silence / 2) break;  // else it may have been silent
  }
  SlowPeer& peer = *met;
  CHECK_FALSE(peer.closed);
  REQUIRE(peer.heard.size() == 2);
  CHECK(std::holds_alternative<StoreReply>(peer.heard[1]));
  for (int i = 0; i < 300 && !peer.closed; ++i) peer.stay(between);
  REQUIRE(peer.closed);
  CHECK_THAT(peer.closed->what, Catch::Contains("nothing was heard for 2000 ms"));
}

TEST_CASE("the first message comes whole within its time", "[link]") {
  SlowPeer peer{{.first_message = silence, .silence = silence}};
  peer.say(StoreReply{.values = {ByteVector(1 << 20)}}, slices, between);
  CHECK(peer.closed);
  CHECK(peer.heard.empty());
}
