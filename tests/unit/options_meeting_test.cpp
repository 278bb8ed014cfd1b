// Where the nodes meet, who may take part, and which node this is.
#include <fmt/ranges.h>

#include "tests/unit/options_given.hpp"

using namespace elrun;
using namespace elrun::launcher;
using namespace elrun::test;

TEST_CASE("where the nodes meet", "[options]") {
  SECTION("a single node without endpoint meets nobody") {
    CHECK_FALSE(launch({"s"}).endpoint);
    CHECK_FALSE(launch({"--standalone", "--rdzv_id", "x", "--rdzv_endpoint", "h:1", "s"}).endpoint);
    CHECK(launch({"--standalone", "--rdzv_id", "x", "s"}).run == RunId{});
    const LaunchOptions of_range = launch({"--standalone", "--nnodes", "1:4", "s"});
    CHECK((of_range.round.nodes_min == 1 && of_range.round.nodes_max == 1));
    CHECK_FALSE(of_range.endpoint);
    CHECK_FALSE(of_range.notes.empty());
    CHECK(launch({"--standalone", "--nnodes", "1:1", "s"}).notes.empty());
    CHECK(launch({"--rdzv_id", "x", "s"}).run == RunId{"x"});
    const LaunchOptions fixed = launch({"--master-port", "29511", "s"});
    CHECK(fixed.master_port == 29511);
    CHECK(fixed.run == RunId{"none"});
    const LaunchOptions any = launch({"--master-port", "0", "s"});
    CHECK_FALSE(any.master_port);
    CHECK(any.run == RunId{"none"});
    CHECK(refused({"--master-port", "-1", "s"}).exit_code == exit_code::usage);
  }
  SECTION("c10d: whoever the endpoint leads to serves") {
    const LaunchOptions o = launch({"--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "node0", "--rdzv_id", "job", "s"});
    REQUIRE(o.endpoint);
    CHECK(o.endpoint->host == "node0");
    CHECK(o.endpoint->port == 29400);
    CHECK(o.host_rule == HostRule::if_endpoint_is_here);
    CHECK(o.run == RunId{"job"});
  }
  SECTION("static: node rank 0 serves") {
    CHECK(launch({"--nnodes", "2", "--node_rank", "0", "--master_addr", "h", "s"}).host_rule == HostRule::always);
    const LaunchOptions second = launch({"--nnodes", "2", "--node_rank", "1", "--master_addr", "h", "--master_port", "7", "s"});
    CHECK(second.host_rule == HostRule::never);
    CHECK(second.endpoint->host == "h");
    CHECK(second.endpoint->port == 10007);  // port 7 is the workers'
    CHECK(second.master_port == 7);
    CHECK(launch({"--nnodes", "2", "--node_rank", "1", "s"}).endpoint->host == "127.0.0.1");  // torchrun's default
    CHECK(refused({"--nnodes", "2", "s"}).exit_code == exit_code::contradiction);             // which would leave each node alone
  }
  SECTION("static: the workers have --master_port, and the nodes meet beside it") {
    const auto places = [](std::vector<std::string> options) {
      const LaunchOptions o = launch(std::move(options));
      return fmt::format("{} {}", o.endpoint->port, o.master_port.value_or(0));
    };
    CHECK(places({"--nnodes", "2", "--node_rank", "1", "--master_addr", "h", "--master_port", "29500", "s"}) == "19500 29500");
    CHECK(places({"--nnodes", "2", "--node_rank", "1", "--master_addr", "h", "--master_port", "11023", "s"}) == "21023 11023");
    CHECK(places({"--nnodes", "2", "--node_rank", "1", "--master_addr", "h", "--master_port", "65535", "s"}) == "55535 65535");
    CHECK(places({"--nnodes", "2", "--node_rank", "1", "--master_addr", "h", "--master_port", "0", "s"}) == "29500 0");
    CHECK(places({"--nnodes", "2", "--node_rank", "1", "--master_addr", "h", "s"}) == "29500 0");
    CHECK(places({"--nnodes", "2", "--rdzv_endpoint", "h:5000", "--master_port", "6000", "s"}) == "5000 6000");
    CHECK(places({"--nnodes", "2", "--rdzv_backend", "c10d", "--master_addr", "h", "--master_port", "6000", "s"}) == "6000 0");
    // The nodes meet where --rdzv_endpoint says, also where both are one port.
    CHECK(places({"--nnodes", "2", "--rdzv_endpoint", "h:5000", "--master_port", "5000", "s"}) == "5000 0");
    CHECK(places({"--nnodes", "2", "--rdzv_endpoint", ":5000", "--master_addr", "h", "--master_port", "5000", "s"}) == "5000 0");
    const LaunchOptions both = launch({"--nnodes", "2", "--rdzv_endpoint", "h:5000", "--master_port", "5000", "s"});
    REQUIRE(both.notes.size() == 1);
    CHECK(contains(both.notes[0], "--master_port 5000 is the port of --rdzv_endpoint h:5000, where the nodes meet"));
    const LaunchOptions o = launch({"--nnodes", "2", "--node_rank", "1", "--master_addr", "h", "--master_port", "29500", "s"});
    REQUIRE(o.notes.size() == 1);
    CHECK(contains(o.notes[0], "the nodes meet at h:19500"));
    CHECK(contains(o.notes[0], "port 29500 is left to the workers"));
  }
  SECTION("is_host overrides") {
    CHECK(launch({"--nnodes", "2", "--rdzv_endpoint", "h", "--rdzv_conf", "is_host=1", "s"}).host_rule == HostRule::always);
    CHECK(launch({"--nnodes", "2", "--rdzv_endpoint", "h", "--rdzv_conf", "is_host=0", "s"}).host_rule == HostRule::never);
  }
  SECTION("a host that a shell left empty comes from the master address, and a note says so") {
    const LaunchOptions o = launch({"--nnodes", "2", "--rdzv_endpoint", ":29400", "s"}, {.environment = {{"MASTER_ADDR", "m"}}});
    CHECK(o.endpoint->host == "m");
    CHECK(o.notes.size() == 1);
    CHECK(contains(refused({"--nnodes", "2", "--rdzv_endpoint", ":29400", "s"}).text, "none was found"));
  }
  SECTION("an id shows what it is: it is printed on terminals") {
    CHECK(launch({"--rdzv_id", "r\xc3\xa9seau", "s"}).run == RunId{"r\xc3\xa9seau"});
    for (const std::string hides : {"a\x1b[2J", "a\xc2\x9b[2J", "a\xe2\x80\xae(b", "a\xff"})
      CHECK(contains(refused({"--rdzv_id", hides, "s"}).text, "--rdzv_id: at most 256 bytes of UTF-8"));
  }
  SECTION("an id that a shell left empty counts as not given") {
    const LaunchOptions o = launch({"--rdzv_id", "--rdzv_backend=c10d", "s"});
    CHECK(o.program.name == "s");
    CHECK(o.notes.size() == 1);
  }
  SECTION("etcd elects: its servers, the job's name, and who may not be elected") {
    const char* backend = GENERATE("--rdzv_backend=etcd", "--rdzv_backend=etcd-v2");
    const LaunchOptions o =
        launch({backend, "--rdzv_endpoint", "e1,e2:4001, [fd00::3]:5", "--rdzv_id=job", "--rdzv_conf", "lease_ttl=3,is_host=0", "s"});
    CHECK_FALSE(o.endpoint);
    REQUIRE(o.etcd.size() == 3);
    CHECK(fmt::format("{}|{} {}|{} {}|{}", o.etcd[0].host, o.etcd[0].port, o.etcd[1].host, o.etcd[1].port, o.etcd[2].host,
                      o.etcd[2].port) == "e1|2379 e2|4001 fd00::3|5");
    CHECK(o.run.value() == "job");
    CHECK(o.timeouts.lease == 3s);
    CHECK(o.host_rule == HostRule::never);
    CHECK(launch({backend, "--rdzv_endpoint", "e", "--rdzv_id=job", "s"}).host_rule != HostRule::never);
    CHECK(contains(refused({backend, "--rdzv_endpoint", "e", "s"}).text, "give each job an --rdzv_id"));
    CHECK(contains(refused({backend, "--rdzv_endpoint", "e", "--rdzv_id=none", "s"}).text, "give each job an --rdzv_id"));
    CHECK(contains(refused({backend, "--rdzv_id=job", "s"}).text, "--rdzv_endpoint HOST:PORT[,HOST:PORT...]"));
    CHECK(contains(refused({backend, "--rdzv_endpoint", "e,http://x", "--rdzv_id=job", "s"}).text, "`http://x`"));
    CHECK(contains(refused({backend, "--rdzv_endpoint", ":2379", "--rdzv_id=job", "s"}).text, "names no host"));
    CHECK(contains(refused({backend, "--rdzv_endpoint", "e", "--rdzv_id=job", "--rdzv_conf", "lease_ttl=900", "s"}).text,
                   "the lease must be below"));
  }
}

TEST_CASE("endpoints in every writing", "[options]") {
  const auto endpoint = [](const char* text) {
    const auto e = parse_endpoint(text, 29400);
    return e ? fmt::format("{}|{}", e->host, e->port) : std::string{"refused"};
  };
  CHECK(endpoint("h") == "h|29400");
  CHECK(endpoint("h:1") == "h|1");
  CHECK(endpoint("a-b.c_d.:80") == "a-b.c_d|80");
  CHECK(endpoint("[::1]:80") == "::1|80");
  CHECK(endpoint("[::1]") == "::1|29400");
  CHECK(endpoint("fe80::1") == "fe80::1|29400");
  CHECK(endpoint(":80") == "|80");
  for (const char* bad : {"", ":", "h:", "h:0", "h:65536", "h:99999", "h:1x", "h:+1 ,", "[::1", "[]:1", "[::1]x", "h/x:1", "h h"}) {
    INFO(bad);
    CHECK(endpoint(bad) == "refused");
  }
}

TEST_CASE("quotes that no shell took away from --rdzv_conf are no part of it", "[options]") {
  for (const char* conf : {"\"join_timeout=20,lease_ttl=3\"", "'join_timeout=20,lease_ttl=3'", "'join_timeout=20','lease_ttl=3'",
                           "join_timeout='20', lease_ttl=\"3\"", " ' join_timeout = \"20\" , lease_ttl=3 ' "}) {
    INFO(conf);
    const LaunchOptions o = launch({"--rdzv_conf", conf, "s"});
    CHECK(o.timeouts.join == 20s);
    CHECK(o.timeouts.lease == 3s);
    CHECK(o.notes.empty());
  }
  CHECK(launch({"--rdzv_conf", "token='a'", "s"}).access.token.reveal() == "'a'");  // a token may have any letters
  CHECK(contains(refused({"--rdzv_conf", "join_timeout='20", "s"}).text, "join_timeout='20: must be seconds"));
}

TEST_CASE("access comes from --rdzv_conf, and where that says nothing from the environment", "[options]") {
  const Variables environment{
      {"ELRUN_RDZV_CACERT", "/e/ca"}, {"ELRUN_RDZV_CERT", "/e/cert"}, {"ELRUN_RDZV_KEY", "/e/key"}, {"ELRUN_RDZV_TOKEN_FILE", "/e/token"}};
  const Access from_environment = launch({"s"}, {.environment = environment}).access;
  CHECK(from_environment.ca_file == "/e/ca");
  CHECK(from_environment.certificate_file == "/e/cert");
  CHECK(from_environment.key_file == "/e/key");
  CHECK(from_environment.token_file == "/e/token");
  const Access mixed = launch({"--rdzv_conf", "cert=/c/cert, key=/c/key,token=abc", "s"}, {.environment = environment}).access;
  CHECK(mixed.ca_file == "/e/ca");
  CHECK(mixed.certificate_file == "/c/cert");
  CHECK(mixed.key_file == "/c/key");
  CHECK(mixed.token.reveal() == "abc");
  CHECK(mixed.token_file.empty());  // token and token_file are one thing: what is nearer counts
  CHECK(launch({"s"}, {.environment = {{"ELRUN_RDZV_TOKEN", "abc"}}}).access.token.reveal() == "abc");
  const auto store = parse({"store", "--rdzv_conf=cacert=/c/ca"}, {.environment = environment});
  REQUIRE(std::holds_alternative<StoreOptions>(store));
  CHECK(std::get<StoreOptions>(store).access.ca_file == "/c/ca");
  CHECK(std::get<StoreOptions>(store).access.key_file == "/e/key");
  CHECK(contains(refused({"--rdzv_conf", "cacert=,token=", "s"}).text, "cacert=: the path of a file is missing"));
  CHECK(contains(refused({"--rdzv_conf", "cacert=,token=", "s"}).text, "the token is missing"));
}

TEST_CASE("a variable for the token that is empty leaves no rendezvous open", "[options]") {
  const std::string name = GENERATE("ELRUN_RDZV_TOKEN", "ELRUN_RDZV_TOKEN_FILE");
  const Variables empty{{name, ""}};
  const std::string problem = name + " is set and empty";
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=h", "s"},
                                                {"--nnodes=1:2", "--rdzv_backend=etcd", "--rdzv_endpoint=h:2379", "s"},
                                                {"store"}}) {
    INFO(words.front());
    const Usage usage = refused(words, {.environment = empty});
    CHECK(usage.exit_code == 78);
    CHECK(contains(usage.text, problem));
  }
  SECTION("another way to give the token counts") {
    CHECK(launch({"--nnodes=2", "--rdzv_endpoint=h", "--rdzv_conf=token=abc", "s"}, {.environment = empty}).access.token.reveal() == "abc");
    Variables both = empty;
    both[name == "ELRUN_RDZV_TOKEN" ? "ELRUN_RDZV_TOKEN_FILE" : "ELRUN_RDZV_TOKEN"] = "/t";
    CHECK(launch({"--nnodes=2", "--rdzv_endpoint=h", "s"}, {.environment = both}).access.has_token());
  }
  SECTION("with certificates the rendezvous is not open") {
    CHECK_FALSE(launch({"--nnodes=2", "--rdzv_endpoint=h", "--rdzv_conf=cacert=/ca,cert=/cert,key=/key", "s"}, {.environment = empty})
                    .access.is_open());
  }
  SECTION("a single node meets nobody") {
    CHECK(launch({"s"}, {.environment = empty}).access.is_open());
    CHECK(launch({"--nnodes=1", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:29400", "s"}, {.environment = empty}).access.is_open());
  }
}

TEST_CASE("no message shows a token, whatever is wrong with the line it stands in", "[options]") {
  const auto text_of = [](const std::vector<std::string>& words, const Variables& environment = {}) {
    const auto command = parse(words, {.environment = environment});
    if (const auto* usage = std::get_if<Usage>(&command)) return usage->text;
    std::string text;
    const auto* options = std::get_if<LaunchOptions>(&command);
    for (const auto& note : options != nullptr ? options->notes : std::get<StoreOptions>(command).notes) text += note;
    return text;
  };
  const std::string conf = "token=s3cret,s3cret2,s3cret3=x,join_timeout=bad";
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--rdzv_conf", conf, "s"},
                                                {"--rdzv-conf=" + conf, "--bogus"},
                                                {"--rdzv=" + conf, "s"},
                                                {"--token=s3cret", "s"},
                                                {"--standalone=s3cret", "s"},
                                                {"-qs3cret", "s"},
                                                {"store", "--rdzv_conf", conf},
                                                {"store", "--token", "s3cret"},
                                                {"store", "--rdzv-conf=token=s3cret", "--token=s3cret"},
                                                {"--rdzv_conf", "token=s3cret", "s"},
                                                {"--rdzv_conf", "tokne:s3cret", "s"}})
    CHECK_FALSE(contains(text_of(words), "s3cret"));
  CHECK_FALSE(contains(text_of({"s"}, {{"PET_RDZV_CONF", conf}, {"ELRUN_RDZV_TOKEN", "s3cret"}}), "s3cret"));
  CHECK(contains(text_of({"--rdzv_conf", "token=s3cret", "s"}), "ps"));  // the advice instead
  CHECK_FALSE(contains(text_of({"s"}, {{"PET_RDZV_CONF", "token=s3cret"}}), "ps"));
}

TEST_CASE("an environment for workers holds no token", "[options]") {
  const Variables kept{{"A", "token=a"}, {"ELRUN_RDZV_TOKEN_FILE", "/t"}, {"PET_RDZV_CONF", "token_file=/t,timeout=3"}};
  CHECK(without_secrets(kept) == kept);
  Variables with = kept;
  with["ELRUN_RDZV_TOKEN"] = "s3cret";
  CHECK(without_secrets(with) == kept);
  with["PET_RDZV_CONF"] = "timeout=3, token = s3cret";
  CHECK(without_secrets(with) == Variables{{"A", "token=a"}, {"ELRUN_RDZV_TOKEN_FILE", "/t"}});
  for (const char* quoted : {"'token=s3cret'", "\"timeout=3,token=s3cret\"", "'timeout=3','token=s3cret'"}) {
    with["PET_RDZV_CONF"] = quoted;
    CHECK_FALSE(without_secrets(with).contains("PET_RDZV_CONF"));
  }
}

TEST_CASE("port 0 of a single node means that nobody is to come, as torchrun's documentation has it", "[options]") {
  const LaunchOptions o = launch({"--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv_id=me", "s"});
  CHECK_FALSE(o.endpoint);
  CHECK(o.run == RunId{"me"});
  CHECK(contains(refused({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "s"}).text, "from 1 to 65535"));
}

TEST_CASE("keys of --rdzv_conf for TLS have torchrun's names for both kinds of etcd", "[options]") {
  for (const char* conf : {"cacert=a,cert=b,key=c", "ca_cert=a,ssl_cert=b,ssl_cert_key=c"}) {
    const Access access = launch({"--rdzv_conf", conf, "s.py"}).access;
    CHECK(access.ca_file == "a");
    CHECK(access.certificate_file == "b");
    CHECK(access.key_file == "c");
  }
}

TEST_CASE("a node's rank beyond the number of nodes orders it last, and is an error where ranks are places", "[options]") {
  const auto notes = [](const LaunchOptions& o) { return fmt::format("{}", fmt::join(o.notes, "|")); };
  const std::vector<std::string> dynamic{"--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "h:1", "--node_rank"};
  const auto with = [](std::vector<std::string> words, const char* rank) {
    words.insert(words.end(), {rank, "s.py"});
    return words;
  };
  CHECK(contains(notes(launch(with(dynamic, "2"))), "--node_rank 2: 2 nodes have the ranks 0 to 1; it only orders the nodes"));
  CHECK(notes(launch(with(dynamic, "1"))).empty());
  const std::vector<std::string> fixed{"--nnodes", "2", "--master_addr", "h", "--node_rank"};
  CHECK(contains(refused(with(fixed, "2")).text, "--node_rank 2: 2 nodes have the ranks 0 to 1; count nodes from 0"));
  CHECK(refused(with(fixed, "7")).exit_code == 64);
  CHECK(launch(with(fixed, "1")).node_rank == 1);
  CHECK(contains(notes(launch({"--node_rank", "1", "s.py"})), "--node_rank 1 has no effect"));
  CHECK(notes(launch({"--node_rank", "0", "s.py"})).empty());
}
