#include "lib/comm/choose.hpp"

#include <cstdlib>
#include <string>

#include "lib/comm/environment.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;

namespace {

/// Two ranks of one host that found out everything about each other.
constexpr PairFacts one_host{.same_boot = true, .both_listen = true, .same_network = Known::yes, .memory = Known::yes};

PairFacts with(auto change) {
  PairFacts facts = one_host;
  change(facts);
  return facts;
}

/// Sets a variable of the environment, and puts back what was there.
class Variable {
 public:
  explicit Variable(const char* value, const char* name = "ELRUN_TRANSPORT") : name_{name} {
    if (const char* const found = std::getenv(name)) before_ = found;
    if (value != nullptr) ::setenv(name, value, 1);
    else ::unsetenv(name);
  }
  ~Variable() {
    if (before_) ::setenv(name_, before_->c_str(), 1);
    else ::unsetenv(name_);
  }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("two ranks of one host that map each other's memory use shared memory", "[choose]") {
  CHECK(choose(one_host) == Transport::shm);
  CHECK(connects_by_unix_socket(one_host));
}

TEST_CASE("ranks of different hosts use TCP", "[choose]") {
  const PairFacts facts = with([](PairFacts& f) { f.same_boot = false; });
  CHECK(choose(facts) == Transport::tcp);
  CHECK_FALSE(connects_by_unix_socket(facts));
}

TEST_CASE("a rank that was told to use TCP uses it within its host", "[choose]") {
  const PairFacts facts = with([](PairFacts& f) { f.wanted = Transport::tcp; });
  CHECK(choose(facts) == Transport::tcp);
  CHECK_FALSE(connects_by_unix_socket(facts));
}

TEST_CASE("where one of two ranks does not listen at a Unix socket, both use TCP", "[choose]") {
  const PairFacts facts = with([](PairFacts& f) { f.both_listen = false; });
  CHECK(choose(facts) == Transport::tcp);
  CHECK_FALSE(connects_by_unix_socket(facts));
}

TEST_CASE("containers of one host with separate networks use TCP", "[choose]") {
  const PairFacts facts = with([](PairFacts& f) { f.same_network = Known::no; });
  CHECK(choose(facts) == Transport::tcp);
  CHECK_FALSE(connects_by_unix_socket(facts));
}

TEST_CASE("ranks that cannot map each other's memory send frames over the Unix socket that they have", "[choose]") {
  const PairFacts facts = with([](PairFacts& f) { f.memory = Known::no; });
  CHECK(choose(facts) == Transport::tcp);
  CHECK(connects_by_unix_socket(facts));
}

TEST_CASE("shared memory stays the choice as long as no fact rules it out", "[choose]") {
  const PairFacts facts = with([](PairFacts& f) { f.same_network = f.memory = Known::not_yet; });
  CHECK(choose(facts) == Transport::shm);
  CHECK(connects_by_unix_socket(facts));
}

TEST_CASE("a rank that must use shared memory has no other choice", "[choose]") {
  CHECK(choose(with([](PairFacts& f) { f.wanted = Transport::shm; })) == Transport::shm);
  CHECK(choose({.wanted = Transport::shm}) == std::nullopt);
  for (const auto rule_out : {+[](PairFacts& f) { f.same_boot = false; }, +[](PairFacts& f) { f.both_listen = false; },
                              +[](PairFacts& f) { f.same_network = Known::no; }, +[](PairFacts& f) { f.memory = Known::no; }}) {
    PairFacts facts = with(rule_out);
    facts.wanted = Transport::shm;
    CHECK(choose(facts) == std::nullopt);
  }
}

TEST_CASE("ELRUN_TRANSPORT is auto, tcp or shm, and other words are refused", "[choose]") {
  CHECK(parse_transport("auto").value() == Transport::automatic);
  CHECK(parse_transport("tcp").value() == Transport::tcp);
  CHECK(parse_transport("shm").value() == Transport::shm);
  for (const char* word : {"", "TCP", "nccl", "shm "}) CHECK(parse_transport(word).failure().code == Code::invalid_argument);
  CHECK(parse_transport(std::string(100'000, 'x')).failure().what.size() < 200);
}

TEST_CASE("the program's transport wins over ELRUN_TRANSPORT", "[choose]") {
  const auto chosen = [](const char* variable, Transport by_program) {
    const Variable set{variable};
    return transport_of_process(by_program);
  };
  CHECK(chosen(nullptr, Transport::automatic).value() == Transport::automatic);
  CHECK(chosen("auto", Transport::automatic).value() == Transport::automatic);
  CHECK(chosen("tcp", Transport::automatic).value() == Transport::tcp);
  CHECK(chosen("shm", Transport::automatic).value() == Transport::shm);
  CHECK(chosen("shm", Transport::tcp).value() == Transport::tcp);
  CHECK(chosen("nonsense", Transport::tcp).value() == Transport::tcp);
  CHECK(chosen("nonsense", Transport::automatic).failure().code == Code::invalid_argument);
}

TEST_CASE("NCCL_HOSTID says which ranks are on one host for NCCL, as it does to NCCL itself", "[choose]") {
  const auto host = [](const char* by_user, const char* boot) {
    const Variable set{by_user, "NCCL_HOSTID"};
    return host_for_nccl(boot);
  };
  CHECK(host(nullptr, "boot a") == "boot a");
  CHECK(host("", "boot a") == "boot a");
  CHECK(host("host 1", "boot a") != host("host 2", "boot a"));  // cloned machines have one boot id
  CHECK(host("host 1", "boot a") == host("host 1", "boot b"));
  CHECK(host("boot a", "boot b") != host(nullptr, "boot a"));
}

TEST_CASE("an address for all of NCCL's groups is refused, for those of another generation would answer there", "[choose]") {
  const auto problem = [](const char* by_user) {
    const Variable set{by_user, "NCCL_COMM_ID"};
    return nccl_set_wrong();
  };
  CHECK(problem(nullptr) == "");
  CHECK(problem("") == "");
  CHECK(problem("10.0.0.1:5000").find("NCCL_COMM_ID is set") == 0);
}
