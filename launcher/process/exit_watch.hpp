#pragma once
/// \file ExitWatch: tells that a worker's process is ending before the kernel has freed its memory (lib/link/death_futex.hpp).

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include <boost/asio/io_context.hpp>

#include <elrun/ids.hpp>

#include "lib/link/death_futex.hpp"

namespace elrun::inline v0::launcher {

/// Lives on the loop. A thread for each worker that holds its futex waits for the end of that worker, for the oldest kernels can wait for one
/// futex only. The destructor ends these threads and waits for nobody else.
class ExitWatch {
 public:
  /// `ends` is called on the loop: the process that held the worker's futex is ending, as far as its memory tells.
  ExitWatch(boost::asio::io_context& loop, std::function<void(LocalRank)> ends) : loop_{loop}, ends_{std::move(ends)} {}
  ~ExitWatch();
  ExitWatch(const ExitWatch&) = delete;
  ExitWatch& operator=(const ExitWatch&) = delete;

  /// Makes the futexes in the agent's directory. Without them ends are seen when memory is free.
  Result<void> open(const Path& directory, std::uint32_t workers);
  /// A process is about to be started for `worker`: what its predecessor left says nothing of it.
  void clear(LocalRank worker);
  /// A worker has opened its session: futexes that are held by now are waited for.
  void look();

 private:
  struct Wait {
    std::thread thread;
    std::atomic<bool> is_over{false};
  };
  void stop(LocalRank worker);

  boost::asio::io_context& loop_;
  const std::function<void(LocalRank)> ends_;
  std::optional<DeathFutexes> futexes_;
  std::map<LocalRank, std::unique_ptr<Wait>> waits_;
};

}  // namespace elrun::inline v0::launcher
