#include "launcher/process/worker_processes.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <boost/asio/post.hpp>

#include "lib/base/failure.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration leave_within = 10s;       // of all dead workers together, when this agent ends
constexpr Duration warn_after = 10s;         // of an end that takes long
constexpr Duration orphans_end_within = 2s;  // after SIGKILL the kernel needs microseconds, unless a driver hangs

Path temporary_directory(const Variables& environment) {
  const auto named = environment.find("TMPDIR");
  return named != environment.end() && !named->second.empty() ? named->second : "/tmp";
}

}  // namespace

WorkerProcesses::WorkerProcesses(boost::asio::io_context& loop, const Guard& guard, const Clock& clock, const Log& log, Setting setting,
                                 Reporter& reporter, std::function<void(Event)> feed)
    : loop_{loop},
      guard_{guard},
      clock_{clock},
      log_{log},
      setting_{std::move(setting)},
      reporter_{reporter},
      feed_{std::move(feed)},
      socket_{setting_.socket},
      stack_tools_{loop,
                   guard,
                   clock,
                   log,
                   {setting_.agent.directory, setting_.agent.environment, setting_.agent.options.timeouts.stacks,
                    setting_.agent.options.hang_timeout > Duration{0}, setting_.agent.exec_limit}},
      output_watch_{loop},
      orphans_{loop, clock, setting_.socket.string(), [this](pid_t pid) { return is_known(pid); }},
      exit_watch_{loop, [this](LocalRank worker) {
                    // Where all start again they wait for its end in any case: what it held, such as a port, is to be free by then.
                    const auto child = children_.find(worker);
                    if (child != children_.end() && setting_.is_replaced(worker)) child->second->expect_end();
                  }} {}

Result<void> WorkerProcesses::open_output(const std::string& host, LogStream& lines) {
  const AgentSetting& agent = setting_.agent;
  auto output =
      Output::start(loop_, {agent.options, setting_.run, host, agent.directory, temporary_directory(agent.environment), lines}, log_);
  if (!output) return output.failure();
  output_ = std::move(*output);
  if (const auto opened = exit_watch_.open(agent.directory, agent.options.workers); !opened.ok())
    log_.warning("the death of a worker with much memory will be seen late: " + message(opened.failure()));
  return {};
}

void WorkerProcesses::start(const Spawn& spawn) {
  const AgentSetting& agent = setting_.agent;
  const LocalRank rank = spawn.worker;
  if (leaving_.contains(rank)) return wait_for_end(rank, spawn);
  exit_watch_.clear(rank);
  // One attempt has the files of one process of each worker.
  if (std::exchange(attempt_.generation, spawn.world.generation) != spawn.world.generation || attempt_.workers.contains(rank))
    output_->begin_attempt(), attempt_.workers.clear(), look_for_directory();
  attempt_.workers.insert(rank);
  const Rank placed{spawn.world.seat.base_rank + spawn.place};
  const Path error_file = output_->error_file(rank);
  const WorkerSetting worker{agent.options,       spawn.world, setting_.run, setting_.node, rank,
                             spawn.node_restarts, socket_,     spawn.place,  error_file};
  const WorkerStreams streams = output_->open(rank, placed);
  const Execution execution{agent.command.path,
                            worker_arguments(agent.command, agent.options.program, rank),
                            worker_environment(agent.environment, worker),
                            streams.out.get(),
                            streams.err.get(),
                            agent.cpus.empty() ? Cpus{} : agent.cpus[rank.value()],
                            -1,
                            agent.exec_limit};
  const CgroupCounts before = reporter_.counts();
  auto child = Child::start(loop_, guard_, execution, [this, rank](Ending ending) {
    output_->after_worker(rank,
                          [this, rank, ending, ended_ns = clock_.wall_ns()] { ended(rank, ending, ended_ns); });  // its last output first
  });
  std::string& never_ran = never_ran_[rank];
  never_ran.clear();
  if (!child) {
    log_.error(never_ran = message(child.failure()));
    reporter_.not_started(rank, placed);
    return feed_(reporter_.ended(rank, {.exit_code = exit_code::cannot_execute}, clock_.wall_ns(), never_ran, {}));
  }
  reporter_.started(rank, placed, spawn.node_restarts, (*child)->pid(), before, error_file, output_->keeps_files());
  (*child)->on_held([this, rank](pid_t tracer) {
    log_.warning(fmt::format(
        "worker {} of this node has ended, but process {} (a debugger?) is attached to it: {} waits until that process detaches or ends",
        rank.value(), tracer, leaving_.contains(rank) ? "its successor" : "the job"));
  });
  (*child)->on_late_exec([this, rank, path = execution.path](Duration limit) {
    log_.warning(fmt::format("worker {} of this node: the exec of {} has not returned yet; does its storage answer? It is waited for {}",
                             rank.value(), path, for_people(limit)));
  });
  (*child)->on_gone([this, rank] { boost::asio::post(loop_, [this, rank] { is_gone(rank); }); });
  feed_(WorkerStarted{rank, (*child)->pid()});
  if (agent.options.hang_timeout > Duration{0} && agent.options.hang_sign == HangSign::output) watch_output();
  children_.insert_or_assign(rank, std::move(*child));
}

// The workers that run have their connections. One that starts needs a socket that is there.
void WorkerProcesses::look_for_directory() {
  if (::access(socket_.c_str(), F_OK) == 0 || errno != ENOENT) return;
  const std::string lost = socket_.parent_path().native();
  const std::string cause =
      lost.starts_with("/run/user/")
          ? "systemd-logind removes $XDG_RUNTIME_DIR at the user's last logout: start elrun with XDG_RUNTIME_DIR unset, "
            "or `loginctl enable-linger` first"
          : "Somebody, or what cleans temporary files, has done that: except it there";
  const auto moved = setting_.move_socket();
  if (!moved.ok())
    return log_.error(fmt::format(
        "{} was removed, and no other directory can be made ({}): workers that start from now on cannot reach this agent, if they "
        "use libelrun. {}, and start the job again",
        lost, message(moved.failure()), cause));
  socket_ = *moved;
  orphans_.has_socket(socket_.string());
  log_.warning(
      fmt::format("{} was removed: workers that start from now on reach this agent at {}, and saves are not asynchronous any more. {}",
                  lost, socket_.native(), cause));
}

void WorkerProcesses::ended(LocalRank worker, Ending ending, std::int64_t ended_ns) {
  const auto child = children_.find(worker);
  if (child == children_.end() || !told_.insert(worker).second) return;  // it was given up
  if (const std::string& why = child->second->never_ran(); !why.empty()) log_.error(never_ran_[worker] = why);
  feed_(reporter_.ended(worker, ending, ended_ns, never_ran_[worker], output_->last_words(worker)));
}

// Every worker's bytes are looked at a few times within the time after which silence is a hang.
void WorkerProcesses::watch_output() {
  output_watch_.expires_after(setting_.agent.options.hang_timeout / 8);
  output_watch_.async_wait([this](const boost::system::error_code& error) {
    if (error || children_.empty()) return;
    for (const auto& [worker, child] : children_)
      // A place of logs that does not answer says nothing about the worker, so it is not taken for one that hangs.
      if (const auto bytes = output_->bytes_of(worker); !bytes || std::exchange(bytes_seen_[worker], *bytes) != *bytes)
        feed_(WorkerWrote{worker});
    watch_output();
  });
}

void WorkerProcesses::signal(const SignalGroup& signal) {
  if (const auto leaving = leaving_.find(signal.worker); leaving != leaving_.end() && leaving->second.successor) {
    const Spawn never = *std::exchange(leaving->second.successor, std::nullopt);
    reporter_.not_started(never.worker, Rank{never.world.seat.base_rank + never.place});
    return feed_(reporter_.ended(never.worker, {.signal = signal.number}, clock_.wall_ns(), {}, {}));
  }
  const auto child = children_.find(signal.worker);
  if (child == children_.end()) return;
  stack_tools_.let_go(signal.worker);
  child->second->signal(signal.number);
  if (signal.number == SIGABRT) child->second->signal(SIGCONT);  // who is stopped answers no other signal
}

void WorkerProcesses::give_up(LocalRank worker) { ended(worker, {.signal = SIGKILL}, clock_.wall_ns()); }

void WorkerProcesses::release(LocalRank worker) {
  stack_tools_.let_go(worker);
  const auto found = children_.find(worker);
  if (found == children_.end()) return;
  std::unique_ptr<Child> child = std::move(found->second);
  children_.erase(found);
  told_.erase(worker);
  if (child->is_gone()) return;
  child->signal(SIGKILL);
  leaving_.emplace(worker, Leaving{std::move(child), false, {}, boost::asio::steady_timer{loop_}});
}

void WorkerProcesses::wait_for_end(LocalRank worker, const Spawn& successor) {
  Leaving& leaving = leaving_.at(worker);
  leaving.successor = successor;
  leaving.tells.expires_after(warn_after);
  leaving.tells.async_wait([this, worker, pid = leaving.child->pid()](const boost::system::error_code& cancelled) {
    if (!cancelled)
      log_.warning(fmt::format(
          "worker {} of this node is dead, but the kernel has not freed its memory and devices in {} (process {}): its successor starts when it has",
          worker.value(), for_people(warn_after), pid));
  });
}

void WorkerProcesses::is_gone(LocalRank worker) {
  const auto found = leaving_.find(worker);
  if (found == leaving_.end() || !found->second.child->is_gone()) return;  // it is to be released yet, or was
  if (found->second.ends_orphans) end_orphans_of(worker);
  const std::optional<Spawn> successor = std::move(found->second.successor);
  leaving_.erase(found);
  if (successor) start(*successor);
}

// Whoever starts the job again needs their memory and devices. A driver or a debugger may hold them for good.
void WorkerProcesses::clear() {
  children_.clear();
  const Instant until = clock_.now() + leave_within;
  for (auto& [worker, leaving] : leaving_) {
    if (!leaving.child->end_within(std::max(until - clock_.now(), Duration{0})))
      log_.warning(fmt::format("worker {} of this node is dead, but the kernel has not freed its memory and devices yet (process {})",
                               worker.value(), leaving.child->pid()));
    else if (leaving.ends_orphans) end_orphans_of(worker);
  }
  leaving_.clear();
}

void WorkerProcesses::end_orphans(const EndOrphans& orphans) {
  end_orphans([&](pid_t, const OrphanOwner& owner) { return fate_of(owner, orphans.stay, orphans_.inherits_others()); });
  for (auto& [worker, leaving] : leaving_) {
    if (std::find(orphans.stay.begin(), orphans.stay.end(), worker) != orphans.stay.end()) continue;
    kill_descendants(leaving.child->pid());  // they are no children of this process yet
    leaving.ends_orphans = true;
  }
}

void WorkerProcesses::end_orphans_of(LocalRank worker) {
  end_orphans([worker](pid_t, const OrphanOwner& owner) { return owner.rank == worker ? OrphanFate::ends : OrphanFate::stays; });
}

void WorkerProcesses::end_orphans(const Orphans::Fate& fate) {
  const Orphans::Ended ended = orphans_.end(orphans_end_within, fate);
  if (ended.killed > 0)
    log_.info(fmt::format("killed {} process{} that workers had left behind", ended.killed, ended.killed == 1 ? "" : "es"));
  if (!ended.unclear.empty())
    log_.warning(fmt::format(
        "nobody can say whether workers that live started these processes, so they stay: {}; if a dead one did, they may hold its device",
        fmt::join(ended.unclear, ", ")));
  if (!ended.remain.empty())
    log_.warning(fmt::format(
        "workers had left behind these processes, which are stuck in the kernel: {}; a device or port that they hold may be missing",
        fmt::join(ended.remain, ", ")));
}

void WorkerProcesses::take_stacks(LocalRank worker) {
  const auto child = children_.find(worker);
  if (child == children_.end()) return;
  if (child->second->is_executing())  // it has the agent's own memory yet
    return log_.error(fmt::format("worker {} of this node: the exec of {} has not returned; does its storage answer?", worker.value(),
                                  setting_.agent.command.path));
  stack_tools_.take(worker, child->second->pid());
}

bool WorkerProcesses::is_group(pid_t group) const {
  return std::any_of(children_.begin(), children_.end(), [&](const auto& child) { return child.second->pid() == group; }) ||
         std::any_of(leaving_.begin(), leaving_.end(), [&](const auto& leaving) { return leaving.second.child->pid() == group; });
}

bool WorkerProcesses::is_known(pid_t pid) const {
  return pid == guard_.pid() || guard_.keeps(pid) || is_group(pid) || stack_tools_.is_tool(pid) || setting_.is_other(pid);
}

}  // namespace elrun::inline v0::launcher
