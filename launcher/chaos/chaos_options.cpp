#include "launcher/chaos/chaos_options.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "launcher/options/cluster.hpp"
#include "launcher/options/option_parser.hpp"
#include "launcher/options/option_table.hpp"
#include "launcher/options/option_values.hpp"
#include "launcher/options/options.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::string_view chaos_usage =
    "usage: elrun chaos [--mtbf TIME [--for TIME] [--seed N] [--kinds KIND,...] | --plan FILE]\n"
    "                   [--work DIR] [--state-from TEXT] [--step-from TEXT] [--limit TIME] [--disk MB] [--store] [--json]\n"
    "                   [--dry-run] [--launcher TEXT] [options of elrun] [--] PROGRAM [arguments...]\n"
    "\n"
    "Rehearses failures with a real job, on this machine or on a cluster's nodes. It runs the job twice: first undisturbed,\n"
    "then with the failures of a plan. It says whether the final states are equal, and what the failures cost. The agents of\n"
    "all nodes are started here, each as a node of its own: --nnodes N (or MIN:MAX: then MAX are started) and\n"
    "--nproc-per-node W. Other options of elrun are given to each agent. Nothing but what chaos started is ever hit. All that\n"
    "it leaves is its work directory, which it names; after Ctrl-C, too.\n"
    "\n"
    "The plan, drawn or from a file:\n"
    "  --mtbf TIME        mean time between two failures (5s); exponentially distributed, from --seed\n"
    "  --for TIME         no failure is drawn for later (60s after all workers run)\n"
    "  --seed N           the same seed draws the same failures (1)\n"
    "  --kinds KIND,...   which kinds are drawn; without it all that can run here, and why others cannot is said\n"
    "  --plan FILE        the failures of this file. A run writes its own to WORK/plan, so it can be replayed exactly\n"
    "\n"
    "A plan has a failure per line: a time after the moment in which all workers run, or the number of a step; then\n"
    "  12.5s   kill rank 1                    SIGKILL of a worker\n"
    "  step 40 stop rank 0 for 1.5s           SIGSTOP, then SIGCONT\n"
    "  20s     slow rank 2 to 25% for 3s      it runs for a quarter of the time only, by SIGSTOP and SIGCONT\n"
    "  25s     kill-agent node 1 for 2s       SIGKILL of a node's agent and workers; its guard lives, and tells; after 2 s it comes back\n"
    "  30s     coordinator for 1s             the same of the process that serves the rendezvous; with --store of `elrun store`\n"
    "  40s     cut node 1 for 3s              its network is cut; as root, for each node then has a network of its own\n"
    "  50s     fill for 4s                    the disk that {disk} names is full; as root\n"
    "Rank R is worker R % W of node R / W, as ranks are at the beginning. A failure waits until what it hits is there.\n"
    "\n"
    "The job. In its words, and in --checkpoint-root, stands\n"
    "  {run}    for the run's own directory. Whatever the program writes belongs there: where the disturbed run found the\n"
    "           checkpoints of the undisturbed one, it would have nothing to do\n"
    "  {disk}   for a disk of the run's own, in memory, of --disk MB (256), which `fill` fills. No other disk is ever filled\n"
    "  --checkpoint-root DIR  the final checkpoints there are compared, bit by bit, as `elrun ckpt diff` does\n"
    "  --state-from TEXT  the final state of a rank is the word that follows TEXT in its output (state=), the last time it is\n"
    "                     there. All ranks that say one have to say the same; where the line has a step, too, only those of\n"
    "                     the newest step count\n"
    "  --step-from TEXT   the number of a step follows TEXT (step=)\n"
    "  --limit TIME       a disturbed run that takes longer is ended (ten times the undisturbed one, and two minutes)\n"
    "  --store            the rendezvous is served by `elrun store`, a process of its own\n"
    "  --work DIR         a directory that does not exist, or is empty (a new one in $TMPDIR or /tmp)\n"
    "  --launcher TEXT    the same plan against the workers of another launcher: TEXT is its command, PROGRAM and arguments\n"
    "                     follow it. {node}, {nnodes}, {nproc}, {host} and {port} are filled in; a worker is a process that\n"
    "                     has RANK and LOCAL_RANK in its environment\n"
    "  --dry-run          the plan, and what cannot be rehearsed here; nothing is started\n"
    "  --json             a report for programs on standard output, with --dry-run the plan; what happens is told on standard\n"
    "                     error\n"
    "On a cluster each node runs `elrun chaos` with the same words, as it would run elrun: with --nnodes, --rdzv_endpoint and\n"
    "--node_rank, or the variables and surroundings from which elrun takes them (PET_*, MASTER_ADDR, RANK, srun). Each\n"
    "starts its own node, and makes the failures of the plan that hit it. --seed, --plan and --kinds must be the same on all:\n"
    "nodes with another plan do not meet.\n"
    "  --nnodes MIN:MAX   the plan is for MAX nodes, and all have to be there at the beginning (else 3): no spares\n"
    "  --rdzv_id ID       the runs have the ids ID-HASH-undisturbed and ID-HASH-disturbed (chaos): HASH is of the plan\n"
    "  --work DIR         may be one directory on storage that all nodes share; with --checkpoint-root {run}/... it has to be\n"
    "  step N             counts the steps that this node's workers print: let all nodes print them, or give times\n"
    "  coordinator        is lost by the node that serves the rendezvous then\n"
    "  cut, fill          chaos cannot cut networks there; `fill` fills each node's disk, where --kinds or --plan names it\n"
    "The exit code is of this node: its launcher, the states that its workers print, and the checkpoints. A node other than 0\n"
    "whose workers print no state leaves that to the others (0), as does one that was away when the job ended (3).\n"
    "\n"
    "Without --max-restarts, elrun gets --max-restarts 1000000: each failure may cost one. Without an option of where output\n"
    "goes, it gets --tee 3 --log-dir {run}/logs, so that each line names its worker.\n"
    "\n"
    "Exit codes: 0 the disturbed job finished, and its final state is that of the undisturbed one; 1 it finished with another\n"
    "state, or its ranks differ; 2 it did not finish, or a node failed; 3 nothing can be said (the undisturbed run failed, no\n"
    "single state was found, or the job ended before the first failure); 64 usage, or a wrong plan; 66 no such plan; 70 the\n"
    "system refused what is needed; 78 contradictory options; 128+n ended by signal n.\n"
    "\n"
    "  elrun chaos --mtbf 5s --for 30s --nproc-per-node 2 --no-python ./gpt --data TEXT --steps 500\n"
    "  elrun chaos --kinds kill,kill-agent --nnodes 1:2 --nproc-per-node 2 --checkpoint-root {run}/ck --no-python \\\n"
    "        ./gpt --data TEXT --steps 500 --zero 1 --checkpoint {run}/ck --every 50\n"
    "  elrun chaos --mtbf 5s --work /shared/rehearsal --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d \\\n"
    "        --rdzv-endpoint node0:29400 --node-rank $I --checkpoint-root {run}/ck train.py --checkpoints {run}/ck\n"
    "  elrun chaos --plan plan --launcher 'torchrun --nproc_per_node {nproc} --max_restarts 1000' --nproc-per-node 2 -- \\\n"
    "        train.py --snapshot {run}/snapshot.pt\n";

/// What chaos gives each agent itself, or what it could not account for.
constexpr std::array<std::string_view, 4> not_for_agents{"standalone", "event_log", "print_completion", "exit_codes"};
/// What it gives each agent itself as well, where it starts them all.
constexpr std::array<std::string_view, 8> of_own_node{"node_rank",  "rdzv_backend", "rdzv_endpoint", "rdzv_id",
                                                      "local_addr", "master_addr",  "master_port",   "health_port"};

template <std::size_t n>
bool has(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// With one of them, where the output of workers goes is the user's to say.
constexpr std::array<std::string_view, 5> about_output{"redirects", "tee", "log_dir", "log_line_prefix_template", "local_ranks_filter"};

enum class Own : std::uint8_t { mtbf, time, seed, kinds, plan, work, state, step, limit, disk, store, json, launcher, dry_run, help };
struct OwnOption {
  std::string_view name;
  Own which;
  bool is_flag = false;
};
constexpr OwnOption own_options[] = {{"mtbf", Own::mtbf},         {"for", Own::time},
                                     {"seed", Own::seed},         {"kinds", Own::kinds},
                                     {"plan", Own::plan},         {"work", Own::work},
                                     {"state_from", Own::state},  {"step_from", Own::step},
                                     {"limit", Own::limit},       {"disk", Own::disk},
                                     {"launcher", Own::launcher}, {"store", Own::store, true},
                                     {"json", Own::json, true},   {"dry_run", Own::dry_run, true},
                                     {"help", Own::help, true}};

/// The words of a command line: chaos's own options are understood, elrun's are kept for its agents.
class ChaosOptionParser {
 public:
  ChaosOptionParser(std::span<const std::string> words, const Variables& environment, const Machine& machine)
      : words_{words}, environment_{environment}, machine_{machine} {}

  std::variant<ChaosOptions, Usage> parse() {
    while (at_ < words_.size() && !is_over_ && words_[at_].size() > 1 && words_[at_][0] == '-') take_option();
    if (asks_help_) return Usage{0, std::string{chaos_usage}};
    options_.program.assign(words_.begin() + static_cast<std::ptrdiff_t>(at_), words_.end());
    parse_agents();
    check();
    if (usage_.empty() && contradictions_.empty()) return std::move(options_);
    std::string text = "usage: elrun chaos [options] [options of elrun] [--] PROGRAM [arguments...]   (elrun chaos --help explains them)\n";
    for (const auto* problems : {&usage_, &contradictions_})
      for (const std::string& problem : *problems) text += fmt::format("elrun: chaos: {}\n", printable(problem));
    return Usage{usage_.empty() ? exit_code::contradiction : exit_code::usage, std::move(text)};
  }

 private:
  void take_option() {
    const std::string& token = words_[at_++];
    if (token == "--") {
      is_over_ = true;
      return;
    }
    const auto equals = token.find('=');
    std::string name = token.substr(0, equals);
    std::ranges::replace(name, '-', '_');
    std::optional<std::string> value;
    if (equals != std::string::npos) value = token.substr(equals + 1);
    const auto* const own = std::ranges::find_if(own_options, [&](const OwnOption& o) { return name == fmt::format("__{}", o.name); });
    if (own != std::end(own_options) || token == "-h")
      return take_own(token == "-h" ? OwnOption{"help", Own::help, true} : *own, std::move(value));
    take_elruns(token, name.starts_with("__") ? name.substr(2) : std::string{}, std::move(value));
  }

  void take_own(const OwnOption& option, std::optional<std::string> value) {
    const std::string shown = "--" + hyphened(option.name);
    if (option.is_flag && value) return usage_.push_back(shown + ": takes no value");
    if (!option.is_flag && !value) {
      if (at_ >= words_.size()) return usage_.push_back(shown + ": needs a value");
      value = words_[at_++];
    }
    const auto time = [&](Duration least) {
      const auto parsed = parse_time(*value);
      if (parsed && *parsed >= least) return *parsed;
      usage_.push_back(fmt::format("{} {}: must be a time from {} to 24h, as 5s, 250ms or 10m", shown, *value, time_text(least)));
      return least;
    };
    switch (option.which) {
      case Own::mtbf: options_.mtbf = time(10ms); break;
      case Own::time: options_.time = time(1ms), draws_ = true; break;
      case Own::limit: options_.limit = time(1s); break;
      case Own::seed: take_seed(*value); break;
      case Own::kinds: take_kinds(*value); break;
      case Own::plan: options_.plan_file = *value; break;
      case Own::work: options_.work = *value; break;
      case Own::state: options_.state_mark = *value; break;
      case Own::step: options_.step_mark = *value; break;
      case Own::disk: take_disk(*value); break;
      case Own::launcher: take_launcher(*value); break;
      case Own::store: options_.has_store = true; break;
      case Own::json: options_.as_json = true; break;
      case Own::dry_run: options_.dry_run = true; break;
      case Own::help: asks_help_ = true; break;
    }
    if (value && value->empty() && option.which != Own::step) usage_.push_back(shown + ": is empty text");
  }

  void take_seed(const std::string& text) {
    draws_ = true;
    const auto seed = to_integer(text);
    if (seed && *seed >= 0) options_.seed = static_cast<std::uint64_t>(*seed);
    else usage_.push_back(fmt::format("--seed {}: must be a whole number, 0 or more", text));
  }

  void take_disk(const std::string& text) {
    constexpr std::int64_t least = 1, most = 1 << 16;
    const auto size = to_integer(text);
    if (size && *size >= least && *size <= most) options_.disk_bytes = static_cast<std::uint64_t>(*size) << 20;
    else usage_.push_back(fmt::format("--disk {}: must be a number of MiB from {} to {}", text, least, most));
  }

  void take_kinds(std::string_view text) {
    draws_ = true;
    while (!text.empty()) {
      const std::string_view word = trimmed(text.substr(0, text.find(',')));
      text = text.find(',') == std::string_view::npos ? std::string_view{} : text.substr(text.find(',') + 1);
      const auto kind = fault_kind_of(word);
      if (!kind) usage_.push_back(fmt::format("--kinds: `{}` is none of kill, stop, slow, cut, kill-agent, coordinator, fill", word));
      else if (std::ranges::find(options_.kinds, *kind) == options_.kinds.end()) options_.kinds.push_back(*kind);
    }
  }

  void take_launcher(const std::string& text) {
    auto words = split_words(text);
    if (words && !words->empty()) options_.launcher = *std::move(words);
    else usage_.push_back(fmt::format("--launcher {}: must be a command; a quotation mark has no end, or there is no word", text));
  }

  // Whole names and letters only: an abbreviation is for the parser of elrun's options to judge.
  void take_elruns(const std::string& token, std::string_view name, std::optional<std::string> value) {
    const auto table = option_table();
    const auto known = std::ranges::find_if(table, [&](const Option& o) {
      return name.empty() ? token.size() == 2 && o.letter == token[1] : o.name == name || (name == "nproc" && o.name == "nproc_per_node");
    });
    options_.agent.push_back(token);
    if (known == table.end()) return;
    given_.push_back(known->name);
    if (known->is_flag || value || at_ >= words_.size()) return note_value(*known, value.value_or(""));
    options_.agent.push_back(words_[at_]);
    note_value(*known, words_[at_++]);
  }

  void note_value(const Option& option, std::string value) {
    if (option.name == "rdzv_conf") options_.rendezvous_conf = value;
    if (option.name == "max_restarts") options_.gives_restarts = false;
    if (has(about_output, option.name)) options_.gives_prefixes = false;
  }

  /// Whether elrun, which understood it so, would meet nodes of other machines.
  [[nodiscard]] static bool meets_others(const LaunchOptions& launch) {
    return launch.round.nodes_max > 1 && (!launch.etcd.empty() || (launch.endpoint && launch.sources.endpoint != leads_nowhere));
  }

  /// Whether a refusal of elrun's is one of chaos, too: on a node of a cluster all nodes must not be started on each.
  [[nodiscard]] bool counts_refusal() const {
    const auto is_set = [&](std::string_view name) {
      const auto found = environment_.find(name);
      return found != environment_.end() && !found->second.empty();
    };
    const auto scheduler = scheduler_of(environment_);
    return std::ranges::any_of(
               given_, [](std::string_view name) { return name == "rdzv_endpoint" || name == "master_addr" || name == "node_rank"; }) ||
           std::ranges::any_of(std::array{"PET_RDZV_ENDPOINT", "PET_MASTER_ADDR", "MASTER_ADDR", "KUBERNETES_SERVICE_HOST"}, is_set) ||
           (scheduler && scheduler->tasks > 1);
  }

  // As elrun itself understands them; of nodes that are all here, only where they meet is chaos's to say.
  [[nodiscard]] Parsed understood(bool with_others) const {
    std::vector<std::string> words;
    if (!with_others) words = {"--rdzv_backend", "c10d", "--rdzv_endpoint", "127.0.0.1"};
    words.insert(words.end(), options_.agent.begin(), options_.agent.end());
    words.emplace_back("--");
    words.insert(words.end(), options_.program.begin(), options_.program.end());
    const Variables nothing;
    return OptionParser{with_others ? environment_ : nothing, machine_, "elrun"}.launch(words);
  }

  void take_own_node(const LaunchOptions& launch) {
    const std::uint32_t nodes = options_.world.nodes;
    options_.own_node = static_cast<std::uint32_t>(std::max(launch.node_rank, 0));
    options_.never_host = launch.never_host;
    options_.endpoint_port = launch.endpoint ? launch.endpoint->port : std::uint16_t{0};
    options_.meeting = launch.endpoint ? fmt::format("{}:{}", launch.endpoint->host, launch.endpoint->port) : "etcd's choice";
    if (!launch.sources.endpoint.empty()) options_.meeting += fmt::format(" ({})", launch.sources.endpoint);
    options_.run_id = launch.run.value().empty() || launch.run == RunId{"none"} ? "chaos" : launch.run.value();
    // Machines that are no pods may be called anything.
    const bool is_told =
        launch.node_rank >= 0 && (launch.sources.node_rank != by_host_name || environment_.contains("KUBERNETES_SERVICE_HOST"));
    if (!is_told)
      contradictions_.push_back(
          fmt::format("nothing says which of the {} nodes that meet at {} this is: give each its --node_rank, 0 to {}", nodes,
                      options_.meeting, nodes - 1));
    else if (launch.node_rank >= static_cast<std::int64_t>(nodes))
      contradictions_.push_back(
          fmt::format("this is node {} (by {}), and a plan for {} has the nodes 0 to {}: there are no spares in a rehearsal",
                      launch.node_rank, launch.sources.node_rank, count_of(nodes, "node"), nodes - 1));
  }

  // PET_NPROC_PER_NODE says how large a job of one node is; agents that are all here are started without such variables.
  void keep_workers(const LaunchOptions* launch) {
    if (!options_.launcher.empty() || launch == nullptr || launch->round.nodes_max != 1 || !launch->sources.workers.starts_with("PET_"))
      return;
    options_.agent.insert(options_.agent.begin(), fmt::format("--nproc_per_node={}", launch->workers));
  }

  void parse_agents() {
    Parsed parsed = understood(options_.launcher.empty());
    const auto* launch = std::get_if<LaunchOptions>(&parsed);
    const bool with_others = options_.launcher.empty() && (launch != nullptr ? meets_others(*launch) : counts_refusal());
    if (!with_others) {
      keep_workers(launch);
      parsed = understood(false);
      launch = std::get_if<LaunchOptions>(&parsed);
    }
    for (const std::string_view name : given_) {
      if (has(not_for_agents, name) || (!with_others && has(of_own_node, name)))
        contradictions_.push_back(fmt::format(
            "--{}: chaos starts the agents itself, and gives that to each of them; leave it out{}", name,
            has(not_for_agents, name) ? "" : ", or give --nnodes, --rdzv_endpoint and --node_rank, as elrun on each node of a cluster"));
    }
    if (launch != nullptr) {
      options_.world = {launch->round.nodes_max, launch->workers};
      options_.checkpoint_root = launch->checkpoint_root;
      if (options_.launcher.empty()) options_.role = launch->role;
      if (with_others) take_own_node(*launch);
      // Its place is filled in for each run, which a variable's is not.
      const bool is_given = std::ranges::find(given_, "checkpoint_root") != given_.end();
      if (with_others && !is_given && !launch->checkpoint_root.empty())
        options_.agent.insert(options_.agent.end(), {"--checkpoint_root", launch->checkpoint_root});
      return;
    }
    const auto& [code, text] = std::get<Usage>(parsed);
    if (with_others && code == exit_code::contradiction && environment_.contains("KUBERNETES_SERVICE_HOST"))
      contradictions_.push_back(
          "all nodes are started in this container only without KUBERNETES_SERVICE_HOST (env -u KUBERNETES_SERVICE_HOST elrun chaos ...)");
    if (code == 0) return usage_.push_back("--version and the like are options of elrun, without chaos");
    for (std::string_view rest = text; !rest.empty();) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      constexpr std::string_view begin = "elrun: ";
      const std::string_view line = rest.substr(0, end);
      if (line.starts_with(begin)) (code == exit_code::contradiction ? contradictions_ : usage_).emplace_back(line.substr(begin.size()));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }

  void check() {
    constexpr std::uint32_t nodes_most = 64, workers_most = 1024;
    const auto& [nodes, workers] = options_.world;
    if (!options_.own_node && (nodes > nodes_most || std::uint64_t{nodes} * workers > workers_most))
      contradictions_.push_back(fmt::format("{} nodes of {} workers: chaos starts them all here, at most {} nodes and {} workers", nodes,
                                            workers, nodes_most, workers_most));
    if (workers == 0) contradictions_.push_back("--nproc_per_node 0: there would be nothing to disturb");
    if (!options_.plan_file.empty() && (options_.mtbf || draws_))
      contradictions_.push_back("--plan FILE says all failures: leave out --mtbf, --for, --seed and --kinds");
    if (options_.plan_file.empty() && !options_.mtbf) options_.mtbf = 5s;
    if (!options_.launcher.empty()) {
      for (const std::string_view name : given_)
        if (name != "nnodes" && name != "nproc_per_node" && name != "checkpoint_root")
          contradictions_.push_back(fmt::format("--{} is an option of elrun: put what is meant into --launcher", name));
      if (options_.has_store) contradictions_.push_back("--store belongs to elrun: leave it out with --launcher");
    }
    const std::string& root = options_.checkpoint_root;
    if (!root.empty() && root.find("{run}") == std::string::npos && root.find("{disk}") == std::string::npos)
      contradictions_.push_back("--checkpoint-root " + root + " would be the same directory in both runs: begin it with {run} or {disk}");
    if (options_.own_node && options_.work.empty() && root.find("{run}") != std::string::npos)
      contradictions_.push_back("--checkpoint-root " + root +
                                " would be another directory on each node: give all of them the same --work, on storage that they share");
    if (options_.own_node && options_.work.empty() && !options_.dry_run && environment_.contains("KUBERNETES_SERVICE_HOST"))
      contradictions_.push_back(
          "a container that is started again would rehearse anew, and its last verdict would stay: give a --work on storage that outlives it");
    if (options_.own_node && root.find("{disk}") != std::string::npos)
      contradictions_.push_back("--checkpoint-root " + root +
                                " would be another disk on each node, with a part of the checkpoints: begin it with {run}");
    if (options_.own_node && options_.has_store)
      contradictions_.push_back(
          "--store is for nodes that chaos starts: start `elrun store` where the endpoint leads, again for the second run, for it ends with the first; "
          "or leave it out");
    if (options_.has_store && nodes == 1)
      contradictions_.push_back("--store needs several nodes: add --nnodes 2, for a single one has no rendezvous");
  }

  std::span<const std::string> words_;
  const Variables& environment_;
  const Machine& machine_;
  std::size_t at_ = 0;
  bool is_over_ = false, asks_help_ = false, draws_ = false;
  std::vector<std::string_view> given_;  // elrun's options
  std::vector<std::string> usage_, contradictions_;
  ChaosOptions options_;
};

}  // namespace

bool ChaosOptions::mentions(std::string_view place) const {
  const auto has = [&](const std::string& word) { return word.find(place) != std::string::npos; };
  return std::ranges::any_of(agent, has) || std::ranges::any_of(program, has) || std::ranges::any_of(launcher, has);
}

std::string ChaosOptions::disk_in(const std::string& run) const {
  return run + "/disk" + (own_node ? fmt::format(".{}", *own_node) : std::string{});
}

std::variant<ChaosOptions, Usage> parse_chaos(std::span<const std::string> words, const Variables& environment, const Machine& machine) {
  return ChaosOptionParser{words, environment, machine}.parse();
}

std::string id_of_plan(const std::string& run_id, std::span<const Fault> plan, const FaultWorld& world) {
  const std::string text = fmt::format("{} {}\n{}", world.nodes, world.workers, text_of(plan));
  return fmt::format("{}-{:08x}", run_id, crc32c(std::as_bytes(std::span{text})));
}

std::string filled_in(std::string_view word, const Places& places) {
  const std::pair<std::string_view, std::string> all[] = {{"{run}", places.run},
                                                          {"{disk}", places.disk},
                                                          {"{node}", fmt::to_string(places.node)},
                                                          {"{nnodes}", fmt::to_string(places.nodes)},
                                                          {"{nproc}", fmt::to_string(places.workers)},
                                                          {"{host}", places.host},
                                                          {"{port}", fmt::to_string(places.port)}};
  std::string out;
  while (!word.empty()) {
    const auto* const place = std::ranges::find_if(all, [&](const auto& one) { return word.starts_with(one.first); });
    if (place == std::end(all)) out += word.front(), word.remove_prefix(1);
    else out += place->second, word.remove_prefix(place->first.size());
  }
  return out;
}

std::vector<std::string> node_command(const ChaosOptions& options, const Places& places, const std::string& elrun) {
  std::vector<std::string> command;
  const auto fill_in = [&](const std::vector<std::string>& words) {
    for (const std::string& word : words) command.push_back(filled_in(word, places));
  };
  if (!options.launcher.empty()) {
    fill_in(options.launcher);
  } else {
    command.push_back(elrun);
    if (options.world.nodes == 1) command.insert(command.end(), {"--nnodes", "1"});  // whatever a scheduler's variables say
    fill_in(options.agent);
    if (options.gives_prefixes) command.insert(command.end(), {"--tee", "3", "--log_dir", places.run + "/logs"});
    if (options.gives_restarts) command.insert(command.end(), {"--max_restarts", "1000000"});
    command.insert(command.end(), {"--event_log", fmt::format("{}/events.{}", places.run, places.node)});
    if (options.own_node) {
      // An instance that is late does not come into the other run.
      command.insert(command.end(), {"--node_rank", fmt::to_string(places.node), "--rdzv_id", options.run_id + "-" + places.run_name});
    } else if (options.world.nodes > 1) {
      command.insert(command.end(), {"--node_rank", fmt::to_string(places.node), "--rdzv_backend", "c10d", "--rdzv_id", "chaos",
                                     "--rdzv_endpoint", fmt::format("{}:{}", places.host, places.port)});
      if (options.has_store)
        command.insert(command.end(),
                       {"--rdzv_conf", options.rendezvous_conf + (options.rendezvous_conf.empty() ? "" : ",") + "is_host=0"});
    }
    command.emplace_back("--");
  }
  fill_in(options.program);
  return command;
}

std::optional<std::vector<std::string>> split_words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool is_word = false;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) quote = 0;
      else word += c;
    } else if (c == '"' || c == '\'') {
      quote = c, is_word = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (is_word) words.push_back(std::move(word));
      word.clear(), is_word = false;
    } else {
      word += c, is_word = true;
    }
  }
  if (quote != 0) return std::nullopt;
  if (is_word) words.push_back(std::move(word));
  return words;
}

}  // namespace elrun::inline v0::launcher
