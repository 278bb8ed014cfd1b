// How long does a launch take, what does the agent weigh, and how fast is a killed worker's job back at work?
// One line per question, with its unit and the bound it is held against. Times of other launchers in brackets are from
// reference measurements; MPICH's mpiexec is measured in the same run where it is installed.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "lib/base/fd.hpp"

namespace fs = std::filesystem;
using namespace elrun;

namespace {

using Time = std::chrono::steady_clock::time_point;
constexpr auto now = std::chrono::steady_clock::now;

double ms_since(Time begin) { return std::chrono::duration<double, std::milli>(now() - begin).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

[[noreturn]] void give_up(const std::string& why) {
  fmt::print(stderr, "launch_bench: {}\n", why);
  std::exit(1);
}

/// A started program and, if asked for, the pipe with its standard output and standard error.
class Child {
 public:
  Child(const std::vector<std::string>& words, bool read_output) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    int pipe_ends[2] = {-1, -1};
    if (read_output) {
      if (::pipe2(pipe_ends, O_CLOEXEC) != 0) give_up("no pipe");
      posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], 1);
      posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], 2);
    } else {
      posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
      posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    }
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    if (const int error = ::posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environ); error != 0)
      give_up(fmt::format("cannot start {}", words[0]));
    posix_spawn_file_actions_destroy(&actions);
    if (read_output) {
      output_ = Fd{pipe_ends[0]};
      ::close(pipe_ends[1]);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGTERM);
    wait();
  }
  [[nodiscard]] pid_t pid() const { return pid_; }
  int wait() {
    output_ = Fd{};  // nobody reads any more: a full pipe must not hold the program up
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  /// The next line of output; nothing at its end.
  std::optional<std::string> line() {
    for (;;) {
      if (const auto end = buffer_.find('\n'); end != std::string::npos) {
        std::string head = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return head;
      }
      char chunk[4096];
      const ssize_t n = ::read(output_.get(), chunk, sizeof chunk);
      if (n <= 0) return std::nullopt;
      buffer_.append(chunk, static_cast<std::size_t>(n));
    }
  }

 private:
  pid_t pid_ = -1;
  Fd output_;
  std::string buffer_;
};

double run_ms(const std::vector<std::string>& words) {
  const Time begin = now();
  Child child{words, false};
  if (const int code = child.wait(); code != 0) give_up(fmt::format("{} ended with {}", words[0], code));
  return ms_since(begin);
}

/// The number after `name` in a file of /proc, such as "VmRSS:   1234 kB".
std::uint64_t proc_number(pid_t pid, const char* file, std::string_view name) {
  std::ifstream in{fmt::format("/proc/{}/{}", pid, file)};
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name)) return std::strtoull(line.c_str() + name.size(), nullptr, 10);
  return 0;
}

struct Process {
  pid_t pid;
  std::string name;
};

/// All processes below `ancestor`.
std::vector<Process> descendants(pid_t ancestor) {
  std::vector<Process> found;
  std::vector<pid_t> above{ancestor};
  for (std::size_t i = 0; i < above.size(); ++i) {
    for (const auto& entry : fs::directory_iterator{"/proc"}) {
      const pid_t pid = static_cast<pid_t>(std::atol(entry.path().filename().c_str()));
      if (pid == 0 || proc_number(pid, "status", "PPid:") != static_cast<std::uint64_t>(above[i])) continue;
      std::ifstream in{entry.path() / "comm"};
      std::string name;
      std::getline(in, name);
      found.push_back({pid, name});
      above.push_back(pid);
    }
  }
  return found;
}

std::vector<pid_t> named(const std::vector<Process>& all, std::string_view name) {
  std::vector<pid_t> pids;
  for (const Process& p : all)
    if (p.name == name) pids.push_back(p.pid);
  return pids;
}

/// From the start of a launcher until a worker has written the line that it is there for.
double first_worker_ms(std::vector<std::string> words) {
  words.insert(words.end(), {"/bin/echo", "here"});
  const Time begin = now();
  Child launcher{words, true};
  double ms = 0;
  while (const auto line = launcher.line())
    if (ms == 0 && *line == "here") ms = ms_since(begin);
  if (const int code = launcher.wait(); code != 0 || ms == 0) give_up(fmt::format("{} ended with {}", words[0], code));
  return ms;
}

bool is_there(const char* check) { return std::system(fmt::format("{} >/dev/null 2>&1", check).c_str()) == 0; }

/// What else ran in the last minute: whoever reads the numbers must know.
std::string machine_load() {
  std::ifstream in{"/proc/loadavg"};
  double load = 0;
  in >> load;
  return fmt::format("load {:.1f}, {} processors", load, std::thread::hardware_concurrency());
}

void launch(const std::string& elrun, const std::string& elrun_static) {
  constexpr int repeats = 25;
  std::vector<double> ours, bare;
  for (int i = 0; i < repeats; ++i) {  // in turn, so that a busy machine is busy for all
    ours.push_back(run_ms({elrun, "--nproc_per_node", "2", "--no_python", "/bin/true"}));
    bare.push_back(run_ms({"/bin/true"}));
  }
  fmt::print("launch: elrun, 2 workers, start to exit: {:.1f} ms median of {} (bound: 20 ms; /bin/true alone: {:.1f} ms)\n", median(ours),
             repeats, median(bare));

  const bool mpi = is_there("command -v mpiexec"), torch = is_there("python3 -c 'import torch.distributed.run'");
  for (const std::string workers : {"1", "8", "64"}) {
    std::vector<double> elruns, statics, mpis, torchruns;
    for (int i = 0; i < repeats; ++i) {
      elruns.push_back(first_worker_ms({elrun, "--nproc_per_node", workers, "--no_python"}));
      if (!elrun_static.empty()) statics.push_back(first_worker_ms({elrun_static, "--nproc_per_node", workers, "--no_python"}));
      if (mpi) mpis.push_back(first_worker_ms({"mpiexec", "-n", workers}));
      if (torch && i < 3)
        torchruns.push_back(
            first_worker_ms({"python3", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", workers, "--no_python"}));
    }
    const auto beside_mpi = [&](const std::vector<double>& times) {
      return mpi ? fmt::format(", ratio {:.2f}", median(times) / median(mpis)) : "";
    };
    fmt::print(
        "launch: start to the first line of a worker, of {}, medians of {}: elrun {:.1f} ms{}; elrun_static {}; mpiexec {}; torchrun: {}\n",
        workers, repeats, median(elruns), beside_mpi(elruns),
        statics.empty() ? "not built" : fmt::format("{:.1f} ms{}", median(statics), beside_mpi(statics)),
        mpi ? fmt::format("{:.1f} ms (bound: a ratio of 1.5)", median(mpis)) : "not installed",
        torch ? fmt::format("{:.0f} ms, median of {}", median(torchruns), torchruns.size()) : "not installed (1000 to 1900 ms)");
  }
}

/// From SIGKILL of one worker to the first line of a worker of the next generation.
void restart(const std::string& elrun) {
  constexpr int repeats = 25;
  Child job{{elrun, "--nproc_per_node", "4", "--max_restarts", "1000000", "--no_python", "/bin/sh", "-c", "echo here; exec sleep 1000"},
            true};
  const auto workers_write = [&](int workers) {
    while (workers > 0) {
      const auto line = job.line();
      if (!line) give_up("the job ended");
      if (*line == "here") --workers;
    }
  };
  workers_write(4);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    std::vector<pid_t> workers;
    while ((workers = named(descendants(job.pid()), "sleep")).size() < 4) ::usleep(1000);
    const Time killed = now();
    ::kill(workers.back(), SIGKILL);
    workers_write(1);
    times.push_back(ms_since(killed));
    workers_write(3);
  }
  fmt::print(
      "restart: SIGKILL of 1 of 4 workers to the first line of the next ones: {:.1f} ms median of {}, longest {:.1f} ms (bound: 10 ms; torchrun: 200 to 400 ms)\n",
      median(times), repeats, *std::max_element(times.begin(), times.end()));
}

/// Processor time of all threads, from the scheduler's own counters.
double processor_ms(pid_t pid) {
  double ns = 0;
  for (const auto& thread : fs::directory_iterator{fmt::format("/proc/{}/task", pid)}) {
    std::ifstream in{thread.path() / "schedstat"};
    double own = 0;
    in >> own;
    ns += own;
  }
  return ns / 1e6;
}

void idle(const std::string& elrun) {
  constexpr unsigned seconds = 20;
  Child agent{{elrun, "--nproc_per_node", "8", "--no_python", "/bin/sleep", "60"}, false};
  while (named(descendants(agent.pid()), "sleep").size() < 8) ::usleep(20'000);
  const double before = processor_ms(agent.pid());
  ::sleep(seconds);
  fmt::print("idle: agent with 8 workers: {:.4f} % of a core over {} s (bound: 0.2 %)\n",
             (processor_ms(agent.pid()) - before) / (seconds * 10.0), seconds);
}

void memory(const std::string& elrun) {
  Child agent{{elrun, "--nproc_per_node", "2", "--no_python", "/bin/sleep", "60"}, false};
  std::vector<Process> below;
  for (const Time begin = now(); named(below, "sleep").size() < 2; below = descendants(agent.pid())) {
    if (ms_since(begin) > 10'000) give_up("two workers did not start within 10 s");
    ::usleep(20'000);
  }
  const auto mb = [](std::uint64_t kib) { return static_cast<double>(kib) * 1024e-6; };
  double others = 0;
  for (const Process& p : below)
    if (p.name != "sleep") others += mb(proc_number(p.pid, "smaps_rollup", "Pss:"));
  fmt::print(
      "memory: agent with 2 workers: VmRSS {:.1f} MB, PSS {:.1f} MB, its helper processes PSS {:.1f} MB (bound: 20 MB; torchrun: 246 to 278 MB)\n",
      mb(proc_number(agent.pid(), "status", "VmRSS:")), mb(proc_number(agent.pid(), "smaps_rollup", "Pss:")), others);
}

/// The value of " name=" in a step's line, or 0.
std::uint64_t value_in(std::string_view line, std::string_view name) {
  const auto at = line.find(fmt::format(" {}=", name));
  return at == std::string_view::npos ? 0 : std::strtoull(line.data() + at + name.size() + 2, nullptr, 10);
}

double recovery_ms(const std::string& elrun, const std::string& gpt, const fs::path& folder) {
  fs::create_directories(folder);
  const fs::path text = folder / "text";
  std::ofstream out{text};
  for (int i = 0; i < 4000; ++i) out << "line " << i * 7919 % 4001 << " of a text that nobody needs to read\n";
  out.close();
  Child job{{elrun,
             "--nproc_per_node",
             "4",
             "--no_python",
             gpt,
             "--data",
             text,
             "--steps",
             "100000",
             "--global-batch",
             "8",
             "--micro-batch",
             "1",
             "--layers",
             "1",
             "--channels",
             "32",
             "--heads",
             "2",
             "--context",
             "16",
             "--checkpoint",
             folder / "checkpoints",
             "--every",
             "5"},
            true};
  std::optional<Time> killed;
  std::uint64_t first_generation = 0;
  std::vector<std::string> last;
  while (const auto line = job.line()) {
    last.push_back(*line);
    const std::uint64_t generation = value_in(*line, "generation");
    if (generation == 0) continue;
    if (!killed) {
      if (last.size() < 12) continue;
      first_generation = generation;
      const auto workers = named(descendants(job.pid()), "gpt");
      if (workers.size() != 4) give_up(fmt::format("found {} workers, not 4", workers.size()));
      killed = now();
      ::kill(workers.back(), SIGKILL);
    } else if (generation > first_generation) {
      return ms_since(*killed);
    }
  }
  for (const std::string& line : last) fmt::print(stderr, "{}\n", line);
  give_up("the job ended before a step of the next generation");
}

void recovery(const std::string& elrun, const std::string& gpt) {
  constexpr int repeats = 7;
  char name[] = "/tmp/elrun-launch-bench-XXXXXX";
  const fs::path root = ::mkdtemp(name);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(recovery_ms(elrun, gpt, root / std::to_string(i)));
  fs::remove_all(root);
  fmt::print(
      "recovery: SIGKILL of 1 of 4 workers to the next generation's first step: {:.2f} s median of {}, longest {:.2f} s (torchrun: 1.8 s)\n",
      median(times) / 1000, repeats, *std::max_element(times.begin(), times.end()) / 1000);
}

}  // namespace

int main() {
  ::signal(SIGPIPE, SIG_IGN);
  const char* folder = std::getenv("ELRUN_BIN");
  const std::string bin = folder != nullptr ? folder : "build/bin";
  ::setlinebuf(stdout);
  if (!fs::exists(bin + "/elrun")) give_up(fmt::format("no {}/elrun; set ELRUN_BIN", bin));
  fmt::print("machine: {}\n", machine_load());
  launch(bin + "/elrun", fs::exists(bin + "/elrun_static") ? bin + "/elrun_static" : "");
  restart(bin + "/elrun");
  memory(bin + "/elrun");
  idle(bin + "/elrun");
  if (fs::exists(bin + "/gpt")) recovery(bin + "/elrun", bin + "/gpt");
}
