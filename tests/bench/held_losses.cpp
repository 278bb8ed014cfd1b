#include "tests/bench/held_losses.hpp"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <elrun/elrun.hpp>
#include <nlohmann/json.hpp>

#include "tests/support/http.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::bench {
namespace {

using elrun::test::Job;
using elrun::test::number_after;
using elrun::test::Wait;
using std::chrono_literals::operator""ms;
namespace fs = std::filesystem;

constexpr Wait patience{120'000};
constexpr int agents_max = 2, world = 4;

/// Ends a question. All processes of its job end with it.
[[noreturn]] void give_up(const std::string& why) {
  constexpr std::size_t shown_max = 4000;
  throw std::runtime_error{why.size() > shown_max ? "... " + why.substr(why.size() - shown_max) : why};
}

/// Of the clock that all processes of the machine share, also the ledger's.
double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double at_share(std::vector<double> all, double share) {
  std::sort(all.begin(), all.end());
  return all[std::min(all.size() - 1, static_cast<std::size_t>(share * static_cast<double>(all.size())))];
}

/// How state lies, and what of it must go where after a loss. `held`: bytes of a worker for each element, in a world of four.
struct Placing {
  const char *name, *words;
  double held;
  elrun::Placement placement;
  elrun::CheckpointOptions checkpoint{};
};

std::vector<Placing> placings(const std::string& directory) {
  const std::string root = directory + "/checkpoints";
  return {{"0", "replicated", 12, elrun::zero(0)},
          {"mirrored", "mirrored(zero(1))", 8, elrun::mirrored(elrun::zero(1))},
          {"hybrid", "hybrid(zero(1))", 8, elrun::hybrid(elrun::zero(1))},
          {"memory", "zero(1) with an in-memory checkpoint every step", 6, elrun::zero(1), {.in_memory_every = 1}},
          {"disk", "zero(1) with a checkpoint on disk every 4 steps", 6, elrun::zero(1), {.directory = root, .every = 4, .keep = 2}}};
}

enum class Loss { worker, agent, node, silent, coordinator };

/// Which twelfths of the moments a rank holds, as lib/job/state/shard_map.hpp cuts them.
using Shard = std::array<bool, 12>;
std::vector<Shard> shards(const std::string& name, const std::vector<int>& nodes) {
  const auto size = static_cast<int>(nodes.size());
  std::vector<Shard> all(nodes.size());
  const auto take = [&](int rank, int parts, int part, int count) {
    for (int i = 0; i < 12 / parts * count; ++i)
      all[static_cast<std::size_t>(rank)][static_cast<std::size_t>((12 / parts * part + i) % 12)] = true;
  };
  const auto before = [&](int rank) {
    return static_cast<int>(std::count(nodes.begin(), nodes.begin() + rank, nodes[static_cast<std::size_t>(rank)]));
  };
  for (int r = 0; r < size; ++r) {
    const int node = nodes[static_cast<std::size_t>(r)];
    const auto of_node = static_cast<int>(std::count(nodes.begin(), nodes.end(), node));
    if (name == "0") take(r, 1, 0, 1);
    else if (name == "hybrid") take(r, of_node, before(r), 1);
    else if (name != "mirrored") take(r, size, r, 1);
    else if (size == 2) take(r, 1, 0, 1);
    else if (size == 3 && nodes.front() != nodes.back()) take(r, of_node, before(r), 1);  // a node with more than half has one copy
    else take(r, size, 2 * r % size, 2);
  }
  return all;
}

/// Bytes for each element that the survivor which lacks most needs before the next update: what its new shard has and its old one had not. With a checkpoint on disk all goes back to that.
double moved(const std::string& name, Loss loss, int agents) {
  std::vector<int> nodes;
  for (int r = 0; r < world; ++r) nodes.push_back(r / (world / agents));
  std::vector<Shard> old = shards(name, nodes);
  nodes.resize(loss == Loss::worker ? world - 1 : world / 2), old.resize(nodes.size());
  const std::vector<Shard> next = shards(name, nodes);
  double most = 0;
  for (std::size_t r = 0; r < next.size(); ++r) {
    int lacks = 0;
    for (std::size_t i = 0; i < 12; ++i) lacks += next[r][i] && (!old[r][i] || name == "disk");
    most = std::max(most, 8.0 * lacks / 12 + (name == "disk" ? 4 : 0));
  }
  return most;
}

struct Case {
  Placing placing;
  Loss loss;
  int agents;
  double held_mb;
  [[nodiscard]] std::uint64_t elements() const { return static_cast<std::uint64_t>(held_mb * 1e6 / placing.held); }
  [[nodiscard]] std::string question() const {
    const char* what = loss == Loss::worker   ? "worker, killed"
                       : loss == Loss::agent  ? "agent, killed"
                       : loss == Loss::node   ? "node, end of stream"
                       : loss == Loss::silent ? "node, silent, limit 0.5 s"
                                              : "node of the coordinator, end of stream";
    return fmt::format("held: {}, {} workers over {} agent{}, {}", what, world, agents, agents > 1 ? "s" : "", placing.words);
  }
  /// At p50 and p99, in ms, without bytes: what is known to be lost is recovered from in 15 and 50, and a dead agent in 30. A silent node is lost when its limit is over.
  [[nodiscard]] std::pair<double, double> allowed() const {
    if (loss == Loss::agent) return {30, 30};
    const double limit = loss == Loss::silent ? 500 : 0;
    return {15 + limit, 50 + limit};
  }
};

/// Bytes per second of a copy within warm memory, by one thread.
double copy_rate() {
  constexpr std::size_t size = std::size_t{1} << 30;
  const std::vector<char> from(size, 1);
  std::vector<char> to(size, 2);
  std::vector<double> rates;
  for (int i = 0; i < 5; ++i) {
    const double begun = seconds_now();
    std::memcpy(to.data(), from.data(), size);
    asm volatile("" : : "r"(to.data()) : "memory");
    rates.push_back(static_cast<double>(size) / (seconds_now() - begun));
  }
  return at_share(std::move(rates), 0.5);
}

/// What four such workers take, roughly: the state, two or three gradients each, and in-memory checkpoints twice.
double needed(const Placing& placing, double held_mb) {
  const double memory_checkpoints = placing.checkpoint.in_memory_every > 0 ? 12 : 0;
  return world * held_mb * 1e6 * (placing.held + 12 + memory_checkpoints) / placing.held;
}

double memory_available() {
  std::ifstream in{"/proc/meminfo"};
  for (std::string name, rest; in >> name && std::getline(in, rest);)
    if (name == "MemAvailable:") return std::strtod(rest.c_str(), nullptr) * 1024;
  return 0;
}

// ---- the worker

/// While the file is there, this worker's slot does not end. It says so with another file.
void sleep_while_told(const elrun::Slot& slot, const std::string& told, const std::string& sleeps) {
  if (!fs::exists(told)) return;
  std::ofstream{sleeps}.put('1');
  while (!slot.revoked() && fs::exists(told)) std::this_thread::sleep_for(1ms);
}

void train(elrun::Job& job, std::uint64_t elements, const Placing& placing, std::uint64_t slots, const std::string& directory) {
  const auto of = [](const char* name) { return std::string{std::getenv(name) != nullptr ? std::getenv(name) : ""}; };
  const std::string me = of("HOLDER_OF") + "." + of("LOCAL_RANK");
  job.configure(
      {.global_batch = slots, .micro_batch = 1, .samples = 1000, .steps = 1'000'000'000, .seed = 1, .placement = placing.placement},
      placing.checkpoint);
  auto head = job.unit("head");
  auto weights = head.tensor<float>("weights", {elements});
  job.seal();
  if (!job.restore()) std::ranges::fill(weights.span(), 0.5f);
  double waits = 0;  // since then this rank has waited for the others in the step that was not decided
  while (auto step = job.next_step()) {
    const double ready = seconds_now();
    for (auto& slot : step->slots()) {
      auto scope = head.use_grad();
      const auto in = weights.span(), out = weights.grad_span();
      for (std::size_t i = 0; i < in.size(); ++i) out[i] = in[i] * 1e-3f;
      sleep_while_told(slot, directory + "/sleep." + me, directory + "/sleeps." + me);
      slot.report(1, 1);
    }
    const double applies = seconds_now();
    const auto result = step->apply(elrun::AdamW{}, {.lr = 1e-3f});
    if (!result.decided) waits = applies;
    else
      job.print(fmt::format("step={} world={} generation={} ready={:.0f} waits={:.0f}", result.step, result.world, result.generation,
                            ready * 1e9, waits * 1e9));
  }
}

// ---- the job

struct Step {
  std::int64_t world, generation;
  double ready, waits, heard;
};

std::optional<Step> step_of(const std::string& line) {
  if (!line.starts_with("step=")) return {};
  return Step{number_after(line, " world"), number_after(line, " generation"), static_cast<double>(number_after(line, " ready")) / 1e9,
              static_cast<double>(number_after(line, " waits")) / 1e9, seconds_now()};
}

Step next_step(Job& job) {
  const auto line = job.line("step=", patience);
  if (const auto step = line ? step_of(*line) : std::nullopt) return *step;
  give_up("no more steps: " + job.output());
}

/// The first step of a generation after `last`, and with so many workers, if that matters.
Step step_after(Job& job, std::int64_t last, std::int64_t workers = 0) {
  const double begun = seconds_now();
  while (seconds_now() - begun < std::chrono::duration<double>(patience).count())
    if (const Step step = next_step(job); step.generation > last && (workers == 0 || step.world == workers)) return step;
  give_up("no such step: " + job.output());
}

nlohmann::json times_told(std::uint16_t port) {
  const std::string reply = elrun::test::http_get(port, "/statusz");
  const auto body = reply.find("\r\n\r\n");
  const auto page = nlohmann::json::parse(body == std::string::npos ? "" : reply.substr(body), nullptr, false);
  if (!page.is_object() || !page.contains("time")) give_up("no status: " + reply);
  return page["time"];
}

/// A job of agents that come and go in one directory.
class Cluster {
 public:
  Cluster(const Case& what, std::string program) : case_{what}, program_{std::move(program)} {
    if (case_.agents == 1 || case_.loss == Loss::coordinator) return;
    store_ = std::make_unique<Job>(Job::Setting{.arguments = {"store", "--host", "127.0.0.1", "--port", port_, "--rdzv_conf", times()}});
    if (!store_->line("serving", patience)) give_up("the store does not serve: " + store_->output());
  }
  /// An agent, and by what name its workers look for files.
  struct Agent {
    std::unique_ptr<Job> job;
    std::string name;
    [[nodiscard]] std::uint16_t port() const {
      const std::string words = "health, status and metrics at http://127.0.0.1:";
      const auto at = job->output().find(words);
      if (at == std::string::npos) give_up("the agent has no health port: " + job->output());
      return static_cast<std::uint16_t>(std::stoul(job->output().substr(at + words.size())));
    }
  };
  [[nodiscard]] Agent agent(int rank) {
    // A worker that is lost alone comes back late. Where a start is short beside a step the others wait for it, and that is no recovery.
    const char* starts_in = case_.loss == Loss::worker ? "3" : "0";
    std::vector<std::string> options{"--nproc_per_node", std::to_string(world / case_.agents), "--max_restarts", "1000", "--health_port",
                                     "127.0.0.1:0"};
    if (case_.agents > 1)
      options.insert(options.end(), {"--nnodes", "1:2", "--node_rank", std::to_string(rank), "--rdzv_backend", "c10d", "--rdzv_endpoint",
                                     "127.0.0.1:" + port_, "--rdzv_conf", times() + (store_ ? ",is_host=0" : "")});
    options.insert(options.end(), {"--no_python", "/bin/sh", "-c", R"(sleep "$0"; exec "$@")", starts_in, program_, "holder",
                                   std::to_string(case_.elements()), case_.placing.name, std::to_string(world), folder_.path()});
    const std::string name = "agent" + std::to_string(agents_++);
    return {std::make_unique<Job>(
                Job::Setting{.arguments = std::move(options),
                             .environment = {{"XDG_RUNTIME_DIR", folder_.path()}, {"OMP_NUM_THREADS", "1"}, {"HOLDER_OF", name}}}),
            name};
  }
  [[nodiscard]] bool is_hosted_by_agent() const { return case_.agents > 1 && !store_; }
  [[nodiscard]] std::string file(const std::string& what, const Agent& agent, int worker) const {
    return fmt::format("{}/{}.{}.{}", folder_.path(), what, agent.name, worker);
  }

 private:
  [[nodiscard]] std::string times() const {
    return std::string{"last_call_timeout=60"} + (case_.loss == Loss::silent ? ",keep_alive_interval=0.1,keep_alive_max_attempt=5" : "");
  }
  const Case& case_;
  std::string program_;
  std::string port_ = std::to_string(elrun::test::free_port());
  elrun::test::TemporaryDirectory folder_;
  std::unique_ptr<Job> store_;
  int agents_ = 0;
};

void end(Job& agent) {
  agent.signal(SIGKILL);
  agent.signal(SIGCONT);
  (void)agent.wait(patience);
}

/// Where one loss's time went, in ms. Points are since the loss; below 0 or none: not known.
struct Told {
  double ready = 0, next = 0, step = 0;  ///< To the next step that this rank begins; to its end; what such a step takes.
  bool waited = false;                   ///< The survivor that prints waited for the others then.
  double clock = 0;                      ///< How exactly the points are known.
  std::array<std::optional<double>, 7> points{};
};
constexpr std::array point_names{"seen", "pushed", "stopped", "agreed", "connected", "restored", "first_step"};

/// The agent says how long it has lived, so that its start is between two instants of this process. Of many answers the latest and the earliest bound hold.
void read_incident(std::uint16_t port, std::int64_t generation, double lost, Told& told) {
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  nlohmann::json times;
  for (int i = 0; i < 10; ++i) {
    const double asked = seconds_now();
    times = times_told(port);
    const double wall = times["wall_seconds"];
    least = std::max(least, asked - wall), most = std::min(most, seconds_now() - wall);
  }
  told.clock = (most - least) * 1e3;
  for (const auto& incident : times.value("newest_incidents", nlohmann::json::array()))
    for (std::size_t i = 0; incident["generation"] == generation && i < point_names.size(); ++i)
      if (incident["at_seconds"].contains(point_names[i]))
        told.points[i] = (incident["at_seconds"][point_names[i]].get<double>() + (least + most) / 2 - lost) * 1e3;
}

/// A worker of the victim stands still in a slot, and all others wait for it. That is when it is lost.
void hold_still(const Cluster& cluster, const Cluster::Agent& victim, const std::vector<int>& workers, double step) {
  for (const int worker : workers) std::ofstream{cluster.file("sleep", victim, worker)}.put('1');
  const double begun = seconds_now();
  // The first is enough: another one may have come out of its slot before it was told.
  while (std::ranges::none_of(workers, [&](int worker) { return fs::exists(cluster.file("sleeps", victim, worker)); })) {
    if (seconds_now() - begun > 60) give_up("no worker stands still: " + victim.job->output());
    std::this_thread::sleep_for(1ms);
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(2 * step));  // the others come out of their slots
}

std::vector<Told> lose(const Case& what, const std::string& program, int repeats) {
  Cluster cluster{what, program};
  Cluster::Agent survivor = cluster.agent(0), other;
  if (what.agents > 1) {
    if (!survivor.job->line(cluster.is_hosted_by_agent() ? "serving" : " nodes; ", patience))
      give_up("the first agent does not join: " + survivor.job->output());
    other = cluster.agent(1);
  }
  const int workers = world / what.agents;
  std::vector<Told> all;
  Step step = step_after(*survivor.job, 0, world);
  for (int i = 0; i < repeats; ++i) {
    Told told;
    std::vector<double> lengths;
    while (lengths.size() < 3) {
      const Step next = next_step(*survivor.job);
      if (next.generation == step.generation) lengths.push_back(next.heard - step.heard);
      step = next;
    }
    if (what.loss == Loss::coordinator) std::swap(survivor, other);  // who leads coordinates, and the other one is the next to do so
    Cluster::Agent& victim = what.agents > 1 ? other : survivor;
    std::vector<int> still;
    for (int w = what.loss == Loss::worker ? workers - 1 : 0; w < workers; ++w) still.push_back(w);
    hold_still(cluster, victim, still, at_share(lengths, 0.5));
    std::vector<pid_t> all_workers = victim.job->children_named("recovery_bench");
    if (all_workers.size() != static_cast<std::size_t>(workers)) give_up("workers are missing: " + victim.job->output());
    std::vector<pid_t> dies;
    if (what.loss == Loss::worker) {
      for (const pid_t pid : all_workers)
        if (elrun::test::text_of_process(std::to_string(pid), "environ").find(fmt::format("{}LOCAL_RANK={}{}", '\0', workers - 1, '\0')) !=
            std::string::npos)
          dies.push_back(pid);
      if (dies.empty()) give_up("no worker has the last local rank");
    } else if (what.loss != Loss::agent) {
      dies = all_workers;
      const auto guards = victim.job->children_named("elrun-guard");
      dies.insert(dies.begin(), guards.begin(), guards.end());  // before the agent, so that nobody tells of it
    }
    if (what.loss != Loss::worker) dies.push_back(victim.job->pid());
    const double lost = seconds_now();
    for (const pid_t pid : dies) ::kill(pid, what.loss == Loss::silent ? SIGSTOP : SIGKILL);
    for (const int w : still)  // for a successor has the same name
      for (const char* name : {"sleep", "sleeps"}) fs::remove(cluster.file(name, victim, w));
    const Step first = step_after(*survivor.job, step.generation);
    told.ready = (first.ready - lost) * 1e3, told.next = (first.heard - lost) * 1e3, told.waited = first.waits > 0 && first.waits < lost;
    const Step second = next_step(*survivor.job);
    if (second.generation == first.generation) told.step = (second.heard - first.heard) * 1e3;
    read_incident(survivor.port(), step.generation, lost, told);
    if (what.loss != Loss::worker) {
      if (what.loss == Loss::silent)
        for (const pid_t pid : dies) ::kill(pid, SIGKILL);
      end(*other.job);
      other = cluster.agent(1);
    }
    step = second.world == world ? second : step_after(*survivor.job, first.generation, world);
    all.push_back(told);
  }
  if (other.job) end(*other.job);
  end(*survivor.job);
  return all;
}

void print(const Case& what, const std::vector<Told>& all, double rate) {
  const auto share = [&](double of, const auto& get) {
    std::vector<double> values;
    for (const Told& told : all)
      if (const std::optional<double> value = get(told)) values.push_back(*value);
    return values.empty() ? 0 : at_share(std::move(values), of);
  };
  const auto ready = [](const Told& t) { return std::optional{t.ready}; };
  const double bytes = static_cast<double>(what.elements()) * moved(what.placing.name, what.loss, what.agents),
               copy = bytes / (0.8 * rate) * 1e3;
  const auto [half, most] = what.allowed();
  double load = 0;
  (void)::getloadavg(&load, 1);
  fmt::print(
      "recovery: {}, {:.0f} MB held each: p50 {:.1f} ms, p99 {:.1f} ms of {}, allowed {:.0f}/{:.0f} ms + {:.0f} MB at 0.8 of the copy rate ({:.2f} GB/s) = {:.0f}/{:.0f} ms; load {:.1f}\n",
      what.question(), what.held_mb, share(0.5, ready), share(0.99, ready), all.size(), half, most, bytes / 1e6, rate / 1e9, half + copy,
      most + copy, load);
  std::string phases;
  for (std::size_t i = 0; i < point_names.size(); ++i)
    phases += fmt::format("{}{} {:.1f}", i == 0 ? "" : ", ", point_names[i], share(0.5, [&](const Told& t) -> std::optional<double> {
                            std::optional<double> before = 0;
                            for (std::size_t j = i; j-- > 0 && i > 0;)
                              if (before = t.points[j]; before) break;
                            if (!t.points[i]) return std::nullopt;
                            return *t.points[i] - before.value_or(0);
                          }));
  fmt::print("recovery:   p50 of the phases, each from the one before it: {} ms (known to {:.1f} ms)\n", phases,
             share(0.5, [](const Told& t) { return std::optional{t.clock}; }));
  std::string each;
  for (const Told& told : all) each += fmt::format(" {:.0f}", told.ready);
  fmt::print("recovery:   ready, one loss after the other:{} ms\n", each);
  fmt::print(
      "recovery:   to the end of the next step p50 {:.0f} ms, p99 {:.0f} ms, a later one takes {:.0f} ms; the survivor waited for the others at {} of the {} losses\n",
      share(0.5, [](const Told& t) { return std::optional{t.next}; }), share(0.99, [](const Told& t) { return std::optional{t.next}; }),
      share(0.5, [](const Told& t) { return t.step > 0 ? std::optional{t.step} : std::nullopt; }),
      std::ranges::count_if(all, &Told::waited), all.size());
}

}  // namespace

int hold(int argc, char** argv) {
  return elrun::run(argc, argv, [&](elrun::Job& job) {
    for (const Placing& placing : placings(argv[5]))
      if (placing.name == std::string{argv[3]}) train(job, std::stoull(argv[2]), placing, std::stoull(argv[4]), argv[5]);
  });
}

void held_losses(const std::string& program, const std::string& only, int repeats_max, unsigned held_mb) {
  for (const Placing& placing : placings(""))
    for (const auto& [loss, agents, repeats] : {std::tuple{Loss::worker, 1, 100},
                                                {Loss::worker, 2, 100},
                                                {Loss::agent, 2, 30},
                                                {Loss::node, 2, 30},
                                                {Loss::silent, 2, 30},
                                                {Loss::coordinator, 2, 30}}) {
      Case one{placing, loss, agents, static_cast<double>(held_mb)};
      if (agents == 1 && std::string{placing.name} == "hybrid") continue;  // of one node it is the stage alone
      if (one.question().find(only) == std::string::npos) continue;
      constexpr double share = 0.8;  // of the free memory
      while (one.held_mb > 1 && needed(placing, one.held_mb) > share * memory_available()) one.held_mb /= 2;
      const double rate = copy_rate();
      try {
        print(one, lose(one, program, std::min(repeats, repeats_max)), rate);
      } catch (const std::exception& e) {
        fmt::print("recovery: {}: not measured: {}\n", one.question(), e.what());
      }
    }
}

}  // namespace elrun::bench
