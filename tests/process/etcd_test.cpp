// Election against a real etcd server: the line to whoever is elected, and whole launchers.

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <list>

#include "rendezvous/election/elected_link.hpp"
#include "rendezvous/election/etcd_client.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/etcd.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {
namespace {

bool without_etcd() {
  if (Etcd::installed()) return false;
  WARN("SKIPPED: no etcd here (Debian: etcd-server, etcd-client)");
  return true;
}

constexpr Duration patience = 60s;   // only a failing test waits for so long
constexpr Duration unhurried = 20s;  // for an answer that comes: etcd may be writing to a slow disk

/// A server, and a loop that runs until something is so.
struct Stage {
  Etcd etcd;
  boost::asio::io_context loop;
  SteadyClock clock;
  Log log{"coordinator", [](Level, std::string_view) {}};
  Stage() { etcd.start(); }
  explicit Stage(const CertificateFiles& files) { etcd.start(files); }
  bool until(const std::function<bool()>& so) {
    const Instant end = clock.now() + patience;
    while (!so()) {
      if (clock.now() > end) return false;
      loop.restart();
      loop.run_one_for(100ms);
    }
    return true;
  }
  [[nodiscard]] Endpoint server() const { return {"127.0.0.1", etcd.port()}; }
};

/// An agent of few words: joins when it is told to, and keeps what it hears.
struct Agent {
  Stage& stage;
  std::string name;
  std::vector<Generation> worlds{};
  std::vector<std::string> down{};
  bool up = false;
  std::unique_ptr<ElectedLink> link{};

  void stand(std::vector<Endpoint> servers, std::uint64_t seed, Access access = {}) {
    ElectionSetting setting{.etcd = std::move(servers), .run = RunId{"run"}, .access = std::move(access), .seed = seed};
    setting.timeouts.lease = 30s;  // longer than a busy machine keeps this thread from renewing it; no case waits for its end
    link = connect_through_etcd(stage.loop, stage.clock, stage.log, std::move(setting),
                                {.connected = [this] { up = true; },
                                 .disconnected = [this](const Failure& why) { up = false, down.push_back(why.what); },
                                 .message =
                                     [this](const CoordinatorMessage& message) {
                                       if (const auto* world = std::get_if<World>(&message)) worlds.push_back(world->generation);
                                     }},
                                [] {});
  }
  void join() {
    Join message;
    message.who = {NodeId{name}, 1};
    message.run = RunId{"run"};
    message.version = "0.1.0";
    message.address = "127.0.0.1";
    message.master_port = 1;
    if (!worlds.empty()) message.last = worlds.back();
    link->send(message);
  }
};

}  // namespace

TEST_CASE("etcd rejects writes of an agent that is no longer the leader", "[etcd]") {
  if (without_etcd()) return;
  Stage stage;
  // The first server does not answer: the second one is asked.
  const auto client = EtcdClient::create(stage.loop, {{"127.0.0.1", free_port()}, stage.server()}, unhurried, {});
  std::optional<Lease> lease;
  REQUIRE(stage.until([&] {
    bool answered = false;
    client->grant(60s, [&](const Result<Lease>& granted) {
      answered = true;
      if (granted.ok()) lease = *granted;
    });
    REQUIRE(stage.until([&] { return answered; }));
    return lease.has_value();  // the server may be starting
  }));
  const auto transact = [&](const EtcdTransaction& transaction) {
    std::optional<EtcdOutcome> outcome;
    client->transact(transaction, [&](const Result<EtcdOutcome>& done) { outcome = done.value(); });
    REQUIRE(stage.until([&] { return outcome.has_value(); }));
    return *outcome;
  };
  const EtcdOutcome first = transact({.guard = "k", .writes = {{"k", "mine", lease->id}}, .reads = {"k", "other"}});
  CHECK(first.written);
  REQUIRE(first.read[0]);
  CHECK_FALSE(first.read[1]);
  CHECK(first.read[0]->lease == lease->id);
  const Revision created = first.read[0]->created;

  CHECK_FALSE(transact({.guard = "k", .writes = {{"k", "yours"}}}).written);  // it exists
  CHECK_FALSE(transact({.guard = "k", .created = Revision{created.value() + 1}, .writes = {{"k", "yours"}}}).written);
  // As in an etcd that was begun anew, where another coordinator's key has the revision that this one's had.
  CHECK_FALSE(transact({.guard = "k", .created = created, .lease = LeaseId{lease->id.value() + 1}, .writes = {{"k", "yours"}}}).written);
  const EtcdOutcome again =
      transact({.guard = "k", .created = created, .lease = lease->id, .writes = {{"k", "still mine", lease->id}}, .reads = {"k"}});
  CHECK(again.written);
  CHECK(again.read[0]->value == "still mine");
  CHECK(again.read[0]->created == created);

  std::optional<Duration> left;
  client->keep_alive(lease->id, [&](const Result<Duration>& kept) { left = kept.value(); });
  REQUIRE(stage.until([&] { return left.has_value(); }));
  CHECK(*left >= 1s);
  bool revoked = false;
  client->revoke(lease->id, [&](const Result<Lease>& done) { revoked = done.ok(); });
  REQUIRE(stage.until([&] { return revoked; }));
  left.reset();
  client->keep_alive(lease->id, [&](const Result<Duration>& kept) { left = kept.value(); });
  REQUIRE(stage.until([&] { return left.has_value(); }));
  CHECK(*left == 0s);
  bool gone = false;
  client->read("k", [&](const Result<std::optional<EtcdValue>>& found) { gone = found.ok() && !*found; });
  CHECK(stage.until([&] { return gone; }));
}

using Hosts = std::vector<std::string>;

/// Any name but a literal leads to `hosts`.
Resolver leads_to(Hosts hosts) {
  return [hosts = std::move(hosts)](const std::string& name, std::uint16_t port) {
    if (const auto literal = literal_address(name, port)) return Result{std::vector{*literal}};
    std::vector<SocketAddress> addresses;
    for (const std::string& host : hosts) addresses.push_back(literal_address(host, port).value());
    return Result{addresses};
  };
}

Result<std::optional<EtcdValue>> read_of(Stage& stage, EtcdClient& client) {
  std::optional<Result<std::optional<EtcdValue>>> found;
  client.read("k", [&](const Result<std::optional<EtcdValue>>& answer) { found = answer; });
  REQUIRE(stage.until([&] { return found.has_value(); }));
  return *found;
}

TEST_CASE("etcd is asked at every address that a server's name leads to", "[etcd]") {
  if (without_etcd()) return;
  Stage stage;
  const auto read = [&](EtcdClient& client) { return read_of(stage, client); };
  const auto literal = EtcdClient::create(stage.loop, {stage.server()}, 2s, {});
  REQUIRE(stage.until([&] { return read(*literal).ok(); }));  // the server is there

  // It serves at 127.0.0.1 alone.
  const auto client =
      EtcdClient::create(stage.loop, {{"etcd.test", stage.etcd.port()}}, unhurried, {}, leads_to({"127.0.0.2", "127.0.0.3", "127.0.0.1"}));
  CHECK(read(*client).ok());
  CHECK(read(*client).ok());
  stage.etcd.kill();
  CHECK_FALSE(read(*client).ok());
  stage.etcd.start();
  CHECK(stage.until([&] { return read(*client).ok(); }));

  const auto nowhere = EtcdClient::create(stage.loop, {{"etcd.test", stage.etcd.port()}, {"other.test", stage.etcd.port()}}, 2s, {},
                                          leads_to({"127.0.0.2", "127.0.0.3"}));
  const auto none = read(*nowhere);
  REQUIRE_FALSE(none.ok());
  CHECK(none.failure().code == Code::unreachable);
  CHECK(none.failure().what.find("other.test:" + std::to_string(stage.etcd.port()) + " (127.0.0.3:") != std::string::npos);
}

TEST_CASE("a server of etcd that is silent at all its addresses costs one limit, and each visit another address", "[etcd]") {
  if (without_etcd()) return;
  Stage stage;
  REQUIRE(stage.until([&] { return read_of(stage, *EtcdClient::create(stage.loop, {stage.server()}, 2s, {})).ok(); }));
  // Who connects is never accepted, and waits.
  const auto silent = [&](const std::string& host) { return listen_on(literal_address(host, stage.etcd.port()).value()).value(); };
  const auto was_asked = [](const Fd& listener) { return accept_one(listener.get()).value().has_value(); };
  const Fd first = silent("127.0.0.2"), second = silent("127.0.0.3");
  const Endpoint name{"etcd.test", stage.etcd.port()};

  std::unique_ptr<EtcdClient> client;
  REQUIRE(stage.until([&] {  // etcd has the same limit, and is late where its disk is
    client = EtcdClient::create(stage.loop, {name, stage.server()}, 1s, {}, leads_to({"127.0.0.2", "127.0.0.3"}));
    const bool has_read = read_of(stage, *client).ok();
    return was_asked(first) && has_read;
  }));
  CHECK_FALSE(was_asked(second));
  stage.etcd.kill();
  CHECK_FALSE(read_of(stage, *client).ok());
  CHECK(was_asked(second));
  CHECK_FALSE(was_asked(first));
  stage.etcd.start();

  const auto alone = EtcdClient::create(stage.loop, {name}, 1s, {}, leads_to({"127.0.0.2", "127.0.0.1"}));
  CHECK_FALSE(read_of(stage, *alone).ok());
  CHECK(was_asked(first));
  CHECK(stage.until([&] { return read_of(stage, *alone).ok(); }));
}

TEST_CASE("a machine's address is the one from which etcd was reached", "[etcd]") {
  if (without_etcd()) return;
  Stage stage;
  const auto client = EtcdClient::create(stage.loop, {{"etcd.test", stage.etcd.port()}}, 2s, {},
                                         leads_to({"127.0.0.1", "::1"}));  // it serves the first alone
  REQUIRE(stage.until([&] { return read_of(stage, *client).ok(); }));
  CHECK(client->local_address() == "127.0.0.1");
  stage.etcd.kill();
  for (int i = 0; i < 2; ++i) {
    CHECK_FALSE(read_of(stage, *client).ok());
    CHECK(client->local_address() == "127.0.0.1");
  }
}

TEST_CASE("a machine keeps its address while there is no way to etcd", "[etcd]") {
  if (without_etcd()) return;
  Stage stage;
  // There is no way to a broadcast address for who did not ask for one.
  const auto client = EtcdClient::create(stage.loop, {stage.server(), {"255.255.255.255", stage.etcd.port()}}, 2s, {});
  const auto reads = [&] {
    std::optional<bool> read;
    client->read("k", [&](const Result<std::optional<EtcdValue>>& answer) { read = answer.ok(); });
    REQUIRE(stage.until([&] { return read.has_value(); }));
    return *read;
  };
  CHECK(client->local_address().empty());
  REQUIRE(stage.until([&] { return reads(); }));
  CHECK(client->local_address() == "127.0.0.1");
  stage.etcd.kill();
  for (int i = 0; i < 4; ++i) {
    CHECK_FALSE(reads());
    CHECK(client->local_address() == "127.0.0.1");
  }
}

TEST_CASE("one of three is elected, and the next one when it resigns", "[etcd]") {
  if (without_etcd()) return;
  Stage stage;
  std::list<Agent> agents;  // its links know where an agent is
  for (std::uint64_t seed = 0; seed < 3; ++seed) agents.emplace_back(Agent{stage, "agent"}).stand({stage.server()}, seed);
  const auto all_up = [&] { return std::all_of(agents.begin(), agents.end(), [](const Agent& a) { return a.up; }); };
  const auto leaders = [&] {
    return std::count_if(agents.begin(), agents.end(), [](const Agent& a) { return a.link && a.link->coordinator() != nullptr; });
  };
  REQUIRE(stage.until(all_up));
  CHECK(leaders() == 1);
  const auto leader = std::find_if(agents.begin(), agents.end(), [](const Agent& a) { return a.link->coordinator() != nullptr; });
  bool resigned = false;
  leader->link->resign([&] { resigned = true; });
  REQUIRE(stage.until([&] { return resigned; }));
  agents.erase(leader);
  for (Agent& agent : agents) agent.up = false;
  REQUIRE(stage.until(all_up));
  CHECK(leaders() == 1);
}

TEST_CASE("a coordinator whose leadership is another's begins no generation", "[etcd]") {
  if (without_etcd()) return;
  Stage stage;
  Agent agent{stage, "a"};
  agent.stand({stage.server()}, 1);
  REQUIRE(stage.until([&] { return agent.up; }));
  agent.join();
  REQUIRE(stage.until([&] { return agent.worlds.size() == 1; }));
  CHECK(stage.etcd.value("/elrun/run/state").starts_with("1 "));

  // As if its lease had ended while it was paused: its key is gone, another could be there.
  const auto client = EtcdClient::create(stage.loop, {stage.server()}, unhurried, {});
  std::optional<LeaseId> lease;
  client->read("/elrun/run/leader", [&](const Result<std::optional<EtcdValue>>& found) { lease = found.value()->lease; });
  REQUIRE(stage.until([&] { return lease.has_value(); }));
  bool revoked = false;
  client->revoke(*lease, [&](const Result<Lease>&) { revoked = true; });
  REQUIRE(stage.until([&] { return revoked; }));
  agent.join();  // the generation is given up: the next one is due at once
  REQUIRE(stage.until([&] { return !agent.up; }));
  CHECK(agent.down.back().find("no longer") != std::string::npos);
  CHECK(agent.worlds.size() == 1);
  CHECK(stage.etcd.value("/elrun/run/state").starts_with("1 "));

  REQUIRE(stage.until([&] { return agent.up; }));
  agent.join();
  REQUIRE(stage.until([&] { return agent.worlds.size() == 2; }));
  CHECK(agent.worlds[1].number > 1);
  CHECK(agent.worlds[1].lineage != agent.worlds[0].lineage);
}

TEST_CASE("etcd is spoken to by mutual TLS, and a certificate of an outsider is none", "[etcd]") {
  if (without_etcd()) return;
  TemporaryDirectory directory, elsewhere;
  const CertificateAuthority authority{directory.path()}, outsider{elsewhere.path()};
  const CertificateFiles own = authority.sign("node", {"127.0.0.1"}), strange = outsider.sign("node", {"127.0.0.1"});
  Stage stage{own};
  Agent a{stage, "a"}, b{stage, "b"};
  b.stand({stage.server()}, 2, {.ca_file = own.ca, .certificate_file = strange.certificate, .key_file = strange.key});
  a.stand({stage.server()}, 1, {.ca_file = own.ca, .certificate_file = own.certificate, .key_file = own.key});
  REQUIRE(stage.until([&] { return a.up; }));
  CHECK(a.link->coordinator() != nullptr);
  // What it says once the server is up: not that nobody listens.
  REQUIRE(stage.until([&] { return !b.down.empty() && b.down.back().find("Connection refused") == std::string::npos; }));
  CHECK_FALSE(b.up);
  CHECK(b.link->coordinator() == nullptr);
}

// --- launchers -------------------------------------------------------------------------------------------------------

namespace {

std::string worker() { return test_program_path("launcher_worker"); }

struct Cluster {
  TemporaryDirectory directory;
  Etcd etcd;
  /// A lease and a limit of silence of 6 s: the cases wait for their end where a node falls silent, and nowhere else may a busy machine keep a thread for so long.
  std::string conf = "lease_ttl=6,last_call_timeout=60,keep_alive_interval=1.2";
  Cluster() { etcd.start(); }

  [[nodiscard]] Job::Setting agent(const std::string& nodes, const std::string& workers, const std::vector<std::string>& mode) const {
    std::vector<std::string> arguments{
        "--nnodes",  nodes, "--nproc_per_node", workers, "--rdzv_backend", "etcd", "--rdzv_endpoint", etcd.endpoint(),
        "--rdzv_id", "job", "--max_restarts",   "5",     "--rdzv_conf",    conf,   "--no_python",     worker()};
    arguments.insert(arguments.end(), mode.begin(), mode.end());
    return {.arguments = std::move(arguments), .environment = {{"XDG_RUNTIME_DIR", directory.path()}}};
  }
  [[nodiscard]] std::string state() const { return etcd.value("/elrun/job/state"); }
  /// Whether there is no leader's key any more: an agent that ends does not wait until etcd has written that to its disk.
  [[nodiscard]] bool leader_goes() const {
    for (const auto end = std::chrono::steady_clock::now() + patience; std::chrono::steady_clock::now() < end;)
      if (etcd.value("/elrun/job/leader").empty()) return true;
    return false;
  }
};

std::size_t count_in(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

/// The one worker of an agent.
pid_t worker_of(const Job& agent) {
  const std::vector<pid_t> workers = agent.children_named("launcher_worker");
  REQUIRE(workers.size() == 1);
  return workers.front();
}

/// Only a failing test waits for so long; it is less than the times that a case makes long to tell apart what does not wait for them.
constexpr Wait in_time{60'000};

/// Reads what both say until one of them says it.
bool either_says(Job& a, Job& b, const std::string& text) {
  for (int i = 0; i < 200; ++i)
    if (a.line(text, Wait{100}) || b.line(text, Wait{100})) return true;
  return false;
}

}  // namespace

TEST_CASE("launchers elect a coordinator through etcd, and leave nothing there but the generation", "[etcd]") {
  if (without_etcd()) return;
  Cluster cluster;
  Job a{cluster.agent("3", "1", {"environment", "WORLD_SIZE"})};
  Job b{cluster.agent("3", "1", {"environment", "WORLD_SIZE"})};
  Job c{cluster.agent("3", "1", {"environment", "WORLD_SIZE"})};
  CHECK(a.wait() == 0);
  CHECK(b.wait() == 0);
  CHECK(c.wait() == 0);
  const std::string all = a.output() + b.output() + c.output();
  CHECK(count_in(all, "elected to coordinate") == 1);
  CHECK(count_in(all, "WORLD_SIZE=3") == 3);
  CHECK(cluster.state().starts_with("1 "));
  CHECK(cluster.leader_goes());
}

TEST_CASE("the coordinator's node dies, or is frozen: another agent coordinates, and no worker restarts", "[etcd]") {
  if (without_etcd()) return;
  Cluster cluster;
  Job first{cluster.agent("2:3", "0", {"wait"})};
  REQUIRE(first.line("elected to coordinate"));
  Job a{cluster.agent("2:3", "1", {"wait"})};
  Job b{cluster.agent("2:3", "1", {"wait"})};
  REQUIRE(a.line("ready"));
  REQUIRE(b.line("ready"));
  const pid_t worker_a = worker_of(a), worker_b = worker_of(b);
  const bool frozen = GENERATE(false, true);
  first.signal(frozen ? SIGSTOP : SIGKILL);
  REQUIRE(either_says(a, b, "elected to coordinate"));
  REQUIRE(either_says(a, b, "generation 1"));  // goes on
  if (frozen) {
    first.signal(SIGCONT);
    CHECK(first.line("this agent coordinates no longer"));
  }
  CHECK(worker_of(a) == worker_a);
  CHECK(worker_of(b) == worker_b);
  CHECK(cluster.state().starts_with("1 "));

  ::kill(worker_a, SIGKILL);  // the new coordinator is a whole one: the next generation is above
  CHECK(a.line("ready"));
  CHECK(b.line("ready"));
  CHECK(cluster.state().starts_with("2 "));
}

TEST_CASE("etcd is killed and started again: what runs goes on, what is new waits for it", "[etcd]") {
  if (without_etcd()) return;
  Cluster cluster;
  Job a{cluster.agent("2", "1", {"wait"})};
  REQUIRE(a.line("elected to coordinate"));
  Job b{cluster.agent("2", "1", {"wait"})};
  REQUIRE(a.line("ready"));
  REQUIRE(b.line("ready"));
  const pid_t worker_a = worker_of(a), worker_b = worker_of(b);

  cluster.etcd.kill();
  REQUIRE(a.line("etcd has not answered"));  // for a whole lease
  cluster.etcd.start();
  REQUIRE(a.line("the lease in etcd is renewed"));
  CHECK(worker_of(a) == worker_a);
  CHECK(worker_of(b) == worker_b);
  CHECK(count_in(a.output() + b.output(), "elected to coordinate") == 1);

  cluster.etcd.kill();
  ::kill(worker_b, SIGKILL);
  REQUIRE(a.line("cannot be written to etcd yet"));
  REQUIRE(b.line("cannot be written to etcd yet"));
  CHECK_FALSE(a.line("ready", Wait{500}));
  CHECK_FALSE(b.says("generation=2"));
  cluster.etcd.start();
  CHECK(a.line("generation=2"));
  CHECK(b.line("generation=2"));
  CHECK(cluster.state().starts_with("2 "));

  // All of the job is gone, and etcd keeps the number.
  a.signal(SIGKILL);
  b.signal(SIGKILL);
  Job c{cluster.agent("2", "1", {"wait"})};
  Job d{cluster.agent("2", "1", {"wait"})};
  CHECK(c.line("generation=3"));
  CHECK(d.line("generation=3"));
}

TEST_CASE("etcd is away when a job ends, and stays away: its nodes end as their coordinator had decided", "[etcd]") {
  if (without_etcd()) return;
  Cluster cluster;
  cluster.conf += ",coordinator_grace=8";
  Job a{cluster.agent("2", "1", {"wait"})}, b{cluster.agent("2", "1", {"wait"})};
  for (Job* job : {&a, &b}) REQUIRE(job->line("ready"));
  cluster.etcd.kill();
  for (Job* job : {&a, &b}) ::kill(worker_of(*job), SIGTERM);  // these end with 0 then
  CHECK(a.wait(Wait{60000}) == 0);
  CHECK(b.wait(Wait{60000}) == 0);
  for (Job* job : {&a, &b}) {
    INFO(job->output());
    CHECK(job->says("the job ends as the last coordinator had decided, who could not write that to etcd"));
  }
}

TEST_CASE("etcd loses its data together with the coordinator: the others meet all the same, above every generation that they know",
          "[etcd]") {
  if (without_etcd()) return;
  Cluster cluster;
  Job first{cluster.agent("2:3", "0", {"wait"})};
  REQUIRE(first.line("elected to coordinate"));
  Job a{cluster.agent("2:3", "1", {"wait"})}, b{cluster.agent("2:3", "1", {"wait"})};
  REQUIRE(a.line("ready"));
  REQUIRE(b.line("ready"));
  const pid_t worker_a = worker_of(a), worker_b = worker_of(b);
  first.signal(SIGKILL);
  cluster.etcd.kill();
  cluster.etcd.lose_data();
  cluster.etcd.start();  // its first key has the revision that the first coordinator's had
  REQUIRE(either_says(a, b, "elected to coordinate"));
  REQUIRE(either_says(a, b, "goes on: all of its 2 nodes are here"));
  CHECK(worker_of(a) == worker_a);
  CHECK(worker_of(b) == worker_b);
  ::kill(worker_a, SIGKILL);
  CHECK(a.line("generation=2"));
  CHECK(b.line("generation=2"));
  CHECK(cluster.state().starts_with("2 "));
}

TEST_CASE("the coordinator's node falls silent: it is lost as any other node is, and comes back as one", "[etcd]") {
  if (without_etcd()) return;
  Cluster cluster;
  cluster.conf = "lease_ttl=6,last_call_timeout=3600,coordinator_grace=3600,keep_alive_interval=1.2";
  Job first{cluster.agent("2:3", "1", {"wait"})};
  REQUIRE(first.line("elected to coordinate"));
  Job a{cluster.agent("2:3", "1", {"wait"})}, b{cluster.agent("2:3", "1", {"wait"})};
  for (Job* job : {&first, &a, &b}) REQUIRE(job->line("ready"));
  const pid_t worker = worker_of(first);
  ::kill(worker, SIGSTOP);
  first.signal(SIGSTOP);
  REQUIRE(a.line("generation=2", in_time));  // a lease and a limit of silence of 6 s later
  REQUIRE(b.line("generation=2", in_time));
  ::kill(worker, SIGCONT);
  first.signal(SIGCONT);
  for (Job* job : {&first, &a, &b}) CHECK(job->line("generation=3", Wait{60000}));
}

TEST_CASE("the coordinator's node leaves in order: the others go on at once, under another", "[etcd]") {
  if (without_etcd()) return;
  Cluster cluster;
  cluster.conf = "lease_ttl=3600,last_call_timeout=3600,coordinator_grace=7200,keep_alive_interval=10";
  Job first{cluster.agent("2:3", "1", {"wait"})};
  REQUIRE(first.line("elected to coordinate"));
  Job a{cluster.agent("2:3", "1", {"wait"})}, b{cluster.agent("2:3", "1", {"wait"})};
  for (Job* job : {&first, &a, &b}) REQUIRE(job->line("ready"));
  first.signal(SIGTERM);
  CHECK(first.wait(in_time) == 128 + SIGTERM);
  const bool both = a.line("generation=2", in_time) && b.line("generation=2", in_time);
  INFO("the one that left:\n" << first.output() << "\nthe others:\n" << a.output() << "\n" << b.output());
  REQUIRE(both);
  const std::string elected = "elected to coordinate";  // before that or after it
  REQUIRE((a.says(elected) || b.says(elected) || either_says(a, b, elected)));
  const pid_t worker_a = worker_of(a), worker_b = worker_of(b);
  CHECK_FALSE(a.line("generation=3", Wait{2000}));
  CHECK(worker_of(a) == worker_a);
  CHECK(worker_of(b) == worker_b);
}

TEST_CASE("the coordinator's node and another one leave in order: the one that stays is elected, and no other", "[etcd]") {
  if (without_etcd()) return;
  Cluster cluster;
  Job first{cluster.agent("1:4", "1", {"wait"})};
  REQUIRE(first.line("elected to coordinate"));
  Job a{cluster.agent("1:4", "1", {"wait"})}, b{cluster.agent("1:4", "1", {"wait"})}, c{cluster.agent("1:4", "1", {"wait"})};
  for (Job* job : {&first, &a, &b, &c}) REQUIRE(job->line("ready"));
  std::vector<pid_t> slow;  // these leave for long: their workers do not end
  for (Job* job : {&a, &b}) {
    slow.push_back(worker_of(*job));
    ::kill(slow.back(), SIGSTOP);
    job->signal(SIGTERM);
  }
  for (Job* job : {&a, &b}) REQUIRE(job->line("forwarded to 1 worker"));  // else it may not have seen the signal when the first one resigns
  first.signal(SIGTERM);
  CHECK(first.wait() == 128 + SIGTERM);
  CHECK(c.line("elected to coordinate", Wait{60000}));
  for (Job* job : {&a, &b}) CHECK_FALSE(job->says("elected to coordinate"));
  for (const pid_t worker : slow) ::kill(worker, SIGKILL);
  for (Job* job : {&a, &b}) CHECK(job->wait() == 128 + SIGTERM);
}

}  // namespace elrun::test
