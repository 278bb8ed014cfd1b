// Statements 73 to 76: what torchrun does beside starting workers.
#include <csignal>

#include "tests/compat/support.hpp"
#include "tests/support/http.hpp"

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

// `$$$$` is what the shell reads as its own number: elrun makes `$$` of it.
std::string timer_line(const std::string& pid, const std::string& expires) {
  return "echo '{\"version\":1,\"pid\":'" + pid + "',\"scope_id\":\"step\",\"expiration_time\":" + expires +
         ",\"signal\":9}' > \"$TORCHELASTIC_TIMER_FILE\"; ";
}

}  // namespace

TEST_CASE("73 a process whose timer in the timer file is over is killed with the timer's signal", "[compat]") {
  TemporaryDirectory directory;
  const auto run = [&](const std::string& script, std::map<std::string, std::string> environment) {
    environment.insert({{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}, {"XDG_RUNTIME_DIR", directory.path()}});
    return Job::Setting{{"--no_python", "/bin/sh", "-c", "test -p \"$TORCHELASTIC_TIMER_FILE\" || exit 9; " + script},
                        std::move(environment)};
  };
  SECTION("its own") {
    Job job{run(timer_line("$$$$", "1.5") + "exec sleep 600", {})};
    CHECK(job.wait(patience) == 128 + SIGKILL);
    CHECK(job.says("the timer `step` of process"));
  }
  SECTION("that of a process which it started") {
    Job job{run("sleep 600 & " + timer_line("$!", "1.5") + "wait $!; exit $?", {})};
    CHECK(job.wait(patience) == 128 + SIGKILL);
  }
  SECTION("not one that is moved, or taken back") {
    Job job{run(timer_line("$$$$", "4000000000") + timer_line("$$$$", "-1") + "echo fine", {})};
    CHECK(job.wait(patience) == 0);
    CHECK_FALSE(job.says("the timer `"));
  }
  SECTION("and nobody else, whatever the line says") {
    Job other{{.arguments = {"600"}, .program = "/bin/sleep"}};
    Job job{run(timer_line(std::to_string(other.pid()), "1.5") + "echo garbage > \"$TORCHELASTIC_TIMER_FILE\"; " +
                    timer_line("$$$$", "1.5") + "exec sleep 600",
                {})};
    CHECK(job.wait(patience) == 128 + SIGKILL);
    CHECK(::kill(other.pid(), 0) == 0);
    CHECK(other.wait(Wait{0}) == -1);  // it still runs
  }
  SECTION("the file is where TORCHELASTIC_TIMER_FILE says, and is gone afterwards") {
    const std::string file = directory.path() + "/mine";
    Job job{run("echo \"at $TORCHELASTIC_TIMER_FILE\"", {{"TORCHELASTIC_TIMER_FILE", file}})};
    CHECK(job.wait(patience) == 0);
    CHECK(job.says("at " + file));
    CHECK_FALSE(std::filesystem::exists(file));
  }
  CHECK(directory.names().empty());
}

TEST_CASE("73 without the switch there is no timer file", "[compat]") {
  Job job{{.arguments = {"--no_python", "/bin/sh", "-c", "echo \"file: ${TORCHELASTIC_TIMER_FILE-none}\""}}};
  CHECK(job.wait(patience) == 0);
  CHECK(job.says("file: none"));
}

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
  const std::string gpus =
      "mount -t tmpfs none /proc/driver && cd /proc/driver && mkdir -p nvidia/gpus/0000:04:00.0 nvidia/gpus/0000:05:00.0 && exec \"$@\"";
  Job::Setting setting = meeting.alone(
      {"-r", "-m", "/bin/sh", "-c", gpus, "sh", program_path("elrun"), "--numa-binding=exclusive", "--nproc_per_node=2", "--no_python",
       "/bin/sh", "-c", "while read -r name cpus; do [ $name = Cpus_allowed_list: ] && echo cpus=$cpus; done </proc/self/status; true"});
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

TEST_CASE("76 TORCHELASTIC_HEALTH_CHECK_PORT: there is a real /healthz", "[compat]") {
  const std::uint16_t port = free_port();
  Job job{{.arguments = {"--no_python", "/bin/sh", "-c", "echo started; exec sleep 600"},
           .environment = {{"TORCHELASTIC_HEALTH_CHECK_PORT", std::to_string(port)}}}};
  REQUIRE(job.line("started", patience));
  CHECK(http_get(port, "/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(http_get(port, "/metrics").find("\nelrun_world_size 1\n") != std::string::npos);
  job.signal(SIGTERM);
  CHECK(job.wait(patience) == 128 + SIGTERM);
}

TEST_CASE("76 a port that is no number is told, and the job goes on", "[compat]") {
  Job job{{.arguments = {"--no_python", "/bin/true"}, .environment = {{"TORCHELASTIC_HEALTH_CHECK_PORT", "soon"}}}};
  CHECK(job.wait(patience) == 0);
  CHECK(job.says("TORCHELASTIC_HEALTH_CHECK_PORT=soon"));
}
