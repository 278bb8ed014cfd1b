// A real agent is killed: its guard or its host tells the coordinator, here in this process, where a broken stream alone would be waited for much longer.
#include <sys/wait.h>

#include <csignal>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "launcher/process/guard.hpp"
#include "rendezvous/net/node_link.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/relay.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

constexpr Duration patience = 60s;  // only a failing test waits for so long
constexpr const char* word_of_guard = "its agent was killed, as its guard says";
constexpr const char* word_of_host = "its agent has ended: its host refuses connections to the agent's port";

struct Stage {
  boost::asio::io_context loop;
  SteadyClock clock;
  std::vector<std::string> lines;
  Log log{"coordinator", [this](Level, std::string_view text) { lines.emplace_back(text); }};
  TemporaryDirectory directory;
  Access access;
  std::unique_ptr<Coordinator> coordinator;
  std::uint16_t port = 0;

  explicit Stage(const std::string& token = {}) {
    Timeouts timeouts;
    timeouts.heartbeat = 60s;  // neither silence nor a broken stream costs a node its place in this test
    timeouts.heartbeat_limit = 300s;
    timeouts.reconnect_grace = 200s;
    timeouts.recovery = 300s;
    timeouts.coordinator_grace = 1200s;
    if (!token.empty()) {
      access.token_file = directory.path() + "/token";
      std::ofstream{access.token_file} << token;
    }
    coordinator = Coordinator::create(loop, clock, log, {.run = RunId{"job"}, .timeouts = timeouts, .access = access});
    const auto bound = coordinator->serve("127.0.0.1", 0);
    REQUIRE(bound.ok());
    port = *bound;
  }
  [[nodiscard]] bool says(const std::string& text) const {
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return line.find(text) != line.npos; });
  }
  bool until(const std::function<bool()>& so, Duration within = patience) {
    for (const Instant end = clock.now() + within; !so();) {
      if (clock.now() > end) return false;
      loop.restart();
      loop.run_one_for(20ms);
    }
    return true;
  }
  bool until_said(const std::string& text) {
    return until([&] { return says(text); });
  }
  [[nodiscard]] Job::Setting agent() const { return agent("127.0.0.1:" + std::to_string(port)); }
  [[nodiscard]] Job::Setting agent(const std::string& endpoint) const {
    std::vector<std::string> arguments{"--nnodes",       "1:2",  "--nproc_per_node", "1",      "--rdzv_id",  "job",
                                       "--rdzv_backend", "c10d", "--rdzv_endpoint",  endpoint, "--rdzv_conf"};
    arguments.push_back("is_host=0,last_call_timeout=0.1" + (access.token_file.empty() ? "" : ",token_file=" + access.token_file));
    arguments.insert(arguments.end(), {"--no_python", "/bin/sleep", "1000"});
    return {.arguments = std::move(arguments), .environment = {{"XDG_RUNTIME_DIR", directory.path()}}};
  }
};

/// The guard of an agent all of whose workers, so many, run; it is stopped. -1: the system did not run it for a second while the workers started, and they were more than
/// its line has room for.
pid_t stop_guard(Job& agent, std::size_t workers) {
  REQUIRE(agent.line("generation 1: "));
  for (const auto until = std::chrono::steady_clock::now() + 90s; agent.children_named("sleep").size() < workers;) {
    REQUIRE(std::chrono::steady_clock::now() < until);
    if (agent.line("reads nothing; was it stopped?", Wait{20})) return -1;
  }
  const std::vector<pid_t> guards = agent.children_named("elrun-guard");
  REQUIRE(guards.size() == 1);
  ::kill(guards.front(), SIGSTOP);
  return guards.front();
}

}  // namespace

// First, for a guard is forked before there is any other thread.
TEST_CASE("a guard that reads again has the newest death notice, though its line had no room for that", "[guard]") {
  const TemporaryDirectory directory;
  const std::string told = directory.path() + "/told";
  auto guard =
      launcher::Guard::start({{"XDG_RUNTIME_DIR", directory.path()}}, [&](ByteSpan notice) { std::ofstream{told} << as_text(notice); });
  REQUIRE(guard.ok());
  ::kill(guard->pid(), SIGSTOP);
  REQUIRE(::waitpid(guard->pid(), nullptr, WUNTRACED) == guard->pid());  // it has stopped
  for (int i = 0; i < 20; ++i) guard->set_death_notice(as_bytes(std::string(launcher::death_notice_max, 'o')));
  CHECK_FALSE(guard->has_room());
  guard->set_death_notice(as_bytes("the newest"));
  ::kill(guard->pid(), SIGCONT);
  const auto has_room = [&] {
    for (int i = 0; i < 600; ++i)
      if (guard->has_room()) return true;
      else std::this_thread::sleep_for(100ms);
    return false;
  };
  CHECK(has_room());
  const Watch watch{guard->pid()};
  { const launcher::Guard ends = *std::move(guard); }
  CHECK(watch.ended(60s));
  std::string line;
  CHECK(std::getline(std::ifstream{told}, line));
  CHECK(line == "the newest");
}

TEST_CASE("the guard of an agent that is killed tells the coordinator, which waits for no grace", "[guard][process][grpc]") {
  const bool has_token = GENERATE(false, true);
  CAPTURE(has_token);
  Stage stage{has_token ? "a token that nobody else has" : ""};
  Relay translator{stage.port};  // behind it the agent has another address, so its host is not asked
  Job agent{stage.agent(translator.endpoint())};
  REQUIRE(stage.until_said("generation 1@"));
  const std::vector<Watch> children = agent.children();
  agent.signal(SIGKILL);
  CHECK(stage.until_said(word_of_guard));
  for (const Watch& child : children) CHECK(child.ended(10s));  // the guard is one of them
}

TEST_CASE("an agent that is killed with its guard is lost without a grace, for its host refuses connections to its port",
          "[guard][process][grpc]") {
  Stage stage;
  Job agent{stage.agent()};
  REQUIRE(stage.until_said("generation 1@"));
  for (const pid_t guard : agent.children_named("elrun-guard")) ::kill(guard, SIGKILL);
  SECTION("with its workers, as the processes of a container are") {
    for (const pid_t worker : agent.children_named("sleep")) ::kill(worker, SIGKILL);
  }
  agent.signal(SIGKILL);
  CHECK(stage.until_said(word_of_host));
  CHECK_FALSE(stage.says(word_of_guard));
}

TEST_CASE("an agent that ends by itself is no news for its guard", "[guard][process][grpc]") {
  Stage stage;
  Job agent{stage.agent()};
  REQUIRE(stage.until_said("generation 1@"));
  agent.signal(SIGTERM);
  int code = -1;
  bool has_ended = false;
  std::thread waits{[&] {
    const int its = agent.wait(60s);
    boost::asio::post(stage.loop, [&, its] { code = its, has_ended = true; });
  }};
  CHECK(stage.until([&] { return has_ended; }));
  waits.join();
  CHECK(code == 128 + SIGTERM);
  CHECK(stage.until_said(" leaves: "));  // its last message may come after it has ended
  CHECK_FALSE(stage.says(word_of_guard));
  CHECK_FALSE(stage.says(word_of_host));
}

TEST_CASE(
    "an agent whose guard is stopped does not wait for it: workers that the guard would not know are not started, and the report says why",
    "[guard][process]") {
  const TemporaryDirectory directory;
  constexpr std::size_t workers = 150;  // their ends and their successors are more than the guard's line has room for
  Job agent{{.arguments = {"--nproc_per_node", std::to_string(workers), "--max_restarts", "1", "--no_python", "/bin/sleep", "1000"},
             .environment = {{"XDG_RUNTIME_DIR", directory.path()}}}};
  const pid_t stopped = stop_guard(agent, workers);
  REQUIRE(stopped > 0);
  const Watch guard{stopped};
  ::kill(agent.children_named("sleep").front(), SIGKILL);
  CHECK(agent.wait(60s) == 126);
  INFO(agent.output());
  CHECK(agent.says("the guard of this agent's workers (process " + std::to_string(stopped) + ") reads nothing; was it stopped?"));
  CHECK(agent.children_named("sleep").empty());
  ::kill(stopped, SIGCONT);
  CHECK(guard.ended(10s));
}

TEST_CASE("an agent whose guard is stopped ends all of its workers, more than the guard's line has room for", "[guard][process]") {
  constexpr std::size_t workers = 320;  // some 280 numbers fit
  for (int tries = 1;; ++tries) {
    const TemporaryDirectory directory;
    Job agent{{.arguments = {"--nproc_per_node", std::to_string(workers), "--max_restarts", "0", "--no_python", "/bin/sleep", "1000"},
               .environment = {{"XDG_RUNTIME_DIR", directory.path()}}}};
    const pid_t stopped = stop_guard(agent, workers);
    if (stopped < 0 && tries < 4) continue;
    REQUIRE(stopped > 0);
    const Watch guard{stopped};
    ::kill(agent.children_named("sleep").front(), SIGKILL);
    CHECK(agent.wait(60s) == 128 + SIGKILL);
    INFO(agent.output());
    CHECK(guard.ended(10s));  // else, once it goes on, it would kill what has the workers' numbers by then
    CHECK(std::filesystem::is_empty(directory.path()));
    return;
  }
}

TEST_CASE("what a guard says is read on a stream of its own, with the access of a node", "[guard][grpc]") {
  Stage stage{"a token that nobody else has"};
  const LineTarget there{"ipv4:127.0.0.1:" + std::to_string(stage.port), "127.0.0.1"};
  Job agent{stage.agent()};
  REQUIRE(stage.until_said("generation 1@"));
  const auto tell = [&](const Access& access) {
    Result<void> result{};
    bool told = false;
    std::thread guard{[&] {
      auto its = tell_of_ended_agent(there, access, {{NodeId{"any"}, 1}, {}}, 10s, stage.clock);
      boost::asio::post(stage.loop, [&, its = std::move(its)]() mutable { result = std::move(its), told = true; });
    }};
    CHECK(stage.until([&] { return told; }));
    guard.join();
    return result;
  };
  CHECK(tell(stage.access).ok());
  const auto outsider = tell({});
  REQUIRE_FALSE(outsider.ok());
  CHECK(outsider.failure().what.find("token") != std::string::npos);
  CHECK_FALSE(stage.says("is lost"));
}
