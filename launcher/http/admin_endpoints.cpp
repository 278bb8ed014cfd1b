#include "launcher/http/admin_endpoints.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "launcher/process/agent_directory.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration metrics_kept = 100ms;  // metrics that are not older are given again

std::uint64_t entries_of(const char* directory) {
  std::uint64_t count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry{directory, error}, end; !error && entry != end; entry.increment(error)) ++count;
  return count;
}

ProcessFacts process_facts(double started_at) {
  ProcessFacts facts;
  facts.start_time_seconds = started_at;
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6; };
    facts.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  std::uint64_t size = 0, resident = 0;
  if (std::ifstream file{"/proc/self/statm"}; file >> size >> resident) {
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    facts.virtual_bytes = size * page, facts.resident_bytes = resident * page;
  }
  if (const std::uint64_t open = entries_of("/proc/self/fd"); open > 0) facts.descriptors = open - 1;  // one is the look itself
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) facts.descriptors_max = limit.rlim_cur;
  facts.threads = entries_of("/proc/self/task");
  return facts;
}

// Both kinds of addresses where the machine has both.
Result<std::unique_ptr<HttpListener>> open_port(boost::asio::io_context& loop, const HealthPort& port, const HttpListener::Answer& answer) {
  if (!port.host.empty()) {
    const auto address = literal_address(port.host, port.port);
    if (!address) return invalid(fmt::format("{} is no literal address", port.host));
    return HttpListener::open(loop, *address, answer);
  }
  auto both = HttpListener::open(loop, *literal_address("::", port.port), answer);
  if (both.ok()) return both;
  return HttpListener::open(loop, *literal_address("0.0.0.0", port.port), answer);
}

}  // namespace

AdminEndpoints::AdminEndpoints(boost::asio::io_context& loop, const Clock& clock, const Log& log, AgentIdentity agent,
                               std::function<bool()> coordinates)
    : loop_{loop},
      clock_{clock},
      log_{log},
      agent_{std::move(agent)},
      coordinates_{std::move(coordinates)},
      started_at_{static_cast<double>(clock.wall_ns()) / 1e9},
      history_{clock.now()} {}

void AdminEndpoints::open_socket(const Path& directory) {
  const auto address = unix_address(directory / status_socket_name);
  if (!address.ok()) return;
  auto socket = HttpListener::open(loop_, *address, [this](const HttpRequest& request) { return answer(request); });
  if (socket.ok()) socket_ = std::move(*socket);
  else log_.warning(message(socket.failure()) + "; `elrun status` will not find this agent");
}

Result<void> AdminEndpoints::open(const AdminOptions& options, const Path& directory) {
  open_socket(directory);
  if (!options.health) return {};
  auto port = open_port(loop_, *options.health, [this](const HttpRequest& request) { return answer(request); });
  if (!port.ok() && options.health->is_needed) {
    Failure why = std::move(port).failure();
    why.what += "; give --health_port another port, or 0 for any";
    return why;
  }
  if (!port.ok()) {
    log_.warning(fmt::format("TORCHELASTIC_HEALTH_CHECK_PORT: {}; the job goes on without health and metrics", message(port.failure())));
    return {};
  }
  port_ = std::move(*port);
  log_.info(fmt::format("health, status and metrics at http://{}", to_string(port_->address())));
  return {};
}

void AdminEndpoints::open_timers(const AdminOptions& options, const Path& directory, Variables& environment,
                                 std::function<bool(pid_t)> is_worker_group) {
  if (!options.has_timer_file || (timers_ && !options.timer_file.empty())) return;  // a place that the user chose stays
  const Path path = options.timer_file.empty() ? directory / "timers" : Path{options.timer_file};
  auto pipe = TimerPipe::open(loop_, clock_, log_, path, std::move(is_worker_group));
  if (!pipe.ok()) return log_.warning(message(pipe.failure()) + "; the workers' timers have no effect");
  timers_ = std::move(*pipe);
  environment.insert_or_assign("TORCHELASTIC_TIMER_FILE", path.native());
}

void AdminEndpoints::saw(const Event& event, std::span<const Action> actions, const Supervisor& supervisor) {
  history_.saw({event, actions, supervisor, clock_.now(), clock_.wall_ns()});
}

HttpReply AdminEndpoints::answer(const HttpRequest& request) const {
  const Instant now = clock_.now();
  if (request.path != "/metrics") return page_for(request, {agent_, history_.record(), coordinates_(), {}, now, clock_.wall_ns()});
  // The metrics show the process itself, which costs a look at all of its descriptors. Thousands who ask for them in a second
  // must not keep the loop from answering a liveness probe.
  Kept& kept = kept_metrics_[exposition_for(request.accept)];
  if (!kept.reply || now - kept.made >= metrics_kept)
    kept = {now, page_for(request, {agent_, history_.record(), coordinates_(), process_facts(started_at_), now, clock_.wall_ns(),
                                    times_.look(history_.record().ledger.totals(now))})};
  return *kept.reply;
}

}  // namespace elrun::inline v0::launcher
