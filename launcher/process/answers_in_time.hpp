#pragma once
/// \file answers_in_time: calls that may block for good, asked on a thread that is waited for only so long.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <elrun/units.hpp>

#include "launcher/process/detached_call.hpp"
#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0::launcher {

/// Whether this thread of the process runs, or would where the system gave it a processor. It does not where it waits for what it has asked of the kernel.
inline bool could_run(pid_t thread) {
  std::ifstream file{"/proc/self/task/" + std::to_string(thread) + "/stat"};  // "pid (name) state ..."
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(") ");
  return name_end != std::string::npos && text.compare(name_end + 2, 1, "R") == 0;
}

/// Where `DetachedCall` is too late: the caller goes on only with the answers. `limit` is for each call, from the answer before it. Where one does not
/// answer in time, its thread is left alone, and another one asks those after it; so a call holds nothing that may be gone before it. After `late_calls_max` of those no
/// other is asked. No answer: too late, not asked, or no thread could be started.
///
/// What is asked is not to blame where the system does not run the thread: one that has not begun its call, or could run and waits for a processor, has
/// `processor_max` instead.
constexpr int late_calls_max = 5;
constexpr Duration processor_max = std::chrono::seconds{3};  // less than an agent may be silent
template <class Answer>
std::vector<std::optional<Answer>> answers_in_time(const std::vector<std::function<Answer()>>& calls, Duration limit) {
  struct Heard {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Answer> answers;
    std::size_t begun = 0;
    pid_t thread = 0;
  };
  std::vector<std::optional<Answer>> all;
  for (int late = 0; all.size() < calls.size() && late < late_calls_max; ++late) {
    const std::vector<std::function<Answer()>> left{calls.begin() + static_cast<std::ptrdiff_t>(all.size()), calls.end()};
    const auto heard = std::make_shared<Heard>();
    std::thread thread;
    try {
      thread = quiet_thread([heard, left] {
        for (const auto& call : left) {
          {
            const std::lock_guard lock{heard->mutex};
            heard->thread = ::gettid();
            ++heard->begun;
          }
          Answer answer = call();
          const std::lock_guard lock{heard->mutex};
          heard->answers.push_back(std::move(answer));
          heard->changed.notify_one();
        }
      });
    } catch (const std::system_error&) {
      all.resize(calls.size());
      return all;
    }
    std::unique_lock lock{heard->mutex};
    const auto has_answered = [&](std::size_t known) {
      const auto until = std::chrono::steady_clock::now() + std::max(limit, processor_max);
      for (bool may_come = true; may_come && std::chrono::steady_clock::now() < until;) {
        if (heard->changed.wait_for(lock, limit, [&] { return heard->answers.size() > known; })) return true;
        const bool has_begun = heard->begun > known;
        const pid_t its = heard->thread;
        lock.unlock();
        may_come = !has_begun || could_run(its);
        lock.lock();
      }
      return heard->answers.size() > known;
    };
    for (std::size_t known = 0; known < left.size(); known = heard->answers.size())
      if (!has_answered(known)) break;
    const bool is_late = heard->answers.size() < left.size();
    for (auto&& answer : heard->answers) all.emplace_back(std::move(answer));  // bools are no objects there
    lock.unlock();
    if (!is_late) {
      thread.join();
      return all;
    }
    all.emplace_back();
    made_detached_call = true;
    thread.detach();
  }
  all.resize(calls.size());
  return all;
}

/// One call. Where no thread can be started it is made on this one: that is a limit of the system's, and no fault of what is asked. None: too late.
template <class Answer>
std::optional<Answer> answer_in_time(std::function<Answer()> call, Duration limit) {
  const auto begun = std::make_shared<std::atomic<bool>>(false);
  auto held = std::make_shared<char>();
  const std::weak_ptr<char> asked = held;  // there as long as a thread may still make the call
  auto answers = answers_in_time<Answer>({[call, begun, held = std::move(held)] { return *begun = true, call(); }}, limit);
  if (!answers.front() && asked.expired() && !*begun) return call();
  return std::move(answers.front());
}

}  // namespace elrun::inline v0::launcher
