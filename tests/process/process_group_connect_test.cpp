// How ranks become a group: keys, outsiders, deadlines, and groups that are split off.

#include <elrun/process_group.hpp>

#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <latch>
#include <thread>

#include "lib/base/timeouts.hpp"
#include "lib/comm/connect/handshake.hpp"
#include "lib/comm/host_collectives.hpp"
#include "lib/link/socket.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/process_groups.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;

TEST_CASE("nobody joins without the generation's key, or for another generation", "[process_group]") {
  LocalWorld local{2};
  SECTION("another key") { local.place(1).key.fill(std::byte{8}); }
  SECTION("another lineage") { local.place(1).membership.generation.lineage.bits[1] ^= 1; }
  SECTION("an earlier generation") { local.place(1).membership.generation.number = 0; }
  Complaints complaints;
  std::latch both{2};
  local.run([&](std::uint32_t rank, Session& session) {
    both.arrive_and_wait();  // the deadline begins when both are there
    const auto group = ProcessGroup::join(session, {.connect = 2s});
    if (group.ok()) return complaints(false, "joined");
    const Failure& failure = group.failure();
    complaints(failure.peer == Rank{1 - rank}, "does not name the peer: " + message(failure));
    complaints(failure.code == Code::refused || failure.code == Code::deadline_passed, message(failure));
  });
  CHECK(complaints.all() == "");
}

TEST_CASE("a proof that was captured on one connection opens no other", "[process_group]") {
  LocalWorld local{2};
  Complaints complaints;
  local.run([&](std::uint32_t rank, Session& session) {
    if (rank == 0) {
      const auto group = ProcessGroup::join(session, patient);
      (void)session.store().set("joined", {}, Deadline::after(local.clock().now(), 60s));
      return complaints(group.ok(), group.ok() ? "" : message(group.failure()));
    }
    // Rank 1 is played here: it has the key, and says the same introduction each time.
    const auto places = session.store().all_gather("elrun/comm/addresses", Rank{1}, WorldSize{2}, as_bytes("1 127.0.0.1"),
                                                   Deadline::after(local.clock().now(), 60s));
    if (!places.ok()) return complaints(false, message(places.failure()));
    const auto port = static_cast<std::uint16_t>(std::atoi(std::string{as_text((*places)[0])}.c_str()));
    const Introduction mine{session.place().membership.generation, WorldSize{2}, Rank{1}, Rank{0}, {}};
    const auto readable = [](const Fd& fd) {
      pollfd ready{fd.get(), POLLIN, 0};
      return ::poll(&ready, 1, 30'000) == 1;
    };
    const auto introduced = [&](Nonce& listeners) {  // and what the listener answered
      Fd fd = connect_begin(resolve("127.0.0.1", port).value().front()).value();
      pollfd ready{fd.get(), POLLOUT, 0};
      complaints(::poll(&ready, 1, 30'000) == 1, "not connected");
      const auto words = encode(mine);
      complaints(::send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(words.size()), "not introduced");
      std::array<std::byte, answer_size> answer{};
      complaints(readable(fd) && ::recv(fd.get(), answer.data(), answer.size(), 0) == static_cast<ssize_t>(answer.size()), "no answer");
      std::copy_n(answer.begin(), listeners.size(), listeners.begin());
      return fd;
    };
    Nonce first{}, second{}, third{};
    const Fd captured = introduced(first);
    const Sha256 proof = proof_of(Role::dialer, session.place().key, mine, first);
    const Fd replayed = introduced(second);
    (void)::send(replayed.get(), proof.data(), proof.size(), MSG_NOSIGNAL);
    char byte = 0;
    complaints(readable(replayed) && ::recv(replayed.get(), &byte, 1, 0) <= 0, "the replayed proof was not refused");
    // The same with a proof of its own gets in.
    const Fd honest = introduced(third);
    complaints(first != second && second != third, "a nonce came twice");
    const Sha256 own = proof_of(Role::dialer, session.place().key, mine, third);
    (void)::send(honest.get(), own.data(), own.size(), MSG_NOSIGNAL);
    complaints(session.store().get("joined", Deadline::after(local.clock().now(), 60s)).ok(), "rank 0 did not join");
  });
  CHECK(complaints.all() == "");
}

TEST_CASE("peers that come late are waited for, and a peer that came and does not answer is not", "[process_group]") {
  constexpr Duration connect = 4s, late = 3s, whole = 60s;  // the two who do answer may be slow
  LocalWorld local{3};
  Complaints complaints;
  local.run([&](std::uint32_t rank, Session& session) {
    const Instant before = local.clock().now();
    if (rank == 2) {  // freezes when it has told its address: the system still accepts connections there
      std::this_thread::sleep_for(late);
      const Fd frozen = listen_on(resolve("127.0.0.1", 0).value().front()).value();
      const std::string place = std::to_string(local_address(frozen.get()).port()) + " 127.0.0.1";
      (void)session.store().all_gather("elrun/comm/addresses", Rank{2}, WorldSize{3}, as_bytes(place), Deadline::after(before, whole));
      return (void)session.store().wait(std::vector<std::string>{"over 0", "over 1"}, Deadline::after(before, whole + late));
    }
    const auto group = join_host_collectives(session, {.connect = connect, .whole = whole});
    const Duration took = local.clock().now() - before;
    (void)session.store().set("over " + std::to_string(rank), {}, Deadline::after(before, whole + late));
    complaints(!group.ok() && group.failure().code == Code::deadline_passed && group.failure().peer == Rank{2},
               group.ok() ? "joined" : message(group.failure()));
    complaints(took > late && took < whole / 2, "it took " + std::to_string(took / 1ms) + " ms");
  });
  CHECK(complaints.all() == "");
}

namespace {

/// A rank's session that acts once the rank has learned where the others listen, before it connects to them.
class Spy final : public Session {
 public:
  using Learned = std::function<void(std::vector<Store::Value>& places)>;
  Spy(Session& real, Learned learned) : real_{real}, learned_{std::move(learned)}, store_{*this} {}
  const Place& place() const override { return real_.place(); }
  Store& store() override { return store_; }
  void on_generation_over(OnOver call) override { real_.on_generation_over(std::move(call)); }
  void progress(const StepProgress&) override {}
  void cannot_go_on(const Failure& why) override { blamed = why.peer; }
  Result<void> finished(Deadline) override { return {}; }
  std::optional<Rank> blamed;

 private:
  struct SpyStore final : Store {
    explicit SpyStore(Spy& owner) : spy{owner} {}
    Store& real() { return spy.real_.store(); }
    Result<void> set(std::string_view k, ByteSpan v, Deadline d) override { return real().set(k, v, d); }
    Result<Value> get(std::string_view k, Deadline d) override { return real().get(k, d); }
    Result<std::int64_t> add(std::string_view k, std::int64_t n, Deadline d) override { return real().add(k, n, d); }
    Result<Value> compare_set(std::string_view k, ByteSpan e, ByteSpan v, Deadline d) override { return real().compare_set(k, e, v, d); }
    Result<void> wait(std::span<const std::string> k, Deadline d) override { return real().wait(k, d); }
    Result<bool> remove(std::string_view k, Deadline d) override { return real().remove(k, d); }
    Result<std::optional<Value>> watch(std::string_view key, std::optional<ByteSpan> known, Deadline d) override {
      return real().watch(key, known, d);
    }
    Result<std::uint64_t> num_keys(std::string_view prefix, Deadline d) override { return real().num_keys(prefix, d); }
    Result<void> barrier(std::string_view n, WorldSize c, Deadline d) override { return real().barrier(n, c, d); }
    Result<std::vector<Value>> all_gather(std::string_view n, Rank r, WorldSize c, ByteSpan v, Deadline d) override {
      auto places = real().all_gather(n, r, c, v, d);
      if (places.ok()) spy.learned_(*places);
      return places;
    }
    Spy& spy;
  };
  Session& real_;
  Learned learned_;
  SpyStore store_;
};

}  // namespace

TEST_CASE("ranks of which one pair cannot share memory make the same calls", "[process_group]") {
  LocalWorld local{3};
  Complaints complaints;
  local.run([&](std::uint32_t rank, Session& session) {
    Spy spy{session, [&](std::vector<Store::Value>& places) {
              if (rank == 2) places[1].back() ^= std::byte{1};  // the last letter of the Unix socket of rank 1
            }};
    const auto group = join_host_collectives(spy, {.connect = 30s});
    if (!group.ok()) return complaints(false, message(group.failure()));
    std::vector<std::uint32_t> data(1 << 18, rank);
    const std::span bytes = std::as_writable_bytes(std::span{data});
    complaints.must((*group)->all_reduce(bytes.data(), data.size(), DType::u32, ReduceOp::sum, {.limit = 30s}), "all_reduce");
    complaints(std::ranges::all_of(data, [](std::uint32_t each) { return each == 0 + 1 + 2; }), "another sum");
    std::ranges::fill(data, rank);
    complaints.must((*group)->broadcast(bytes, Rank{2}, {.limit = 30s}), "broadcast");
    complaints(std::ranges::all_of(data, [](std::uint32_t each) { return each == 2; }), "other bytes");
  });
  CHECK(complaints.all() == "");
}

TEST_CASE("a rank that lacks descriptors of its own calls no peer unreachable", "[process_group]") {
  LocalWorld local{2};
  Complaints complaints;
  local.run([&](std::uint32_t rank, Session& session) {
    const Deadline deadline = Deadline::after(local.clock().now(), 60s);
    if (rank == 0) {  // is played here: it only listens
      const Fd listener = listen_on(resolve("127.0.0.1", 0).value().front()).value();
      const std::string place = std::to_string(local_address(listener.get()).port()) + " 127.0.0.1";
      (void)session.store().all_gather("elrun/comm/addresses", Rank{0}, WorldSize{2}, as_bytes(place), deadline);
      return (void)session.store().get("over", deadline);
    }
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    Spy spy{session, [&](const std::vector<Store::Value>&) {
              const rlimit none{0, before.rlim_max};
              complaints(::setrlimit(RLIMIT_NOFILE, &none) == 0, "the limit stays");
            }};
    const auto group = join_host_collectives(spy, {.connect = Timeouts{}.peer_silence + 1s});
    ::setrlimit(RLIMIT_NOFILE, &before);
    (void)session.store().set("over", {}, deadline);
    if (group.ok()) return complaints(false, "joined");
    complaints(!spy.blamed, "blames rank 0");
    complaints(group.failure().code != Code::unreachable, message(group.failure()));
    complaints(group.failure().what.find("Too many open files") != std::string::npos, message(group.failure()));
  });
  CHECK(complaints.all() == "");
}

TEST_CASE("a group for which the system has no descriptor or no thread is a failure", "[process_group]") {
  LocalWorld local{2};
  SECTION("descriptor") {
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    const rlimit none{0, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    const auto group = ProcessGroup::join(local.session(0), patient);
    ::setrlimit(RLIMIT_NOFILE, &before);
    REQUIRE(!group.ok());
    CHECK(group.failure().code == Code::exhausted);
    CHECK(group.failure().rank == Rank{0});
    CHECK_THAT(group.failure().what, Catch::Contains("make a process group: Too many open files"));
  }
  SECTION("thread") {
    pthread_attr_t usual, huge;
    REQUIRE(::pthread_getattr_default_np(&usual) == 0);
    REQUIRE(::pthread_attr_init(&huge) == 0);
    REQUIRE(::pthread_attr_setstacksize(&huge, std::size_t{1} << 50) == 0);  // no machine has room for it
    Complaints complaints;
    local.run([&](std::uint32_t rank, Session& session) {
      Spy spy{session, [&](const std::vector<Store::Value>&) { ::pthread_setattr_default_np(&huge); }};
      const auto group = ProcessGroup::join(spy, patient);
      if (group.ok()) return complaints(false, "joined");
      const Failure& why = group.failure();
      complaints(why.code == Code::exhausted && why.remedy == Remedy::fix_config && why.rank == Rank{rank} && why.generation, message(why));
      complaints(why.what.find("make a process group: no thread could be started (pids.max, ulimit -u)") != std::string::npos,
                 message(why));
    });
    REQUIRE(::pthread_setattr_default_np(&usual) == 0);
    CHECK(complaints.all() == "");
  }
}

TEST_CASE("a group that is gone leaves its session little more than the word that it was there", "[process_group]") {
  LocalWorld local{1};
  const auto join_and_leave = [&](int groups) {
    for (int i = 0; i < groups; ++i) REQUIRE(ProcessGroup::join(local.session(0), patient).ok());
  };
  constexpr int groups = 1000;
  join_and_leave(groups);
  const std::size_t before = ::mallinfo2().uordblks;
  join_and_leave(groups);
  CHECK((::mallinfo2().uordblks - before) / groups < 300);
}

TEST_CASE("connections of outsiders cost the acceptor nothing", "[process_group]") {
  LocalWorld local{2};
  Complaints complaints;
  local.run([&](std::uint32_t rank, Session& session) {
    if (rank == 0) {
      auto group = ProcessGroup::join(session, patient);
      if (!group.ok()) return complaints(false, message(group.failure()));
      return complaints.must(group->barrier(), "barrier");
    }
    // Rank 1 learns where rank 0 listens, sends outsiders first, and comes late.
    std::vector<Fd> outsiders;
    Spy spy{session, [&](const std::vector<Store::Value>& places) {
              const std::uint16_t port = static_cast<std::uint16_t>(std::atoi(std::string{as_text(places[0])}.c_str()));
              const SocketAddress acceptor = resolve("127.0.0.1", port).value().front();
              for (int i = 0; i < 20; ++i) {
                Fd outsider = connect_begin(acceptor).value();
                const std::string garbage(static_cast<std::size_t>(i) * 20, 'g');  // none, some, more than an introduction
                (void)::send(outsider.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
                if (i % 3 != 0) outsiders.push_back(std::move(outsider));  // a third hangs up
              }
              // And at its Unix socket, where it has one.
              const std::string told{as_text(places[0])};
              if (const auto name = told.rfind("elrun-"); name != std::string::npos) {
                for (int i = 0; i < 20; ++i) {
                  Fd outsider{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
                  sockaddr_un address{};
                  address.sun_family = AF_UNIX;
                  told.copy(address.sun_path + 1, sizeof address.sun_path - 1, name);
                  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + told.size() - name);
                  if (::connect(outsider.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) std::abort();
                  const std::string garbage(static_cast<std::size_t>(i) * 20, 'g');
                  (void)::send(outsider.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
                  if (i % 3 != 0) outsiders.push_back(std::move(outsider));
                }
              }
            }};
    auto group = ProcessGroup::join(spy, patient);
    if (!group.ok()) return complaints(false, message(group.failure()));
    complaints.must(group->barrier(), "barrier");
  });
  CHECK(complaints.all() == "");
}

TEST_CASE("silent outsiders leave a rank descriptors, and do not keep its peers out", "[process_group]") {
  constexpr rlim_t few = 128;
  constexpr int outsiders = 150, beyond = 300;  // more than `few`, and where their own ends are numbered
  LocalWorld local{2};
  Complaints complaints;
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  REQUIRE(before.rlim_cur > beyond + outsiders);
  std::latch outside{1};
  std::vector<Fd> ends;
  local.run([&](std::uint32_t rank, Session& session) {
    Spy spy{session, [&](const std::vector<Store::Value>& places) {
              if (rank == 0) return outside.wait();
              const std::uint16_t port = static_cast<std::uint16_t>(std::atoi(std::string{as_text(places[0])}.c_str()));
              for (int i = 0; i < outsiders; ++i) {
                const Fd outsider = connect_begin(resolve("127.0.0.1", port).value().front()).value();
                ends.emplace_back(::fcntl(outsider.get(), F_DUPFD_CLOEXEC, beyond));
              }
              const rlimit low{few, before.rlim_max};
              complaints(::setrlimit(RLIMIT_NOFILE, &low) == 0, "the limit stays");
              outside.count_down();
            }};
    auto group = ProcessGroup::join(spy, {.connect = 8s, .collective = 60s});  // outsiders are heard for 10 s where nothing ends them
    if (!group.ok()) return complaints(false, message(group.failure()));
    complaints.must(group->barrier(), "barrier");
  });
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(complaints.all() == "");
}

TEST_CASE("a rank that must use shared memory and cannot names the peer that it does not reach", "[process_group]") {
  const std::string complaints = run_group(
      2, [](std::uint32_t rank, ProcessGroup&, Complaints& complain) { complain(rank != 0, "joined"); }, {Transport::shm, Transport::tcp});
  CHECK_THAT(complaints, Catch::Contains("rank 1 cannot be reached through shared memory") && Catch::Contains("ELRUN_TRANSPORT") &&
                             !Catch::Contains("joined"));
}

TEST_CASE("a worker needs the descriptors that docs/operations.md says", "[process_group]") {
  const auto open_now = [] {
    const std::filesystem::directory_iterator all{"/proc/self/fd"};
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
  };
  const std::size_t before = open_now();
  const auto per_rank = [&](std::uint32_t world, Transport transport) {
    std::size_t all = 0;
    const std::string complaints = run_group(
        world,
        [&](std::uint32_t rank, ProcessGroup& group, Complaints& complain) {
          complain.must(group.barrier(), "barrier");
          if (rank == 0) all = open_now();
          complain.must(group.barrier(), "barrier");
        },
        Transports(world, transport));
    CHECK(complaints == "");
    return (all - before) / world;
  };
  const std::size_t by_memory = per_rank(2, Transport::automatic), more_by_memory = per_rank(4, Transport::automatic);
  const std::size_t by_tcp = per_rank(2, Transport::tcp), more_by_tcp = per_rank(4, Transport::tcp);
  CHECK(more_by_tcp - by_tcp == 2);
  CHECK(more_by_memory - by_memory == (std::getenv("ELRUN_TRANSPORT") == nullptr ? 10 : 2));
  CHECK(by_memory <= 15);
}

TEST_CASE("a split group has the ranks of one color, in the order of their keys", "[process_group]") {
  for_all_seeds(8, [](Rng& rng) {
    const std::uint32_t world = 1 + static_cast<std::uint32_t>(rng.below(5));
    const Transports transports = any_transports(rng, world);
    struct Word {
      std::optional<std::uint32_t> color;
      std::int32_t key = 0;
    };
    std::vector<Word> words(world);
    for (Word& word : words) {
      if (!rng.chance(0.2)) word.color = static_cast<std::uint32_t>(rng.below(2));
      word.key = static_cast<std::int32_t>(rng.below(3)) - 1;
    }
    CHECK(run_group(
              world,
              [&](std::uint32_t rank, ProcessGroup& group, Complaints& complaints) {
                auto part = group.split(words[rank].color, words[rank].key);
                if (!part.ok()) return complaints(false, message(part.failure()));
                complaints(part->has_value() == words[rank].color.has_value(), "a group for no color, or none for one");
                if (part->has_value()) {
                  std::vector<std::pair<std::int32_t, std::uint32_t>> wanted;
                  for (std::uint32_t r = 0; r < world; ++r)
                    if (words[r].color == words[rank].color) wanted.push_back({words[r].key, r});
                  std::ranges::sort(wanted);
                  std::vector<std::uint32_t> members(wanted.size());
                  complaints((*part)->membership().world.value() == wanted.size(), "another size");
                  complaints.must((*part)->all_gather(std::as_bytes(std::span{&rank, 1}), std::as_writable_bytes(std::span{members})),
                                  "all_gather in the part");
                  for (std::size_t i = 0; i < wanted.size(); ++i) complaints(members[i] == wanted[i].second, "another order");
                  // Again, of the part: all of one color, backwards.
                  auto back = (*part)->split(7, -static_cast<std::int32_t>((*part)->membership().rank.value()));
                  if (!back.ok()) return complaints(false, message(back.failure()));
                  std::uint32_t first = rank;
                  complaints.must((**back).broadcast(std::as_writable_bytes(std::span{&first, 1}), Rank{0}), "broadcast");
                  complaints(first == wanted.back().second, "not backwards");
                }
                complaints.must(group.barrier(), "the whole group's barrier");
                complaints(group.split(1).ok(), "a second split");
              },
              transports) == "");
  });
}
