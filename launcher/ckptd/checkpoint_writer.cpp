#include "launcher/ckptd/checkpoint_writer.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include <boost/asio/post.hpp>

#include <fmt/format.h>

#include "checkpoint/staging/slot_record.hpp"
#include "launcher/report/endings.hpp"
#include "lib/base/failure.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr const char* ckptd_program = "/proc/self/exe";
constexpr int backlog = 4096;      // all workers of a node may connect at one time
constexpr Duration end_wait = 1s;  // for its end, when this process ends: it may hang in a system call on the storage
constexpr Duration start_pause =
    1s;  // after an end; twice as long after each that was quick, so that one that cannot live is not started in a loop
constexpr Duration quick_end = 5s;  // after its start: it may not be able to live. Nor may one that takes longer, and was never heard of

}  // namespace

CheckpointWriter::CheckpointWriter(boost::asio::io_context& loop, const Guard& guard, const Clock& clock, const Log& log, Setting setting)
    : loop_{loop}, guard_{guard}, clock_{clock}, log_{log}, setting_{std::move(setting)}, listener_{loop}, pause_{loop} {}

Result<void> CheckpointWriter::listen() {
  if (::access(ckptd_program, F_OK) != 0 && errno == ENOENT)  // in a root directory made by hand; where nobody listens saves block
    return Failure{Code::not_found, Remedy::fix_config, "there is no /proc, by way of which elrun ckptd is executed: mount it"};
  const Path path = setting_.agent.directory / ckptd_socket;
  ELRUN_TRY_ASSIGN(const SocketAddress address, unix_address(path));
  Fd socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!socket) return from_errno(errno, "make a socket");
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 || ::listen(socket.get(), backlog) != 0)
    return from_errno(errno, fmt::format("listen at {}", path.string()));
  listener_.assign(socket.give_up());
  wait_for_worker();
  return {};
}

void CheckpointWriter::wait_for_worker() {
  listener_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    if (!error && !child_) start();
  });
}

void CheckpointWriter::start() {
  started_ = clock_.now();
  has_worked_ = false;
  Variables environment = setting_.agent.environment;
  environment["ELRUN_SOCKET"] = setting_.agent_socket.string();
  const bool as_json = setting_.agent.options.log_format == LogFormat::json;
  const Execution execution{
      .path = ckptd_program,
      .arguments = as_json ? std::vector<std::string>{"elrun", "ckptd", "--log_format=json"} : std::vector<std::string>{"elrun", "ckptd"},
      .environment = std::move(environment),
      .in = listener_.native_handle()};
  auto child =
      Child::start(loop_, guard_, execution, [this](Ending ending) { boost::asio::post(loop_, [this, ending] { ended(ending); }); });
  if (!child.ok()) {
    log_.error(message(child.failure()));
    return ended({});
  }
  child_ = std::move(child).value();
}

void CheckpointWriter::ended(Ending ending) {
  const bool is_quick = !has_worked_ || clock_.now() - started_ < quick_end;
  quick_ends_ = is_quick ? quick_ends_ + 1 : 0;
  if (child_ && (!is_quick || std::has_single_bit(quick_ends_)))  // the 1st, 2nd, 4th, ...: it may be every one
    log_.warning(
        fmt::format("elrun ckptd (pid {}) ended by {}: a save that it was writing has failed; it is started again for the next one",
                    child_->pid(), describe(ending)));
  child_.reset();
  if (is_quick) turn_away();
  pause_.expires_after(start_pause * (1u << std::min(quick_ends_, 6u)));
  pause_.async_wait([this](const boost::system::error_code& error) {
    if (!error) wait_for_worker();
  });
}

/// Workers that wait for a process that does not live see the end of their lines, and their saves block.
void CheckpointWriter::turn_away() {
  for (auto waiting = accept_one(listener_.native_handle()); waiting.ok() && *waiting; waiting = accept_one(listener_.native_handle())) {
  }
}

bool CheckpointWriter::takes(std::uint64_t connection, const Message& message) {
  if (const auto* hello = std::get_if<Hello>(&message); hello != nullptr && is(static_cast<pid_t>(hello->pid)))
    connections_.insert(connection), has_worked_ = true;
  return connections_.contains(connection);
}

void CheckpointWriter::clear() {
  if (child_) child_->end_within(end_wait);
  child_.reset();
}

}  // namespace elrun::inline v0::launcher
