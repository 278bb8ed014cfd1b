#pragma once
/// \file NoticePoll: looks again and again whether this node is about to be taken away, without ever holding up the loop.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/process/child.hpp"
#include "launcher/process/detached_call.hpp"
#include "launcher/process/preempt_notice.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0::launcher {

/// Lives on the agent's loop. A file and a URL are looked at on a thread that nobody waits for, because a file system and a resolver can neither
/// be cancelled nor bounded; there is at most one such thread. A command runs beside the loop, and is killed when it is late. The destructor
/// waits for nobody.
class NoticePoll {
 public:
  struct Setting {
    NoticeSource source;
    Variables environment;  ///< Of a command.
  };
  /// `came` is called on the loop, once at most: the node is to leave, and why.
  NoticePoll(boost::asio::io_context& loop, const Guard& guard, const Clock& clock, const Log& log, Setting setting,
             std::function<void(std::string)> came);
  ~NoticePoll();
  NoticePoll(const NoticePoll&) = delete;
  NoticePoll& operator=(const NoticePoll&) = delete;

  void start() { look(); }
  /// A child process that this collects.
  [[nodiscard]] bool is_command(pid_t process) const { return command_ && command_->pid() == process; }

 private:
  void look();
  void look_on_thread();
  void run_command();
  void is_late();
  void found(const NoticeLook& look);
  void wait(Duration time);

  boost::asio::io_context& loop_;
  const Guard& guard_;
  const Clock& clock_;
  const Log& log_;
  const Setting setting_;
  const std::function<void(std::string)> came_;
  NoticeWatch watch_;
  boost::asio::steady_timer pause_, limit_;
  DetachedCall<NoticeLook> call_;
  std::shared_ptr<Child> command_;  // whose end may be told when it is gone
  bool was_killed_ = false;         // the command
};

}  // namespace elrun::inline v0::launcher
