/// \file Whether a start may go on from what it found, in all small worlds, and what its fence then says.

#include "checkpoint/commit/resume.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/storage/storage.hpp"
#include "tests/support/checkpoint_job.hpp"

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

namespace {

const std::string here(32, 'a'), elsewhere(32, 'b');

bool goes_on(const std::variant<GoOn, Failure>& decided) { return std::holds_alternative<GoOn>(decided); }
std::string why(const std::variant<GoOn, Failure>& decided) { return goes_on(decided) ? "" : std::get<Failure>(decided).what; }

}  // namespace

// Every combination of: what is found, what the highest fence says, who knows of which checkpoint, what is usable, and the option.
TEST_CASE("in all small worlds, a start continues only if the newest known checkpoint is there or is given up by name", "[checkpoint]") {
  const CheckpointId ids[] = {{10, 1, 1}, {20, 1, 1}, {30, 2, 1}};
  std::size_t went_on = 0, stopped = 0, gave_up = 0;
  for (unsigned found = 0; found < 8; ++found)
    for (unsigned fence = 0; fence < 4; ++fence)  // none, 1, 2 that inherits 10 and 20, 3 that inherits 10 and 30
      for (unsigned known = 0; known < 8; ++known)
        for (unsigned source = 0; source < 3; ++source)       // the storage, outside, outside and of another root
          for (unsigned damaged = 0; damaged < 2; ++damaged)  // the newest that is found
            for (int option = -1; option < 12; ++option) {    // none, then 0, 10, 20, 30: alone, with its fence, with another
              RootView view{.where = "/ck", .root = here};
              for (unsigned i = 0; i < 3; ++i)
                if (found >> i & 1) view.found.push_back({ids[i], true, false});
              if (fence == 1) view.highest = FenceRecord{.number = 1};
              if (fence == 2) view.highest = FenceRecord{.number = 2, .inherits = {ids[0], ids[1]}};
              if (fence == 3) view.highest = FenceRecord{.number = 3, .inherits = {ids[0], ids[2]}};
              for (unsigned i = 0; i < 3; ++i)
                if (known >> i & 1) view.witnesses.push_back({ids[i], source == 2 ? elsewhere : here, "somebody says so", source > 0});
              const auto line = timeline(view.found, view.highest);
              std::optional<CheckpointId> usable;
              if (line.size() > damaged) usable = line[line.size() - 1 - damaged].id;
              std::optional<LossName> anew;
              if (option >= 0) anew = LossName{10 * static_cast<std::uint64_t>(option % 4), {}};
              if (option >= 4) anew->fence = (option % 4 == 3 ? 2 : 1) + (option >= 8 ? 1 : 0);

              // The rule once more, without the code under test.
              std::optional<CheckpointId> newest_known;
              for (const Witness& w : view.witnesses) {
                const bool of_this_root = source != 2;
                const bool judged = of_this_root && fence == 3 && w.id == ids[1];  // 3 looked, and went on without it
                if (!judged) newest_known = std::max(newest_known.value_or(CheckpointId{0, 0, 0}), w.id);
              }
              const bool is_there = !newest_known || (source != 2 && ((!line.empty() && *newest_known < line.back().id) ||
                                                                      std::any_of(view.found.begin(), view.found.end(),
                                                                                  [&](const Found& f) { return f.id == *newest_known; })));
              const bool none_usable = !line.empty() && !usable;
              const CheckpointId newest =
                  std::max(is_there ? CheckpointId{0, 0, 0} : *newest_known, none_usable ? line.back().id : CheckpointId{0, 0, 0});
              const bool is_named = anew && anew->step == newest.step && (anew->fence ? anew->fence == newest.fence : fence > 0);
              const bool right = is_there && !none_usable ? !anew : is_named;

              const auto decided = resume(view, usable, {"checkpoint x cannot be used: damaged"}, anew);
              INFO("found " << found << " fence " << fence << " known " << known << " source " << source << " damaged " << damaged
                            << " option " << option << " " << why(decided));
              REQUIRE(goes_on(decided) == right);
              if (right) {
                const auto& go = std::get<GoOn>(decided);
                REQUIRE(go.gives_up.empty() == (is_there && !none_usable));
                went_on += go.gives_up.empty(), gave_up += !go.gives_up.empty();
                if (go.gives_up.empty()) continue;
                REQUIRE_FALSE(go.notes.empty());
                // The next start, without the option and with it left in place, goes on from there.
                RootView next = view;
                next.highest = FenceRecord{.number = 4, .gives_up = go.gives_up};
                if (usable) next.highest->inherits = {*usable};
                REQUIRE(goes_on(resume(next, usable, {}, std::nullopt)));
                REQUIRE(goes_on(resume(next, usable, {}, anew)));
              } else {
                ++stopped;
                const auto& failure = std::get<Failure>(decided);
                REQUIRE(failure.remedy == Remedy::fix_config);
                if (!is_there) REQUIRE_THAT(failure.what, Contains("somebody says so"));
                if (is_there && !none_usable) continue;
                // What it prints is what works, and nothing else does.
                const LossName exact{newest.step, newest.fence};
                REQUIRE_THAT(failure.what, Contains("with --begin_anew " + to_string(exact) + " ") &&
                                               Contains("ELRUN_BEGIN_ANEW=" + to_string(exact) + " "));
                REQUIRE(goes_on(resume(view, usable, {}, exact)));
              }
            }
  CHECK(went_on > 100);
  CHECK(stopped > 100);
  CHECK(gave_up > 100);
}

TEST_CASE("a fence that gives up more than fits keeps the newest, and can be read back", "[checkpoint]") {
  const bool hollow = GENERATE(false, true);  // or none that is there can be used
  RootView view{.where = "/ck", .root = here, .highest = FenceRecord{.number = 3}, .newest_fence = 3};
  for (std::uint64_t step = 1; step <= given_up_max; ++step) view.highest->gives_up.push_back({{step, 1, 1}, elsewhere});
  if (hollow) view.hollow = "is gone";
  else
    for (const std::uint64_t step : {1000u, 2000u}) view.found.push_back({{step, 3, 1}, true, false});
  const CheckpointId newest = hollow ? CheckpointId{0, 3, 1} : CheckpointId{2000, 3, 1};
  const auto decided = resume(view, {}, {}, LossName{newest.step, newest.fence});
  REQUIRE(why(decided) == "");
  FenceRecord next{.number = 4, .author = {"run", Generation{3, {{1, 2}}}, 0}, .gives_up = std::get<GoOn>(decided).gives_up};
  const auto read = decode_fence(as_bytes(encode(next)), "x");
  REQUIRE(said(read) == "");
  CHECK(read->gives_up.size() == given_up_max);
  CHECK(read->gives_up.back().id == newest);
}

TEST_CASE("a name of an acknowledgement says step, fence and attempt, and is no fence's", "[checkpoint]") {
  const CheckpointId id{12000, 7, 2};
  CHECK(acknowledgement_name(id) == "g00000007.s000000012000.a02.acknowledged");
  CHECK(parse_acknowledgement_name(acknowledgement_name(id)) == id);
  for (const char* other :
       {"", "g00000007.claim", "g00000007.s000000012000.a02", "g00000007.s000000012000.a02.acknowledged.tmp", "g7.s1.a1.acknowledged"})
    CHECK_FALSE(parse_acknowledgement_name(other));
  CHECK_FALSE(parse_fence_number(acknowledgement_name(id)));
  const Acknowledgement record{id, here, {"run", Generation{3, {{1, 2}}}, 1'700'000'000'000'000'000}, "/ck", "abc"};
  CHECK(decode_acknowledgement(as_bytes(encode(record)), "x").value() == record);
  CHECK_THAT(witness(record, "the agent of node n", true).says, Contains("the agent of node n says") && Contains("s000000012000") &&
                                                                    Contains("2023-11-14 22:13:20 UTC") && Contains("run \"run\""));
}
