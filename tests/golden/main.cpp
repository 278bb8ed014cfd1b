// elrun_golden: one training, one state, whatever it runs on and whatever happens to it. Real processes, real signals.

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <elrun/philox.hpp>

#include "tests/golden/fleet.hpp"
#include "tests/golden/history.hpp"
#include "tests/golden/options.hpp"
#include "tests/support/gpt_job.hpp"

namespace elrun::golden {
namespace {

constexpr int exit_clean = 0, exit_found = 1, exit_usage = 64;
constexpr std::size_t shown_lines = 25;

// The state after 2000 steps, as printed, for each kind of leaves. It moves when the arithmetic moves, and then the numeric
// versions move with it.
constexpr unsigned golden_steps = 2000;
// A cell of the matrix is undisturbed: a difference shows in its first steps or not at all.
constexpr unsigned cell_steps = 200;
constexpr std::pair<std::string_view, std::string_view> golden[] = {{"f32", "f31548e1e4e869ba"}, {"bf16", "91f9f9abf4492938"}};

constexpr std::string_view usage =
    R"(elrun_golden: trains the gpt sample on everything that must not show in its state, and lets everything happen to it that
may happen to a job. Every run must end with exit code 0 and one state hash (with leaves in bf16, with one other).

  elrun_golden                    all of it: the whole matrix, and 200 histories
  elrun_golden --cells all|N      the matrix of world sizes, placements, transports and threads, or N cells of it by the seed
  elrun_golden --cell I           the cell at place I of the matrix, from 0
  elrun_golden --histories N      N random histories: workers, agents and coordinators killed, agents asked to go and joining
  elrun_golden --history S        the history of seed S, with all that was done in it

  --part K/N        the K-th of N portions of what is asked for: all N of them together run all of it
  --seed S          of the first history, and of the choice of cells (0)
  --steps N         of each training (2000 of a history, whose state is known; 200 of a cell, whose state an undisturbed run tells)
  --logs DIR        where to keep what the processes of a failed run said

A run that fails is told with the command line that runs it alone.
What is drawn from a seed is what happens, at which step and how long after it; the moment within a step is the machine's.
Exit code: 0 when every run ended in the state, 1 when one did not, 64 for a wrong command line.
)";

class Campaign {
 public:
  Campaign(const Options& options, std::string program) : options_{options}, program_{std::move(program)} {
    for (const auto& [training, steps] : {std::pair{&history_training_, golden_steps}, {&cell_training_, cell_steps}})
      *training = {.text = folder_ / "text", .steps = options.steps.value_or(steps)};
    test::Job help{{.arguments = {"--help"}, .environment = {}, .program = "gpt"}};
    (void)help.wait();
    dimensions_ = dimensions_in(help.output());
    matrix_ = matrix(dimensions_);
  }

  int run() {
    if (options_.cell && *options_.cell >= matrix_.size())
      return fmt::print(stderr, "elrun_golden: there is no cell {}: the matrix has {} cells, from 0\n", *options_.cell, matrix_.size()),
             exit_usage;
    if (const auto chosen = chosen_cells(); !chosen.empty()) reference(cell_training_), cells(chosen);
    if (const auto seeds = chosen_seeds(); !seeds.empty()) reference(history_training_), histories(seeds);
    fmt::print("{} runs, {} failed{}\n", runs_, failed_.size(), failed_.empty() ? "" : ":");
    for (const Failed& one : failed_) fmt::print("  {}\n{}", one.what, one.again());
    return failed_.empty() ? exit_clean : exit_found;
  }

 private:
  struct Failed {
    std::string what, replay;
    [[nodiscard]] std::string again() const { return replay.empty() ? "" : "  again: " + replay + "\n"; }
  };

  /// Places in the matrix.
  [[nodiscard]] std::vector<std::size_t> chosen_cells() const {
    if (options_.cell) return {*options_.cell};
    std::vector<std::size_t> chosen(matrix_.size());
    std::iota(chosen.begin(), chosen.end(), std::size_t{0});
    if (!options_.all_cells) {
      Rng rng{options_.seed};
      for (std::size_t i = 0; i < chosen.size(); ++i) std::swap(chosen[i], chosen[i + rng.below(chosen.size() - i)]);
      chosen.resize(std::min<std::size_t>(chosen.size(), options_.cells));
    }
    return portion_of(chosen);
  }
  [[nodiscard]] std::vector<std::uint64_t> chosen_seeds() const {
    if (options_.history) return {*options_.history};
    std::vector<std::uint64_t> seeds(options_.histories);
    std::iota(seeds.begin(), seeds.end(), options_.seed);
    return portion_of(seeds);
  }
  template <class T>
  [[nodiscard]] std::vector<T> portion_of(const std::vector<T>& all) const {
    const auto [begin, end] = portion(all.size(), options_.part);
    return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end)};
  }

  /// One process alone says what the state is, for each kind of leaves.
  void reference(const Training& training) {
    for (const auto& [leaves, known] : golden) {
      Setting setting;
      setting.options = {{"--leaves", std::string{leaves}}};
      const Ending alone = run_bare(training, setting);
      ++runs_;
      std::string& state = states_[std::string{leaves}] = alone.state;
      if (training.steps == golden_steps) state = known;
      judge("one process alone", "", setting, alone);
      fmt::print("{} steps with leaves in {} end in {}\n", training.steps, leaves, state);
    }
  }

  /// The state in which a training ends; only the kind of leaves shows in it.
  [[nodiscard]] const std::string& state_of(const Setting& setting) const {
    for (const Choice& choice : setting.options)
      if (choice.size() == 2 && choice[0] == "--leaves") return states_.at(choice[1]);
    return states_.at("f32");
  }

  bool judge(const std::string& what, const std::string& replay, const Setting& setting, const Ending& ending) {
    const bool unsaid = ending.state.empty() && ending.wrong.empty() && !ending.happened.empty();
    const std::string wrong = !ending.wrong.empty()                         ? ending.wrong
                              : ending.state == state_of(setting) || unsaid ? ""
                                                                            : "the state is " + ending.state;
    if (wrong.empty()) return true;
    failed_.push_back({fmt::format("{}: {}", what, wrong), replay});
    fmt::print("\nFAILED {}\n{}", failed_.back().what, failed_.back().again());
    for (const std::string& line : ending.trace) fmt::print("  {}\n", line);
    for (const auto& [who, said] : ending.outputs) {
      fmt::print("--- {}\n{}", who, last_lines(said));
      if (options_.logs.empty()) continue;
      std::filesystem::create_directories(options_.logs);
      std::ofstream{fmt::format("{}/{}-{}", options_.logs, runs_, who)} << said;
    }
    return false;
  }

  /// The last lines, of many steps in a row the first and the last.
  static std::string last_lines(const std::string& said) {
    std::vector<std::string> lines;
    bool between = false;
    for (std::size_t at = 0; at < said.size();) {
      const std::size_t end = std::min(said.find('\n', at), said.size());
      std::string line = said.substr(at, end - at);
      at = end + 1;
      const bool step = line.starts_with("step=");
      if (step && between) lines.back() = line;
      else lines.push_back(line);
      between = step && lines.size() > 1 && lines[lines.size() - 2].starts_with("step=");
    }
    std::string out;
    for (std::size_t i = lines.size() > shown_lines ? lines.size() - shown_lines : 0; i < lines.size(); ++i) out += "  " + lines[i] + "\n";
    return out;
  }

  void cells(const std::vector<std::size_t>& chosen) {
    fmt::print("the matrix, {} of {} cells\n", chosen.size(), matrix_.size());
    std::map<std::string, std::string> rows;  // by what a row has in common: its world sizes
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const Setting& cell = matrix_[chosen[i]];
      ++runs_;
      const bool good = judge(fmt::format("cell {} ({})", chosen[i], describe(cell)), again_cell(program_, options_, chosen[i]), cell,
                              run_undisturbed(cell_training_, cell));
      std::string row = fmt::format("{} thread{}, {}", cell.threads, cell.threads == 1 ? " " : "s", cell.transport);
      for (const Choice& choice : cell.options)
        if (!choice.empty()) row += fmt::format(", {}", fmt::join(choice, " "));
      rows[row] += fmt::format(" {}{}", cell.agents * cell.workers - cell.fewer, good ? "" : " FAILED");
      if (::isatty(STDOUT_FILENO) != 0)
        fmt::print("\r\x1b[K{} of {}{}", i + 1, chosen.size(), i + 1 == chosen.size() ? "\n" : ""), std::fflush(stdout);
      else if ((i + 1) % 20 == 0) fmt::print("  {} of {}, {} failed\n", i + 1, chosen.size(), failed_.size());
    }
    for (const auto& [row, worlds] : rows) fmt::print("  {}: workers{}\n", row, worlds);
  }

  void histories(const std::vector<std::uint64_t>& seeds) {
    std::map<Kind, unsigned> happened;
    unsigned generations = 0, unsaid = 0, good = 0;
    std::vector<std::pair<Wait, std::uint64_t>> times;
    for (const std::uint64_t seed : seeds) {
      const History history = draw(seed, dimensions_, history_training_.steps);
      ++runs_;
      const Ending ending = run_history(history_training_, history);
      good += judge(fmt::format("seed {} ({})", seed, describe(history.setting)), again_history(program_, options_, seed), history.setting,
                    ending);
      std::string what;
      for (const auto& [kind, times_done] : ending.happened) {
        happened[kind] += times_done;
        what += fmt::format(", {}{}", to_string(kind), times_done > 1 ? fmt::format(" ({})", times_done) : "");
      }
      generations += ending.generations;
      unsaid += ending.state.empty() && ending.wrong.empty();
      times.emplace_back(ending.took, seed);
      fmt::print("seed {}: {:.1f} s, {} generation{}: {}{}\n", seed, static_cast<double>(ending.took.count()) / 1000, ending.generations,
                 ending.generations == 1 ? "" : "s", describe(history.setting), what);
      if (options_.history) {
        for (const Event& event : history.events) fmt::print("  drawn: {}\n", describe(event));
        for (const std::string& line : ending.trace) fmt::print("  {}\n", line);
      }
    }
    std::sort(times.begin(), times.end());
    fmt::print("{} histories, {} ended in the state{}; {} generations\n", times.size(), good,
               unsaid > 0 ? fmt::format(" ({} without saying so, their last word was killed)", unsaid) : "", generations);
    for (const Kind kind : kinds) fmt::print("  {}: {}\n", to_string(kind), happened[kind]);
    fmt::print("  the longest:");
    for (std::size_t i = times.size(); i-- > 0 && i + 5 >= times.size();)
      fmt::print(" {:.1f} s (seed {})", static_cast<double>(times[i].first.count()) / 1000, times[i].second);
    fmt::print("\n");
  }

  const Options& options_;
  const std::string program_;  // as it was started
  test::Folder folder_;
  Training history_training_, cell_training_;
  std::vector<Dimension> dimensions_;
  std::vector<Setting> matrix_;
  std::map<std::string, std::string> states_;  // of the trainings that run now, by the kind of leaves
  std::size_t runs_ = 0;
  std::vector<Failed> failed_;
};

}  // namespace
}  // namespace elrun::golden

int main(int argc, char** argv) {
  using namespace elrun::golden;
  ::signal(SIGPIPE, SIG_IGN);
  ::setlinebuf(stdout);
  const auto options = parse({argv + 1, argv + argc});
  if (!options) return fmt::print(stderr, "{}", usage), exit_usage;
  if (options->help) return fmt::print("{}", usage), exit_clean;
  return Campaign{*options, argv[0]}.run();
}
