#pragma once
/// \file Relay: a port of the loopback that leads to another one, until a test cuts it.

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace elrun::test {

/// Connections to `endpoint()` are connections to the port `to`. Whoever listens there sees them come from 127.0.0.2, as behind a translator of
/// addresses. Cut: they stay open, and no byte passes either way.
class Relay {
 public:
  explicit Relay(std::uint16_t to);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  [[nodiscard]] std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }
  /// What was read already may still pass.
  void cut();
  void mend();

 private:
  struct Pair {
    int from, to;
  };
  void work();
  void wake() const;
  void accept_one();
  [[nodiscard]] static bool pass(int from, int to);

  std::uint16_t target_, port_ = 0;
  int listener_ = -1, wake_ = -1;
  std::vector<Pair> pairs_;  // of the thread
  std::atomic<bool> cut_ = false, over_ = false;
  std::thread thread_;
};

}  // namespace elrun::test
