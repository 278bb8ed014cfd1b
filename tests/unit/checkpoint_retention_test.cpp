// Retention: which checkpoints stay, and what becomes of those that go, on a storage that fails or loses its power in between.

#include <algorithm>
#include <cerrno>
#include <utility>

#include "checkpoint/commit/checkpointer.hpp"
#include "checkpoint/commit/fence.hpp"
#include "checkpoint/format/model.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

TEST_CASE("retention keeps the newest of the timeline and what a person must look into", "[checkpoint]") {
  std::vector<Found> found;
  std::vector<CheckpointId> line;
  for (std::uint64_t step = 10; step <= 50; step += 10) found.push_back({{step, 1, 1}, true, false}), line.push_back({step, 1, 1});
  found[2].quarantined = true;
  SECTION("quarantined ones neither go nor count") {
    CHECK(retention(found, line, {}, 1, 2).uncommit == std::vector<CheckpointId>{{10, 1, 1}, {20, 1, 1}});
    CHECK(retention(found, line, {}, 1, 3).uncommit == std::vector<CheckpointId>{{10, 1, 1}});
  }
  SECTION("two stay, whatever is asked") { CHECK(retention(found, line, {}, 1, 0).uncommit.size() == 2); }
  SECTION("of two attempts of one save only the later counts") {
    found.push_back({{50, 1, 2}, true, false}), line.push_back({50, 1, 2});
    const Retention gone = retention(found, line, {}, 1, 2);
    CHECK(gone.keep == std::vector<CheckpointId>{{40, 1, 1}, {50, 1, 2}});
    CHECK(std::ranges::find(gone.uncommit, CheckpointId{50, 1, 1}) != gone.uncommit.end());
  }
  SECTION("a newer fence's are not ours") {
    found.push_back({{60, 2, 1}, true, false});
    found.push_back({{70, 2, 1}, false, false});
    CHECK(retention(found, line, {}, 1, 2).uncommit.size() == 2);
    CHECK(retention(found, line, {}, 1, 2).sweep.empty());
  }
  SECTION("leftovers are swept; what is complete beside the timeline, what was promised and what cannot be read stays") {
    found.push_back({{60, 1, 1}, false, false});
    found.push_back({{55, 1, 2}, true, false});
    found.push_back({{58, 1, 1}, false, false});
    found.push_back({{5, 1, 1}, false, false, "Input/output error"});
    const Retention gone = retention(found, line, {{58, 1, 1}}, 2, 2);
    CHECK(gone.sweep == std::vector<CheckpointId>{{60, 1, 1}});
    CHECK(gone.uncommit == std::vector<CheckpointId>{{10, 1, 1}, {20, 1, 1}});
    CHECK(retention(found, {{50, 1, 1}}, {}, 2, 2).uncommit.empty());
  }
  SECTION("under our own fence a later save than the newest is no leftover: another process may be writing it") {
    found.push_back({{45, 1, 1}, false, false});
    found.push_back({{60, 1, 1}, false, false});
    CHECK(retention(found, line, {}, 1, 2).sweep == std::vector<CheckpointId>{{45, 1, 1}});
    CHECK(retention(found, {}, {}, 1, 2).sweep.empty());
  }
}

TEST_CASE("before a save without space only what nobody can be writing any more is a leftover", "[checkpoint]") {
  const std::vector<Found> found{{{10, 1, 1}, true, false},
                                 {{20, 1, 1}, false, false},
                                 {{60, 1, 1}, false, false},
                                 {{30, 1, 1}, false, true},
                                 {{35, 1, 1}, false, false, "Input/output error"},
                                 {{40, 2, 1}, false, false},
                                 {{50, 2, 1}, false, false},
                                 {{60, 2, 1}, false, false},
                                 {{20, 3, 1}, false, false}};
  using Ids = std::vector<CheckpointId>;
  CHECK(leftovers(found, {}, 2, 50, EarlierSaves::are_over) == Ids{{20, 1, 1}, {60, 1, 1}, {40, 2, 1}});
  CHECK(leftovers(found, {}, 2, 50, EarlierSaves::all_over) == Ids{{20, 1, 1}, {60, 1, 1}, {40, 2, 1}, {50, 2, 1}});
  CHECK(leftovers(found, {{50, 2, 1}}, 2, 50, EarlierSaves::all_over) == Ids{{20, 1, 1}, {60, 1, 1}, {40, 2, 1}});
  CHECK(leftovers(found, {}, 2, 50, EarlierSaves::may_go_on) == Ids{{20, 1, 1}, {60, 1, 1}});
  CHECK(leftovers(found, {{20, 1, 1}}, 2, 40, EarlierSaves::are_over) == Ids{{60, 1, 1}});  // it was promised, and its COMMIT is lost
  CHECK(leftovers(found, {}, 1, 10, EarlierSaves::are_over).empty());
}

TEST_CASE("what a save left that was cut off makes room for the next one where there is no other, and only there", "[checkpoint]") {
  FaultyFiles files;
  TestJob first{files, 2, 1};
  REQUIRE(first.start().ok());
  for (const std::uint64_t step : {10, 20}) REQUIRE(said(first.save(step)) == "");
  REQUIRE(said(first.ranks[0].retain(2)) == "");
  const Bytes two = files.stored();
  const std::uint64_t state = state_bytes(first.table);
  const Bytes needs{state + state / 50 + 2 * 16384 + 4 * 1024 * 1024};
  // Cut off between its last part and COMMIT.
  const auto cut_off = [&](TestJob& job, std::uint64_t step) {
    const SaveTicket ticket = job.ranks[0].begin_save(step).value();
    for (std::size_t rank = 0; rank < 2; ++rank) (void)job.ranks[rank].write_part(ticket, job.held[rank].fragments, aux_of_step(step));
    return Path{checkpoint_directory(ticket.id)};
  };
  const Path left = Path{"/ckpts"} / cut_off(first, 30);
  const auto taken = files.stored().value() - two.value();
  REQUIRE(taken > 8192);
  files.disk = Bytes{two.value() + needs.value() + taken / 2};  // room for one more, and for a start
  const auto is_there = [&](const Path& path) { return files.list(path).ok() && !files.list(path)->empty(); };
  SECTION("of an earlier start") {
    TestJob next{files, 2, 2};
    REQUIRE(next.start().ok());
    SECTION("without its name") { CHECK(said(next.save(40)) == ""); }
    SECTION("of the same step") { CHECK(said(next.save(30)) == ""); }
    SECTION("it stays where there is room") {
      files.disk.reset();
      CHECK(next.ranks[0].begin_save(40).ok());
      CHECK(is_there(left));
      return;
    }
    SECTION("it stays where a later start has the root") {
      TestJob last{files, 2, 3};
      REQUIRE(last.start().ok());
      CHECK_FALSE(next.ranks[0].begin_save(40).ok());
      CHECK(is_there(left));
      return;
    }
    CHECK_FALSE(is_there(left));
    CHECK(files.list("/ckpts/ckpt")->size() == 3);
  }
  SECTION("in the trash, which a crash left full") {
    const Path trash = Path{"/ckpts/trash"} / left.filename();
    REQUIRE(files.make_directory(trash.parent_path()).ok());
    REQUIRE(files.rename(left, trash).ok());
    TestJob next{files, 2, 2};
    REQUIRE(next.start().ok());
    CHECK(said(next.save(40)) == "");
    CHECK_FALSE(is_there(trash));
  }
  SECTION("under our own fence, where it is known that nobody writes it") {
    CHECK(first.ranks[0].begin_save(40, 0, {EarlierSaves::may_go_on}).failure().code == Code::no_space);
    CHECK(is_there(left));
    CHECK(first.ranks[0].begin_save(30).failure().code == Code::no_space);
    CHECK(is_there(left));
    SECTION("of an earlier step") { CHECK(said(first.save(40)) == ""); }
    SECTION("of the same step, where the tries before are over: it gets another name") {
      CHECK(first.ranks[0].begin_save(30, 0, {EarlierSaves::all_over}).value().id == CheckpointId{30, 1, 2});
    }
    SECTION("of the same step, by another process, which has not tried it") {
      Checkpointer other{files, first.clock, first.log, first.root, first.leader};
      other.take_over(first.ranks[0].ownership());
      CHECK(other.begin_save(30, 0, {EarlierSaves::all_over}).value().id == CheckpointId{30, 1, 2});
    }
    CHECK_FALSE(is_there(left));
  }
}

TEST_CASE("a try whose COMMIT a server may still link makes no room for the next one", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 1, 1};
  REQUIRE(job.start().ok());
  const int error = GENERATE(ETIMEDOUT, EIO, ESTALE, ENOSPC);
  INFO("errno " << error);
  files.broken = [&](const Path& path) { return path.filename().string().starts_with(commit_file) ? error : 0; };
  REQUIRE_FALSE(job.save(10).ok());
  files.broken = nullptr;
  const auto is_there = [&] {
    const auto names = files.list("/ckpts/ckpt/s000000000010.g00000001.a01");
    return names.ok() && !names->empty();
  };
  REQUIRE(is_there());
  files.disk = files.stored();
  const std::uint64_t step = GENERATE(10, 20);
  CHECK(job.ranks[0].begin_save(step, 0, {EarlierSaves::all_over}).failure().code == Code::no_space);
  CHECK(is_there() == (error != ENOSPC));  // that one is known to be nowhere
  files.disk.reset();
  REQUIRE(said(job.save(20)) == "");  // what is newer has its state
  REQUIRE(said(job.ranks[0].retain(2)) == "");
  CHECK_FALSE(is_there());
}

TEST_CASE("where fewer are kept than before, the oldest make room for a save that has none, no more than it needs", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 2, 1};
  REQUIRE(job.start().ok());
  std::uint64_t taken = 0;  // by one checkpoint
  for (std::uint64_t step = 10; step <= 50; step += 10) {
    const Bytes before = files.stored();
    REQUIRE(said(job.save(step)) == "");
    taken = files.stored().value() - before.value();
  }
  const std::uint64_t state = state_bytes(job.table);
  const std::uint64_t needs = state + state / 50 + 2 * 16384 + 4 * 1024 * 1024;
  REQUIRE(taken > 8192);
  const auto steps = [&] {
    std::vector<std::uint64_t> all;
    const auto names = files.list("/ckpts/ckpt").value();
    for (const std::string& name : names) all.push_back(parse_checkpoint_id(name)->step);
    return all;
  };
  using Steps = std::vector<std::uint64_t>;
  const auto lacks = [&](double checkpoints) {
    files.disk = Bytes{files.stored().value() + needs - static_cast<std::uint64_t>(checkpoints * static_cast<double>(taken))};
  };
  lacks(1.5);
  SECTION("two of three that may go") {
    CHECK(job.ranks[0].begin_save(60, 0, {EarlierSaves::are_over, 2}).ok());
    CHECK(steps() == Steps{30, 40, 50, 60});
    CHECK(files.list("/ckpts/trash").value().empty());
  }
  SECTION("no more than held what is missing, where what is free does not say at once that they went") {
    files.space = Bytes{needs - taken / 2}, files.disk.reset();
    CHECK(job.ranks[0].begin_save(60, 0, {EarlierSaves::are_over, 2}).failure().code == Code::no_space);
    CHECK(steps() == Steps{20, 30, 40, 50});
  }
  SECTION("four at most") {
    files.disk.reset();
    for (const std::uint64_t step : {60, 70, 80}) REQUIRE(said(job.save(step)) == "");
    files.space = 0_B;
    CHECK(job.ranks[0].begin_save(90, 0, {EarlierSaves::are_over, 2}).failure().code == Code::no_space);
    CHECK(steps() == Steps{50, 60, 70, 80});
  }
  SECTION("one whose COMMIT cannot be read stays, and the next one goes for it") {
    files.overwrite("/ckpts/ckpt/s000000000010.g00000001.a01/COMMIT", ByteVector(3));
    lacks(0.5);
    CHECK(job.ranks[0].begin_save(60, 0, {EarlierSaves::are_over, 2}).ok());
    CHECK(steps() == Steps{10, 30, 40, 50, 60});
  }
  SECTION("as many stay as after a save, and at least two") {
    lacks(4.5);
    const std::uint32_t keep = GENERATE(1u, 2u, 3u, 4u);
    CHECK(job.ranks[0].begin_save(60, 0, {EarlierSaves::are_over, keep}).failure().code == Code::no_space);
    CHECK(steps() == (keep <= 2 ? Steps{40, 50} : keep == 3 ? Steps{30, 40, 50} : Steps{20, 30, 40, 50}));
  }
  SECTION("a damaged one that is kept stands for no whole one") {
    lacks(4.5);
    files.overwrite("/ckpts/ckpt/s000000000050.g00000001.a01/MANIFEST.json", ByteVector(3));
    TestJob next{files, 2, 2};
    REQUIRE(next.start()->choice == CheckpointId{40, 1, 1});
    CHECK_FALSE(next.ranks[0].begin_save(60, 0, {EarlierSaves::are_over, 2}).ok());
    CHECK(steps() == Steps{30, 40, 50});
  }
  SECTION("none where nothing is said of it, and none where a later start has the root") {
    CHECK(job.ranks[0].begin_save(60).failure().code == Code::no_space);
    TestJob next{files, 2, 2};
    files.disk = Bytes{files.disk->value() + 8192};
    REQUIRE(said(next.start()) == "");
    lacks(1.5);
    CHECK_FALSE(job.ranks[0].begin_save(60, 0, {EarlierSaves::are_over, 2}).ok());
    CHECK(steps() == Steps{10, 20, 30, 40, 50});
  }
}

TEST_CASE("the newest k stay, with every file they need, and older ones are gone", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 2, 1};
  REQUIRE(job.start().ok());
  for (std::uint64_t step = 10; step <= 50; step += 10) {
    REQUIRE(said(job.save(step)) == "");
    REQUIRE(said(job.ranks[0].retain(3)) == "");
  }
  CHECK(files.list("/ckpts/ckpt").value() ==
        std::vector<std::string>{"s000000000030.g00000001.a01", "s000000000040.g00000001.a01", "s000000000050.g00000001.a01"});
  CHECK(files.list("/ckpts/trash").value().empty());
}

TEST_CASE("where fewer are kept than before, the oldest go a few with each save", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 1, 1};
  REQUIRE(job.start().ok());
  for (std::uint64_t step = 10; step <= 120; step += 10) REQUIRE(said(job.save(step)) == "");
  const auto left = [&] { return files.list("/ckpts/ckpt")->size(); };
  for (const std::size_t after : {8, 4, 2, 2}) {
    const std::size_t before = left();
    REQUIRE(said(job.ranks[0].retain(2)) == "");
    CHECK(left() == after);
    CHECK(before - left() <= 4);
  }
  CHECK(files.list("/ckpts/ckpt")->front() == "s000000000110.g00000001.a01");
}

TEST_CASE("a file that is and stays unreachable stops no retention: one more is kept, and a bad moment costs nothing", "[checkpoint]") {
  FaultyFiles files;
  {
    TestJob first{files, 1, 1};
    REQUIRE(first.start().ok());
    for (std::uint64_t step = 10; step <= 50; step += 10) REQUIRE(said(first.save(step)) == "");
  }
  TestJob next{files, 1, 2};
  REQUIRE(next.start().ok());  // it has looked into the newest
  const bool stays = GENERATE(false, true);
  const int error = GENERATE(EREMOTEIO, ESTALE, EIO);
  bool is_over = false;
  files.broken = [&](const Path& path) {
    const bool is_that = path.extension() == ".safetensors" && path.parent_path().filename() == "s000000000040.g00000001.a01";
    return is_that && (stays || !std::exchange(is_over, true)) ? error : 0;
  };
  REQUIRE(said(next.ranks[0].retain(2)) == "");
  std::vector<std::string> left{"s000000000040.g00000001.a01", "s000000000050.g00000001.a01"};
  if (stays) left.insert(left.begin(), "s000000000030.g00000001.a01");
  CHECK(files.list("/ckpts/ckpt").value() == left);
}

TEST_CASE("old checkpoints whose COMMIT cannot be read keep no other one from going", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 1, 1};
  REQUIRE(job.start().ok());
  for (std::uint64_t step = 10; step <= 90; step += 10) REQUIRE(said(job.save(step)) == "");
  for (std::uint64_t step = 10; step <= 50; step += 10)
    files.overwrite(Path{"/ckpts"} / checkpoint_directory({step, 1, 1}) / commit_file, ByteVector(3));
  REQUIRE(said(job.ranks[0].retain(2)) == "");
  CHECK(files.list("/ckpts/ckpt")->size() == 7);
}

TEST_CASE("a checkpoint whose COMMIT was removed, and not for good, does not come back in part after the next removal", "[checkpoint]") {
  for_all_seeds(20, [](Rng& rng) {
    FaultyFiles files;
    TestJob job{files, 2, 1};
    REQUIRE(job.start().ok());
    for (std::uint64_t step = 10; step <= 30; step += 10) REQUIRE(said(job.save(step)) == "");
    const Path oldest{"/ckpts/ckpt/s000000000010.g00000001.a01"};
    const auto is_there = [&](const Path& path) {
      const auto all = files.all_files();
      return std::find(all.begin(), all.end(), path) != all.end();
    };
    bool failed = false;
    files.broken = [&](const Path& path) {  // the first sync of the directory without COMMIT
      if (failed || path != oldest || is_there(oldest / "COMMIT")) return 0;
      failed = true;
      return EIO;
    };
    CHECK(job.ranks[0].retain(2).failure().code == Code::io);
    REQUIRE(failed);
    REQUIRE(said(job.ranks[0].retain(2)) == "");
    files.crash(rng);
    CHECK_FALSE(is_there(oldest / "COMMIT"));
  });
}

TEST_CASE("what gets its COMMIT while old checkpoints are removed is no leftover any more", "[checkpoint]") {
  FaultyFiles memory;
  int lists_of_fences = -1000;
  SaveTicket leftover;
  ForwardingFiles files{memory, [&](const char* verb, const Path& path) -> Result<void> {
                          const bool is_second = std::string_view{verb} == "list" && path == Path{"/ckpts/gens"} && ++lists_of_fences == 2;
                          if (is_second)  // the first is before the look at all checkpoints, this one behind it
                            (void)memory.write_durably(Path{"/ckpts/ckpt"} / to_string(leftover.id) / commit_file, as_bytes("yes"));
                          return {};
                        }};
  TestJob job{files, 1, 1};
  REQUIRE(job.start().ok());
  leftover = job.ranks[0].begin_save(10).value();
  REQUIRE_FALSE(job.ranks[0].write_part(leftover, job.held[0].fragments).refusal);
  REQUIRE(said(job.save(20)) == "");
  const auto before = memory.list(Path{"/ckpts/ckpt"} / to_string(leftover.id)).value();
  lists_of_fences = 0;
  REQUIRE(said(job.ranks[0].retain(2)) == "");
  REQUIRE(lists_of_fences >= 2);
  CHECK(memory.list(Path{"/ckpts/ckpt"} / to_string(leftover.id)).value().size() == before.size() + 1);
}
