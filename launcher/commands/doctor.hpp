#pragma once
/// \file Doctor: what would fail here with these options, and why. Facts in, findings out; doctor_facts gathers
/// the facts.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "launcher/options/environment.hpp"
#include "launcher/options/options.hpp"

namespace elrun::inline v0::launcher {

struct Finding {
  enum class Grade { ok, warn, fail };
  Grade grade = Grade::ok;
  std::string subject;  ///< One word: "endpoint"
  std::string what;
  std::string remedy{};  ///< Empty for what is well.
  friend bool operator==(const Finding&, const Finding&) = default;
};

/// A name that was looked up.
struct NameFact {
  std::string name;
  std::vector<std::string> addresses;  ///< Empty: it does not resolve.
  std::string problem;
  Duration took{};
};

/// What answered at an address.
enum class EndpointAnswer {
  rendezvous,     ///< A program that speaks HTTP/2, as elrun's rendezvous and etcd do.
  unchecked,      ///< A program that wants TLS: what it speaks was not checked.
  other_program,  ///< A program that does not speak HTTP/2.
  nothing,        ///< The machine is there, and refuses the connection.
  silence,        ///< No answer in time.
};
struct DialFact {
  std::string address;
  EndpointAnswer answer = EndpointAnswer::silence;
};
/// One service: its name, and what answers at each address.
struct ServiceFact {
  Endpoint endpoint;
  NameFact name;
  std::vector<DialFact> dials;
};

/// A directory or file that is needed.
struct PathFact {
  bool is_fine = false;  ///< A file can be read; in a directory a file could be made.
  std::string problem;
  bool answers = true;                      ///< Its file system, in time.
  bool is_missing = false;                  ///< A directory that is not there yet; the rest is about the nearest one above it.
  std::uint64_t bytes = 0, bytes_free = 0;  ///< Of its file system.
};

struct DeviceFact {
  std::uint32_t number = 0;
  std::string problem;  ///< Why it cannot be opened; empty: it can
};

/// None: no limit.
using Limit = std::optional<std::uint64_t>;

/// A table of values, one for each thing that a check looks at. Every check reads its own few, so they are not grouped further.
struct DoctorFacts {
  NameFact own_name;
  std::vector<std::string> own_addresses;
  std::optional<ServiceFact> endpoint;
  std::vector<ServiceFact> etcd;
  std::string endpoint_port_problem;  ///< Why the endpoint's port cannot be opened here; empty: it can, or need not be
  std::string master_port_problem;    ///< Why the worker of rank 0 could not listen at --master_port here; empty likewise
  std::string health_port_problem;
  std::vector<std::string> access_problems, access_warnings;

  bool monotonic_clock_rises = true;
  std::int64_t wall_seconds = 0;  ///< Since 1970.
  std::optional<bool> wall_clock_is_synchronised;

  bool has_proc = true;        ///< /proc is mounted
  std::string thread_problem;  ///< Why no thread can be started; empty: one can
  std::string kernel_problem;  ///< Why the start of a job would be refused; empty: it would not
  std::vector<DeviceFact> devices;
  std::optional<std::string> visible_devices;  ///< CUDA_VISIBLE_DEVICES
  bool has_rdma = false;
  Count cpus;  ///< That the workers may use, by mask and quota.
  std::optional<PathFact> shared_memory;

  Limit descriptors;       ///< The workers' limit.
  Limit descriptors_most;  ///< The limit to which the agent raises its own.
  Limit processes, locked_memory;
  Limit memory, memory_used, cgroup_processes;

  std::optional<std::variant<Command, NoCommand>> command;  ///< None: no program was named, or `command_problem` says why it is not known.
  std::string command_problem;
  std::optional<PathFact> script;
  std::optional<PathFact> checkpoint_root, log_directory;
  PathFact agent_directory;
};

/// One finding at least for each subject that the options touch, in the order in which a start would meet them.
[[nodiscard]] std::vector<Finding> diagnose(const DoctorOptions& options, const DoctorFacts& facts);
[[nodiscard]] std::string findings_for_people(std::span<const Finding> findings);
/// 78 when something would fail, else 0.
[[nodiscard]] int exit_code_of(std::span<const Finding> findings);

}  // namespace elrun::inline v0::launcher
