#pragma once
/// \file Machine: what this machine has and is called. Reads the system, decides nothing.

#include <optional>
#include <string>
#include <vector>

#include "launcher/options/environment.hpp"
#include "launcher/options/options.hpp"
#include "launcher/process/numa.hpp"
#include "lib/base/fd.hpp"

namespace elrun::inline v0::launcher {

[[nodiscard]] Machine this_machine(const Variables& environment);
[[nodiscard]] NumaView this_numa();
constexpr std::size_t small_file_max = 1 << 20;
/// The text of a file, of a large one its beginning; none when it cannot be read.
[[nodiscard]] std::optional<std::string> read_small_file(const std::string& path);
[[nodiscard]] FoundFile look_up_file(const std::string& path);
[[nodiscard]] std::string host_name();
/// Of the kernel, the same for all containers on it; empty when it cannot be read.
[[nodiscard]] std::string boot_id();
/// Why workers cannot be watched on this kernel or in this sandbox; empty: they can. It is known before any worker starts.
[[nodiscard]] std::string kernel_problem();
/// Why no thread can be started here, with the limit or the sandbox behind it; empty: one was started, and has ended.
[[nodiscard]] std::string thread_problem();

/// A TCP port of all addresses of this machine, kept for a program that will listen on it. While it is held, the kernel
/// gives it to no other program (that binds to port 0, or connects). A program that names it and allows the reuse of addresses, as
/// torch's store does, can listen on it all the same.
class HeldPort {
 public:
  HeldPort() = default;
  /// Any free port other than `but_not`; number 0 when there is none.
  [[nodiscard]] static HeldPort any(std::uint16_t but_not);
  /// This one; it is not held if another program has it.
  [[nodiscard]] static HeldPort exactly(std::uint16_t number);
  [[nodiscard]] std::uint16_t number() const { return number_; }
  [[nodiscard]] bool is_held() const { return static_cast<bool>(socket_); }
  /// The program that is to listen there starts now. The number stays.
  void release() { socket_ = Fd{}; }

 private:
  Fd socket_;
  std::uint16_t number_ = 0;
};

/// The addresses of this machine's interfaces, as text.
[[nodiscard]] std::vector<std::string> own_addresses();
/// The addresses that a name leads to now, as text; empty when it does not resolve. May wait for the resolver, as long
/// as its own configuration says (/etc/resolv.conf); a numeric address or `localhost` never does.
[[nodiscard]] std::vector<std::string> addresses_of(const std::string& host);

}  // namespace elrun::inline v0::launcher
