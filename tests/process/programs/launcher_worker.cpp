// A worker for tests of the launcher: what it does is its first argument. It says what it does in whole lines.
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>

#include <elrun/session.hpp>

#include "lib/base/clock.hpp"

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "(unset)" : value;
}

[[gnu::format(printf, 1, 2)]] void say(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  int length = std::vsnprintf(text, sizeof text - 1, format, arguments);
  va_end(arguments);
  text[length++] = '\n';
  [[maybe_unused]] const ssize_t ignored = ::write(1, text, static_cast<std::size_t>(length));  // at once: lines of workers do not mix
}

void ready() {
  say("ready rank=%s world=%s pid=%d generation=%s restarts=%s own=%s port=%s", variable("RANK").c_str(), variable("WORLD_SIZE").c_str(),
      ::getpid(), variable("ELRUN_GENERATION").c_str(), variable("ELRUN_RESTART_COUNT").c_str(),
      variable("TORCHELASTIC_RESTART_COUNT").c_str(), variable("MASTER_PORT").c_str());
}

int wait_for_signal() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) sigaddset(&set, number);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  ready();
  int number = 0;
  sigwait(&set, &number);
  say("got %d", number);
  return 0;
}

int be_deaf() {
  signal(SIGTERM, SIG_IGN);
  ready();
  for (;;) ::pause();
}

// A session as a Job has it: a roll call through the store, then what `then` says.
int be_a_job(const std::string& then) {
  const elrun::SteadyClock clock;
  const auto soon = [&] { return elrun::Deadline::after(clock.now(), std::chrono::seconds{30}); };
  auto session = elrun::Session::open(elrun::WorkerKind::job, soon());
  if (!session) return std::fprintf(stderr, "%s\n", elrun::message(session.failure()).c_str()), 20;
  const elrun::Membership me = (*session)->place().membership;
  const bool first = (*session)->place().restart_count == 0;
  if (const auto met = (*session)->store().barrier("start", me.world, soon()); !met)
    return std::fprintf(stderr, "%s\n", elrun::message(met.failure()).c_str()), 21;
  (*session)->progress({elrun::StepNumber{1}});
  ready();
  if (then == "stop_once" && first)  // no step comes after the first
    for (;;) ::pause();
  if (then == "die_once" && first) {
    if (me.rank.value() == 1) (void)(*session)->store().num_keys(soon()), ::raise(SIGKILL);  // with its answer the agent has the step
    for (;;) ::pause();
  }
  if (then == "cut_off" && first) {
    (*session)->cannot_go_on({elrun::Code::peer_lost, elrun::Remedy::rejoin, "nobody answers"});
    for (;;) ::pause();
  }
  if (then == "wait")
    for (;;) ::pause();
  if (const auto over = (*session)->finished(soon()); !over) return 22;
  say("finished rank=%u generation=%llu", me.rank.value(), static_cast<unsigned long long>(me.generation.number));
  if (then == "over_then_die") ::raise(SIGKILL);
  return 0;
}

// A session whose process stays: rank `victim` is killed in the first generation, and in the second the others finish the job.
int stay(const std::string& victim) {
  const elrun::SteadyClock clock;
  const auto soon = [&] { return elrun::Deadline::after(clock.now(), std::chrono::seconds{30}); };
  auto session = elrun::Session::open(elrun::WorkerKind::staying, soon());
  if (!session) return std::fprintf(stderr, "%s\n", elrun::message(session.failure()).c_str()), 20;
  std::promise<void> over;
  (*session)->on_generation_over([&](const elrun::Failure&) { over.set_value(); });
  // The victim may be killed before the others have the answer.
  [[maybe_unused]] const auto met = (*session)->store().barrier("start", (*session)->place().membership.world, soon());
  if (variable("RANK") == victim) ::raise(SIGKILL);
  over.get_future().wait();
  if (const auto next = (*session)->next_generation(soon()); !next)
    return std::fprintf(stderr, "%s\n", elrun::message(next.failure()).c_str()), 21;
  const elrun::Membership me = (*session)->place().membership;
  if (!(*session)->store().barrier("end", me.world, soon()) || !(*session)->finished(soon())) return 22;
  say("finished rank=%u generation=%llu", me.rank.value(), static_cast<unsigned long long>(me.generation.number));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const bool again = variable("ELRUN_RESTART_COUNT") != "0";
  if (mode == "environment") {
    std::string text = "rank " + variable("RANK") + ":";
    for (int i = 2; i < argc; ++i) text += std::string{" "} + argv[i] + "=" + variable(argv[i]);
    say("%s", text.c_str());
    return 0;
  }
  if (mode == "exit") {  // exit RANK CODE
    if (variable("RANK") == argv[2]) return std::atoi(argv[3]);
    return wait_for_signal();
  }
  if (mode == "die_once") {  // die_once RANK
    if (again) return ready(), 0;
    if (variable("RANK") == argv[2]) ::raise(SIGKILL);
    return wait_for_signal();
  }
  if (mode == "wait") return wait_for_signal();
  if (mode == "deaf") return be_deaf();
  if (mode == "parent") {  // leaves a deaf child behind
    if (again) return ready(), 0;
    pid_t child = -1;
    char deaf[] = "deaf";
    char* arguments[] = {argv[0], deaf, nullptr};
    ::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ);
    say("grandchild pid=%d", child);
    ::raise(SIGKILL);
  }
  if (mode == "until_world") {  // until_world SIZE: done in a world of that size, waits in others
    if (variable("WORLD_SIZE") == argv[2]) return ready(), 0;
    return wait_for_signal();
  }
  if (mode == "until_file") {  // until_file PATH: done when it is there
    ready();
    while (::access(argv[2], F_OK) != 0) ::usleep(20'000);
    return 0;
  }
  if (mode == "job") return be_a_job(argc > 2 ? argv[2] : "");
  if (mode == "stay") {  // stay VICTIM; a process that is started again never asks for its place
    while (again) ::pause();
    return stay(argv[2]);
  }
  std::fprintf(stderr, "launcher_worker: unknown mode `%s`\n", mode.c_str());
  return 99;
}
