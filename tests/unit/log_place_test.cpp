#include "launcher/output/log_place.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "tests/support/catch.hpp"

namespace elrun::launcher {

TEST_CASE("a place of logs that hangs is asked nothing more until the call has come back", "[log_place]") {
  LogPlace place{50ms};
  const std::function<int()> answers = [] { return 7; };
  // Its thread may get no processor for so long: then this is asked again when that call has come back.
  const auto answers_some_time = [&] {
    for (int tries = 0; tries < 1000; ++tries) {
      if (place.ask(answers) == 7) return true;
      while (place.hangs()) std::this_thread::yield();
    }
    return false;
  };
  CHECK(answers_some_time());
  const auto hangs = std::make_shared<std::mutex>();
  std::unique_lock held{*hangs};
  const auto calls = std::make_shared<std::atomic<int>>(0);
  for (int i = 0; i < 100; ++i)
    CHECK_FALSE(place.ask<int>([hangs, calls] {
      ++*calls;
      const std::lock_guard lock{*hangs};
      return 0;
    }));
  CHECK(place.hangs());
  held.unlock();
  while (place.hangs()) std::this_thread::yield();
  CHECK(*calls == 1);
  CHECK(answers_some_time());
}

TEST_CASE("a place that cannot hang is asked on the thread that asks", "[log_place]") {
  LogPlace place{std::nullopt};
  const std::function<std::thread::id()> who = [] { return std::this_thread::get_id(); };
  CHECK(place.ask(who) == std::this_thread::get_id());
}

}  // namespace elrun::launcher
