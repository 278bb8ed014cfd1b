#include "launcher/process/ending_signals.hpp"

#include <csignal>

namespace elrun::inline v0::launcher {

void handle_ending_signals(boost::asio::signal_set& signals, const std::vector<int>& numbers) {
  for (const int number : numbers) {
    struct sigaction hangup {};
    const bool ignored = number == SIGHUP && ::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
    if (!ignored) signals.add(number);
  }
}

}  // namespace elrun::inline v0::launcher
