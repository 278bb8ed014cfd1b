// The loader reads ahead, and nothing but the ids shows in what it gives.

#include <elrun/loader.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/property.hpp"

namespace elrun::test {
namespace {

using Ids = BatchLoader::Ids;

std::uint64_t content(std::uint64_t id) { return id * 0x9e3779b97f4a7c15u + 1; }

void write(std::uint64_t id, std::span<std::byte> item) {
  const std::uint64_t value = content(id);
  std::memcpy(item.data(), &value, sizeof value);
}

bool holds(std::span<const std::byte> batch, const Ids& ids) {
  if (batch.size() != ids.size() * sizeof(std::uint64_t)) return false;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::uint64_t value = 0;
    std::memcpy(&value, batch.data() + i * sizeof value, sizeof value);
    if (value != content(ids[i])) return false;
  }
  return true;
}

constexpr BatchLoader::Options four{.item_bytes = sizeof(std::uint64_t), .items_max = 4, .ahead = 2};

}  // namespace

TEST_CASE("whatever was foreseen, a batch depends on its ids alone", "[data]") {
  for_all_seeds(30, [](Rng& rng) {
    const auto any_ids = [&rng] {
      Ids ids(rng.below(5));
      for (std::uint64_t& id : ids) id = rng.below(6);  // few, so that equal lists come up
      return ids;
    };
    std::vector<Ids> coming;
    BatchLoader::Options options = four;
    options.ahead = rng.below(4);
    BatchLoader loader{options, write, [&](std::size_t count) {
                         CHECK(count == options.ahead);
                         return coming;
                       }};
    for (int i = 0; i < 200; ++i) {
      const Ids ids = !coming.empty() && rng.chance(0.6) ? coming[rng.below(coming.size())] : any_ids();
      coming.clear();
      for (std::uint64_t n = rng.below(options.ahead + 1); n > 0; --n) coming.push_back(any_ids());
      CHECK(holds(loader.get(ids), ids));
    }
  });
}

TEST_CASE("what a fetch leaves out of an item is zero, whatever was read before", "[data]") {
  const auto write_some = [](std::uint64_t id, std::span<std::byte> item) { std::ranges::fill(item.first(id), std::byte{0xff}); };
  for (const std::size_t ahead : {std::size_t{0}, std::size_t{2}}) {
    BatchLoader::Options options = four;
    options.ahead = ahead;
    std::vector<Ids> coming;
    BatchLoader loader{options, write_some, [&](std::size_t) { return coming; }};
    for (std::uint64_t id = 0; id < 100; ++id) {
      coming = {{(id + 1) * 5 % 8, 8}, {(id + 2) * 5 % 8, 8}};
      const std::span<const std::byte> batch = loader.get(Ids{id * 5 % 8, 8});
      const auto is_written = [](std::byte b) { return b == std::byte{0xff}; };
      CHECK(std::ranges::count_if(batch.first(8), is_written) == static_cast<std::ptrdiff_t>(id * 5 % 8));
      CHECK(std::ranges::all_of(batch.subspan(id * 5 % 8, 8 - id * 5 % 8), [](std::byte b) { return b == std::byte{0}; }));
    }
  }
}

TEST_CASE("what was foreseen is read on the loader's thread, before it is asked for", "[data]") {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::pair<std::uint64_t, bool>> fetched;  // ids, and whether the loader's thread did it
  const std::thread::id me = std::this_thread::get_id();
  std::vector<Ids> coming{{5, 6}, {7}};
  BatchLoader loader{four,
                     [&](std::uint64_t id, std::span<std::byte> item) {
                       write(id, item);
                       const std::lock_guard lock{mutex};
                       fetched.emplace_back(id, std::this_thread::get_id() != me);
                       changed.notify_all();
                     },
                     [&](std::size_t) { return coming; }};
  CHECK(holds(loader.get(Ids{1, 2}), {1, 2}));
  {
    std::unique_lock lock{mutex};
    REQUIRE(changed.wait_for(lock, std::chrono::seconds{60}, [&] { return fetched.size() == 5; }));
  }
  coming = {{7}};
  CHECK(holds(loader.get(Ids{5, 6}), {5, 6}));
  coming.clear();
  CHECK(holds(loader.get(Ids{7}), {7}));
  CHECK(loader.foreseen() == 2);
  const std::lock_guard lock{mutex};
  CHECK(fetched.size() == 5);  // nothing twice
  for (const auto& [id, by_loader] : fetched) CHECK(by_loader == (id >= 5));
}

TEST_CASE("what a fetch throws is thrown by the get that asks for it, whoever fetched", "[data]") {
  std::vector<Ids> coming{{13}, {2}};
  BatchLoader loader{four,
                     [](std::uint64_t id, std::span<std::byte> item) {
                       if (id == 13) throw std::runtime_error{"no sample 13"};
                       write(id, item);
                     },
                     [&](std::size_t) { return coming; }};
  CHECK(holds(loader.get(Ids{1}), {1}));
  CHECK_THROWS_WITH(loader.get(Ids{13}), "no sample 13");
  CHECK(holds(loader.get(Ids{2}), {2}));
  coming.clear();
  CHECK_THROWS_WITH(loader.get(Ids{4, 13}), "no sample 13");
  CHECK(holds(loader.get(Ids{4}), {4}));
}

TEST_CASE("a loader that goes away does not read to the end of what it has begun", "[data]") {
  std::atomic<std::uint64_t> fetched{0};
  Ids many(1'000'000);
  {
    BatchLoader loader{{.item_bytes = sizeof(std::uint64_t), .items_max = many.size(), .ahead = 1},
                       [&](std::uint64_t, std::span<std::byte>) {
                         ++fetched;
                         std::this_thread::sleep_for(std::chrono::milliseconds{1});  // a quarter of an hour for all
                       },
                       [&](std::size_t) { return std::vector<Ids>{many}; }};
    (void)loader.get(Ids{1});
    while (fetched < 2) std::this_thread::yield();
  }
  CHECK(fetched < many.size());
}

TEST_CASE("sizes of a loader are bounded", "[data]") {
  const auto made = [](BatchLoader::Options options) { BatchLoader{options, write, [](std::size_t) { return std::vector<Ids>{}; }}; };
  CHECK_NOTHROW(made(four));
  CHECK_THROWS_AS(made({.item_bytes = 0, .items_max = 4}), Error);
  CHECK_THROWS_AS(made({.item_bytes = 8, .items_max = 0}), Error);
  CHECK_THROWS_AS(made({.item_bytes = 8, .items_max = 1, .ahead = 1'000'000}), Error);
  CHECK_THROWS_AS(made({.item_bytes = std::size_t{1} << 40, .items_max = std::size_t{1} << 40}), Error);
  BatchLoader loader{four, write, [](std::size_t) { return std::vector<Ids>{Ids(5)}; }};
  CHECK_THROWS_AS(loader.get(Ids(5)), Error);
  CHECK(holds(loader.get(Ids(4)), Ids(4)));
}

TEST_CASE("a forked child may destroy a loader, and is refused a batch", "[data]") {
  for (const bool mid_fetch : {false, true}) {
    std::atomic<bool> fetching{false}, goes_on{!mid_fetch};
    std::optional<BatchLoader> loader;
    loader.emplace(
        four,
        [&](std::uint64_t id, std::span<std::byte> item) {
          if (id == 2) fetching = true;
          while (id == 2 && !goes_on) std::this_thread::yield();
          write(id, item);
        },
        [&](std::size_t) { return std::vector<Ids>{{2}}; });
    CHECK(holds(loader->get(Ids{1}), {1}));
    while (!fetching) std::this_thread::yield();
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);  // by default it ends the process
      int code = 1;
      try {
        (void)loader->get(Ids{2});
      } catch (const Error& e) {
        code = e.failure().what.find("was forked from process") == std::string::npos ? 2 : 0;
      }
      loader.reset();
      ::_exit(code);
    }
    int status = -1;
    const bool ended = child > 0 && ::waitpid(child, &status, 0) == child;
    goes_on = true;
    CHECK(ended);
    CHECK(status == 0);
    CHECK(holds(loader->get(Ids{2}), {2}));
  }
}

}  // namespace elrun::test
