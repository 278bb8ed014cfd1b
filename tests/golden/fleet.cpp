#include "tests/golden/fleet.hpp"

#include <algorithm>
#include <csignal>
#include <functional>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/support/gpt_job.hpp"

namespace elrun::golden {
namespace {

using test::Job;
using Time = std::chrono::steady_clock::time_point;
constexpr auto now = std::chrono::steady_clock::now;

constexpr Wait patience{120'000};      // without a step, or to the end of what has no more to do
constexpr Wait late_patience{10'000};  // for an agent that came when the job was about to end
constexpr unsigned agents_max = 3;     // at one time: two in the world, and a spare

Wait since(Time begin) { return std::chrono::duration_cast<Wait>(now() - begin); }

std::vector<std::string> arguments_of(const Training& training, const Setting& setting, const std::string& checkpoints) {
  std::vector<std::string> more;
  for (const Choice& choice : setting.options) more.insert(more.end(), choice.begin(), choice.end());
  if (setting.checkpoint_every > 0)
    more.insert(more.end(), {"--checkpoint", checkpoints, "--every", std::to_string(setting.checkpoint_every)});
  return test::gpt_arguments(training.text, training.steps, more);
}

struct Agent {
  unsigned rank = 0;
  std::unique_ptr<Job> job;
  std::size_t looked = 0;     // so much of its output was read
  bool leaves = false;        // it was killed, or asked to go
  bool was_member = false;    // of any generation
  std::optional<int> code{};  // of its end
  [[nodiscard]] bool lives() const { return !leaves && !code; }
};

struct Later {
  Time when;
  std::function<void()> act;
};

/// One history, from its first agent to its end: a script with a method per thing that can happen. Its fields are the agents, stores and
/// clocks of the script, and nothing outlives run().
class Fleet {
 public:
  Fleet(const Training& training, const History& history) : training_{training}, history_{history}, setting_{history.setting} {}

  Ending run() {
    begin();
    while (ending_.wrong.empty() && !over_) {
      look();
      if (!over_) happen();
      if (since(last_step_) > patience) wrong(fmt::format("no step was decided for {} s", patience.count() / 1000));
      std::this_thread::sleep_for(Wait{1});
    }
    if (ending_.wrong.empty()) end();
    ending_.took = since(begin_);
    for (const auto& agent : agents_)
      ending_.outputs.emplace_back(fmt::format("agent {} ({})", agent->rank, agent->job->pid()), agent->job->output());
    for (const auto& store : stores_) ending_.outputs.emplace_back(fmt::format("store ({})", store->pid()), store->output());
    return std::move(ending_);
  }

 private:
  void wrong(const std::string& why) {
    if (ending_.wrong.empty()) ending_.wrong = why;
  }
  void note(const std::string& what) {
    ending_.trace.push_back(fmt::format("{:6} ms, step {:4}: {}", since(begin_).count(), newest_, what));
  }
  [[nodiscard]] bool alone() const { return setting_.agents == 1 && !setting_.coordinator_apart; }

  void begin() {
    if (setting_.coordinator_apart) start_store();
    for (unsigned rank = 0; rank < setting_.agents; ++rank) {
      start_agent(rank);
      if (rank == 0 && !setting_.coordinator_apart && !alone() && !agents_.front()->job->line("serving the rendezvous", patience))
        wrong("the first agent does not serve the rendezvous");
    }
    last_step_ = now();
  }

  void start_store() {
    stores_.push_back(std::make_unique<Job>(
        Job::Setting{.arguments = {"store", "--host", "127.0.0.1", "--port", port_, "--checkpoint_root", checkpoints()}}));
    if (!stores_.back()->line("serving", patience)) wrong("the store does not serve");
  }

  void start_agent(unsigned rank) {
    std::vector<std::string> arguments{"--nproc_per_node", std::to_string(setting_.workers - (rank == 1 ? setting_.fewer : 0)),
                                       "--max_restarts", "1000"};
    if (!alone()) {
      arguments.insert(arguments.end(),
                       {"--nnodes", (history_.events.empty() ? "" : "1:") + std::to_string(setting_.agents), "--node_rank",
                        std::to_string(rank), "--rdzv_backend", "c10d", "--rdzv_endpoint", "127.0.0.1:" + port_, "--rdzv_conf",
                        std::string{"last_call_timeout=1"} + (setting_.coordinator_apart ? ",is_host=0" : "")});
    }
    arguments.insert(arguments.end(), {"--no_python", test::program_path("gpt")});
    const auto program = arguments_of(training_, setting_, checkpoints());
    arguments.insert(arguments.end(), program.begin(), program.end());
    agents_.push_back(std::make_unique<Agent>(
        Agent{.rank = rank,
              .job = std::make_unique<Job>(Job::Setting{
                  .arguments = std::move(arguments),
                  .environment = {{"ELRUN_TRANSPORT", setting_.transport}, {"OMP_NUM_THREADS", std::to_string(setting_.threads)}}})}));
  }

  [[nodiscard]] std::string checkpoints() const { return folder_.path() + "/checkpoints"; }

  /// Reads what all have said.
  void look() {
    for (const auto& agent : agents_) {
      const int code = agent->job->wait(Wait{0});
      read(*agent);
      if (code == -1 || agent->code) continue;
      agent->code = code;
      if (!agent->leaves && code != 0) wrong(fmt::format("agent {} ({}) ended with {}", agent->rank, agent->job->pid(), code));
      over_ |= !agent->leaves && code == 0;
    }
    for (const auto& store : stores_) (void)store->wait(Wait{0});
  }

  void read(Agent& agent) {
    const std::string& said = agent.job->output();
    for (std::size_t end; (end = said.find('\n', agent.looked)) != std::string::npos;) {
      const std::string line = said.substr(agent.looked, end - agent.looked);
      agent.looked = end + 1;
      if (line.starts_with("step=")) {
        last_step_ = now();
        newest_ = static_cast<unsigned>(std::stoul(line.substr(5)));
        furthest_ = std::max(furthest_, newest_);
      } else if (line.starts_with("done ")) {
        over_ = true;
        const auto state = line.find(" state=");
        states_.push_back(state == std::string::npos ? line : line.substr(state + 7, 16));
      } else if (const std::int64_t generation = test::generation_in(line); generation > 0) {
        agent.was_member = true;
        ending_.generations = std::max(ending_.generations, static_cast<unsigned>(generation));
      }
    }
  }

  [[nodiscard]] std::vector<Agent*> living() const {
    std::vector<Agent*> out;
    for (const auto& agent : agents_)
      if (agent->lives()) out.push_back(agent.get());
    return out;
  }
  [[nodiscard]] std::vector<pid_t> workers() const {
    std::vector<pid_t> out;
    for (const Agent* agent : living())
      for (const pid_t pid : agent->job->children_named("gpt")) out.push_back(pid);
    return out;
  }

  /// What is due: the next event, and what earlier ones put off.
  void happen() {
    const Time time = now();
    for (std::size_t i = 0; i < later_.size();) {
      if (later_[i].when > time) {
        ++i;
        continue;
      }
      const auto act = std::move(later_[i].act);
      later_.erase(later_.begin() + static_cast<std::ptrdiff_t>(i));
      act();
    }
    if (next_event_ == history_.events.size()) return;
    const Event& event = history_.events[next_event_];
    if (!ready_since_ && furthest_ >= event.step) ready_since_ = time;
    if (!ready_since_ || time < *ready_since_ + event.after) return;
    ++next_event_;
    ready_since_.reset();
    if (do_to_someone(event)) {
      ++ending_.happened[event.kind];
      disturbed_at_ = furthest_;
    }
  }

  void put_off(Wait wait, std::function<void()> act) { later_.push_back({now() + wait, std::move(act)}); }

  void kill_worker(pid_t pid) {
    note(fmt::format("worker {} killed", pid));
    ::kill(pid, SIGKILL);
  }

  void bring_back(unsigned rank, Wait away) {
    put_off(away, [this, rank] {
      note(fmt::format("agent {} started", rank));
      start_agent(rank);
    });
  }

  void kill_agent(Agent& agent, const Event& event) {
    const bool others = living().size() > 1;
    note(fmt::format("agent {} ({}) killed", agent.rank, agent.job->pid()));
    agent.leaves = true;
    agent.job->signal(SIGKILL);  // its guard ends the workers
    if (event.comes_back || event.kind == Kind::coordinator_killed || !others) bring_back(agent.rank, event.away);
  }

  /// False when nobody is there to whom it could happen.
  bool do_to_someone(const Event& event) {
    const std::vector<Agent*> agents = living();
    std::vector<pid_t> all = workers();
    switch (event.kind) {
      case Kind::worker_killed:
        if (all.empty()) return false;
        kill_worker(all[event.whom % all.size()]);
        return true;
      case Kind::workers_killed:
        if (all.empty()) return false;
        for (std::size_t i = 0; i < all.size(); ++i)
          if ((event.whom >> i) % 2 == 1) kill_worker(all[i]);
        return event.whom % (std::uint64_t{1} << all.size()) != 0;
      case Kind::worker_paused: {
        if (all.empty()) return false;
        const pid_t pid = all[event.whom % all.size()];
        note(fmt::format("worker {} paused", pid));
        ::kill(pid, SIGSTOP);
        put_off(event.away, [this, pid] {
          note(fmt::format("worker {} goes on", pid));
          ::kill(pid, SIGCONT);
        });
        return true;
      }
      case Kind::agent_killed:
        if (agents.empty()) return false;
        kill_agent(*agents[event.whom % agents.size()], event);
        return true;
      case Kind::agent_drained: {
        if (agents.size() < 2) return false;
        Agent& agent = *agents[event.whom % agents.size()];
        note(fmt::format("agent {} ({}) asked to go", agent.rank, agent.job->pid()));
        agent.leaves = true;
        agent.job->signal(SIGTERM);
        if (event.comes_back) bring_back(agent.rank, event.away);
        return true;
      }
      case Kind::agent_joins:
        if (agents.size() >= agents_max) return false;
        note(fmt::format("agent {} started", setting_.agents));
        start_agent(setting_.agents);
        return true;
      case Kind::coordinator_killed:
        if (setting_.coordinator_apart) {
          if (store_away_) return false;
          note("coordinator killed");
          stores_.back()->signal(SIGKILL);
          (void)stores_.back()->wait(patience);
          store_away_ = true;
          put_off(event.away, [this] {
            note("coordinator started");
            store_away_ = false;
            start_store();
          });
          return true;
        }
        for (Agent* agent : agents)
          if (agent->job->says("serving the rendezvous") || alone()) return kill_agent(*agent, event), true;
        return false;
    }
    return false;
  }

  /// The job is over: whoever was in the world ends with 0.
  void end() {
    const Time over = now();
    note("the job is over");
    later_.clear();
    const auto left = [&] { return std::count_if(agents_.begin(), agents_.end(), [&](const auto& agent) { return !agent->code; }); };
    while (left() > 0 && since(over) < patience && ending_.wrong.empty()) {
      look();
      for (const auto& agent : agents_) {
        if (agent->code || agent->was_member || agent->leaves || since(over) < late_patience) continue;
        note(fmt::format("agent {} ({}) came too late, and is killed", agent->rank, agent->job->pid()));
        agent->leaves = true;
        agent->job->signal(SIGKILL);
      }
      std::this_thread::sleep_for(Wait{1});
    }
    for (const auto& agent : agents_)
      if (!agent->code) wrong(fmt::format("agent {} ({}) does not end", agent->rank, agent->job->pid()));
    for (const auto& agent : agents_) (void)agent->job->wait(patience), read(*agent);
    if (states_.size() > 1) wrong(fmt::format("the end was told {} times: {}", states_.size(), fmt::join(states_, ", ")));
    if (!states_.empty()) ending_.state = states_.front();
    // Who would have told it may have been killed after all had decided that the job is over, if that was near.
    if (states_.empty() && disturbed_at_ < training_.steps / 4 * 3) wrong("nobody told the end");
  }

  const Training& training_;
  const History& history_;
  const Setting& setting_;
  test::TemporaryDirectory folder_;
  std::string port_ = std::to_string(test::free_port());
  std::vector<std::unique_ptr<Job>> stores_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::vector<Later> later_;
  std::vector<std::string> states_;
  std::size_t next_event_ = 0;
  std::optional<Time> ready_since_;
  Time begin_ = now(), last_step_{};
  unsigned newest_ = 0, furthest_ = 0, disturbed_at_ = 0;
  bool over_ = false, store_away_ = false;
  Ending ending_;
};

}  // namespace

Ending run_bare(const Training& training, const Setting& setting) {
  Job job{{.arguments = arguments_of(training, setting, ""),
           .environment = {{"OMP_NUM_THREADS", std::to_string(setting.threads)}},
           .program = "gpt"}};
  Ending ending;
  const int code = job.wait(patience);
  const std::string& said = job.output();
  if (const auto at = said.rfind(" state="); at != std::string::npos) ending.state = said.substr(at + 7, 16);
  if (code != 0) ending.wrong = fmt::format("the program alone ended with {}", code);
  ending.outputs.emplace_back("gpt", said);
  return ending;
}

Ending run_undisturbed(const Training& training, const Setting& setting) {
  return run_history(training, {.seed = 0, .setting = setting, .events = {}});
}

Ending run_history(const Training& training, const History& history) { return Fleet{training, history}.run(); }

}  // namespace elrun::golden
