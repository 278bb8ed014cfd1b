#include "tests/support/etcd.hpp"

#include <filesystem>

namespace elrun::test {

bool Etcd::installed() { return std::filesystem::exists("/usr/bin/etcd") && std::filesystem::exists("/usr/bin/etcdctl"); }

Etcd::Etcd() : port_{free_port()}, peer_port_{free_port()} {}

void Etcd::start() {
  const std::string client = "http://" + endpoint(), peer = "http://127.0.0.1:" + std::to_string(peer_port_);
  process_ = std::make_unique<Job>(Job::Setting{
      .arguments = {"--name=test", "--data-dir=" + data_.path() + "/etcd", "--listen-client-urls=" + client, "--advertise-client-urls=" + client,
                    "--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=test=" + peer, "--heartbeat-interval=20",
                    "--election-timeout=200", "--logger=zap", "--log-level=error", "--log-outputs=" + data_.path() + "/log"},
      .program = "/usr/bin/etcd"});
}

void Etcd::kill() { process_.reset(); }

std::string Etcd::value(const std::string& key) const {
  Job get{{.arguments = {"--endpoints=" + endpoint(), "get", "--print-value-only", key}, .environment = {{"ETCDCTL_API", "3"}}, .program = "/usr/bin/etcdctl"}};
  return get.wait() == 0 ? get.output() : std::string{};
}

}  // namespace elrun::test
