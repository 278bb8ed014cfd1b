// Parameters that every rank has are compared before a step of a generation is decided: with the votes for it, where members gave a newcomer their state.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include "lib/job/state/hash_beside.hpp"
#include "tests/support/forwarding_memory.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/elastic_world.hpp"

namespace elrun::test {
namespace {

/// Two members and a newcomer, whose program writes a parameter after it got the others' state. The hash takes long enough to be made beside the step.
struct Growth {
  int stage = 0;
  bool spoils_frozen = false;
  CheckpointOptions checkpoint{};
  bool evaluates_in_step = false;
  std::uint64_t at = 40;  ///< The exchange of the first generation in which it wants in.

  std::atomic<int> decided = 0, handed_out = 0, evaluated = 0;  ///< In the world of three.
  std::set<std::filesystem::path> files_before{};               ///< Of the checkpoints, when that world begins.

  [[nodiscard]] std::set<std::filesystem::path> files() const {
    std::set<std::filesystem::path> out;
    if (checkpoint.directory.empty()) return out;
    for (const auto& entry : std::filesystem::recursive_directory_iterator{checkpoint.directory}) out.insert(entry.path());
    return out;
  }
  std::deque<Member> run() {
    ElasticWorld world{2, {{Fate::Kind::grows, 0, at, false}}, [this](Job& job, Member& me) { train(job, me); }};
    return world.wait();
  }

 private:
  void train(Job& job, Member& me) {
    Plan plan = toy_plan(stage);
    plan.steps = 40;
    job.configure(plan, checkpoint);
    Unit unit = job.unit("a");
    const Tensor<float> weights = unit.tensor<float>("w", {5003}), table = unit.tensor<float>("t", {600'000}, {.frozen = true});
    job.seal();
    if (const Restored restored = job.restore(); !restored) {
      const auto scope = unit.use();
      std::ranges::fill(weights.span(), 0.5f);
      std::ranges::fill(table.span(), 0.5f);
    } else {
      files_before = files();
      const auto scope = unit.use();
      (spoils_frozen ? table : weights).span().back() = 0.75f;
    }
    while (auto step = job.next_step()) {
      const bool is_whole = JobAccess::world_size(job) == 3;
      handed_out += is_whole;
      if (evaluates_in_step) {
        const Evaluation e = job.evaluate(10, [](Slot& slot) { slot.report(1, 1); });
        evaluated += is_whole && e.decided;
      }
      for (Slot& slot : step->slots()) {
        const auto scope = unit.use_grad();
        const auto noise = normals(slot.rng(), weights.size());
        std::ranges::transform(weights.grad_span(), *noise, weights.grad(), std::plus{});
        slot.report(1, 1);
      }
      const StepResult result = step->apply(AdamW{}, {.lr = 0.01f});
      decided += result.decided && result.world == 3;
    }
    me.outcome = job.outcome();
  }
};

void check_that_all_are_told(const std::deque<Member>& members) {
  REQUIRE(members.size() == 3);
  for (const Member& m : members) {
    REQUIRE(m.failure.has_value());
    INFO(message(*m.failure));
    CHECK(m.failure->code == Code::mismatch);
    CHECK(contains(m.failure->what, "differ from those of rank 0 before step"));
  }
}

/// Its first hash waits to be let go on.
class HeldMemory final : public ForwardingMemory {
 public:
  std::uint64_t hash(std::span<const std::byte> run, std::uint64_t first_word, std::uint64_t salt) override {
    std::unique_lock lock{mutex_};
    must(changed_.wait_for(lock, 60s, [this] { return free_; }), "the hash was not let go on");
    return host.hash(run, first_word, salt);
  }
  void let_go() {
    const std::lock_guard lock{mutex_};
    free_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool free_ = false;
};

}  // namespace

TEST_CASE("a newcomer whose parameters are not the others' ends the job, and no step of its world is decided", "[job][elastic]") {
  for (const int stage : {0, 1, 3})
    for (const bool frozen : {true, false}) {
      if (stage == 3 && !frozen) continue;  // what trains is nobody's but its own
      CAPTURE(stage, frozen);
      Growth growth{.stage = stage, .spoils_frozen = frozen};
      check_that_all_are_told(growth.run());
      CHECK(growth.handed_out > 0);  // the hash is made beside the step
      CHECK(growth.decided == 0);
    }
}

TEST_CASE("an evaluation in a step comes after the comparison", "[job][elastic][evaluation]") {
  Growth growth{.evaluates_in_step = true};
  check_that_all_are_told(growth.run());
  CHECK(growth.evaluated == 0);
}

TEST_CASE("a checkpoint comes after the comparison", "[job][elastic]") {
  Selection selection;
  for (std::uint64_t at = 60; at < 76; ++at) {  // in all phases of a step and of a save
    if (!selection.takes()) continue;
    CAPTURE(at);
    const TemporaryDirectory root;
    Growth growth{.checkpoint = {.directory = root.path(), .every = 1}, .at = at};
    check_that_all_are_told(growth.run());
    CHECK(growth.decided == 0);
    CHECK(growth.files() == growth.files_before);
  }
}

TEST_CASE("a hash that is made beside the caller is the one that is made at once", "[job]") {
  std::vector<float> values(3'000'001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::vector<HashedRun> runs{{std::as_bytes(std::span{values}), 7}, {std::as_bytes(std::span{values}.first(10)), 5'000'000}};
  const std::uint64_t expected = host_memory().hash(runs[0].bytes, 7, 0) + host_memory().hash(runs[1].bytes, 5'000'000, 0);
  CHECK(hash_of(host_memory(), runs) == expected);
  const auto never = [] { return false; };
  for (Memory* memory : both_memories()) {
    HashBeside hash;
    hash.begin(*memory, runs);
    hash.finish();
    std::ranges::fill(values, 0.0f);  // it is not read any more
    CHECK(hash.result(never) == expected);
    hash.begin(*memory, {runs[1]});
    CHECK(hash.result(never) == host_memory().hash(runs[1].bytes, 5'000'000, 0));
    hash.give_up();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  }
}

TEST_CASE("nobody waits for a hash that is not needed any more", "[job]") {
  const std::vector<float> values(1'000'000, 1.0f);
  const std::vector<HashedRun> runs{{std::as_bytes(std::span{values}), 0}};
  HeldMemory memory;
  HashBeside hash;
  hash.begin(memory, runs);
  CHECK_FALSE(hash.result([] { return true; }).has_value());
  memory.let_go();
  CHECK(hash.result([] { return false; }) == hash_of(host_memory(), runs));
}

TEST_CASE("a forked child lets go of a hash that its parent makes", "[job]") {
  const std::vector<float> values(1'000'000, 1.0f);
  const std::vector<HashedRun> runs{{std::as_bytes(std::span{values}), 0}};
  HeldMemory memory;
  std::optional<HashBeside> hash{std::in_place};
  hash->begin(memory, runs);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(60);  // by default it ends the process
    hash.reset();
    ::_exit(0);
  }
  int status = -1;
  const bool ended = ::waitpid(child, &status, 0) == child;
  memory.let_go();
  CHECK(ended);
  CHECK(status == 0);
  CHECK(hash->result([] { return false; }) == hash_of(host_memory(), runs));
}

}  // namespace elrun::test
