// elrun_static is one file: it starts where nothing is but itself and a shell.
#include <elf.h>
#include <openssl/opensslv.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {
namespace {

namespace fs = std::filesystem;

// Debian 13's archives are 4 MB more than Debian 12's for the same program: OpenSSL 3.5, and re2 with Abseil's log.
constexpr std::uintmax_t size_max = OPENSSL_VERSION_NUMBER >= 0x30500000L ? 24'000'000 : 20'000'000;
constexpr Wait patience{60000};
const fs::path shell = "/bin/busybox";  // of busybox-static: a shell that needs no library either

bool asks_for_a_loader(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  Elf64_Ehdr header{};
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  REQUIRE(file.good());
  file.seekg(static_cast<std::streamoff>(header.e_phoff));
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    file.read(reinterpret_cast<char*>(&segment), sizeof segment);
    REQUIRE(file.good());
    if (segment.p_type == PT_INTERP) return true;
  }
  return false;
}

/// A root directory with /elrun and /sh, and what the test adds.
class BareRoot {
 public:
  BareRoot() {
    fs::copy_file(program_path("elrun_static"), fs::path{where_.path()} / "elrun");
    fs::copy_file(shell, fs::path{where_.path()} / "sh");
  }
  void write(const std::string& name, const std::string& text) const {
    const fs::path file = fs::path{where_.path()} / name;
    fs::create_directories(file.parent_path());
    std::ofstream{file} << text;
  }
  [[nodiscard]] Job::Setting elrun(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {where_.path(), "/elrun"});
    return {.arguments = std::move(arguments), .program = "/usr/sbin/chroot"};
  }
  [[nodiscard]] std::vector<std::string> names() const { return where_.names(); }

 private:
  TemporaryDirectory where_;
};

bool is_possible() {
  const bool root = ::geteuid() == 0, has_shell = fs::exists(shell) && !asks_for_a_loader(shell);
  if (!root) WARN("SKIPPED: only root may change its root directory");
  if (!has_shell) WARN("SKIPPED: no static shell here (package busybox-static)");
  return root && has_shell;
}

}  // namespace

TEST_CASE("it is one file without a loader, and small", "[static]") {
  CHECK_FALSE(asks_for_a_loader(program_path("elrun_static")));
  CHECK(fs::file_size(program_path("elrun_static")) <= size_max);
}

TEST_CASE("it starts workers where nothing is but itself and a shell, and leaves nothing", "[static]") {
  if (!is_possible()) return;
  const BareRoot root;
  Job job{root.elrun({"--nproc_per_node", "2", "--no_python", "/sh", "-c", "echo worker $RANK of $WORLD_SIZE"})};
  CHECK(job.wait(patience) == 0);
  CHECK(job.says("worker 0 of 2"));
  CHECK(job.says("worker 1 of 2"));
  CHECK(root.names().size() == 2);
}

TEST_CASE("it finds the coordinator by a name of /etc/hosts", "[static]") {
  if (!is_possible()) return;
  const BareRoot root;
  root.write("etc/hosts", "127.0.0.1 node0.training node0\n");
  const std::vector<std::string> arguments{"--nnodes",
                                           "2",
                                           "--rdzv_backend",
                                           "c10d",
                                           "--rdzv_endpoint",
                                           "node0:" + std::to_string(free_port()),
                                           "--no_python",
                                           "/sh",
                                           "-c",
                                           "echo worker $RANK of $WORLD_SIZE"};
  Job first{root.elrun(arguments)}, second{root.elrun(arguments)};
  CHECK(first.wait(patience) == 0);
  CHECK(second.wait(patience) == 0);
  CHECK((first.output() + second.output()).find("worker 0 of 2") != std::string::npos);
  CHECK((first.output() + second.output()).find("worker 1 of 2") != std::string::npos);
}

TEST_CASE("it finds the coordinator by a name that servers know late, with the search list of /etc/resolv.conf", "[static]") {
  if (!is_possible()) return;
  if (!fs::exists("/usr/sbin/dnsmasq")) {
    WARN("SKIPPED: no dnsmasq here");
    return;
  }
  const BareRoot root;
  root.write("etc/resolv.conf", "nameserver 127.0.0.98\nsearch jobs.cluster.test\noptions ndots:5\n");
  const std::vector<std::string> arguments{
      "--nnodes", "2",  "--rdzv_backend",   "c10d", "--rdzv_endpoint", "node0:" + std::to_string(free_port()), "--no_python",
      "/sh",      "-c", "echo worker $RANK"};
  Job first{root.elrun(arguments)}, second{root.elrun(arguments)};
  REQUIRE(first.line("does not resolve", patience));
  REQUIRE(second.line("does not resolve", patience));
  Job server{{.arguments = {"--keep-in-foreground", "--no-resolv", "--no-hosts", "--no-daemon", "--bind-interfaces",
                            "--listen-address=127.0.0.98", "--address=/node0.jobs.cluster.test/127.0.0.1", "--pid-file="},
              .program = "/usr/sbin/dnsmasq"}};
  CHECK(first.wait(patience) == 0);
  CHECK(second.wait(patience) == 0);
}

TEST_CASE("a name that nobody knows is said, with the name", "[static]") {
  if (!is_possible()) return;
  const BareRoot root;
  root.write("etc/hosts", "127.0.0.1 node0\n");
  const auto looks_for = [&](const std::string& join_timeout) {
    return root.elrun({"--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "nodeX:29400", "--rdzv_conf",
                       "join_timeout=" + join_timeout, "--no_python", "/sh", "-c", "exit 0"});
  };
  Job job{looks_for("3600")};
  CHECK(job.line("the name \"nodeX\" does not resolve", patience));
  job.signal(SIGTERM);
  CHECK(job.wait(patience) == 128 + SIGTERM);
  CHECK(Job{looks_for("1")}.wait(patience) == 170);  // whether or not the look-up, which is a thread's, has come back by then
}

}  // namespace elrun::test
