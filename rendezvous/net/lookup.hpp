#pragma once
/// \file Names to addresses, anew at every attempt: gRPC is only ever given literal addresses.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "lib/link/socket.hpp"
#include "rendezvous/net/node_link.hpp"

namespace elrun::inline v0 {

struct Address {
  std::string host;    ///< The literal without its port.
  std::string text;    ///< As a person writes it.
  std::string target;  ///< As gRPC reads it: a literal, which needs no resolver of its own.
  SocketAddress socket;
};
struct Resolved {
  std::vector<Address> addresses;
  std::string problem;  ///< When there are none.
};

/// The address that packets to `peer` leave from; empty when there is no way there.
[[nodiscard]] std::string source_address(const Address& peer);

/// Runs the call on a thread that nobody waits for. Throws std::system_error where the system refuses one.
void run_detached(std::function<void()> call);

/// Loop thread only. A literal address is answered at once. A name is resolved on a thread that nobody waits for, because a resolver can
/// neither be cancelled nor bounded. Its answer is dropped when the lookup is destroyed or was started anew. Where the system refuses a thread,
/// that is the answer.
class NameLookup {
 public:
  using Threads = std::function<void(std::function<void()>)>;
  explicit NameLookup(boost::asio::io_context& loop, Resolver resolver = resolve, Threads threads = run_detached);
  ~NameLookup();
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;
  void start(const Endpoint& endpoint, std::function<void(Resolved)> answer);

 private:
  struct Mailbox;
  boost::asio::io_context& loop_;
  const Resolver resolver_;
  const Threads threads_;
  std::shared_ptr<Mailbox> mailbox_;  // of the lookup under way
};

}  // namespace elrun::inline v0
