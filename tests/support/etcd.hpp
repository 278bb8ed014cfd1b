#pragma once
/// \file A real etcd server on the loopback, with a fresh data directory, that a test can kill and start again.

#include <cstdint>
#include <memory>
#include <string>

#include "tests/support/certificates.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {

class Etcd {
 public:
  /// Whether this machine has one (Debian: etcd-server).
  [[nodiscard]] static bool installed();
  Etcd();
  /// Elections among its own members and leases are quick, as a test wants them: a lease of one second is possible.
  void start();
  /// Serves only whom the CA of `files` has signed.
  void start(const CertificateFiles& files);
  void kill();
  /// Once killed: the next one begins anew, with nothing of what this one knew.
  void lose_data() { ++lives_; }
  [[nodiscard]] std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// The value of a key, as etcdctl prints it.
  [[nodiscard]] std::string value(const std::string& key) const;

 private:
  void start(const std::string& scheme, const std::vector<std::string>& more);
  TemporaryDirectory data_;
  std::uint16_t port_, peer_port_;
  int lives_ = 0;
  std::unique_ptr<Job> process_;
};

}  // namespace elrun::test
