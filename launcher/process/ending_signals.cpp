#include "launcher/process/ending_signals.hpp"

#include <unistd.h>

#include <array>
#include <csignal>
#include <span>

namespace elrun::inline v0::launcher {
namespace {

constexpr std::array held_signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};  // which of them are handled is not known yet

void change_mask(int how, std::span<const int> numbers) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : numbers) sigaddset(&set, number);
  ::pthread_sigmask(how, &set, nullptr);
}

bool is_first_process() { return ::getpid() == 1; }

}  // namespace

void hold_ending_signals() {
  change_mask(SIG_UNBLOCK, std::array{SIGCHLD});
  if (is_first_process()) change_mask(SIG_BLOCK, held_signals);
}

void drop_ending_signals() {
  if (is_first_process()) change_mask(SIG_UNBLOCK, held_signals);
}

void handle_ending_signals(boost::asio::signal_set& signals, const std::vector<int>& numbers) {
  for (const int number : numbers) {
    struct sigaction hangup {};
    const bool ignored = number == SIGHUP && ::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
    if (!ignored) signals.add(number);
  }
  change_mask(SIG_UNBLOCK, numbers);
  drop_ending_signals();
}

}  // namespace elrun::inline v0::launcher
