#include "lib/link/link_connector.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "lib/base/digest.hpp"

namespace elrun::inline v0 {
namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

namespace {

constexpr Duration backoff_least = 20ms, backoff_most = 1s;
constexpr Duration quiet_start = 1s;  // a quick start needs no word about who came first
constexpr Duration attempt_max = 5s;  // for one connection attempt: a host that is gone does not answer at all

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  random_bytes(std::as_writable_bytes(std::span{&seed, 1}));
  return seed;
}

}  // namespace

LinkConnector::LinkConnector(asio::io_context& loop, const Clock& clock, const Log& log, const LinkTarget& target, Deadline deadline,
                             Handler handler)
    : loop_{loop},
      clock_{clock},
      log_{log},
      target_{target},
      deadline_{deadline},
      handler_{std::move(handler)},
      retry_{loop},
      jitter_{random_seed()},
      backoff_{backoff_least / 2} {}

Result<SocketAddress> LinkConnector::next_address() {
  if (const auto* agent = std::get_if<UnderAgent>(&target_.place)) return unix_address(agent->socket);
  const auto& job = *target_.operators();
  ELRUN_TRY_ASSIGN(const auto addresses, resolve(job.master_address, job.master_port));  // anew each time: names move
  const SocketAddress address = addresses[attempts_++ % addresses.size()];
  if (job.rank != Rank{0} || !address.is_loopback() || job.master_address == "localhost" || job.master_address == address.host())
    return address;
  loopback_(
      log_, Level::warning,
      fmt::format("MASTER_ADDR={} is the loopback address {} on this host: workers on other hosts cannot reach rank 0; give an IP address",
                  job.master_address, address.host()));
  return address;
}

void LinkConnector::connect() {
  auto address = next_address();
  if (!address.ok()) return connect_later(std::move(address).failure());
  auto fd = connect_begin(*address);
  if (!fd.ok()) return connect_later(std::move(fd).failure());
  const auto socket = std::make_shared<StreamSocket>(adopt(loop_, std::move(*fd), address->family()));
  retry_.expires_after(attempt_max);
  retry_.async_wait([socket](const ErrorCode& error) {
    ErrorCode ignored;
    if (!error) socket->close(ignored);
  });
  socket->async_wait(StreamSocket::wait_write, [this, socket, to = *address](const ErrorCode& error) {
    retry_.cancel();
    if (error) {
      return connect_later(
          {Code::unreachable, Remedy::retry, fmt::format("connect to {}: no answer within {} s", to_string(to), attempt_max / 1s)});
    }
    if (auto connected = connect_result(socket->native_handle(), to); !connected.ok()) return connect_later(std::move(connected).failure());
    handler_.connected(std::move(*socket));
  });
}

void LinkConnector::connect_later(Failure why) {
  last_problem_ = why.what;
  // The agent's socket was there before this process: when it is not, the agent has gone.
  if (!target_.operators() && !(why.code == Code::io && why.remedy == Remedy::retry)) return handler_.hopeless(std::move(why));
  if (deadline_.passed(clock_.now())) return;  // the deadline's own timer says it
  if (clock_.now() - started_ > quiet_start) waiting_(log_, Level::info, fmt::format("waiting for {} ({})", target_.where, why.what));
  backoff_ = std::clamp(2 * backoff_, backoff_least, backoff_most);
  retry_.expires_after(Duration{static_cast<Duration::rep>(jitter_.below(static_cast<std::uint64_t>(backoff_.count()))) + 1});
  retry_.async_wait([this](const ErrorCode& error) {
    if (!error) connect();
  });
}

}  // namespace elrun::inline v0
