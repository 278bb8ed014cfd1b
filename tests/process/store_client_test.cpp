// The public client and the store it speaks to for real: gRPC on loopback, port 0, the coordinator on a thread of its own.

#include <algorithm>
#include <future>
#include <set>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include <elrun/store.hpp>

#include "lib/base/bytes.hpp"
#include "lib/link/store_core.hpp"
#include "rendezvous/net/node_link.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

constexpr Duration patience = 60s;  // only a failing test waits for so long
Deadline soon() { return deadline_in(patience); }

/// A store alone, as `elrun store` serves it.
class Served {
 public:
  explicit Served(std::uint16_t port = 0, Access access = {}) {
    std::promise<Result<std::uint16_t>> bound;
    thread_ = std::thread{[this, port, access, &bound] {
      const auto coordinator = Coordinator::create(loop_, clock_, log_, {.timeouts = timeouts_, .access = access});
      const auto work = boost::asio::make_work_guard(loop_);
      bound.set_value(coordinator->serve("127.0.0.1", port));
      loop_.run();
    }};
    const auto result = bound.get_future().get();
    REQUIRE(result.ok());
    port_ = *result;
  }
  ~Served() {
    loop_.stop();
    thread_.join();
  }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  boost::asio::io_context loop_{1};
  SteadyClock clock_;
  Log log_{"coordinator", [](Level, std::string_view) {}};
  Timeouts timeouts_;
  std::thread thread_;
  std::uint16_t port_ = 0;
};

std::unique_ptr<Store> connected(const Served& served) {
  auto store = connect_store(served.endpoint(), {}, soon());
  REQUIRE(store.ok());
  return std::move(*store);
}

}  // namespace

TEST_CASE("a store is found by its name also by who would wait for it without end", "[grpc]") {
  const Served served;
  const std::string endpoint = "localhost:" + std::to_string(served.port());
  const auto connects = std::make_shared<std::promise<bool>>();
  // On a thread that is left behind where it does not come back.
  std::thread{[connects, endpoint] {
    const auto store = connect_store(endpoint, {}, deadline_in(Duration::max()));
    connects->set_value(store.ok() && (*store)->set("k", {}, deadline_in(Duration::max())).ok());
  }}.detach();
  auto done = connects->get_future();
  REQUIRE(done.wait_for(patience) == std::future_status::ready);
  CHECK(done.get());
}

TEST_CASE("a store serves programs that are no workers, without any agent", "[grpc]") {
  const Served served;
  const auto ann = connected(served), bob = connected(served);
  CHECK(ann->set("k", as_bytes("one"), soon()).ok());
  CHECK(as_text(bob->get("k", soon()).value()) == "one");
  CHECK(ann->add("n", 3, soon()).value() == 3);
  CHECK(bob->add("n", 4, soon()).value() == 7);
  CHECK(as_text(ann->compare_set("k", as_bytes("one"), as_bytes("two"), soon()).value()) == "two");
  CHECK(bob->num_keys(soon()).value() == 2);
  CHECK(bob->remove("n", soon()).value());
  const std::vector<std::string> keys{"k", "later"};
  auto waits = std::async(std::launch::async, [&] { return ann->wait(keys, soon()).ok(); });
  auto watches = std::async(std::launch::async, [&] { return ann->watch("k", as_bytes("two"), soon()); });
  CHECK(bob->set("later", {}, soon()).ok());
  CHECK(bob->remove("k", soon()).value());
  CHECK_FALSE(watches.get().value().has_value());
  CHECK(bob->set("k", {}, soon()).ok());
  CHECK(waits.get());
  SECTION("in time, saying what it waited for") {
    const auto failure = ann->get("never", deadline_in(100ms)).failure();
    CHECK(failure.code == Code::deadline_passed);
    CHECK(failure.what.find("never") != std::string::npos);
    CHECK_FALSE(failure.generation);
  }
  SECTION("a part of it, by a prefix") {
    const auto part = prefixed(*ann, "part/");
    CHECK(part->set("a", as_bytes("x"), soon()).ok());
    CHECK(part->num_keys(soon()).value() == 1);
    CHECK(bob->num_keys(soon()).value() == 3);
    CHECK(as_text(bob->get("part/a", soon()).value()) == "x");
    const auto inner = prefixed(*part, "b/");
    CHECK(inner->add("n", 1, soon()).value() == 1);
    CHECK(part->num_keys("b/", soon()).value() == 1);
    CHECK(part->remove("b/n", soon()).value());
  }
  SECTION("large values") {
    const Store::Value large(store_value_max.value(), std::byte{7});
    CHECK(ann->set("large", large, soon()).ok());
    CHECK(bob->get("large", soon()).value() == large);
  }
}

TEST_CASE("clients meet in barriers and all_gathers, again and again", "[grpc]") {
  const Served served;
  constexpr std::uint32_t count = 8;
  std::vector<std::future<bool>> clients;
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    clients.push_back(std::async(std::launch::async, [&, rank] {
      const auto store = connect_store(served.endpoint(), {}, soon());
      if (!store.ok()) return false;
      for (int round = 0; round < 20; ++round) {
        if (!(*store)->barrier("b", WorldSize{count}, soon()).ok()) return false;
        const std::string mine = std::to_string(round * 100 + static_cast<int>(rank));
        const auto all = (*store)->all_gather("g", Rank{rank}, WorldSize{count}, as_bytes(mine), soon());
        if (!all.ok() || all->size() != count) return false;
        for (std::uint32_t r = 0; r < count; ++r)
          if (as_text((*all)[r]) != std::to_string(round * 100 + static_cast<int>(r))) return false;
      }
      return true;
    }));
  }
  for (auto& client : clients) CHECK(client.get());
}

TEST_CASE("many threads share one client, and no call is lost", "[grpc]") {
  const Served served;
  const auto store = connected(served);
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const std::string key(1, static_cast<char>('a' + t)), value = std::to_string(i);
        if (!store->add("n", 1, soon()).ok() || !store->set(key, as_bytes(value), soon()).ok()) ++failed;
        const auto got = store->get(key, soon());
        if (!got.ok() || as_text(*got) != value) ++failed;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 0);
  CHECK(store->add("n", 0, soon()).value() == 1600);
}

// With the sums as the order, two rules are all of linearizability: each sum is given once, and what began after another
// call ended saw that call's sum, or, if it added, a larger one.
TEST_CASE("calls of many clients and threads have one order, that of the time", "[grpc]") {
  const Served served;
  constexpr std::size_t threads = 6, calls = 300;
  struct Seen {
    Instant begin, end;
    bool adds = false;
    std::int64_t sum = 0;
  };
  const std::unique_ptr<Store> clients[]{connected(served), connected(served), connected(served)};
  REQUIRE(clients[0]->set("n", as_bytes("0"), soon()).ok());
  const SteadyClock clock;
  std::vector<std::vector<Seen>> seen(threads);
  std::vector<std::thread> running;
  for (std::size_t t = 0; t < threads; ++t)
    running.emplace_back([&, t] {
      Store& store = *clients[t % std::size(clients)];
      for (std::size_t i = 0; i < calls; ++i) {
        Seen call{.begin = clock.now(), .end = {}, .adds = (t / std::size(clients) + i) % 2 == 0};
        if (call.adds) {
          call.sum = store.add("n", 1, soon()).value();
        } else {
          const auto text = store.get("n", soon()).value();
          call.sum = std::stoll(std::string{as_text(text)});
        }
        call.end = clock.now();
        seen[t].push_back(call);
      }
    });
  for (std::thread& thread : running) thread.join();
  std::vector<Seen> by_begin, by_end;
  for (const auto& some : seen) by_begin.insert(by_begin.end(), some.begin(), some.end());
  by_end = by_begin;
  std::sort(by_begin.begin(), by_begin.end(), [](const Seen& a, const Seen& b) { return a.begin < b.begin; });
  std::sort(by_end.begin(), by_end.end(), [](const Seen& a, const Seen& b) { return a.end < b.end; });
  std::set<std::int64_t> sums;
  std::int64_t known = 0;  // the largest sum of all calls that ended before this one began
  std::size_t ended = 0, adds = 0, backwards = 0;
  for (const Seen& call : by_begin) {
    for (; by_end[ended].end < call.begin; ++ended) known = std::max(known, by_end[ended].sum);
    if (call.sum < known + (call.adds ? 1 : 0)) ++backwards;
    if (!call.adds) continue;
    ++adds;
    sums.insert(call.sum);
  }
  CHECK(backwards == 0);
  CHECK(adds == threads * calls / 2);
  CHECK(sums.size() == adds);
  CHECK(*sums.rbegin() == static_cast<std::int64_t>(adds));
}

TEST_CASE("a client outlives its store and goes on with the next one at its place", "[grpc]") {
  auto served = std::make_unique<Served>();
  const std::uint16_t port = served->port();
  const auto store = connected(*served);
  CHECK(store->set("before", {}, soon()).ok());
  auto waits = std::async(std::launch::async, [&] { return store->get("after", soon()).ok(); });
  auto meets = std::async(std::launch::async, [&] { return store->barrier("b", WorldSize{2}, soon()).ok(); });
  CHECK(store->get("before", soon()).ok());
  served.reset();
  SECTION("which has nothing of what was in it") {
    const auto failure = store->get("before", deadline_in(200ms)).failure();
    CHECK(failure.code == Code::deadline_passed);
    CHECK(failure.what.find("127.0.0.1") != std::string::npos);  // with whom, and what the last attempt found
    served = std::make_unique<Served>(port);
    CHECK(store->num_keys("before", soon()).value() == 0);
  }
  SECTION("calls that may be done twice are sent again") { served = std::make_unique<Served>(port); }
  const auto other = connected(*served);
  CHECK(other->barrier("b", WorldSize{2}, soon()).ok());
  CHECK(other->set("after", {}, soon()).ok());
  CHECK(waits.get());
  CHECK(meets.get());
}

TEST_CASE("many threads share one client whose store comes and goes, and every call ends by its deadline", "[grpc]") {
  auto served = std::make_unique<Served>();
  const std::uint16_t port = served->port();
  // Left behind with its threads where one does not come back.
  struct Shared {
    std::unique_ptr<Store> store;
    std::atomic<bool> ends = false;
    std::atomic<int> running = 0, done = 0;
    std::promise<void> all_ended{};
  };
  const auto shared = std::make_shared<Shared>();
  shared->store = connected(*served);
  constexpr int threads = 32;
  shared->running = threads;
  for (int t = 0; t < threads; ++t)
    std::thread{[shared] {
      while (!shared->ends)
        if (shared->store->set("k", {}, deadline_in(2s)).ok()) ++shared->done;
      if (--shared->running == 0) shared->all_ended.set_value();
    }}.detach();
  const auto serves = [&](int before) {  // until calls are answered again
    const Deadline until = soon();
    while (shared->done < before + threads && !until.passed(SteadyClock{}.now())) std::this_thread::sleep_for(1ms);
    return shared->done >= before + threads;
  };
  bool goes_on = serves(0);
  for (int i = 0; i < 60 && goes_on; ++i) {
    served.reset();
    served = std::make_unique<Served>(port);
    goes_on = serves(shared->done);
  }
  CHECK(goes_on);
  shared->ends = true;
  CHECK(shared->all_ended.get_future().wait_for(patience) == std::future_status::ready);
}

TEST_CASE("a store with a token serves those who have it", "[grpc]") {
  Access access;
  access.token = Secret{"a token that nobody guesses"};
  const Served served{0, access};
  const auto refused = [&](const StoreClientOptions& options) { return connect_store(served.endpoint(), options, soon()).failure(); };
  CHECK(refused({}).code == Code::refused);
  CHECK(refused({.token = "another token that is wrong"}).remedy == Remedy::fix_config);
  CHECK(refused({.token_file = "/no/such/file"}).what.find("/no/such/file") != std::string::npos);
  CHECK(refused({.ca_file = "/no/such/ca"}).what.find("/no/such/ca") != std::string::npos);
  const auto store = connect_store(served.endpoint(), {.token = "a token that nobody guesses"}, soon());
  REQUIRE(store.ok());
  CHECK((*store)->add("n", 1, soon()).value() == 1);
}

TEST_CASE("what cannot be reached is said with its reason", "[grpc]") {
  SECTION("no endpoint") {
    for (const char* text : {"", "host", "host:", ":29500", "host:0", "host:65536", "host:12x", "::1:29500"})
      CHECK(connect_store(text, {}, soon()).failure().code == Code::invalid_argument);
  }
  SECTION("nobody there") {
    std::uint16_t port = Served{}.port();
    const auto failure = connect_store("127.0.0.1:" + std::to_string(port), {}, deadline_in(300ms)).failure();
    CHECK(failure.code == Code::unreachable);
    CHECK(failure.what.find("127.0.0.1:" + std::to_string(port)) != std::string::npos);
  }
  SECTION("a name of nobody") {
    CHECK(connect_store("no-such-host.invalid:29500", {}, deadline_in(300ms)).failure().what.find("no-such-host.invalid") !=
          std::string::npos);
  }
}

}  // namespace elrun::test
