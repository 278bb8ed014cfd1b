#pragma once
/// \file DetachedCall: a call that blocks, on a thread that nobody waits for; its answer comes to the loop.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0::launcher {

/// A call was made. From then on the process ends by `_Exit`: exit() would destroy what a call, or the end of its thread, still uses (OpenSSL has
/// a handler there).
inline std::atomic<bool> made_detached_call{false};

/// Loop thread only. For what can neither be cancelled nor bounded: a file system, a resolver. One call at a time. The destructor waits for nobody,
/// and what a call still finds after it is dropped; so a call holds nothing of the agent's, not even its clock.
template <class Answer>
class DetachedCall {
 public:
  explicit DetachedCall(boost::asio::io_context& loop) : loop_{loop}, mailbox_{std::make_shared<Mailbox>()} {}
  ~DetachedCall() {
    const std::lock_guard lock{mailbox_->mutex};
    mailbox_->open = false;
  }
  DetachedCall(const DetachedCall&) = delete;
  DetachedCall& operator=(const DetachedCall&) = delete;

  /// \throws std::system_error where no thread can be started.
  void call(std::function<Answer()> work, std::function<void(const Answer&)> then) {
    mailbox_->then = std::move(then);
    made_detached_call = true;
    quiet_thread([mailbox = mailbox_, &loop = loop_, work = std::move(work)] {
      Answer answer = work();
      const std::lock_guard lock{mailbox->mutex};
      if (!mailbox->open) return;
      boost::asio::post(loop, [weak = std::weak_ptr{mailbox}, answer = std::move(answer)] {
        if (const auto there = weak.lock(); there && there->open) there->then(answer);
      });
    }).detach();
  }

 private:
  struct Mailbox {
    std::mutex mutex;
    bool open = true;                         // written on the loop, under the mutex
    std::function<void(const Answer&)> then;  // loop thread only
  };
  boost::asio::io_context& loop_;
  std::shared_ptr<Mailbox> mailbox_;
};

}  // namespace elrun::inline v0::launcher
