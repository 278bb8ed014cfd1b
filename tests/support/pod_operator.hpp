#pragma once
/// \file The pods of a job in samples/kubernetes, in network namespaces, with the environment and the options of elrun that its operator gives each of them.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/pods.hpp"

namespace elrun::test {

/// A job as its manifest has it.
struct JobPlan {
  struct Member {
    std::string host, name;  ///< Of the pod, and by which others find it.
    std::map<std::string, std::string> environment;
    std::vector<std::string> options;
    std::size_t workers = 0;
  };
  std::string manifest;               ///< Below samples/kubernetes.
  bool published_when_ready = false;  ///< Names lead to pods that are ready; else to all of them.
  std::size_t nodes_min = 0;
  std::vector<Member> pods;
  [[nodiscard]] bool is_elastic() const { return nodes_min < pods.size(); }
  [[nodiscard]] std::size_t world() const;
};

/// What tests/manifests/pods.py says of all jobs; nothing, with the reason printed, where this machine cannot tell.
/// \throws std::runtime_error where it fails.
[[nodiscard]] std::vector<JobPlan> job_plans();

/// Keeps the pods of one job, as its operator does: what is deleted or lost comes back under its name, at another address.
class Operator {
 public:
  /// `program`: what elrun runs, with its arguments, in place of the manifest's. `folder`: the volume that all pods mount.
  Operator(Fabric& fabric, JobPlan plan, const TemporaryDirectory& folder, std::vector<std::string> program);

  [[nodiscard]] const JobPlan& plan() const { return plan_; }
  [[nodiscard]] std::size_t size() const { return plan_.pods.size(); }
  [[nodiscard]] Pod& pod(std::size_t index) { return *pods_[index]; }
  [[nodiscard]] std::size_t workers(std::size_t index) const { return plan_.pods[index].workers; }
  [[nodiscard]] std::vector<std::size_t> all() const;
  [[nodiscard]] std::vector<std::size_t> all_but(std::size_t left_out) const;

  /// What `start` runs from now on.
  void change_program(std::vector<std::string> program) { program_ = std::move(program); }
  /// Starts the pod's container, a second time too.
  Job& start(std::size_t index);
  /// The name of a pod leads to it: at once, or when it is ready, as its service says. False when it does not get ready.
  [[nodiscard]] bool publish(std::size_t index);
  void unpublish(std::size_t index) { fabric_.publish(plan_.pods[index].name, {}); }
  /// Makes a new pod in place of this one, at another address. The old one is the caller's: what runs in it may live on, out of reach.
  [[nodiscard]] std::unique_ptr<Pod> exchange(std::size_t index);
  /// Where agents keep their sockets, a folder for each pod that was made; with what is left in it now.
  [[nodiscard]] std::string runtime_folder(const Pod& pod) const;

 private:
  [[nodiscard]] std::unique_ptr<Pod> make(std::size_t index);

  Fabric& fabric_;
  const JobPlan plan_;
  const TemporaryDirectory& folder_;
  std::vector<std::string> program_;
  std::vector<std::unique_ptr<Pod>> pods_;
  int next_address_ = 10;
};

}  // namespace elrun::test
