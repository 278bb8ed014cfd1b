// Statements 73 to 76: what torchrun does beside starting workers.
#include "tests/compat/support.hpp"

using namespace elrun::test;

namespace {

// Runs a shell script as the root of namespaces of its own, in which it may mount; skips where that is not allowed.
bool has_namespaces() {
  static const bool found = [] {
    if (!std::filesystem::exists("/usr/bin/unshare")) return false;
    Job job{{.arguments = {"-r", "-m", "/bin/sh", "-c", "mount -t tmpfs none /proc/driver"}, .program = "/usr/bin/unshare"}};
    return job.wait(patience) == 0;
  }();
  if (!found) std::printf("SKIPPED: a process here cannot have mounts of its own (unshare -r -m)\n");
  return found;
}

}  // namespace

TEST_CASE("75 a NUMA binding without GPUs is refused, and says what it looked for", "[compat][process]") {
  const Meeting meeting;
  Job job{meeting.alone({"--numa-binding", "node", "--no_python", "/bin/echo", "started"}, {{"CUDA_VISIBLE_DEVICES", ""}})};
  CHECK(job.wait(patience) == 78);
  CHECK(job.says("--numa_binding: each of the 1 workers needs a GPU to be near to, and there are 0 (/proc/driver/nvidia/gpus)"));
  CHECK_FALSE(job.says("started"));
}

TEST_CASE("75 with a NUMA binding each worker runs near its own GPU", "[compat][process]") {
  if (!has_namespaces()) return;
  if (!std::filesystem::exists("/sys/devices/system/node/node0/cpulist")) {
    std::printf("SKIPPED: this kernel tells nothing of NUMA nodes\n");
    return;
  }
  // GPUs of which no more than an address is known are of node 0, and share its cores.
  const Meeting meeting;
  const std::string gpus = "mount -t tmpfs none /proc/driver && cd /proc/driver && mkdir -p nvidia/gpus/0000:04:00.0 nvidia/gpus/0000:05:00.0 && exec \"$@\"";
  Job::Setting setting = meeting.alone({"-r", "-m", "/bin/sh", "-c", gpus, "sh", std::string{std::getenv("ELRUN_BIN")} + "/elrun", "--numa-binding=exclusive",
                                        "--nproc_per_node=2", "--no_python", "/bin/sh", "-c", "while read -r name cpus; do [ $name = Cpus_allowed_list: ] && echo cpus=$cpus; done </proc/self/status; true"});
  setting.program = "/usr/bin/unshare";
  Job job{std::move(setting)};
  const int code = job.wait(patience);
  if (job.says("this process may use none")) {
    std::printf("SKIPPED: two workers cannot have a core each here\n");
    return;
  }
  CHECK(code == 0);
  const auto one = job.line("cpus="), other = job.line("cpus=");
  REQUIRE((one && other));
  CHECK(word_after(*one, "cpus") != word_after(*other, "cpus"));
}
