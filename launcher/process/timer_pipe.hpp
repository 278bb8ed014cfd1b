#pragma once
/// \file TimerPipe: the FIFO through which workers ask to be killed if they are late (file_timers.hpp), on the loop.

#include <sys/types.h>

#include <functional>
#include <memory>

#include <boost/asio/io_context.hpp>

#include <elrun/result.hpp>

#include "lib/base/clock.hpp"
#include "lib/base/files.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0::launcher {

/// Lives on the loop. The destructor removes the FIFO and waits for nobody.
class TimerPipe {
 public:
  /// `is_worker_group` knows which process groups this agent started; nobody outside them is killed, whatever the pipe says.
  static Result<std::unique_ptr<TimerPipe>> open(boost::asio::io_context& loop, const Clock& clock, const Log& log, const Path& path,
                                                 std::function<bool(pid_t)> is_worker_group);
  virtual ~TimerPipe() = default;
};

}  // namespace elrun::inline v0::launcher
