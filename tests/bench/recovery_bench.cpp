// How long does a job stand still when a worker or a node goes, or a node comes? Real agents on the loopback with workers of
// the gpt sample: from the event to the first step that is decided in the next generation, as the survivor prints it, less
// what such a step takes there undisturbed. The rest of the slot that survivors are in is not taken off. A silent node is one
// whose processes are all stopped: its connections live on and say nothing, as behind a cut cable.
//
// Some questions are asked of workers with a large state: a program of this file, whose state is frozen but for a few numbers. Every rank holds all of it, and a
// newcomer gets all of it, as it would with a model that trains and is replicated; only the steps are short, so that what a loss takes can be told from them. Two are asked of a state that
// trains, with its moments. What a loss takes where a large state trains, in each placement, held_losses.cpp asks.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <elrun/elrun.hpp>

#include "tests/bench/held_losses.hpp"
#include "tests/support/spawn.hpp"

using elrun::test::generation_in;
using elrun::test::Job;
using elrun::test::number_after;
using elrun::test::program_path;
using elrun::test::Wait;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using Time = std::chrono::steady_clock::time_point;
constexpr auto now = std::chrono::steady_clock::now;

namespace {

constexpr Wait patience{60000};
std::string only;  // questions that contain this
std::string self;  // this program's path

[[noreturn]] void give_up(const std::string& why) {
  constexpr std::size_t shown_max = 2000;  // a job prints a line for each step: its end tells
  fmt::print(stderr, "recovery_bench: {}\n",
             why.size() > shown_max ? why.substr(0, 60) + " ... " + why.substr(why.size() - shown_max) : why);
  std::exit(1);
}

double ms_since(Time begin) { return std::chrono::duration<double, std::milli>(now() - begin).count(); }

struct Shape {
  int agents = 1, workers = 1;  ///< Workers of each agent.
  std::string zero = "0";       ///< As gpt has it. With "1" there is a checkpoint every 50 steps, otherwise none.
  int starts_in = 0;            ///< Seconds that a worker takes that is started again, before it is the program.
  bool apart = true;            ///< The coordinator is `elrun store`; otherwise the first agent, or whoever follows it.
  std::string nodes = "1:2", times = "last_call_timeout=60";
  unsigned state_mb = 0;  ///< Of each worker, in place of gpt's small one.
  bool trains = false;    ///< That state, and it is not frozen.
  unsigned slot_ms = 0;   ///< So long each of its slots lasts at least, as with a device that computes.
  unsigned slots = 8;     ///< Of a step, with that state.

  [[nodiscard]] bool sharded() const { return zero == "1"; }
  [[nodiscard]] std::string state() const {
    const char* how = sharded() ? "sharded" : zero == "0" ? "replicated" : "mirrored";
    return state_mb == 0 ? how
                         : fmt::format("{}, {} MB of state each{}{}", how, state_mb, trains ? " that trains" : "",
                                       slot_ms > 0 ? fmt::format(", {} slots of {} ms", slots, slot_ms) : "");
  }
};

/// One job: a folder, an endpoint, and what stands in all its agents' command lines.
class Cluster {
 public:
  explicit Cluster(Shape shape) : shape_{std::move(shape)} {
    std::ofstream text{folder_.path() + "/text"};
    for (int i = 0; i < 4000; ++i) text << "line " << i * 7919 % 4001 << " of a text that nobody needs to read\n";
    std::ofstream{program_} << "#!/bin/sh\n[ \"$TORCHELASTIC_RESTART_COUNT\" = 0 ] || sleep " << shape_.starts_in << "\nexec " << program()
                            << " \"$@\"\n";
    std::filesystem::permissions(program_, std::filesystem::perms::owner_all);
    if (!shape_.apart || shape_.agents == 1) return;
    store_ =
        std::make_unique<Job>(Job::Setting{.arguments = {"store", "--host", "127.0.0.1", "--port", port_, "--rdzv_conf", shape_.times}});
    if (!store_->line("serving", patience)) give_up("the store does not serve: " + store_->output());
  }
  /// The agent of rank 0 leads and prints; another one's rank orders it behind.
  [[nodiscard]] std::unique_ptr<Job> agent(int rank) const {
    std::vector<std::string> options{"--nproc_per_node", std::to_string(shape_.workers), "--max_restarts", "1000"};
    if (shape_.agents > 1)
      options.insert(options.end(),
                     {"--nnodes", shape_.nodes, "--node_rank", std::to_string(rank), "--rdzv_backend", "c10d", "--rdzv_endpoint",
                      "127.0.0.1:" + port_, "--rdzv_conf", shape_.times + (shape_.apart ? ",is_host=0" : "")});
    if (shape_.state_mb > 0) {
      options.insert(options.end(),
                     {"--no_python", shape_.starts_in > 0 ? program_ : program(), "worker", std::to_string(shape_.state_mb), shape_.zero,
                      shape_.trains ? "trains" : "frozen", std::to_string(shape_.slot_ms), std::to_string(shape_.slots)});
      return start(std::move(options));
    }
    options.insert(options.end(), {"--no_python",    shape_.starts_in > 0 ? program_ : program(),
                                   "--data",         folder_.path() + "/text",
                                   "--steps",        "1000000",
                                   "--global-batch", "8",
                                   "--micro-batch",  "1",
                                   "--layers",       "1",
                                   "--channels",     "32",
                                   "--heads",        "2",
                                   "--context",      "16",
                                   "--zero",         shape_.zero});
    if (shape_.sharded()) options.insert(options.end(), {"--checkpoint", folder_.path() + "/checkpoints", "--every", "50"});
    return start(std::move(options));
  }
  /// The host of the rendezvous, if it is an agent, serves before the next one is started.
  [[nodiscard]] std::unique_ptr<Job> first_agent() const {
    auto first = agent(0);
    if (shape_.agents > 1 && !first->line(store_ ? " nodes; " : "serving", patience))
      give_up("the first agent does not join: " + first->output());
    return first;
  }
  [[nodiscard]] std::string program() const { return shape_.state_mb > 0 ? self : program_path("gpt"); }
  [[nodiscard]] int world() const { return shape_.agents * shape_.workers; }

 private:
  [[nodiscard]] std::unique_ptr<Job> start(std::vector<std::string> options) const {
    return std::make_unique<Job>(
        Job::Setting{.arguments = std::move(options), .environment = {{"XDG_RUNTIME_DIR", folder_.path()}, {"OMP_NUM_THREADS", "1"}}});
  }
  Shape shape_;
  std::string port_ = std::to_string(elrun::test::free_port());
  elrun::test::TemporaryDirectory folder_;
  std::string program_ = folder_.path() + "/slow";
  std::unique_ptr<Job> store_;
};

struct Step {
  std::int64_t world, generation;
  Time when;
};

std::optional<Step> step_of(const std::string& line) {
  if (!line.starts_with("step=")) return {};
  return Step{number_after(line, " world"), number_after(line, " generation"), now()};
}

/// The next step that was taken in a world of this many workers, of a generation after `last`.
Step step_in(Job& job, std::int64_t world, std::int64_t last) {
  const Time begin = now();
  while (ms_since(begin) < 60'000) {
    const auto line = job.line("step=", patience);
    if (!line) break;
    const auto step = step_of(*line);
    if (step && step->world == world && step->generation > last) return *step;
  }
  give_up("no such step: " + job.output());
}

/// The job runs for a moment, so that what is measured is not its beginning.
void settle(Job& job, Wait time = 1500ms) { (void)job.line("no line says this", time); }

double at_share(std::vector<double> all, double share) {
  std::sort(all.begin(), all.end());
  return all[std::min(all.size() - 1, static_cast<std::size_t>(share * static_cast<double>(all.size())))];
}

/// What a step takes: the median of the next ones that are printed. Not of many where they are long, for the world may grow meanwhile. The first of them in a world of so many
/// is `whole`.
double undisturbed_ms(Job& job, std::int64_t world = 0, std::optional<Step>* whole = nullptr) {
  constexpr std::size_t steps_max = 50, steps_min = 3;
  constexpr double enough = 500;  // ms
  const Time begin = now();
  std::vector<double> all;
  std::optional<Time> last;
  while (all.size() < steps_min || (all.size() < steps_max && ms_since(begin) < enough)) {
    const auto line = job.line("step=", patience);
    if (!line) give_up("no more steps: " + job.output());
    const auto step = step_of(*line);
    if (!step) continue;
    if (last) all.push_back(std::chrono::duration<double, std::milli>(step->when - *last).count());
    if (whole != nullptr && !*whole && step->world == world) *whole = step;
    last = step->when;
  }
  return at_share(std::move(all), 0.5);
}

/// Of a node's agent and its workers, or of its agent alone, whose guard then ends the workers.
enum class Loss { killed, agent_killed, silent };

std::vector<pid_t> workers_of(const Job& agent) {
  std::vector<pid_t> all = agent.children_named("gpt");
  return all.empty() ? agent.children_named("recovery_bench") : all;
}

void lose(Job& agent, Loss loss) {
  std::vector<pid_t> all = workers_of(agent);
  if (all.empty()) give_up("the victim has no worker");
  if (loss == Loss::agent_killed) all.clear();
  all.push_back(agent.pid());
  for (const pid_t pid : all) ::kill(pid, loss == Loss::silent ? SIGSTOP : SIGKILL);
}

// A stopped agent that is killed leaves its workers to its guard.
void end(Job& agent) {
  agent.signal(SIGKILL);
  agent.signal(SIGCONT);
  (void)agent.wait(patience);
}

/// One recovery, in milliseconds since the event; each as its first line says.
struct Phases {
  double noticed = 0, begun = 0, decided = 0, step = 0;
  double whole = 0;  ///< To the first step with all workers again; 0: not looked for
  std::string said;  ///< By the survivor until then, each line with its time.
};

/// What the survivor says after the event at `begin`. `whole`: its first step in a world of so many, where that came while it was listened to.
Phases recovery(Job& survivor, Time begin, std::int64_t last, std::int64_t world = 0, std::optional<Step>* whole = nullptr) {
  Phases phases;
  while (ms_since(begin) < 60'000) {
    const auto line = survivor.line("", patience);
    if (!line) break;
    if (phases.noticed == 0 && line->starts_with("[elrun ") && !line->starts_with("[elrun rank")) phases.noticed = ms_since(begin);
    if (phases.begun == 0 && generation_in(*line) > last) phases.begun = ms_since(begin);
    const auto step = step_of(*line);
    phases.said += fmt::format("    {:8.1f} ms  {}\n", ms_since(begin), *line);
    if (!step || step->generation <= last) continue;
    phases.decided = ms_since(begin);
    if (whole != nullptr && step->world == world) *whole = step;
    phases.step = undisturbed_ms(survivor, world, whole);
    return phases;
  }
  give_up("no step after the loss: " + survivor.output());
}

/// How long a worker or node that joins holds up the others, in milliseconds: beyond an undisturbed step, and of that from the last step to the
/// end of its generation, from there to the next world, and from there to the first step in it.
struct Held {
  double all = 0, over = 0, begun = 0, decided = 0;
};

/// `last`: the step that is the first one in the world with the newcomer, afterwards.
Held join_of(Job& survivor, std::int64_t world, Step& last) {
  const auto ms = [](Time from, Time to) { return std::chrono::duration<double, std::milli>(to - from).count(); };
  std::optional<Step> before;
  Time over{}, begun{};
  while (const auto line = survivor.line("", patience)) {
    if (line->find("is over: the world grows") != std::string::npos) over = now();
    if (over != Time{} && begun == Time{} && generation_in(*line) > 0) begun = now();
    const auto next = step_of(*line);
    if (before && next && next->world == world) {
      last = *next;
      return {ms(before->when, next->when) - undisturbed_ms(survivor), ms(before->when, over), ms(over, begun), ms(begun, next->when)};
    }
    if (next) before = next;
  }
  give_up("nobody joins: " + survivor.output());
}

/// One worker after the other of the first agent, not the one that prints. `joins`: how long the others stood still for its successor.
std::vector<Phases> processes_lost(const Shape& shape, int repeats, std::vector<Held>& joins) {
  const Cluster cluster{shape};
  std::vector<std::unique_ptr<Job>> agents;
  for (int rank = 0; rank < shape.agents; ++rank) agents.push_back(rank == 0 ? cluster.first_agent() : cluster.agent(rank));
  Job& leader = *agents.front();
  Step step = step_in(leader, cluster.world(), 0);
  std::vector<Phases> all;
  for (int i = 0; i < repeats; ++i) {
    settle(leader);  // of replacements that come within a second of the last one only three do not wait for the rest of it
    const std::vector<pid_t> workers = workers_of(*agents.back());
    if (workers.size() != static_cast<std::size_t>(shape.workers)) give_up("workers are missing: " + leader.output());
    const Time begin = now();
    ::kill(workers[workers.size() - 1], SIGKILL);
    std::optional<Step> whole;
    all.push_back(recovery(leader, begin, step.generation, cluster.world(), &whole));
    if (whole) step = *whole;  // it joined while the survivors' steps were measured
    else joins.push_back(join_of(leader, cluster.world(), step));
    all.back().whole = std::chrono::duration<double, std::milli>(step.when - begin).count();
  }
  for (const auto& agent : agents) end(*agent);
  return all;
}

/// One of two agents, again and again: the one that coordinates, or the other. What comes in its place joins before the next
/// time, and how long the survivor's workers stood still for it is `joins`.
std::vector<Phases> nodes_lost(const Shape& shape, Loss loss, int repeats, std::vector<Held>& joins) {
  const Cluster cluster{shape};
  auto survivor = cluster.first_agent(), victim = cluster.agent(1);
  Step step = step_in(*survivor, cluster.world(), 0);
  std::vector<Phases> all;
  for (int i = 0; i < repeats; ++i) {
    if (!shape.apart) std::swap(survivor, victim);  // who leads coordinates, and the other one is the next to do so
    settle(*survivor, i == 0 ? 1500ms : 300ms);
    const Time begin = now();
    lose(*victim, loss);
    all.push_back(recovery(*survivor, begin, step.generation));
    end(*victim);
    victim = cluster.agent(1);
    joins.push_back(join_of(*survivor, cluster.world(), step));
  }
  for (Job* job : {victim.get(), survivor.get()}) end(*job);
  return all;
}

/// With a spare, which takes the place of the dead.
double replaced_ms(Loss loss, const std::string& times) {
  const Cluster cluster{{.agents = 2, .times = "last_call_timeout=60" + times}};
  const auto survivor = cluster.first_agent(), victim = cluster.agent(1);
  const Step before = step_in(*survivor, 2, 0);
  const auto waiting = cluster.agent(2);
  if (!waiting->line("spare", patience)) give_up("the third agent is no spare: " + waiting->output());
  settle(*survivor);
  const Time begin = now();
  lose(*victim, loss);
  (void)step_in(*survivor, 2, before.generation);
  const double took = ms_since(begin);
  for (Job* job : {victim.get(), waiting.get(), survivor.get()}) end(*job);
  return took;
}

double replacement_ms() {
  const Cluster cluster{{.agents = 2, .nodes = "2"}};
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
  const Cluster cluster{{.agents = 2, .times = "last_call_timeout=0.1"}};
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

/// One of four workers of an agent, killed so soon after the world grew by its predecessor: to the first step of all four.
double replaced_again_ms(Wait after_growth) {
  const Cluster cluster{{.agents = 1, .workers = 4}};
  const auto leader = cluster.first_agent();
  Step step = step_in(*leader, cluster.world(), 0);
  settle(*leader);
  const auto lose_one = [&] { ::kill(workers_of(*leader).back(), SIGKILL); };
  lose_one();
  step = step_in(*leader, cluster.world(), step.generation);
  settle(*leader, after_growth);
  const Time begin = now();
  lose_one();
  (void)step_in(*leader, cluster.world(), step.generation);
  const double took = ms_since(begin);
  end(*leader);
  return took;
}

/// How many steps an agent's workers decide, `lasting` long. `is_bad`: the last worker dies whenever it has had a part in a step, so it is hardly ever there. And how often it joins.
std::pair<double, int> steps_per_second(const Shape& shape, bool is_bad, Wait lasting) {
  const Cluster cluster{shape};
  const auto leader = cluster.first_agent();
  (void)step_in(*leader, cluster.world(), 0);
  settle(*leader);
  int steps = 0, joins = 0;
  std::int64_t newest = 0;
  for (const Time begin = now(); ms_since(begin) < static_cast<double>(lasting.count());) {
    const auto line = leader->line("step=", patience);
    if (!line) give_up("no more steps: " + leader->output());
    const auto step = step_of(*line);
    if (!step) continue;
    ++steps;
    if (!is_bad || step->world != cluster.world() || step->generation <= newest) continue;
    newest = step->generation, ++joins;
    ::kill(workers_of(*leader).back(), SIGKILL);
  }
  end(*leader);
  return {1000.0 * steps / static_cast<double>(lasting.count()), joins};
}

void bad_worker(Wait lasting) {
  const std::string question = "a worker beside three others dies whenever it has had a part in a step";
  if (question.find(only) == std::string::npos) return;
  const Shape three{.agents = 1, .workers = 3, .state_mb = 1, .slot_ms = 5, .slots = 12};
  Shape four = three;
  four.workers = 4;
  const auto [good, none] = steps_per_second(three, false, lasting);
  const auto [bad, joins] = steps_per_second(four, true, lasting);
  fmt::print("recovery: {}: {:.1f} steps per second, and {:.1f} of the three alone; it joined {} times in {} s\n", question, bad, good,
             joins, lasting.count() / 1000);
}

int repeats_max = std::numeric_limits<int>::max();  // of each question

template <class Measure>
void answer(const std::string& question, int repeats, const std::string& bound, Measure measure) {
  if (question.find(only) == std::string::npos) return;
  repeats = std::min(repeats, repeats_max);
  std::vector<double> all;
  for (int i = 0; i < repeats; ++i) all.push_back(measure());
  std::sort(all.begin(), all.end());
  fmt::print("recovery: {}: {:.2f} s median of {}, longest {:.2f} s (bound: {})\n", question, all[all.size() / 2] / 1000, repeats,
             all.back() / 1000, bound);
}

void print_losses(const std::string& question, const std::vector<Phases>& all) {
  const auto of = [&](double share, const auto& get) {
    std::vector<double> values;
    for (const Phases& p : all) values.push_back(get(p));
    return at_share(std::move(values), share);
  };
  const auto recovered = [](const Phases& p) { return p.decided - p.step; };
  fmt::print(
      "recovery: {}: p50 {:.1f} ms, p99 {:.1f} ms of {}; p50 of the phases: noticed {:.1f}, next generation {:.1f}, step decided {:.1f}, of which a step itself {:.1f}\n",
      question, of(0.5, recovered), of(0.99, recovered), all.size(), of(0.5, [](const Phases& p) { return p.noticed; }),
      of(0.5, [](const Phases& p) { return p.begun; }), of(0.5, [](const Phases& p) { return p.decided; }),
      of(0.5, [](const Phases& p) { return p.step; }));
  if (all.front().whole > 0)
    fmt::print("recovery:   all workers are in the world again after p50 {:.1f} ms, p99 {:.1f} ms\n",
               of(0.5, [](const Phases& p) { return p.whole; }), of(0.99, [](const Phases& p) { return p.whole; }));
  // One that took far longer than the others had another reason than they: what was said tells which.
  constexpr double far = 4;
  const Phases& slowest =
      *std::max_element(all.begin(), all.end(), [&](const Phases& a, const Phases& b) { return recovered(a) < recovered(b); });
  if (recovered(slowest) > far * of(0.5, recovered))
    fmt::print("recovery:   the slowest took {:.1f} ms:\n{}", recovered(slowest), slowest.said);
}

void print_joins(const std::vector<Held>& joins) {
  if (joins.empty()) return;
  const auto of = [&](double share, double Held::*phase) {
    std::vector<double> values;
    for (const Held& held : joins) values.push_back(held.*phase);
    return at_share(std::move(values), share);
  };
  fmt::print(
      "recovery:   and the replacement joins: the others stand still for p50 {:.1f} ms, p99 {:.1f} ms of {}, beyond a step; p50 of the phases: to the end of the generation {:.1f}, to the next world {:.1f}, to its first step {:.1f}\n",
      of(0.5, &Held::all), of(0.99, &Held::all), joins.size(), of(0.5, &Held::over), of(0.5, &Held::begun), of(0.5, &Held::decided));
}

void processes(const Shape& shape, int repeats) {
  const std::string question = fmt::format("process, {} workers over {} agent{}, {}", shape.agents * shape.workers, shape.agents,
                                           shape.agents > 1 ? "s" : "", shape.state()) +
                               (shape.starts_in > 0 ? fmt::format(", started again in {} s", shape.starts_in) : "");
  if (question.find(only) == std::string::npos) return;
  std::vector<Held> joins;
  print_losses(question, processes_lost(shape, std::min(repeats, repeats_max), joins));
  print_joins(joins);
}

void nodes(const std::string& what, Shape shape, Loss loss, const std::string& times, int repeats) {
  shape.agents = 2, shape.times += times;
  const std::string question = fmt::format("{}, {} workers over 2 agents, {}", what, shape.agents * shape.workers, shape.state());
  if (question.find(only) == std::string::npos) return;
  std::vector<Held> joins;
  print_losses(question, nodes_lost(shape, loss, std::min(repeats, repeats_max), joins));
  print_joins(joins);
}

}  // namespace

namespace {

/// `trains`: all of the state, as parameters with two moments each.
void train(elrun::Job& job, std::uint64_t state_mb, const std::string& zero, bool trains, std::chrono::milliseconds slot_time,
           std::uint64_t slots) {
  job.configure({.global_batch = slots,
                 .micro_batch = 1,
                 .samples = 1000,
                 .steps = 1'000'000'000,
                 .seed = 1,
                 .placement = zero == "0" ? elrun::zero(0) : elrun::mirrored(elrun::zero(1))},
                {});
  const std::uint64_t elements = state_mb * 1'000'000 / sizeof(float);
  auto head = job.unit("head"), body = job.unit("body");
  auto weights = head.tensor<float>("weights", {trains ? elements / 3 : 4096});
  auto table = body.tensor<float>("table", {trains ? 1 : elements}, {.frozen = true});
  job.seal();
  if (!job.restore()) {
    std::ranges::fill(weights.span(), 0.5f);
    std::ranges::fill(table.span(), 0.5f);
  }
  while (auto step = job.next_step()) {
    for (auto& slot : step->slots()) {
      auto scope = head.use_grad();
      const auto in = weights.span(), out = weights.grad_span();
      for (std::size_t i = 0; i < in.size(); ++i) out[i] = in[i] * 1e-3f;
      std::this_thread::sleep_for(slot_time);
      slot.report(1, 1);
    }
    const auto result = step->apply(elrun::AdamW{}, {.lr = 1e-3f});
    if (result.decided) job.print(fmt::format("step={} world={} generation={}", result.step, result.world, result.generation));
  }
}

}  // namespace

// recovery_bench [TEXT [REPEATS [HELD_MB]]]: the questions that contain it, or all; each so many times at most. HELD_MB: what each worker holds of a state that trains, where a question
// begins with "held"; 1074, which is 1 GiB.
int main(int argc, char** argv) {
  if (argc == 6 && std::string{argv[1]} == "holder") return elrun::bench::hold(argc, argv);
  if (argc == 7 && std::string{argv[1]} == "worker")
    return elrun::run(argc, argv, [&](elrun::Job& job) {
      train(job, std::stoull(argv[2]), argv[3], std::string{argv[4]} == "trains", std::chrono::milliseconds{std::stoull(argv[5])},
            std::stoull(argv[6]));
    });
  self = argv[0];
  ::signal(SIGPIPE, SIG_IGN);
  ::setlinebuf(stdout);
  if (argc > 1) only = argv[1];
  if (argc > 2) repeats_max = std::max(1, std::atoi(argv[2]));
  double load = 0;
  (void)::getloadavg(&load, 1);
  fmt::print("recovery: on {} cores, load {:.1f} at the beginning\n", ::sysconf(_SC_NPROCESSORS_ONLN), load);
  const std::string fast = ",keep_alive_interval=0.1,keep_alive_max_attempt=5";
  for (const char* zero : {"0", "1", "mirrored1"}) {
    processes({.agents = 1, .workers = 4, .zero = zero}, 100);
    processes({.agents = 1, .workers = 4, .zero = zero, .starts_in = 5}, 5);
    processes({.agents = 2, .workers = 4, .zero = zero, .nodes = "2"}, 100);
    nodes("node, end of stream", {.workers = 4, .zero = zero}, Loss::killed, "", 30);
    nodes("agent, killed", {.workers = 4, .zero = zero}, Loss::agent_killed, "", 30);
    nodes("node, silent, limit 0.5 s", {.workers = 4, .zero = zero}, Loss::silent, fast, 10);
    nodes("node, silent, limit 5 s", {.workers = 4, .zero = zero}, Loss::silent, "", 5);
    nodes("node of the coordinator, end of stream", {.workers = 4, .zero = zero, .apart = false}, Loss::killed, "", 10);
  }
  constexpr unsigned large = 1074;  // 1 GiB
  elrun::bench::held_losses(self, only, repeats_max, argc > 3 ? static_cast<unsigned>(std::max(1, std::atoi(argv[3]))) : large);
  processes({.agents = 1, .workers = 2, .state_mb = large}, 100);
  processes({.agents = 2, .workers = 1, .nodes = "2", .state_mb = large}, 100);
  nodes("node, end of stream", {.workers = 1, .state_mb = large}, Loss::killed, "", 30);
  nodes("agent, killed", {.workers = 1, .state_mb = large}, Loss::agent_killed, "", 30);
  processes({.agents = 2, .workers = 1, .starts_in = 5}, 10);
  processes({.agents = 1, .workers = 2, .starts_in = 5, .state_mb = large, .slot_ms = 500, .slots = 2}, 10);
  processes({.agents = 1, .workers = 4, .starts_in = 5, .state_mb = large, .slot_ms = 200, .slots = 12}, 10);
  processes({.agents = 1, .workers = 2, .starts_in = 5, .state_mb = 300, .trains = true, .slots = 2}, 10);
  processes({.agents = 1, .workers = 4, .zero = "mirrored1", .starts_in = 5, .state_mb = 300, .trains = true, .slot_ms = 200, .slots = 12},
            10);
  answer("one of 4 workers killed 0.2 s after the world grew by its predecessor", 10, "0.2 s", [] { return replaced_again_ms(200ms); });
  bad_worker(20s);
  answer("one of two agents killed, a third as spare, world unchanged", 7, "1 s", [] { return replaced_ms(Loss::killed, ""); });
  answer("one of two agents silent, limit 0.5 s, a third as spare", 7, "1.5 s", [&] { return replaced_ms(Loss::silent, fast); });
  answer("--nnodes 2: start of the replacement to the next step", 7, "1 s", [] { return replacement_ms(); });
  answer("a second agent joins a running 1:2 job: start to a step of both", 7, "1 s", [] { return growth_ms(); });
}
