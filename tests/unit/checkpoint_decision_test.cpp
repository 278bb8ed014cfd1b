/// \file From which checkpoint a start goes on, a case for each rule of the decision.

#include <algorithm>
#include <map>

#include "checkpoint/commit/resume.hpp"
#include "checkpoint/commit/suspects.hpp"
#include "checkpoint/format/records.hpp"
#include "tests/support/checkpoint_job.hpp"

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

namespace {

const std::string this_root(32, 'a');

/// Three checkpoints of this root, all of which the storage remembers as acknowledged.
Findings three_found() {
  Findings findings{.view = {.where = "/ck", .root = this_root}};
  for (const CheckpointId& id : {CheckpointId{10, 1, 1}, CheckpointId{20, 1, 1}, CheckpointId{30, 1, 1}}) {
    findings.view.found.push_back({id, true, false});
    findings.view.witnesses.push_back({id, this_root, "the storage says so", false});
  }
  return findings;
}

/// Looks into whatever is asked for; `as` says how a checkpoint is found, whole where it says nothing. Counts.
std::variant<Resumption, Failure> decided(Findings findings, const std::map<std::uint64_t, LookedInto::As>& as = {},
                                          int* looked = nullptr) {
  for (;;) {
    auto next = decide(findings);
    if (auto* go = std::get_if<Resumption>(&next)) return *go;
    if (auto* no = std::get_if<Failure>(&next)) return *no;
    const CheckpointId id = std::get<LookInto>(next).id;
    const auto said = as.find(id.step);
    findings.looked.push_back(
        {id, said == as.end() ? LookedInto::As::whole : said->second, "bad bytes", static_cast<std::uint32_t>(id.step)});
    if (looked != nullptr) ++*looked;
  }
}

Resumption goes_on_by(Findings findings, const std::map<std::uint64_t, LookedInto::As>& as = {}, int* looked = nullptr) {
  const auto all = decided(std::move(findings), as, looked);
  if (const auto* no = std::get_if<Failure>(&all)) FAIL(message(*no));
  return std::get<Resumption>(all);
}

constexpr auto damaged = LookedInto::As::damaged, unreadable = LookedInto::As::unreadable, removed = LookedInto::As::removed;

}  // namespace

TEST_CASE("the decision: the newest that is whole is gone on from, and no older one is looked into", "[checkpoint]") {
  int looked = 0;
  const Resumption go = goes_on_by(three_found(), {}, &looked);
  CHECK(go.from == CheckpointId{30, 1, 1});
  CHECK(go.manifest_crc == 30);
  CHECK(go.why == "the newest checkpoint");
  CHECK(go.inherits == std::vector<CheckpointId>{{10, 1, 1}, {20, 1, 1}, {30, 1, 1}});
  CHECK(go.notes.empty());
  CHECK(go.steps_again == 0);
  CHECK(looked == 1);
}

TEST_CASE("the decision: an empty root begins at step 0", "[checkpoint]") {
  const Resumption go = goes_on_by(Findings{.view = {.where = "/ck"}});
  CHECK_FALSE(go.from);
  CHECK(go.why == "there is no checkpoint");
  CHECK(go.inherits.empty());
}

TEST_CASE("the decision: an unreadable checkpoint fails the start, and no older one is used until a person passes it over",
          "[checkpoint]") {
  Findings findings = three_found();
  SECTION("the newest") {}
  SECTION("an older one, where the newest is suspect") { findings.suspects = {{{30, 1, 1}, "exit code 3 after step 33, twice"}}; }
  const std::uint64_t bad = findings.suspects.empty() ? 30 : 20;
  const auto now = decided(findings, {{bad, unreadable}});
  REQUIRE(std::holds_alternative<Failure>(now));
  const Failure& why = std::get<Failure>(now);
  CHECK(why.code == Code::io);
  CHECK(why.remedy == Remedy::retry);
  CHECK_THAT(why.what, Contains(to_string(CheckpointId{bad, 1, 1}) + " under /ck cannot be read: bad bytes") &&
                           Contains("bring the storage back") &&
                           Contains("touch /ck/ckpt/" + to_string(CheckpointId{bad, 1, 1}) + "/QUARANTINE") && !Contains("begin_anew"));
  for (Found& f : findings.view.found) f.quarantined = f.id.step == bad;
  CHECK(std::holds_alternative<Resumption>(decided(findings, {{bad, unreadable}})));
  CHECK(goes_on_by(three_found(), {{10, unreadable}}).from == CheckpointId{30, 1, 1});  // one that nobody needs
}

TEST_CASE("the decision: what is damaged is passed over and marked, what its owner removed is not told", "[checkpoint]") {
  const Resumption go = goes_on_by(three_found(), {{30, damaged}, {20, damaged}});
  CHECK(go.from == CheckpointId{10, 1, 1});
  CHECK(go.why == "2 newer ones are passed over");
  REQUIRE(go.to_mark.size() == 2);
  CHECK(go.to_mark[0].id.step == 30);
  REQUIRE(go.notes.size() == 2);
  CHECK_THAT(go.notes[0], Contains("s000000000030.g00000001.a01 cannot be used") && Contains("bad bytes"));
  CHECK_THAT(go.notes[1], Contains("s000000000020.g00000001.a01 cannot be used"));
  CHECK(go.inherits == std::vector<CheckpointId>{{10, 1, 1}});
  CHECK(goes_on_by(three_found(), {{30, removed}}).notes.empty());
}

TEST_CASE("the decision: what is quarantined or could not be loaded is passed over without another look", "[checkpoint]") {
  Findings findings = three_found();
  findings.view.found[2].quarantined = true;
  findings.view.found[2].damage = "corrupt: /ck/x: block 3 has another checksum";
  findings.rejected = {{.id = {20, 1, 1}, .why = "/ck/y is 7 bytes long"}};
  int looked = 0;
  const Resumption go = goes_on_by(findings, {}, &looked);
  CHECK(go.from == CheckpointId{10, 1, 1});
  CHECK(looked == 1);
  CHECK(go.to_mark.empty());
  CHECK_THAT(go.notes.at(0),
             Contains("s000000000030") && Contains("was found damaged before (corrupt: /ck/x: block 3 has another checksum)"));
  CHECK_THAT(go.notes.at(1), Contains("s000000000020") && Contains("was found damaged before (/ck/y is 7 bytes long)"));
}

TEST_CASE("the decision: a root of which none can be used stops the job, and so does what was acknowledged and is missing",
          "[checkpoint]") {
  const auto none = decided(three_found(), {{10, damaged}, {20, damaged}, {30, damaged}});
  REQUIRE(std::holds_alternative<Failure>(none));
  CHECK(std::get<Failure>(none).code == Code::corrupt);
  CHECK(std::get<Failure>(none).remedy == Remedy::fix_config);
  const auto none_now = decided(three_found(), {{10, damaged}, {20, unreadable}, {30, damaged}});  // it may be readable some time later
  REQUIRE(std::holds_alternative<Failure>(none_now));
  CHECK(std::get<Failure>(none_now).code == Code::io);
  Findings lost = three_found();
  lost.view.witnesses.push_back({{40, 1, 1}, this_root, "the agent of node a says so", true});
  const auto missed = decided(lost);
  REQUIRE(std::holds_alternative<Failure>(missed));
  CHECK(std::get<Failure>(missed).code == Code::not_found);
  CHECK_THAT(std::get<Failure>(missed).what, Contains("the agent of node a says so"));
  lost.begin_anew = LossName{40, 1};
  CHECK(goes_on_by(lost).from == CheckpointId{30, 1, 1});
}

TEST_CASE("the decision: steps beyond the checkpoint are counted as done again, and told", "[checkpoint]") {
  Findings findings = three_found();
  findings.decided = 37;
  const Resumption go = goes_on_by(findings);
  CHECK(go.steps_again == 7);
  CHECK_THAT(go.notes.at(0), Contains("at step 37 and goes on from step 30: no checkpoint holds the 7 steps between"));
  CHECK(goes_on_by(findings, {{30, damaged}}).steps_again == 17);
  Findings empty{.view = {.where = "/ck"}, .decided = 5};
  CHECK(goes_on_by(empty).steps_again == 5);
}

TEST_CASE("the decision: a suspect is passed over for an older one that is whole, told, and neither marked nor inherited", "[checkpoint]") {
  Findings findings = three_found();
  findings.suspects = {{{30, 1, 1}, "exit code 3 after step 33, twice"}};
  findings.decided = 33;
  const Resumption go = goes_on_by(findings);
  CHECK(go.from == CheckpointId{20, 1, 1});
  CHECK(go.why == "a newer one is passed over");
  CHECK(go.to_mark.empty());
  CHECK(go.inherits == std::vector<CheckpointId>{{10, 1, 1}, {20, 1, 1}});
  CHECK(go.steps_again == 13);
  CHECK_THAT(go.notes.at(0), Contains("s000000000030.g00000001.a01 is whole, but passed over: exit code 3 after step 33, twice"));
  CHECK_THAT(go.notes.at(1), Contains("the 13 steps between are done again"));
  SECTION("an older suspect is passed over, too, and a damaged one") {
    findings.suspects.push_back({{20, 1, 1}, "the same"});
    CHECK(goes_on_by(findings).from == CheckpointId{10, 1, 1});
    findings.suspects.pop_back();
    CHECK(goes_on_by(findings, {{20, damaged}}).from == CheckpointId{10, 1, 1});
  }
  SECTION("without an older one that is whole the newest suspect is gone on from, and nothing is begun anew") {
    const Resumption last = goes_on_by(findings, {{20, damaged}, {10, damaged}});
    CHECK(last.from == CheckpointId{30, 1, 1});
    CHECK_THAT(last.notes.at(2), Contains("is suspect, but no older one is whole"));
    CHECK(last.why == "it is suspect, but no older one is whole");
    for (const std::uint64_t step : {10u, 20u}) findings.suspects.push_back({{step, 1, 1}, "the same"});
    CHECK(goes_on_by(findings).from == CheckpointId{30, 1, 1});
  }
}

TEST_CASE("the decision: what an earlier start passed over is named by every start after it, until the job is beyond it", "[checkpoint]") {
  Findings findings = three_found();
  findings.suspects = {{{30, 1, 1}, "exit code 3 after step 33, twice"}};
  const Resumption first = goes_on_by(findings);
  findings.suspects.clear();  // agents forget with their processes
  findings.view.highest.emplace();
  findings.view.highest->number = 2;
  findings.view.highest->inherits = first.inherits;
  const Resumption later = goes_on_by(findings);
  CHECK(later.from == CheckpointId{20, 1, 1});
  REQUIRE(later.notes.size() == 1);
  CHECK_THAT(later.notes[0], Contains("s000000000030.g00000001.a01 is newer but is not used"));
  findings.view.found.push_back({{40, 2, 1}, true, false});
  CHECK(goes_on_by(findings).notes.empty());
}

TEST_CASE("a checkpoint is suspect when two generations that went on from it failed alike, on whichever nodes", "[checkpoint]") {
  const CheckpointId newest{40, 1, 1}, older{20, 1, 1};
  const std::vector<FailedAfter> alike{{newest, 3, 42, "exit code 3", "a"}, {newest, 4, 42, "exit code 3", "b"}};
  const auto two = suspects(alike);
  REQUIRE(two.size() == 1);
  CHECK(two[0].id == newest);
  CHECK(two[0].says == "generations 3 and 4 went on from it, and in both a worker ended by exit code 3 after step 42 (nodes a and b)");
  const auto with = [&](auto change) {
    std::vector<FailedAfter> changed = alike;
    change(changed[1]);
    return suspects(changed).size();
  };
  CHECK(with([](FailedAfter& f) { f.step = 41; }) == 1);  // the word of the last step was lost with the worker
  CHECK(with([](FailedAfter& f) { f.step = 43; }) == 1);
  CHECK(with([](FailedAfter& f) { f.step = 44; }) == 0);
  CHECK(with([](FailedAfter& f) { f.how = "exit code 4"; }) == 0);
  CHECK(with([](FailedAfter& f) { f.generation = 3; }) == 0);  // another node's worker, or one more of the same
  CHECK(with([&](FailedAfter& f) { f.id = older; }) == 0);
  SECTION("each rank of a node says the same, and other failures lie between: each suspect is named once") {
    std::vector<FailedAfter> many;
    for (int rank = 0; rank < 3; ++rank)
      for (const CheckpointId& id : {newest, older})
        for (const std::uint64_t generation : {5, 3, 4})
          many.push_back({id, generation, 42, generation == 4 ? "signal 11" : "exit code 3", "a"});
    const auto both = suspects(many);
    REQUIRE(both.size() == 2);
    CHECK_THAT(both[0].says, Contains("generations 3 and 5") && Contains("(node a)"));
  }
  SECTION("the step beside it is the one of the generation before") {
    const auto chain = suspects({{newest, 4, 41, "exit code 3", "a"}, {newest, 3, 42, "exit code 3", "a"}});
    REQUIRE(chain.size() == 1);
    CHECK_THAT(chain[0].says, Contains("generations 3 and 4"));
  }
  SECTION(
      "what fails starts alike before a step is decided, whichever checkpoint they went on from, is no checkpoint's fault, and one is passed over at most") {
    const CheckpointId before{30, 1, 1};
    std::vector<FailedAfter> outage{{newest, 2, 40, "exit code 3", "a"}, {newest, 3, 40, "exit code 3", "a"}};
    REQUIRE(suspects(outage).size() == 1);  // it may be the state
    outage.push_back({before, 4, 30, "exit code 3", "b"});
    CHECK(suspects(outage).empty());
    outage.push_back({before, 5, 30, "exit code 3", "b"});
    CHECK(suspects(outage).empty());
    for (const std::uint64_t generation : {6, 7}) outage.push_back({before, generation, 30, "exit code 4", "b"});
    CHECK(suspects(outage).size() == 1);  // another way to fail
    for (const std::uint64_t generation : {8, 9}) outage.push_back({newest, generation, 41, "exit code 3", "b"});
    CHECK(suspects(outage).size() == 2);  // after a step that was decided
  }
  CHECK(suspects({}).empty());
}

TEST_CASE("a start passes over the suspect on the storage, keeps it, and the next one does not miss it", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 2, 1};
  REQUIRE(said(job.start()) == "");
  for (const std::uint64_t step : {10u, 20u}) REQUIRE(said(job.save(step)) == "");
  const std::vector<Witness> memory{
      witness(decode_acknowledgement(as_bytes(job.ranks[0].acknowledged()), "memory").value(), "an agent", true)};
  TestJob next{files, 2, 2};
  const KnownElsewhere outside{.witnesses = memory, .suspects = {{{20, 1, 1}, "signal 11 (SIGSEGV) after step 23, twice"}}, .decided = 23};
  const auto start = next.ranks[0].start(outside);
  REQUIRE(said(start) == "");
  CHECK(start->choice->step == 10);
  CHECK(start->steps_again == 13);
  CHECK(decode_start(encode(*start))->steps_again == 13);
  CHECK(decode_start(encode(*start))->why == "a newer one is passed over");
  CHECK(said(next.load(*start)) == "");
  for (const std::uint64_t step : {20u, 30u}) REQUIRE(said(next.save(step)) == "");
  REQUIRE(said(next.ranks[0].retain(2)) == "");
  const auto names = files.list("/ckpts/ckpt").value();
  CHECK(std::find(names.begin(), names.end(), "s000000000020.g00000001.a01") != names.end());
  TestJob last{files, 2, 3};
  CHECK(last.ranks[0].start(outside).value().choice == CheckpointId{30, 2, 1});
}
