// JobSaves with saves that `elrun ckptd`, which is played here, writes beside the job.

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "checkpoint/staging/slot_save.hpp"
#include "lib/job/save/job_saves.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/unit/played_ckptd.hpp"
#include "tests/unit/saving_member.hpp"

namespace elrun::test {
namespace {

const std::vector<Aux> step_alone{{"elrun.step", {}}};

}  // namespace

TEST_CASE("a ckptd of another version is not met, for its socket has another name; saves block, and a line says why", "[job_saves]") {
  TemporaryDirectory directory;
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .every = 3, .async = true}, Path{directory.path()} / ckptd_socket};
  CHECK(member.said("saves are not asynchronous, for they need an elrun of this version"));
  member.saves.save(3, step_alone);
  CHECK(member.saves.saved_step() == 3);
}

TEST_CASE("a save that comes while the one before is written is left out, and the agent hears of it", "[job_saves]") {
  Writer writer;
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .every = 3, .async = true}, writer.path};
  member.saves.save(3, step_alone);
  member.saves.finish_copy();
  writer.accept();
  member.saves.save(6, step_alone);
  member.saves.save(9, step_alone);
  CHECK(member.session.saves_left_out == std::vector<std::pair<std::uint64_t, std::uint64_t>>{{6, 1}, {9, 2}});
  CHECK(member.said("the checkpoint of step 6 is left out"));
  CHECK(member.session.failed_saves.empty());
  writer.say(SaveOutcome{1, 3, {}, Failure{Code::no_space, Remedy::retry, "full"}});
  member.saves.save(12, step_alone);
  CHECK(member.session.failed_saves.size() == 1);
  CHECK(member.session.saves_left_out.size() == 2);
}

TEST_CASE("where ckptd says nothing for longer than a save may take, saves block under a fence of their own until it speaks",
          "[job_saves]") {
  Writer writer;
  FaultyFiles files;
  const bool by_time = GENERATE(false, true);
  CheckpointOptions options{.directory = "/root", .async = true};
  if (by_time) options.interval = 1s;
  else options.every = 3;
  Saving member{files, 1, options, writer.path};
  member.saves.save(3, step_alone);
  member.saves.finish_copy();
  writer.accept();
  member.clock.advance(save_deadline);
  member.saves.save(6, step_alone);
  CHECK(member.saves.saved_step() != 6);  // left out
  member.clock.advance(61s);
  member.saves.hear();
  REQUIRE(member.session.failed_saves.size() == 1);
  if (by_time) CHECK(member.saves.asks_for_save(8));
  member.saves.save(9, step_alone);
  CHECK(member.saves.saved_step() == 9);
  member.saves.save(12, step_alone);
  CHECK(member.saves.saved_step() == 12);
  CHECK(files.list("/root/ckpt").value() == std::vector<std::string>{"s000000000009.g00000002.a01", "s000000000012.g00000002.a01"});
  writer.say(SaveOutcome{1, 3, {}, Failure{Code::generation_over, Remedy::rejoin, "a later start"}});
  member.saves.save(15, step_alone);
  CHECK(member.saves.saved_step() == 12);  // handed over, as before
  member.saves.finish_copy();
  for (int word = 0; word < 4; ++word) (void)writer.hear();
  CHECK(writer.hear() == SlotWord::sealed);
  CHECK(writer.slot->record(SlotState::sealed).value().ownership.fence == 2);
}

TEST_CASE("a ckptd that sees another storage gives no fence up, and throws out no newer job", "[job_saves]") {
  Writer writer;
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .every = 3, .async = true}, writer.path};
  const Failure said = GENERATE(Failure{Code::not_found, Remedy::fix_config, "fence 1 is gone"},
                                Failure{Code::refused, Remedy::fix_config, "another job owns the root that ckptd sees"});
  CAPTURE(said.what);
  member.saves.save(3, step_alone);
  member.saves.finish_copy();
  writer.accept();
  const auto fence_of_next = [&] {
    while (writer.hear() != SlotWord::sealed) {
    }
    return writer.slot->record(SlotState::sealed).value().ownership.fence;
  };
  CHECK(fence_of_next() == 1);
  writer.say(SaveOutcome{1, 3, {}, said});
  SECTION("the workers see their fence") {
    member.saves.save(6, step_alone);
    member.saves.finish_copy();
    CHECK(member.said("Do both see the same storage?"));
    CHECK(fence_of_next() == 1);
  }
  SECTION("the workers see a newer job") {
    Saving newer{files, 2, {.directory = "/root", .every = 3}};
    newer.saves.save(5, step_alone);
    CHECK_THROWS_WITH(member.saves.save(6, step_alone), Catch::Matchers::Contains("fence 2 belongs to"));
    newer.saves.save(7, step_alone);
    CHECK(newer.saves.saved_step() == 7);
  }
}

TEST_CASE("where the fence is gone from the storage of the workers as well, the next save claims another one", "[job_saves]") {
  Writer writer;
  FaultyFiles files;
  Saving earlier{files, 1, {.directory = "/root", .every = 3}};
  earlier.saves.save(1, step_alone);
  Saving member{files, 2, {.directory = "/root", .every = 3, .async = true}, writer.path};
  member.saves.save(3, step_alone);
  member.saves.finish_copy();
  writer.accept();
  while (writer.hear() != SlotWord::sealed) {
  }
  for (const std::string& name : {claim_name(2), fence_name(2)}) REQUIRE(files.remove_file("/root/gens/" + name).ok());
  writer.say(SaveOutcome{2, 3, {}, Failure{Code::not_found, Remedy::fix_config, "fence 2 is gone"}});
  member.saves.save(6, step_alone);
  member.saves.finish_copy();
  while (writer.hear() != SlotWord::sealed) {
  }
  CHECK(writer.slot->record(SlotState::sealed).value().ownership.fence == 2);
  CHECK(files.content("/root/gens/" + fence_name(2)).size() > 0);
}

TEST_CASE("the end of a job does not wait for a ckptd that has failed by saying nothing", "[job_saves]") {
  Writer writer;
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .every = 3, .async = true}, writer.path};
  member.saves.save(3, step_alone);
  member.clock.advance(save_deadline + 61s);
  member.saves.hear();
  member.saves.save_at_the_end(7, step_alone);  // its clock stands still: it would wait for good
  CHECK(member.saves.saved_step() == 7);
}

TEST_CASE("memory for slots is taken when the slots of workers that died are free again", "[job_saves]") {
  Writer writer;
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .every = 3, .async = true}, writer.path, JobSaves::Then::restore};
  std::thread starts{[&] { (void)member.saves.restore(); }};
  writer.accept();
  const SlotWord first = writer.hear();
  writer.say(std::nullopt);
  starts.join();
  CHECK(first == SlotWord::settle);  // and no slot yet
  member.saves.save(3, step_alone);
  member.saves.finish_copy();
  CHECK(member.saves.saved_step() != 3);  // handed over
}

TEST_CASE("host state of megabytes is saved aside as well, also where it has grown since the slot was made", "[job_saves]") {
  Writer writer;
  FaultyFiles files;
  const auto of = [](std::size_t bytes) { return std::vector<Aux>{{"elrun.step", {}}, {"state.history", std::vector<std::byte>(bytes)}}; };
  const std::uint64_t known = GENERATE(std::uint64_t{0}, std::uint64_t{2'000'000});
  CAPTURE(known);
  Saving member{files, 1, {.directory = "/root", .every = 3, .async = true}, writer.path, JobSaves::Then::saves, known};
  std::uint64_t step = 0;
  for (const std::size_t bytes : {2'000'000, 3'200'000, 64'000'000}) {
    CAPTURE(bytes);
    member.saves.save(++step, of(bytes));
    member.saves.finish_copy();
    member.saves.hear();
    CHECK(member.session.failed_saves.empty());
    if (step > 1) REQUIRE(writer.has_lost_its_worker());  // for a larger slot
    writer.accept();
    while (writer.hear() != SlotWord::sealed) {
    }
    CHECK(writer.slot->record(SlotState::sealed).value().aux == of(bytes));
    writer.say(SaveOutcome{1, step, {}, Failure{Code::no_space, Remedy::retry, "full"}});
    member.saves.hear();
    member.session.failed_saves.clear();
  }
}

TEST_CASE("the memory of a slot is asked for with the host state that is known", "[job_saves]") {
  Writer writer;
  FaultyFiles files;
  Saving member{files, 1, {.directory = "/root", .every = 3, .async = true}, writer.path, JobSaves::Then::saves, ~std::uint64_t{0} / 8};
  CHECK(member.said("of memory for them and has"));
}

}  // namespace elrun::test
