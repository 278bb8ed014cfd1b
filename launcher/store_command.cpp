#include "launcher/store_command.hpp"

#include <csignal>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include "launcher/process/descriptors.hpp"
#include "launcher/process/ending_signals.hpp"
#include "launcher/rendezvous_line.hpp"
#include "launcher/report/endings.hpp"
#include "launcher/report/failure_report.hpp"
#include "launcher/report/reporter.hpp"
#include "lib/base/failure.hpp"
#include "rendezvous/net/node_link.hpp"

namespace elrun::inline v0::launcher {

int run_store(const StoreOptions& options, std::uint64_t generation_floor, const StartRefusal& refuse, const Clock& clock,
              LogStream& lines) {
  const Log log{lines, "elrun"};
  for (const std::string& note : options.notes) log.warning(note);
  if (const auto problem = problem_of_access(options.access, clock, log)) return refuse(exit_code::contradiction, *problem);
  raise_descriptors();
  boost::asio::io_context loop{1};
  const auto coordinator = Coordinator::create(loop, clock, log,
                                               {.run = options.run,
                                                .nodes_min = options.nodes_min,
                                                .nodes_max = options.nodes_max,
                                                .timeouts = options.timeouts,
                                                .access = options.access,
                                                .generation_floor = generation_floor});
  const auto port = coordinator->serve(options.host, options.port);
  if (!port) return refuse(exit_code::contradiction, message(port.failure()));
  int code = 0;
  boost::asio::signal_set signals{loop};
  handle_ending_signals(signals, {SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  tell_of_service(log, fmt::format("{}:{}", options.host, *port), options.host, options.access);
  signals.async_wait([&](const boost::system::error_code& error, int number) {
    if (error) return;
    code = 128 + number;
    log.info(fmt::format("{}: the rendezvous ends; exit code {}", signal_name(number), code));
    loop.stop();
  });
  coordinator->on_may_exit([&] {
    if (coordinator->may_exit()) loop.stop();
  });
  loop.run();
  if (const auto& verdict = coordinator->verdict(); verdict && verdict->exit_code != 0)  // the whole job's, also where no node ran
    log.error(box_report({.exit_code = verdict->exit_code, .cause = verdict->report, .deaths = verdict->deaths}));
  return code;
}

}  // namespace elrun::inline v0::launcher
