#include "rendezvous/net/access.hpp"

#include <ctime>
#include <fstream>
#include <sstream>

#include "tests/support/catch.hpp"
#include "tests/support/certificates.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {
namespace {

using Catch::Matchers::Contains;

std::string problems_of(const Access& access, AccessPeer peer = AccessPeer::coordinator) {
  const auto read = read_credentials(access, peer);
  if (read.ok()) return "none";
  CHECK(read.failure().remedy == Remedy::fix_config);
  return read.failure().what;
}
std::string warnings_of(const Access& access) {
  std::string all;
  for (const std::string& warning : access_warnings(access, std::time(nullptr))) all += warning + "\n";
  return all;
}
Access tls(const CertificateFiles& files) { return {.ca_file = files.ca, .certificate_file = files.certificate, .key_file = files.key}; }

}  // namespace

TEST_CASE("what a person gave is read, or all that is wrong with it is said", "[access]") {
  const TemporaryDirectory directory;
  const CertificateAuthority authority{directory.path()};
  const CertificateFiles node = authority.sign("node", {"localhost"});
  const CertificateFiles other = authority.sign("other", {"localhost"});
  const std::string secret = "a token that nobody guesses";
  write_file(directory.path() + "/token", "  " + secret + "\r\n\n");

  SECTION("nothing is nothing") {
    CHECK(Access{}.is_open());
    const auto read = read_credentials({});
    REQUIRE(read.ok());
    CHECK_FALSE(read->has_tls());
    CHECK(read->token.empty());
  }
  SECTION("all of it") {
    Access access = tls(node);
    access.token_file = directory.path() + "/token";
    const auto read = read_credentials(access);
    REQUIRE(read.ok());
    CHECK_THAT(read->ca, Contains("BEGIN CERTIFICATE"));
    CHECK_THAT(read->certificate, Contains("BEGIN CERTIFICATE"));
    CHECK_THAT(read->key.reveal(), Contains("PRIVATE KEY"));
    CHECK(read->token.reveal() == secret);
    CHECK(warnings_of(access) ==
          "cert: " + node.certificate + " ends within a week; a new one in its place is taken up without a restart\n");
  }
  SECTION("what stands in the place of a rotated file is read the next time") {
    const Access access = tls(node);
    const auto before = read_credentials(access);
    (void)authority.sign("node", {"localhost"});
    const auto after = read_credentials(access);
    REQUIRE((before.ok() && after.ok()));
    CHECK(before->certificate != after->certificate);
  }
  SECTION("parts of TLS") {
    CHECK_THAT(problems_of({.certificate_file = node.certificate}), Contains("cacert is missing") && Contains("key is missing"));
    CHECK_THAT(problems_of({.ca_file = node.ca, .key_file = node.key}), Contains("cert is missing"));
    CHECK_THAT(problems_of({.ca_file = node.ca}), Contains("cert and key are missing"));
    CHECK(problems_of({.ca_file = node.ca}, AccessPeer::etcd) == "none");
  }
  SECTION("files that are missing, of another kind, of another certificate, or endless") {
    CHECK_THAT(problems_of({.ca_file = "/no/ca", .certificate_file = "/no/cert", .key_file = "/no/key", .token_file = "/no/token"}),
               Contains("cacert: ") && Contains("/no/ca") && Contains("cert: ") && Contains("/no/cert") && Contains("key: ") &&
                   Contains("/no/key") && Contains("token_file: ") && Contains("/no/token"));
    CHECK_THAT(problems_of({.ca_file = node.key, .certificate_file = node.key, .key_file = node.certificate}),
               Contains("cacert: " + node.key + " holds no certificate") && Contains("cert: " + node.key + " holds no certificate") &&
                   Contains("key: " + node.certificate + " holds no private key"));
    CHECK_THAT(problems_of({.ca_file = node.ca, .certificate_file = node.certificate, .key_file = other.key}),
               Contains(other.key + " does not belong to the certificate in " + node.certificate));
    CHECK_THAT(problems_of({.token_file = directory.path()}), Contains("token_file"));
    write_file(directory.path() + "/large", std::string(access_file_max.value() + 1, 'x'));
    CHECK_THAT(problems_of({.token_file = directory.path() + "/large"}), Contains("more than"));
  }
  SECTION("tokens that are none") {
    for (const std::string& text :
         {std::string{" \n"}, std::string{"two\nlines"}, std::string(token_size_max + 1, 't'), std::string{"zero\0byte", 9}}) {
      write_file(directory.path() + "/bad", text);
      const std::string said = problems_of({.token_file = directory.path() + "/bad"});
      CHECK_THAT(said, Contains("bad"));
      CHECK_THAT(said, !Contains("lines"));
    }
    CHECK_THAT(problems_of({.token_file = directory.path() + "/token", .token = Secret{secret}}),
               Contains("both given") && !Contains(secret));
  }
  SECTION("what is allowed and not wise") {
    write_file(
        node.key,
        [&] {
          std::ifstream in{node.key};
          std::ostringstream all;
          all << in.rdbuf();
          return all.str();
        }(),
        0644);
    CHECK_THAT(warnings_of(tls(node)), Contains("can read " + node.key));
    CHECK_THAT(warnings_of(tls(authority.sign("late", {"localhost"}, -60))), Contains("not valid any more"));
    CHECK(warnings_of(tls(authority.sign("long", {"localhost"}, 30 * 86400))).empty());
    CHECK_THAT(warnings_of({.token = Secret{"short"}}), Contains("5 bytes") && !Contains("short"));
    CHECK(warnings_of({.token_file = directory.path() + "/token"}).empty());
  }
}

TEST_CASE("a token lets in who has the same, and says who lacks it", "[access]") {
  const Secret wanted{"the token"}, none{};
  CHECK_FALSE(token_refusal(wanted, token_proof(wanted)));
  CHECK_FALSE(token_refusal(none, ""));
  CHECK_THAT(token_refusal(wanted, "").value(), Contains("this node has none"));
  CHECK_THAT(token_refusal(none, token_proof(wanted)).value(), Contains("the coordinator has none"));
  CHECK_THAT(token_refusal(wanted, token_proof(Secret{"the token "})).value(), Contains("not the coordinator's"));
  CHECK(token_refusal(wanted, wanted.reveal()).has_value());
  std::string cut = token_proof(wanted);
  cut.pop_back();
  CHECK(token_refusal(wanted, cut).has_value());
  CHECK(token_proof(wanted).size() == 64);
  CHECK_THAT(token_proof(wanted), !Contains("the token"));
}

}  // namespace elrun::test
