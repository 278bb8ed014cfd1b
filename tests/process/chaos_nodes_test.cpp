// `elrun chaos` on each node of a job: several that start at once, on one machine, and what each says of its own node.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/chaos_folder.hpp"

using namespace elrun::test;

namespace {

using Words = std::vector<std::string>;

std::string text_of(const std::string& path) {
  std::ifstream file{path};
  return {std::istreambuf_iterator<char>{file}, {}};
}

/// Two nodes that meet on the loopback, each with an `elrun chaos`.
class TwoNodes {
 public:
  explicit TwoNodes(std::string nodes = "2") : nodes_{std::move(nodes)} {}

  /// In the work directory of both.
  [[nodiscard]] std::unique_ptr<Job> start(unsigned node, const Words& words,
                                           const std::map<std::string, std::string>& environment = {}) const {
    return folder.start(with_place(node, words), environment);
  }
  [[nodiscard]] std::unique_ptr<Job> start_in_own(unsigned node, const Words& words) const {
    return folder.start_in(own(node), with_place(node, words));
  }
  [[nodiscard]] std::string own(unsigned node) const { return folder.work() + std::to_string(node); }
  /// Both to their ends.
  [[nodiscard]] std::pair<Ended, Ended> rehearse(const Words& words, const std::map<std::string, std::string>& environment = {}) const {
    const auto first = start(0, words, environment), second = start(1, words, environment);
    return finish_together(*first, *second);
  }

  const ChaosFolder folder;

 private:
  [[nodiscard]] Words with_place(unsigned node, const Words& words) const {
    return Words{"--nnodes",        nodes_,
                 "--rdzv_backend",  "c10d",
                 "--rdzv_endpoint", "127.0.0.1:" + std::to_string(port_),
                 "--node_rank",     std::to_string(node)} +
           words;
  }
  std::string nodes_;
  std::uint16_t port_ = free_port();
};

}  // namespace

TEST_CASE("each node makes its own part of one plan, and the checkpoints of both runs are equal", "[chaos][process]") {
  const TwoNodes nodes;
  nodes.folder.write("plan", "200ms kill rank 1\n700ms kill-agent node 1 for 300ms\n1500ms kill rank 0\n");
  // A slot takes 8 ms at least, so the job has not ended by then.
  const Words words = Words{"--plan", nodes.folder / "plan", "--limit", "200s", "--checkpoint_root", "{run}/ck"} +
                      gpt_words(nodes.folder, 200, {"--checkpoint", "{run}/ck", "--every", "50", "--slot-ms", "8"});
  const auto [first, second] = nodes.rehearse(words);
  INFO(first.output << second.output);
  CHECK(first.code == 0);
  CHECK(second.code == 0);
  for (const Ended* ended : {&first, &second}) CHECK(ended->says("the checkpoints of step 200 are equal, bit by bit"));
  CHECK(first.says("kill rank 0: process "));
  CHECK_FALSE(first.says("kill rank 1: "));
  CHECK(first.says("2 failures of other nodes"));
  CHECK(second.says("kill rank 1: process "));
  CHECK(second.says("kill-agent node 1 for 300ms: node 1 is lost"));
  CHECK_FALSE(second.says("kill rank 0: "));
  CHECK(second.says("1 failure of other nodes"));
  for (const char* name : {"/disturbed/node0.log", "/disturbed/node1.log", "/disturbed/events.0", "/disturbed/events.1"})
    CHECK(fs::exists(nodes.folder.work() + name));
  CHECK(text_of(nodes.folder.work() + "/plan.0") == text_of(nodes.folder.work() + "/plan.1"));
  CHECK(nodes.folder.left_behind().empty());
  // It would find the checkpoints of this one.
  const auto again = nodes.rehearse(words);
  for (const Ended* ended : {&again.first, &again.second}) {
    CHECK(ended->code == 78);
    CHECK(ended->says("has something in it already"));
  }
}

TEST_CASE("the loss of either node is rehearsed by that node's chaos", "[chaos][process]") {
  const TwoNodes nodes;
  const unsigned lost = GENERATE(0, 1);
  nodes.folder.write("plan", lost == 0 ? "100ms kill-agent node 0 for 100ms\n" : "100ms kill-agent node 1 for 100ms\n");
  // The disturbed job goes on until a worker of that node has started for the second time.
  const auto [first, second] = nodes.rehearse(
      {"--plan", nodes.folder / "plan", "--limit", "200s", "--no_python", "--",
       nodes.folder.script("d=$1/starts; mkdir -p $d; touch $d/$2.$$\n"
                           "while [ \"${1##*/}\" = disturbed ] && [ $(ls $d | grep -c \"^$3\\.\") -lt 2 ]; do sleep 0.05; done\n"
                           "sleep 0.2; echo state=a\n"),
       "{run}", "{node}", std::to_string(lost)});
  INFO(first.output << second.output);
  for (const Ended* ended : {&first, &second}) {
    CHECK(ended->code == 0);
    CHECK(ended->says("the final states are equal: a"));
  }
  CHECK((lost == 0 ? first : second).says(": node " + std::to_string(lost) + " is lost"));
  CHECK((lost == 0 ? second : first).says("1 failure of other nodes"));
  CHECK(nodes.folder.left_behind().empty());
}

TEST_CASE("the coordinator is lost by the node that serves the rendezvous", "[chaos][process]") {
  const TwoNodes nodes;
  nodes.folder.write("plan", "1ms stop rank 0 for 10ms\n1ms stop rank 1 for 10ms\n200ms coordinator for 200ms\n");
  // The disturbed job goes on until a worker has started again.
  const auto [first, second] =
      nodes.rehearse({"--plan", nodes.folder / "plan", "--limit", "200s", "--no_python", "--",
                      nodes.folder.script("d=$1/starts; mkdir -p $d; touch $d/$2.$$\n"
                                          "while [ \"${1##*/}\" = disturbed ] && [ $(ls $d | wc -l) -lt 3 ]; do sleep 0.05; done\n"
                                          "sleep 0.2; echo state=a\n"),
                      "{run}", "{node}"});
  INFO(first.output << second.output);
  for (const Ended* ended : {&first, &second}) CHECK(ended->code == 0);
  // Where the other one saw it late, it serves by then, and loses it too: both are on one machine here.
  CHECK((first.says("node 0, which serves the rendezvous, is lost") || second.says("node 1, which serves the rendezvous, is lost")));
}

TEST_CASE("a node whose workers end in another state says so", "[chaos][process]") {
  const TwoNodes nodes;
  nodes.folder.write("plan", "1ms stop rank 0 for 10ms\n");
  const auto [first, second] = nodes.rehearse(
      {"--plan", nodes.folder / "plan", "--no_python", "--",
       nodes.folder.script("sleep 4\n[ \"${1##*/}$2\" = disturbed1 ] && echo state=b || echo state=a\n"), "{run}", "{node}"});
  INFO(first.output << second.output);
  CHECK(first.code == 0);
  CHECK(second.code == 1);
  CHECK(second.says("the final states differ: undisturbed a, disturbed b"));
}

TEST_CASE("the agents of a rehearsal on several nodes keep the token of the rendezvous from all but each other", "[chaos][process]") {
  const TwoNodes nodes;
  nodes.folder.write("plan", "1ms stop rank 0 for 10ms\n");
  const auto [first, second] = nodes.rehearse(
      {"--plan", nodes.folder / "plan", "--no_python", "--", nodes.folder.script("sleep 4; echo state=a$ELRUN_RDZV_TOKEN\n")},
      {{"ELRUN_RDZV_TOKEN", "a-token-of-some-length"}});
  INFO(first.output << second.output);
  CHECK(first.code == 0);
  CHECK(first.says("the final states are equal: a\n"));
  const std::string logs = text_of(nodes.folder.work() + "/disturbed/node0.log") + text_of(nodes.folder.work() + "/disturbed/node1.log");
  CHECK(logs.find(", with a token") != std::string::npos);
}

TEST_CASE("where rank 0 alone says the state its node has the verdict, and where nobody does that node says so", "[chaos][process]") {
  const TwoNodes nodes;
  const bool is_said = GENERATE(true, false);
  nodes.folder.write("plan", "1ms stop rank 1 for 10ms\nstep 5 kill rank 1\n");
  const auto [first, second] =
      nodes.rehearse({"--plan", nodes.folder / "plan", "--no_python", "--",
                      nodes.folder.script("sleep 4\n[ $RANK$1 = 0yes ] && echo state=a\ntrue\n"), is_said ? "yes" : "no"});
  INFO(first.output << second.output);
  CHECK(first.code == (is_said ? 0 : 3));
  CHECK(first.says(is_said ? "the final states are equal: a" : "there is no state to compare"));
  CHECK(second.code == 0);
  CHECK(second.says("Its workers said no final state: the node whose workers say one has the verdict"));
  CHECK(second.says("1 failure waited for a step that no worker of this node printed, the first is `step 5 kill rank 1`"));
  CHECK_FALSE(first.says("waited for a step"));
}

TEST_CASE("a node that the plan took away for good leaves the verdict to the others", "[chaos][process]") {
  const TwoNodes nodes{"1:2"};
  nodes.folder.write("plan", "100ms kill-agent node 1 for 1h\n");
  const Words job{
      "--rdzv_conf",
      "last_call_timeout=3",
      "--no_python",
      "--",
      nodes.folder.script("while [ \"${1##*/}\" = disturbed ] && [ $WORLD_SIZE = 2 ]; do sleep 0.1; done\nsleep 0.5; echo state=a\n"),
      "{run}"};
  const auto stays = nodes.start(0, Words{"--plan", nodes.folder / "plan", "--limit", "200s"} + job);
  const auto goes = nodes.start(1, Words{"--plan", nodes.folder / "plan", "--limit", "8s"} + job);
  const auto [first, second] = finish_together(*stays, *goes);
  INFO(first.output << second.output);
  CHECK(first.code == 0);
  CHECK(first.says("the final states are equal: a"));
  CHECK(second.code == 3);
  CHECK(second.says("a failure of the plan had taken this node away"));
  CHECK(second.says("The other nodes have the verdict"));
  CHECK(nodes.folder.left_behind().empty());
}

TEST_CASE("a node that comes back to a job without a coordinator leaves the verdict to the others, whatever its agent says",
          "[chaos][process]") {
  const TwoNodes nodes{"1:2"};
  nodes.folder.write("plan", "100ms kill-agent node 1 for 10s\n");
  const Words job{"--no_python", "--",
                  nodes.folder.script("while [ \"${1##*/}\" = disturbed ]; do sleep 0.1; done\nsleep 0.5; echo state=a\n"), "{run}"};
  // Node 0 ends, and its coordinator with it, while node 1 is away.
  const auto goes = nodes.start(0, Words{"--plan", nodes.folder / "plan", "--limit", "6s"} + job);
  const auto comes_back =
      nodes.start(1, Words{"--plan", nodes.folder / "plan", "--limit", "200s", "--rdzv_conf", "is_host=0,join_timeout=15"} + job);
  const auto [first, second] = finish_together(*goes, *comes_back);
  INFO(first.output << second.output);
  CHECK(first.code == 2);
  CHECK(text_of(nodes.folder.work() + "/disturbed/node1.log").find("\n  ") != std::string::npos);  // the agent's own, of several lines
  CHECK(second.code == 3);
  CHECK(second.says("a failure of the plan had taken this node away"));
}

TEST_CASE("an instance that comes late does not come into the other run, and one without the others says nothing", "[chaos][process]") {
  const TwoNodes nodes{"1:2"};
  nodes.folder.write("plan", "1ms stop rank 0 for 10ms\n1ms stop rank 1 for 10ms\n");
  const Words words{
      "--plan",
      nodes.folder / "plan",
      "--rdzv_conf",
      "last_call_timeout=3",
      "--no_python",
      "--",
      nodes.folder.script("sleep 0.5; while [ \"${1##*/}\" = disturbed ] && [ ! -e $2 ]; do sleep 0.05; done; echo state=a\n"),
      "{run}",
      nodes.folder / "go"};
  const auto first = nodes.start(0, words), second = nodes.start(1, words);
  REQUIRE(until(*first, "] disturbed: 1 worker run"));
  const auto late = nodes.start_in_own(1, words);
  const std::string log = nodes.own(1) + "/undisturbed/node1.log";
  for (int look = 0; look < 600 && text_of(log).find("run id (--rdzv_id)") == std::string::npos; ++look) let_pass(Wait{50});
  nodes.folder.write("go", "");
  const auto [ended, ended_second] = finish_together(*first, *second);
  const Ended ended_late = finish(*late);  // once the others had ended, it was alone
  INFO(ended.output << ended_second.output << ended_late.output << text_of(log));
  const std::string text = text_of(log);
  const auto refusal = text.find("this node has chaos-");
  REQUIRE(refusal != std::string::npos);
  CHECK(text.substr(refusal + 28, 12) == "-undisturbed");
  CHECK(text.find("-disturbed", refusal) != std::string::npos);
  CHECK(ended.code == 0);
  CHECK(ended_second.code == 0);
  CHECK(ended_late.code == 3);
  CHECK(ended_late.says("the undisturbed run began with 1 of the 2 nodes that the plan is for"));
  CHECK(nodes.folder.left_behind().empty());
}

TEST_CASE("a node that never had a place in the job says nothing of it", "[chaos][process]") {
  const TwoNodes nodes{"1:2"};
  nodes.folder.write("plan", "1ms stop rank 0 for 10ms\n");
  // The workers of both nodes end when the third one is a spare.
  const std::string log = nodes.own(1) + "/undisturbed/node1.log";
  const Words words{
      "--plan",
      nodes.folder / "plan",
      "--no_python",
      "--",
      nodes.folder.script(
          "if [ \"${1##*/}\" = disturbed ]; then sleep 4; else until grep -q 'this node is a spare' $2; do sleep 0.05; done; fi; echo state=a\n"),
      "{run}",
      log};
  const auto first = nodes.start(0, words), second = nodes.start(1, words);
  REQUIRE(until(*first, "undisturbed: 1 worker run"));
  REQUIRE(until(*second, "undisturbed: 1 worker run"));
  const auto third = nodes.start_in_own(1, words);
  const auto [ended, ended_second] = finish_together(*first, *second);
  const Ended ended_third = finish(*third);
  INFO(ended.output << ended_second.output << ended_third.output << text_of(log));
  CHECK(ended.code == 0);
  CHECK(ended_second.code == 0);
  CHECK(ended_third.code == 3);
  CHECK(ended_third.says("no worker of this node ran in the undisturbed run: it came when the job was over, or there was no place for it"));
}

TEST_CASE("nodes with unequal plans do not meet, and it is said why", "[chaos][process]") {
  const TwoNodes nodes;
  const auto words = [&](const char* plan) {
    nodes.folder.write(plan, std::string{"500ms kill rank "} + plan + "\n");
    return Words{"--plan", nodes.folder / plan, "--no_python", "--", nodes.folder.script("sleep 2; echo state=a\n")};
  };
  const auto first = nodes.start(0, words("1"));                                       // each would leave its failure to the other
  const auto second = nodes.start(1, Words{"--rdzv_conf", "is_host=0"} + words("0"));  // the one that serves refuses
  REQUIRE(until(*second, "as that of another run does, or of nodes with another plan: it is asked again"));
  for (const auto& one : {first.get(), second.get()}) one->signal(SIGTERM);
  const auto [ended, ended_second] = finish_together(*first, *second);
  INFO(ended.output << ended_second.output);
  CHECK(ended.code == 143);
  CHECK(ended_second.code == 143);
  CHECK(nodes.folder.left_behind().empty());
}

TEST_CASE("what a node of several cannot do is refused, and all of them draw one plan", "[chaos][process]") {
  const TwoNodes nodes;
  const auto run = [&](unsigned node, const Words& words) { return finish(*nodes.start(node, words)); };
  const Ended cut = run(0, {"--kinds", "cut", "a.py"});
  CHECK(cut.code == 78);
  CHECK(cut.says("cut cannot be rehearsed here: chaos cuts networks that it made"));
  const Ended served = run(0, {"--kinds", "coordinator", "--rdzv_conf", "is_host=0", "a.py"});
  CHECK(served.code == 78);
  CHECK(served.says("coordinator cannot be rehearsed here: no agent serves the rendezvous (is_host=0)"));
  // A link there would lead the logs elsewhere.
  fs::create_directories(nodes.folder.work());
  fs::create_directory(nodes.folder / "elsewhere");
  fs::create_directory_symlink(nodes.folder / "elsewhere", nodes.folder.work() + "/undisturbed");
  const Ended led_away = run(0, {"a.py"});
  CHECK(led_away.code == 78);
  CHECK(led_away.says("is no directory, or is another user's, or anybody may write there"));
  CHECK(fs::is_empty(nodes.folder / "elsewhere"));
  fs::remove_all(nodes.folder.work());
  // Nor is the log of an earlier one gone on with.
  fs::create_directories(nodes.folder.work() + "/undisturbed");
  nodes.folder.write("work/undisturbed/node0.log", "x");
  const Ended earlier = run(0, {"a.py"});
  CHECK(earlier.code == 78);
  CHECK(earlier.says("is of an earlier rehearsal"));
  fs::remove_all(nodes.folder.work());
  const Ended twice = finish(*nodes.folder.start({"--nnodes", "2", "--rdzv_endpoint", "127.0.0.1:1", "a.py"}));
  CHECK(twice.code == 78);
  CHECK(twice.says("nothing says which of the 2 nodes"));
  const Words draw{"--mtbf", "1s", "--for", "100s", "--dry-run", "a.py", "{disk}"};
  const Ended first = run(0, draw), second = run(1, draw);
  INFO(first.output);
  CHECK(first.code == 0);
  CHECK(first.output == second.output);
  for (const char* kind : {" kill rank ", " stop rank ", " slow rank ", " kill-agent node ", " coordinator for "}) CHECK(first.says(kind));
  for (const char* kind : {" cut node ", " fill for "}) CHECK_FALSE(first.says(kind));
  CHECK_FALSE(fs::exists(nodes.folder.work()));
}
