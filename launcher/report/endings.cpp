#include "launcher/report/endings.hpp"

#include <charconv>
#include <csignal>
#include <cstring>

#include <sys/wait.h>

#include <fmt/format.h>

#include "launcher/options/options.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

// After the name, which may have blanks and brackets, come the state as field 3, and the status as `wait` tells it as field 52. A stopped
// process has the signal there that stopped it.
std::optional<Ending> ending_under_way(std::string_view stat) {
  constexpr int state_field = 3, status_field = 52;
  const auto name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) return {};
  std::string_view rest = stat.substr(name_end + 1);
  std::string_view field;
  for (int number = state_field; number <= status_field; ++number) {
    const auto begin = rest.find_first_not_of(" \n");
    if (begin == std::string_view::npos) return {};
    field = rest.substr(begin, rest.find_first_of(" \n", begin) - begin);
    rest.remove_prefix(begin + field.size());
    if (number == state_field && (field == "T" || field == "t")) return {};
  }
  int status = 0;
  if (std::from_chars(field.data(), field.data() + field.size(), status).ec != std::errc{} || status <= 0) return {};
  if (WIFSIGNALED(status)) return Ending{.signal = WTERMSIG(status)};
  if (WIFEXITED(status)) return Ending{.exit_code = WEXITSTATUS(status)};
  return {};
}

std::string describe(const Ending& ending) {
  if (ending.signal != 0) return fmt::format("signal {} ({})", ending.signal, signal_name(ending.signal));
  return fmt::format("exit code {}", ending.exit_code);
}

std::string describe(const Restoration& from) {
  std::string text = from.checkpoint.empty() ? fmt::format("step 0 ({})", from.why)
                                             : fmt::format("step {}, from {} ({})", from.step, from.checkpoint, from.why);
  if (from.steps_again > 0) text += fmt::format("; {} done again", count_of(from.steps_again, "step"));
  for (const std::string& note : from.notes) text += "\n" + note;
  return text;
}

std::string meaning_of(int code) {
  switch (code) {
    case 2: return "often arguments that the program does not know; or Python did not find the file that it was to run";
    case exit_code::cannot_execute:
      return "the program cannot be executed: is it a binary of this machine, or a script with #! and the x bit?";
    case exit_code::not_found: return "the program was not found: check its path, and PATH on this node";
    case exit_code::checkpoint_too_old:
      return "of a Job: no checkpoint could be saved for CheckpointOptions::max_age; its last lines say why the last save failed";
    case exit_code::hang:
      return "workers gave no sign of progress for --hang_timeout; the log of their node shows what their threads were doing";
    case 128 + SIGILL: return "an instruction that this CPU does not have: was the program built for another machine?";
    case 128 + SIGABRT: return "the program aborted (abort(), a failed assertion, an uncaught exception); see its last lines";
    case 128 + SIGBUS: return "often a full /dev/shm, or a mapped file that was cut short";
    case 128 + SIGFPE: return "an integer division by zero or overflow";
    case 128 + SIGKILL: return "killed from outside: by a person, a scheduler, or the kernel when memory ran out (OOM-killed; see dmesg)";
    case 128 + SIGPIPE:
      return "it wrote to a pipe or a connection whose reader had gone: what read its output (head, tee, a terminal), or a peer of its own";
    case 128 + SIGSEGV:
      return "the program accessed memory that it does not own (a segmentation fault); a core dump or a sanitizer build shows where";
    case 128 + SIGTERM: return "asked to end from outside";
    case 128 + SIGXFSZ: return "a file would have become larger than the limit of its process (ulimit -f)";
    default: return {};
  }
}

std::string final_report(int code, const std::string& first_failure, const std::string& evidence, std::optional<int> returned) {
  std::string text = fmt::format("the job failed, exit code {}", code);
  if (returned && *returned != code) text += fmt::format("; elrun ends with {}, as torchrun does", *returned);
  if (!first_failure.empty()) text += fmt::format("\n  cause: {}", first_failure);
  if (const std::string meaning = evidence.empty() ? meaning_of(code) : evidence; !meaning.empty())
    text += fmt::format("\n  meaning: {}", meaning);
  return text;
}

}  // namespace elrun::inline v0::launcher
