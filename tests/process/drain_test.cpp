// `elrun drain`: agents are asked to leave and waited for, whoever is process 1 of their container.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lib/base/fd.hpp"

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""ms;

namespace {

using Words = std::vector<std::string>;

struct Place {
  TemporaryDirectory directory;

  [[nodiscard]] std::unique_ptr<Job> agent(Words options, const std::string& script = "echo started; exec sleep 600") const {
    options.insert(options.end(), {"--no_python", "/bin/sh", "-c", script});
    return start("elrun", std::move(options), environment());
  }
  /// The exit code, and what it said.
  [[nodiscard]] Ended drain(Words more = {}) const {
    more.insert(more.begin(), "drain");
    return run("elrun", std::move(more), environment());
  }
  [[nodiscard]] std::map<std::string, std::string> environment() const { return {{"XDG_RUNTIME_DIR", directory.path()}}; }
};

/// The status socket of an agent that this process plays.
class PlayedStatus {
 public:
  explicit PlayedStatus(const Place& place) {
    const std::string directory = place.directory.path() + "/elrun-played";
    std::filesystem::create_directory(directory);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = directory + "/status.sock";
    REQUIRE(path.size() < sizeof address.sun_path);
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    const timeval accept_wait{60, 0};  // which only a failing test waits for
    REQUIRE(::setsockopt(listener_.get(), SOL_SOCKET, SO_RCVTIMEO, &accept_wait, sizeof accept_wait) == 0);
    REQUIRE(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listener_.get(), 16) == 0);
  }
  /// The next visitor gets this page; with none the connection is closed at once.
  void answer(const std::string& page) const {
    const elrun::Fd visitor{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
    if (!visitor || page.empty()) return;
    std::array<char, 4096> question;
    (void)::recv(visitor.get(), question.data(), question.size(), 0);
    const std::string reply = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " + std::to_string(page.size()) + "\r\n\r\n" + page;
    (void)::send(visitor.get(), reply.data(), reply.size(), MSG_NOSIGNAL);
  }

 private:
  const elrun::Fd listener_{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
};

}  // namespace

TEST_CASE("a drained agent has left when drain returns", "[drain][process]") {
  const Place place;
  const auto agent = place.agent({"--rdzv_id", "my job"});
  REQUIRE(agent->line("started"));
  const Ended drained = place.drain();
  INFO(drained.output);
  CHECK(drained.code == 0);
  CHECK(drained.says("agent " + std::to_string(agent->pid()) + " (run my job, node "));
  CHECK(drained.says(") was asked to leave; waiting for 600 s at most"));
  CHECK(drained.says(") has left after "));
  CHECK(agent->wait(0ms) == 143);  // it has, and was not killed
}

TEST_CASE("a shell that stays process 1 and knows no SIGTERM does not keep drain from its agent", "[drain][process]") {
  const Place place;
  const auto shell = start("/bin/sh", {"-c", program_path("elrun") + " --no_python sleep 600; echo code=$?"}, place.environment());
  REQUIRE(shell->line("generation 1: "));
  CHECK(place.drain().code == 0);
  CHECK(shell->wait() == 0);
  CHECK(shell->says("code=143"));
}

TEST_CASE("a shell that is process 1 and swallows SIGTERM is told of, and one that execs elrun is not", "[drain][process]") {
  const Place place;
  // In a namespace of process numbers, as in a container, which needs rights that not every machine gives.
  const auto container = [&](const std::string& script) {
    return run("/usr/bin/unshare", {"--pid", "--fork", "--mount-proc", "--kill-child=KILL", "/bin/sh", "-c", script},
               {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}, {"XDG_RUNTIME_DIR", place.directory.path()}});
  };
  if (container("exit 0").code != 0) {
    std::printf("SKIPPED: no process namespaces here\n");
    return;
  }
  const std::string elrun = program_path("elrun") + " --nnodes 1 --no_python true";
  const Ended swallowed = container(elrun + "; exit $?");
  INFO(swallowed.output);
  CHECK(swallowed.code == 0);
  CHECK(swallowed.says("warning: process 1 of this container is "));
  CHECK_FALSE(container("exec " + elrun).says("process 1 of this container"));
  CHECK_FALSE(container("trap : TERM; " + elrun + "; exit $?").says("process 1 of this container"));
}

TEST_CASE("the agent of another container is not asked by its number there, which is another process's here", "[drain][process]") {
  const Place place;
  const auto stranger = start("/bin/sleep", {"600"}, {});
  // Its own number is the stranger's here.
  const std::string script = "echo " + std::to_string(stranger->pid() - 1) + " > /proc/sys/kernel/ns_last_pid || exit 1; " +
                             program_path("elrun") + " --no_python /bin/sh -c 'echo started; exec sleep 600' & wait";
  const auto container =
      start("/usr/bin/unshare", {"--pid", "--fork", "--mount-proc", "--kill-child=KILL", "/bin/sh", "-c", script}, place.environment());
  if (!container->line("started")) {
    std::printf("SKIPPED: no process namespaces here, or none whose numbers can be chosen\n");
    return;
  }
  const Ended drained = place.drain();
  INFO(drained.output);
  CHECK(drained.says("agent " + std::to_string(stranger->pid()) + " (run "));
  CHECK(drained.says("runs in another container, and is not asked to leave"));
  CHECK(drained.says("no agent of this user runs on this machine"));
  CHECK(drained.code == 69);
  CHECK(stranger->wait(0ms) == -1);
}

TEST_CASE("an agent that is leaving already is waited for, and not asked again: that would kill its workers", "[drain][process]") {
  const Place place;
  const std::string end = place.directory.path() + "/end";
  const auto agent =
      place.agent({"--shutdown_timeout", "600"}, "trap '' TERM; echo started; while [ ! -e " + end + " ]; do sleep 0.05; done");
  REQUIRE(agent->line("started"));
  const Ended first = place.drain({"--timeout", "0.3"});
  INFO(first.output);
  CHECK(first.code == 69);
  CHECK(first.says("is still there after 0.3 s; its log says what it waits for"));
  REQUIRE(agent->line("forwarded to 1 worker"));  // else it may not have seen the signal yet when it is asked again
  const auto again = start("elrun", {"drain", "--pid", std::to_string(agent->pid())}, place.environment());
  CHECK(again->line("is leaving already"));
  std::ofstream{end}.put('\n');
  const Ended second = finish(*again);
  INFO(second.output);
  CHECK(second.code == 0);
  CHECK(agent->wait() == 143);
  INFO(agent->output());
  CHECK(agent->says("SIGTERM"));
  CHECK_FALSE(agent->says("again"));
}

TEST_CASE("an agent whose second answer does not come in time has not left: drain fails, and says that it was not asked",
          "[drain][process]") {
  const Place place;
  const PlayedStatus agent{place};
  const std::string pid = std::to_string(::getpid());
  std::thread first{[&] { agent.answer(R"({"pid": )" + pid + R"(, "run": "slow", "node": "here"})"); }};
  const Ended drained = place.drain();  // its later questions wait in the socket's queue
  first.join();
  INFO(drained.output);
  CHECK(drained.code == 69);
  CHECK(drained.says("agent " + pid + " (run slow, node here) is not asked to leave: "));
  CHECK(drained.says("did not answer within 5.0 s"));
  CHECK_FALSE(drained.says("has left already"));
}

TEST_CASE("an agent that closes the line is not gone: status and drain fail, though another agent answers", "[drain][process]") {
  const Place place;
  const PlayedStatus closing{place};
  const auto agent = place.agent({});
  REQUIRE(agent->line("started"));
  std::thread closes{[&] {
    for (int visitors = 0; visitors < 2; ++visitors) closing.answer("");
  }};
  const Ended asked = run("elrun", {"status"}, place.environment());
  const Ended drained = place.drain();
  closes.join();
  INFO(asked.output << drained.output);
  CHECK(asked.code == 69);
  CHECK(drained.code == 69);
  CHECK(drained.says("it is not asked to leave"));
  CHECK(drained.says(") has left after "));
}

TEST_CASE("where no agent is, drain says so", "[drain][process]") {
  const Place place;
  const Ended none = place.drain();
  CHECK(none.code == 69);
  CHECK(none.says("no agent of this user runs on this machine"));
  const auto agent = place.agent({});
  REQUIRE(agent->line("started"));
  CHECK(place.drain({"--pid", "1"}).code == 69);  // it is nobody's worker
  CHECK(agent->wait(0ms) == -1);
  CHECK(place.drain({"--timeout", "0"}).code == 64);
}

TEST_CASE("a Job that is drained leaves at the end of a step: what goes on from its checkpoint ends in the same state",
          "[drain][process][golden]") {
  const Place place;
  const Folder folder;
  constexpr unsigned steps = 1200;
  const auto gpt = gpt_arguments(folder / "text", steps, {"--every", "1000000", "--checkpoint", folder / "ck"});
  const auto first = start_held_gpt({"--nproc_per_node", "2"}, gpt, place.environment());
  REQUIRE(until(*first, "step=20 "));
  // The workers are held until the agent was asked: on a fast machine the job would have ended by then.
  const auto workers = first->children_named("gpt");
  REQUIRE(workers.size() == 2);
  for (const pid_t worker : workers) REQUIRE(::kill(worker, SIGSTOP) == 0);
  const auto drain = start("elrun", {"drain"}, place.environment());
  REQUIRE(until(*first, "as soon as the job has saved a checkpoint"));
  for (const pid_t worker : workers) REQUIRE(::kill(worker, SIGCONT) == 0);
  const Ended left = finish(*first);
  CHECK(drain->wait() == 0);
  INFO(left.output);
  CHECK(left.code == 143);
  CHECK(left.says("as soon as the job has saved a checkpoint"));
  const Ended second = run("elrun", under_elrun({"--nproc_per_node", "2"}, gpt), place.environment());
  INFO(second.output);
  CHECK(second.code == 0);
  CHECK(second.says("going on from checkpoint"));
  const Ended plain = run("gpt", gpt_arguments(folder / "text", steps));
  CHECK(plain.state.size() == 16);
  CHECK(second.state == plain.state);
}
