#pragma once
/// \file TrainJobPost: tells Kubeflow Trainer of the job's progress, beside the loop.

#include <functional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/process/detached_call.hpp"
#include "launcher/report/train_job.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0::launcher {

/// Lives on the agent's loop. The destructor waits for nobody.
class TrainJobPost {
 public:
  /// `done` is called on the loop after each answer: `is_awaited` may have become false.
  TrainJobPost(boost::asio::io_context& loop, const Clock& clock, const Log& log, TrainJobServer server, std::function<void()> done);
  void began(const World& world) { status_.began(world); }
  /// As `TrainJobStatus` has it.
  void decided(const StepProgress& progress);
  /// The job is over for this node.
  void finish();
  [[nodiscard]] bool is_awaited() const { return status_.is_awaited(); }

 private:
  void arm();
  void post();
  void answered(const Result<HttpReply>& reply);

  const Clock& clock_;
  const Log& log_;
  const TrainJobServer server_;
  const std::function<void()> done_;
  TrainJobStatus status_;
  boost::asio::steady_timer timer_, end_;  // the next one; the last moment for it at the end of the job
  DetachedCall<Result<HttpReply>> call_;
};

}  // namespace elrun::inline v0::launcher
