#include "launcher/chaos/rehearsed_job.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "launcher/options/environment.hpp"
#include "launcher/process/children.hpp"
#include "launcher/process/machine.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::uint16_t port_inside = 29400;  // of a network that has nothing else in it
constexpr std::size_t line_max = 16384, last_lines_max = 30;
constexpr const char* guard_name = "elrun-guard";

void kill_below(pid_t pid) {
  for (const pid_t below : processes_below(pid))
    if (process_name(below) != guard_name) ::kill(below, SIGKILL);
}

}  // namespace

RehearsedJob::RehearsedJob(boost::asio::io_context& loop, const Guard& guard, const Clock& clock, RehearsedSetting setting,
                           std::function<void(std::uint32_t, std::string_view)> line, std::function<void()> changed)
    : loop_{loop},
      guard_{guard},
      clock_{clock},
      setting_{std::move(setting)},
      line_{std::move(line)},
      changed_{std::move(changed)},
      nodes_(setting_.options.nodes_here()) {}

Result<void> RehearsedJob::start() {
  began_ = clock_.now();
  if (setting_.options.own_node) {
    port_ = setting_.options.endpoint_port;
  } else {
    HeldPort port;
    if (setting_.networks == nullptr) port = HeldPort::any(0);
    port_ = setting_.networks != nullptr ? port_inside : port.number();
    if (port_ == 0) return Failure{Code::io, Remedy::fix_config, "there is no free TCP port on this machine"};
  }
  // Others leave logs there; elrun's agents tidy up, and where they have their sockets the names must be short.
  if (!setting_.options.launcher.empty()) setting_.environment["TMPDIR"] = setting_.directory;
  for (std::uint32_t node = nodes_begin(); node < nodes_end(); ++node) ELRUN_TRY(open_output(node));
  if (has_store()) {
    store_log_ = Fd{::open((setting_.directory + "/store.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)};
    if (!store_log_) return from_errno(errno, fmt::format("create {}/store.log", setting_.directory));
    ELRUN_TRY(bring_back_store());
  }
  for (std::uint32_t node = nodes_begin(); node < nodes_end(); ++node) ELRUN_TRY(start_node(node));
  return {};
}

Places RehearsedJob::places(std::uint32_t node) const {
  const ChaosOptions& options = setting_.options;
  const std::string host = setting_.networks == nullptr ? "127.0.0.1" : NodeNetworks::address(has_store() ? nodes_end() : 0);
  return {.run = setting_.directory,
          .disk = options.disk_in(setting_.directory),
          .node = node,
          .nodes = options.world.nodes,
          .workers = options.world.workers,
          .host = host,
          .port = port_,
          .run_name = setting_.name};
}

Result<std::unique_ptr<Child>> RehearsedJob::spawn(std::vector<std::string> words, std::uint32_t network, int output,
                                                   std::function<void(Ending)> ended) {
  if (setting_.networks != nullptr) words = setting_.networks->inside(network, std::move(words));
  const auto command =
      resolve_command({.kind = Program::Kind::executable, .name = words.front()}, setting_.environment, look_up_file, "elrun");
  const auto* const found = std::get_if<Command>(&command);
  if (found == nullptr) return Failure{Code::not_found, Remedy::fix_config, std::get<NoCommand>(command).why};
  const Fd null{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  Execution execution{found->path, std::move(words), setting_.environment};
  execution.in = null.get();
  execution.out = execution.err = output;
  return Child::start(loop_, guard_, execution, std::move(ended));
}

Result<void> RehearsedJob::start_node(std::uint32_t node) {
  Node& n = at(node);
  n.child.reset();  // the one before, which has ended
  n.is_lost = n.has_worked = false;
  std::vector<std::string> words = node_command(setting_.options, places(node), setting_.elrun);
  if (setting_.networks != nullptr && setting_.options.launcher.empty())
    words.insert(words.begin() + 1, {"--local_addr", NodeNetworks::address(node)});
  auto child = spawn(std::move(words), node, n.write_end.get(), [this, node, start = ++n.start](Ending ending) {
    Node& ended = at(node);
    if (ended.is_lost || ended.start != start) return;
    ended.ending = ending;
    ended.ended_at = clock_.now();
    changed_();
  });
  if (!child.ok()) return std::move(child).failure();
  n.child = *std::move(child);
  return {};
}

void RehearsedJob::lose(std::uint32_t node) {
  Node& n = at(node);
  if (!n.child || n.ending) return;
  n.is_lost = true;
  const std::vector<pid_t> below = processes_below(n.child->pid());
  ::kill(n.child->pid(), SIGKILL);
  for (const pid_t pid : below)
    if (process_name(pid) != guard_name) ::kill(pid, SIGKILL);
}

Result<void> RehearsedJob::bring_back(std::uint32_t node) { return at(node).is_lost ? start_node(node) : Result<void>{}; }

Result<void> RehearsedJob::start_again(std::uint32_t node) {
  at(node).ending.reset();
  return start_node(node);
}

void RehearsedJob::lose_store() {
  if (store_) ::kill(store_->pid(), SIGKILL);
}

Result<void> RehearsedJob::bring_back_store() {
  store_.reset();
  store_ended_ = false;
  const Places where = places(0);
  std::vector<std::string> words{setting_.elrun, "store", "--host", where.host, "--port", fmt::to_string(where.port)};
  if (!setting_.options.rendezvous_conf.empty()) words.insert(words.end(), {"--rdzv_conf", setting_.options.rendezvous_conf});
  auto store = spawn(std::move(words), nodes_end(), store_log_.get(), [this](Ending) { store_ended_ = true; });
  if (!store.ok()) return std::move(store).failure();
  store_ = *std::move(store);
  return {};
}

std::optional<std::uint32_t> RehearsedJob::coordinator() const {
  if (setting_.options.world.nodes == 1) return runs(0) ? std::optional{0u} : std::nullopt;
  for (std::uint32_t node = nodes_begin(); node < nodes_end(); ++node) {
    if (!runs(node)) continue;
    const pid_t launcher = at(node).child->pid();
    if (listens_at(launcher, port_)) return node;
  }
  return std::nullopt;
}

bool RehearsedJob::runs(std::uint32_t node) const {
  const Node& n = at(node);
  return n.child && !n.is_lost && !n.ending;
}

std::vector<WorkerProcess> RehearsedJob::workers(std::uint32_t node) const {
  return runs(node) ? workers_below(at(node).child->pid()) : std::vector<WorkerProcess>{};
}

bool RehearsedJob::has_worked(std::uint32_t node) {
  Node& n = at(node);
  if (!n.has_worked && !n.ending && !n.is_lost) n.has_worked = !workers(node).empty();
  return n.has_worked;
}

bool RehearsedJob::is_known(pid_t pid) const {
  return (store_ && store_->pid() == pid) || std::ranges::any_of(nodes_, [&](const Node& n) { return n.child && n.child->pid() == pid; });
}

std::vector<pid_t> RehearsedJob::end_all(Orphans& orphans) {
  std::vector<pid_t> remain;
  const Instant until = clock_.now() + end_limit;
  const auto left = [&] { return std::max(Duration{0}, until - clock_.now()); };
  const auto end = [&](std::unique_ptr<Child>& child) {
    if (child && !child->end_within(left())) remain.push_back(child->pid());
    child.reset();
  };
  for (const Node& n : nodes_)
    if (n.child) kill_below(n.child->pid());
  for (Node& n : nodes_) end(n.child);
  end(store_);
  // Guards of agents remove their directories, and end then.
  const auto is_guard = [](pid_t pid) { return process_name(pid) == guard_name; };
  const auto ended =
      orphans.end(left(), [&](pid_t pid, const OrphanOwner&) { return is_guard(pid) ? OrphanFate::stays : OrphanFate::ends; });
  remain.insert(remain.end(), ended.remain.begin(), ended.remain.end());
  const auto guards_left = [&] {
    bool any = false;
    for (const pid_t pid : children_of(::getpid()))
      if (pid != guard_.pid() && is_guard(pid) && ::waitpid(pid, nullptr, WNOHANG) == 0) any = true;
    return any;
  };
  while (guards_left() && clock_.now() < until) std::this_thread::sleep_for(std::chrono::milliseconds{2});
  for (std::uint32_t node = nodes_begin(); node < nodes_end(); ++node) {
    Node& n = at(node);
    n.write_end = Fd{};
    if (!n.output) continue;
    while (read_some(node)) {
    }
    n.output.reset();
    if (!n.unfinished_line.empty()) take(node, "\n");
  }
  return remain;
}

Result<void> RehearsedJob::open_output(std::uint32_t node) {
  Node& n = at(node);
  const std::string log = fmt::format("{}/node{}.log", setting_.directory, node);
  // Where nodes share a directory, what is there by this name is no log of this run.
  n.log = Fd{::open(log.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_APPEND | O_CLOEXEC, 0644)};
  if (!n.log) return from_errno(errno, "create " + log);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return from_errno(errno, "make a pipe for the output of a node");
  n.write_end = Fd{ends[1]};
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  n.output = std::make_unique<boost::asio::posix::stream_descriptor>(loop_, ends[0]);
  read_on(node);
  return {};
}

// It reads by itself: what the loop has read, and not handed over yet, would be lost in `end_all`.
void RehearsedJob::read_on(std::uint32_t node) {
  at(node).output->async_wait(boost::asio::posix::stream_descriptor::wait_read, [this, node](const boost::system::error_code& error) {
    if (error || !at(node).output) return;
    (void)read_some(node);
    read_on(node);
  });
}

bool RehearsedJob::read_some(std::uint32_t node) {
  Node& n = at(node);
  const ssize_t got = ::read(n.output->native_handle(), n.buffer.data(), n.buffer.size());
  if (got > 0) take(node, {n.buffer.data(), static_cast<std::size_t>(got)});
  return got > 0;
}

void RehearsedJob::take(std::uint32_t number, std::string_view text) {
  Node& node = at(number);
  for (std::string_view rest = text; !rest.empty();) {  // a log that cannot be written to has a gap
    const ssize_t got = ::write(node.log.get(), rest.data(), rest.size());
    if (got < 0 && errno != EINTR) break;
    rest.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view part = text.substr(0, end);
    if (node.unfinished_line.size() < line_max) node.unfinished_line += part.substr(0, line_max - node.unfinished_line.size());
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
    line_(number, node.unfinished_line);
    if (node.last_lines.size() == last_lines_max) node.last_lines.erase(node.last_lines.begin());
    node.last_lines.push_back(std::exchange(node.unfinished_line, {}));
  }
}

}  // namespace elrun::inline v0::launcher
