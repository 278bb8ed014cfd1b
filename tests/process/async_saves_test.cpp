// Saves that go on while a job trains, with real processes: whoever dies when, what was sealed is saved, what failed is named, and the job
// ends in the state of a run to which nothing happened.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "tests/support/catch.hpp"
#include "tests/support/checkpoint_root.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/http.hpp"
#include "tests/support/mounted.hpp"
#include "tests/support/property.hpp"

using namespace elrun::test;
using elrun::Rng;
namespace fs = std::filesystem;

namespace {

constexpr unsigned steps = 300;  // the learning rate follows from it

std::vector<std::string> training(const Folder& folder, const std::string& root, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"--async", "--every", "20", "--checkpoint", root});
  return gpt_arguments(folder / "text", steps, more);
}

std::unique_ptr<Job> start_job(const std::string& workers, const std::vector<std::string>& gpt) {
  return start_held_gpt({"--nproc_per_node", workers, "--max_restarts", "20"}, gpt);
}

std::string undisturbed(const Folder& folder) {
  const Ended ended = run("gpt", gpt_arguments(folder / "text", steps));
  REQUIRE(ended.code == 0);
  return ended.state;
}

std::string tail(const std::string& text) { return text.substr(text.size() > 6000 ? text.size() - 6000 : 0); }

/// The process that writes checkpoints; there is one from the first save on.
pid_t writer_of(const Job& job) {
  const auto found = job.children_named("elrun-ckptd");
  return found.empty() ? -1 : found.front();
}

void kill_workers(const Job& job) {
  for (const pid_t pid : job.children_named("gpt")) ::kill(pid, SIGKILL);
}

/// Waits for a commit while the workers stand still: the job goes on from the step after `sign`, whenever its writer gets to run.
bool commits_after(Job& job, const std::string& sign) {
  if (!until(job, sign)) return false;
  const auto workers = job.children_named("gpt");
  for (const pid_t pid : workers) ::kill(pid, SIGSTOP);
  const bool committed = job.says("committed") || until(job, "committed");
  for (const pid_t pid : workers) ::kill(pid, SIGCONT);
  return committed;
}

bool is_committed(const std::string& root, unsigned step) {
  const std::string begin = "s" + std::string(12 - std::to_string(step).size(), '0') + std::to_string(step) + ".";
  for (const auto& entry : fs::directory_iterator{root + "/ckpt"})
    if (entry.path().filename().string().starts_with(begin) && fs::exists(entry.path() / "COMMIT")) return true;
  return false;
}

void ends_as(Job& job, const std::string& state) {
  const Ended ended = finish(job);
  INFO(tail(ended.output));
  CHECK(ended.code == 0);
  CHECK(ended.state == state);
}

/// A rendezvous of its own, which no node's end or sleep concerns, and nodes of one worker each.
struct Meeting {
  std::string port = std::to_string(free_port());
  std::unique_ptr<Job> store = start("elrun", {"store", "--host", "127.0.0.1", "--port", port});
  [[nodiscard]] std::unique_ptr<Job> start_node(const std::string& rank, const std::vector<std::string>& gpt) const {
    return start_held_gpt({"--nnodes", "1:2", "--node_rank", rank, "--nproc_per_node", "1", "--max_restarts", "5", "--rdzv_backend", "c10d",
                           "--rdzv_conf", "is_host=0", "--rdzv_endpoint", "127.0.0.1:" + port},
                          gpt);
  }
};

}  // namespace

TEST_CASE("asynchronous saves: the same state at every world size and placement, and the final checkpoint is there", "[golden]") {
  const Folder folder;
  const std::string state = undisturbed(folder);
  for (const char* workers : {"1", "2", "3"})
    for (const char* zero : {"0", "1", "3"}) {
      const Folder checkpoints;
      const std::string root = checkpoints / "ck";
      const Ended ended = run("elrun", under_elrun({"--nproc_per_node", workers}, training(folder, root, {"--zero", zero})));
      INFO(workers << " workers, zero " << zero << "\n" << tail(ended.output));
      CHECK(ended.code == 0);
      CHECK(ended.state == state);
      CHECK(ended.says("[elrun ckptd"));  // it commits
      CHECK_FALSE(ended.says("could not be saved"));
      CHECK(is_committed(root, steps));
    }
}

TEST_CASE("without elrun there is nobody who writes: saves block, that is said once, and the state is the same", "[golden]") {
  const Folder folder;
  const Folder checkpoints;
  const std::string root = checkpoints / "ck";
  const Ended ended = run("gpt", training(folder, root));
  INFO(tail(ended.output));
  CHECK(ended.code == 0);
  CHECK(ended.state == undisturbed(folder));
  const auto first = ended.output.find("saves are not asynchronous");
  CHECK(first != std::string::npos);
  CHECK(ended.output.find("saves are not asynchronous", first + 1) == std::string::npos);
  CHECK(is_committed(root, steps));
}

TEST_CASE("what workers have sealed is saved although all of them are killed, and the job goes on from it", "[golden]") {
  const Folder folder;
  const Folder checkpoints;
  const std::string root = checkpoints / "ck", state = undisturbed(folder);
  const auto job = start_job("2", training(folder, root, {"--every", "140"}));
  REQUIRE(until(*job, "step=1 "));
  const pid_t writer = writer_of(*job);
  REQUIRE(writer > 0);
  ::kill(writer, SIGSTOP);
  REQUIRE(until(*job, "step=145 "));  // the copies of step 140 are whole: the update after it has waited for them
  REQUIRE_FALSE(job->says("committed"));
  kill_workers(*job);
  ::kill(writer, SIGCONT);
  CHECK(until(*job, "going on from checkpoint s000000000140."));
  ends_as(*job, state);
}

TEST_CASE("the writer is killed: its save failed by name, the next one succeeds", "[golden]") {
  const Folder folder;
  const Folder checkpoints;
  const std::string root = checkpoints / "ck", state = undisturbed(folder);
  const auto job = start_job("2", training(folder, root, {"--every", "140"}));
  REQUIRE(until(*job, "step=1 "));
  const pid_t writer = writer_of(*job);
  REQUIRE(writer > 0);
  ::kill(writer, SIGSTOP);
  REQUIRE(until(*job, "step=145 "));  // that of step 140 was handed over
  ::kill(writer, SIGKILL);
  // The agent says one, a worker the other.
  for (const std::string& said :
       {"elrun ckptd (pid " + std::to_string(writer) + ") ended by", std::string{"could not be saved, training goes on: "}})
    CHECK((job->says(said) || until(*job, said)));
  CHECK(job->says("elrun ckptd of this node ended"));
  CHECK(until(*job, "committed"));
  ends_as(*job, state);
}

TEST_CASE("the agent is killed: its workers and its writer end with it, and the job goes on from what is there", "[golden]") {
  const Folder folder;
  const Folder checkpoints;
  const std::string root = checkpoints / "ck", state = undisturbed(folder);
  {
    const auto job = start_job("2", training(folder, root));
    REQUIRE(commits_after(*job, "step=30 "));
    const Watch writer{writer_of(*job)};
    (void)kill_with_all(*job);
    CHECK(writer.ended(Wait{0}));
  }
  const auto again = start_job("3", training(folder, root));
  CHECK(until(*again, "going on from checkpoint"));
  ends_as(*again, state);
}

TEST_CASE("a full storage costs the saves that meet it, and no more", "[golden]") {
  const Folder folder;
  const Folder checkpoints;
  const std::string root = checkpoints / "ck", state = undisturbed(folder);
  fs::create_directory(root);
  const auto mounted = Mounted::tmpfs(root, "size=16m");
  if (!mounted) return;
  const auto job = start_job("2", training(folder, root));
  REQUIRE(commits_after(*job, "step=30 "));
  { std::ofstream{root + "/full", std::ios::binary} << std::string(16 << 20, 'x'); }  // all that is left
  CHECK(until(*job, "no_space"));
  fs::remove(root + "/full");
  ends_as(*job, state);
  CHECK(is_committed(root, steps));
}

TEST_CASE("a node that is asked to leave saves before it goes, whatever is being written", "[golden]") {
  const Folder folder;
  const Folder checkpoints;
  const std::string root = checkpoints / "ck", state = undisturbed(folder);
  {
    const auto job = start_job("2", training(folder, root));
    REQUIRE(until(*job, "step=45 "));
    job->signal(SIGTERM);
    const Ended ended = finish(*job);
    INFO(tail(ended.output));
    CHECK(ended.code == 128 + SIGTERM);
  }
  const auto again = start_job("2", training(folder, root));
  REQUIRE(until(*again, "going on from checkpoint s"));
  const std::string output = again->output();
  CHECK(std::stoul(output.substr(output.rfind("going on from checkpoint s") + 26, 12)) >= 45);
  ends_as(*again, state);
}

TEST_CASE("saves that come while a writer is frozen are left out, which the log and the metrics say; then it goes on", "[golden]") {
  const Folder folder;
  const Folder checkpoints;
  const std::string root = checkpoints / "ck", state = undisturbed(folder);
  const auto job = start_held_gpt({"--nproc_per_node", "2", "--health_port", "127.0.0.1:0"}, training(folder, root, {"--every", "10"}));
  const auto shown = job->line("health, status and metrics at http://", Wait{60000});
  REQUIRE(shown.has_value());
  const auto port = static_cast<std::uint16_t>(std::stoul(shown->substr(shown->rfind(':') + 1)));
  REQUIRE(until(*job, "step=1 "));
  const pid_t writer = writer_of(*job);
  REQUIRE(writer > 0);
  ::kill(writer, SIGSTOP);
  REQUIRE(until(*job, " is left out, for the one before it is still being written"));
  // The workers have told the agent, which hears it at some time.
  const auto says = [&](const char* page, const std::string& text) {
    for (int looks = 0; looks < 3000; ++looks, std::this_thread::sleep_for(std::chrono::milliseconds{10}))
      if (http_get(port, page).find(text) != std::string::npos) return true;
    return false;
  };
  CHECK(says("/statusz", "\"left_out\""));
  const std::string metrics = http_get(port, "/metrics");
  ::kill(writer, SIGCONT);
  INFO(metrics);
  CHECK(metrics.find("\nelrun_saves_left_out_total ") != std::string::npos);
  CHECK(metrics.find("\nelrun_saves_left_out_total 0\n") == std::string::npos);
  ends_as(*job, state);
  CHECK(is_committed(root, steps));
}

TEST_CASE("a node that leaves does not wait for a writer that is frozen: after ten seconds it saves itself", "[golden]") {
  const Folder folder;
  const Folder checkpoints;
  const std::string root = checkpoints / "ck", state = undisturbed(folder);
  {
    const auto job = start_job("2", training(folder, root, {"--every", "140"}));
    REQUIRE(until(*job, "step=1 "));
    const pid_t writer = writer_of(*job);
    REQUIRE(writer > 0);
    ::kill(writer, SIGSTOP);
    REQUIRE(until(*job, "step=145 "));  // the save of step 140 was handed over
    job->signal(SIGTERM);
    const Ended ended = finish(*job);
    INFO(tail(ended.output));
    CHECK(ended.code == 128 + SIGTERM);
  }
  const auto again = start_job("2", training(folder, root));
  REQUIRE(until(*again, "going on from checkpoint s"));
  const std::string output = again->output();
  CHECK(std::stoul(output.substr(output.rfind("going on from checkpoint s") + 26, 12)) >= 145);
  ends_as(*again, state);
}

TEST_CASE("saves by time, within a budget and with a bound on bytes per second: the same state", "[golden]") {
  const Folder folder;
  const std::string state = undisturbed(folder);
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{"--every-seconds", "1", "--every", "0"}, {"--save-budget", "0.2", "--every", "0"}, {"--save-rate", "1"}}) {
    const Folder checkpoints;
    const std::string root = checkpoints / "ck";
    const Ended ended = run("elrun", under_elrun({"--nproc_per_node", "3"}, training(folder, root, how)));
    INFO(how[0] << "\n" << tail(ended.output));
    CHECK(ended.code == 0);
    CHECK(ended.state == state);
    if (how[0] != "--every-seconds") CHECK(ended.says("[elrun ckptd"));  // all steps may take less than a second
    CHECK(is_committed(root, steps));
  }
}

TEST_CASE("two nodes save together, and a writer that is killed beside the leader's costs that save alone", "[golden]") {
  const Folder folder;
  const Folder checkpoints;
  const std::string root = checkpoints / "ck", state = undisturbed(folder);
  const Meeting meeting;
  const auto first = meeting.start_node("0", training(folder, root)), second = meeting.start_node("1", training(folder, root));
  REQUIRE(commits_after(*first, "step=30 "));
  const pid_t writer = writer_of(*second);
  REQUIRE(writer > 0);
  ::kill(writer, SIGKILL);
  ends_as(*first, state);
  CHECK(finish(*second).code == 0);
  CHECK(is_committed(root, steps));
}

TEST_CASE("a leader that was frozen while it saved, and thaws after a later generation has saved, changes nothing", "[golden]") {
  if (std::getenv("ELRUN_FULL") == nullptr) {
    WARN("SKIPPED: it waits for a minute, ELRUN_FULL=1 runs it");
    return;
  }
  const Folder folder;
  const Folder checkpoints;
  const std::string root = checkpoints / "ck", state = undisturbed(folder);
  const Meeting meeting;
  const std::vector<std::string> gpt = training(folder, root, {"--every", "140", "--zero", "0"});
  const auto frozen = meeting.start_node("0", gpt), other = meeting.start_node("1", gpt);
  REQUIRE(until(*frozen, "step=1 "));
  const pid_t writer = writer_of(*frozen);
  REQUIRE(writer > 0);
  ::kill(writer, SIGSTOP);
  REQUIRE(until(*frozen, "step=145 "));
  REQUIRE_FALSE(frozen->says("committed"));
  for (const pid_t pid : frozen->children_named("gpt")) ::kill(pid, SIGSTOP);
  frozen->signal(SIGSTOP);
  const Ended ended = finish(*other);
  INFO(tail(ended.output));
  CHECK(ended.code == 0);
  CHECK(ended.state == state);
  CHECK(is_committed(root, steps));
  ::kill(writer, SIGCONT);
  listen(*frozen, Wait{3000});  // alone, as the storage's zombie
  frozen->signal(SIGCONT);
  for (const pid_t pid : frozen->children_named("gpt")) ::kill(pid, SIGCONT);
  (void)finish(*frozen);
  CHECK_FALSE(is_committed(root, 140));
  const auto again = start_job("2", gpt);
  CHECK(until(*again, "going on from checkpoint s000000000300."));
  ends_as(*again, state);
}

// Each round one job, at world sizes that change with each start of it: everything is killed at random instants. After each kill, and after each end, a start would go on from what
// was acknowledged at any time before, or from a later one.
TEST_CASE("no acknowledged checkpoint is lost and the state is the same when workers, writer or agent are killed during saves",
          "[golden]") {
  const Folder folder;
  const std::string state = undisturbed(folder);
  const std::uint64_t rounds = std::getenv("ELRUN_FULL") != nullptr ? 20 : 4;  // 200 of them then
  for_all_seeds(rounds, [&](Rng& rng) {
    const Folder checkpoints;
    const std::string root = checkpoints / "ck", zero = std::to_string(rng.below(4)), every = std::to_string(3 + rng.below(12));
    std::string all;
    Ended ended;
    std::uint64_t promised = 0;
    const auto loses_nothing = [&] {
      promised = std::max(promised, acknowledged(root));
      goes_on(root, promised);
    };
    for (unsigned life = 0; life < 8; ++life) {
      const auto job = start_job(std::to_string(1 + rng.below(6)), training(folder, root, {"--every", every, "--zero", zero}));
      const bool last = life == 7;
      for (unsigned kills = 0; !last && kills < 3; ++kills) {
        if (!until(*job, "step=")) break;
        listen(*job, Wait{rng.below(600)});
        const auto workers = job->children_named("gpt");
        const auto whom = rng.below(8);
        if (whom == 0) job->signal(SIGKILL);
        else if (whom <= 2) kill_workers(*job);
        else if (const pid_t writer = writer_of(*job); whom <= 4 && writer > 0) ::kill(writer, SIGKILL);
        else if (!workers.empty()) ::kill(workers[rng.below(workers.size())], SIGKILL);
        loses_nothing();
        if (whom == 0) break;
      }
      ended = finish(*job);
      all += ended.output;
      loses_nothing();
      if (ended.code == 0) break;
    }
    INFO("zero " << zero << ", every " << every << "\n" << tail(all));
    CHECK(ended.code == 0);
    CHECK(promised == steps);
    // The worker that prints the state was killed when all had decided that the job is over: it counts as done. Another start shows what the final checkpoint holds.
    if (ended.state.empty()) ended = run("elrun", under_elrun({"--nproc_per_node", "2"}, training(folder, root, {"--zero", zero})));
    CHECK(ended.state == state);
    CHECK(run("elrun", {"ckpt", "verify", root}).code == 0);
  });
}
