#include "tests/support/etcd.hpp"

#include <filesystem>

namespace elrun::test {

bool Etcd::installed() { return std::filesystem::exists("/usr/bin/etcd") && std::filesystem::exists("/usr/bin/etcdctl"); }

Etcd::Etcd() : port_{free_port()}, peer_port_{free_port()} {}

void Etcd::start() { start("http://", {}); }

void Etcd::start(const CertificateFiles& files) {
  start("https://", {"--client-cert-auth", "--trusted-ca-file=" + files.ca, "--cert-file=" + files.certificate, "--key-file=" + files.key});
}

void Etcd::start(const std::string& scheme, const std::vector<std::string>& more) {
  const std::string client = scheme + endpoint(), peer = "http://127.0.0.1:" + std::to_string(peer_port_);
  std::vector<std::string> arguments{"--name=test",
                                     "--data-dir=" + data_.path() + "/etcd" + std::to_string(lives_),
                                     "--listen-client-urls=" + client,
                                     "--advertise-client-urls=" + client,
                                     "--listen-peer-urls=" + peer,
                                     "--initial-advertise-peer-urls=" + peer,
                                     "--initial-cluster=test=" + peer,
                                     "--heartbeat-interval=20",
                                     "--election-timeout=200",
                                     "--logger=zap",
                                     "--log-level=error",
                                     "--log-outputs=" + data_.path() + "/log"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  process_ = std::make_unique<Job>(Job::Setting{.arguments = std::move(arguments), .program = "/usr/bin/etcd"});
}

void Etcd::kill() { process_.reset(); }

std::string Etcd::value(const std::string& key) const {
  for (int tries = 0; tries < 12; ++tries) {  // etcdctl waits for 5 s, and etcd may be writing to a slow disk
    Job get{{.arguments = {"--endpoints=" + endpoint(), "get", "--print-value-only", key},
             .environment = {{"ETCDCTL_API", "3"}},
             .program = "/usr/bin/etcdctl"}};
    if (get.wait() == 0) return get.output();
  }
  return {};
}

}  // namespace elrun::test
