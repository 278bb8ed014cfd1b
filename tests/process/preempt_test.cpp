// `--preempt_notice`: a node that will be taken away leaves as after SIGTERM. Files, servers and commands, good ones and such as would do harm.
#include <atomic>
#include <csignal>
#include <fstream>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/http.hpp"
#include "tests/support/http_server.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""ms;

namespace {

using Words = std::vector<std::string>;

struct Place {
  TemporaryDirectory directory;

  [[nodiscard]] std::string operator/(const std::string& name) const { return directory.path() + "/" + name; }
  [[nodiscard]] std::unique_ptr<Job> agent(const std::string& source, const Words& more = {},
                                           const std::string& script = "echo started; exec sleep 600") const {
    Words options{"--preempt-notice", source};
    options.insert(options.end(), more.begin(), more.end());
    options.insert(options.end(), {"--no_python", "/bin/sh", "-c", script});
    return start("elrun", std::move(options), {{"XDG_RUNTIME_DIR", directory.path()}});
  }
  void write(const std::string& name, const std::string& text = {}) const { std::ofstream{*this / name} << text; }
};

std::string url(const LoopbackServer& server, const std::string& path = "/notice") {
  return "http://127.0.0.1:" + std::to_string(server.port()) + path;
}

bool has_left(Job& agent, const std::string& because) {
  const int code = agent.wait(Wait{60000});
  INFO(agent.output());
  CHECK(code == 143);
  CHECK(agent.says("preempt notice (" + because));
  CHECK(agent.says(": this node has left; 1 worker ended; exit code 143"));
  return code == 143 && agent.says(because);
}

}  // namespace

TEST_CASE("a file that appears lets the node leave with 143, and statusz says why", "[preempt][process]") {
  const Place place;
  const auto agent = place.agent(
      place / "notice", {"--health_port", "127.0.0.1:0", "--shutdown_timeout", "60"},
      "trap 'while [ ! -e " + place / "seen" + " ]; do sleep 0.1; done; exit 0' TERM; echo started; while :; do sleep 0.1; done");
  REQUIRE(agent->line("started"));
  const auto at = agent->output().find("metrics at http://127.0.0.1:");
  REQUIRE(at != std::string::npos);
  const auto port = static_cast<std::uint16_t>(std::stoi(agent->output().substr(at + 28)));
  CHECK(http_get(port, "/statusz").find("\"leaving\": false") != std::string::npos);
  CHECK_FALSE(agent->says("--preempt_notice"));  // nothing is wrong with a file that is not there
  place.write("notice", "by node-7\n");
  REQUIRE(agent->line("preempt notice (the file "));
  const std::string status = http_get(port, "/statusz");
  CHECK(status.find("\"leaving\": true") != std::string::npos);
  CHECK(status.find("\"leaving_because\": \"preempt notice (the file ") != std::string::npos);
  place.write("seen");
  CHECK(has_left(*agent, "the file " + place / "notice" + ": it is there: by node-7)"));
}

TEST_CASE("the SIGTERM that follows a notice kills nobody, and a second one does", "[preempt][process]") {
  const Place place;
  const auto agent = place.agent(place / "notice", {"--shutdown_timeout", "60"}, "trap '' TERM; echo started; sleep 600");
  REQUIRE(agent->line("started"));
  place.write("notice");
  REQUIRE(agent->line("SIGTERM forwarded to 1 worker"));
  agent->signal(SIGTERM);
  REQUIRE(agent->line("is leaving already, because of the preempt notice"));
  CHECK(agent->wait(300ms) == -1);
  agent->signal(SIGTERM);
  CHECK(agent->wait() == 143);
  CHECK(agent->says("SIGTERM again: the workers are killed"));
}

TEST_CASE("a directory in the file's place is told of and ends nothing", "[preempt][process]") {
  const Place place;
  const auto agent = place.agent(place.directory.path());
  REQUIRE(agent->line("cannot be looked at: it is a directory, and no file; the job goes on"));
  agent->signal(SIGTERM);
  CHECK(agent->wait() == 143);
}

TEST_CASE("a metadata service that answers 404, then 200, lets the node leave", "[preempt][process]") {
  const Place place;
  std::atomic<bool> goes = false;
  Heard heard;
  LoopbackServer server{[&](int socket) {
    heard.add(request_head(socket));
    if (goes) answer(socket, 200, R"({"action": "terminate", "time": "2026-11-25T08:22:00Z"})");
    else answer(socket, 404, "not found");
  }};
  const auto agent = place.agent(url(server, "/latest/meta-data/spot/instance-action"));
  REQUIRE(agent->line("started"));
  goes = true;
  CHECK(has_left(*agent, url(server, "/latest/meta-data/spot/instance-action") + ": it answers {\"action\": \"terminate\""));
  CHECK((!agent->says("cannot be looked at") || agent->says("did not answer within 2.0 s")));  // nor is 404 a problem
  CHECK(heard.all().front().starts_with("GET /latest/meta-data/spot/instance-action HTTP/1.1\r\nHost: 127.0.0.1:"));
  CHECK(heard.all().front().find("Metadata-Flavor: Google\r\n") != std::string::npos);
}

TEST_CASE("a service that wants AWS's token gets it, and one that keeps the connection open is understood", "[preempt][process]") {
  const Place place;
  std::atomic<bool> asked_for_token = false;
  std::atomic<bool> goes = false;
  LoopbackServer* self = nullptr;
  LoopbackServer server{[&](int socket) {
    const std::string head = request_head(socket);
    if (head.starts_with("PUT /latest/api/token ") && head.find("X-aws-ec2-metadata-token-ttl-seconds: ") != std::string::npos)
      asked_for_token = true, answer(socket, 200, "secret==");
    else if (head.find("X-aws-ec2-metadata-token: secret==\r\n") == std::string::npos) answer(socket, 401, "");
    else if (!goes) answer(socket, 404, "");
    else answer(socket, 200, "{}");
    self->wait_for_end(socket);
  }};
  self = &server;
  const auto agent = place.agent(url(server));
  REQUIRE(agent->line("started"));
  goes = true;
  CHECK(has_left(*agent, url(server) + ": it answers {}"));
  CHECK(asked_for_token);
}

TEST_CASE("a notice that is there before the node's first worker runs lets the node leave without one", "[preempt][process]") {
  const Place place;
  place.write("notice");
  // One node of two: the rendezvous waits for the other, so no worker can have started when the notice is seen.
  const auto agent = place.agent(place / "notice", {"--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint",
                                                    "127.0.0.1:" + std::to_string(free_port()), "--rdzv_id", "job"});
  const Ended left = finish(*agent);
  INFO(left.output);
  CHECK(left.code == 143);
  CHECK(left.says(": this node has left; no worker of it was running; exit code 143"));
  CHECK_FALSE(left.says("started"));
}

TEST_CASE("a server that does harm ends no node: it is told of once, and asked again", "[preempt][process]") {
  const Place place;
  LoopbackServer* self = nullptr;
  std::function<void(int)> handle;
  std::string told;
  bool is_slow = false;  // a question stays open until the agent gives up
  SECTION("it never answers") {
    is_slow = true;
    handle = [&](int socket) { self->wait_for_end(socket); };
    told = "did not answer within 2.0 s";
  }
  SECTION("it redirects") {
    handle = [&](int socket) { request_head(socket), answer(socket, 302, "TRUE", "Location: http://127.0.0.1:1/\r\n"); };
    told = "it answers 302, a redirection, which is not followed";
  }
  SECTION("it answers without end") {
    handle = [&](int socket) {
      request_head(socket);
      std::string endless(1 << 16, 'x');
      std::string_view head = "HTTP/1.1 200 OK\r\n\r\n";
      if (::send(socket, head.data(), head.size(), MSG_NOSIGNAL) <= 0) return;
      while (!self->stops() && ::send(socket, endless.data(), endless.size(), MSG_NOSIGNAL) > 0) {
      }
    };
    told = "answers with more than 65536 bytes";
  }
  SECTION("it answers byte by byte, without end") {
    is_slow = true;
    handle = [&](int socket) {
      request_head(socket);
      while (!self->stops() && ::send(socket, "H", 1, MSG_NOSIGNAL) > 0) std::this_thread::sleep_for(1ms);
    };
    told = "cannot be looked at";
  }
  SECTION("it speaks no HTTP") {
    handle = [&](int socket) { (void)::send(socket, "TRUE\n", 5, MSG_NOSIGNAL); };
    told = "cannot be looked at";
  }
  std::atomic<int> asked = 0, answered = 0;
  LoopbackServer server{[&](int socket) { ++asked, handle(socket), ++answered; }};
  self = &server;
  const auto agent = place.agent(url(server), {"--health_port", "127.0.0.1:0"});
  REQUIRE(agent->line(told));
  CHECK((agent->says("started") || agent->line("started")));
  const auto at = agent->output().find("metrics at http://127.0.0.1:");
  REQUIRE(at != std::string::npos);
  const auto port = static_cast<std::uint16_t>(std::stoi(agent->output().substr(at + 28)));
  // It asks again, and the loop turns meanwhile: also while a question is open.
  bool turned = !is_slow;
  for (int before = asked; asked < before + 1 || !turned;) {
    const int question = asked;
    const bool open = answered < question;
    REQUIRE(http_get(port, "/livez").find("200 OK") != std::string::npos);
    turned |= open && asked == question && answered < question;
    std::this_thread::sleep_for(50ms);
  }
  CHECK(agent->wait(0ms) == -1);
  agent->signal(SIGTERM);
  CHECK(agent->wait() == 143);
  const std::string output = agent->output();
  CHECK(output.find("cannot be looked at") == output.rfind("cannot be looked at"));
}

TEST_CASE("nobody listens: the job goes on, and the notice comes when somebody does", "[preempt][process]") {
  const Place place;
  const auto agent =
      place.agent("http://127.0.0.1:1/notice", {}, "echo started; while [ ! -e " + place / "told" + " ]; do sleep 0.1; done");
  REQUIRE(agent->line("cannot be looked at"));
  place.write("told");
  CHECK(agent->wait() == 0);
}

TEST_CASE("a command that ends with 0 lets the node leave", "[preempt][process]") {
  const Place place;
  const auto agent = place.agent("cmd:test -e " + place / "notice");
  REQUIRE(agent->line("started"));
  place.write("notice");
  CHECK(has_left(*agent, "`test -e " + place / "notice" + "`: it ended with exit code 0"));
}

TEST_CASE("a command that hangs is killed with all that it started, and ends no node", "[preempt][process]") {
  const Place place;
  const auto agent = place.agent("cmd:echo $$ >> " + place / "pids" + "; sleep 7654 & wait; sleep 7654");
  REQUIRE(agent->line("started"));
  REQUIRE(agent->line("it had not ended after 10.0 s, and was killed; the job goes on"));
  std::ifstream pids{place / "pids"};
  pid_t group = 0;
  REQUIRE(pids >> group);
  for (int i = 0; i < 500 && ::kill(-group, 0) == 0; ++i) std::this_thread::sleep_for(10ms);
  CHECK(::kill(-group, 0) != 0);
  CHECK(agent->wait(0ms) == -1);
  agent->signal(SIGTERM);
  CHECK(agent->wait() == 143);
}

TEST_CASE("a command that is under way when the agent ends, or is killed, ends with it", "[preempt][process]") {
  const Place place;
  const bool killed = GENERATE(false, true);
  const auto agent = place.agent(
      "cmd:echo $$ >> " + place / "pids" + "; exec sleep 7654", {},
      killed ? std::string{"echo started; exec sleep 600"} : "echo started; while [ ! -s " + place / "pids" + " ]; do sleep 0.1; done");
  REQUIRE(agent->line("started"));
  pid_t group = 0;
  for (int i = 0; i < 6000 && !(std::ifstream{place / "pids"} >> group); ++i) std::this_thread::sleep_for(10ms);
  REQUIRE(group > 0);
  if (killed) agent->signal(SIGKILL);
  CHECK(agent->wait() == (killed ? 137 : 0));
  for (int i = 0; i < 500 && ::kill(-group, 0) == 0; ++i) std::this_thread::sleep_for(10ms);
  CHECK(::kill(-group, 0) != 0);
}

TEST_CASE("a command that cannot be found is told of, and its exit code is no notice", "[preempt][process]") {
  const Place place;
  const auto agent =
      place.agent("cmd:no-such-command-of-elrun", {}, "echo started; while [ ! -e " + place / "told" + " ]; do sleep 0.1; done");
  REQUIRE(agent->line("cannot be looked at: it ended by exit code 127"));
  place.write("told");
  CHECK(agent->wait() == 0);
}

TEST_CASE("a Job that gets a notice saves at the end of a step, and loses nothing; the node that stays goes on",
          "[preempt][process][golden]") {
  const Place place;
  const Folder folder;
  constexpr unsigned steps = 400;
  const auto gpt = gpt_arguments(folder / "text", steps, {"--every", "1000000", "--checkpoint", folder / "ck"});
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const auto agent = [&](const Words& more) {
    Words options{"--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint, "--rdzv_id", "job", "--nproc_per_node", "1"};
    options.insert(options.end(), more.begin(), more.end());
    return start_held_gpt(std::move(options), gpt, {{"XDG_RUNTIME_DIR", place.directory.path()}});
  };
  const auto stays = agent({"--node_rank", "0"});  // rank 0 prints the steps, whichever node joins first
  REQUIRE(stays->line("serving the rendezvous"));
  const auto goes = agent({"--node_rank", "1", "--preempt-notice", place / "notice"});
  REQUIRE(until(*stays, "step=20 "));
  // Nobody reads its steps until the notice was seen, which takes up to a second: the job cannot have ended by then.
  place.write("notice");
  REQUIRE(goes->line("preempt notice (the file "));
  const auto [done, left] = finish_together(*stays, *goes);
  INFO(left.output << done.output);
  CHECK(left.code == 143);
  CHECK(left.says("this node leaves as soon as the job has saved a checkpoint"));
  CHECK_FALSE(left.says("without one"));
  CHECK(done.code == 0);
  const Ended plain = run("gpt", gpt_arguments(folder / "text", steps));
  CHECK(plain.state.size() == 16);
  CHECK(done.state == plain.state);
}
