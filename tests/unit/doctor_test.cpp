// Facts to findings, a fault at a time.
#include "launcher/commands/doctor.hpp"

#include <functional>

#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::launcher;

namespace {

constexpr std::uint64_t gibi = 1 << 30;

// A machine and a command line on which all is well: two nodes that meet at another machine.
struct Patient {
  DoctorOptions options;
  DoctorFacts facts;
  Patient() {
    options.has_program = true;
    options.launch.program.name = "train.py";
    options.launch.round = {.nodes_min = 2, .nodes_max = 2};
    options.launch.workers = 2;
    options.launch.endpoint = Endpoint{"node0", 29400};
    facts.own_name = {"node1", {"10.0.0.1"}, {}, 2ms};
    facts.own_addresses = {"127.0.0.1", "10.0.0.1"};
    facts.endpoint = ServiceFact{*options.launch.endpoint, {"node0", {"10.0.0.9"}, {}, 2ms}, {{"10.0.0.9", EndpointAnswer::rendezvous}}};
    facts.wall_seconds = 1'800'000'000;
    facts.cpus = {8, "affinity"};
    facts.shared_memory = PathFact{.is_fine = true, .bytes = 8 * gibi, .bytes_free = 8 * gibi};
    facts.descriptors = 65536;
    facts.command = Command{"/usr/bin/python3", {}};
    facts.script = PathFact{.is_fine = true};
    facts.agent_directory = {.is_fine = true};
  }
};

// The grade of a subject: the worst of its findings.
Finding::Grade grade(const Patient& patient, std::string_view subject) {
  std::optional<Finding::Grade> worst;
  for (const Finding& f : diagnose(patient.options, patient.facts)) {
    if (f.grade != Finding::Grade::ok) CHECK_FALSE(f.remedy.empty());
    if (f.subject == subject && (!worst || f.grade > *worst)) worst = f.grade;
  }
  REQUIRE(worst);
  return *worst;
}

// The endpoint leads to this machine.
void serves(Patient& p) { p.facts.endpoint->name.addresses = {"10.0.0.1"}, p.facts.endpoint->dials[0].answer = EndpointAnswer::nothing; }

constexpr auto ok = Finding::Grade::ok, might = Finding::Grade::warn, fails = Finding::Grade::fail;

}  // namespace

TEST_CASE("where all is well nothing is found", "[doctor]") {
  const Patient patient;
  const auto findings = diagnose(patient.options, patient.facts);
  const std::string text = findings_for_people(findings);
  INFO(text);
  for (const Finding& f : findings) CHECK(f.grade == ok);
  CHECK(exit_code_of(findings) == 0);
  CHECK(text.find("0 checks failed, 0 warnings\n") != std::string::npos);
}

TEST_CASE("each fault has its verdict", "[doctor]") {
  struct Row {
    const char* what;
    std::string_view subject;
    Finding::Grade expected;
    std::function<void(Patient&)> harm;
  };
  const std::vector<Row> rows{
      {"no python", "program", fails,
       [](Patient& p) {
         p.facts.command = NoCommand{127, "no python3 on PATH"};
       }},
      {"a script that cannot be read", "program", fails, [](Patient& p) { p.facts.script = PathFact{.problem = "Permission denied"}; }},
      {"a program whose file system does not answer", "program", fails,
       [](Patient& p) {
         p.facts.command.reset();
         p.facts.command_problem = "a file system has not answered within 5.0 s";
       }},
      {"nowhere to put a socket", "directory", fails, [](Patient& p) { p.facts.agent_directory = {.problem = "read-only"}; }},
      {"no /proc", "proc", might, [](Patient& p) { p.facts.has_proc = false; }},
      {"a sandbox in which no thread starts", "threads", fails, [](Patient& p) { p.facts.thread_problem = "clone3 is refused"; }},
      {"a kernel that tells no end of a worker", "kernel", fails, [](Patient& p) { p.facts.kernel_problem = "pidfd_open is refused"; }},
      {"its own name does not resolve", "name", might, [](Patient& p) { p.facts.own_name.addresses.clear(); }},
      {"its own name takes long", "name", might, [](Patient& p) { p.facts.own_name.took = 5s; }},

      {"the endpoint does not resolve", "endpoint", fails,
       [](Patient& p) { p.facts.endpoint->name.addresses.clear(), p.facts.endpoint->dials.clear(); }},
      {"the endpoint is this machine's name, not published yet", "endpoint", ok,
       [](Patient& p) {
         p.facts.own_name.name = "node0.cluster", p.facts.endpoint->name.addresses.clear(), p.facts.endpoint->dials.clear();
       }},
      {"the endpoint takes long to look up", "endpoint", might, [](Patient& p) { p.facts.endpoint->name.took = 5s; }},
      {"the endpoint leads to several machines", "endpoint", might,
       [](Patient& p) { p.facts.endpoint->name.addresses.push_back("10.0.0.8"); }},
      {"nothing listens yet", "endpoint", might, [](Patient& p) { p.facts.endpoint->dials[0].answer = EndpointAnswer::nothing; }},
      {"nothing answers", "endpoint", fails, [](Patient& p) { p.facts.endpoint->dials[0].answer = EndpointAnswer::silence; }},
      {"another program answers", "endpoint", fails, [](Patient& p) { p.facts.endpoint->dials[0].answer = EndpointAnswer::other_program; }},
      {"a program answers with TLS", "endpoint", ok, [](Patient& p) { p.facts.endpoint->dials[0].answer = EndpointAnswer::unchecked; }},
      {"this machine would serve", "endpoint", ok,
       [](Patient& p) { p.facts.endpoint->name.addresses = {"10.0.0.1"}, p.facts.endpoint->dials[0].answer = EndpointAnswer::nothing; }},
      {"this machine serves already", "endpoint", ok,
       [](Patient& p) { p.facts.endpoint->name.addresses = {"10.0.0.1"}, p.facts.endpoint_port_problem = "in use"; }},
      {"another program has the port here", "endpoint", fails,
       [](Patient& p) {
         p.facts.endpoint->name.addresses = {"10.0.0.1"}, p.facts.endpoint_port_problem = "in use",
         p.facts.endpoint->dials[0].answer = EndpointAnswer::other_program;
       }},
      {"the port here may not be opened", "endpoint", fails,
       [](Patient& p) {
         p.facts.endpoint->name.addresses = {"10.0.0.1"}, p.facts.endpoint_port_problem = "not permitted",
         p.facts.endpoint->dials[0].answer = EndpointAnswer::nothing;
       }},
      {"is_host=0 on the machine that the endpoint leads to", "endpoint", might,
       [](Patient& p) {
         p.options.launch.host_rule = HostRule::never, p.facts.endpoint->name.addresses = {"10.0.0.1"},
         p.facts.endpoint->dials[0].answer = EndpointAnswer::nothing;
       }},
      {"a single node", "endpoint", ok, [](Patient& p) { p.facts.endpoint.reset(); }},

      {"etcd answers", "etcd", ok,
       [](Patient& p) {
         p.facts.etcd = {{{"e", 2379}, {"e", {"10.1.1.1"}, {}, 1ms}, {{"10.1.1.1", EndpointAnswer::rendezvous}}}};
       }},
      {"no server of etcd answers", "etcd", fails,
       [](Patient& p) {
         p.facts.etcd = {{{"e", 2379}, {"e", {}, "no such name", 1ms}, {}}};
       }},
      {"one of two servers of etcd is away", "etcd", might,
       [](Patient& p) {
         p.facts.etcd = {{{"e", 2379}, {"e", {"10.1.1.1"}, {}, 1ms}, {{"10.1.1.1", EndpointAnswer::rendezvous}}},
                         {{"f", 2379}, {"f", {"10.1.1.2"}, {}, 1ms}, {{"10.1.1.2", EndpointAnswer::silence}}}};
       }},

      {"a certificate that is no PEM", "access", fails, [](Patient& p) { p.facts.access_problems = {"cert: no PEM"}; }},
      {"a key that others can read", "access", might, [](Patient& p) { p.facts.access_warnings = {"key: mode 0644"}; }},
      {"the workers' port is taken", "master", fails,
       [](Patient& p) { p.options.launch.master_port = 29500, p.facts.master_port_problem = "in use"; }},
      {"the health port is taken", "health", fails,
       [](Patient& p) {
         p.options.launch.side.health = HealthPort{"", 9500, true}, p.facts.health_port_problem = "in use";
       }},
      {"the health port is that of the endpoint, which leads here", "health", fails,
       [](Patient& p) {
         serves(p), p.options.launch.side.health = HealthPort{"", 29400, true};
       }},
      {"the health port is that of an endpoint elsewhere", "health", ok,
       [](Patient& p) {
         p.options.launch.side.health = HealthPort{"", 29400, true};
       }},
      {"the health port of torch's variable is taken", "health", might,
       [](Patient& p) {
         p.options.launch.side.health = HealthPort{"", 9500, false}, p.facts.health_port_problem = "in use";
       }},

      {"a clock that goes backwards", "clock", fails, [](Patient& p) { p.facts.monotonic_clock_rises = false; }},
      {"a clock that was never set", "clock", might, [](Patient& p) { p.facts.wall_seconds = 12; }},
      {"the same, with certificates", "clock", fails,
       [](Patient& p) { p.facts.wall_seconds = 12, p.options.launch.access.ca_file = "ca.pem"; }},
      {"a clock that is not synchronised", "clock", might, [](Patient& p) { p.facts.wall_clock_is_synchronised = false; }},

      {"a device that cannot be opened", "device", fails,
       [](Patient& p) {
         p.facts.devices = {{0, "Permission denied"}, {1, ""}};
       }},
      {"a device that is not there", "device", fails,
       [](Patient& p) {
         p.facts.devices = {{0, ""}, {1, ""}}, p.facts.visible_devices = "0, 2";
       }},
      {"devices by name", "device", ok,
       [](Patient& p) {
         p.facts.devices = {{0, ""}, {1, ""}}, p.facts.visible_devices = "GPU-1,GPU-2";
       }},
      {"devices by name where there is none", "device", fails, [](Patient& p) { p.facts.visible_devices = "GPU-1,GPU-2"; }},
      {"a device that is named twice", "device", fails,
       [](Patient& p) {
         p.facts.devices = {{0, ""}, {1, ""}}, p.facts.visible_devices = "0,0";
       }},
      {"an entry that is no device before one that is", "device", fails,
       [](Patient& p) {
         p.facts.devices = {{0, ""}, {1, ""}}, p.facts.visible_devices = "0,-1,1";
       }},
      {"devices that are hidden on purpose", "device", ok,
       [](Patient& p) {
         p.facts.devices = {{0, ""}, {1, ""}}, p.facts.visible_devices = "-1";
       }},
      {"no device, and none shown", "device", ok, [](Patient& p) { p.facts.visible_devices = "-1"; }},
      {"more workers than devices", "device", might,
       [](Patient& p) {
         p.facts.devices = {{0, ""}};
       }},
      {"no device at all", "device", ok, [](Patient&) {}},

      {"no shared memory", "shm", might, [](Patient& p) { p.facts.shared_memory.reset(); }},
      {"64 MiB of shared memory", "shm", might, [](Patient& p) { p.facts.shared_memory->bytes_free = 64 << 20; }},
      {"shared memory that is full", "shm", fails, [](Patient& p) { p.facts.shared_memory->bytes_free = 4096; }},
      {"shared memory that cannot be written", "shm", fails, [](Patient& p) { p.facts.shared_memory = PathFact{.problem = "read-only"}; }},

      {"descriptors for a few", "limits", might, [](Patient& p) { p.facts.descriptors = 1024; }},
      {"descriptors for none", "limits", fails, [](Patient& p) { p.facts.descriptors_most = 64; }},
      {"descriptors for fewer nodes", "limits", fails,
       [](Patient& p) { serves(p), p.facts.descriptors_most = 1159, p.options.launch.round.nodes_max = 1000; }},
      {"descriptors for so many nodes", "limits", ok,
       [](Patient& p) { serves(p), p.facts.descriptors_most = 1160, p.options.launch.round.nodes_max = 1000; }},
      {"the same, for a node that may be elected", "limits", fails,
       [](Patient& p) {
         p.options.launch.endpoint.reset(), p.facts.endpoint.reset(), p.options.launch.etcd = {{"e", 2379}};
         p.facts.descriptors_most = 1159, p.options.launch.round.nodes_max = 1000;
       }},
      {"descriptors for fewer nodes than meet at another machine", "limits", ok,
       [](Patient& p) { p.facts.descriptors_most = 1159, p.options.launch.round.nodes_max = 1000; }},
      {"few processes", "limits", might, [](Patient& p) { p.facts.processes = 20; }},
      {"no processes", "limits", fails, [](Patient& p) { p.facts.cgroup_processes = 3; }},
      {"little locked memory with RDMA", "limits", might, [](Patient& p) { p.facts.has_rdma = true, p.facts.locked_memory = 65536; }},
      {"little locked memory without", "limits", ok, [](Patient& p) { p.facts.locked_memory = 65536; }},

      {"fewer CPUs than workers", "cpu", might,
       [](Patient& p) {
         p.facts.cpus = {1, "quota"};
       }},
      {"little memory", "memory", might, [](Patient& p) { p.facts.memory = gibi, p.facts.memory_used = gibi / 2; }},
      {"more used than allowed", "memory", might, [](Patient& p) { p.facts.memory = gibi, p.facts.memory_used = 2 * gibi; }},
      {"enough memory", "memory", ok, [](Patient& p) { p.facts.memory = 64 * gibi, p.facts.memory_used = gibi; }},

      {"a checkpoint root that cannot be written", "checkpoint", fails,
       [](Patient& p) { p.facts.checkpoint_root = PathFact{.problem = "Permission denied"}; }},
      {"a checkpoint root that is not there, perhaps for want of a mount", "checkpoint", might,
       [](Patient& p) { p.facts.checkpoint_root = PathFact{.is_fine = true, .is_missing = true}; }},
      {"a log directory that is not there yet", "logs", ok,
       [](Patient& p) { p.facts.log_directory = PathFact{.is_fine = true, .is_missing = true}; }},
      {"a log directory that cannot be written", "logs", fails,
       [](Patient& p) { p.facts.log_directory = PathFact{.problem = "read-only"}; }},
  };
  for (const Row& row : rows) {
    Patient patient;
    row.harm(patient);
    INFO(row.what);
    CHECK(grade(patient, row.subject) == row.expected);
    CHECK(exit_code_of(diagnose(patient.options, patient.facts)) == (row.expected == fails ? 78 : 0));
  }
}

TEST_CASE("without a program none is looked for", "[doctor]") {
  Patient patient;
  patient.options.has_program = false;
  patient.facts.command = NoCommand{66, "no such script"};
  CHECK(exit_code_of(diagnose(patient.options, patient.facts)) == 0);
}
