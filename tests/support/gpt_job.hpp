#pragma once
/// \file The gpt sample as the tests run it: a small model on a text that is made here, so that its hash can be pinned.

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <elrun/philox.hpp>

#include "tests/support/spawn.hpp"

namespace elrun::test {

/// A directory that goes with the test, with a text in it.
class Folder {
 public:
  Folder() {
    write_text("text", 1);
    write_text("other", 2);
  }
  [[nodiscard]] std::string operator/(const std::string& name) const { return directory_.path() + "/" + name; }

 private:
  /// Words drawn from a seed: the same text everywhere.
  void write_text(const std::string& name, std::uint64_t seed) const {
    static constexpr const char* vocabulary[] = {"rank ",  "shard ", "the ", "of ",     "a ",
                                                 "step\n", "world ", "and ", "leaves ", "returns.\n"};
    Rng rng{seed};
    std::ofstream out{*this / name, std::ios::binary};
    for (int i = 0; i < 4000; ++i) out << vocabulary[rng.below(std::size(vocabulary))];
  }
  TemporaryDirectory directory_;
};

/// The sample's arguments: a model of 21,696 weights, 8 slots per step. What comes later on a command line wins.
inline std::vector<std::string> gpt_arguments(const std::string& data, unsigned steps, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments{"--data",        data, "--layers",  "1",  "--channels",     "32",
                                     "--heads",       "2",  "--context", "32", "--global-batch", "8",
                                     "--micro-batch", "1",  "--seed",    "7",  "--steps",        std::to_string(steps)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// `elrun OPTIONS --no_python gpt ARGUMENTS`: what follows the program's name is the program's.
inline std::vector<std::string> under_elrun(std::vector<std::string> options, const std::vector<std::string>& gpt) {
  options.insert(options.end(), {"--no_python", program_path("gpt")});
  options.insert(options.end(), gpt.begin(), gpt.end());
  return options;
}

/// How a program ended and what it said.
struct Ended {
  int code = -1;
  std::string output;
  std::string state;  ///< Of its `done` line; empty without one.
  [[nodiscard]] bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
};

inline Ended finish(Job& job) {
  Ended ended;
  ended.code = job.wait(Wait{300000});
  ended.output = job.output();
  if (const auto done = ended.output.rfind("\ndone "); done != std::string::npos)
    if (const auto state = ended.output.find(" state=", done); state != std::string::npos) ended.state = ended.output.substr(state + 7, 16);
  return ended;
}

/// Kills an agent. Its guard ends what the agent had started, and the end of its output says nothing of that: returns when all of it has ended, so that
/// nobody writes to its files any more.
inline Ended kill_with_all(Job& agent) {
  const std::vector<Watch> children = agent.children();
  agent.signal(SIGKILL);
  Ended ended = finish(agent);
  for (const Watch& child : children)
    if (!child.ended(Wait{60000})) throw std::runtime_error{"a process of a killed agent has not ended"};
  return ended;
}

/// Starts `program`, a name in build/bin.
inline std::unique_ptr<Job> start(const std::string& program, std::vector<std::string> arguments,
                                  std::map<std::string, std::string> environment = {}) {
  return std::make_unique<Job>(Job::Setting{.arguments = std::move(arguments), .environment = std::move(environment), .program = program});
}

/// `program` of `elrun OPTIONS`, or by itself without options, with its output into a pipe of one page: the rank that prints each step
/// stands still about 60 lines after the last one that was read here. So a test acts while the job runs, however slow the test is. Whoever
/// waits for another process of the job meanwhile reads this one too (`finish_together`).
inline std::unique_ptr<Job> start_held(std::vector<std::string> options, const std::string& program,
                                       const std::vector<std::string>& arguments, std::map<std::string, std::string> environment = {}) {
  const std::string shell = "/bin/sh";
  const bool bare = options.empty();
  if (!bare) options.insert(options.end(), {"--no_python", shell});
  options.insert(options.end(), {"-c", R"(exec "$0" "$@" >"$NARROW_PIPE")", program_path(program)});
  options.insert(options.end(), arguments.begin(), arguments.end());
  return std::make_unique<Job>(Job::Setting{
      .arguments = std::move(options), .environment = std::move(environment), .program = bare ? shell : "elrun", .narrow = true});
}

inline std::unique_ptr<Job> start_held_gpt(std::vector<std::string> options, const std::vector<std::string>& gpt,
                                           std::map<std::string, std::string> environment = {}) {
  return start_held(std::move(options), "gpt", gpt, std::move(environment));
}

/// Both to their ends, each of which may wait for the other.
inline std::pair<Ended, Ended> finish_together(Job& first, Job& second) {
  auto other = std::async(std::launch::async, [&second] { return finish(second); });
  Ended ended = finish(first);
  return {std::move(ended), other.get()};
}

/// Runs `program`, a name in build/bin, to its end.
inline Ended run(const std::string& program, std::vector<std::string> arguments, std::map<std::string, std::string> environment = {}) {
  return finish(*start(program, std::move(arguments), std::move(environment)));
}

/// Reads until a line holds `text`; false when the output ended, or a minute was over, before.
inline bool until(Job& job, const std::string& text) { return job.line(text, Wait{60000}).has_value(); }

/// Reads nothing for so long: some time of the job's, in which one that is held goes no further than its pipe is wide.
inline void let_pass(Wait time) { std::this_thread::sleep_for(time); }

/// Reads what comes for so long.
inline void listen(Job& job, Wait time) { (void)job.line("\n", time); }  // no line holds one

}  // namespace elrun::test
