#pragma once
/// \file Many connections to one port that never authenticate, held open by one thread of the test.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

namespace elrun::test {

struct OutsidersOptions {
  std::uint16_t port = 0;
  std::size_t connections = 0;  ///< Held at one time. One that is ended is made anew at once.
  std::size_t addresses = 1;    ///< They come from 127.0.0.1, 127.0.0.2 and so on, so many.
  std::string first;            ///< What each sends first,
  std::string again;            ///< and then, time after time.
  std::size_t again_bytes = 0;  ///< So many bytes of `again` at a time; 0: all of it.
  std::chrono::milliseconds pause{300};
};

class Outsiders {
 public:
  explicit Outsiders(OutsidersOptions options);
  ~Outsiders();
  Outsiders(const Outsiders&) = delete;
  Outsiders& operator=(const Outsiders&) = delete;

  [[nodiscard]] std::size_t connected() const { return connected_; }  ///< The kernel has made these, accepted or not.
  [[nodiscard]] std::uint64_t made() const { return made_; }          ///< All that were ever begun.
  [[nodiscard]] std::uint64_t ended() const { return ended_; }        ///< Those of them that the other side has ended.

 private:
  void run();
  const OutsidersOptions options_;
  std::atomic<bool> over_ = false;
  std::atomic<std::size_t> connected_ = 0;
  std::atomic<std::uint64_t> made_ = 0, ended_ = 0;
  std::thread thread_;
};

/// Lets this process have as many descriptors as it may.
void raise_descriptor_limit();

}  // namespace elrun::test
