// elrun::run: the one place of libelrun that makes clocks, reads the environment and turns failures into exit codes.

#include <sched.h>
#include <stdio_ext.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

#include <fmt/format.h>

#include "checkpoint/staging/slot_record.hpp"
#include "lib/base/broken_pipe.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/timed_files.hpp"
#include "lib/base/timeouts.hpp"
#include "lib/device/current_device.hpp"
#include "lib/device/device_memory.hpp"
#include "lib/device/facts.hpp"
#include "lib/job/group_peers.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {
namespace {

/// OMP_NUM_THREADS, else the CPUs that this process may run on, shared with the other workers of the node.
std::uint32_t compute_threads(std::uint32_t local_world) {
  if (const char* text = std::getenv("OMP_NUM_THREADS"); text != nullptr) {
    std::uint32_t n = 0;  // a list such as "4,2" means 4 at the outermost level
    if (std::from_chars(text, text + std::strlen(text), n).ec == std::errc{} && n > 0) return std::min(n, 4096u);
  }
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const int cpus = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(1u, static_cast<std::uint32_t>(std::max(cpus, 1)) / std::max(local_world, 1u));
}

std::uint64_t machine_memory() {
  struct sysinfo info {};
  return sysinfo(&info) == 0 ? (std::uint64_t{info.totalram} + info.totalswap) * info.mem_unit : 0;
}

/// `--begin_anew`, also for a program without elrun.
Result<std::optional<LossName>> begin_anew() {
  const char* text = std::getenv("ELRUN_BEGIN_ANEW");
  if (text == nullptr || *text == 0) return std::optional<LossName>{};
  if (const auto name = parse_loss_name(text)) return name;
  return invalid(fmt::format(
      "ELRUN_BEGIN_ANEW={} names no lost checkpoint: it is STEP@FENCE, as the failure that names the lost one prints it, or the number of a step",
      text));
}

/// Beside the socket of the agent, which listens at both.
Path checkpoint_writer() {
  const char* text = std::getenv("ELRUN_SOCKET");
  return text == nullptr || *text == 0 ? Path{} : Path{text}.parent_path() / ckptd_socket;
}

/// A program that is written for the host gets it on machines with devices, too. Where a device is asked for all the same it is refused, and learns first what is wrong
/// with those of this machine.
struct ChosenDevice {
  Device device{};
  std::string why_on_host{};  // as JobHost has it
};
ChosenDevice device_of_job(std::uint32_t local_rank, const RunOptions& options) {
  const DeviceWishes wishes = device_wishes(local_rank);
  if (!options.devices && !wishes.device) return {};
  const DeviceFacts facts = device_facts();
  const Device chosen = choose_device(wishes, facts).value();
  if (!options.devices && chosen.kind == DeviceKind::cuda)
    throw Error{invalid(fmt::format(
        "ELRUN_DEVICE={}: this program computes on the CPU alone, for it calls elrun::run without RunOptions::devices; unset the variable, "
        "or say cpu",
        *wishes.device))};
  return {chosen, why_on_host(wishes, facts).value_or("")};
}

/// A device that fails before there is a job does not know whose it is.
struct DeviceOfJob {
  std::string model{};               // as JobHost has it
  std::unique_ptr<Memory> memory{};  // none: the host's
};
DeviceOfJob open_device(Device device, const RunOptions& options, const Clock& clock, const Membership& of) {
  if (device.kind == DeviceKind::host) return {};
  try {
    keep_current(device);
    return {options.any_device_model ? std::string{} : device_model(device), make_device_memory(device, clock)};
  } catch (const Error& e) {
    Failure named = e.failure();
    named.rank = of.rank, named.generation = of.generation;
    throw Error{std::move(named)};
  }
}

/// The agent lets the worker of a job that is over do what is left to do, and begins no other job with it.
std::atomic<bool> ended_under_elrun{false};

void tell(const std::string& text) {
  const NoBrokenPipeSignal no_signal;
  std::fprintf(stderr, "elrun: %s\n", text.c_str());
}

/// A reader that has gone away (`head`, a terminal) costs the lines, not the worker.
void print_line(std::string_view line) {
  static std::atomic<bool> told{false};
  std::string text{line};
  text += '\n';
  const NoBrokenPipeSignal no_signal;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  if (errno != EPIPE) return;
  __fpurge(stdout);  // else what is left there is written at the process's end, and the signal comes then
  if (!told.exchange(true)) tell("nobody reads standard output any more (its reader has ended): what the job prints from here on is lost");
}

}  // namespace

int run(int argc, char** argv, const std::function<void(Job&)>& program) { return run(argc, argv, program, {}); }

int run(int /*argc*/, char** /*argv*/, const std::function<void(Job&)>& program, const RunOptions& options) {
  const SteadyClock clock;
  try {
    if (ended_under_elrun)
      throw Error{
          invalid("elrun::run was called again after the end of its job: under elrun, one process has one job; start the other one "
                  "with an elrun of its own")};
    auto anew = begin_anew();
    if (!anew.ok()) throw Error{std::move(anew).failure()};
    const char* const limit = std::getenv("ELRUN_STORAGE_LIMIT");
    const auto limits = storage_limits(limit == nullptr ? "" : limit);
    if (!limits.ok()) throw Error{limits.failure()};
    auto opened = Session::open(WorkerKind::staying, Deadline::after(clock.now(), Timeouts{}.join));
    if (!opened.ok()) throw Error{std::move(opened).failure()};
    const auto session = std::move(opened).value();
    const Place& place = session->place();
    const auto [device, why_on_host] = device_of_job(place.local_rank.value(), options);
    const DeviceOfJob opened_device = open_device(device, options, clock, place.membership);
    const bool alone = place.membership.world.value() == 1;
    const Log log{clock, alone ? "elrun" : fmt::format("elrun rank {}", place.membership.rank.value())};
    TimedFiles files{std::make_shared<PosixFiles>(), *limits};
    JobAccess::drive({.clock = clock,
                      .files = files,
                      .session = *session,
                      .log = log,
                      .out = print_line,
                      .join = join_process_group,
                      .device_groups = {nccl_facts, join_device_collectives},
                      .share = place.local_world > 1 ? SharedBuffers::Make{SharedBuffer::make} : SharedBuffers::Make{},
                      .threads = compute_threads(place.local_world),
                      .device = device,
                      .device_model = opened_device.model,
                      .why_on_host = why_on_host,
                      .arrays = opened_device.memory.get(),
                      .memory = machine_memory(),
                      .begin_anew = *anew,
                      .checkpoint_writer = checkpoint_writer(),
                      .must_end = true},
                     program);
    ended_under_elrun = place.elastic;
    return 0;
  } catch (const CheckpointTooOld& e) {
    tell(message(e.failure()));
    return CheckpointTooOld::exit_code;
  } catch (const StorageIsAway& e) {
    tell(message(e.failure()));
    return StorageIsAway::exit_code;
  } catch (const Error& e) {
    tell(message(e.failure()));
    return exit_code(e.failure());
  } catch (const std::exception& e) {
    tell(fmt::format("the program ended by an exception: {}", e.what()));
    return 1;
#ifdef __GLIBCXX__
  } catch (const abi::__forced_unwind&) {  // pthread_cancel and pthread_exit, which must go on
    throw;
#endif
  } catch (...) {
    tell("the program ended by an exception that is no std::exception");
    return 1;
  }
}

}  // namespace elrun::inline v0
