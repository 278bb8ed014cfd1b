#include "launcher/output/log_place.hpp"

#include <mutex>
#include <thread>

#include "tests/support/catch.hpp"

namespace elrun::launcher {

TEST_CASE("a place of logs that hangs is asked nothing more until the call has come back", "[log_place]") {
  LogPlace place{50ms};
  const std::function<int()> answers = [] { return 7; };
  CHECK(place.ask(answers) == 7);
  const auto hangs = std::make_shared<std::mutex>();
  std::unique_lock held{*hangs};
  const auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i)
    CHECK_FALSE(place.ask<int>([hangs] {
      const std::lock_guard lock{*hangs};
      return 0;
    }));
  CHECK(std::chrono::steady_clock::now() - before < 50 * 50ms);
  CHECK(place.hangs());
  held.unlock();
  while (place.hangs()) std::this_thread::yield();
  CHECK(place.ask(answers) == 7);
}

TEST_CASE("a place that cannot hang is asked on the thread that asks", "[log_place]") {
  LogPlace place{std::nullopt};
  const std::function<std::thread::id()> who = [] { return std::this_thread::get_id(); };
  CHECK(place.ask(who) == std::this_thread::get_id());
}

}  // namespace elrun::launcher
