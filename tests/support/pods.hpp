#pragma once
/// \file Pods without Kubernetes: network namespaces with a bridge between them, names from a server of their own, a
/// hostname and process numbers of their own, and cables to cut. Nothing of it is seen by the machine's own network.

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/control_group.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {

/// The network that the pods of one test are on, and its name server. One per process at a time. What a killed earlier
/// process left behind is taken away when the next one begins.
class Fabric {
 public:
  /// Nothing, with the reason printed as a test that skips does, where the kernel, the rights or the tools do not allow it.
  static std::unique_ptr<Fabric> create();
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  /// What `NAME.job` leads to from now on; no address: the name does not exist. `alias.job` is an alias of `coordinator.job`.
  void publish(const std::string& name, const std::vector<std::string>& addresses);
  [[nodiscard]] static std::string domain() { return "job"; }
  /// Starts a program on the network, but in no pod, as the node's kubelet is.
  [[nodiscard]] std::unique_ptr<Job> run(Job::Setting setting) const;

 private:
  friend class Pod;
  Fabric();
  [[nodiscard]] std::string name_space() const;
  void start_name_server();

  TemporaryDirectory directory_;
  std::unique_ptr<Job> name_server_;
  int links_ = 0;
};

/// What fabrics and pods of this process have left on this machine, in words: namespaces, their files, control groups, and processes that live in one of them.
/// Nothing once they are destroyed.
[[nodiscard]] std::vector<std::string> left_behind();

/// A network namespace on the fabric. What runs in it sees its own hostname, processes and addresses, and sends nothing
/// outside. Its end is that of a container: everything in it is killed at once.
class Pod {
 public:
  /// `host` is the last number of its address.
  Pod(Fabric& fabric, std::string name, int host);
  ~Pod();
  Pod(const Pod&) = delete;
  Pod& operator=(const Pod&) = delete;

  /// Starts the pod's container: a program as its process 1.
  Job& run(Job::Setting setting);
  /// What was started last.
  [[nodiscard]] Job& job() const { return *job_; }
  /// SIGTERM to process 1, as the kubelet does.
  void terminate() const;
  /// SIGKILL of all processes: connections are reset or closed by the kernel.
  void kill() const;
  /// Living processes of this name, as this machine numbers them; all of the pod's without a name.
  [[nodiscard]] std::vector<pid_t> processes(const std::string& name = {}) const;
  /// Waits until `count` processes of this name live.
  [[nodiscard]] bool runs(const std::string& name, std::size_t count, Wait wait = Wait{20000}) const;

  /// The node is lost: silence, no end of any connection.
  void cut_cable() const;
  void mend_cable() const;
  /// Packets from here to `other` vanish; those from `other` arrive. Undone by mend.
  void lose_packets_to(const Pod& other) const;
  void mend() const;
  /// All processes stop where they are; their connections live on, in silence. By the freezer of a control group, where this machine has none by SIGSTOP.
  void freeze() const;
  void thaw() const;
  /// Its memory is limited, which the kernel enforces: false where this machine has no memory controller to give.
  [[nodiscard]] bool limit_memory(std::uint64_t bytes) const { return group_.limit_memory(bytes); }
  /// Process 1 is never killed for that, or may be again. The kernel can take a second process before the memory of the first one is free.
  void keep_from_oom_kill(bool keeps) const;
  [[nodiscard]] std::uint64_t memory_in_use() const { return group_.memory_in_use(); }
  /// Processes that the kernel killed for that.
  [[nodiscard]] std::uint64_t oom_kills() const { return group_.oom_kills(); }

  [[nodiscard]] const std::string& address() const { return address_; }
  /// What the name leads to in here, the address first that is tried first; empty when it does not resolve.
  [[nodiscard]] std::vector<std::string> resolve(const std::string& name) const;

 private:
  [[nodiscard]] std::string name_space() const;
  [[nodiscard]] std::optional<pid_t> first_process() const;
  void signal_all(int number) const;

  Fabric& fabric_;
  std::string name_, address_, link_;
  ControlGroup group_;
  std::unique_ptr<Job> job_;
};

}  // namespace elrun::test
