// Each tutorial of samples/kubernetes in emulated pods, with another program in place of its script, and what happens to pods, one event after another in one job. It prints a row
// for each event: tests/manifests/events.py makes the table in samples/kubernetes/README.md of them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/pod_training.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""s;
using Time = PodTraining::Time;
using Mark = PodTraining::Mark;

namespace {

/// The stage of ZeRO that each tutorial's script has by other means: DDP is 0, FSDP 3.
constexpr int stages[] = {3, 0, 3, 2, 0, 3};
constexpr std::uint64_t every = 50;                // steps between checkpoints of pod_worker
constexpr std::uint64_t memory_limit = 512 << 20;  // of a pod; its processes need a third of that

/// A column of the table, empty where it does not apply.
struct Row {
  std::string seen{}, trains{}, lost{}, code{}, restarts{};
};

std::string seconds_from(const Mark& since, std::optional<Time> until) {
  char text[32];
  if (!until) return {};
  std::snprintf(text, sizeof text, "%.1f", std::chrono::duration<double>(*until - since.when).count());
  return text;
}

class Tutorial {
 public:
  Tutorial(Fabric& fabric, JobPlan plan, int number) : job{fabric, std::move(plan), {}}, number_{number} {
    job.pods().change_program(program(job.folder(), std::uint64_t{1} << 30));
  }

  ~Tutorial() {
    if (std::uncaught_exceptions() > 0 || std::getenv("ELRUN_PODS_SAID"))
      std::printf("What elrun said until then:\n%s", job.said().c_str());
  }
  Tutorial(const Tutorial&) = delete;
  Tutorial& operator=(const Tutorial&) = delete;

  void begins_when_names_are_late();
  void loses_a_pod_that_is_deleted();
  void loses_a_worker_to_the_memory_limit();
  void loses_a_container_to_the_memory_limit();
  void loses_a_node();
  void loses_the_first_pods_node();
  void has_two_pods_of_one_index();
  void is_scaled_down_and_up();
  void has_a_pod_that_is_frozen_and_replaced();
  void answers_probes_beside_many_connections();
  void is_recreated_and_ends();

  PodTraining job;

 private:
  [[nodiscard]] std::vector<std::string> program(const std::string& folder, std::uint64_t steps) const {
    return {test_program_path("pod_worker"), "job", folder, std::to_string(stages[number_]), std::to_string(steps)};
  }
  [[nodiscard]] std::size_t survivors() { return job.world() - job.pods().workers(job.last()); }
  /// The first step of all workers after the event.
  Time all_train(const Mark& since) {
    const auto when = job.trains(since, job.world());
    REQUIRE(when);
    return *when;
  }
  /// And of those who are left, where they go on without the others.
  std::optional<Time> survivors_train(const Mark& since) {
    if (!job.pods().plan().is_elastic()) return std::nullopt;
    const auto when = job.trains(since, survivors());
    REQUIRE(when);
    return when;
  }
  void replace(std::size_t index) {
    auto old = job.replace(index);
    REQUIRE(old);
    job.destroy(std::move(old));
  }
  /// Now, 20 steps after what was before, so that there is something to lose.
  [[nodiscard]] Mark an_event() {
    const std::uint64_t before = job.mark().step;
    REQUIRE(job.comes_to([&](std::uint64_t step) { return step >= before + 20; }));
    return job.mark();
  }
  /// Steps that had to be done again. None where every worker has the whole state, or could save it before it left.
  std::string lost(const Mark& since, bool orderly = false) {
    const std::uint64_t steps = job.steps_done_again(since);
    if (orderly || stages[number_] == 0) CHECK(steps == 0);
    else CHECK(steps <= 2 * every);
    return std::to_string(steps);
  }
  void print(const char* event, const Row& row) const {
    std::printf("ROW | %d | %s | %s | %s | %s | %s | %s |\n", number_, event, row.seen.c_str(), row.trains.c_str(), row.lost.c_str(),
                row.code.c_str(), row.restarts.c_str());
    std::fflush(stdout);
  }
  /// A worker of the last pod takes memory until the kernel kills it; false, with the reason printed, where this machine limits none.
  [[nodiscard]] bool takes_too_much_memory();
  const int number_;
};

void Tutorial::begins_when_names_are_late() {
  Mark start = job.mark();
  for (const std::size_t i : job.pods().all()) job.start(i);
  // The first pod serves its own name before that leads anywhere. Agents that ask for it earlier wait.
  for (const std::size_t i : job.pods().all_but(0)) REQUIRE(job.line(start, "does not resolve", &job.pods().pod(i)));
  job.timed_output().listen(5s);
  CHECK_FALSE(std::any_of(job.timed_output().lines().begin(), job.timed_output().lines().end(),
                          [](const auto& line) { return step_in(line.text).has_value(); }));
  start.when = std::chrono::steady_clock::now();
  for (const std::size_t i : job.pods().all()) REQUIRE(job.pods().publish(i));
  print("names are published 5 s late", {.trains = seconds_from(start, all_train(start)), .restarts = "0"});
  if (job.pods().workers(0) > 0) return;
  CHECK(job.pods().pod(0).processes("pod_worker").empty());
  print("a Master without GPU and without workers", {.trains = "trains", .lost = "0", .restarts = "0"});
}

void Tutorial::loses_a_pod_that_is_deleted() {
  const Mark event = an_event();
  Pod& pod = job.pods().pod(job.last());
  pod.terminate();
  const int code = job.end_of(pod);
  CHECK(code == 143);
  CHECK(std::chrono::steady_clock::now() - event.when < 30s + job.patience);  // 30 s of grace; the rest is for a busy machine
  const auto seen = job.notices(event);
  std::optional<Time> trains = survivors_train(event);
  if (!trains) replace(job.last()), trains = all_train(event);
  print("a pod is deleted with 30 s of grace",
        {seconds_from(event, seen), seconds_from(event, trains), lost(event, true), std::to_string(code), "1"});
  if (!job.pods().plan().is_elastic()) return;
  const Mark later = job.mark();
  replace(job.last());
  print("another pod joins", {.trains = seconds_from(later, all_train(later)), .lost = lost(later, true), .restarts = "0"});
}

bool Tutorial::takes_too_much_memory() {
  Pod& pod = job.pods().pod(job.last());
  if (!pod.limit_memory(memory_limit)) return std::printf("SKIPPED: no OOM kill: this machine has no memory controller to give\n"), false;
  const std::uint64_t before = pod.oom_kills();
  std::vector<Watch> workers;
  for (const pid_t pid : pod.processes("pod_worker")) workers.emplace_back(pid);
  const auto one_has_ended = [&] { return std::any_of(workers.begin(), workers.end(), [](const Watch& w) { return w.ended(Wait{0}); }); };
  const auto is_free = [&] { return pod.memory_in_use() < memory_limit / 2; };
  pod.keep_from_oom_kill(true);
  std::ofstream{job.folder() + "/oom-" + job.pods().plan().pods[job.last()].host};
  // Until its memory is free: the kernel counts the kill first, then the process is gone, and it can take a second one before what that held is given back.
  REQUIRE(job.timed_output().wait_until([&] { return pod.oom_kills() > before && one_has_ended() && is_free(); }, job.patience));
  pod.keep_from_oom_kill(false);
  return true;
}

// As the kubelet does where cgroup v2 is not there, or with singleProcessOOMKill: the kernel kills the largest process.
void Tutorial::loses_a_worker_to_the_memory_limit() {
  const Mark event = an_event();
  if (!takes_too_much_memory()) return;
  const auto seen = job.notices(event);
  const Time trains = all_train(event);
  REQUIRE(job.line(event, "OOM-killed by the kernel"));
  print("OOM kill of a worker", {seconds_from(event, seen), seconds_from(event, trains), lost(event), "", "0"});
}

// As the kubelet does with cgroup v2 (memory.oom.group): nothing in the container survives, and it starts again in its pod.
void Tutorial::loses_a_container_to_the_memory_limit() {
  const Mark event = an_event();
  if (!takes_too_much_memory()) return;
  Pod& pod = job.pods().pod(job.last());
  pod.kill();
  const int code = job.end_of(pod);
  CHECK(code == 137);
  const auto seen = job.notices(event);
  job.start(job.last());
  const Time trains = all_train(event);
  print("OOM kill of a container", {seconds_from(event, seen), seconds_from(event, trains), lost(event), std::to_string(code), "1"});
}

void Tutorial::loses_a_node() {
  const Mark event = an_event();
  job.pods().pod(job.last()).cut_cable();
  const auto seen = job.notices(event);
  REQUIRE(seen);
  std::optional<Time> trains = survivors_train(event);
  const Mark later = job.mark();
  replace(job.last());
  if (trains) (void)all_train(later);
  else trains = all_train(event);
  CHECK(*seen < *trains);
  print("a node is lost in silence", {seconds_from(event, seen), seconds_from(event, trains), lost(event), "", "1"});
}

void Tutorial::loses_the_first_pods_node() {
  const bool trains_there = job.pods().workers(0) > 0;
  const Mark event = an_event();
  job.pods().pod(0).cut_cable();
  const auto gone = job.line(event, "waiting for the coordinator");
  REQUIRE(gone);
  replace(0);
  std::optional<Time> trains;
  if (trains_there) trains = all_train(event);
  else {  // it only coordinated: the others' workers go on all the time
    for (const std::size_t i : job.pods().all_but(0)) REQUIRE(job.line(event, "is back", &job.pods().pod(i)));
    REQUIRE(job.goes_on());
    CHECK(job.mark().generation == event.generation);
  }
  print("the coordinator's pod comes back at a new address",
        {seconds_from(event, gone->when), trains_there ? seconds_from(event, trains) : "never stops", lost(event), "", "1"});
}

void Tutorial::has_two_pods_of_one_index() {
  const std::size_t last = job.last();
  const Mark both = job.mark();
  std::unique_ptr<Pod> first = job.pods().exchange(last);
  job.start(last);
  REQUIRE(job.line(both, "this node is a spare", &job.pods().pod(last)));
  REQUIRE(job.goes_on());
  CHECK(job.mark().generation == both.generation);  // the second pushes nobody out
  const Mark event = an_event();
  first->terminate();
  const int code = job.end_of(*first);
  CHECK(code == 143);
  const Time trains = all_train(event);
  print("two pods of one index at once; the older one ends",
        {seconds_from(event, job.notices(event)), seconds_from(event, trains), lost(event, true), std::to_string(code), "1"});
  REQUIRE(job.pods().publish(last));
  job.destroy(std::move(first));
}

void Tutorial::is_scaled_down_and_up() {
  if (!job.pods().plan().is_elastic()) return;
  const Mark down = an_event();
  Pod& pod = job.pods().pod(job.last());
  pod.terminate();
  const int code = job.end_of(pod);
  CHECK(code == 143);
  job.pods().unpublish(job.last());
  const auto fewer = survivors_train(down);
  print("scale down by the last index",
        {seconds_from(down, job.notices(down)), seconds_from(down, fewer), lost(down, true), std::to_string(code), "0"});
  const Mark up = job.mark();
  replace(job.last());
  print("scale up by that index", {.trains = seconds_from(up, all_train(up)), .lost = lost(up, true), .restarts = "0"});
}

void Tutorial::has_a_pod_that_is_frozen_and_replaced() {
  const Mark event = an_event();
  job.pods().pod(job.last()).freeze();
  const auto seen = job.notices(event);
  REQUIRE(seen);
  std::optional<Time> trains = survivors_train(event);
  const Mark later = job.mark();
  std::unique_ptr<Pod> frozen = job.replace(job.last());
  REQUIRE(frozen);
  if (trains) (void)all_train(later);
  else trains = all_train(event);
  CHECK_FALSE(job.line(later, "", frozen.get(), 0s));  // nobody told that node
  const Mark thawed = job.mark();
  frozen->thaw();
  REQUIRE(job.line(thawed, "this node is a spare", frozen.get()));
  REQUIRE(job.goes_on());
  CHECK(job.mark().generation == thawed.generation);
  frozen->terminate();
  const int code = job.end_of(*frozen);
  CHECK(code == 143);
  print("a pod is frozen, replaced, thawed",
        {seconds_from(event, seen), seconds_from(event, trains), lost(event), std::to_string(code), "1"});
  job.destroy(std::move(frozen));
}

void Tutorial::answers_probes_beside_many_connections() {
  const auto& environment = job.pods().plan().pods[0].environment;
  const auto port = environment.find("PET_HEALTH_PORT");
  if (port == environment.end()) return;
  const Mark event = an_event();
  const auto storm = job.fabric().run(
      {.arguments = {job.pods().pod(0).address(), port->second, "3000", "2"}, .program = test_program_path("probe_storm")});
  const Watch watch{storm->pid()};
  REQUIRE(job.timed_output().wait_until([&] { return watch.ended(Wait{0}); }, job.patience));
  const int code = storm->wait();
  INFO(storm->output());
  CHECK(code == 0);
  REQUIRE(job.goes_on());
  const std::string said = storm->output();
  const auto slowest = number_after(said, "slowest_ms"), rate = number_after(said, "connections_per_s");
  print(("probes beside " + std::to_string(rate) + " connections per second").c_str(),
        {.seen = "answered within " + std::to_string(slowest) + " ms", .lost = lost(event), .restarts = "0"});
}

// All pods are deleted with grace, and made anew elsewhere. The job then ends with the state of one process that nothing happened to.
void Tutorial::is_recreated_and_ends() {
  const Mark event = an_event();
  for (const std::size_t i : job.pods().all()) job.pods().pod(i).terminate();
  for (const std::size_t i : job.pods().all()) CHECK(job.end_of(job.pods().pod(i)) == 143);
  const Mark ended = job.mark();
  const std::uint64_t steps = ended.step + 100;
  job.pods().change_program(program(job.folder(), steps));
  for (const std::size_t i : job.pods().all()) job.pods().unpublish(i), job.destroy(job.pods().exchange(i));
  const Mark again = {.when = std::chrono::steady_clock::now(), .line = ended.line, .step = 0, .generation = 0};
  for (const std::size_t i : job.pods().all()) job.start(i);
  for (const std::size_t i : job.pods().all()) REQUIRE(job.pods().publish(i));
  const Time trains = all_train(again);
  const auto first = job.timed_output().wait_for([](const auto& line) { return step_in(line.text).has_value(); }, again.line, job.patience);
  REQUIRE(first);
  CHECK(step_in(first->text)->number == ended.step + 1);
  const auto done = job.line(again, "done step=" + std::to_string(steps) + " state=");
  REQUIRE(done);
  for (const std::size_t i : job.pods().all()) CHECK(job.end_of(job.pods().pod(i)) == 0);
  std::vector<std::string> undisturbed = program(job.folder(), steps);
  undisturbed.erase(undisturbed.begin());
  undisturbed.push_back("fast");
  const Ended plain = run(test_program_path("pod_worker"), std::move(undisturbed));
  INFO(plain.output);
  CHECK(plain.code == 0);
  CHECK(plain.says(done->text.substr(done->text.find("done step="))));
  for (const std::size_t i : job.pods().all()) CHECK(std::filesystem::is_empty(job.pods().runtime_folder(job.pods().pod(i))));
  const std::uint64_t repeated = step_in(first->text)->number <= ended.step ? ended.step + 1 - step_in(first->text)->number : 0;
  print("the whole job is recreated",
        {seconds_from(event, ended.when), seconds_from(again, trains), std::to_string(repeated), "143", std::to_string(job.pods().size())});
}

void go_through(int number) {
  for (JobPlan& plan : job_plans()) {
    if (plan.manifest != "tutorials/tutorial-" + std::to_string(number) + ".yaml") continue;
    {
      const auto fabric = Fabric::create();
      if (!fabric) return;
      Tutorial tutorial{*fabric, std::move(plan), number};
      INFO("tutorial " << number);
      tutorial.begins_when_names_are_late();
      tutorial.loses_a_pod_that_is_deleted();
      tutorial.loses_a_worker_to_the_memory_limit();
      tutorial.loses_a_container_to_the_memory_limit();
      tutorial.loses_a_node();
      tutorial.loses_the_first_pods_node();
      tutorial.has_two_pods_of_one_index();
      tutorial.is_scaled_down_and_up();
      tutorial.has_a_pod_that_is_frozen_and_replaced();
      tutorial.answers_probes_beside_many_connections();
      tutorial.is_recreated_and_ends();
    }
    for (const std::string& left : left_behind()) FAIL_CHECK("left behind: " << left);
  }
}

}  // namespace

TEST_CASE("tutorial 0 in pods, through all that happens to pods", "[tutorial-0][pods]") { go_through(0); }
TEST_CASE("tutorial 1 in pods, through all that happens to pods", "[tutorial-1][pods]") { go_through(1); }
TEST_CASE("tutorial 2 in pods, through all that happens to pods", "[tutorial-2][pods]") { go_through(2); }
TEST_CASE("tutorial 3 in pods, through all that happens to pods", "[tutorial-3][pods]") { go_through(3); }
TEST_CASE("tutorial 4 in pods, through all that happens to pods", "[tutorial-4][pods]") { go_through(4); }
TEST_CASE("tutorial 5 in pods, through all that happens to pods", "[tutorial-5][pods]") { go_through(5); }
