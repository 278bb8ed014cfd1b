// Statements 61 to 72: how nodes meet, lose each other and meet again.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <csignal>
#include <memory>

#include "launcher/supervise/supervisor.hpp"
#include "lib/base/fd.hpp"
#include "rendezvous/round/assign.hpp"
#include "tests/compat/support.hpp"
#include "tests/support/pods.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""s;

namespace {

// Agents whose workers say which world they are in, until `end`.
struct Worlds : Meeting {
  [[nodiscard]] std::string end_file() const { return folder.path() + "/end"; }
  [[nodiscard]] std::string death_file() const { return folder.path() + "/die"; }
  void end() const { std::ofstream{end_file()}; }

  [[nodiscard]] std::vector<std::string> program() const { return {"--no_python", "/bin/sh", program_of_test("world.sh"), end_file()}; }
  [[nodiscard]] Job::Setting agent(const std::string& nodes, const std::vector<std::string>& options = {},
                                   std::map<std::string, std::string> environment = {}) const {
    return node(nodes, joined(options, program()), std::move(environment));
  }
  [[nodiscard]] Job::Setting store() const { return {.arguments = {"store", "--host", "127.0.0.1", "--port", std::to_string(port)}}; }
};

// The next world that a worker of this agent found itself in, if it has this size.
std::string world_of(Job& job, int size) {
  const auto line = job.line("ready ", patience);
  INFO(job.output());
  REQUIRE(line);
  CHECK(word_after(*line, "world") == std::to_string(size));
  return *line;
}

// Listens for so many connections, and closes each at once: somebody is there, but not yet whom they look for.
bool hang_up_on(std::uint16_t port, int connections) {
  const elrun::Fd door{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (!door || ::setsockopt(door.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(door.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || ::listen(door.get(), 8) != 0)
    return false;
  for (int i = 0; i < connections; ++i) {
    pollfd ready{door.get(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(patience.count())) != 1) return false;
    const elrun::Fd guest{::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC)};
  }
  return true;
}

void same_master(const std::string& a, const std::string& b) {
  CHECK(word_after(a, "master") == word_after(b, "master"));
  CHECK(word_after(a, "port") == word_after(b, "port"));
  CHECK(word_after(a, "generation") == word_after(b, "generation"));
}

}  // namespace

TEST_CASE("61 two agents meet at host:port, and the master is the node of group rank 0", "[compat][process]") {
  Worlds worlds;
  Job a{worlds.agent("2", {"--local_addr", "127.0.0.2"})};
  Job b{worlds.agent("2", {"--local_addr", "127.0.0.3"})};
  const std::string in_a = world_of(a, 2), in_b = world_of(b, 2);
  same_master(in_a, in_b);
  const bool a_first = word_after(in_a, "group") == "0";
  CHECK(word_after(in_a, "group") == (a_first ? "0" : "1"));
  CHECK(word_after(in_b, "group") == (a_first ? "1" : "0"));
  CHECK(word_after(in_a, "master") == (a_first ? "127.0.0.2" : "127.0.0.3"));
  worlds.end();
  CHECK(a.wait(patience) == 0);
  CHECK(b.wait(patience) == 0);
}

TEST_CASE("62 one of 1:2 begins after last call, and begins again with the second, free of charge", "[compat][process]") {
  Worlds worlds;
  Job a{worlds.agent("1:2", {"--rdzv_conf", "last_call_timeout=1"})};
  const std::string alone = world_of(a, 1);
  Job b{worlds.agent("1:2", {"--rdzv_conf", "last_call_timeout=1"})};
  const std::string in_a = world_of(a, 2), in_b = world_of(b, 2);
  same_master(in_a, in_b);
  CHECK(word_after(in_a, "port") != word_after(alone, "port"));
  CHECK(word_after(in_a, "restarts") == "0");
  worlds.end();
  CHECK(a.wait(patience) == 0);
  CHECK(b.wait(patience) == 0);
}

TEST_CASE("63 a third node of two is a spare", "[compat][process]") {
  Worlds worlds;
  Job store{worlds.store()};
  REQUIRE(store.line("serving", patience));
  Job a{worlds.agent("2")};
  Job b{worlds.agent("2")};
  (void)world_of(a, 2);
  (void)world_of(b, 2);
  Job spare{worlds.agent("2")};
  REQUIRE(spare.line("is a spare", patience));
  SECTION("that takes the place of a lost one") {
    a.signal(SIGKILL);
    same_master(world_of(spare, 2), world_of(b, 2));
    worlds.end();
  }
  SECTION("that ends well with the job") {
    worlds.end();
    CHECK(a.wait(patience) == 0);
    CHECK_FALSE(spare.says("ready "));
  }
  CHECK(b.wait(patience) == 0);
  CHECK(spare.wait(patience) == 0);
}

// Last call is long, so that two nodes find each other however slow the machine is; after a loss it is not waited for.
TEST_CASE("64 the others notice an agent that was killed or fell silent, and go on", "[compat][process]") {
  Worlds worlds;
  const std::vector<std::string> watchful{"--rdzv_conf", "last_call_timeout=120,keep_alive_interval=0.5,keep_alive_max_attempt=10"};
  Job store{worlds.store()};
  REQUIRE(store.line("serving", patience));
  Job a{worlds.agent("1:2", watchful)};
  Job b{worlds.agent("1:2", watchful)};
  (void)world_of(a, 2);
  (void)world_of(b, 2);
  a.signal(GENERATE(SIGKILL, SIGSTOP));
  const std::string alone = world_of(b, 1);
  CHECK(word_after(alone, "group") == "0");
  CHECK(word_after(alone, "restarts") == "1");
  worlds.end();
  CHECK(b.wait(patience) == 0);
}

TEST_CASE("64 a training that loses a node goes on from its checkpoint, also on a node that has no such file", "[compat][process][torch]") {
  if (!has_torch()) return;
  Meeting meeting;
  const auto training = [&](const std::string& node) {  // each has files of its own
    return std::vector<std::string>{"--max_restarts",
                                    "3",
                                    "--rdzv_conf",
                                    "last_call_timeout=120",
                                    sample("ddp_mnist.py"),
                                    "--epochs",
                                    "30",
                                    "--samples",
                                    "200",
                                    "--pause",
                                    "0.3",
                                    "--checkpoint",
                                    meeting.folder.path() + "/" + node + ".pt"};
  };
  Job store{{.arguments = {"store", "--host", "127.0.0.1", "--port", std::to_string(meeting.port)}}};
  REQUIRE(store.line("serving", patience));
  Job a{meeting.node("1:2", training("a"))};
  Job b{meeting.node("1:2", training("b"))};
  REQUIRE(a.line("of 2: begins with epoch 0", patience));
  REQUIRE(b.line("of 2: begins with epoch 0", patience));
  // Rank 0 tells of the epochs; the other node is lost.
  Job& first = a.says("rank 0 of 2") ? a : b;
  Job& lost = &first == &a ? b : a;
  REQUIRE(first.line("epoch 2: ", patience));
  lost.signal(SIGKILL);
  const auto again = first.line("rank 0 of 1: begins with epoch ", patience);
  REQUIRE(again);
  CHECK(std::stoi(again->substr(again->rfind(' '))) >= 3);
  Job new_node{meeting.node("1:2", training("c"))};
  const auto joined = new_node.line("rank 1 of 2: begins with epoch ", patience);
  REQUIRE(joined);
  CHECK(std::stoi(joined->substr(joined->rfind(' '))) >= 3);
  CHECK(first.wait(patience) == 0);
  CHECK(new_node.wait(patience) == 0);
  CHECK(first.says("done after 30 epochs"));
}

TEST_CASE("65 the workers survive the host of the store", "[compat][process]") {
  Worlds worlds;
  auto store = std::make_unique<Job>(worlds.store());
  REQUIRE(store->line("serving", patience));
  Job a{worlds.agent("2")};
  Job b{worlds.agent("2")};
  (void)world_of(a, 2);
  (void)world_of(b, 2);
  store->signal(SIGKILL);
  REQUIRE(a.line("the workers go on", patience));
  REQUIRE(b.line("the workers go on", patience));
  store = std::make_unique<Job>(worlds.store());
  REQUIRE(a.line("is back", patience));
  REQUIRE(b.line("is back", patience));
  worlds.end();
  CHECK(a.wait(patience) == 0);
  CHECK(b.wait(patience) == 0);
  for (const Job* job : {&a, &b}) CHECK(reported_times(job->output(), "ready ") == 1);
}

TEST_CASE("66 an agent that is there 90 s before the host joins", "[compat][process]") {
  SECTION("its supervisor tries until the join deadline") {
    using namespace elrun::launcher;
    Supervisor supervisor{{.node = elrun::NodeId{"early"}, .coordinator = "host:29400"}};
    const elrun::Instant start{};
    (void)supervisor.on(Started{}, start);
    const auto joins = [](const std::vector<Action>& actions) {
      return std::any_of(actions.begin(), actions.end(), [](const Action& a) {
        const auto* send = std::get_if<Send>(&a);
        return send != nullptr && std::holds_alternative<elrun::Join>(send->message);
      });
    };
    for (auto at = 1s; at < 90s; at += 1s)
      for (const Action& action : supervisor.on(LinkDown{{elrun::Code::unreachable, elrun::Remedy::retry, "nobody there"}}, start + at))
        CHECK_FALSE(std::holds_alternative<Finish>(action));
    CHECK(supervisor.wake_at() == start + 600s);
    CHECK(joins(supervisor.on(LinkUp{}, start + 90s)));
  }
  SECTION("and its link finds whoever comes") {
    Worlds worlds;
    Job early{worlds.agent("2", {"--rdzv_conf", "is_host=0,read_timeout=1"})};
    REQUIRE(hang_up_on(worlds.port, 3));
    Job host{worlds.agent("2", {"--rdzv_conf", "read_timeout=1"})};
    same_master(world_of(early, 2), world_of(host, 2));
    worlds.end();
    CHECK(early.wait(patience) == 0);
    CHECK(host.wait(patience) == 0);
  }
}

TEST_CASE("67 the endpoint in whatever form, and what overrides it", "[compat][process]") {
  SECTION("is_host and local_addr") {
    Worlds worlds;
    Job guest{worlds.agent("2", {"--rdzv_conf", "is_host=0"})};
    REQUIRE(guest.line("waiting for the coordinator", patience));  // though the endpoint leads here
    // A name that leads nowhere: only an agent that is told so is its host.
    Job host{worlds.alone(joined({"--nnodes", "1", "--rdzv_endpoint", "nowhere.invalid:" + std::to_string(worlds.port), "--rdzv_backend",
                                  "c10d", "--rdzv_id", "job", "--rdzv_conf", "is_host=1", "--local_addr", "127.0.0.9"},
                                 worlds.program()))};
    const std::string alone = world_of(host, 1);
    CHECK(word_after(alone, "address") == "127.0.0.9");
    CHECK(word_after(alone, "master") == "127.0.0.9");
    worlds.end();
    CHECK(host.wait(patience) == 0);
    CHECK_FALSE(guest.says("serving"));
  }
  SECTION("address, whole name, short name, alias, name of a service") {
    const auto fabric = Fabric::create();
    if (!fabric) return;
    Pod a{*fabric, "a", 11}, b{*fabric, "b", 12};
    fabric->publish("coordinator", {a.address()});
    fabric->publish("meeting.svc", {a.address()});
    for (const std::string& host :
         {a.address(), std::string{"coordinator.job"}, std::string{"coordinator"}, std::string{"alias.job"}, std::string{"meeting"}}) {
      INFO(host);
      Worlds worlds;
      const auto options =
          joined({"--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", host + ":29400", "--rdzv_id", "job"}, worlds.program());
      Job& in_b = b.run(worlds.alone(options));
      Job& in_a = a.run(worlds.alone(options));
      same_master(world_of(in_a, 2), world_of(in_b, 2));
      worlds.end();
      CHECK(in_a.wait(patience) == 0);
      CHECK(in_b.wait(patience) == 0);
      CHECK(in_a.says("serving the rendezvous"));
      CHECK_FALSE(in_b.says("serving the rendezvous"));
    }
  }
}

TEST_CASE("68 jobs of different names never mix at one endpoint", "[compat][process]") {
  Worlds worlds;
  Job a{worlds.agent("1:2", {"--rdzv_conf", "last_call_timeout=1"})};
  (void)world_of(a, 1);
  Job other{worlds.agent("1:2", {"--rdzv_id", "another", "--rdzv_conf", "last_call_timeout=1"})};
  CHECK(other.wait(patience) == 78);
  CHECK(other.says("another"));
  CHECK_FALSE(other.says("ready "));
  worlds.end();
  CHECK(a.wait(patience) == 0);
  CHECK(reported_times(a.output(), "ready ") == 1);
}

TEST_CASE("69 node2 comes before node10, and whoever survives keeps its place", "[compat][process]") {
  SECTION("where nodes are chosen") {
    using elrun::Candidate;
    using elrun::NodeId;
    const auto order = [](const std::vector<elrun::Member>& members) {
      std::string names;
      for (const elrun::Member& m : members) names += m.node.value() + " ";
      return names;
    };
    const auto first = elrun::assign({Candidate{NodeId{"node10"}}, Candidate{NodeId{"node2"}}, Candidate{NodeId{"node1"}}}, {}, false);
    CHECK(order(first) == "node1 node2 node10 ");
    const auto later = elrun::assign({Candidate{NodeId{"node10"}}, Candidate{NodeId{"node0"}}, Candidate{NodeId{"node2"}}}, first, false);
    CHECK(order(later) == "node2 node10 node0 ");
  }
  SECTION("and under real names") {
    const auto in_host = [](const std::string& name, Job::Setting setting) {
      const std::vector<std::string> before{"--uts", "/bin/sh", "-c", "hostname " + name + " && exec \"$0\" \"$@\"", program_path("elrun")};
      setting.arguments = joined(before, setting.arguments);
      setting.program = "/usr/bin/unshare";
      return setting;
    };
    if (Job probe{{.arguments = {"--uts", "hostname", "probe"}, .program = "/usr/bin/unshare"}}; probe.wait(patience) != 0) {
      std::printf("SKIPPED: this user may not have a host name of its own\n");
      return;
    }
    Worlds worlds;
    Job::Setting setting = worlds.agent("2", {"--max_restarts", "1"});
    setting.arguments.push_back(worlds.death_file());
    Job ten{in_host("node10", setting)};
    REQUIRE(ten.line("joined", patience));
    Job two{in_host("node2", setting)};
    const std::string in_two = world_of(two, 2), in_ten = world_of(ten, 2);
    CHECK(word_after(in_two, "host") == "node2");
    CHECK(word_after(in_two, "rank") == "0");
    CHECK(word_after(in_ten, "rank") == "1");
    std::ofstream{worlds.death_file()};
    CHECK(word_after(world_of(two, 2), "rank") == "0");
    CHECK(word_after(world_of(ten, 2), "rank") == "1");
    worlds.end();
    CHECK(two.wait(patience) == 0);
    CHECK(ten.wait(patience) == 0);
  }
}

TEST_CASE("70 with --node-rank and a master address the ranks are as given", "[compat][process]") {
  Worlds worlds;
  const std::string port = std::to_string(free_master_port());
  const auto agent = [&](const std::string& rank) {
    return worlds.alone(
        joined({"--nnodes", "2", "--node-rank", rank, "--master-addr", "127.0.0.1", "--master-port", port}, worlds.program()));
  };
  Job second{agent("1")};
  REQUIRE(second.line("waiting for the coordinator", patience));
  Job first{agent("0")};
  const std::string in_first = world_of(first, 2), in_second = world_of(second, 2);
  same_master(in_first, in_second);
  CHECK(word_after(in_first, "group") == "0");
  CHECK(word_after(in_second, "group") == "1");
  CHECK(word_after(in_first, "port") == port);
  worlds.end();
  CHECK(first.wait(patience) == 0);
  CHECK(second.wait(patience) == 0);
}

TEST_CASE("70 the worker of rank 0 listens at the --master-port that was given, which is kept for it until it starts",
          "[compat][process]") {
  if (!std::filesystem::exists(torch_python())) return;
  Meeting meeting;
  const std::uint16_t port = free_master_port();
  const auto agent = [&](const std::string& rank, const std::vector<std::string>& program) {
    return meeting.alone(joined({"--nnodes", "2", "--nproc_per_node", "2", "--node-rank", rank, "--master-addr", "127.0.0.1",
                                 "--master-port", std::to_string(port)},
                                program));
  };
  SECTION("with sockets") {
    const std::vector<std::string> program{program_of_test("meet_at.py"), "127.0.0.1", std::to_string(port)};
    Job first{agent("0", program)};
    REQUIRE(first.line("joined", patience));
    CHECK_FALSE(is_free(port));
    Job second{agent("1", program)};
    CHECK(first.wait(patience) == 0);
    CHECK(second.wait(patience) == 0);
    CHECK(first.says("met ranks=1,2,3 port=" + std::to_string(port)));
    CHECK(second.says("told rank=3 port=" + std::to_string(port)));
  }
  SECTION("with torch") {
    if (!has_torch()) return;
    const std::vector<std::string> program{program_of_test("tcp_init.py"), std::to_string(port)};
    Job first{agent("0", program)}, second{agent("1", program)};
    CHECK(first.wait(patience) == 0);
    CHECK(second.wait(patience) == 0);
    CHECK(first.says("rank 0 of 4: sum 4"));
    CHECK(second.says("rank 3 of 4: sum 4"));
  }
}

TEST_CASE("70 the node that is to serve says when its port is taken", "[compat][process]") {
  Meeting meeting;
  const std::uint16_t port = free_master_port();
  const elrun::Fd outsider{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(elrun::launcher::meeting_port_beside(port));
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  REQUIRE(::bind(outsider.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(outsider.get(), 8) == 0);
  Job job{meeting.alone({"--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", std::to_string(port),
                         "--no_python", "/bin/true"})};
  CHECK(job.line("port " + std::to_string(elrun::launcher::meeting_port_beside(port)) + " of this machine is taken already", patience));
}

TEST_CASE("71 the join deadline says who is missing", "[compat][process]") {
  Worlds worlds;
  SECTION("of those that never came, by their number") {
    Job a{worlds.agent("2", {"--node-rank", "0", "--rdzv_conf", "join_timeout=4"})};
    CHECK(a.wait(patience) == 170);
    CHECK(a.says("1 of 2 nodes; missing: at least 1 (node rank 1)"));
  }
  SECTION("of those that are gone, by their name") {
    Job::Setting brief = worlds.store();
    brief.arguments = joined(brief.arguments, {"--rdzv_conf", "join_timeout=20"});
    Job store{std::move(brief)};
    REQUIRE(store.line("serving", patience));
    Job a{worlds.agent("2")};
    Job b{worlds.agent("2")};
    (void)world_of(a, 2);
    const std::string lost = word_after(world_of(b, 2), "node");
    b.signal(SIGKILL);
    CHECK(a.wait(patience) == 172);
    CHECK(a.says("gone: " + lost));
  }
}

TEST_CASE("72 clocks that differ by a minute do not matter", "[compat][process]") {
  Worlds worlds;
  const std::string library = test_program_path("libskewed_clock.so");
  const auto agent = [&](const std::string& skew) {
    const char* options = std::getenv("ASAN_OPTIONS");  // which else insists on being loaded first
    return worlds.agent("2", {"--rdzv_conf", "keep_alive_interval=0.5,keep_alive_max_attempt=10"},
                        {{"LD_PRELOAD", library},
                         {"ELRUN_TEST_SKEW", skew},
                         {"ASAN_OPTIONS", std::string{options == nullptr ? "" : options} + ":verify_asan_link_order=0"}});
  };
  Job early{agent("-60")}, late{agent("60")};
  const std::string in_early = world_of(early, 2), in_late = world_of(late, 2);
  CHECK(std::stoll(word_after(in_late, "time")) - std::stoll(word_after(in_early, "time")) > 60);
  same_master(in_early, in_late);
  CHECK(early.line("heartbeats were heard", 6s) == std::nullopt);  // longer than a node may be silent
  worlds.end();
  CHECK(early.wait(patience) == 0);
  CHECK(late.wait(patience) == 0);
  for (const Job* job : {&early, &late}) CHECK(reported_times(job->output(), "ready ") == 1);
}
