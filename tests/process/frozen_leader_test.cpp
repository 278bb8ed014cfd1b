// The leader of a save is frozen at each of its operations on the storage and on the job's store. The next generation begins meanwhile, saves, and commits its own
// checkpoint; then the leader goes on. It changes nothing that anybody wants, and says why its save came to nothing.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/commit/newest.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/ckptd_process.hpp"
#include "tests/support/spawn.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace elrun;
using namespace elrun::test;
namespace fs = std::filesystem;

namespace {

const std::string of_frozen_save = "ckpt/s000000000030.g00000001.a01";
constexpr std::uint32_t keep = 2;

/// Every file and directory below, with its bytes.
std::map<std::string, std::string> all_below(const Path& root) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator{root}) {
    std::string& bytes = all[fs::relative(entry.path(), root).string()];
    if (!entry.is_regular_file()) continue;
    std::ifstream in{entry.path(), std::ios::binary};
    bytes.assign(std::istreambuf_iterator<char>{in}, {});
  }
  return all;
}

/// Names of what is in one and not, or with other bytes, in the other.
std::vector<std::string> differences(const std::map<std::string, std::string>& a, const std::map<std::string, std::string>& b) {
  std::vector<std::string> differ;
  for (const auto& [name, bytes] : a)
    if (const auto other = b.find(name); other == b.end() || other->second != bytes) differ.push_back(name);
  for (const auto& [name, bytes] : b)
    if (!a.contains(name)) differ.push_back(name);
  return differ;
}

/// One operation of the leader, as the preloaded library tells it: "list /root/gens".
using Operation = std::string;

std::vector<Operation> operations_in(const Path& trace, const Path& place) {
  std::vector<Operation> all;
  std::ifstream in{trace};
  for (std::string line; std::getline(in, line);) {
    line.erase(0, line.find(' ') + 1);
    if (const auto at = line.find(place.string()); at != std::string::npos) line.erase(at, place.string().size() + 1);
    all.push_back(line);
  }
  return all;
}

/// Two nodes that save together on one root. The first one's ckptd leads, and stops itself before its operation `stop_at` (0: never).
struct Scene {
  explicit Scene(int stop_at)
      : leader{place / "leader",
               place / "agent",
               {{"LD_PRELOAD", test_program_path("libelrun_failing_storage.so")},
                {"ELRUN_FAIL", std::to_string(stop_at) + " -2 once"},
                {"ELRUN_FAIL_BELOW", place.string()},
                {"ELRUN_FAIL_TRACE", trace.string()}},
               notes.path() + "/log"} {
    REQUIRE(said(job.start()) == "");
    for (const std::uint64_t step : {10u, 20u}) REQUIRE(said(job.save(step)) == "");
  }
  /// A later generation of the same job, on the second node.
  TestJob later(std::uint64_t number, std::uint32_t world) {
    TestJob next{files, world, 3, small_model(), 1, "run", root};
    next.leader.generation.number = job.leader.generation.number + number;
    next.ranks.clear();
    next.add_ranks(world);
    return next;
  }
  [[nodiscard]] std::vector<Operation> operations() const { return operations_in(trace, place); }
  /// The newest acknowledgement, as the job's store remembers it.
  [[nodiscard]] std::string newest() { return agent.value(std::string{newest_checkpoint_key}); }
  [[nodiscard]] std::string log() const {
    std::ifstream in{notes.path() + "/log"};
    return {std::istreambuf_iterator<char>{in}, {}};
  }

  TemporaryDirectory directory, notes;
  Path place{directory.path()}, root = place / "root", trace = notes.path() + "/trace";
  PosixFiles files;
  PlayedAgent agent{place / "agent"};
  CkptdProcess leader, other{place / "other", place / "agent", {}, notes.path() + "/other"};
  TestJob job{files, 2, 3, small_model(), 1, "run", root};
};

bool stops_before(const CkptdProcess& process, const CkptdWorker& saves) {
  for (int looks = 0; looks < 6000; ++looks, std::this_thread::sleep_for(std::chrono::milliseconds{5})) {
    if (process.has_stopped()) return true;
    if (saves.has_outcome()) return false;
  }
  FAIL("the leader neither stops nor ends its save");
  return false;
}

/// How often the fences were looked at after the manifest was there: from the first time on the leader may publish its COMMIT, from the second on it may acknowledge it.
std::size_t looks_after_manifest(const std::vector<Operation>& done) {
  const auto is_manifest = [](const Operation& o) { return o.starts_with("create") && o.ends_with("MANIFEST.json"); };
  return static_cast<std::size_t>(std::count(std::find_if(done.begin(), done.end(), is_manifest), done.end(), "list root/gens"));
}

/// What the leader does where nothing happens to it.
struct Undisturbed {
  std::vector<Operation> operations;
  std::size_t looks = 0;  ///< After its manifest. After the last of them it removes the oldest checkpoint.
};

/// How the later generation saves: through the other node's ckptd, which also removes what is left over, or by a save that blocks, after which everything is still there.
enum class Later { writes_and_sweeps, only_writes };

/// The leader stops before its operation `number`, and goes on when a later generation has saved.
void freeze_at(int number, Later later, const Undisturbed& usual) {
  Scene scene{number};
  CkptdWorker zero{scene.leader, scene.job, 0, {.step = 30, .keep = keep, .aux = aux_of_step(30)}};
  CkptdWorker one{scene.other, scene.job, 1, {.step = 30, .keep = keep}};
  zero.save(), one.save();
  const bool has_stopped = stops_before(scene.leader, zero);
  std::vector<Operation> done = scene.operations();
  if (!has_stopped) {  // how many words come and go in one operation is not the same every time
    REQUIRE(done.size() < static_cast<std::size_t>(number));
    return;
  }
  INFO("frozen before operation " << number << ", " << done.back());
  done.pop_back();

  // The next generation is of the second node alone.
  scene.agent.begin({2, {{1, 2}}});
  TestJob next = scene.later(1, 1);
  const auto start = next.start();
  REQUIRE(said(start) == "");
  const bool is_inherited = start->choice->step == 30;
  CHECK(said(next.load(*start)) == "");
  if (later == Later::writes_and_sweeps) {
    CkptdWorker saver{scene.other, next, 0, {.step = 40, .keep = keep, .aux = aux_of_step(40)}};
    saver.save();
    const auto saved = saver.outcome();
    REQUIRE(saved);
    REQUIRE_FALSE(saved->failure);
    CHECK(scene.newest() == saved->acknowledgement);
  } else {
    REQUIRE(said(next.save(40)) == "");
  }
  const auto there = all_below(scene.root);
  const std::string newest = scene.newest();

  REQUIRE(::kill(scene.leader.pid(), SIGCONT) == 0);
  const auto outcome = zero.outcome();  // after the last thing that it does for this save
  INFO("its log:\n" << scene.log());
  REQUIRE(outcome);
  CHECK(one.outcome());  // nobody waits for it any more
  CHECK(scene.leader.lives());
  const std::string why = outcome->failure ? message(*outcome->failure) : "";
  const std::size_t looks = looks_after_manifest(done);
  if (looks >= 2) CHECK(why == "");  // it was saved before the next generation began
  else CHECK(why.find("taken over: fence 2 ") != std::string::npos);

  for (const std::string& name : differences(there, all_below(scene.root))) {
    CAPTURE(name);
    // Its own leftovers. A COMMIT that it was about to publish is on no timeline; one that the next generation goes on from stays as it is.
    const bool is_leftover = name.starts_with(of_frozen_save + "/COMMIT.tmp-") || (!is_inherited && name.starts_with(of_frozen_save));
    const bool is_true = looks >= 2 && name == "gens/g00000001.s000000000030.a01.acknowledged";
    // It had looked, and removes what is beyond what both generations keep.
    const bool is_oldest = looks == usual.looks && name.find("s000000000010") != std::string::npos;
    CHECK((is_leftover || is_true || is_oldest || name == "trash"));
    if (name == of_frozen_save + "/COMMIT") CHECK(looks == 1);
  }
  if (later == Later::writes_and_sweeps) CHECK(scene.newest() == newest);
  TestJob last = scene.later(2, 3);
  const auto again = last.start();
  REQUIRE(said(again) == "");
  CHECK(to_string(*again->choice) == "s000000000040.g00000002.a01");
  CHECK(said(last.load(*again)) == "");
}

/// What changes something, or follows a decision.
bool is_turning_point(const Operation& operation) {
  for (const char* begin : {"create", "link", "rename", "mkdir", "list root/gens", "send"})
    if (operation.starts_with(begin)) return true;
  return operation.starts_with("remove") && operation.ends_with("/COMMIT");
}

Undisturbed undisturbed() {
  Scene scene{0};
  CkptdWorker zero{scene.leader, scene.job, 0, {.step = 30, .keep = keep}}, one{scene.other, scene.job, 1, {.step = 30, .keep = keep}};
  zero.save(), one.save();
  const auto outcome = zero.outcome();
  REQUIRE(outcome);
  REQUIRE_FALSE(outcome->failure);
  const std::vector<Operation> all = scene.operations();
  for (const char* phase : {"/r00000-of-00002.safetensors", "/r00000-of-00002.part.json", "send agent", "/MANIFEST.json", "/COMMIT",
                            ".acknowledged", "rename root/trash/s000000000010.g00000001.a01"}) {
    INFO(phase);
    REQUIRE(std::any_of(all.begin(), all.end(), [&](const Operation& o) { return o.ends_with(phase) && is_turning_point(o); }));
  }
  return {all, looks_after_manifest(all)};
}

}  // namespace

// The turning points alone; with ELRUN_FULL every operation, and each with both ways in which the later generation saves.
TEST_CASE("a leader that is frozen at any operation of its save, and goes on after a later generation has saved, changes nothing",
          "[ckptd]") {
  if (!fs::exists(test_program_path("libelrun_failing_storage.so"))) {
    WARN("SKIPPED: libelrun_failing_storage.so is not built");
    return;
  }
  const Undisturbed usual = undisturbed();
  const char* only = std::getenv("ELRUN_SEED");
  const bool all = only != nullptr || std::getenv("ELRUN_FULL") != nullptr;
  for (std::size_t i = 0; i + 1 < usual.operations.size(); ++i) {  // the last one may come after the outcome
    const int number = static_cast<int>(i) + 1;
    const Operation& operation = usual.operations[i];
    if (only != nullptr ? std::atoi(only) != number : !all && !is_turning_point(operation)) continue;
    INFO("replay with ELRUN_SEED=" << number);
    freeze_at(number, Later::writes_and_sweeps, usual);
    // Where the leader could still publish a COMMIT beside the later one.
    if (all || operation.starts_with("list") || operation.find("/COMMIT") != Operation::npos) freeze_at(number, Later::only_writes, usual);
  }
}
