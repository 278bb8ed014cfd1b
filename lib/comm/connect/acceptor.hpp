#pragma once
/// \file Acceptor: hands over each connection that comes in at a listener.

#include <functional>
#include <optional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "lib/base/fd.hpp"

namespace elrun::inline v0 {

/// Used on the loop's thread. `accepted` decides what becomes of a connection. `has_room` is asked where one waits. While it says no, connections wait in the system's backlog.
class Acceptor {
 public:
  using Accepted = std::function<void(Fd connection, int family)>;
  using HasRoom = std::function<bool(int family)>;
  explicit Acceptor(boost::asio::io_context& loop) : loop_{loop}, pause_{loop} {}
  void open(Fd listener, Accepted accepted, HasRoom has_room);
  void close();

 private:
  void accept();
  void accept_later();
  boost::asio::io_context& loop_;
  std::optional<boost::asio::posix::stream_descriptor> listener_;
  boost::asio::steady_timer pause_;
  Accepted accepted_;
  HasRoom has_room_;
  int family_ = 0;
};

}  // namespace elrun::inline v0
