// The status of a TrainJob goes to a real server by TLS: a good one, one of another authority, one that refuses, one that is silent.
#include <openssl/ssl.h>

#include <csignal>
#include <memory>

#include "tests/support/catch.hpp"
#include "tests/support/certificates.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/http_server.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""ms;

namespace {

struct FreeTls {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* connection) const { SSL_free(connection); }
};

// Answers each request of a connection with `status`, and keeps what was said.
class TlsServer {
 public:
  TlsServer(const CertificateFiles& files, int status, std::string body)
      : status_{status}, body_{std::move(body)}, context_{SSL_CTX_new(TLS_server_method())} {
    REQUIRE(SSL_CTX_use_certificate_file(context_.get(), files.certificate.c_str(), SSL_FILETYPE_PEM) == 1);
    REQUIRE(SSL_CTX_use_PrivateKey_file(context_.get(), files.key.c_str(), SSL_FILETYPE_PEM) == 1);
    server_ = std::make_unique<LoopbackServer>([this](int socket) { serve(socket); });
  }
  [[nodiscard]] std::vector<std::string> heard() const { return heard_.all(); }
  [[nodiscard]] std::uint16_t port() const { return server_->port(); }

 private:
  void serve(int socket) {
    const std::unique_ptr<SSL, FreeTls> connection{SSL_new(context_.get())};
    SSL_set_fd(connection.get(), socket);
    if (SSL_accept(connection.get()) != 1) return;
    std::string text;
    std::array<char, 4096> chunk;
    while (text.find("}}") == std::string::npos) {  // a status ends so
      const int count = SSL_read(connection.get(), chunk.data(), chunk.size());
      if (count <= 0) break;
      text.append(chunk.data(), static_cast<std::size_t>(count));
    }
    heard_.add(text);
    const std::string reply =
        "HTTP/1.1 " + std::to_string(status_) + " x\r\nContent-Length: " + std::to_string(body_.size()) + "\r\n\r\n" + body_;
    SSL_write(connection.get(), reply.data(), static_cast<int>(reply.size()));
    SSL_shutdown(connection.get());
  }

  const int status_;
  const std::string body_;
  const std::unique_ptr<SSL_CTX, FreeTls> context_;
  Heard heard_;
  std::unique_ptr<LoopbackServer> server_;  // goes first: its thread uses the others
};

struct Place {
  TemporaryDirectory directory;
  Folder folder;
  CertificateAuthority authority{directory.path()};
  Place() { write_file(directory.path() + "/token", "first-token\n"); }

  [[nodiscard]] CertificateFiles files(const std::string& host = "127.0.0.1") const { return authority.sign("server-" + host, {host}); }
  [[nodiscard]] std::unique_ptr<Job> job(std::uint16_t port, unsigned steps = 60, const std::string& ca = {}) const {
    return start_held_gpt({"--nproc_per_node", "2"}, gpt_arguments(folder / "text", steps),
                          {{"XDG_RUNTIME_DIR", directory.path()},
                           {"KUBEFLOW_TRAINER_SERVER_URL", "https://127.0.0.1:" + std::to_string(port) + "/apis/x/trainjobs/t/status"},
                           {"KUBEFLOW_TRAINER_SERVER_CA_CERT", ca.empty() ? authority.file() : ca},
                           {"KUBEFLOW_TRAINER_SERVER_TOKEN", directory.path() + "/token"}});
  }
};

bool ends_well(Job& job, const std::string& told, int times = 1) {
  const Ended ended = finish(job);
  INFO(ended.output);
  CHECK(ended.code == 0);
  int count = 0;
  for (auto at = ended.output.find(told); at != std::string::npos; at = ended.output.find(told, at + 1)) ++count;
  CHECK(count == times);
  return ended.code == 0 && count == times;
}

}  // namespace

TEST_CASE("the status goes to Trainer with the token of the file, and the last step before the job ends", "[train_job][process]") {
  const Place place;
  TlsServer server{place.files(), 200, "{}"};
  const auto job = place.job(server.port(), 1000);
  for (int i = 0; i < 6000 && server.heard().empty(); ++i) std::this_thread::sleep_for(10ms);
  write_file(place.directory.path() + "/token", "second-token\n");  // as Kubernetes renews it
  CHECK(ends_well(*job, "TrainJob status", 0));
  const std::vector<std::string> heard = server.heard();
  REQUIRE(heard.size() >= 2);  // one, and the end; on a slow machine one more every 20 s
  CHECK(heard[0].starts_with("POST /apis/x/trainjobs/t/status HTTP/1.1\r\nHost: 127.0.0.1:"));
  CHECK(heard[0].find("Authorization: Bearer first-token\r\n") != std::string::npos);
  CHECK(heard[0].find("{\"trainerStatus\":{\"lastUpdatedTime\":\"2") != std::string::npos);
  CHECK(heard.back().find("Authorization: Bearer second-token\r\n") != std::string::npos);
  CHECK(heard.back().find("{\"name\":\"step\",\"value\":\"1000\"}") != std::string::npos);
  CHECK(heard.back().find("\"progressPercentage\":100") != std::string::npos);
  CHECK(heard.back().find("\"estimatedRemainingSeconds\":0") != std::string::npos);
  CHECK(heard.back().find("{\"name\":\"loss\",\"value\":\"") != std::string::npos);
}

TEST_CASE("a server that cannot be believed hears nothing, and the job ends as without it", "[train_job][process]") {
  const Place place;
  const TemporaryDirectory other;
  const CertificateAuthority outsider{other.path()};
  const bool another_name = GENERATE(false, true);
  TlsServer server{another_name ? place.files("another.host") : outsider.sign("server", {"127.0.0.1"}), 200, "{}"};
  CHECK(ends_well(*place.job(server.port()), "TrainJob status: "));
  CHECK(server.heard().empty());
}

TEST_CASE("a server that refuses is told of once with its reason", "[train_job][process]") {
  const Place place;
  TlsServer server{place.files(), 401, R"({"kind":"Status","message":"Unauthorized"})"};
  CHECK(ends_well(*place.job(server.port()), "TrainJob status: the server answers 401: Unauthorized; the job goes on"));
}

TEST_CASE("a server that is silent does not hold up the steps, and the end for its three seconds at most", "[train_job][process]") {
  const Place place;
  LoopbackServer* self = nullptr;
  LoopbackServer server{[&](int socket) { self->wait_for_end(socket); }};
  self = &server;
  const auto begin = std::chrono::steady_clock::now();
  const Ended ended = finish(*place.job(server.port()));
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK(ended.output.find("TrainJob status: ") == ended.output.rfind("TrainJob status: "));  // once, where it took so long
  CHECK(std::chrono::steady_clock::now() - begin < 60000ms);
}

TEST_CASE("a file that is missing is told of once, and ends nothing", "[train_job][process]") {
  const Place place;
  TlsServer server{place.files(), 200, "{}"};
  CHECK(ends_well(*place.job(server.port(), 60, "/no/such/ca"), "TrainJob status: "));
  CHECK(server.heard().empty());
}
