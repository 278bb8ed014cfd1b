#include "tests/support/sim/turns.hpp"

namespace elrun::sim {

Turns::Turns(std::function<void()> body) : body_{std::move(body)} {}

Turns::~Turns() {
  end();
  if (thread_.joinable()) thread_.join();
}

void Turns::hand_over(bool to_body) {
  std::unique_lock lock{mutex_};
  bodys_turn_ = to_body;
  changed_.notify_all();
  changed_.wait(lock, [&] { return bodys_turn_ != to_body; });
}

void Turns::give() {
  if (over_) return;
  if (thread_.joinable()) return hand_over(true);
  bodys_turn_ = true;
  thread_ = std::thread{[this, bug = planted_bug] {
    planted_bug = bug;
    try {
      body_();
    } catch (const Ended&) {
    }
    const std::lock_guard lock{mutex_};
    over_ = true;
    bodys_turn_ = false;
    changed_.notify_all();
  }};
  std::unique_lock lock{mutex_};
  changed_.wait(lock, [&] { return !bodys_turn_; });
}

void Turns::wait() {
  if (!ending_) hand_over(false);
  if (ending_) throw Ended{};
}

void Turns::end() {
  ending_ = true;
  while (thread_.joinable() && !over_) give();
}

}  // namespace elrun::sim
