// A coordinator that is frozen, not dead, with a real etcd: another is elected, while its own address still takes connections.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/etcd.hpp"
#include "tests/support/relay.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""s;

namespace {

bool without_etcd() {
  if (Etcd::installed()) return false;
  WARN("SKIPPED: no etcd here (Debian: etcd-server, etcd-client)");
  return true;
}

struct Cluster {
  TemporaryDirectory directory;
  Etcd etcd;
  Cluster() { etcd.start(); }

  /// `through`: where the agent finds etcd.
  [[nodiscard]] Job::Setting agent(const std::string& through, const std::string& workers, std::vector<std::string> program) const {
    std::vector<std::string> arguments{
        "--nnodes",       "2:4",  "--nproc_per_node", workers,
        "--rdzv_backend", "etcd", "--rdzv_endpoint",  through,
        "--rdzv_id",      "job",  "--rdzv_conf",      "lease_ttl=6,keep_alive_interval=1.2,last_call_timeout=3",
        "--no_python"};
    program.front() = test_program_path(program.front());
    arguments.insert(arguments.end(), program.begin(), program.end());
    return {.arguments = std::move(arguments), .environment = {{"XDG_RUNTIME_DIR", directory.path()}}};
  }
  [[nodiscard]] Job::Setting job() const { return agent(etcd.endpoint(), "1", {"holding_worker", directory.path()}); }
  void go_on(const std::string& file) const { std::ofstream{directory.path() + "/" + file}; }
  [[nodiscard]] std::string leader() const { return etcd.value("/elrun/job/leader"); }
  [[nodiscard]] bool has_no_leader() const {
    for (const auto end = std::chrono::steady_clock::now() + 60s; std::chrono::steady_clock::now() < end;)
      if (leader().empty()) return true;
    return false;
  }
};

/// Reads what they say until one of them says it.
bool one_says(const std::vector<Job*>& jobs, const std::string& text) {
  for (Job* job : jobs)
    if (job->says(text)) return true;
  for (int i = 0; i < 300; ++i)
    for (Job* job : jobs)
      if (job->line(text, Wait{100})) return true;
  return false;
}

/// Waits until the world of `jobs` ends to take in the node of `newcomer`, which was the first to join.
bool grows_by(const Job& newcomer, const std::vector<Job*>& jobs) {
  const std::string& said = newcomer.output();
  const auto name = said.find("node ") + 5;
  for (int i = 0; i < 300; ++i)
    for (Job* job : jobs)
      if (const auto line = job->line("the world grows by", Wait{100});
          line && line->find(said.substr(name, said.find(' ', name) - name)) != std::string::npos)
        return true;
  return false;
}

std::string state_in(const std::string& output) {
  const auto at = output.find("done state=");
  return at == std::string::npos ? std::string{} : output.substr(at, output.find('\n', at) - at);
}

std::string undisturbed() {
  const TemporaryDirectory folder;
  for (const char* file : {"/ten", "/twenty"}) std::ofstream{folder.path() + file};
  Job alone{{.arguments = {folder.path()}, .program = test_program_path("holding_worker")}};
  REQUIRE(alone.wait() == 0);
  return state_in(alone.output());
}

}  // namespace

TEST_CASE("a coordinator is frozen, a peer dials it, another is elected: all train under that one, and the thawed node with them",
          "[etcd][golden]") {
  if (without_etcd()) return;
  Cluster cluster;
  cluster.go_on("start");
  Job first{cluster.job()};
  REQUIRE(first.line("elected to coordinate"));
  Job a{cluster.job()}, b{cluster.job()};
  REQUIRE(one_says({&first, &a, &b}, "holds at 10"));
  const std::vector<pid_t> workers = first.children_named("holding_worker");
  REQUIRE(workers.size() == 1);
  const bool whole_node = GENERATE(false, true);
  CAPTURE(whole_node);

  const auto begin = std::chrono::steady_clock::now();
  first.signal(SIGSTOP);
  if (whole_node) REQUIRE(::kill(workers.front(), SIGSTOP) == 0);
  // The frozen one still has the leadership, and its system still takes connections: that is whom this one dials.
  Job late{cluster.job()};
  REQUIRE(one_says({&a, &b, &late}, "elected to coordinate"));
  cluster.go_on("ten");
  REQUIRE(one_says({&a, &b, &late}, "holds at 20"));
  std::printf("trained on after %.1f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  CHECK((late.says(" nodes, ") || late.line(" nodes, ")));  // in a world, at once or when that one grows

  if (whole_node) REQUIRE(::kill(workers.front(), SIGCONT) == 0);
  first.signal(SIGCONT);
  CHECK(first.line("this agent coordinates no longer"));
  CHECK(grows_by(first, {&a, &b, &late}));
  CHECK(first.line(": 4 nodes, "));
  cluster.go_on("twenty");  // not before that: a world that grows may still decide all its steps until it hears of it
  CHECK(first.wait() == 0);
  for (Job* job : {&a, &b, &late}) CHECK(job->wait() == 0);
  INFO("first: " << first.output() << "\na: " << a.output() << "\nb: " << b.output() << "\nlate: " << late.output());
  std::string state;
  for (Job* job : {&first, &a, &b, &late})
    if (state.empty()) state = state_in(job->output());  // rank 0 says it
  CHECK(state == undisturbed());
}

TEST_CASE("a coordinator that thaws where it cannot ask etcd keeps nobody from the one that is elected", "[etcd]") {
  if (without_etcd()) return;
  Cluster cluster;
  Relay its{cluster.etcd.port()}, theirs{cluster.etcd.port()};
  const std::vector<std::string> program{"launcher_worker", "until_file", cluster.directory.path() + "/end"};
  Job first{cluster.agent(its.endpoint(), "0", program)};
  REQUIRE(first.line("elected to coordinate"));
  Job a{cluster.agent(theirs.endpoint(), "1", program)}, b{cluster.agent(theirs.endpoint(), "1", program)};
  for (Job* job : {&a, &b}) REQUIRE(job->line("ready"));

  first.signal(SIGSTOP);
  its.cut();
  theirs.cut();  // they would elect another one before it thaws
  for (Job* job : {&a, &b}) REQUIRE(job->line("waiting for the coordinator"));
  REQUIRE(cluster.has_no_leader());
  first.signal(SIGCONT);
  for (Job* job : {&a, &b}) REQUIRE(job->line("is back"));  // at the one that was frozen, and nobody there knows better
  theirs.mend();
  Job other{cluster.agent(cluster.etcd.endpoint(), "1", program)};
  REQUIRE(other.line("elected to coordinate"));
  for (Job* job : {&a, &b}) CHECK(job->line("another agent was elected"));
  CHECK(other.line("generation 2: 3 nodes"));
  CHECK_FALSE(first.says("coordinates no longer"));
  its.mend();
  CHECK(first.line("this agent coordinates no longer"));
  cluster.go_on("end");
  for (Job* job : {&first, &a, &b, &other}) CHECK(job->wait() == 0);
  INFO("first: " << first.output() << "\na: " << a.output() << "\nb: " << b.output() << "\nother: " << other.output());
  CHECK(other.says("goes on: all of its 2 nodes are here"));  // no worker was lost by it
}
