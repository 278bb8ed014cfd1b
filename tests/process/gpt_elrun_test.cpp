// The promise of the project, with real processes: whatever happens to the world, the job ends with exit code 0 and in
// the state of a run to which nothing happened.

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "lib/base/fd.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/property.hpp"

using namespace elrun::test;
using elrun::Fd;
using elrun::Rng;

namespace {

std::string undisturbed(const Folder& folder, unsigned steps) {
  const Ended ended = run("gpt", gpt_arguments(folder / "text", steps));
  INFO(ended.output);
  REQUIRE(ended.code == 0);
  REQUIRE(ended.state.size() == 16);
  return ended.state;
}

std::string tail(const std::string& text) { return text.substr(text.size() > 6000 ? text.size() - 6000 : 0); }

/// A process's end of a TCP connection, taken out of it; nothing when there is none, or it may not be taken.
Fd connection_of(pid_t pid) {
  const Fd process{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/" + std::to_string(pid) + "/fd"}) {
    Fd copy{static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), std::stoi(entry.path().filename()), 0))};
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    if (copy && ::getpeername(copy.get(), reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.sin_family == AF_INET) return copy;
  }
  return Fd{};
}

/// Memory of other processes, of at least so many bytes, that this one reads where it lies.
bool reads_of_others(pid_t pid, std::size_t bytes) {
  std::ifstream maps{"/proc/" + std::to_string(pid) + "/maps"};
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" r--s ") == line.npos || line.find("/memfd:elrun") == line.npos) continue;
    const std::size_t dash = line.find('-');
    if (std::stoull(line.substr(dash + 1), nullptr, 16) - std::stoull(line.substr(0, dash), nullptr, 16) >= bytes) return true;
  }
  return false;
}

/// Whichever has the rank that prints.
bool until_either(Job& a, Job& b, const std::string& text) {
  for (int look = 0; look < 600; ++look)
    for (Job* job : {&a, &b})
      if (job->line(text, Wait{50}).has_value()) return true;
  return false;
}

/// Reads until a step of this generation or a later one. What takes a dead worker's place joins at the border of a step, and a worker that
/// is killed just then ends that generation, too, before any of its steps.
bool until_generation(Job& job, unsigned least) {
  const std::string mark = "generation=";
  while (const auto line = job.line(mark, Wait{60000}))
    if (std::stoul(line->substr(line->find(mark) + mark.size())) >= least) return true;
  return false;
}

Wait up_to(Rng& rng, unsigned ms) { return Wait{rng.below(ms + 1)}; }

}  // namespace

TEST_CASE("every world size and placement under elrun ends in the state of a bare run", "[golden]") {
  const Folder folder;
  const std::string state = undisturbed(folder, 12);
  for (const char* workers : {"1", "2", "3", "4"})
    for (const char* zero : {"0", "1", "2", "3"}) {
      if (*zero > '1' && *workers != '3') continue;  // unit tests have the other worlds
      const char* threads = *zero == '0' ? "1" : "2";
      const Ended ended = run("elrun", under_elrun({"--nproc_per_node", workers}, gpt_arguments(folder / "text", 12, {"--zero", zero})),
                              {{"OMP_NUM_THREADS", threads}});
      INFO(workers << " workers, zero " << zero << "\n" << ended.output);
      CHECK(ended.code == 0);
      CHECK(ended.says("world=" + std::string{workers} + " "));
      CHECK(ended.state == state);
    }
}

TEST_CASE("audited and verified in every step: the same state", "[golden]") {
  const Folder folder;
  const std::string state = undisturbed(folder, 12);
  for (const char* workers : {"1", "2", "3"}) {
    const Ended ended = run("elrun", under_elrun({"--nproc_per_node", workers},
                                                 gpt_arguments(folder / "text", 12, {"--audit", "1", "--verify", "1", "--zero", "0"})));
    INFO(workers << " workers\n" << ended.output);
    CHECK(ended.code == 0);
    CHECK(ended.says(" audited\n") == (*workers != '1'));
    CHECK(ended.state == state);
  }
}

TEST_CASE("workers beyond the slots of a step keep shards and change nothing", "[golden]") {
  const Folder folder;
  const std::string state = undisturbed(folder, 3);
  const Ended ended = run("elrun", under_elrun({"--nproc_per_node", "10"}, gpt_arguments(folder / "text", 3)));
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK(ended.state == state);
}

TEST_CASE("any worker killed at any time, twice in one run: the same state", "[golden]") {
  const Folder folder;
  constexpr unsigned steps = 400;
  const std::string state = undisturbed(folder, steps);
  for_all_seeds(4, [&](Rng& rng) {
    const Folder checkpoints;
    const std::string workers = std::to_string(2 + rng.below(3)), zero = std::to_string(rng.below(4));
    const auto job =
        start_held_gpt({"--nproc_per_node", workers, "--max_restarts", "5"},
                       gpt_arguments(folder / "text", steps, {"--zero", zero, "--every", "20", "--checkpoint", checkpoints / "ck"}));
    const std::string second = "generation 2: ";  // of the agent: the world may grow again before a step of that generation is decided
    unsigned killed = 0;
    for (const std::string& sign : {"step=" + std::to_string(1 + rng.below(180)) + " ", second}) {
      const bool seen = until(*job, sign);
      INFO(sign << " did not come\n" << tail(job->output()));
      REQUIRE(seen);
      let_pass(up_to(rng, 150));  // any time: within a step, a save, a restart
      const auto living = job->children_named("gpt");
      if (!living.empty()) killed += ::kill(living[rng.below(living.size())], SIGKILL) == 0;
    }
    const Ended ended = finish(*job);
    INFO(workers << " workers, zero " << zero << "\n" << tail(ended.output));
    CHECK(killed >= 1);  // a worker may be between two lives when its turn comes
    CHECK(ended.code == 0);
    CHECK(ended.state == state);
    CHECK(ended.says(second));
  });
}

TEST_CASE("weights and gradients that peers read in place: workers killed while they do, and the same state", "[golden]") {
  const Folder folder;
  constexpr unsigned steps = 220;
  constexpr std::size_t model_bytes = 1'500'000;  // nothing else that workers map of each other is as large
  const std::vector<std::string> large{"--channels", "128", "--layers", "2", "--context", "16"};
  const auto arguments = [&](std::vector<std::string> more) {
    more.insert(more.begin(), large.begin(), large.end());
    return gpt_arguments(folder / "text", steps, more);
  };
  const Ended alone = run("gpt", arguments({}));
  REQUIRE(alone.code == 0);
  for_all_seeds(3, [&](Rng& rng) {
    const Folder checkpoints;
    const std::string zero = std::to_string(rng.below(2));
    const auto job = start_held_gpt({"--nproc_per_node", "3", "--max_restarts", "5"},
                                    arguments({"--zero", zero, "--every", "20", "--checkpoint", checkpoints / "ck"}));
    /// Between two generations nobody does.
    const auto somebody_reads = [&] {
      for (int look = 0; look < 12'000; ++look, let_pass(Wait{5}))
        if (std::ranges::any_of(job->children_named("gpt"), [](pid_t pid) { return reads_of_others(pid, model_bytes); })) return true;
      return false;
    };
    unsigned killed = 0;
    for (const std::string& sign : {"step=" + std::to_string(2 + rng.below(40)) + " ", std::string{"generation 2: "}}) {
      REQUIRE(until(*job, sign));
      CHECK(somebody_reads());
      let_pass(up_to(rng, 40));  // much of the time of these steps is exchange
      const auto living = job->children_named("gpt");
      if (!living.empty()) killed += ::kill(living[rng.below(living.size())], SIGKILL) == 0;
    }
    REQUIRE(until_generation(*job, 3));
    CHECK(somebody_reads());
    const Ended ended = finish(*job);
    INFO("zero " << zero << "\n" << tail(ended.output));
    CHECK(killed >= 1);  // a worker may be between two lives when its turn comes
    CHECK(ended.code == 0);
    CHECK(ended.state == alone.state);
  });
}

TEST_CASE("replicated state: the survivors of a kill keep their processes, and what they know to be decided is not done again",
          "[golden]") {
  const Folder folder;
  constexpr unsigned steps = 300;
  const std::string state = undisturbed(folder, steps);
  for_all_seeds(3, [&](Rng& rng) {
    const auto job = start_held_gpt({"--nproc_per_node", "3"}, gpt_arguments(folder / "text", steps, {"--zero", "0"}));
    REQUIRE(until(*job, "step=" + std::to_string(2 + rng.below(100)) + " "));
    const auto before = job->children_named("gpt");
    REQUIRE(before.size() == 3);
    const pid_t victim = before[rng.below(3)];
    let_pass(up_to(rng, 30));
    REQUIRE(::kill(victim, SIGKILL) == 0);
    REQUIRE(until_generation(*job, 2));
    // The generation may begin while the kernel still frees the victim's memory. Its successor starts after that.
    auto after = job->children_named("gpt");
    const auto is_whole = [&] { return after.size() == 3 && std::ranges::find(after, victim) == after.end(); };
    for (int look = 0; look < 6000 && !is_whole(); ++look, let_pass(Wait{10})) after = job->children_named("gpt");
    REQUIRE(is_whole());
    for (const pid_t pid : before) CHECK((std::find(after.begin(), after.end(), pid) != after.end()) == (pid != victim));
    const Ended ended = finish(*job);
    INFO(tail(ended.output));
    CHECK(ended.code == 0);
    CHECK(ended.state == state);
    CHECK(ended.says("2 go on here in the same process"));
    // What a survivor knows to be decided is not done again. What only the killed rank knew is, with the same bits, and is printed
    // twice if that was rank 0, which prints.
    unsigned twice = 0;
    for (unsigned step = 1; step <= steps; ++step) {
      const std::string line = "\nstep=" + std::to_string(step) + " ";
      const auto at = ended.output.find(line);
      const auto again = at == std::string::npos ? at : ended.output.find(line, at + 1);
      if (again == std::string::npos) continue;
      const auto result = [&](std::size_t from) { return ended.output.substr(from, ended.output.find(" world=", from) - from); };
      CHECK(result(at) == result(again));
      ++twice;
    }
    CHECK(twice <= (ended.says("error: rank 0 (node ") ? 1 : 0));
  });
}

TEST_CASE("where a step takes longer than a start, the others wait for the successor, and the world changes once", "[golden]") {
  const Folder folder;
  constexpr unsigned steps = 4;
  const std::string state = undisturbed(folder, steps);
  // Steps of 5 s, so that a start on a busy machine takes less.
  const auto job = start_held_gpt({"--nproc_per_node", "2"}, gpt_arguments(folder / "text", steps, {"--zero", "0", "--slot-ms", "1250"}));
  REQUIRE(until(*job, "step=2 "));
  const auto workers = job->children_named("gpt");
  REQUIRE(workers.size() == 2);
  REQUIRE(::kill(workers[1], SIGKILL) == 0);
  const Ended ended = finish(*job);
  INFO(tail(ended.output));
  CHECK(ended.code == 0);
  CHECK(ended.state == state);
  CHECK(ended.says("generation 2: 1 node, 2 workers, 1 goes on here in the same process, 1 that was started meanwhile joins"));
  CHECK_FALSE(ended.says("generation 3: "));
}

TEST_CASE("state that every node has all of: a node's workers are killed, and nothing is done again", "[golden]") {
  const Folder folder;
  constexpr unsigned steps = 300;
  const std::string state = undisturbed(folder, steps);
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const auto agent = [&](const char* rank, const char* workers) {  // unequal nodes, no checkpoints
    return start_held_gpt(
        {"--nnodes", "2", "--nproc_per_node", workers, "--node_rank", rank, "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint},
        gpt_arguments(folder / "text", steps, {"--zero", "hybrid3"}));
  };
  const auto first = agent("0", "2"), second = agent("1", "1");
  REQUIRE(until(*first, "step=50 "));
  const auto victims = second->children_named("gpt");
  REQUIRE(victims.size() == 1);
  REQUIRE(::kill(victims[0], SIGKILL) == 0);
  const auto [ended, other] = finish_together(*first, *second);
  INFO(tail(ended.output) << "\n--- second\n" << tail(other.output));
  CHECK(ended.code == 0);
  CHECK(other.code == 0);
  CHECK(ended.state == state);
  CHECK(ended.says("world=3 generation=2"));
  CHECK(ended.says("hybrid(zero(3))"));
  CHECK_FALSE(ended.says("was lost"));
  CHECK_FALSE(ended.says("begins the job again"));
}

TEST_CASE("mirrored state: a worker or all workers of a node are killed, twice in one run, and no decided step is lost", "[golden]") {
  const Folder folder;
  constexpr unsigned steps = 300;
  const std::string state = undisturbed(folder, steps);
  for_all_seeds(std::getenv("ELRUN_FULL") != nullptr ? 20 : 3, [&](Rng& rng) {  // 200 of them then
    const std::string endpoint = "127.0.0.1:" + std::to_string(free_port()), stage = std::to_string(1 + rng.below(3));
    const std::string workers[] = {std::to_string(1 + rng.below(3)), std::to_string(1 + rng.below(3))};
    std::unique_ptr<Job> agents[2];
    for (const unsigned i : {0u, 1u})  // no checkpoints: what is lost begins from nothing
      agents[i] = start_held_gpt({"--nnodes", "2", "--nproc_per_node", workers[i], "--node_rank", std::to_string(i), "--rdzv_backend",
                                  "c10d", "--rdzv_endpoint", endpoint, "--max_restarts", "5"},
                                 gpt_arguments(folder / "text", steps, {"--zero", "mirrored" + stage}));
    unsigned killed = 0;
    // The second time after a step of the new world: until then it may be that one worker alone has what the dead ones had.
    for (const std::string& sign : {"step=" + std::to_string(2 + rng.below(100)) + " ", std::string{"recovered: "}}) {
      REQUIRE(until_either(*agents[0], *agents[1], sign));
      let_pass(up_to(rng, 150));
      const auto living = agents[rng.below(2)]->children_named("gpt");
      if (living.empty()) continue;
      const bool all = rng.chance(0.5);
      for (const pid_t pid : all ? living : std::vector{living[rng.below(living.size())]}) killed += ::kill(pid, SIGKILL) == 0;
    }
    const auto [ended, other] = finish_together(*agents[0], *agents[1]);
    INFO(workers[0] << " and " << workers[1] << " workers, mirrored" << stage << "\n"
                    << tail(ended.output) << "\n--- second\n"
                    << tail(other.output));
    CHECK(killed >= 1);
    for (const Ended* end : {&ended, &other}) {
      CHECK(end->code == 0);
      CHECK_FALSE(end->says("was lost with "));
      CHECK_FALSE(end->says("begins the job again"));
    }
    CHECK((ended.state.empty() ? other : ended).state == state);  // where rank 0 is
    CHECK((ended.says("generation 2: ") || other.says("generation 2: ")));
    CHECK(ended.says("mirrored(zero(" + stage + ")): no decided step is lost with one worker or one node"));
  });
}

TEST_CASE("mirrored state: both holders of a shard are killed at once, and the job says so and goes on from its checkpoint", "[golden]") {
  const Folder folder;
  constexpr unsigned steps = 300;
  const std::string state = undisturbed(folder, steps);
  const unsigned nodes = GENERATE(1u, 2u);
  const Folder checkpoints;
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  std::vector<std::unique_ptr<Job>> agents;
  for (unsigned i = 0; i < nodes; ++i) {
    std::vector<std::string> options{"--nproc_per_node", std::to_string(4 / nodes), "--max_restarts", "5"};
    if (nodes > 1)
      options.insert(options.end(),
                     {"--nnodes", "2", "--node_rank", std::to_string(i), "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint});
    agents.push_back(start_held_gpt(
        options, gpt_arguments(folder / "text", steps, {"--zero", "mirrored1", "--every", "20", "--checkpoint", checkpoints / "ck"})));
  }
  REQUIRE(until(*agents[0], "step=50 "));
  std::vector<pid_t> holders;
  for (const char* rank : {"1", "3"}) {  // of four ranks, those that are two apart have the same shard
    const std::string mark = std::string{"\0RANK=", 6} + rank + '\0';
    for (const auto& agent : agents)
      for (const pid_t pid : agent->children_named("gpt"))
        if (text_of_process(std::to_string(pid), "environ").find(mark) != std::string::npos) holders.push_back(pid);
  }
  REQUIRE(holders.size() == 2);
  for (const int signal : {SIGSTOP, SIGKILL})  // neither gives anybody its shard when the other one is gone
    for (const pid_t pid : holders) REQUIRE(::kill(pid, signal) == 0);
  const auto [ended, other] = nodes > 1 ? finish_together(*agents[0], *agents[1]) : std::pair{finish(*agents[0]), Ended{.code = 0}};
  INFO(nodes << " node(s)\n" << tail(ended.output) << "\n--- second\n" << tail(other.output));
  CHECK(ended.code == 0);
  CHECK(other.code == 0);
  CHECK(ended.state == state);
  const auto lost = ended.output.find("part of the state of step ");
  REQUIRE(lost != std::string::npos);
  const std::string line = ended.output.substr(lost, ended.output.find('\n', lost) - lost);
  INFO(line);
  CHECK(line.find(" was lost with rank 1 (node ") != std::string::npos);
  CHECK(line.find(" and rank 3 (node ") != std::string::npos);
  CHECK(line.find("of generation 1@") != std::string::npos);
  CHECK(line.ends_with("all go back to the newest checkpoint, or to the beginning"));
  CHECK(ended.says("going on from checkpoint "));
  CHECK_FALSE(ended.says("from nothing"));
  CHECK(ended.output.find("\nstep=1 ") == ended.output.rfind("\nstep=1 "));
}

TEST_CASE("two workers whose connection breaks live on: the world is made again of the same processes", "[golden]") {
  const Folder folder;
  constexpr unsigned steps = 300;
  const std::string state = undisturbed(folder, steps);
  const auto job = start_held_gpt({"--nproc_per_node", "3"}, gpt_arguments(folder / "text", steps), {{"ELRUN_TRANSPORT", "tcp"}});
  REQUIRE(until(*job, "step=20 "));
  const auto before = job->children_named("gpt");
  REQUIRE(before.size() == 3);
  const Fd connection = connection_of(before[1]);
  if (!connection) {
    WARN("SKIPPED: this kernel does not lend a connection of another process (pidfd_getfd)");
    return;
  }
  REQUIRE(::shutdown(connection.get(), SHUT_RDWR) == 0);
  const Ended ended = finish(*job);  // elrun writes its own lines in a thread: they may come late beside those of the workers
  INFO(tail(ended.output));
  CHECK(ended.says("lost a peer that is not known to have died"));
  CHECK(ended.says("generation=2 "));
  CHECK(ended.says("3 go on here in the same process"));
  CHECK(ended.code == 0);
  CHECK(ended.state == state);
}

TEST_CASE("without checkpoints a killed worker begins the job again, with the same bits", "[golden]") {
  const Folder folder;
  const std::string state = undisturbed(folder, 200);
  const auto job = start_held_gpt({"--nproc_per_node", "2"}, gpt_arguments(folder / "text", 200));
  REQUIRE(until(*job, "step=50 "));
  const auto workers = job->children_named("gpt");
  REQUIRE(workers.size() == 2);
  REQUIRE(::kill(workers.back(), SIGKILL) == 0);
  const Ended ended = finish(*job);
  INFO(tail(ended.output));
  CHECK(ended.code == 0);
  CHECK(ended.state == state);
  CHECK(ended.says("generation 2: "));
}

TEST_CASE("a checkpoint of four workers continues under any number with the same state", "[golden]") {
  const Folder folder;
  constexpr unsigned steps = 300;
  const std::string state = undisturbed(folder, steps);
  const auto four =
      start_held_gpt({"--nproc_per_node", "4"}, gpt_arguments(folder / "text", steps, {"--every", "30", "--checkpoint", folder / "ck"}));
  REQUIRE(until(*four, "step=100 "));
  CHECK(kill_with_all(*four).code == 137);
  for (const char* workers : {"1", "2", "3", "5"}) {
    const std::string copy = folder / (std::string{"ck"} + workers);
    std::filesystem::copy(folder / "ck", copy, std::filesystem::copy_options::recursive);
    const Ended ended = run("elrun", under_elrun({"--nproc_per_node", workers},
                                                 gpt_arguments(folder / "text", steps, {"--every", "100", "--checkpoint", copy})));
    INFO(workers << " workers\n" << tail(ended.output));
    CHECK(ended.code == 0);
    CHECK_FALSE(ended.says("step=1 "));
    CHECK(ended.state == state);
  }
}

TEST_CASE("two agents, one killed with its workers: the other goes on to the same state", "[golden]") {
  const Folder folder;
  constexpr unsigned steps = 400;
  const std::string state = undisturbed(folder, steps);
  for_all_seeds(4, [&](Rng& rng) {
    const Folder checkpoints;
    const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
    const bool apart = rng.below(2) == 1;  // `elrun store` apart: then either agent may go
    std::unique_ptr<Job> store;
    if (apart) {
      store = start("elrun", {"store", "--host", "127.0.0.1", "--port", endpoint.substr(10)});
      REQUIRE(until(*store, "serving the rendezvous"));  // else the first agent may take its place
    }
    const auto agent = [&](const char* rank) {
      return start_held_gpt({"--nnodes", "1:2", "--nproc_per_node", "2", "--node_rank", rank, "--rdzv_backend", "c10d", "--rdzv_endpoint",
                             endpoint, "--rdzv_conf", "last_call_timeout=20"},
                            gpt_arguments(folder / "text", steps, {"--every", "20", "--checkpoint", checkpoints / "ck"}));
    };
    auto first = agent("0");
    auto second = agent("1");
    REQUIRE(until(*first, "world=4 "));
    const bool kill_first = apart && rng.below(2) == 1;
    Job& survivor = kill_first ? *second : *first;
    let_pass(up_to(rng, 150));
    (kill_first ? first : second)->signal(SIGKILL);
    (void)finish(kill_first ? *first : *second);
    const Ended ended = finish(survivor);
    INFO((apart ? "store apart, " : "") << (kill_first ? "first" : "second") << " killed\n" << tail(ended.output));
    CHECK(ended.code == 0);
    CHECK(ended.state == state);
    CHECK(ended.says("world=2 "));
  });
}

TEST_CASE("a node that joins starts its workers first: the others train until they are ready", "[golden]") {
  const Folder folder;
  constexpr unsigned steps = 2500;
  const std::string state = undisturbed(folder, steps);
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const auto options = [&](const char* rank) {
    return std::vector<std::string>{"--nnodes",       "1:2",  "--nproc_per_node", "2",      "--node_rank", rank,
                                    "--rdzv_backend", "c10d", "--rdzv_endpoint",  endpoint, "--rdzv_conf", "last_call_timeout=1"};
  };
  const std::vector<std::string> program = gpt_arguments(folder / "text", steps, {"--zero", "0"});
  auto first = start_held_gpt(options("0"), program);
  REQUIRE(until(*first, "step=20 "));
  std::vector<std::string> waits = options("1");
  waits.insert(waits.end(),
               {"--no_python", "/bin/sh", "-c", R"(until [ -e "$GO" ]; do sleep 0.02; done; exec "$0" "$@")", program_path("gpt")});
  waits.insert(waits.end(), program.begin(), program.end());
  auto second = start("elrun", waits, {{"GO", folder / "go"}});
  REQUIRE(until(*second, "2 workers are started here meanwhile"));
  REQUIRE(until(*first, "step=120 "));
  CHECK(first->output().find("generation 2") == std::string::npos);
  std::ofstream{folder / "go"}.put('1');
  CHECK(until(*first, "world=4 "));
  const auto [one, two] = finish_together(*first, *second);
  INFO(tail(one.output) << "\n--- the second node\n" << tail(two.output));
  CHECK(one.code == 0);
  CHECK(two.code == 0);
  CHECK(one.state == state);
  CHECK(two.says("2 that were started meanwhile join"));
  CHECK_FALSE(one.says("generation 3"));
}

TEST_CASE("a node whose only worker dies starts another one while the others train", "[golden]") {
  const Folder folder;
  constexpr unsigned steps = 2500;
  const std::string state = undisturbed(folder, steps);
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const auto options = [&](const char* rank) {
    return std::vector<std::string>{"--nnodes",       "1:2",  "--nproc_per_node", "1",      "--node_rank", rank,
                                    "--rdzv_backend", "c10d", "--rdzv_endpoint",  endpoint, "--rdzv_conf", "last_call_timeout=1"};
  };
  const std::vector<std::string> program = gpt_arguments(folder / "text", steps, {"--zero", "0"});
  std::ofstream{folder / "go"}.put('1');
  auto first = start_held_gpt(options("0"), program);
  std::vector<std::string> waits = options("1");
  waits.insert(waits.end(),
               {"--no_python", "/bin/sh", "-c", R"(until [ -e "$GO" ]; do sleep 0.02; done; exec "$0" "$@")", program_path("gpt")});
  waits.insert(waits.end(), program.begin(), program.end());
  auto second = start("elrun", waits, {{"GO", folder / "go"}});
  REQUIRE(until(*first, "world=2 "));
  std::filesystem::remove(folder / "go");
  const std::vector<pid_t> victims = second->children_named("gpt");
  REQUIRE(victims.size() == 1);
  REQUIRE(::kill(victims[0], SIGKILL) == 0);
  REQUIRE(until(*second, "1 worker is started here meanwhile"));
  for (int i = 0; i < 50; ++i) REQUIRE(until(*first, "world=1 "));
  std::ofstream{folder / "go"}.put('1');
  CHECK(until(*first, "world=2 "));
  const auto [one, two] = finish_together(*first, *second);
  INFO(tail(one.output) << "\n--- the second node\n" << tail(two.output));
  CHECK(one.code == 0);
  CHECK(two.code == 0);
  CHECK(one.state == state);
  CHECK(two.says("1 that was started meanwhile joins"));
}

namespace {

// Two nodes with two workers each, their coordinator in a process of its own.
struct TwoNodes {
  Folder folder, checkpoints;
  std::uint16_t port = free_port();
  unsigned steps;
  std::unique_ptr<Job> store, first, second;

  explicit TwoNodes(unsigned count) : steps{count} { begin(); }
  void begin() {
    start_store();
    first = agent("0"), second = agent("1");
  }
  void start_store() {
    store = start("elrun", {"store", "--host", "127.0.0.1", "--port", std::to_string(port), "--checkpoint_root", checkpoints / "ck"});
  }
  std::unique_ptr<Job> agent(const char* rank) {
    return start_held_gpt({"--nnodes", "2", "--nproc_per_node", "2", "--node_rank", rank, "--rdzv_backend", "c10d", "--rdzv_endpoint",
                           "127.0.0.1:" + std::to_string(port), "--rdzv_conf", "is_host=0"},
                          gpt_arguments(folder / "text", steps, {"--every", "20", "--checkpoint", checkpoints / "ck"}));
  }
};

}  // namespace

TEST_CASE("the coordinator killed and started again: no worker is", "[golden]") {
  TwoNodes nodes{400};
  const std::string state = undisturbed(nodes.folder, nodes.steps);
  REQUIRE(until(*nodes.first, "step=50 "));
  nodes.store->signal(SIGKILL);
  (void)finish(*nodes.store);
  REQUIRE(until(*nodes.first, "step=100 "));  // nobody waits for it
  nodes.start_store();
  const auto [first, second] = finish_together(*nodes.first, *nodes.second);
  CHECK(first.state == state);
  for (const Ended* ended : {&first, &second}) {
    INFO(tail(ended->output));
    CHECK(ended->code == 0);
    CHECK_FALSE(ended->says("generation 2"));
  }
}

TEST_CASE("a node that is asked to leave: the job saves a checkpoint first, and the others go on from there", "[golden]") {
  const Folder folder;
  constexpr unsigned steps = 300;
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const auto agent = [&](const char* rank) {
    return start_held_gpt({"--nnodes", "1:2", "--node_rank", rank, "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint, "--rdzv_conf",
                           "last_call_timeout=20"},
                          gpt_arguments(folder / "text", steps, {"--every", "1000000", "--checkpoint", folder / "ck"}));
  };
  const auto stays = agent("0");
  REQUIRE(until(*stays, "serving the rendezvous"));
  const auto leaves = agent("1");
  REQUIRE(until(*stays, "step=20 "));
  leaves->signal(SIGTERM);
  const auto [ended, left] = finish_together(*stays, *leaves);
  INFO(tail(ended.output) << "\n--- left\n" << tail(left.output));
  CHECK(left.code == 143);
  CHECK(left.says("as soon as the job has saved a checkpoint"));
  CHECK(ended.code == 0);
  CHECK(ended.says("generation 2: "));
  CHECK(ended.says("going on from checkpoint"));  // and no periodic one was due
  CHECK(ended.state == undisturbed(folder, steps));
}

TEST_CASE("every process of the job killed and started again: it goes on from its checkpoint, in a later generation", "[golden]") {
  TwoNodes nodes{300};
  const std::string state = undisturbed(nodes.folder, nodes.steps);
  REQUIRE(until(*nodes.first, "step=100 "));
  for (const auto* process : {&nodes.store, &nodes.first, &nodes.second}) (void)kill_with_all(**process);
  nodes.begin();
  const Ended ended = finish_together(*nodes.first, *nodes.second).first;
  INFO(tail(ended.output));
  CHECK(ended.code == 0);
  CHECK(ended.state == state);
  CHECK(ended.says("generation 2"));
  CHECK_FALSE(ended.says("step=1 "));
}
