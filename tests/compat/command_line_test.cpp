// Statements 1 to 22: what is read from the command line and from PET_*. Most cases let `echo` stand in for Python, so that
// they see what it would have been given; exit codes are looked at under both names, for they differ.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "tests/compat/support.hpp"

using namespace elrun::test;

namespace {

struct Ended {
  int code = -1;
  std::string output;
  [[nodiscard]] bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
};

// A folder with a script in it, and elrun under torchrun's name.
struct Place {
  Meeting meeting;
  std::string script = meeting.folder.path() + "/s.py";
  std::string torchrun = meeting.folder.path() + "/torchrun";

  Place() {
    // One write: `python -u` writes each piece of a print by itself, between those of other workers.
    std::ofstream{script} << "import sys\nsys.stdout.write(' '.join(['argv', *sys.argv[1:]]) + '\\n')\n";
    std::filesystem::create_symlink(program_path("elrun"), torchrun);
  }

  // What `python -u s.py ...` would have been: a line `-u s.py ...` for each worker.
  [[nodiscard]] Ended echoed(std::vector<std::string> words, Variables environment = {}) const {
    environment.try_emplace("PYTHON_EXEC", "/bin/echo");
    return run(std::move(words), std::move(environment));
  }
  [[nodiscard]] Ended run(std::vector<std::string> words, Variables environment = {}, const std::string& program = "elrun") const {
    Job::Setting setting = meeting.alone(std::move(words), std::move(environment));
    setting.program = program;
    Job job{std::move(setting)};
    const int code = job.wait(patience);
    return {code, job.output()};
  }
  [[nodiscard]] std::size_t workers(const Ended& ended) const { return reported_times(ended.output, "-u " + script); }

  // The exit codes of a refusal as elrun and as torchrun; empty unless `text` is said.
  [[nodiscard]] std::string refused(const std::vector<std::string>& words, const std::string& text,
                                    const Variables& environment = {}) const {
    const Ended own = run(words, environment), torchruns = run(words, environment, torchrun);
    if (!own.says(text) || !torchruns.says(text)) return own.output;
    return std::to_string(own.code) + " " + std::to_string(torchruns.code);
  }
};

// Its lines are at the beginning of an output that elrun's own lines are in as well.
std::vector<std::string> lines_with(const std::string& output, const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in{output};
  for (std::string line; std::getline(in, line);)
    if (line.find(text) != std::string::npos) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::string run_id(const Ended& ended) { return word_after(ended.output, "id"); }

const std::vector<std::string> say_id{"--no_python", "/bin/sh", "-c",
                                      "echo id=$TORCHELASTIC_RUN_ID master=$MASTER_ADDR:$MASTER_PORT rank=$RANK group=$GROUP_RANK"};

}  // namespace

TEST_CASE("1 what follows the script is the script's", "[compat][process]") {
  if (!has_python()) return;
  const Place place;
  const Ended ended = place.run({place.script, "a", "--nproc_per_node", "3"});
  CHECK(ended.code == 0);
  CHECK(lines_with(ended.output, "argv") == std::vector<std::string>{"argv a --nproc_per_node 3"});
}

TEST_CASE("2 options in both spellings", "[compat][process]") {
  const Place place;
  CHECK(place.workers(place.echoed({"--nproc_per_node", "2", place.script})) == 2);
  CHECK(place.workers(place.echoed({"--nproc-per-node=2", place.script})) == 2);
}

TEST_CASE("3 options can be shortened; what two options begin with is enough for one spelling of one option", "[compat][process]") {
  const Place place;
  CHECK(place.workers(place.echoed({"--nproc_per", "2", place.script})) == 2);
  CHECK(place.workers(place.echoed({"--nnode", "1", place.script})) == 1);
  CHECK(place.workers(place.echoed({"--nproc", "2", place.script})) == 2);  // torchrun holds its two spellings for two options
  CHECK(place.refused({"--d", "x", place.script}, "--d: could be --duplicate_stdout_filters") == "64 2");
}

TEST_CASE("4 a wrong command line says how it is used, on stderr", "[compat][process]") {
  const Place place;
  CHECK(place.refused({}, "no PROGRAM") == "64 2");
  CHECK(place.refused({"--bogus", place.script}, "--bogus: no such option") == "64 2");
  CHECK(place.refused({"--max-restarts", "x", place.script}, "--max_restarts x: must be a whole number") == "64 2");
  CHECK(place.refused({"--bogus"}, "usage: elrun [options] PROGRAM") == "64 2");
  const Ended silent = place.run({"-c", "\"$0\" --bogus 2>/dev/null", place.torchrun}, {}, "/bin/sh");
  CHECK(silent.code == 2);
  CHECK(silent.output.empty());
}

TEST_CASE("5 two dashes end the options", "[compat][process]") {
  const Place place;
  CHECK(place.echoed({"--", place.script, "-x"}).says("-u " + place.script + " -x\n"));
}

TEST_CASE("6 PET_ gives the default, the command line wins", "[compat][process]") {
  const Place place;
  CHECK(place.workers(place.echoed({place.script}, {{"PET_NPROC_PER_NODE", "2"}})) == 2);
  CHECK(place.workers(place.echoed({"--nproc-per-node", "1", place.script}, {{"PET_NPROC_PER_NODE", "2"}})) == 1);
}

TEST_CASE("7 PET_ of a flag is on or off, and anything else is told apart", "[compat][process]") {
  const Place place;
  CHECK(place.echoed({"pkg.mod"}, {{"PET_MODULE", "1"}}).says("-u -m pkg.mod\n"));
  CHECK(place.echoed({place.script}, {{"PET_MODULE", "0"}}).says("-u " + place.script + "\n"));
  CHECK(place.run({"/bin/echo", "hi"}, {{"PET_NO_PYTHON", "1"}}).says("hi\n"));
  CHECK(place.echoed({place.script}, {{"PET_RUN_PATH", "2"}}).says("-u -c "));
  const Ended alone = place.run(say_id, {{"PET_STANDALONE", "1"}, {"PET_RDZV_ID", "x"}});
  CHECK(alone.code == 0);
  CHECK(run_id(alone) != "x");
  CHECK(run_id(place.run(say_id, {{"PET_STANDALONE", "0"}, {"PET_RDZV_ID", "x"}})) == "x");
  CHECK(place.refused({place.script}, "PET_NO_PYTHON=true: a flag is 1 (on) or 0 (off)", {{"PET_NO_PYTHON", "true"}}) == "64 1");
  CHECK(place.refused({place.script}, "PET_MODULE=: a flag is 1 (on) or 0 (off)", {{"PET_MODULE", ""}}) == "64 1");
}

TEST_CASE("8 Kubeflow's variables alone choose static, and the rank", "[compat][process]") {
  const Place place;
  const std::string port = std::to_string(free_master_port());
  const auto node = [&](const char* rank) {
    return place.meeting.alone(joined({"--rdzv_conf", "join_timeout=100"}, say_id),
                               {{"PET_NNODES", "2"}, {"PET_NODE_RANK", rank}, {"PET_MASTER_ADDR", "127.0.0.1"}, {"PET_MASTER_PORT", port}});
  };
  Job second{node("1")}, first{node("0")};
  CHECK(first.wait(patience) == 0);
  CHECK(second.wait(patience) == 0);
  CHECK(first.says("master=127.0.0.1:" + port + " rank=0 group=0"));
  CHECK(second.says("master=127.0.0.1:" + port + " rank=1 group=1"));
  const Ended plan = place.run({"--dry-run", place.script},
                               {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"PET_MASTER_ADDR", "h"}, {"PET_MASTER_PORT", "7"}});
  CHECK(plan.code == 0);
  CHECK(plan.says("\"endpoint\": \"h:10007\""));  // 7 is the workers'
  CHECK(plan.says("\"served_by\": \"another node\""));
  CHECK(plan.says("\"master_port_of_workers\": 7"));
}

TEST_CASE("9 a number of nodes that cannot be", "[compat][process]") {
  const Place place;
  for (const char* nodes : {"3:2", "1:2:3", "x"}) {
    INFO(nodes);
    CHECK(place.refused({"--nnodes", nodes, place.script}, std::string{"--nnodes "} + nodes) == "64 1");
  }
}

TEST_CASE("10 auto counts what this process may use; gpu wants a GPU", "[compat][process]") {
  const Place place;
  const Variables without_gpus{{"CUDA_VISIBLE_DEVICES", ""}};
  if (std::filesystem::exists("/usr/bin/taskset")) {
    Variables environment = without_gpus;
    environment.emplace("PYTHON_EXEC", "/bin/echo");
    const std::string elrun = program_path("elrun");
    const Ended one = place.run({"-c", "0", elrun, "--nproc-per-node", "auto", place.script}, environment, "/usr/bin/taskset");
    CHECK(one.code == 0);
    CHECK(place.workers(one) == 1);
  }
  CHECK(place.workers(place.echoed({"--nproc-per-node", "auto", place.script}, {{"CUDA_VISIBLE_DEVICES", "0,1,2"}})) == 3);
  CHECK(place.refused({"--nproc-per-node", "gpu", place.script}, "this machine shows no GPU", without_gpus) == "64 1");
  CHECK(place.refused({"--nproc-per-node", "0", place.script}, "--nproc_per_node 0") == "64 1");
}

TEST_CASE("11 standalone has a fresh id each time, whatever is given", "[compat][process]") {
  const Place place;
  const std::vector<std::string> words = joined({"--standalone", "--rdzv-id", "x"}, say_id);
  const std::string one = run_id(place.run(words)), other = run_id(place.run(words));
  for (const std::string& id : {one, other}) {
    INFO(id);
    REQUIRE(id.size() == 36);
    for (std::size_t i = 0; i < id.size(); ++i)
      CHECK((i == 8 || i == 13 || i == 18 || i == 23 ? id[i] == '-' : std::isxdigit(static_cast<unsigned char>(id[i])) != 0));
  }
  CHECK(one != other);
}

TEST_CASE("12 two runs on one node share no port, and 29500 may be taken", "[compat][process]") {
  const int taken = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(29500);
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  if (::bind(taken, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    REQUIRE(::listen(taken, 1) == 0);  // else somebody has it
  const Place place;
  const std::vector<std::string> words{"--no_python", "/bin/sh", "-c", "echo master=$MASTER_ADDR:$MASTER_PORT; read -r end"};
  {
    Job one{place.meeting.alone(words)}, other{place.meeting.alone(words)};
    const auto first = one.line("master=", patience), second = other.line("master=", patience);
    CHECK((first.has_value() && second.has_value()));
    if (first && second) {
      CHECK(word_after(*first, "master") != word_after(*second, "master"));
      CHECK(word_after(*first, "master") != "127.0.0.1:29500");
    }
  }
  ::close(taken);
}

TEST_CASE("13 a master port keeps one node static", "[compat][process]") {
  const Place place;
  const std::string port = std::to_string(place.meeting.port);
  const Ended ended = place.run(joined({"--master-port", port, "--nproc-per-node", "2"}, say_id));
  CHECK(ended.code == 0);
  CHECK(lines_with(ended.output, "id=") == std::vector<std::string>{"id=none master=127.0.0.1:" + port + " rank=0 group=0",
                                                                    "id=none master=127.0.0.1:" + port + " rank=1 group=0"});
  CHECK_FALSE(ended.says("is in use"));
  const int taken = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof address;
  REQUIRE(::bind(taken, reinterpret_cast<const sockaddr*>(&address), size) == 0);
  REQUIRE(::getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const std::string its = std::to_string(ntohs(address.sin_port));
  CHECK(place.run(joined({"--master-port", its}, say_id)).says("--master_port " + its + " is in use on this machine"));
  ::close(taken);
  const Ended any = place.run(joined({"--master-port", "0"}, say_id));
  CHECK(any.code == 0);
  CHECK(run_id(any) == "none");
  CHECK(std::stoi(word_after(any.output, "master").substr(std::string{"127.0.0.1:"}.size())) > 0);
}

TEST_CASE("14 a host whose own name leads nowhere is no obstacle", "[compat][process]") {
  const Place place;
  const std::string elrun = program_path("elrun");
  const std::vector<std::string> other_name{"-r", "--uts", "/bin/sh", "-c", "hostname no-such-name-anywhere && exec \"$@\"", "sh"};
  if (!std::filesystem::exists("/usr/bin/unshare") || place.run(joined(other_name, {"/bin/true"}), {}, "/usr/bin/unshare").code != 0) {
    std::printf("SKIPPED: no name of its own for a process here (unshare --uts)\n");
    return;
  }
  const Ended ended = place.run(joined(other_name, joined({elrun}, joined({"--nproc_per_node=2"}, say_id))), {}, "/usr/bin/unshare");
  CHECK(ended.code == 0);  // torchrun needs ten minutes to fail, which is longer than a test may take
  CHECK(reported_times(ended.output, "master=127.0.0.1:") == 2);
}

TEST_CASE("15 modules, executables, and not both", "[compat][process]") {
  const Place place;
  CHECK(place.echoed({"-m", "pkg.mod", "x"}).says("-u -m pkg.mod x\n"));
  const Ended hi = place.run({"--no-python", "/bin/echo", "hi"});
  CHECK(hi.code == 0);
  CHECK(lines_with(hi.output, "hi") == std::vector<std::string>{"hi"});
  CHECK(place.refused({"-m", "--no-python", "x"}, "--module and --no_python contradict each other") == "78 1");
}

TEST_CASE("16 macros in arguments", "[compat][process]") {
  const Place place;
  const Ended ended = place.run({"--no-python", "/bin/echo", "args:", "${local_rank}", "$$", "${other}"});
  CHECK(lines_with(ended.output, "args:") == std::vector<std::string>{"args: 0 $ ${other}"});
}

TEST_CASE("17 PYTHON_EXEC replaces the interpreter", "[compat][process]") {
  const Place place;
  CHECK(lines_with(place.echoed({place.script}).output, "-u") == std::vector<std::string>{"-u " + place.script});
}

TEST_CASE("17 the interpreter of the environment that holds the torchrun link is used, active or not", "[compat][process]") {
  const Place place;
  const std::string folder = place.meeting.folder.path();
  const auto make_environment = [&](const std::string& name) {
    const std::string bin = folder + "/" + name + "/bin";
    std::filesystem::create_directories(bin);
    std::ofstream{folder + "/" + name + "/pyvenv.cfg"} << "home = /usr/bin\n";
    std::filesystem::create_symlink(program_path("elrun"), bin + "/torchrun");
    for (const char* python : {"/python", "/python3"}) {
      std::ofstream{bin + python} << "#!/bin/sh\necho python of " << name << ": \"$@\"\n";
      std::filesystem::permissions(bin + python, std::filesystem::perms::owner_all);
    }
    return bin;
  };
  const std::string one = make_environment("one"), other = make_environment("other");
  const auto used = [&](const std::string& program, Variables environment) {
    environment.emplace("PYTHON_EXEC", "");  // as if it was not set
    const std::vector<std::string> lines = lines_with(place.run({place.script, "x"}, std::move(environment), program).output, "python of");
    return lines.empty() ? std::string{} : lines[0];
  };
  const std::string expected = "python of one: -u " + place.script + " x";
  CHECK(used(one + "/torchrun", {}) == expected);
  CHECK(used(one + "/torchrun", {{"VIRTUAL_ENV", folder + "/other"}, {"PATH", other + ":/usr/bin:/bin"}}) == expected);
  CHECK(used("/bin/sh", {}).empty());
}

TEST_CASE("18 a place to meet that cannot be", "[compat][process]") {
  const Place place;
  CHECK(place.refused({"--rdzv-conf", "a", place.script}, "--rdzv_conf: entry 1 is not KEY=VALUE") == "64 1");
  CHECK(place.refused({"--rdzv-backend=c10d", "--rdzv-endpoint", "h:99999", place.script}, "--rdzv_endpoint h:99999: the port must be") ==
        "64 1");
  CHECK(place.refused({"--rdzv-backend=zookeeper", place.script}, "must be static, c10d or etcd") == "64 1");
}

TEST_CASE("19 the times of --rdzv-conf are kept", "[compat][process]") {
  const Place place;
  const std::vector<std::string> program{"--no_python", "/bin/echo", "started"};
  const auto with = [&](const std::string& conf, const std::vector<std::string>& more) {
    return joined({"--rdzv_backend", "c10d", "--rdzv_endpoint", place.meeting.endpoint(), "--rdzv_conf", conf}, joined(more, program));
  };
  // A default of either would outlast the test's patience or the other's.
  CHECK(place.run(with("join_timeout=1", {"--nnodes", "2"})).code == 170);
  const Ended elastic = place.run(with("last_call_timeout=0.2,join_timeout=10", {"--nnodes", "1:2"}));
  CHECK(elastic.code == 0);
  CHECK(elastic.says("started"));
  const Ended plan = place.run(with("keep_alive_interval=2,keep_alive_max_attempt=4", {"--nnodes", "2", "--dry-run"}));
  CHECK(plan.says("\"heartbeat\": 2.0"));
  CHECK(plan.says("\"node_is_lost\": 8.0"));
}

TEST_CASE("20 a local rank of two digits has streams of its own", "[compat][process]") {
  const Place place;
  const std::string logs = place.meeting.folder.path() + "/logs";
  const Ended ended =
      place.run({"-r", "10:3", "--log-dir", logs, "--nproc_per_node", "12", "--no_python", "/bin/echo", "worker=${local_rank}."});
  CHECK(ended.code == 0);
  CHECK_FALSE(ended.says("worker=10."));
  CHECK(ended.says("worker=1."));
  CHECK(ended.says("worker=11."));
  std::string text;
  if (std::filesystem::exists(logs))
    for (const auto& entry : std::filesystem::recursive_directory_iterator{logs})
      if (entry.path().filename() == "stdout.log" && entry.path().parent_path().filename() == "10")
        std::getline(std::ifstream{entry.path()}, text);
  CHECK(text == "worker=10.");
}

TEST_CASE("21 redirects that cannot be", "[compat][process]") {
  const Place place;
  for (const char* streams : {"4", "0:1,", "a"}) {
    INFO(streams);
    CHECK(place.refused({"--redirects", streams, place.script}, std::string{"--redirects "} + streams) == "64 1");
  }
}

TEST_CASE("22 as under torch.distributed.launch, the script is told its local rank, unless it reads the environment", "[compat][process]") {
  if (!has_python()) return;
  const Place place;
  const Ended told = place.run({"--local-rank-argument", "--nproc_per_node=2", place.script, "x"});
  CHECK(told.code == 0);
  CHECK(lines_with(told.output, "argv") == std::vector<std::string>{"argv --local-rank=0 x", "argv --local-rank=1 x"});
  const Ended reads = place.run({"--local-rank-argument", "--use-env", place.script, "x"});
  CHECK(lines_with(reads.output, "argv") == std::vector<std::string>{"argv x"});
}
