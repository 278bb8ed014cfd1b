#include "launcher/process/stack_tools.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include <fmt/format.h>
#include <boost/asio/post.hpp>

#include "launcher/process/stacks.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::size_t output_max = 256 * 1024;
constexpr rlim_t written_max = 4 * 1024 * 1024;  // by a tool that does not stop to write: its file may be in memory
constexpr Duration share_least = 1s;             // in less than this no tool says anything

std::string beginning_of(const Path& path) {
  std::ifstream in{path};
  std::string text(output_max, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

}  // namespace

StackTools::StackTools(boost::asio::io_context& loop, const Guard& guard, const Clock& clock, const Log& log, Setting setting)
    : loop_{loop}, guard_{guard}, clock_{clock}, log_{log}, setting_{std::move(setting)}, deadline_{loop} {
  if (setting_.are_likely) programs_ = find_stack_programs(setting_.environment);
}

StackTools::~StackTools() {
  if (running_) running_->tool->abandon();
  for (const auto& [number, tool] : killed_) tool->abandon();
}

bool StackTools::is_tool(pid_t process) const {
  const auto is_it = [process](const auto& killed) { return killed.second->pid() == process; };
  return (running_ && running_->tool->pid() == process) || std::any_of(killed_.begin(), killed_.end(), is_it);
}

void StackTools::take(LocalRank worker, pid_t process) {
  log_.error(fmt::format("what worker {} of this node is doing:\n{}", worker.value(), thread_states(process)));
  if (!programs_) programs_ = find_stack_programs(setting_.environment);
  const StackSource source = stack_source(process, *programs_);
  if (source.tool.empty()) return log_.info(fmt::format("worker {} of this node: {}", worker.value(), source.why_none));
  waiting_.push_back({worker, source.tool, clock_.now() + setting_.limit});
  boost::asio::post(loop_, [this] { start_next(); });  // when all that hang are known, each gets its share of the time
}

void StackTools::start_next() {
  while (!running_ && !waiting_.empty()) {
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    const Instant now = clock_.now();
    // Half of what is left, while others wait: one whole stack is worth more than the beginnings of all.
    const Duration left = next.until - now, share = waiting_.empty() ? left : std::min(left, std::max(left / 2, share_least));
    if (left <= Duration{0}) {
      log_.info(fmt::format("worker {} of this node: no time is left for its stacks", next.worker.value()));
      continue;
    }
    const Path output = setting_.directory / fmt::format("stacks_{}", next.worker.value());
    const Fd in{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
    const Fd out{::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
    const Execution execution{.path = next.command.front(),
                              .arguments = next.command,
                              .environment = tool_environment(setting_.environment),
                              .out = out.get(),
                              .err = out.get(),
                              .in = in.get(),
                              .exec_limit = setting_.exec_limit};
    auto started = Child::start(loop_, guard_, execution, [this, number = ++started_](Ending) {
      boost::asio::post(loop_, [this, number] {
        if (killed_.erase(number) == 0 && running_ && running_->number == number) over(false);
      });
    });
    if (!started.ok()) {
      log_.warning(fmt::format("worker {} of this node: its stacks are not known: {}", next.worker.value(), message(started.failure())));
      continue;
    }
    const rlimit written{written_max, written_max};
    ::prlimit((*started)->pid(), RLIMIT_FSIZE, &written, nullptr);
    running_ = Running{next.worker, next.command.front(), output, now, std::move(*started), started_};
    deadline_.expires_after(share);
    deadline_.async_wait([this](const boost::system::error_code& error) {
      if (!error) over(true);
    });
  }
}

void StackTools::let_go(LocalRank worker) {
  std::erase_if(waiting_, [worker](const Waiting& w) { return w.worker == worker; });
  if (running_ && running_->worker == worker) over(true);
}

void StackTools::over(bool was_killed) {
  if (!running_) return;
  Running done = *std::move(running_);
  running_.reset();
  deadline_.cancel();
  if (was_killed) {
    done.tool->signal(SIGKILL);  // the kernel lets go of what it traced
    killed_.emplace(done.number, std::move(done.tool));
  }
  const std::string said = beginning_of(done.output), text = said.empty() ? "(nothing)\n" : said;
  if (was_killed)
    log_.error(fmt::format("stacks of worker {} of this node: {} was not done after {} and was killed; it had said:\n{}",
                           done.worker.value(), done.name, for_people(clock_.now() - done.began), text));
  else log_.error(fmt::format("stacks of worker {} of this node, by {}:\n{}", done.worker.value(), done.name, text));
  boost::asio::post(loop_, [this] { start_next(); });
}

}  // namespace elrun::inline v0::launcher
