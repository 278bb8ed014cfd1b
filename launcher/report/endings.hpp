#pragma once
/// \file Endings: how a process ended, and why the job did, in words for people.

#include <optional>
#include <string>
#include <string_view>

#include <elrun/session.hpp>

namespace elrun::inline v0::launcher {

/// How a process ended: exactly one of the two is not zero, or neither (success).
struct Ending {
  int exit_code = 0;
  int signal = 0;
  [[nodiscard]] bool ok() const { return exit_code == 0 && signal == 0; }
  /// As a shell tells it: 128 + n for signal n.
  [[nodiscard]] int code() const { return signal != 0 ? 128 + signal : exit_code; }
  friend bool operator==(const Ending&, const Ending&) = default;
};

/// How a process is ending that the kernel has not taken apart yet: from the text of /proc/PID/stat. Nothing for one that runs or is stopped,
/// for exit code 0, which a program that executes another one shows as well, and where the kernel does not say it.
[[nodiscard]] std::optional<Ending> ending_under_way(std::string_view stat);
/// "SIGKILL", or "signal 40" for one without a name.
[[nodiscard]] std::string signal_name(int signal);
/// "exit code 3", "signal 9 (SIGKILL)".
[[nodiscard]] std::string describe(const Ending& ending);
/// "step 40, from /ck/ckpt/s000000000040.g00000001.a01 (the newest checkpoint); 3 steps were done again", then what was passed over, a line each.
[[nodiscard]] std::string describe(const Restoration& from);
/// What an exit code of elrun usually comes from and what to do about it; empty when the code speaks for itself.
[[nodiscard]] std::string meaning_of(int exit_code);
/// The end of the log of a job that failed: the failure that ended it, then what is known of why, or what its code means. `returned`: what this process ends with, where that is another
/// code than the job's.
[[nodiscard]] std::string final_report(int exit_code, const std::string& first_failure, const std::string& evidence = {},
                                       std::optional<int> returned = {});

}  // namespace elrun::inline v0::launcher
