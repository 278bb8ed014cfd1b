#include "launcher/process/exit_watch.hpp"

#include <system_error>
#include <utility>

#include <boost/asio/post.hpp>

#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0::launcher {

ExitWatch::~ExitWatch() {
  while (!waits_.empty()) stop(waits_.begin()->first);
}

Result<void> ExitWatch::open(const Path& directory, std::uint32_t workers) {
  ELRUN_TRY_ASSIGN(DeathFutexes futexes, DeathFutexes::create(directory / death_futexes_name, workers));
  futexes_.emplace(std::move(futexes));
  return {};
}

void ExitWatch::clear(LocalRank worker) {
  if (!futexes_ || worker.value() >= futexes_->size()) return;
  stop(worker);
  clear_death_futex((*futexes_)[worker.value()]);
}

void ExitWatch::look() {
  for (std::uint32_t i = 0; futexes_ && i < futexes_->size(); ++i) {
    const LocalRank worker{i};
    DeathFutexes::Futex& futex = (*futexes_)[i];
    if (const auto known = waits_.find(worker); known != waits_.end()) {
      if (!known->second->is_over) continue;
      stop(worker);
    }
    if (futex.load(std::memory_order_relaxed) == 0) continue;
    auto wait = std::make_unique<Wait>();
    try {
      wait->thread = quiet_thread([this, worker, &futex, over = &wait->is_over] {
        if (wait_for_exit(futex)) boost::asio::post(loop_, [this, worker] { ends_(worker); });
        *over = true;
      });
    } catch (const std::system_error&) {
      continue;  // no thread is to be had: its end is seen a little later
    }
    waits_.emplace(worker, std::move(wait));
  }
}

// A process that writes to its futex just then could keep one wake-up from the thread, not all of them.
void ExitWatch::stop(LocalRank worker) {
  const auto found = waits_.find(worker);
  if (found == waits_.end()) return;
  while (!found->second->is_over) {
    clear_death_futex((*futexes_)[worker.value()]);
    std::this_thread::yield();
  }
  found->second->thread.join();
  waits_.erase(found);
}

}  // namespace elrun::inline v0::launcher
