// What a rank makes of a peer of which the test plays each step of its connection.

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "lib/base/pass_descriptors.hpp"
#include "lib/comm/connect/address.hpp"
#include "lib/comm/connect/connector.hpp"
#include "lib/comm/connect/handshake.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/local_world.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

/// One rank of a world of two. It connects as in a group; the other one is played.
class OneOfTwo {
 public:
  explicit OneOfTwo(Rank me, Transport transport = Transport::automatic, Duration handshake = 10s, Duration connect = 1s,
                    Resolver resolver = resolve)
      : me_{me},
        states_{me, WorldSize{2}},
        connector_{loop,
                   {.me = local_.place(me.value()).membership,
                    .key = local_.place(me.value()).key,
                    .name = {},
                    .transport = transport,
                    .handshake = handshake,
                    .connect = connect,
                    .deadline = within(60s),
                    .resolver = std::move(resolver)},
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
  [[nodiscard]] const Place& place(std::uint32_t rank) { return local_.place(rank); }
  void begin() { connector_.begin(lanes.get()); }
  /// Until it is connected or has failed.
  void connect() {
    begin();
    go_on();
  }
  void go_on() {
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

/// Rank 1, played: it dials rank 0, proves the key, and then offers memory as it is told.
class PlayedDialer {
 public:
  /// Returns when both have proved the key. `answered`: when rank 0 has, and this one not yet.
  explicit PlayedDialer(const Place& place, const SocketAddress& to, const std::function<void()>& answered = {}) {
    line_ = connect_begin(to).value();
    const Introduction mine{place.membership.generation, WorldSize{2}, Rank{1}, Rank{0}, {}};
    say(encode(mine));
    const auto answer = hear<std::array<std::byte, answer_size>>();
    if (answered) answered();
    Nonce listeners{};
    std::copy_n(answer.begin(), listeners.size(), listeners.begin());
    say(proof_of(Role::dialer, place.key, mine, listeners));
  }
  /// And gives this verdict of rank 0's memory. Returns rank 0's of this one's.
  char offer(const Lanes* lanes, char verdict) {
    std::array<std::uint64_t, 2> words{0x3230'524d'454d'4c45, 0};  // as MemoryOffer has them
    std::array<Fd, 3> its;
    wait();
    if (!receive_with(line_.get(), std::as_writable_bytes(std::span{words}), its).ok()) return '-';
    words[1] = 0;
    std::array<int, 3> files{};
    if (lanes != nullptr) {
      const Lanes::Offer mine = lanes->offer(Rank{0});
      words[1] = mine.size.value();
      files = {mine.region, mine.doorbell, mine.post};
    }
    (void)send_with(line_.get(), std::as_bytes(std::span{words}), std::span{files}.first(lanes != nullptr ? 3 : 0));
    say(verdict);
    return hear<char>();
  }

 private:
  void wait() const {
    pollfd ready{line_.get(), POLLIN, 0};
    (void)::poll(&ready, 1, 20'000);
  }
  template <class T>
  void say(const T& words) const {
    (void)::send(line_.get(), &words, sizeof words, MSG_NOSIGNAL);
  }
  template <class T>
  [[nodiscard]] T hear() const {
    T words{};
    wait();
    (void)::recv(line_.get(), &words, sizeof words, MSG_WAITALL);
    return words;
  }

  Fd line_;
};

/// While it lives this process has few descriptors, so that a rank has few places for connections that say nothing.
class FewDescriptors {
 public:
  FewDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{4 * places, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  static constexpr unsigned places = 40;  // a quarter of them, as the connector has it

 private:
  rlimit before_{};
};

/// Connections that say nothing.
class SilentOutsiders {
 public:
  void come(unsigned count, const SocketAddress& to) {
    for (unsigned i = 0; i < count; ++i) lines_.push_back(connect_begin(to).value());
  }
  /// Waits for the first that is turned away; false: none is within that time.
  [[nodiscard]] bool is_one_turned_away(std::chrono::milliseconds within) const {
    std::vector<pollfd> all;
    for (const Fd& line : lines_) all.push_back({line.get(), POLLIN | POLLRDHUP, 0});
    return ::poll(all.data(), all.size(), static_cast<int>(within.count())) > 0;
  }

 private:
  std::vector<Fd> lines_;
};

}  // namespace

TEST_CASE("a rank dials all addresses of the name that a peer has published", "[connector]") {
  const auto leads_to_two = [](const std::string& host, std::uint16_t port) {
    if (const auto literal = literal_address(host, port)) return Result{std::vector{*literal}};
    return Result{std::vector{literal_address("127.0.0.2", port).value(), literal_address("127.0.0.1", port).value()}};
  };
  OneOfTwo one{Rank{1}, Transport::automatic, 10s, 3s, leads_to_two};
  const Fd listener = listen_on(literal_address("127.0.0.1", 0).value()).value();
  (void)one.meet({local_address(listener.get()).port(), "node0", "", ""});
  one.connect();
  CHECK(one.failed);
  CHECK(accept_one(listener.get()).value().has_value());
}

TEST_CASE("a pair of which one cannot map the other's memory uses frames, or says why it may not", "[connector]") {
  const Transport transport = GENERATE(Transport::automatic, Transport::shm);
  const bool offers = GENERATE(true, false);
  OneOfTwo rank{Rank{0}, transport};
  const RankAddress at = rank.meet({.port = 1, .host = "127.0.0.1", .boot = boot_of_host(), .socket = "elrun-played"});
  if (at.socket.empty()) return;  // the system does not tell its boot id
  REQUIRE(rank.lanes != nullptr);
  auto played = std::async(std::launch::async, [&] {
    const auto lanes = Lanes::make(rank.place(1).membership, {Rank{0}, Rank{1}}).value();
    PlayedDialer dialer{rank.place(1), abstract_address(at.socket)};
    return dialer.offer(offers ? lanes.get() : nullptr, 'n');
  });
  rank.connect();
  CHECK(played.get() == (offers ? 'y' : 'n'));
  CHECK_FALSE(rank.lanes->attached(Rank{1}));  // no call looks for its bytes there
  if (transport == Transport::automatic) {
    REQUIRE(rank.connected);
    CHECK(rank.connected->transport == Transport::tcp);
  } else {
    REQUIRE(rank.failed);
    CHECK(rank.failed->code == Code::not_permitted);
    CHECK_THAT(rank.failed->what, Catch::Contains("rank 1 cannot be reached through shared memory") &&
                                      Catch::Contains(offers ? "it could not map this rank's memory" : "it offers no memory"));
  }
}

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

TEST_CASE("a rank that was stopped beyond the time of a handshake dials again, and takes no connection that it has closed", "[connector]") {
  const Fd listener = listen_on(resolve("127.0.0.1", 0).value().front()).value();
  OneOfTwo rank{Rank{1}, Transport::tcp, 100ms, 20s};
  (void)rank.meet({.port = local_address(listener.get()).port(), .host = "127.0.0.1", .boot = {}, .socket = {}});
  std::vector<Fd> lines;
  const auto answer_next = [&](const std::function<void()>& introduced) {
    pollfd dialled{listener.get(), POLLIN, 0};
    if (::poll(&dialled, 1, 20) != 1) return;
    lines.push_back(accept_one(listener.get()).value().value());
    std::array<std::byte, introduction_size> introduction{};
    for (std::size_t at = 0; at < introduction.size();) {
      pollfd said{lines.back().get(), POLLIN, 0};
      (void)::poll(&said, 1, 20'000);
      const auto part = ::recv(lines.back().get(), introduction.data() + at, introduction.size() - at, 0);
      if (part <= 0) return;
      at += static_cast<std::size_t>(part);
    }
    introduced();
    const Nonce nonce{};
    const Sha256 proof = proof_of(Role::listener, rank.place(0).key, decode_introduction(introduction).value(), nonce);
    std::array<std::byte, answer_size> answer{};
    std::ranges::copy(proof, std::ranges::copy(nonce, answer.begin()).out);
    (void)::send(lines.back().get(), answer.data(), answer.size(), MSG_NOSIGNAL);
  };
  std::promise<void> introduced, stopped, answered;
  std::atomic<bool> is_over = false;
  auto heard = introduced.get_future();
  auto played = std::async(std::launch::async, [&] {
    for (bool is_introduced = false; !is_introduced && !is_over;)
      answer_next([&] {
        is_introduced = true;
        introduced.set_value();
        stopped.get_future().wait();
      });
    answered.set_value();
    while (!is_over) answer_next([] {});  // it dials again where this comes too late
  });
  rank.begin();
  while (heard.wait_for(0ms) != std::future_status::ready) rank.loop.run_one_for(1ms);
  stopped.set_value();
  answered.get_future().wait();
  std::this_thread::sleep_for(150ms);  // as a process that is stopped; the answer waits in its socket
  rank.go_on();
  is_over = true;
  played.get();
  INFO((rank.failed ? rank.failed->what : ""));
  REQUIRE(rank.connected);
  CHECK(rank.connected->socket.is_open());
}

TEST_CASE("a rank that was answered is not turned away, however many wait for its place", "[connector]") {
  const FewDescriptors few;
  OneOfTwo rank{Rank{0}, Transport::tcp, 10s, 20s};
  const RankAddress at = rank.meet({.port = 1, .host = "127.0.0.1", .boot = {}, .socket = {}});
  const SocketAddress to = resolve("127.0.0.1", at.port).value().front();
  SilentOutsiders outsiders;
  bool was_one_turned_away = false;
  auto played = std::async(std::launch::async, [&] {
    const PlayedDialer dialer{rank.place(1), to, [&] {
                                outsiders.come(FewDescriptors::places + 5, to);  // it came before them
                                was_one_turned_away = outsiders.is_one_turned_away(20s);
                              }};
  });
  rank.connect();
  played.get();
  CHECK(was_one_turned_away);
  INFO((rank.failed ? rank.failed->what : ""));
  CHECK(rank.connected);
}

TEST_CASE("outsiders of the network take no place from a rank of the same host, nor the other way round", "[connector]") {
  const bool by_unix_socket = GENERATE(true, false);  // the rank; outsiders the other way
  const FewDescriptors few;
  OneOfTwo rank{Rank{0}, Transport::automatic, 10s, 20s};
  const RankAddress at = rank.meet({.port = 1, .host = "127.0.0.1", .boot = {}, .socket = {}});
  if (at.socket.empty()) return;  // the system does not tell its boot id
  const SocketAddress tcp = resolve("127.0.0.1", at.port).value().front(), unix_socket = abstract_address(at.socket);
  SilentOutsiders outsiders;
  bool was_one_turned_away = true;
  auto played = std::async(std::launch::async, [&] {
    outsiders.come(FewDescriptors::places, by_unix_socket ? tcp : unix_socket);  // all places, and none waits
    std::this_thread::sleep_for(100ms);                                          // they are in
    PlayedDialer dialer{rank.place(1), by_unix_socket ? unix_socket : tcp,
                        [&] { was_one_turned_away = outsiders.is_one_turned_away(0ms); }};
    if (by_unix_socket) (void)dialer.offer(nullptr, 'n');
  });
  rank.connect();
  played.get();
  INFO((rank.failed ? rank.failed->what : ""));
  CHECK(rank.connected);
  CHECK_FALSE(was_one_turned_away);
}

TEST_CASE("nobody is turned away where nobody waits, though all places are taken for long", "[connector]") {
  const FewDescriptors few;
  OneOfTwo rank{Rank{0}, Transport::tcp, 10s, 20s};
  const RankAddress at = rank.meet({.port = 1, .host = "127.0.0.1", .boot = {}, .socket = {}});
  const SocketAddress to = resolve("127.0.0.1", at.port).value().front();
  SilentOutsiders outsiders;
  bool was_one_turned_away = true;
  auto played = std::async(std::launch::async, [&] {
    outsiders.come(FewDescriptors::places - 1, to);
    std::this_thread::sleep_for(700ms);  // those have had their turn
    outsiders.come(1, to);
    was_one_turned_away = outsiders.is_one_turned_away(200ms);
    const PlayedDialer dialer{rank.place(1), to};
  });
  rank.connect();
  played.get();
  CHECK_FALSE(was_one_turned_away);
  CHECK(rank.connected);
}
