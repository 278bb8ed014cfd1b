#pragma once
/// \file A program that gives its device much to do and does not wait for it: forward and backward through units, in the job's stream. On the host the same sums.

#include <atomic>
#include <optional>

#include "kernels/fold.hpp"
#include "lib/device/current_device.hpp"
#include "lib/device/handles.hpp"
#include "lib/device/runtime.hpp"
#include "lib/device/wait.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/unit/job_world.hpp"

namespace elrun::test {

/// For a world of two, of which rank 0 has kernels that run until it has got what it waits for. Rank 1 joins the round that brings it only once rank 0 has given its device those kernels. So in
/// one stream the exchange would be behind them.
struct GoesAhead {
  enum class With : std::uint8_t { weights, leaves } with;
  std::atomic<std::uint64_t> given{0};  ///< Batches of kernels, to the device of rank 0.
  std::uint64_t beside = 0;             ///< How often what it waited for came,
  std::uint64_t late = 0;               ///< and how often it had not come after a minute, so that the kernels were let go.
};

class BusyModel {
 public:
  static constexpr std::size_t units_count = 5;
  static constexpr std::uint64_t elements = 2500;

  BusyModel(Job& job, GoesAhead* ahead) : job_{job}, ahead_{ahead} {
    for (std::size_t u = 0; u < units_count; ++u) {
      units_.push_back(job.unit(fmt::format("unit {}", u)));
      weights_.push_back(units_.back().tensor<float>("weights", {elements}));
    }
  }
  /// After seal().
  void allocate() {
    if (!on_device()) return;
    const CurrentDevice current{job_.device()};
    sum_ = DeviceBuffer{job_.device(), elements * sizeof(float)};
    given_ = OwnedEvent{job_.device()};
    runtime::fill_async({sum_.data(), sum_.size()}, std::byte{0}, job_.stream());
  }
  void initialize() {
    for (std::size_t u = 0; u < units_count; ++u) {
      std::vector<float> values(elements);
      for (std::size_t i = 0; i < elements; ++i) values[i] = job_.rng(fmt::format("unit {}", u)).normal(i);
      const auto scope = units_[u].use();
      weights_[u].set(values);
    }
  }
  /// `order_is_known`: weights come ahead of their use.
  void forward(bool order_is_known) {
    const CurrentDevice current{job_.device()};
    for (std::size_t u = 0; u < units_count; ++u) {
      const bool ahead = order_is_known && u > 0;
      if (ahead) let_go_ahead(GoesAhead::With::weights);
      const auto scope = units_[u].use();
      let_go_of_kernels();
      give(u, GoesAhead::With::weights, order_is_known && u + 1 < units_count);
    }
  }
  /// A gradient is the weights, a few times.
  void backward() {
    const CurrentDevice current{job_.device()};
    for (std::size_t u = units_count; u-- > 0;) {
      const auto scope = units_[u].use_grad();  // of the leaves before, one waits at most
      let_go_of_kernels();
      for (std::size_t i = 0; i < 3; ++i) {
        if (on_device()) add_into_async(weights_[u].grad_device_span(), weights_[u].device_span(), job_.stream());
        else add_into(weights_[u].grad_span(), weights_[u].span());
      }
      give(u, GoesAhead::With::leaves, u > 0 && u + 1 < units_count);
      if (u > 0) let_go_ahead(GoesAhead::With::leaves);
    }
  }
  /// Until the device has done all of it.
  void finish() {
    static const SteadyClock clock;
    if (!on_device()) return;
    given_.record(job_.stream());
    wait_for(given_.view(), {.what = "the model", .deadline = Deadline::after(clock.now(), 60s)}, clock).value();
  }

 private:
  struct Held {
    std::atomic<bool> released{false}, late{false};
    std::chrono::steady_clock::time_point until = std::chrono::steady_clock::now() + 60s;
    bool is_late() { return late = late || std::chrono::steady_clock::now() > until; }
  };
  [[nodiscard]] bool on_device() const { return job_.device().kind == DeviceKind::cuda; }
  [[nodiscard]] bool is_ahead(GoesAhead::With with) const {
    return ahead_ != nullptr && ahead_->with == with && JobAccess::rank(job_) == 0;
  }
  /// Kernels that read a unit's weights; `waited_for`: something comes next that they may not keep waiting.
  void give(std::size_t u, GoesAhead::With with, bool waited_for) {
    ++batches_;
    if (!on_device()) return;
    if (waited_for && is_ahead(with)) {
      held_ = std::make_shared<Held>();
      fakegpu::hold_stream(job_.stream().handle(), [held = held_] { return held->released || held->is_late(); });
    }
    const DeviceSpan<float> sum{reinterpret_cast<float*>(sum_.data()), elements};
    for (int i = 0; i < 3; ++i) add_into_async(sum, weights_[u].device_span(), job_.stream());
    given_.record(job_.stream());
    if (is_ahead(with)) ahead_->given = batches_;
  }
  void let_go_ahead(GoesAhead::With with) const {
    if (ahead_ == nullptr || ahead_->with != with || JobAccess::rank(job_) != 1) return;
    for (int i = 0; i < 60'000 && ahead_->given <= batches_; ++i) std::this_thread::sleep_for(1ms);
    must(ahead_->given > batches_, "rank 0 did not go ahead");
  }
  /// What the kernels were not to keep waiting has come.
  void let_go_of_kernels() {
    if (held_ == nullptr) return;
    ++(held_->late ? ahead_->late : ahead_->beside);
    held_->released = true;
    held_.reset();
  }
  Job& job_;
  GoesAhead* const ahead_;
  std::vector<Unit> units_;
  std::vector<Tensor<float>> weights_;
  DeviceBuffer sum_;
  OwnedEvent given_;
  std::shared_ptr<Held> held_;
  std::uint64_t batches_ = 0;
};

inline Program busy_program(const Plan& plan, GoesAhead* ahead = nullptr) {
  return [plan, ahead](Job& job, Member& me) {
    job.configure(plan);
    BusyModel model{job, ahead};
    job.seal();
    model.allocate();
    if (!job.restore()) model.initialize();
    while (auto step = job.next_step()) {
      for (Slot& slot : step->slots()) {
        model.forward(ahead != nullptr && step->number() > 0);
        model.backward();
        slot.report(toy_loss(slot.samples(), slot.rng()), 1);
      }
      me.steps.push_back(step->apply(toy_adamw, toy_options(step->number())));
      (void)job.evaluate(3, [&](Slot& slot) {  // while the update may still run
        model.forward(false);
        slot.report(0.0f, 1);
      });
    }
    model.finish();
    me.outcome = job.outcome();
  };
}

}  // namespace elrun::test
