// How much memory a process may still take, from what the system says of it.

#include "lib/base/memory_left.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

std::uint64_t left(std::map<std::string, std::string> files) {
  return memory_left([&](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional{found->second};
  });
}

}  // namespace

TEST_CASE("the least of what the machine and each control group leave counts", "[job_saves]") {
  const std::string machine = "MemTotal: 900 kB\nMemAvailable:    500 kB\n";
  CHECK(left({}) == ~std::uint64_t{0});
  CHECK(left({{"/proc/meminfo", machine}}) == 500 * 1024);
  std::map<std::string, std::string> files{{"/proc/meminfo", machine},
                                           {"/proc/self/cgroup", "0::/pod/worker\n"},
                                           {"/sys/fs/cgroup/pod/memory.max", "300000\n"},
                                           {"/sys/fs/cgroup/pod/memory.current", "250000\n"},
                                           {"/sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 100000\n"},
                                           {"/sys/fs/cgroup/pod/worker/memory.max", "max\n"},
                                           {"/sys/fs/cgroup/pod/worker/memory.current", "1\n"}};
  CHECK(left(files) == 150'000);  // cached files count as free
  files["/sys/fs/cgroup/pod/worker/memory.max"] = "1000\n";
  CHECK(left(files) == 999);
  files["/sys/fs/cgroup/pod/worker/memory.current"] = "2000\n";
  CHECK(left(files) == 0);
  CHECK(left({{"/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n"},
              {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n"},
              {"/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "4000\n"}}) == 1000);
}

TEST_CASE("a process whose addresses are limited has no memory to spare", "[memory_left]") {
  CHECK(memory_to_spare() > 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limited{.rlim_cur = rlim_t{1} << 45, .rlim_max = rlim_t{1} << 45};
    ::_exit(::setrlimit(RLIMIT_AS, &limited) == 0 && memory_to_spare() == 0 ? 0 : 1);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

}  // namespace elrun::test
