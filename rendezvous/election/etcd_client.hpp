#pragma once
/// \file EtcdClient: the few calls of etcd's API that an election needs, asynchronous, on the agent's loop.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <elrun/result.hpp>

#include "lib/link/socket.hpp"
#include "rendezvous/election/election.hpp"
#include "rendezvous/net/access.hpp"
#include "rendezvous/net/node_link.hpp"

namespace elrun::inline v0 {

struct EtcdValue {
  std::string value;
  Revision created;  ///< When the key was made; it keeps this until it is deleted.
  LeaseId lease;     ///< 0: it belongs to none
};

/// Writes happen if and only if `guard` was created at `created` (0: does not exist) and belongs to `lease`; reads happen after
/// them, either way.
struct EtcdTransaction {
  struct Write {
    std::string key, value;
    LeaseId lease{};
  };
  std::string guard;
  Revision created{};
  LeaseId lease{};  ///< An etcd that was begun anew counts its revisions anew, but gives no lease the number of another.
  std::vector<Write> writes{};
  std::vector<std::string> reads{};
};
struct EtcdOutcome {
  bool written = false;
  std::vector<std::optional<EtcdValue>> read;  ///< As `reads`
};

/// Loop thread only. Each call is answered once, on the loop, never inside the call; none is answered after the client's
/// end, which waits for gRPC's own threads alone. A call goes to the server that answered last, then to each other one in
/// turn, `limit` for each server. Addresses of its name that refuse are passed within that; after one that is silent the next server is
/// asked, and a later visit goes on with the next address. `unreachable` when none answered, and then a write may have happened or not.
class EtcdClient {
 public:
  template <class Value>
  using Answer = std::function<void(Result<Value>)>;

  /// `servers` is not empty. The files of `access` are read at each connection; its token is not for etcd.
  static std::unique_ptr<EtcdClient> create(boost::asio::io_context& loop, std::vector<Endpoint> servers, Duration limit, Access access,
                                            Resolver resolver = resolve);
  virtual ~EtcdClient() = default;
  virtual void read(const std::string& key, Answer<std::optional<EtcdValue>> answer) = 0;
  virtual void transact(const EtcdTransaction& transaction, Answer<EtcdOutcome> answer) = 0;
  /// etcd may make the lease longer than it was asked for.
  virtual void grant(Duration lease, Answer<Lease> answer) = 0;
  /// How long the lease lasts from now on; 0: there is no such lease any more.
  virtual void keep_alive(LeaseId lease, Answer<Duration> answer) = 0;
  /// All keys of the lease go with it. One that is gone already is no error.
  virtual void revoke(LeaseId lease, Answer<Lease> answer) = 0;
  /// This machine's address as the server sees it that answered last; empty before.
  [[nodiscard]] virtual std::string local_address() const = 0;
};

}  // namespace elrun::inline v0
