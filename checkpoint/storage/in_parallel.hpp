#pragma once
/// \file Operations on the storage that wait for it, several at once.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <new>
#include <thread>
#include <vector>

#include <elrun/result.hpp>

#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0 {

/// Calls `call(i)` for each i below `count`, begun in this order, from as many threads; 0: from this one alone. `call` does not throw.
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

/// What `call` returns; where it runs out of memory, that.
template <class Call>
Result<void> with_memory(const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Failure{Code::exhausted, Remedy::retry, "there is no memory on the host for another operation on the storage"};
  }
}

/// `in_parallel` for calls that may fail: the first failure, in the order of `i`. None is begun that comes after one that failed.
template <class Call>
Result<void> all_in_parallel(std::size_t count, unsigned threads, const Call& call) {
  std::vector<Result<void>> results(count);
  std::atomic<bool> has_failed{false};
  in_parallel(count, threads, [&](std::size_t i) {
    if (has_failed) return;
    results[i] = with_memory([&] { return call(i); });
    if (!results[i].ok()) has_failed = true;
  });
  const auto failed = std::find_if(results.begin(), results.end(), [](const Result<void>& result) { return !result.ok(); });
  return failed == results.end() ? Result<void>{} : std::move(*failed);
}

}  // namespace elrun::inline v0
