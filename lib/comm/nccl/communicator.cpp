/// The idea: NCCL takes one thread at a time per communicator, and any of its calls may hang. So one thread owns the communicator, and nobody who waits for
/// it waits without an end. The owner does what CommunicatorLife says; this file only sees, calls and waits.

#include "lib/comm/nccl/communicator.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "lib/base/clock.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/base/wait_time.hpp"
#include "lib/comm/nccl/mailbox.hpp"
#include "lib/device/current_device.hpp"
#include "lib/device/handles.hpp"
#include "lib/device/runtime.hpp"

namespace elrun::inline v0 {
namespace {

using Next = CommunicatorLife::Next;

/// How often the owner looks while something is under way: at first often, for most calls are short.
constexpr Duration look_first = 50us, look_last = 1ms;
/// What the owner may take beyond a call's limit and an abort before it counts as lost inside NCCL.
constexpr Duration owner_grace = 1s;

/// Once an abort has not returned in this process, or an owner, nothing more is begun there.
std::atomic<bool> process_is_stuck{false};

Failure forked(int process) {
  return {.code = Code::refused,
          .remedy = Remedy::exit_process,
          .what = fmt::format("this process was forked from worker {} and has no communicator", process)};
}

}  // namespace

class NcclCommunicator::Owner : public std::enable_shared_from_this<Owner> {
 public:
  Owner(const NcclLibrary& nccl, NcclGroup group)
      : nccl_{nccl}, group_{std::move(group)}, life_{group_.place, group_.limits, clock_.now(), group_.connect} {}

  // --- on the caller's threads ---

  Result<void> begin() {
    if (group_.on_generation_over) {
      group_.on_generation_over([weak = weak_from_this()](const Failure& why) {
        if (const auto alive = weak.lock()) alive->revoke(why);
      });
    }
    auto thread = try_quiet_thread("make a communicator of NCCL", [self = shared_from_this()] { self->run(); });
    if (!thread.ok()) return located(std::move(thread).failure(), group_.place.me, group_.place.group);
    thread_ = std::move(*thread);
    return answer_of(group_.connect, "making the communicator", [this](Duration most) { return mailbox_.wait_until_made(most); });
  }

  Work call(std::string name, Stream stream, Duration limit, Body body) {
    const auto request = std::make_shared<Request>(Request{std::move(name), stream, limit, std::move(body)});
    Result<void> told = mailbox_.post(request);
    if (told.ok()) {
      told = answer_of(limit, request->name, [&](Duration most) { return mailbox_.wait_until_issued(*request, most); });
      if (told.ok() || !mailbox_.withdraw(request)) return request->promise.work();
    }
    const WorkPromise lost;
    lost.end(std::move(told));
    return lost.work();
  }

  void revoke(const Failure& why) { mailbox_.revoke(why); }

  Result<void> close(Duration limit) {
    mailbox_.ask_to_close({Deadline::after(clock_.now(), limit), limit});
    return answer_of(limit, "the communicator's orderly end", [this](Duration most) { return mailbox_.wait_until_ended(most); });
  }

  /// Waits for the owner. False: it is lost, and stays behind.
  bool join() {
    if (!thread_.joinable()) return true;
    if (!mailbox_.wait_until_ended(group_.limits.ahead + group_.limits.abort + owner_grace)) {
      process_is_stuck = true;
      thread_.detach();
      return false;
    }
    thread_.join();
    return true;
  }

 private:
  using Request = OwnerMailbox::Request;
  struct Running {
    std::uint64_t number;
    Stream stream;
    OwnedEvent begin, end;
    WorkPromise promise;
    bool event_over = false;
  };

  /// `wait`: of the mailbox. The owner keeps the deadline itself. If it does not come back from NCCL, nothing in this process helps any more.
  template <class Wait>
  Result<void> answer_of(Duration limit, const std::string& what, const Wait& wait) {
    const Instant now = clock_.now();
    const Duration most = wait_time(Deadline::after(now, limit), now) + group_.limits.ahead + group_.limits.abort + owner_grace;
    if (auto answer = wait(most)) return *std::move(answer);
    process_is_stuck = true;
    return Failure{
        .code = Code::deadline_passed,
        .remedy = Remedy::exit_process,
        .what = fmt::format("{} on cuda:{}: a call of NCCL did not return within {} ms, so only the end of this process frees the device",
                            what, group_.place.device.index, most / 1ms),
        .rank = group_.place.me.rank,
        .generation = group_.place.me.generation};
  }

  // --- on the owner's thread ---

  void run() {
    try {
      keep_current(group_.place.device);
      if (!mailbox_.said().over) make();  // or a communicator that blocks (NCCL_COMM_BLOCKING) would hold the owner for nothing
      Duration pause = look_first;
      for (;;) {
        const Next next = look();
        if (next == Next::end) break;
        if (next == Next::give_up) give_up();
        if (life_.state() == CommunicatorState::ready && work()) {
          pause = look_first;
          continue;
        }
        rest(next, pause);
        pause = std::min(2 * pause, look_last);
      }
      if (helper_.joinable() && life_.state() == CommunicatorState::gone) helper_.join();
      else if (helper_.joinable()) helper_.detach();
      tell_the_end();
    } catch (const Error& error) {
      fail_with(error.failure());
    } catch (const std::exception& error) {
      fail_with(
          {.code = Code::exhausted, .remedy = Remedy::exit_process, .what = fmt::format("the owner of a communicator: {}", error.what())});
    }
  }

  void make() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const Membership& me = group_.place.me;
    std::vector<ncclUniqueId> ids(group_.ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) std::ranges::copy(group_.ids[i], reinterpret_cast<std::byte*>(ids[i].internal));
    answered("ncclCommInitRankScalable", nccl_.comm_init(&comm_, static_cast<int>(me.world.value()), static_cast<int>(me.rank.value()),
                                                         static_cast<int>(ids.size()), ids.data(), &config));
  }

  void answered(const char* call, ncclResult_t result) {
    const NcclResult answer = result_of(result);
    life_.answered(call, answer, is_error(answer) ? last_error() : "");
  }

  /// NCCL says that a call of CUDA failed, and not which error it was. A device that is lost says it again.
  void ask_device(const std::string& call, NcclResult answer, Stream stream) {
    if (answer != NcclResult::unhandled_cuda_error) return;
    const auto done = runtime::is_done(stream);
    if (done.ok()) return;
    const std::string detail = last_error();
    life_.fail({.code = done.failure().code,
                .remedy = Remedy::exit_process,
                .what = fmt::format("{} on cuda:{}: {}{}{}", call, group_.place.device.index, done.failure().what,
                                    detail.empty() ? "" : "; NCCL: ", detail)});
  }

  std::string last_error() {
    const char* text = comm_ != nullptr ? nccl_.get_last_error(comm_) : nullptr;
    return text == nullptr ? "" : text;
  }

  /// The program's own work before a call is not over.
  [[nodiscard]] static bool is_ahead(const OwnedEvent& begin) {
    const auto begun = runtime::is_done(begin.view());
    return begun.ok() && !*begun;
  }

  /// Before a later call of the same stream are NCCL's own kernels.
  [[nodiscard]] bool is_first_in_stream(std::size_t i) const {
    return std::none_of(running_.begin(), running_.begin() + static_cast<std::ptrdiff_t>(i),
                        [&](const Running& each) { return !each.event_over && each.stream.handle() == running_[i].stream.handle(); });
  }

  /// First the events, then NCCL's answer: what NCCL says after an event holds for what was before it.
  Next look() {
    std::vector<std::size_t> over;
    bool drained = true, ahead = false;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (!running_[i].event_over) {
        const auto done = runtime::is_done(running_[i].end.view());
        if (!done.ok()) life_.fail(done.failure());
        running_[i].event_over = !done.ok() || *done;
      }
      if (running_[i].event_over) over.push_back(i);
      else drained = false;
      if (life_.state() == CommunicatorState::aborting && !running_[i].event_over && is_first_in_stream(i))
        ahead |= is_ahead(running_[i].begin);
    }
    for (const OwnedEvent& begin : begun_in_vain_) ahead |= is_ahead(begin);
    ncclResult_t answer = ncclSuccess;
    if (comm_ != nullptr) answered("ncclCommGetAsyncError", nccl_.comm_get_async_error(comm_, &answer));
    if (issuing_ != nullptr) ask_device(issuing_->name, result_of(answer), issuing_->stream);
    const std::string detail = is_error(result_of(answer)) ? last_error() : "";
    std::ranges::reverse(over);
    for (const std::size_t i : over) {
      if (!life_.call_ended(running_[i].number, result_of(answer))) continue;
      running_[i].promise.end({});
      spare_events_.push_back(std::move(running_[i].begin));
      spare_events_.push_back(std::move(running_[i].end));
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    const OwnerMailbox::Said said = mailbox_.said();
    CommunicatorView view{.now = clock_.now(),
                          .answer = result_of(answer),
                          .detail = detail,
                          .over = said.over ? &*said.over : nullptr,
                          .abort_returned = said.abort_returned,
                          .drained = drained,
                          .ahead = ahead};
    if (group_.lost_peer) view.lost = group_.lost_peer();
    const Next next = life_.look(view);
    if (life_.state() == CommunicatorState::ready && !std::exchange(reported_made_, true)) mailbox_.made();
    if (next == Next::end && !life_.has_failed()) answered("ncclCommDestroy", nccl_.comm_destroy(std::exchange(comm_, nullptr)));
    return next;
  }

  /// The next request, or the orderly end. False: there is none.
  bool work() {
    const auto [request, close] = mailbox_.take(running_.empty());
    if (request) return issue(request), true;
    if (close && running_.empty()) {
      if (life_.begin_close(clock_.now(), close->limit).ok()) answered("ncclCommFinalize", nccl_.comm_finalize(comm_));
      return true;
    }
    if (close && close->at.passed(clock_.now()))
      life_.fail({.code = Code::deadline_passed,
                  .remedy = Remedy::abort_group,
                  .what = fmt::format("{} calls were under way at the group's orderly end, and not over within {} ms", running_.size(),
                                      close->limit / 1ms)});
    return false;
  }

  void issue(const std::shared_ptr<Request>& request) {
    issuing_ = request;
    give_to_nccl(request);
    issuing_ = nullptr;
  }

  void give_to_nccl(const std::shared_ptr<Request>& request) {
    const auto number = life_.begin_call(request->name, clock_.now(), request->limit);
    if (!number.ok()) return mailbox_.issued(*request, number.failure());
    std::optional<Running> running = running_from(*number, *request);
    if (!running) {
      failed_in_issue_.push_back(request);
      if (look() == Next::give_up) give_up();
      return;
    }
    ncclResult_t first = nccl_.group_start();
    if (first == ncclSuccess) {
      first = request->body(nccl_, comm_, static_cast<cudaStream_t>(request->stream.handle()));
      const ncclResult_t end = nccl_.group_end();
      if (first == ncclSuccess || first == ncclInProgress) first = end;
    }
    ask_device(request->name, result_of(first), request->stream);
    answered(request->name.c_str(), first);
    Next next = look();
    for (Duration pause = 10us; life_.state() == CommunicatorState::issuing; next = look()) {
      std::this_thread::sleep_for(pause);  // NCCL gives the call to its stream on a thread of its own
      pause = std::min(2 * pause, look_last);
    }
    if (next == Next::give_up) give_up();
    if (life_.has_failed()) begun_in_vain_.push_back(std::move(running->begin));
    else watch(*std::move(running), request->stream);
    if (life_.has_failed()) failed_in_issue_.push_back(request);  // told once it is aborted
    else mailbox_.issued(*request, {});
  }

  /// An event before the call tells whether what the program put into the stream before it is over. Nothing: the device failed, and so has the communicator.
  std::optional<Running> running_from(std::uint64_t number, const Request& request) {
    try {
      Running running{number, request.stream, spare_event(), spare_event(), request.promise, false};
      running.begin.record(request.stream);
      return running;
    } catch (const Error& error) {  // of the device layer: the device is lost, or has no memory
      life_.fail(error.failure());
      return std::nullopt;
    }
  }

  /// One behind it tells its end.
  void watch(Running running, Stream stream) {
    try {
      running.end.record(stream);
      running_.push_back(std::move(running));
    } catch (const Error& error) {
      life_.fail(error.failure());
    }
  }

  OwnedEvent spare_event() {
    if (spare_events_.empty()) return OwnedEvent{group_.place.device};
    OwnedEvent event = std::move(spare_events_.back());
    spare_events_.pop_back();
    return event;
  }

  void give_up() {
    // NCCL's abort waits for the other ranks of this machine: they have to hear of it before.
    if (const Failure why = life_.failure_so_far(); group_.failed && why.code != Code::generation_over) group_.failed(why);
    ncclComm_t comm = std::exchange(comm_, nullptr);
    if (comm == nullptr) return mailbox_.abort_returned();
    try {
      helper_ = quiet_thread([self = shared_from_this(), comm] {
        try {
          keep_current(self->group_.place.device);
        } catch (const Error&) {  // a device that is lost may say so here. The communicator is to be aborted all the same
        }
        (void)self->nccl_.comm_abort(comm);  // whatever it says, the communicator is gone
        self->mailbox_.abort_returned();
      });
    } catch (const std::system_error&) {
      // Without a thread it cannot be aborted. The limit of the abort passes, and the process is told to end.
    }
  }

  void rest(Next next, Duration pause) {
    const CommunicatorState state = life_.state();
    const bool ready = state == CommunicatorState::ready;
    mailbox_.rest({.at_revocation = !life_.has_failed(),
                   .at_return_of_abort = state == CommunicatorState::aborting,
                   .at_request = ready,
                   .at_close = ready && running_.empty()},
                  next == Next::rest ? std::nullopt : std::optional{pause});
  }

  void tell_the_end() {
    if (life_.state() == CommunicatorState::stuck) process_is_stuck = true;
    if (life_.has_failed()) return fail_with(life_.failure_so_far());
    fail_with({.code = Code::refused, .remedy = Remedy::abort_group, .what = "the group was closed"}, true);
  }

  /// All that was begun fails, and all that will be.
  void fail_with(Failure why, bool closed_well = false) {
    if (helper_.joinable()) helper_.detach();  // it holds this object
    why.rank = group_.place.me.rank;
    why.generation = group_.place.me.generation;
    if (life_.state() == CommunicatorState::stuck) {
      for (Running& each : running_)
        for (OwnedEvent* event : {&each.begin, &each.end}) begun_in_vain_.push_back(std::move(*event));
      (void)new std::vector<OwnedEvent>{std::move(begun_in_vain_)};  // NOLINT: what is stuck is left alone
    }
    for (const Running& each : running_) each.promise.end(why);
    running_.clear();
    for (const auto& each : failed_in_issue_) mailbox_.issued(*each, why);
    if (issuing_) mailbox_.issued(*issuing_, why);  // left half way by an exception
    mailbox_.end(why, closed_well);
  }

  const NcclLibrary nccl_;
  const NcclGroup group_;
  const SteadyClock clock_;
  std::thread thread_;

  OwnerMailbox mailbox_;

  // The owner's own.
  CommunicatorLife life_;
  ncclComm_t comm_ = nullptr;
  std::vector<Running> running_;
  std::shared_ptr<Request> issuing_;
  std::vector<std::shared_ptr<Request>> failed_in_issue_;
  std::vector<OwnedEvent> spare_events_;
  std::vector<OwnedEvent> begun_in_vain_;  // before calls that failed while they were issued
  bool reported_made_ = false;
  std::thread helper_;  // aborts
};

NcclCommunicator::NcclCommunicator(std::shared_ptr<Owner> owner) : owner_{std::move(owner)}, process_{::getpid()} {}

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::make(const NcclLibrary& nccl, NcclGroup group) {
  if (process_is_stuck)
    return Failure{.code = Code::exhausted,
                   .remedy = Remedy::exit_process,
                   .what = fmt::format("an abort of NCCL did not return in this process, so cuda:{} cannot be used here any more",
                                       group.place.device.index),
                   .rank = group.place.me.rank,
                   .generation = group.place.me.generation};
  // Not make_shared: a weak pointer stays for as long as the generation lasts, and that would keep the owner's memory.
  std::unique_ptr<NcclCommunicator> made{new NcclCommunicator{std::shared_ptr<Owner>{new Owner{nccl, std::move(group)}}}};
  ELRUN_TRY(made->owner_->begin());
  return made;
}

Work NcclCommunicator::call(std::string name, Stream stream, Duration limit, Body body) {
  if (::getpid() == process_) return owner_->call(std::move(name), stream, limit, std::move(body));
  WorkPromise none;
  none.end(forked(process_));
  return none.work();
}

void NcclCommunicator::revoke(const Failure& why) {
  if (::getpid() == process_) owner_->revoke(why);
}

Result<void> NcclCommunicator::close(Duration limit) {
  if (::getpid() != process_) return forked(process_);
  return owner_->close(limit);
}

NcclCommunicator::~NcclCommunicator() {
  if (::getpid() != process_) {                           // thread and communicator are the parent's
    (void)new std::shared_ptr<Owner>{std::move(owner_)};  // NOLINT(bugprone-unhandled-exception-at-new)
    return;
  }
  owner_->revoke({.code = Code::generation_over, .remedy = Remedy::abort_group, .what = "the group was given up"});
  (void)owner_->join();
}

}  // namespace elrun::inline v0
