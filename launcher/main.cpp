// Builds clock, log and guard, and hands over; nothing is decided here.
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/commit/checkpointer.hpp"
#include "checkpoint/tiers/files_tier.hpp"
#include "launcher/agent.hpp"
#include "launcher/chaos/chaos.hpp"
#include "launcher/ckptd/ckptd.hpp"
#include "launcher/commands/ckpt.hpp"
#include "launcher/commands/doctor_facts.hpp"
#include "launcher/commands/drain.hpp"
#include "launcher/commands/install.hpp"
#include "launcher/commands/plan.hpp"
#include "launcher/death_notice.hpp"
#include "launcher/http/status_command.hpp"
#include "launcher/output/log_json.hpp"
#include "launcher/output/print_out.hpp"
#include "launcher/process/descriptors.hpp"
#include "launcher/process/detached_call.hpp"
#include "launcher/process/ending_signals.hpp"
#include "launcher/process/machine.hpp"
#include "launcher/report/evidence.hpp"
#include "launcher/report/failure_report.hpp"
#include "launcher/report/reporter.hpp"
#include "launcher/store_command.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/timed_files.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

launcher::Variables read_environment() {
  launcher::Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text{*entry};
    if (const auto equals = text.find('='); equals != std::string_view::npos && equals > 0)
      variables.try_emplace(std::string{text.substr(0, equals)}, text.substr(equals + 1));
  }
  return variables;
}

// How far earlier processes of the job were, as its checkpoints tell. A root that cannot be read ends nothing: numbers that
// begin anew are told from the old ones by their lineage.
std::uint64_t generation_floor(const std::string& checkpoint_root, const StorageLimits& limits, const Log& log) {
  if (checkpoint_root.empty()) return 0;
  TimedFiles files{std::make_shared<PosixFiles>(), limits};
  FilesTier tier{files, checkpoint_root};
  const auto newest = newest_generation(tier);
  if (!newest.ok()) log.warning(fmt::format("--checkpoint_root: {}; generations are counted from 1", message(newest.failure())));
  return newest.ok() ? *newest : 0;
}

int launch(const LaunchOptions& options, launcher::Variables environment, const launcher::StartRefusal& refuse, const Clock& clock,
           LogStream& lines, const StorageLimits& limits, std::string_view elrun_name) {
  const Log log{lines, "elrun"};
  auto command = resolve_command(options.program, environment, look_up_file, elrun_name);
  const auto* none = std::get_if<NoCommand>(&command);
  if (options.dry_run) return print_out(plan_text(options, environment, command)), none != nullptr ? none->exit_code : 0;
  if (none != nullptr) return refuse(none->exit_code, none->why);
  if (const std::string& warning = std::get<Command>(command).warning; !warning.empty()) log.warning(warning);
  auto cpus = cpus_of_workers(options.numa_binding, options.workers, environment, this_numa());
  if (!cpus.ok()) return refuse(exit_code::contradiction, message(cpus.failure()));
  std::string problem = options.workers > 0 ? kernel_problem() : std::string{};
  if (problem.empty()) problem = thread_problem();
  if (!problem.empty()) return refuse(exit_code::internal, problem);
  int code = exit_code::internal;
  {
    const auto guard =
        Guard::start(environment, [&](ByteSpan word) { send_death_notice(word, options.access, clock); });  // before any thread
    if (!guard) return refuse(exit_code::internal, message(guard.failure()));
    code = run_agent({options, std::get<Command>(std::move(command)), std::move(environment), guard->directory(), *std::move(cpus),
                      limits.operation, generation_floor(options.checkpoint_root, limits, log)},
                     *guard, refuse, clock, lines);
    std::error_code ignored;
    std::filesystem::remove_all(guard->directory(), ignored);
  }
  return returned_exit_code(options.exit_codes, code);
}

int run(std::span<const std::string> arguments, std::string_view elrun_name, launcher::Variables environment) {
  const SteadyClock clock;
  LogStream lines{clock};
  const Log log{lines, "elrun"};
  auto command = parse_command(arguments, environment, this_machine(environment), elrun_name);
  // The container's termination log is its job's: what somebody runs beside it leaves it alone.
  const Path termination_log = is_side_command(arguments, elrun_name) ? Path{} : report_files(environment).termination_log;
  if (const auto* ckptd = std::get_if<CkptdOptions>(&command)) {
    if (ckptd->log_format == LogFormat::json) lines.set_format([](const LogLine& line) { return json_line(line, {}); });
    return run_ckptd(environment, clock, lines);
  }
  if (const auto* usage = std::get_if<Usage>(&command)) {
    if (usage->exit_code != 0) write_refusal(termination_log, usage->exit_code, usage->exit_code, usage->text, clock);
    std::fputs(usage->text.c_str(), usage->exit_code == 0 ? stdout : stderr);
    return usage->exit_code;
  }
  const auto* const of_store = std::get_if<StoreOptions>(&command);
  const auto* const of_launch = std::get_if<LaunchOptions>(&command);
  if (of_store == nullptr && of_launch == nullptr) drop_ending_signals();
  const launcher::StartRefusal refuse{log, clock, termination_log, of_launch != nullptr ? of_launch->exit_codes : ExitCodes::elrun};
  if ((of_store != nullptr && of_store->log_format == LogFormat::json) ||
      (of_launch != nullptr && of_launch->log_format == LogFormat::json))
    lines.set_format([](const LogLine& line) { return json_line(line, {}); });
  const auto given = environment.find("ELRUN_STORAGE_LIMIT");
  const auto limits = storage_limits(given == environment.end() ? std::string_view{} : std::string_view{given->second});
  const bool has_storage = of_store != nullptr || of_launch != nullptr || std::holds_alternative<CkptOptions>(command) ||
                           std::holds_alternative<ChaosOptions>(command);
  if (!limits.ok() && has_storage) return refuse(exit_code::usage, message(limits.failure()));
  try {
    if (const std::string problem = of_store != nullptr ? thread_problem() : std::string{}; !problem.empty())
      return refuse(exit_code::internal, problem);
    if (of_store != nullptr) return run_store(*of_store, generation_floor(of_store->checkpoint_root, *limits, log), refuse, clock, lines);
    if (const auto* status = std::get_if<StatusOptions>(&command)) return run_status(*status, environment, clock);
    if (const auto* doctor = std::get_if<DoctorOptions>(&command)) return run_doctor(*doctor, environment, clock, elrun_name);
    if (const auto* drain = std::get_if<DrainOptions>(&command)) return run_drain(*drain, environment, clock);
    if (const auto* ckpt = std::get_if<CkptOptions>(&command)) return run_ckpt(*ckpt, *limits, clock);
    if (const auto* target = std::get_if<InstallOptions>(&command)) return run_install(*target);
    if (const auto* chaos = std::get_if<ChaosOptions>(&command)) return run_chaos(*chaos, environment, *limits, clock);
    return launch(std::get<LaunchOptions>(command), without_secrets(std::move(environment)), refuse, clock, lines, *limits, elrun_name);
  } catch (const std::system_error& error) {  // a thread that was refused, for instance
    if (const std::string problem = error.code().value() == EPERM ? thread_problem() : std::string{}; !problem.empty())
      return refuse(exit_code::internal, problem);
    const std::string limit = limit_behind(error.code().value(), CgroupWatch{}.limits());
    return refuse(exit_code::internal, limit.empty() ? error.what() : fmt::format("{}; {}", error.what(), limit));
  } catch (const std::exception& error) {
    return refuse(exit_code::internal, error.what());
  }
}

// Of a pipe or a socket.
bool reader_went_away() {
  pollfd output{STDOUT_FILENO, 0, 0};
  return ::poll(&output, 1, 0) == 1 && (output.revents & (POLLERR | POLLHUP)) != 0;
}

// 0 is a promise that what was printed is there, on a full disk too. A reader that went away has all that it wanted.
int checked_output(int code) {
  const bool is_lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!is_lost || code != 0 || reader_went_away()) return code;
  std::fputs("elrun: not all of the output could be written\n", stderr);
  return exit_code::internal;
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that went away is an error of that write, no more
  std::signal(SIGXFSZ, SIG_IGN);  // and so is a file at its limit (ulimit -f)
  std::signal(SIGCHLD, SIG_DFL);  // inherited as ignored, it would take the endings of workers away
  hold_ending_signals();
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const int code = checked_output(run(arguments, argc > 0 ? argv[0] : "elrun", read_environment()));
  if (launcher::made_detached_call) {
    std::fflush(nullptr);
    std::_Exit(code);
  }
  return code;
}
