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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <elrun/philox.hpp>

#include "tests/golden/fleet.hpp"
#include "tests/golden/history.hpp"
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

constexpr std::string_view usage = R"(elrun_golden: trains the gpt sample on everything that must not show in its state, and lets everything happen to it that
may happen to a job. Every run must end with exit code 0 and one state hash (with leaves in bf16, with one other).

  elrun_golden                    all of it: the whole matrix, and 200 histories
  elrun_golden --cells all|N      the matrix of world sizes, placements, transports and threads, or N cells of it by the seed
  elrun_golden --histories N      N random histories: workers, agents and coordinators killed, agents asked to go and joining
  elrun_golden --history S        the history of seed S, with all that was done in it

  --seed S          of the first history, and of the choice of cells (0)
  --steps N         of each training (2000 of a history, whose state is known; 200 of a cell, whose state an undisturbed run tells)
  --logs DIR        where to keep what the processes of a failed run said

What is drawn from a seed is what happens, at which step and how long after it; the moment within a step is the machine's.
Exit code: 0 when every run ended in the state, 1 when one did not, 64 for a wrong command line.
)";

struct Options {
  std::uint64_t seed = 0, histories = 0, cells = 0;
  bool all_cells = false, one = false, help = false;
  std::optional<unsigned> steps;
  std::string logs;
};

std::optional<Options> parse(const std::vector<std::string>& arguments) {
  Options options;
  if (arguments.empty()) options.all_cells = true, options.histories = 200;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--help" || name == "-h") return options.help = true, options;
    if (++i == arguments.size()) return {};
    const std::string& value = arguments[i];
    if (name == "--logs") {
      options.logs = value;
      continue;
    }
    if (name == "--cells" && value == "all") {
      options.all_cells = true;
      continue;
    }
    char* end = nullptr;
    const std::uint64_t number = std::strtoull(value.c_str(), &end, 0);
    if (value.empty() || *end != '\0') return {};
    if (name == "--seed") options.seed = number;
    else if (name == "--history") options.seed = number, options.histories = 1, options.one = true;
    else if (name == "--histories") options.histories = number;
    else if (name == "--cells") options.cells = number;
    else if (name == "--steps" && number >= 100 && number <= 1'000'000) options.steps = static_cast<unsigned>(number);
    else return {};
  }
  if (!options.all_cells && options.cells == 0 && options.histories == 0) return {};
  return options;
}

class Campaign {
 public:
  explicit Campaign(const Options& options) : options_{options} {
    for (const auto& [training, steps] : {std::pair{&history_training_, golden_steps}, {&cell_training_, cell_steps}})
      *training = {.text = folder_ / "text", .steps = options.steps.value_or(steps)};
    test::Job help{{.arguments = {"--help"}, .environment = {}, .program = "gpt"}};
    (void)help.wait();
    dimensions_ = dimensions_in(help.output());
  }

  int run() {
    if (options_.all_cells || options_.cells > 0) reference(cell_training_), cells();
    if (options_.histories > 0) reference(history_training_), histories();
    fmt::print("{} runs, {} failed{}\n", runs_, failed_.size(), failed_.empty() ? "" : ":");
    for (const std::string& line : failed_) fmt::print("  {}\n", line);
    return failed_.empty() ? exit_clean : exit_found;
  }

 private:
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
    const std::string wrong = !ending.wrong.empty() ? ending.wrong : ending.state == state_of(setting) || unsaid ? "" : "the state is " + ending.state;
    if (wrong.empty()) return true;
    failed_.push_back(fmt::format("{}: {}{}", what, wrong, replay.empty() ? "" : "; again with " + replay));
    fmt::print("\nFAILED {}\n", failed_.back());
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

  void cells() {
    std::vector<Setting> chosen = matrix(dimensions_);
    if (!options_.all_cells) {
      Rng rng{options_.seed};
      for (std::size_t i = 0; i < chosen.size(); ++i) std::swap(chosen[i], chosen[i + rng.below(chosen.size() - i)]);
      chosen.resize(std::min<std::size_t>(chosen.size(), options_.cells));
    }
    fmt::print("the matrix, {} of {} cells\n", chosen.size(), matrix(dimensions_).size());
    std::map<std::string, std::string> rows;  // by what a row has in common: its world sizes
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const Setting& cell = chosen[i];
      ++runs_;
      const bool good = judge(describe(cell), "", cell, run_undisturbed(cell_training_, cell));
      std::string row = fmt::format("{} thread{}, {}", cell.threads, cell.threads == 1 ? " " : "s", cell.transport);
      for (const Choice& choice : cell.options)
        if (!choice.empty()) row += fmt::format(", {}", fmt::join(choice, " "));
      rows[row] += fmt::format(" {}{}", cell.agents * cell.workers - cell.fewer, good ? "" : " FAILED");
      if (::isatty(STDOUT_FILENO) != 0)
        fmt::print("\r\x1b[K{} of {}{}", i + 1, chosen.size(), i + 1 == chosen.size() ? "\n" : ""), std::fflush(stdout);
      else if ((i + 1) % 20 == 0)
        fmt::print("  {} of {}, {} failed\n", i + 1, chosen.size(), failed_.size());
    }
    for (const auto& [row, worlds] : rows) fmt::print("  {}: workers{}\n", row, worlds);
  }

  void histories() {
    std::map<Kind, unsigned> happened;
    unsigned generations = 0, unsaid = 0, good = 0;
    std::vector<std::pair<Wait, std::uint64_t>> times;
    for (std::uint64_t seed = options_.seed; seed < options_.seed + options_.histories; ++seed) {
      const History history = draw(seed, dimensions_, history_training_.steps);
      ++runs_;
      const Ending ending = run_history(history_training_, history);
      good += judge(fmt::format("seed {} ({})", seed, describe(history.setting)), fmt::format("elrun_golden --history {}{}", seed, options_.steps ? fmt::format(" --steps {}", *options_.steps) : ""), history.setting, ending);
      std::string what;
      for (const auto& [kind, times_done] : ending.happened) {
        happened[kind] += times_done;
        what += fmt::format(", {}{}", to_string(kind), times_done > 1 ? fmt::format(" ({})", times_done) : "");
      }
      generations += ending.generations;
      unsaid += ending.state.empty() && ending.wrong.empty();
      times.emplace_back(ending.took, seed);
      fmt::print("seed {}: {:.1f} s, {} generation{}: {}{}\n", seed, static_cast<double>(ending.took.count()) / 1000, ending.generations, ending.generations == 1 ? "" : "s", describe(history.setting), what);
      if (options_.one) {
        for (const Event& event : history.events) fmt::print("  drawn: {}\n", describe(event));
        for (const std::string& line : ending.trace) fmt::print("  {}\n", line);
      }
    }
    std::sort(times.begin(), times.end());
    fmt::print("{} histories, {} ended in the state{}; {} generations\n", times.size(), good, unsaid > 0 ? fmt::format(" ({} without saying so, their last word was killed)", unsaid) : "", generations);
    for (const Kind kind : kinds) fmt::print("  {}: {}\n", to_string(kind), happened[kind]);
    fmt::print("  the longest:");
    for (std::size_t i = times.size(); i-- > 0 && i + 5 >= times.size();) fmt::print(" {:.1f} s (seed {})", static_cast<double>(times[i].first.count()) / 1000, times[i].second);
    fmt::print("\n");
  }

  const Options& options_;
  test::Folder folder_;
  Training history_training_, cell_training_;
  std::vector<Dimension> dimensions_;
  std::map<std::string, std::string> states_;  // of the trainings that run now, by the kind of leaves
  std::size_t runs_ = 0;
  std::vector<std::string> failed_;
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
  return Campaign{*options}.run();
}
