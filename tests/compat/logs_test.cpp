// Statements 33 to 42 of what torchrun's users rely on: where the workers' output goes.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""s;

namespace {

using Texts = std::vector<std::string>;

std::string content(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

Texts lines_of(const std::string& text) {
  Texts lines;
  std::istringstream stream{text};
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Lines of elrun itself are of no interest here.
std::string without_elrun(const std::string& text) {
  std::string rest;
  for (const std::string& line : lines_of(text))
    if (!line.starts_with("[elrun ")) rest += line + "\n";
  return rest;
}

std::string sorted(const std::string& text) {
  Texts lines = lines_of(text);
  std::sort(lines.begin(), lines.end());
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

// One run of elrun whose standard output and error are told apart. Its workers run `script` with the shell.
struct Run {
  explicit Run(Texts options, const std::string& script, std::map<std::string, std::string> environment = {}) {
    environment["TMPDIR"] = temporary();
    environment["XDG_RUNTIME_DIR"] = temporary();
    std::filesystem::create_directory(temporary());
    Texts arguments{"-c", "\"$@\" > " + directory.path() + "/out 2> " + directory.path() + "/err", "run", program_path("elrun")};
    std::replace(options.begin(), options.end(), std::string{"D"}, logs());
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), {"--no-python", "/bin/sh", "-c", script});
    Job job{{.arguments = std::move(arguments), .environment = std::move(environment), .program = "/bin/sh"}};
    code = job.wait(120s);
    out = content(directory.path() + "/out");
    err = content(directory.path() + "/err");
  }
  [[nodiscard]] std::string logs() const { return directory.path() + "/logs"; }
  [[nodiscard]] std::string temporary() const { return directory.path() + "/tmp"; }
  // The directory of the run, which is the only one in the log directory.
  [[nodiscard]] std::string of_run() const {
    for (const auto& entry : std::filesystem::directory_iterator{logs()}) return entry.path();
    return {};
  }
  [[nodiscard]] std::string file(const std::string& name) const { return content(of_run() + "/" + name); }
  [[nodiscard]] bool has_file(const std::string& name) const { return std::filesystem::exists(of_run() + "/" + name); }

  TemporaryDirectory directory;
  int code = -1;
  std::string out, err;
};

}  // namespace

TEST_CASE("33 --tee 3: prefixed lines on the console, raw bytes in the files", "[compat][logs]") {
  const Run run{{"--nproc_per_node", "2", "--tee", "3", "--log-dir", "D", "--master-port", std::to_string(free_port()), "--rdzv-id", "job"},
                "echo out $RANK; echo err $RANK >&2"};
  INFO(run.err);
  REQUIRE(run.code == 0);
  CHECK(sorted(run.out) == "[default0]:out 0\n[default1]:out 1\n");
  CHECK(sorted(without_elrun(run.err)) == "[default0]:err 0\n[default1]:err 1\n");
  CHECK(std::filesystem::path{run.of_run()}.filename().string().starts_with("job_"));
  for (const std::string rank : {"0", "1"}) {
    CHECK(run.file("attempt_0/" + rank + "/stdout.log") == "out " + rank + "\n");
    CHECK(run.file("attempt_0/" + rank + "/stderr.log") == "err " + rank + "\n");
  }
}

TEST_CASE("34 -r by rank: only in files what was redirected", "[compat][logs]") {
  const Run run{{"--nproc_per_node", "2", "-r", "0:1,1:2", "--log-dir", "D"}, "echo out $RANK; echo err $RANK >&2"};
  INFO(run.err);
  REQUIRE(run.code == 0);
  CHECK(run.out == "out 1\n");
  CHECK(without_elrun(run.err) == "err 0\n");
  CHECK(run.file("attempt_0/0/stdout.log") == "out 0\n");
  CHECK(run.file("attempt_0/1/stderr.log") == "err 1\n");
  CHECK_FALSE(run.has_file("attempt_0/0/stderr.log"));
  CHECK_FALSE(run.has_file("attempt_0/1/stdout.log"));
}

TEST_CASE("35 --local-ranks-filter: the console shows these ranks, the files have all", "[compat][logs]") {
  const std::string script = "echo out $RANK; echo err $RANK >&2";
  const Run teed{{"--nproc_per_node", "3", "--tee", "1", "--local-ranks-filter", "1,2", "--log-dir", "D"}, script};
  REQUIRE(teed.code == 0);
  CHECK(sorted(teed.out) == "[default1]:out 1\n[default2]:out 2\n");
  CHECK(sorted(without_elrun(teed.err)) == "err 1\nerr 2\n");
  CHECK(teed.file("attempt_0/0/stdout.log") == "out 0\n");
  CHECK(teed.file("attempt_0/1/stdout.log") == "out 1\n");
}

TEST_CASE("36 --log-line-prefix-template names host and ranks; what it does not know stays", "[compat][logs]") {
  char host[256] = "";
  REQUIRE(::gethostname(host, sizeof host - 1) == 0);
  const std::string name = std::string{host}.substr(0, std::string{host}.find('.'));
  const Run run{{"--nproc_per_node", "2", "--role", "trainer", "--tee", "1", "--log-dir", "D", "--log-line-prefix-template",
                 "${hostname}:${rank}/${role_name}${other}$local_rank: "},
                "echo out"};
  REQUIRE(run.code == 0);
  CHECK(sorted(run.out) == name + ":0/trainer${other}0: out\n" + name + ":1/trainer${other}1: out\n");
}

TEST_CASE("37 TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE is the template when no option gives one", "[compat][logs]") {
  const std::map<std::string, std::string> environment{{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${rank}> "}};
  CHECK(Run({"--tee", "1", "--log-dir", "D"}, "echo out", environment).out == "<0> out\n");
  CHECK(Run({"--tee", "1", "--log-dir", "D", "--log-line-prefix-template", "|"}, "echo out", environment).out == "|out\n");
}

TEST_CASE("38 --duplicate-stdout-filters: matching lines of all teed ranks in one file", "[compat][logs]") {
  const Run run{{"--nproc_per_node", "2", "--tee", "3", "--log-dir", "D", "--duplicate-stdout-filters", "loss,a,,b",
                 "--duplicate-stderr-filters", "bad"},
                "echo loss $RANK; echo lo; echo $RANK a,b; echo bad $RANK >&2; echo loss >&2"};
  REQUIRE(run.code == 0);
  CHECK(sorted(run.file("attempt_0/filtered_stdout.log")) == "[default0]:0 a,b\n[default0]:loss 0\n[default1]:1 a,b\n[default1]:loss 1\n");
  CHECK(sorted(run.file("attempt_0/filtered_stderr.log")) == "[default0]:bad 0\n[default1]:bad 1\n");

  const Run unseen{
      {"--nproc_per_node", "2", "--tee", "1", "--log-dir", "D", "--duplicate-stdout-filters", "loss", "--local-ranks-filter", "1"},
      "echo loss $RANK"};
  CHECK(unseen.out == "[default1]:loss 1\n");
  CHECK(sorted(unseen.file("attempt_0/filtered_stdout.log")) == "[default0]:loss 0\n[default1]:loss 1\n");
}

TEST_CASE("39 each restart has its own attempt, and the logs of those before stay", "[compat][logs]") {
  const std::string script = "echo out $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 3";
  const Run run{{"--tee", "1", "--max-restarts", "2", "--log-dir", "D"}, script};
  INFO(run.err);
  REQUIRE(run.code == 0);
  CHECK(run.out == "[default0]:out 0\n[default0]:out 1\n[default0]:out 2\n");
  for (const std::string attempt : {"0", "1", "2"}) CHECK(run.file("attempt_" + attempt + "/0/stdout.log") == "out " + attempt + "\n");
}

TEST_CASE("39 also when a node joins, which torchrun does not count", "[compat][logs]") {
  TemporaryDirectory directory;
  const std::string logs = directory.path() + "/logs", endpoint = "127.0.0.1:" + std::to_string(free_port());
  const auto agent = [&](const std::string& name) {
    return Job::Setting{.arguments = {"--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint, "--rdzv_id", "job",
                                      "--rdzv_conf", "last_call_timeout=0.1", "--tee", "1", "--log-dir", logs + "/" + name, "--no-python",
                                      "/bin/sh", "-c", "echo world $WORLD_SIZE; [ $WORLD_SIZE = 2 ] || exec sleep 600"},
                        .environment = {{"XDG_RUNTIME_DIR", directory.path()}}};
  };
  Job a{agent("a")};
  REQUIRE(a.line("]:world 1", 60s));
  Job b{agent("b")};
  CHECK(a.wait(120s) == 0);
  CHECK(b.wait(120s) == 0);
  CHECK(a.says("world 2"));
  std::string run;
  for (const auto& entry : std::filesystem::directory_iterator{logs + "/a"}) run = entry.path();
  CHECK(content(run + "/attempt_0/0/stdout.log") == "world 1\n");
  CHECK(content(run + "/attempt_1/0/stdout.log") == "world 2\n");
}

TEST_CASE("40 --log-dir /dev/null: no files, no prefix, no error file", "[compat][logs]") {
  const Run run{{"--nproc_per_node", "2", "--tee", "3", "-r", "3", "--log-dir", "/dev/null"},
                "echo \"out $RANK [${TORCHELASTIC_ERROR_FILE-unset}]\"; echo err >&2"};
  REQUIRE(run.code == 0);
  CHECK(sorted(run.out) == "out 0 []\nout 1 []\n");
  CHECK(without_elrun(run.err) == "err\nerr\n");
  CHECK(std::filesystem::is_empty(run.temporary()));
}

TEST_CASE("41 nothing is left of a run without log options", "[compat][logs]") {
  const Run run{{"--nproc_per_node", "2"},
                "test -d $(dirname $TORCHELASTIC_ERROR_FILE) && echo error > $TORCHELASTIC_ERROR_FILE && echo written"};
  REQUIRE(run.code == 0);
  CHECK(run.out == "written\nwritten\n");
  CHECK(std::filesystem::is_empty(run.temporary()));
}

TEST_CASE("41 logs that were asked for without a place are kept, and it is said where", "[compat][logs]") {
  const Run run{{"-r", "1"}, "echo out"};
  REQUIRE(run.code == 0);
  CHECK(run.out.empty());
  const auto said = run.err.find("logs are in " + run.temporary());
  REQUIRE(said != std::string::npos);
  const std::string place = run.err.substr(said + 12, run.err.find('\n', said) - said - 12);
  CHECK(content(place + "/attempt_0/0/stdout.log") == "out\n");
}

TEST_CASE("42 long lines, no newline, progress bars and any bytes pass through tee", "[compat][logs]") {
  SECTION("a line of 1 MB is one line") {
    const Run run{{"--nproc_per_node", "2", "--tee", "1", "--log-dir", "D"}, "head -c 1048576 /dev/zero | tr '\\0' x; echo"};
    REQUIRE(run.code == 0);
    const std::string x(1048576, 'x');
    const bool whole = sorted(run.out) == "[default0]:" + x + "\n[default1]:" + x + "\n";
    CHECK(whole);
    const bool same = run.file("attempt_0/1/stdout.log") == x + "\n";
    CHECK(same);
  }
  SECTION("a last line without newline is a line on the console, and as it was in the file") {
    const Run run{{"--nproc_per_node", "2", "--tee", "1", "--log-dir", "D"}, "printf end$RANK"};
    CHECK(sorted(run.out) == "[default0]:end0\n[default1]:end1\n");
    CHECK(run.file("attempt_0/0/stdout.log") == "end0");
  }
  SECTION("the states of a progress bar are lines on the console") {
    const Run run{{"--tee", "2", "--log-dir", "D"}, "printf '\\r 10%%\\r 50%%\\r100%%\\n' >&2"};
    CHECK(without_elrun(run.err) == "[default0]: 10%\n[default0]: 50%\n[default0]:100%\n");
    CHECK(run.file("attempt_0/0/stderr.log") == "\r 10%\r 50%\r100%\n");
  }
  SECTION("bytes that are no text are not touched") {
    const Run run{{"--tee", "1", "--log-dir", "D"}, "printf '\\377\\376 \\303( \\0 x\\n'"};
    const std::string bytes{"\xff\xfe \xc3( \0 x\n", 10};
    CHECK(run.out == "[default0]:" + bytes);
    CHECK(run.file("attempt_0/0/stdout.log") == bytes);
  }
}

TEST_CASE("42 of eight fast writers nothing is lost and no lines are mixed", "[compat][logs]") {
  // Both streams of all workers lead to the same pipe here, as in a container.
  TemporaryDirectory directory;
  Job job{{.arguments = {"--nproc_per_node", "8", "--tee", "3", "--log-dir", directory.path() + "/logs", "--no-python", "/bin/sh", "-c",
                         "seq -f \"out of rank $RANK, line %.0f.\" 1 20000 & seq -f \"err of rank $RANK, line %.0f.\" 1 20000 >&2; wait"}}};
  REQUIRE(job.wait(120s) == 0);
  std::map<std::string, int> next;
  int strange = 0;
  for (const std::string& line : lines_of(job.output())) {
    if (line.starts_with("[elrun ")) continue;
    const std::string rank = line.substr(0, line.find(':') + 1), stream = line.substr(rank.size(), 3);
    const std::string expected =
        rank + stream + " of rank " + rank.substr(8, rank.find(']') - 8) + ", line " + std::to_string(++next[rank + stream]) + ".";
    if (line != expected && ++strange < 5) CHECK(line == expected);
  }
  CHECK(strange == 0);
  CHECK(next.size() == 16);
  CHECK(std::all_of(next.begin(), next.end(), [](const auto& n) { return n.second == 20000; }));
}

TEST_CASE("42 a terminal that nobody reads does not hold up a worker, and loses nothing", "[compat][logs]") {
  TemporaryDirectory directory;
  const std::string done = directory.path() + "/done";
  ::mkfifo(done.c_str(), 0600);
  Job job{{.arguments = {"--tee", "1", "--log-dir", directory.path() + "/logs", "--no-python", "/bin/sh", "-c",
                         "seq 1 3000000; echo done > " + done}}};
  std::string said;
  std::getline(std::ifstream{done}, said);  // 22 MB have been written, and not a byte of it was read
  CHECK(said == "done");
  CHECK(job.wait(120s) == 0);
  const std::string output = without_elrun(job.output());
  CHECK(std::count(output.begin(), output.end(), '\n') == 3000000);
  CHECK(output.ends_with("[default0]:3000000\n"));
}

TEST_CASE("42 who outlives a worker and holds its output holds up nobody", "[compat][logs]") {
  const Run run{{"--tee", "3", "--log-dir", "D"}, "setsid sleep 1000 & echo end >&2"};
  CHECK(run.code == 0);
  CHECK(run.err.find("[default0]:end\n") != std::string::npos);
}

// --- neither redirected nor teed: as if elrun were not there -----------------------------------------------------------

TEST_CASE("34 a worker that is not redirected has elrun's own standard output, and a terminal stays a terminal", "[compat][logs]") {
  const Run run{{}, "readlink /proc/self/fd/1; readlink /proc/self/fd/0 >&2"};
  CHECK(run.out == run.directory.path() + "/out\n");
  const Run none{{"--log-dir", "/dev/null"}, "readlink /proc/self/fd/2"};
  CHECK(none.out == none.directory.path() + "/err\n");
  if (!std::filesystem::exists("/usr/bin/script")) {
    WARN("SKIPPED: the part that needs a terminal, for there is no `script` here");
    return;
  }
  Job job{{.arguments = {"-qec", program_path("elrun") + " --no-python /bin/sh -c 'test -t 1 && test -t 2 && echo terminals'", "/dev/null"},
           .program = "/usr/bin/script"}};
  CHECK(job.wait(60s) == 0);
  CHECK(job.says("terminals"));
}

TEST_CASE("34 what a worker writes to output and error that are one file stays in its order", "[compat][logs]") {
  Job job{{.arguments = {"--no-python", "/bin/sh", "-c", "for i in $(seq 1000); do echo out $i; echo err $i >&2; done"}}};
  CHECK(job.wait(60s) == 0);
  std::string expected;
  for (int i = 1; i <= 1000; ++i) expected += "out " + std::to_string(i) + "\nerr " + std::to_string(i) + "\n";
  CHECK(without_elrun(job.output()) == expected);
}

TEST_CASE("34 what has no newline yet is shown at once", "[compat][logs]") {
  TemporaryDirectory directory;
  const std::string go_on = directory.path() + "/go-on";
  ::mkfifo(go_on.c_str(), 0600);
  Job job{{.arguments = {"--no-python", "/bin/sh", "-c", "printf 'at \377 50%%' >&2; read x < " + go_on + "; echo ' done' >&2"}}};
  for (int i = 0; i < 600 && !job.says("at \xff 50%"); ++i) (void)job.line("no such line", Wait{100});
  REQUIRE(job.says("at \xff 50%"));
  CHECK_FALSE(job.says("done"));
  std::ofstream{go_on} << "x\n";
  CHECK(job.wait(60s) == 0);
  CHECK(job.says("at \xff 50% done\n"));
}

TEST_CASE("34 a worker's last words stand before what elrun says of its end", "[compat][logs]") {
  TemporaryDirectory directory;
  const std::string go_on = directory.path() + "/go-on";
  ::mkfifo(go_on.c_str(), 0600);
  Job job{{.arguments = {"--no-python", "/bin/sh", "-c",
                         "echo ready pid=$$ >&2; read x < " + go_on +
                             "; { head -c 800000 /dev/zero | tr '\\0' x; echo; echo last words; } >&2; exit 3"}}};
  const auto ready = job.line("ready", 60s);
  REQUIRE(ready);
  const Watch worker{static_cast<pid_t>(number_after(*ready, "pid"))};
  // While elrun stands still the worker says all that its pipe takes, and ends: elrun learns of both at the same time.
  job.signal(SIGSTOP);
  std::ofstream{go_on} << "x\n";
  (void)worker.ended(5s);
  job.signal(SIGCONT);
  CHECK(job.wait(60s) == 3);
  const auto words = job.output().find("last words\n"), end = job.output().find("ended by exit code 3");
  REQUIRE(words != std::string::npos);
  REQUIRE(end != std::string::npos);
  CHECK(words < end);
}
