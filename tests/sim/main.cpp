// elrun_sim: the rendezvous in a simulated world. Seeds, planted bugs, all interleavings of a small world.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "tests/support/sim/crash_search.hpp"
#include "tests/support/sim/explorer.hpp"
#include "tests/support/sim/scale.hpp"
#include "tests/support/sim/simulation.hpp"
#include "tests/support/sim/stalls.hpp"

namespace elrun::sim {
namespace {

constexpr int exit_clean = 0, exit_found = 1, exit_usage = 64;
constexpr std::size_t shown_lines = 60;
constexpr std::uint64_t planted_seeds_max = 4000;
constexpr std::uint32_t scale_nodes_max = 100'000;
static_assert(scale_nodes_max < nodes_limit);  // and a spare
constexpr std::uint64_t node_hours_max = 1'000'000, silence_seconds_max = 60;

constexpr std::string_view usage =
    R"(elrun_sim: runs elrun's own cores (round, supervisor, store) in a simulated world of agents, workers and coordinators:
delay, loss, partitions, resets, pauses, crashes and clock jumps, all from one seed. Checkers outside the cores watch every
step; a broken rule ends the run with its trace and the line that replays it.

  elrun_sim --seeds N [--from S] [--nodes M]    seeds S to S+N-1 (S: 0), worlds of at most M nodes (M: 5)
  elrun_sim --seed S [--nodes M]                one seed, with all that happened in it
  elrun_sim --planted NAME [--seeds N]          switches one known bug on, and says after how many seeds it was found
  elrun_sim --planted all [--seeds N]           each of them, as a table; --planted list: only their names
  elrun_sim --regressions FILE                  the seeds that once failed: lines of "seed nodes why"

  elrun_sim --exhaustive [--planted NAME|all]   every order of events of three nodes, with one fault at any place: five searches
            [--states N]                        each stops after N states, and says so

  elrun_sim --job --seeds N [--from S] [--nodes M]    the same worlds, whose workers run the product's Job: all of lib/job, with
                                                its steps, votes and recovery; --planted, --seed, --regressions as above
  elrun_sim --job --exhaustive [--crashes C] [--world TEXT] [--planted NAME|all]
                                                small worlds and two steps, with a crash at every action of every worker, and
            [--nodes-die]                       after each of those (C: 2, the default) another one at every later action;
                                                --nodes-die: also with all workers of its node, and with its host;
                                                --world: those alone that have this text in their name, and also worlds
                                                that are looked at only so ("mirrored" has 20 of them)

  elrun_sim --cut --seeds N [--job] [...]       worlds in which pairs of nodes cannot reach each other, though all reach the
                                                coordinator; --planted, --seed, --job as above

  elrun_sim --scale N                           a world of N nodes (10 to 100000) without checkers: one forms, one node is
                                                replaced, the coordinator is stopped, then replaced; messages, bytes,
                                                processor time and memory of Round, and what it costs by the model

  elrun_sim --stalls [--node-hours N] [--silence S] [--times T] [--from SEED]
                                                how many living nodes are lost in N hours of a node (10000) because their
                                                machines stand still T times as often as real ones (100), with limits of
                                                silence of 1, 2, 3, 5 and 10 s, or of S seconds; for three kinds of machines
            [--world TEXT]                      or for those that have this text in their name

  --keep-going    goes on after a broken rule: one line for each seed that breaks one
  --threads T     how many seeds run at one time (default: as many as there are processors)
  --quiet         of a single seed no trace

Exit code: 0 when all is clean (or every planted bug was found), 1 when a rule or a bound was broken (or a bug not found), 64
for a wrong command line. A seed means the same run on every machine, until the simulator or a core changes.
)";

struct Options {
  std::uint64_t from = 0, seeds = 0, states = ~std::uint64_t{0};
  std::uint32_t nodes = 5, scale = 0, crashes = 2;
  std::uint64_t node_hours = 10'000, silence = 0, times = 100;
  std::string planted, regressions, world;
  bool job = false, cut = false, exhaustive = false, one = false, quiet = false, help = false, keep_going = false, stalls = false,
       nodes_die = false;
  unsigned threads = std::max(1u, std::thread::hardware_concurrency());
};

std::optional<Options> parse(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--help" || name == "-h") return options.help = true, options;
    if (name == "--quiet" || name == "--keep-going" || name == "--exhaustive" || name == "--job" || name == "--cut" || name == "--stalls" ||
        name == "--nodes-die") {
      (name == "--quiet"        ? options.quiet
       : name == "--exhaustive" ? options.exhaustive
       : name == "--job"        ? options.job
       : name == "--cut"        ? options.cut
       : name == "--stalls"     ? options.stalls
       : name == "--nodes-die"  ? options.nodes_die
                                : options.keep_going) = true;
      continue;
    }
    if (++i == arguments.size()) return {};
    const std::string& value = arguments[i];
    if (name == "--planted") options.planted = value;
    else if (name == "--regressions") options.regressions = value;
    else if (name == "--world") options.world = value;
    else {
      char* end = nullptr;
      const std::uint64_t number = std::strtoull(value.c_str(), &end, 0);
      if (value.empty() || *end != '\0') return {};
      if (name == "--seed") options.from = number, options.seeds = 1, options.one = true;
      else if (name == "--seeds") options.seeds = number;
      else if (name == "--from") options.from = number;
      else if (name == "--states") options.states = number;
      else if (name == "--crashes" && number >= 1 && number <= 2) options.crashes = static_cast<std::uint32_t>(number);
      else if (name == "--nodes" && number >= 1 && number <= 1000) options.nodes = static_cast<std::uint32_t>(number);
      else if (name == "--node-hours" && number >= 1 && number <= node_hours_max) options.node_hours = number;
      else if (name == "--silence" && number >= 1 && number <= silence_seconds_max) options.silence = number;
      else if (name == "--times" && number >= 1 && number <= 1000) options.times = number;
      else if (name == "--scale" && number >= 10 && number <= scale_nodes_max) options.scale = static_cast<std::uint32_t>(number);
      else if (name == "--threads" && number >= 1 && number <= 1024) options.threads = static_cast<unsigned>(number);
      else return {};
    }
  }
  if (options.seeds == 0 && options.scale == 0 && !options.stalls && !options.exhaustive && options.planted.empty() &&
      options.regressions.empty())
    return {};
  return options;
}

/// What runs of one call have in common.
struct Worlds {
  std::uint32_t nodes = 5;
  bool job = false;  // the workers run the product's Job
  bool cut = false;  // pairs of nodes are cut from each other
  [[nodiscard]] Profile profile(std::uint64_t seed) const {
    return cut ? cut_profile_of(seed, nodes, job) : job ? job_profile_of(seed, nodes) : profile_of(seed, nodes);
  }
  [[nodiscard]] std::string flags() const { return fmt::format("{}{}--nodes {}", job ? "--job " : "", cut ? "--cut " : "", nodes); }
};
Worlds worlds_of(const Options& options) { return {options.nodes, options.job, options.cut}; }

struct Found {
  std::uint64_t seed = 0;
  Violation violation;
};
struct Campaign {
  std::optional<Found> first;  // of the lowest seed
  std::uint64_t events = 0, generations = 0, seeds = 0;
};

// The lowest seed that breaks a rule, however many threads look.
Campaign look(std::uint64_t from, std::uint64_t count, const Worlds& worlds, Bug bug, unsigned threads, bool keep_going = false) {
  Campaign all;
  std::mutex mutex;
  std::atomic<std::uint64_t> next{from}, end{from + count};
  const auto work = [&] {
    planted_bug = bug;
    for (std::uint64_t seed = next++; seed < end; seed = next++) {
      const Outcome outcome = simulate(worlds.profile(seed));
      const std::lock_guard lock{mutex};
      all.events += outcome.events;
      all.generations += outcome.generations;
      ++all.seeds;
      if (outcome.violation && keep_going) fmt::print("seed {}: {}: {}\n", seed, outcome.violation->checker, outcome.violation->sentence);
      if (!outcome.violation || (all.first && all.first->seed < seed)) continue;
      all.first = Found{seed, *outcome.violation};
      if (!keep_going) end = std::min<std::uint64_t>(end, seed);
    }
    planted_bug = Bug::none;
  };
  std::vector<std::jthread> workers;
  for (unsigned i = 0; i < threads; ++i) workers.emplace_back(work);
  workers.clear();
  return all;
}

void show(const Found& found, const Worlds& worlds, std::string_view planted) {
  for (const std::string& line : trace_of(worlds.profile(found.seed), shown_lines)) fmt::print("{}\n", line);
  fmt::print("\n{} is broken: {}\nreplay it with: elrun_sim --seed {} {}{}{}\n", found.violation.checker, found.violation.sentence,
             found.seed, worlds.flags(), planted.empty() ? "" : " --planted ", planted);
}

std::optional<BugText> bug_named(std::string_view name) {
  const auto at = std::find_if(bug_texts.begin(), bug_texts.end(), [&](const BugText& text) { return text.name == name; });
  return at == bug_texts.end() ? std::nullopt : std::optional{*at};
}

BugOf bugs_of(const Options& options) {
  if (options.cut) return options.job ? BugOf::cut_jobs : BugOf::cuts;
  return options.job ? BugOf::jobs : BugOf::any_world;
}

int all_planted(const Options& options) {
  const std::uint64_t seeds = options.seeds > 0 ? options.seeds : planted_seeds_max;
  int code = exit_clean;
  fmt::print("| planted bug | what it is | found after | by |\n|---|---|---|---|\n");
  for (const BugText& text : bug_texts) {
    const BugOf of = text.of == BugOf::job_saves ? BugOf::jobs : text.of;
    if (of != bugs_of(options)) continue;
    const Campaign campaign = look(options.from, seeds, worlds_of(options), text.bug, options.threads);
    if (!campaign.first) code = exit_found;
    fmt::print("| `{}` | {} | {} | {} |\n", text.name, text.what,
               campaign.first
                   ? fmt::format("{} seed{}", campaign.first->seed - options.from + 1, campaign.first->seed == options.from ? "" : "s")
                   : fmt::format("NOT FOUND in {} seeds", seeds),
               campaign.first ? campaign.first->violation.checker : "");
    std::fflush(stdout);
  }
  return code;
}

// All searches, or up to the first of them that finds something.
std::vector<SearchResult> search_all(Bug bug, unsigned threads, std::uint64_t states) {
  std::vector<SearchResult> results(searches.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    planted_bug = bug;
    for (std::size_t i = next++; i < searches.size(); i = next++) {
      results[i] = Explorer{searches[i], states}.run();
      if (results[i].violation && bug != Bug::none) next = searches.size();
    }
    planted_bug = Bug::none;
  };
  std::vector<std::jthread> workers;
  for (unsigned i = 0; i < threads; ++i) workers.emplace_back(work);
  workers.clear();
  return results;
}

int exhaustive_planted(const Options& options) {
  fmt::print("| planted bug | found by the search | by |\n|---|---|---|\n");
  std::size_t found = 0, all = 0;
  for (const BugText& text : bug_texts) {
    if (text.of != BugOf::any_world) continue;
    ++all;
    const std::vector<SearchResult> results = search_all(text.bug, options.threads, options.states);
    const auto at = std::find_if(results.begin(), results.end(), [](const SearchResult& result) { return result.violation.has_value(); });
    if (at != results.end()) ++found;
    fmt::print("| `{}` | {} | {} |\n", text.name, at == results.end() ? "" : searches[static_cast<std::size_t>(at - results.begin())].name,
               at == results.end() ? "" : at->violation->checker);
    std::fflush(stdout);
  }
  fmt::print("{} of {} planted bugs found\n", found, all);
  return exit_clean;
}

// All small worlds, or up to the first that finds something.
std::optional<std::pair<std::string_view, CrashFound>> crash_everywhere(Bug bug, const Options& options, bool told) {
  std::uint64_t runs = 0;
  for (const SmallWorld& world : small_worlds) {
    if (world.name.find(options.world) == world.name.npos || (world.by_hand && options.world.empty())) continue;
    const auto begin = std::chrono::steady_clock::now();
    const CrashSearch search = crash_at_every_action(world, options.crashes, options.nodes_die, options.threads, bug);
    runs += search.runs;
    const std::string back = search.went_back == 0 ? "" : fmt::format(", {} of them did applied steps again", search.went_back);
    if (told)
      fmt::print("{}: {} actions, {} runs{}, {:.1f} s{}\n", world.name, search.actions, search.runs, back,
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), search.found ? ": FOUND" : "");
    std::fflush(stdout);
    if (search.found) return std::pair{world.name, *search.found};
  }
  if (told) fmt::print("{} crash{} at every action: clean; {} runs\n", options.crashes, options.crashes == 1 ? "" : "es", runs);
  return {};
}

int crash_searches(const Options& options) {
  if (std::ranges::none_of(small_worlds, [&](const SmallWorld& w) { return w.name.find(options.world) != w.name.npos; }))
    return fmt::print(stderr, "elrun_sim: no small world has '{}' in its name\n", options.world), exit_usage;
  if (options.planted == "all") {
    int code = exit_clean;
    fmt::print("| planted bug | found in | by |\n|---|---|---|\n");
    for (const BugText& text : bug_texts) {
      if (text.of != BugOf::jobs) continue;
      const auto found = crash_everywhere(text.bug, options, false);
      if (!found) code = exit_found;
      fmt::print("| `{}` | {} | {} |\n", text.name, found ? found->first : "", found ? found->second.violation.checker : "NOT FOUND");
      std::fflush(stdout);
    }
    return code;
  }
  const auto bug = options.planted.empty() ? std::nullopt : bug_named(options.planted);
  if (!options.planted.empty() && !bug)
    return fmt::print(stderr, "elrun_sim: no planted bug is called {}; --planted list names them\n", options.planted), exit_usage;
  const auto found = crash_everywhere(bug ? bug->bug : Bug::none, options, true);
  if (!found) return exit_clean;
  planted_bug = bug ? bug->bug : Bug::none;
  for (const std::string& line : trace_of(found->second.profile, ~std::size_t{0})) fmt::print("{}\n", line);
  fmt::print("\n{} is broken, {}: {}\n", found->second.violation.checker, found->second.where(), found->second.violation.sentence);
  return exit_found;
}

int exhaustive(const Options& options) {
  if (options.planted == "all") return exhaustive_planted(options);
  Bug bug = Bug::none;
  if (!options.planted.empty()) {
    const auto text = bug_named(options.planted);
    if (!text)
      return fmt::print(stderr, "elrun_sim: no planted bug is called {}; --planted list names them\n", options.planted), exit_usage;
    bug = text->bug;
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<SearchResult> results = search_all(bug, options.threads, options.states);
  SearchResult all;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const SearchResult& one = results[i];
    fmt::print("{}: {} states, {} moves, {} ends, {:.3g} paths, {} events the longest{}\n", searches[i].name, one.states, one.moves,
               one.ends, one.paths, one.longest,
               one.violation ? ": FOUND"
               : one.whole   ? ""
                             : "; stopped there");
    all.states += one.states, all.moves += one.moves, all.paths += one.paths;
    if (!one.violation) continue;
    for (const std::string& line : one.trace) fmt::print("{}\n", line);
    fmt::print("\n{} is broken: {}\n", one.violation->checker, one.violation->sentence);
    return exit_found;
  }
  const double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print("three nodes, {} states, {:.3g} paths: clean; {} moves, {:.1f} s on {} threads\n", all.states, all.paths, all.moves, taken,
             options.threads);
  return exit_clean;
}

int regressions(const Options& options) {
  std::ifstream file{options.regressions};
  if (!file) {
    fmt::print(stderr, "elrun_sim: cannot read {}\n", options.regressions);
    return exit_usage;
  }
  std::size_t count = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    char* rest = nullptr;
    const std::uint64_t seed = std::strtoull(line.c_str(), &rest, 0);
    const auto nodes = static_cast<std::uint32_t>(std::strtoul(rest, &rest, 0));
    if (nodes < 1 || nodes > 1000) {
      fmt::print(stderr, "elrun_sim: {}: not \"seed nodes why\": {}\n", options.regressions, line);
      return exit_usage;
    }
    ++count;
    const Worlds worlds{nodes, options.job, options.cut};
    if (const Outcome outcome = simulate(worlds.profile(seed)); outcome.violation) {
      show({seed, *outcome.violation}, worlds, "");
      return exit_found;
    }
  }
  fmt::print("{} seeds that once failed are clean\n", count);
  return exit_clean;
}

int seeds(const Options& options) {
  Bug bug = Bug::none;
  if (!options.planted.empty()) {
    const auto text = bug_named(options.planted);
    if (!text) {
      fmt::print(stderr, "elrun_sim: no planted bug is called {}; --planted list names them\n", options.planted);
      return exit_usage;
    }
    bug = text->bug;
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t count = options.seeds > 0 ? options.seeds : planted_seeds_max;
  const Campaign campaign = look(options.from, count, worlds_of(options), bug, options.threads, options.keep_going);
  planted_bug = bug;  // of the traces
  if (campaign.first) {
    if (options.one && !options.quiet)
      for (const std::string& line : trace_of(worlds_of(options).profile(options.from), ~std::size_t{0})) fmt::print("{}\n", line);
    if (options.one) fmt::print("\n{} is broken: {}\n", campaign.first->violation.checker, campaign.first->violation.sentence);
    else show(*campaign.first, worlds_of(options), options.planted);
    if (bug != Bug::none) fmt::print("planted {}: found after {} seeds\n", options.planted, campaign.first->seed - options.from + 1);
    return exit_found;
  }
  if (options.one && !options.quiet)
    for (const std::string& line : trace_of(worlds_of(options).profile(options.from), ~std::size_t{0})) fmt::print("{}\n", line);
  const double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print("{} seed{} of up to {} nodes: clean; {} generations, {} events, {:.1f} s on {} threads\n", campaign.seeds,
             campaign.seeds == 1 ? "" : "s", options.nodes, campaign.generations, campaign.events, taken, options.threads);
  return exit_clean;
}

int scale(std::uint32_t nodes) {
  const ScaleOutcome outcome = measure_scale(nodes);
  fmt::print("{}", describe(outcome));
  const std::vector<std::string> broken = broken_bounds(outcome, measure_scale(nodes / 10));
  for (const std::string& sentence : broken) fmt::print("a bound is broken: {}\n", sentence);
  return broken.empty() ? exit_clean : exit_found;
}

// Nobody is lost without a stall that is nearly as long as the limit, and who stands still for longer is lost: but for one in ten, whose coordinator
// stood still as well, or who had no place just then.
int stalls(const Options& options) {
  std::vector<std::uint64_t> limits{1, 2, 3, 5, 10};
  if (options.silence > 0) limits = {options.silence};
  const StallSetup setup{options.node_hours, options.from, static_cast<double>(options.times), options.threads};
  std::vector<std::string> broken;
  fmt::print(
      "living nodes lost in {} node-hours, stalls {} times as often as real ones, seed {}; in brackets: of them, because the coordinator stood still\n\n| machines |",
      setup.node_hours, options.times, setup.seed);
  for (const std::uint64_t limit : limits) fmt::print(" {} s |", limit);
  fmt::print(" stalls |\n|---|");
  for (std::size_t i = 0; i <= limits.size(); ++i) fmt::print("---|");
  fmt::print("\n");
  for (const Surroundings& surroundings : all_surroundings()) {
    if (surroundings.name.find(options.world) == surroundings.name.npos) continue;
    fmt::print("| {} |", surroundings.name);
    std::fflush(stdout);
    StallCount last;
    for (const std::uint64_t limit : limits) {
      last = count_false_losses(surroundings, limit * 1s, setup);
      fmt::print(" {}{} |", last.lost(), last.unreturned > 0 ? fmt::format(" ({})", last.unreturned) : "");
      std::fflush(stdout);
      const auto where = [&](std::string_view what) { return fmt::format("{}, {} s: {}", surroundings.name, limit, what); };
      if (!last.wrong.empty()) broken.push_back(where(last.wrong));
      if (last.may == 0 && last.lost() > 0) broken.push_back(where("nodes were lost, and none stood still for so long"));
      if (last.silent < last.must - std::min(last.must, 2 + last.must / 10))
        broken.push_back(where(fmt::format("{} stalls were longer, and no more nodes were lost", last.must)));
    }
    fmt::print(" {} |\n", last.stalls);
  }
  for (const std::string& sentence : broken) fmt::print("a bound is broken: {}\n", sentence);
  return broken.empty() ? exit_clean : exit_found;
}

int run(const std::vector<std::string>& arguments) {
  const std::optional<Options> options = parse(arguments);
  if (!options) {
    fmt::print(stderr, "{}", usage);
    return exit_usage;
  }
  if (options->help) return fmt::print("{}", usage), exit_clean;
  if (options->planted == "list") {
    for (const BugText& text : bug_texts) fmt::print("{}\n", text.name);
    return exit_clean;
  }
  if (options->scale > 0) return scale(options->scale);
  if (options->stalls) return stalls(*options);
  if (options->exhaustive) return options->job ? crash_searches(*options) : exhaustive(*options);
  if (options->planted == "all") return all_planted(*options);
  if (!options->regressions.empty()) return regressions(*options);
  return seeds(*options);
}

}  // namespace
}  // namespace elrun::sim

int main(int argc, char** argv) { return elrun::sim::run({argv + 1, argv + argc}); }
