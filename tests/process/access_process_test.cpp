// Who may take part, with real processes and gRPC: certificates, tokens, and what is said where one side lacks them.
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>

#include <boost/asio/ip/tcp.hpp>

#include "rendezvous/net/node_link.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/certificates.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {
namespace {

using Catch::Matchers::Contains;

std::string worker() { return test_program_path("launcher_worker"); }

/// A coordinator and one link in this process.
struct Stage {
  boost::asio::io_context loop;
  SteadyClock clock;
  std::string said;
  Log log{"coordinator", [this](Level, std::string_view line) { said.append(line).append("\n"); }};
  Timeouts timeouts;
  std::unique_ptr<Coordinator> coordinator;
  std::uint16_t port = 0;
  std::unique_ptr<NodeLink> link{};
  std::vector<CoordinatorMessage> heard{};
  std::vector<std::string> down{};

  explicit Stage(const Access& access) {
    coordinator = Coordinator::create(loop, clock, log, {.run = RunId{"run"}, .timeouts = timeouts, .access = access});
    const auto bound = coordinator->serve("127.0.0.1", 0);
    REQUIRE(bound.ok());
    port = *bound;
  }
  void connect(const Access& access, const std::string& host = "localhost") {
    heard.clear();
    down.clear();
    const NodeLink::Handler handler{.connected =
                                        [this] {
                                          Join join;
                                          join.who = {NodeId{"node"}, 1};
                                          join.run = RunId{"run"};
                                          join.version = "0.1.0";
                                          join.address = "127.0.0.1";
                                          link->send(join);
                                        },
                                    .disconnected = [this](const Failure& why) { down.push_back(why.what); },
                                    .message = [this](const CoordinatorMessage& message) { heard.push_back(message); }};
    link = connect_to_coordinator(loop, {host, port}, timeouts, 1, handler, access);
  }
  bool until(const std::function<bool()>& so) {
    const Instant end = clock.now() + 20s;
    while (!so()) {
      if (clock.now() > end) return false;
      loop.restart();
      loop.run_one_for(100ms);
    }
    return true;
  }
  /// "in", the reason of a refusal, or the first reason why there is no connection.
  std::string outcome() {
    REQUIRE(until([&] { return !heard.empty() || !down.empty(); }));
    if (heard.empty()) return down.front();
    if (const auto* refused = std::get_if<Refused>(&heard.front())) {
      CHECK(refused->failure.remedy == Remedy::fix_config);
      return "refused: " + refused->failure.what;
    }
    return "in";
  }
  std::string try_with(const Access& access, const std::string& host = "localhost") {
    connect(access, host);
    return outcome();
  }
};

Access tls(const CertificateFiles& files) { return {.ca_file = files.ca, .certificate_file = files.certificate, .key_file = files.key}; }

}  // namespace

TEST_CASE("with TLS each side shows a certificate of the same authority", "[access][grpc]") {
  const TemporaryDirectory directory;
  const CertificateAuthority authority{directory.path()}, other{directory.path(), "other"};
  const Access coordinator = tls(authority.sign("coordinator", {"localhost", "127.0.0.1"}));
  const Access node = tls(authority.sign("node", {}));
  Stage stage{coordinator};
  SECTION("of the name in the endpoint, or of the address where the endpoint is one") {
    CHECK(stage.try_with(node) == "in");
    CHECK(stage.try_with(node, "127.0.0.1") == "in");
    CHECK_THAT(stage.try_with(node, "127.0.0.2"), Contains("127.0.0.2") && !Contains("does it"));  // nobody is there
  }
  SECTION("never of another name that leads there") {
    Stage misnamed{tls(authority.sign("misnamed", {"elsewhere"}))};
    CHECK_THAT(misnamed.try_with(node), Contains("Peer name localhost is not in peer certificate"));
  }
  SECTION("a node of another authority, either way round") {
    Access outsider = tls(other.sign("outsider", {"localhost"}));
    CHECK_THAT(stage.try_with(outsider), Contains("certificate for localhost"));  // it does not believe the coordinator
    outsider.ca_file = node.ca_file;
    CHECK_THAT(stage.try_with(outsider), Contains("certificate for localhost"));  // nor is it believed
  }
  SECTION("a node whose certificate is over") {
    CHECK_THAT(stage.try_with(tls(authority.sign("late", {}, -60))), Contains("certificate for localhost"));
  }
  SECTION("a node without TLS is told what to do, and so is the coordinator's log") {
    CHECK_THAT(stage.try_with({}), Contains("does it demand TLS"));
    CHECK_THAT(stage.said, Contains("connections without TLS"));
  }
  SECTION("a coordinator without TLS, the same") {
    Stage plain{{}};
    CHECK_THAT(plain.try_with(node), Contains("does it speak TLS too") && Contains("Ssl handshake failed"));
    CHECK_THAT(plain.said, Contains("connections with TLS"));
  }
  SECTION("a certificate that was replaced is used at the next attempt") {
    Access late = tls(authority.sign("rotated", {}, -60));
    stage.connect(late);
    REQUIRE(stage.until([&] { return !stage.down.empty(); }));
    CHECK(stage.heard.empty());
    (void)authority.sign("rotated", {});
    REQUIRE(stage.until([&] { return !stage.heard.empty(); }));
  }
}

TEST_CASE("a connection that is reset or unanswered is reported as a port that may be full, not as missing TLS", "[access][grpc]") {
  const TemporaryDirectory directory;
  const CertificateAuthority authority{directory.path()};
  Stage stage{{}};
  boost::asio::ip::tcp::acceptor other{stage.loop, {boost::asio::ip::address_v4::loopback(), 0}};
  stage.port = other.local_endpoint().port();
  const bool is_reset = GENERATE(true, false);
  boost::asio::ip::tcp::socket peer{stage.loop};
  if (is_reset)
    other.async_accept(peer, [&](const boost::system::error_code&) {
      peer.set_option(boost::asio::socket_base::linger{true, 0});
      peer.close();
    });
  const Access access = GENERATE(false, true) ? tls(authority.sign("node", {})) : Access{};
  CHECK_THAT(stage.try_with(access), Contains("its port may be full of connections that never authenticate") &&
                                         Contains(is_reset ? "reset by peer" : "no answer within 5 s") && !Contains("TLS"));
}

TEST_CASE("a coordinator takes up replaced certificates while it serves", "[access][grpc]") {
  const TemporaryDirectory directory;
  const CertificateAuthority authority{directory.path()};
  const CertificateFiles files = authority.sign("coordinator", {"elsewhere"});
  const Access node = tls(authority.sign("node", {}));
  Stage stage{tls(files)};
  stage.connect(node);
  REQUIRE(stage.until([&] { return !stage.down.empty(); }));
  (void)authority.sign("coordinator", {"localhost"});
  CHECK(stage.until([&] { return !stage.heard.empty(); }));
}

TEST_CASE("with a token both sides have the same, or the node is refused for good and told who lacks it", "[access][grpc]") {
  const Access with{.token = Secret{"a token that nobody guesses"}};
  SECTION("the same") {
    Stage stage{with};
    CHECK(stage.try_with(with) == "in");
  }
  SECTION("another") {
    Stage stage{with};
    CHECK_THAT(stage.try_with({.token = Secret{"another token"}}), Contains("refused: ") && Contains("not the coordinator's"));
    CHECK_THAT(stage.said, Contains("whose token is missing, wrong or not asked for"));
    CHECK_THAT(stage.said, !Contains("another token"));
  }
  SECTION("the node has none") {
    Stage stage{with};
    CHECK_THAT(stage.try_with({}), Contains("refused: ") && Contains("this node has none"));
  }
  SECTION("the coordinator has none") {
    Stage stage{{}};
    CHECK_THAT(stage.try_with(with), Contains("refused: ") && Contains("the coordinator has none"));
  }
}

TEST_CASE("elrun and elrun store meet with certificates and a token, of which workers see nothing", "[access][process][grpc]") {
  const TemporaryDirectory directory;
  const CertificateAuthority authority{directory.path()};
  const CertificateFiles files = authority.sign("node", {"localhost"});
  const std::string token = "a-token-that-nobody-guesses";
  write_file(directory.path() + "/token", token + "\n");
  const std::string port = std::to_string(free_port());
  const std::string conf = "cacert=" + files.ca + ",cert=" + files.certificate + ",key=" + files.key;
  const auto agent = [&](std::map<std::string, std::string> environment, std::vector<std::string> mode) {
    environment.emplace("XDG_RUNTIME_DIR", directory.path());
    std::vector<std::string> arguments{"--nnodes",        "1:2",
                                       "--rdzv_backend",  "c10d",
                                       "--rdzv_endpoint", "localhost:" + port,
                                       "--rdzv_id",       "job",
                                       "--rdzv_conf",     "is_host=0,last_call_timeout=0.1,join_timeout=20," + conf,
                                       "--no_python",     worker()};
    arguments.insert(arguments.end(), mode.begin(), mode.end());
    return Job::Setting{.arguments = std::move(arguments), .environment = std::move(environment)};
  };
  Job store{
      {.arguments = {"store", "--host", "127.0.0.1", "--port", port, "--rdzv_conf", conf + ",token_file=" + directory.path() + "/token"}}};
  REQUIRE(store.line("with TLS, with a token"));

  Job wrong{agent({{"ELRUN_RDZV_TOKEN", "another-token-that-nobody-guesses"}}, {"exit", "0", "0"})};
  CHECK(wrong.wait() == 78);
  CHECK(wrong.says("not the coordinator's"));
  Job without{agent({}, {"exit", "0", "0"})};
  CHECK(without.wait() == 78);
  CHECK(without.says("this node has none"));

  Job right{agent({{"ELRUN_RDZV_TOKEN", token}, {"PET_RDZV_CONF", "token=" + token}},
                  {"environment", "ELRUN_RDZV_TOKEN", "PET_RDZV_CONF", "RANK"})};
  CHECK(right.wait() == 0);
  CHECK(right.says("ELRUN_RDZV_TOKEN=(unset) PET_RDZV_CONF=(unset) RANK=0"));
  CHECK(store.wait() == 0);
  for (const Job* job : {&store, &wrong, &without, &right}) CHECK_FALSE(job->says("that-nobody-guesses"));
}

TEST_CASE("access that cannot work is said before anything starts", "[access][process][grpc]") {
  Job store{{.arguments = {"store", "--port", "0", "--rdzv_conf", "cacert=/no/such/ca"},
             .environment = {{"ELRUN_RDZV_TOKEN_FILE", "/no/such/token"}}}};
  CHECK(store.wait() == 78);
  for (const char* part : {"/no/such/ca", "cert and key are missing", "/no/such/token"}) CHECK(store.says(part));
  Job agent{{.arguments = {"--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "127.0.0.1:1", "--rdzv_conf", "key=/no/such/key",
                           "--no_python", "/bin/true"}}};
  CHECK(agent.wait() == 78);
  CHECK(agent.says("/no/such/key"));
  // Of a single node, which meets nobody, it is no business.
  Job alone{{.arguments = {"--no_python", "/bin/true"}, .environment = {{"ELRUN_RDZV_TOKEN_FILE", "/no/such/token"}}}};
  CHECK(alone.wait() == 0);
}

TEST_CASE("listening beyond loopback warns once, unless it is protected", "[access][process][grpc]") {
  const std::string warning = "neither TLS nor a token";
  const auto said = [&](std::vector<std::string> more, std::map<std::string, std::string> environment = {}) {
    more.insert(more.begin(), {"store", "--port", "0"});
    Job store{{.arguments = more, .environment = std::move(environment)}};
    REQUIRE(store.line("serving the rendezvous"));
    store.signal(SIGTERM);
    store.wait();
    std::size_t count = 0;
    for (std::size_t at = 0; (at = store.output().find(warning, at)) != std::string::npos; ++at) ++count;
    return count;
  };
  CHECK(said({}) == 1);
  CHECK(said({"--host", "127.0.0.1"}) == 0);
  CHECK(said({}, {{"ELRUN_RDZV_TOKEN", "a token that nobody guesses"}}) == 0);
}

}  // namespace elrun::test
