// How long does a job stand still when a worker or a node goes, or a node comes? Real agents on the loopback with workers of
// the gpt sample (one each, where nodes go or come): from the event to the first step of the next generation, as the survivor prints it. One line per question.
// A silent node is one whose processes are all stopped: its connections live on and say nothing, as behind a cut cable.
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "tests/support/spawn.hpp"

using elrun::test::Job;
using elrun::test::number_after;
using elrun::test::Wait;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using Time = std::chrono::steady_clock::time_point;
constexpr auto now = std::chrono::steady_clock::now;

namespace {

constexpr Wait patience{60000};

[[noreturn]] void give_up(const std::string& why) {
  constexpr std::size_t shown_max = 2000;  // a job prints a line for each step: its end tells
  fmt::print(stderr, "recovery_bench: {}\n", why.size() > shown_max ? why.substr(0, 60) + " ... " + why.substr(why.size() - shown_max) : why);
  std::exit(1);
}

double ms_since(Time begin) { return std::chrono::duration<double, std::milli>(now() - begin).count(); }

/// One job: a folder, an endpoint, and what stands in all its agents' command lines.
class Cluster {
 public:
  Cluster(std::string nodes, std::string times, bool apart) : nodes_{std::move(nodes)}, times_{std::move(times)} {
    std::ofstream text{folder_.path() + "/text"};
    for (int i = 0; i < 4000; ++i) text << "line " << i * 7919 % 4001 << " of a text that nobody needs to read\n";
    if (!apart) return;
    store_ = std::make_unique<Job>(Job::Setting{.arguments = {"store", "--host", "127.0.0.1", "--port", port_, "--rdzv_conf", times_}});
    if (!store_->line("serving", patience)) give_up("the store does not serve: " + store_->output());
  }
  /// The agent of rank 0 leads and prints; another one's rank orders it behind.
  [[nodiscard]] std::unique_ptr<Job> agent(int rank) const {
    return start({"--nnodes", nodes_, "--nproc_per_node", "1", "--node_rank", std::to_string(rank), "--rdzv_backend", "c10d", "--rdzv_endpoint", "127.0.0.1:" + port_, "--rdzv_conf", times_},
                 {"--checkpoint", folder_.path() + "/checkpoints", "--every", "50"});
  }
  /// One agent with all the workers.
  [[nodiscard]] std::unique_ptr<Job> alone(int workers, bool sharded) const {
    std::vector<std::string> program{"--zero", sharded ? "1" : "0"};
    if (sharded) program.insert(program.end(), {"--checkpoint", folder_.path() + "/checkpoints", "--every", "50"});
    return start({"--nproc_per_node", std::to_string(workers)}, program);
  }
  /// The host of the rendezvous, if it is an agent, serves before the next one is started.
  [[nodiscard]] std::unique_ptr<Job> first_agent() const {
    auto first = agent(0);
    if (!first->line(store_ ? " nodes; " : "serving", patience)) give_up("the first agent does not join: " + first->output());
    return first;
  }

 private:
  [[nodiscard]] std::unique_ptr<Job> start(std::vector<std::string> options, const std::vector<std::string>& program) const {
    const char* bin = std::getenv("ELRUN_BIN");
    options.insert(options.end(), {"--no_python", fmt::format("{}/gpt", bin != nullptr ? bin : "build/bin"), "--data", folder_.path() + "/text", "--steps", "1000000", "--global-batch", "8",
                                   "--micro-batch", "1", "--layers", "1", "--channels", "32", "--heads", "2", "--context", "16"});
    options.insert(options.end(), program.begin(), program.end());
    return std::make_unique<Job>(Job::Setting{.arguments = std::move(options), .environment = {{"XDG_RUNTIME_DIR", folder_.path()}, {"OMP_NUM_THREADS", "1"}}});
  }
  std::string nodes_, times_, port_ = std::to_string(elrun::test::free_port());
  elrun::test::TemporaryDirectory folder_;
  std::unique_ptr<Job> store_;
};

struct Step {
  std::int64_t world, generation;
};

/// The next step that was taken in a world of this many workers, of a generation after `last`.
Step step_in(Job& job, std::int64_t world, std::int64_t last) {
  const Time begin = now();
  while (ms_since(begin) < 60'000) {
    const auto line = job.line("step=", patience);
    if (!line) break;
    const Step step{number_after(*line, " world"), number_after(*line, " generation")};
    if (step.world == world && step.generation > last) return step;
  }
  give_up("no such step: " + job.output());
}

/// The job runs for a moment, so that what is measured is not its beginning.
void settle(Job& job, Wait time = 1500ms) { (void)job.line("no line says this", time); }

enum class Loss { killed, silent };

void lose(Job& agent, Loss loss) {
  std::vector<pid_t> all = agent.children_named("gpt");
  if (all.size() != 1) give_up("the victim has no worker");
  all.push_back(agent.pid());
  for (const pid_t pid : all) ::kill(pid, loss == Loss::killed ? SIGKILL : SIGSTOP);
}

// A stopped agent that is killed leaves its worker to its guard.
void end(Job& agent) {
  agent.signal(SIGKILL);
  agent.signal(SIGCONT);
  (void)agent.wait(patience);
}

double loss_ms(bool apart, Loss loss, bool spare, const std::string& times) {
  const Cluster cluster{"1:2", "last_call_timeout=60," + times, apart};
  const auto survivor = cluster.first_agent(), victim = cluster.agent(1);
  const Step before = step_in(*survivor, 2, 0);
  const auto waiting = spare ? cluster.agent(2) : nullptr;
  if (waiting && !waiting->line("spare", patience)) give_up("the third agent is no spare: " + waiting->output());
  settle(*survivor);
  const Time begin = now();
  lose(*victim, loss);
  (void)step_in(*survivor, spare ? 2 : 1, before.generation);
  const double took = ms_since(begin);
  for (Job* job : {victim.get(), waiting.get(), survivor.get()})
    if (job != nullptr) end(*job);
  return took;
}

/// One of the workers of one agent, not the one that prints.
double worker_ms(int workers, bool sharded) {
  const Cluster cluster{"1", "", false};
  const auto agent = cluster.alone(workers, sharded);
  const Step before = step_in(*agent, workers, 0);
  settle(*agent);
  const std::vector<pid_t> all = agent->children_named("gpt");
  if (all.size() != static_cast<std::size_t>(workers)) give_up("workers are missing: " + agent->output());
  const Time begin = now();
  ::kill(all.back(), SIGKILL);
  (void)step_in(*agent, workers, before.generation);
  const double took = ms_since(begin);
  end(*agent);
  return took;
}

double replacement_ms() {
  const Cluster cluster{"2", "last_call_timeout=60", true};
  const auto survivor = cluster.first_agent(), victim = cluster.agent(1);
  const Step before = step_in(*survivor, 2, 0);
  settle(*survivor);
  lose(*victim, Loss::killed);
  if (!survivor->line("missing: at least 1", patience)) give_up("the survivor does not wait: " + survivor->output());
  const Time begin = now();
  const auto replacement = cluster.agent(1);
  (void)step_in(*survivor, 2, before.generation);
  const double took = ms_since(begin);
  for (Job* job : {victim.get(), replacement.get(), survivor.get()}) end(*job);
  return took;
}

double growth_ms() {
  const Cluster cluster{"1:2", "last_call_timeout=0.1", true};
  const auto first = cluster.agent(0);  // it is alone at first, and may not be told that it waits
  const Step before = step_in(*first, 1, 0);
  settle(*first);
  const Time begin = now();
  const auto second = cluster.agent(1);
  (void)step_in(*first, 2, before.generation);
  const double took = ms_since(begin);
  for (Job* job : {second.get(), first.get()}) end(*job);
  return took;
}

std::string only;  // questions that contain this

template <class Measure>
void answer(const std::string& question, int repeats, const std::string& bound, Measure measure) {
  if (question.find(only) == std::string::npos) return;
  std::vector<double> all;
  for (int i = 0; i < repeats; ++i) all.push_back(measure());
  std::sort(all.begin(), all.end());
  fmt::print("recovery: {}: {:.2f} s median of {}, longest {:.2f} s (bound: {})\n", question, all[all.size() / 2] / 1000, repeats, all.back() / 1000, bound);
}

}  // namespace

// recovery_bench [TEXT]: the questions that contain it, or all.
int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  ::setlinebuf(stdout);
  if (argc > 1) only = argv[1];
  const std::string fast = "keep_alive_interval=0.1,keep_alive_max_attempt=5";
  answer("one of 4 workers killed, replicated state", 25, "0.1 s", [] { return worker_ms(4, false); });
  answer("one of 4 workers killed, sharded state and checkpoints", 25, "-", [] { return worker_ms(4, true); });
  answer("one of two agents killed, coordinator elsewhere", 7, "1 s", [] { return loss_ms(true, Loss::killed, false, ""); });
  answer("one of two agents killed, coordinator on the survivor", 7, "1 s", [] { return loss_ms(false, Loss::killed, false, ""); });
  answer("one of two agents silent, limit 5 s", 3, "6 s", [] { return loss_ms(true, Loss::silent, false, ""); });
  answer("one of two agents silent, limit 0.5 s", 7, "1.5 s", [&] { return loss_ms(true, Loss::silent, false, fast); });
  answer("one of two agents killed, a third as spare, world unchanged", 7, "1 s", [] { return loss_ms(true, Loss::killed, true, ""); });
  answer("one of two agents silent, limit 0.5 s, a third as spare", 7, "1.5 s", [&] { return loss_ms(true, Loss::silent, true, fast); });
  answer("--nnodes 2: start of the replacement to the next step", 7, "1 s", [] { return replacement_ms(); });
  answer("a second agent joins a running 1:2 job: start to a step of both", 7, "1 s", [] { return growth_ms(); });
}
