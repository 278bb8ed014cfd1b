#include "launcher/ckptd/agent_store.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "lib/base/failure.hpp"
#include "lib/base/wait_time.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration word_wait = 2s;  // for the agent to take a word

Failure agent_gone(const char* what) { return {Code::unreachable, Remedy::retry, what}; }

/// True once the socket is ready for `events`, or has ended.
bool is_ready(int socket, short events, Deadline deadline, const Clock& clock) {
  pollfd look{socket, events, 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(std::max(deadline.left(clock.now()), Duration{0}));
  return ::poll(&look, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 3'600'000))) > 0;
}

}  // namespace

Result<void> AgentStore::connect(Deadline deadline) {
  if (line_) return {};
  ELRUN_TRY_ASSIGN(const SocketAddress address, unix_address(socket_));
  ELRUN_TRY_ASSIGN(Fd line, connect_begin(address));
  if (!is_ready(line.get(), POLLOUT, deadline, clock_)) return agent_gone("the agent does not answer");
  ELRUN_TRY(connect_result(line.get(), address));
  line_ = std::move(line);
  reader_ = MessageReader{};
  return send(Hello{.release = "elrun ckptd", .pid = static_cast<std::uint64_t>(::getpid())}, deadline);
}

Result<void> AgentStore::send(const Message& message, Deadline deadline) {
  const ByteVector frame = encode(message);
  for (ByteSpan rest = frame; !rest.empty();) {
    const ssize_t sent = ::send(line_.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      rest = rest.subspan(static_cast<std::size_t>(sent));
      continue;
    }
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN && is_ready(line_.get(), POLLOUT, deadline, clock_)) continue;
    line_ = Fd{};
    return agent_gone("the agent takes no word");
  }
  return {};
}

Result<StoreReply> AgentStore::receive(std::uint64_t id, Deadline deadline) {
  std::array<std::byte, 65536> chunk{};
  for (;;) {
    auto message = reader_.next();
    if (!message.ok()) return line_ = Fd{}, std::move(message).failure();
    if (*message) {
      auto* reply = std::get_if<StoreReply>(&**message);
      if (reply != nullptr && reply->id == id) return std::move(*reply);
      continue;  // an answer that came too late
    }
    if (!is_ready(line_.get(), POLLIN, deadline, clock_))
      return Failure{Code::deadline_passed, Remedy::retry, "the job's store did not answer in time"};
    const ssize_t got = ::recv(line_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return line_ = Fd{}, agent_gone("the agent has closed the line");
    reader_.feed(ByteSpan{chunk}.first(static_cast<std::size_t>(got)));
  }
}

Result<StoreReply> AgentStore::ask(StoreRequest request, Deadline deadline) {
  request.id = ++last_id_;
  const std::uint64_t id = request.id;
  ELRUN_TRY(connect(deadline));
  ELRUN_TRY(send(std::move(request), deadline));
  return receive(id, deadline);
}

void AgentStore::tell(const Message& message) {
  const Deadline deadline = Deadline::after(clock_.now(), word_wait);
  if (connect(deadline).ok()) (void)send(message, deadline);
}

}  // namespace elrun::inline v0::launcher
