// What a real agent tells at its admin endpoints, and what nobody can do to it there.
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/http.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;

namespace {

namespace fs = std::filesystem;

constexpr Wait patience{60000};

using Words = std::vector<std::string>;

// An agent with its health port and a directory of the test's.
struct Agent {
  explicit Agent(const TemporaryDirectory& directory, Words options = {}, const std::string& script = "echo started; exec sleep 600")
      : job{setting(directory, std::move(options), script)} {
    const auto line = job.line("health, status and metrics at http://", patience);
    if (line) port = static_cast<std::uint16_t>(std::stoul(line->substr(line->rfind(':') + 1)));
    REQUIRE(job.line("started", patience));
  }
  static Job::Setting setting(const TemporaryDirectory& directory, Words options, const std::string& script) {
    options.insert(options.end(), {"--health_port", "127.0.0.1:0", "--no_python", "/bin/sh", "-c", script});
    return {.arguments = std::move(options), .environment = {{"XDG_RUNTIME_DIR", directory.path()}}};
  }
  Job job;
  std::uint16_t port = 0;
};

Job::Setting with_words(const TemporaryDirectory& directory, Words words) {
  return {.arguments = std::move(words), .environment = {{"XDG_RUNTIME_DIR", directory.path()}}};
}

// The process number in the first line of a status that names a worker: rank, local rank, process.
pid_t first_worker_in(const std::string& status) {
  std::istringstream lines{status};
  for (std::string line; std::getline(lines, line);) {
    long rank = 0, local_rank = 0, pid = 0;
    if (std::istringstream{line} >> rank >> local_rank >> pid) return static_cast<pid_t>(pid);
  }
  return 0;
}

}  // namespace

TEST_CASE("an agent shows what runs, and what happened", "[admin][process]") {
  TemporaryDirectory directory;
  Agent agent{directory, {"--nproc_per_node", "2", "--max_restarts", "1", "--rdzv_id", "my job"}};
  REQUIRE(agent.job.line("started", patience));
  for (const char* path : {"/livez", "/readyz", "/healthz"}) CHECK(http_get(agent.port, path).starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(http_get(agent.port, "/statusz").find("\"run\": \"my job\"") != std::string::npos);
  CHECK(http_get(agent.port, "/nothing").starts_with("HTTP/1.1 404 "));

  // The first worker dies; both begin again.
  Job before{with_words(directory, {"status"})};
  CHECK(before.wait(patience) == 0);
  REQUIRE(before.says("running\n"));
  const pid_t worker = first_worker_in(before.output());
  REQUIRE(worker > 1);
  ::kill(worker, SIGKILL);
  REQUIRE(agent.job.line("generation 2: ", patience));
  REQUIRE(agent.job.line("started", patience));
  REQUIRE(agent.job.line("started", patience));
  const std::string metrics = http_get(agent.port, "/metrics");
  INFO(metrics);
  CHECK(metrics.find("\nelrun_generation 2\n") != std::string::npos);
  CHECK(metrics.find("\nelrun_worker_exits_total{code=\"0\",signal=\"SIGKILL\"} 1\n") != std::string::npos);
  CHECK(metrics.find("\nelrun_worker_restarts_total{cause=\"worker\"} 2\n") != std::string::npos);
  CHECK(metrics.find("\nelrun_recovery_duration_seconds_count{cause=\"worker\"} 1\n") != std::string::npos);
  CHECK(http_get(agent.port, "/metrics", "Accept: application/openmetrics-text\r\n").ends_with("# EOF\n"));

  Job after{with_words(directory, {"status"})};
  CHECK(after.wait(patience) == 0);
  INFO(after.output());
  CHECK(after.says("run my job on node"));
  CHECK(after.says("generation 2: 1 of 1 to 1 nodes, 2 workers"));
  CHECK(after.says("last failure: "));
  CHECK(after.says("SIGKILL"));
}

TEST_CASE("an agent is ready as soon as it listens, also where the name at which nodes meet leads nowhere yet", "[admin][process]") {
  TemporaryDirectory directory;
  // As in a PyTorchJob: the operator publishes a pod's name once the pod is ready.
  Job job{with_words(directory, {"--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "job-master-0.invalid:29400",
                                 "--health_port", "127.0.0.1:0", "--no_python", "/bin/true"})};
  const auto line = job.line("health, status and metrics at http://", patience);
  REQUIRE(line);
  const auto port = static_cast<std::uint16_t>(std::stoul(line->substr(line->rfind(':') + 1)));
  REQUIRE(job.line("does not resolve", patience));
  for (const char* path : {"/readyz", "/livez"}) CHECK(http_get(port, path).starts_with("HTTP/1.1 200 OK\r\n"));
}

TEST_CASE("a probe that says at once that it has no more to say gets its answer", "[admin][process]") {
  TemporaryDirectory directory;
  Agent agent{directory};
  agent.job.signal(SIGSTOP);  // all of it has come by the time the agent takes the connection in
  const Visitor visitor{agent.port};
  REQUIRE(visitor.connected());
  visitor.say("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const Visitor cut_off{agent.port};
  cut_off.say("GET /livez HTTP/1.1\r\n");
  for (const Visitor* one : {&visitor, &cut_off}) one->says_no_more();
  agent.job.signal(SIGCONT);
  CHECK(visitor.hear().starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(cut_off.hear() == "closed");
}

TEST_CASE("without a host the health port is open to both kinds of addresses, whatever net.ipv6.bindv6only says", "[admin][process]") {
  // In a network namespace, which needs rights that not every machine gives.
  const auto in_namespace = [](const std::string& script) {
    return Job::Setting{.arguments = {"--net", "/bin/sh", "-c", "ip link set lo up && echo 1 > /proc/sys/net/ipv6/bindv6only && " + script},
                        .program = "/usr/bin/unshare"};
  };
  if (Job{in_namespace("true")}.wait() != 0) {
    std::printf("SKIPPED: no network namespaces here, or no IPv6\n");
    return;
  }
  const std::string elrun = program_path("elrun");
  const auto asks = [&](const std::string& host) {
    return elrun + " status --endpoint " + host + ":29401 >/dev/null && echo seen at " + host + "; ";
  };
  Job job{in_namespace("exec " + elrun + " --health_port 29401 --no_python /bin/sh -c '" + asks("127.0.0.1") + asks("[::1]") + "true'")};
  CHECK(job.wait() == 0);
  INFO(job.output());
  CHECK(job.says("seen at 127.0.0.1"));
  CHECK(job.says("seen at [::1]"));
}

TEST_CASE("a probe is answered in a flood of connections", "[admin][process]") {
  TemporaryDirectory directory;
  Agent agent{directory};
  // The probe is as slow as one on a busy machine: 200 others come between its connection and its words.
  std::deque<Visitor> flood;
  int answered = 0;
  constexpr int probes = 20;
  for (int probe = 0; probe < probes; ++probe) {
    const Visitor slow{agent.port};
    for (int i = 0; i < 200; ++i) {
      Visitor visitor{agent.port};
      if (i % 4 == 0) visitor.say("GET /metrics HTTP/1.1\r\n\r\n");
      if (i % 4 != 1) flood.push_back(std::move(visitor));  // the others go at once
    }
    slow.say("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    answered += slow.hear().starts_with("HTTP/1.1 200 OK\r\n");
    while (flood.size() > 400) flood.pop_front();
  }
  CHECK(answered == probes);
  CHECK(agent.job.wait(Wait{0}) == -1);
}

TEST_CASE("outsiders at the port keep nobody out, and end nothing", "[admin][process]") {
  TemporaryDirectory directory;
  Agent agent{directory};
  std::vector<Visitor> silent;
  for (int i = 0; i < 600; ++i) silent.emplace_back(agent.port);
  for (int i = 0; i < 100; ++i) silent[static_cast<std::size_t>(i)].say("GET /livez HT");
  CHECK(http_get(agent.port, "/livez").starts_with("HTTP/1.1 200 OK\r\n"));
  const std::string metrics = http_get(agent.port, "/metrics");
  const auto descriptors = metrics.find("\nprocess_open_fds ");
  REQUIRE(descriptors != std::string::npos);
  CHECK(std::stoi(metrics.substr(descriptors + 18)) < 320);  // of the 600 most were closed, the oldest first
  CHECK(silent.front().hear() == "closed");
  CHECK(silent.back().hear() == "closed");  // its time was over
  const Visitor large{agent.port};
  large.say("GET /livez HTTP/1.1\r\nX: " + std::string(100'000, 'x'));
  CHECK(large.hear().starts_with("HTTP/1.1 431 "));
  const Visitor odd{agent.port};
  odd.say(std::string{"\x16\x03\x01\0\0\r\n\r\n", 9});
  CHECK(odd.hear().starts_with("HTTP/1.1 400 "));
  CHECK(http_get(agent.port, "/livez").starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(agent.job.wait(Wait{0}) == -1);
}

TEST_CASE("a port that is taken ends a start that asked for it, and no other", "[admin][process]") {
  TemporaryDirectory directory;
  Agent first{directory};
  const std::string port = std::to_string(first.port);
  Job asked{with_words(directory, {"--health_port", "127.0.0.1:" + port, "--no_python", "/bin/true"})};
  CHECK(asked.wait(patience) == 78);
  CHECK(asked.says("--health_port"));
  Job inherited{{.arguments = {"--no_python", "/bin/true"},
                 .environment = {{"TORCHELASTIC_HEALTH_CHECK_PORT", port}, {"XDG_RUNTIME_DIR", directory.path()}}}};
  CHECK(inherited.wait(patience) == 0);
  CHECK(inherited.says("TORCHELASTIC_HEALTH_CHECK_PORT: "));
}

TEST_CASE("a health port is opened at the address that was asked for, and at no other", "[admin][process]") {
  TemporaryDirectory directory;
  const std::string elsewhere = "192.0.2.1:0";  // an address of documentation, which no machine has
  Job job{with_words(directory, {"--health_port", elsewhere, "--no_python", "/bin/true"})};
  CHECK(job.wait(patience) == 78);
  INFO(job.output());
  CHECK(job.says("listen on " + elsewhere));
  CHECK_FALSE(job.says("health, status and metrics at"));
  Job doctor{with_words(directory, {"doctor", "--health_port", elsewhere, "--no_python", "/bin/true"})};
  CHECK(doctor.wait(patience) == 78);
  INFO(doctor.output());
  CHECK(doctor.says("FAIL  health"));
}

TEST_CASE("elrun status finds the agents of this machine", "[admin][process]") {
  TemporaryDirectory directory;
  Job none{with_words(directory, {"status"})};
  CHECK(none.wait(patience) == 69);
  CHECK(none.says("no agent"));
  Agent one{directory, {"--rdzv_id", "one"}}, two{directory, {"--rdzv_id", "two"}};
  Job both{with_words(directory, {"status"})};
  CHECK(both.wait(patience) == 0);
  CHECK(both.says("run one on node"));
  CHECK(both.says("run two on node"));
  Job by_number{with_words(directory, {"status", "--pid", std::to_string(two.job.pid()), "--json"})};
  CHECK(by_number.wait(patience) == 0);
  CHECK_FALSE(by_number.says("\"one\""));
  CHECK(by_number.says("\"run\": \"two\""));
  Job as_json{with_words(directory, {"status", "--json"})};
  CHECK(as_json.wait(patience) == 0);
  const auto document = nlohmann::json::parse(as_json.output());  // one, of both agents
  REQUIRE(document["agents"].size() == 2);
  CHECK(document["agents"][0]["program"].get<std::string>() == document["agents"][1]["program"].get<std::string>());
  CHECK_FALSE(document.contains("problems"));
  Job by_port{with_words(directory, {"status", "--endpoint", "127.0.0.1:" + std::to_string(one.port)})};
  CHECK(by_port.wait(patience) == 0);
  CHECK(by_port.says("run one on node"));

  // One that does not answer is told; what it left behind when it was killed is not taken for an agent.
  two.job.signal(SIGSTOP);
  Job stopped{with_words(directory, {"status", "--timeout", "3"})};
  CHECK(stopped.wait(patience) == 69);
  CHECK(stopped.says("did not answer within"));
  CHECK(stopped.says("run one on node"));
  two.job.signal(SIGKILL);
  CHECK(two.job.wait(patience) == 128 + SIGKILL);
  fs::create_directory(directory.path() + "/elrun-gone");
  Job last{with_words(directory, {"status"})};
  CHECK(last.wait(patience) == 0);
  CHECK_FALSE(last.says("run two on node"));
}

TEST_CASE("a program that is called as a subcommand can be started by its path", "[admin][process]") {
  TemporaryDirectory directory;
  for (const std::string name : {"status", "doctor", "install", "store"}) {
    const std::string path = directory.path() + "/" + name;
    std::ofstream{path} << "#!/bin/sh\necho it is me\n";
    fs::permissions(path, fs::perms::owner_all);
    Job job{with_words(directory, {"--no_python", path})};
    CHECK(job.wait(patience) == 0);
    CHECK(job.says("it is me"));
    fs::remove(path);
  }
}

TEST_CASE("elrun install puts a program there that can be used at once", "[admin][process]") {
  TemporaryDirectory directory;
  const std::string target = directory.path() + "/new/bin";
  Job install{with_words(directory, {"install", target})};
  CHECK(install.wait(patience) == 0);
  CHECK(install.says("elrun_static"));  // this one needs its libraries
  CHECK(fs::read_symlink(target + "/torchrun") == "elrun");
  CHECK(fs::status(target + "/elrun").permissions() == fs::perms{0755});
  Job version{{.arguments = {"--version"}, .program = target + "/elrun"}};
  CHECK(version.wait(patience) == 0);
  CHECK(version.says("elrun "));
  Job wrong{{.arguments = {"--bogus"}, .program = target + "/torchrun"}};
  CHECK(wrong.wait(patience) == 2);
  Job word{{.arguments = {"status"}, .program = target + "/torchrun"}};  // torchrun has no such word: it is a script
  CHECK(word.wait(patience) != 69);
  CHECK(word.says("status"));

  SECTION("again, while the old one runs") {
    Job running{{.arguments = {"--no_python", "/bin/sh", "-c", "echo started; exec sleep 600"}, .program = target + "/elrun"}};
    REQUIRE(running.line("started", patience));
    Job again{with_words(directory, {"install", target})};
    CHECK(again.wait(patience) == 0);
    CHECK(running.wait(Wait{0}) == -1);
  }
  SECTION("beside what another one with the same process number, in a pod of its own, has not finished") {
    const std::string program = program_path("elrun"), begun = target + "/.torchrun-$$";
    Job other{{.arguments = {"-c", "ln -s elrun " + begun + "; exec " + program + " install " + target}, .program = "/bin/sh"}};
    CHECK(other.wait(patience) == 0);
    fs::remove(target + "/.torchrun-" + std::to_string(other.pid()));
  }
  SECTION("another torchrun stays, unless it is not wanted") {
    fs::remove(target + "/torchrun");
    std::ofstream{target + "/torchrun"} << "theirs";
    Job refused{with_words(directory, {"install", target})};
    CHECK(refused.wait(patience) == 78);
    CHECK(refused.says("--force"));
    CHECK(fs::file_size(target + "/torchrun") == 6);
    Job forced{with_words(directory, {"install", "--force", target})};
    CHECK(forced.wait(patience) == 0);
    CHECK(fs::is_symlink(target + "/torchrun"));
  }
  SECTION("a place that cannot be written is told") {
    Job job{with_words(directory, {"install", "/proc/nothing"})};
    CHECK(job.wait(patience) == 78);
    CHECK(job.says("/proc/nothing"));
  }
  std::size_t names = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator{target}) ++names;
  CHECK(names == 2);  // nothing half done is left
}

TEST_CASE("elrun doctor says what would fail, and why", "[admin][process]") {
  TemporaryDirectory directory;
  Job fine{with_words(directory, {"doctor", "--checkpoint_root", directory.path(), "--no_python", "/bin/true"})};
  const int code = fine.wait(patience);
  INFO(fine.output());
  CHECK((code == 0 || code == 78));  // this machine may have a fault of its own
  CHECK(fine.says("ok    program"));
  CHECK(fine.says("ok    checkpoint"));
  CHECK(fine.says("ok    endpoint"));
  const std::string none = directory.path() + "/none/at/all";
  Job fresh{with_words(directory, {"doctor", "--checkpoint_root", none, "--log_dir", none + "/logs/"})};
  (void)fresh.wait(patience);
  INFO(fresh.output());
  CHECK(fresh.says("warn  checkpoint " + none + " does not exist, and would be made"));
  CHECK(fresh.says("ok    logs       " + none + "/logs/ can be made"));
  const std::string stuck = directory.path() + "/stuck.py";  // opening it never comes back, as on a server that is away
  REQUIRE(::mkfifo(stuck.c_str(), 0600) == 0);
  Job late{with_words(directory, {"doctor", stuck})};
  CHECK(late.wait(patience) == 78);
  CHECK(late.says("FAIL  program    " + stuck + " cannot be read: its file system has not answered within 5.0 s"));
  fs::remove(stuck);
  Job ill{with_words(directory, {"doctor", "--checkpoint_root", "/proc/nothing", "--nnodes", "2", "--rdzv_endpoint",
                                 "no-such-host.invalid:29400", "/no/such/script.py"})};
  CHECK(ill.wait(patience) == 78);
  INFO(ill.output());
  CHECK(ill.says("FAIL  checkpoint"));
  CHECK(ill.says("FAIL  endpoint   the name \"no-such-host.invalid\" "));
  CHECK(ill.says("FAIL  program"));
  CHECK(directory.names().empty());
}

TEST_CASE("elrun doctor tells a rendezvous from another program", "[admin][process]") {
  TemporaryDirectory directory;
  const std::string place = "127.0.0.1:" + std::to_string(free_port());
  const auto ask = [&](std::string endpoint) {
    Job job{with_words(directory, {"doctor", "--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", std::move(endpoint)})};
    (void)job.wait(patience);
    return job.output();
  };
  CHECK(ask(place).find("this node would serve the rendezvous") != std::string::npos);
  Job store{with_words(directory, {"store", "--host", "127.0.0.1", "--port", place.substr(place.find(':') + 1)})};
  REQUIRE(store.line("serving the rendezvous", patience));
  CHECK(ask(place).find("a server answers there already") != std::string::npos);
  Agent other{directory};
  CHECK(ask("127.0.0.1:" + std::to_string(other.port)).find("that is not elrun's rendezvous listens at") != std::string::npos);
}
