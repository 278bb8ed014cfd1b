#pragma once
/// \file Operations on the storage that wait for it, several at once.

#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0 {

/// Calls `call(i)` for each i below `count`, in any order, from as many threads; 0: from this one alone. `call` does not throw.
template <class Call>
void in_parallel(std::size_t count, unsigned threads, const Call& call) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) call(i);
  };
  std::vector<std::thread> others;
  others.reserve(threads);
  try {
    while (others.size() + 1 < threads && others.size() + 1 < count) others.push_back(quiet_thread(work));
  } catch (const std::exception&) {  // those that could be started do the work
  }
  work();
  for (std::thread& thread : others) thread.join();
}

}  // namespace elrun::inline v0
