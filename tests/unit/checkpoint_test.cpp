/// \file Rules of the checkpoint's cores, and of a checkpointer on a storage that behaves.

#include <cerrno>
#include <memory>
#include <utility>

#include "checkpoint/commit/checkpointer.hpp"
#include "checkpoint/commit/fence.hpp"
#include "checkpoint/commit/messages.hpp"
#include "checkpoint/format/json.hpp"
#include "checkpoint/format/plan.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/format/shard.hpp"
#include "lib/base/crc32c.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

TEST_CASE("the timeline is what the highest fence inherits and what came after it", "[checkpoint]") {
  const CheckpointId old{10, 1, 1}, good{20, 1, 1}, zombie{30, 1, 1}, own{30, 2, 1}, begun{40, 2, 1};
  const std::vector<Found> found{{old, true, false}, {good, true, false}, {zombie, true, false}, {own, true, false}, {begun, false, false}};
  const auto ids = [](const std::vector<Found>& line) {
    std::vector<CheckpointId> out;
    for (const Found& f : line) out.push_back(f.id);
    return out;
  };
  std::optional<FenceRecord> fence;
  CHECK(ids(timeline(found, fence)) == std::vector{old, good, zombie, own});
  fence.emplace();
  fence->number = 2;
  fence->inherits = {old, good};
  CHECK(ids(timeline(found, fence)) == std::vector{old, good, own});
}

TEST_CASE("a file system without hard links stops the start, and is not taken for one that cannot be written", "[checkpoint]") {
  FaultyFiles files;
  files.refuses_links = GENERATE(EPERM, EOPNOTSUPP, ENOSYS);  // of FAT; of shares and buckets that are mounted as folders
  TestJob job{files, 1, 1};
  const auto start = job.start();
  REQUIRE_FALSE(start.ok());
  CHECK(start.failure().code == Code::invalid_argument);
  CHECK(start.failure().what.find("without hard links") != std::string::npos);
}

TEST_CASE("replicated state is cut into slices that cover it once", "[checkpoint]") {
  for (const std::uint64_t elements : {0u, 1u, 1023u, 1024u, 1025u, 10'000u, 123'457u})
    for (const std::uint32_t world : {1u, 2u, 3u, 7u, 64u}) {
      std::uint64_t next = 5;
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        const auto [begin, end] = slice_of(5, 5 + elements, rank, world);
        CHECK(begin == next);
        CHECK(begin <= end);
        CHECK(((begin - 5) % slice_granule == 0 || begin == 5 + elements));
        next = end;
      }
      CHECK(next == 5 + elements);
    }
}

TEST_CASE("a shard is a safetensors file that verifies itself", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 1, 1};
  REQUIRE(said(job.start()) == "");
  REQUIRE(said(job.save(10)) == "");
  const ByteVector shard = files.content("/ckpts/ckpt/s000000000010.g00000001.a01/r00000-of-00001.safetensors");
  const auto length = shard_header_length(ByteSpan{shard}.first<8>(), shard.size(), "shard").value();
  CHECK(length % 4096 == 0);
  const ShardHeader header = decode_shard_header(ByteSpan{shard}.first(length), shard.size(), "shard").value();
  CHECK(header.metadata.at("elrun.step") == "10");
  CHECK(header.tensors[0].name == "param/embed.weight");
  CHECK(header.tensors[0].shape == std::vector<std::uint64_t>{50, 60});
  CHECK(header.tensors.back().name == "__elrun_crc32c");
  bool found = false;
  for (const TensorEntry& t : header.tensors)
    found = found || (t.name == "exp_avg/embed.weight" && t.begin % 4096 == 0 && t.dtype == DType::bf16);
  CHECK(found);
  std::uint32_t first_block = 0;  // the table's first entry is the checksum of the file's first block
  std::memcpy(&first_block, shard.data() + length + header.tensors.back().begin, 4);
  CHECK(first_block == crc32c(ByteSpan{shard}.first(std::min<std::size_t>(block_bytes, length + header.tensors.back().begin))));
}

TEST_CASE("a hostile shard header is refused", "[checkpoint]") {
  const auto decode = [](std::string json, std::uint64_t data) {
    ByteWriter out;
    out.put(std::uint64_t{json.size()});
    out.put_raw(as_bytes(json));
    return decode_shard_header(out.bytes(), out.bytes().size() + data, "shard");
  };
  CHECK(decode(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   )", 8).ok());
  CHECK_THAT(said(decode(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12)), Contains("hole"));
  CHECK_THAT(
      said(decode(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12)),
      Contains("overlap"));
  CHECK_THAT(said(decode(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9)), Contains("9 bytes of data"));
  CHECK_FALSE(decode(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8).ok());
  CHECK_FALSE(decode(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8).ok());
  CHECK_FALSE(decode(R"({"a":{"dtype":"F32","shape":[9007199254740991,9007199254740991,4],"data_offsets":[0,8]}})", 8).ok());
  CHECK_FALSE(decode(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8).ok());
  CHECK_FALSE(
      decode(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8).ok());
  CHECK_FALSE(decode(R"({"__metadata__":{"a":1}})", 0).ok());
  CHECK_FALSE(decode(R"([])", 0).ok());
  const std::array<std::byte, 8> huge{std::byte{0xff}, std::byte{0xff}, std::byte{0xff}, std::byte{0xff},
                                      std::byte{0xff}, std::byte{0xff}, std::byte{0xff}, std::byte{0xff}};
  CHECK_FALSE(shard_header_length(huge, 1 << 20, "shard").ok());
}

TEST_CASE("a first start makes the root and begins at step 0; the next goes on from the newest", "[checkpoint]") {
  FaultyFiles files;
  TestJob first{files, 2, 1};
  CHECK_FALSE(first.start()->choice);
  REQUIRE(said(first.save(10)) == "");
  REQUIRE(said(first.save(20)) == "");
  TestJob second{files, 3, 2};
  CHECK(said(second.ranks[1].open_root()) == "");
  const Start start = second.start().value();
  CHECK(start.fence == 2);
  CHECK(start.choice == CheckpointId{20, 1, 1});
  CHECK(said(second.load(start)) == "");
  CHECK(highest_fence(RootIn{files}).value() == 2);
  CHECK(newest_generation(RootIn{files}).value() == 3);  // the seed of the second job, and one
  CHECK(newest_generation(RootIn{files, "/nowhere"}).value() == 0);
}

TEST_CASE("a save without a start is refused", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 1, 1};
  CHECK(job.save(10).failure().code == Code::refused);
}

TEST_CASE("another plan or model is refused, and the difference named", "[checkpoint]") {
  FaultyFiles files;
  TestJob first{files, 1, 1};
  REQUIRE(first.start().ok());
  REQUIRE(said(first.save(10)) == "");
  SECTION("plan") {
    TestJob other{files, 1, 2, small_model(), 1, "run", "/ckpts", {"def456", "global_batch: 128\nseed: 7\nextra: 1"}};
    const auto opened = other.ranks[0].open_root();
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.failure().code == Code::mismatch);
    CHECK_THAT(message(opened.failure()), Contains("global_batch: the checkpoint has 64, this job has 128") &&
                                              Contains("extra: the checkpoint has none") && !Contains("seed") &&
                                              Contains("another directory"));
    CHECK(other.start().failure().code == Code::mismatch);
  }
  SECTION("numeric class") {
    TestJob other{files, 1, 2, small_model(), 1, "run", "/ckpts", {"def456", "global_batch: 64\nseed: 7\nelrun.numeric: 2"}};
    CHECK_THAT(said(other.start()), Contains("elrun.numeric: the checkpoint has none, this job has 2") && Contains("the numeric class") &&
                                        Contains("other bits"));
    TestJob seed{files, 1, 2, small_model(), 1, "run", "/ckpts", {"def457", "global_batch: 64\nseed: 8"}};
    CHECK_THAT(said(seed.start()), Contains("seed") && !Contains("numeric class"));
  }
  SECTION("model") {
    ModelTable model = small_model();
    model.units[0].tensors[0].shape = {60, 50};
    model.units[2].elements = 8;
    TestJob other{files, 1, 2, model};
    CHECK_THAT(said(other.start()), Contains("tensor embed.weight: the checkpoint has F32[50, 60] at 0, this job has F32[60, 50] at 0") &&
                                        Contains("unit head: the checkpoint has 7 elements, this job has 8 elements"));
  }
  SECTION("the refused ones left the root as it was") {
    TestJob other{files, 1, 2, small_model(), 1, "run", "/ckpts", {"def456", "x: 1"}};
    CHECK_FALSE(other.start().ok());
    CHECK(said(first.save(20)) == "");
  }
}

TEST_CASE("of two jobs on one root the newer wins, and the older stops at its next save and names both", "[checkpoint]") {
  FaultyFiles files;
  TestJob older{files, 2, 1, small_model(), 1, "first-job"}, newer{files, 2, 2, small_model(), 1, "second-job"};
  REQUIRE(older.start().ok());
  REQUIRE(said(older.save(10)) == "");
  REQUIRE(newer.start()->choice == CheckpointId{10, 1, 1});
  const auto refused = older.save(20);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.failure().code == Code::refused);
  CHECK_THAT(message(refused.failure()),
             Contains("first-job") && Contains("second-job") && Contains("fence 2") && Contains("fence 1") && Contains("lineage"));
  CHECK(older.ranks[0].retain(2).failure().code == Code::refused);
  CHECK(said(newer.save(20)) == "");
}

TEST_CASE("a job whose root was taken over never takes it back, whatever became of its own fence meanwhile", "[checkpoint]") {
  FaultyFiles files;
  TestJob older{files, 1, 1, small_model(), 1, "first-job"}, newer{files, 1, 2, small_model(), 1, "second-job"};
  REQUIRE(older.start().ok());
  REQUIRE(said(older.save(10)) == "");
  const bool was_released = GENERATE(false, true), is_readable = GENERATE(true, false), own_is_gone = GENERATE(false, true);
  CAPTURE(was_released, is_readable, own_is_gone);
  if (was_released) {
    files.broken = [](const Path& path) { return path.string().find("gens") != std::string::npos ? EIO : 0; };
    REQUIRE_FALSE(older.ranks[0].start_with_state(10).ok());
    files.broken = {};
  }
  REQUIRE(newer.start().ok());
  const std::string claim = "/ckpts/gens/" + claim_name(2);
  if (!is_readable) files.overwrite(claim, ByteVector(3));
  if (own_is_gone)
    for (const std::string& name : {claim_name(1), fence_name(1)}) REQUIRE(files.remove_file("/ckpts/gens/" + name).ok());
  for (const auto& again : {older.ranks[0].start_with_state(10), older.ranks[0].start()}) {
    REQUIRE_FALSE(again.ok());
    CHECK(again.failure().code == Code::refused);
    CHECK_THAT(message(again.failure()),
               Contains("taken over") && Contains("first-job") && Contains(is_readable ? "second-job" : "unknown"));
  }
  CHECK(said(newer.save(20)) == "");
}

TEST_CASE("a job claims a fence above its own, also one of which it does not know, and above one of before its start", "[checkpoint]") {
  FaultyFiles files;
  TestJob before{files, 1, 2, small_model(), 1, "before"}, job{files, 1, 1}, twin{files, 1, 1};
  REQUIRE(before.start().ok());
  REQUIRE(job.start().ok());
  REQUIRE(twin.start().ok());  // as a claim whose answer was lost
  CHECK(job.ranks[0].start_with_state(0)->fence == 4);
  CHECK(said(job.save(10)) == "");
}

TEST_CASE("a job that cannot tell who took a fence tries again, and is not refused", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 1, 1};
  REQUIRE(job.start().ok());
  TestJob twin{files, 1, 1};
  REQUIRE(twin.start().ok());
  const std::string claim = "/ckpts/gens/" + claim_name(2);
  files.broken = [&](const Path& path) { return path == claim ? EIO : 0; };
  CHECK(job.ranks[0].start_with_state(0).failure().code == Code::io);
  files.broken = {};
  CHECK(said(job.ranks[0].start_with_state(0)) == "");
}

TEST_CASE("a later generation of the same job is told apart from another job", "[checkpoint]") {
  FaultyFiles files;
  TestJob older{files, 1, 1};
  REQUIRE(older.start().ok());
  ManualClock clock;
  const Log log{"test", [](Level, std::string_view) {}};
  Checkpointer later{files, clock, log, "/ckpts", {"run", Generation{9, {{78, 1}}}, Rank{0}, WorldSize{1}, {"abc123", ""}, small_model()}};
  REQUIRE(said(later.start()) == "");
  CHECK(older.save(10).failure().code == Code::generation_over);
}

TEST_CASE("a zombie's finished COMMIT is ignored", "[checkpoint]") {
  FaultyFiles files;
  TestJob older{files, 1, 1}, newer{files, 1, 2}, third{files, 1, 3};
  REQUIRE(older.start().ok());
  REQUIRE(said(older.save(10)) == "");
  // The newer job begins after the older one's last look before its COMMIT, and before its look after it.
  int asked = 0;
  const auto saved = older.save(20, [&]() -> Result<void> {
    if (++asked == 2) REQUIRE(newer.start().ok());
    return {};
  });
  CHECK_FALSE(saved.ok());
  REQUIRE(said(newer.save(15)) == "");
  const Start start = third.start().value();
  // It was there when the newer one looked, so it is inherited; nobody lost anything.
  CHECK(start.choice == CheckpointId{20, 1, 1});
}

TEST_CASE("a leader that was frozen before its start claims nothing above a later generation of its job", "[checkpoint]") {
  FaultyFiles files;
  TestJob frozen{files, 1, 1}, newer{files, 1, 1}, other{files, 1, 2};
  newer.leader.generation.number += 1;
  newer.ranks.clear();
  newer.add_ranks(1);
  REQUIRE(newer.start().ok());
  const auto thawed = frozen.start();
  REQUIRE_FALSE(thawed.ok());
  CHECK(thawed.failure().code == Code::generation_over);
  CHECK_THAT(thawed.failure().what, Contains("later generation of this job"));
  CHECK(said(newer.save(10)) == "");
  CHECK(other.start().ok());  // of another lineage nobody knows which is later
}

TEST_CASE("a checkpoint whose owner died before the sync of its directory is durable once a start goes on from it", "[checkpoint]") {
  for (const bool has_state : {false, true}) {
    FaultyFiles files;
    TestJob dead{files, 1, 1}, next{files, 1, 1};
    REQUIRE(dead.start().ok());
    REQUIRE(said(dead.save(10)) == "");
    bool killed = false;
    try {
      (void)dead.save(20, [&]() -> Result<void> {
        files.before = [&](std::uint64_t) {  // COMMIT has its name, and the directory is not synced
          const auto all = files.all_files();
          if (std::find(all.begin(), all.end(), Path{"/ckpts/ckpt/s000000000020.g00000001.a01/COMMIT"}) != all.end()) throw Killed{};
        };
        return {};
      });
    } catch (const Killed&) {
      killed = true;
    }
    files.before = nullptr;
    REQUIRE(killed);
    REQUIRE((has_state ? next.ranks[0].start_with_state(20) : next.start()).ok());
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      Rng rng{seed};
      files.crash(rng);
      TestJob last{files, 1, 1};
      const auto start = last.start();
      REQUIRE(said(start) == "");
      CHECK(start->choice == CheckpointId{20, 1, 1});
    }
  }
}

TEST_CASE("directories whose maker died before their sync are synced by the next start", "[checkpoint]") {
  const Path root = GENERATE("/ckpts", "/ckpts/", "/ckpts//");
  const bool is_made = GENERATE(true, false);
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    FaultyFiles files;
    if (is_made)
      for (const char* made : {"/ckpts", "/ckpts/gens", "/ckpts/ckpt"}) REQUIRE(files.make_directory(made).ok());
    TestJob job{files, 1, 1, small_model(), 1, "run", root};
    REQUIRE(job.start().ok());
    REQUIRE(said(job.save(10)) == "");
    Rng rng{seed};
    files.crash(rng);
    CHECK(TestJob{files, 1, 1}.start().value().choice == CheckpointId{10, 1, 1});
  }
}

TEST_CASE("a rank's no abandons the save with its reason, and the next attempt has a new name", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 2, 1};
  REQUIRE(job.start().ok());
  const SaveTicket ticket = job.ranks[0].begin_save(10).value();
  std::vector<PartVote> votes{job.ranks[0].write_part(ticket, job.held[0].fragments),
                              job.ranks[1].write_part(ticket, job.held[0].fragments)};
  SECTION("wrong fragments: the parts make no whole") {
    const auto failed = job.ranks[0].commit(ticket, votes, [] { return Result<void>{}; });
    CHECK_THAT(said(failed), Contains("make no checkpoint"));
  }
  SECTION("a refusal") {
    votes[1].refusal = Failure{Code::io, Remedy::retry, "disk on fire"};
    CHECK_THAT(said(job.ranks[0].commit(ticket, votes, [] { return Result<void>{}; })),
               Contains("rank 1") && Contains("disk on fire") && Contains("was not saved"));
  }
  SECTION("a vote too many") {
    votes.push_back(votes[1]);
    CHECK_THAT(said(job.ranks[0].commit(ticket, votes, [] { return Result<void>{}; })), Contains("3 votes of 2 ranks"));
  }
  SECTION("an owner that is none any more") {
    CHECK_FALSE(job.ranks[0]
                    .commit(ticket, votes,
                            [] {
                              return Result<void>{Failure{Code::generation_over, Remedy::rejoin, "over"}};
                            })
                    .ok());
  }
  CHECK(files.list("/ckpts/ckpt").value().empty());
  CHECK(said(job.save(10)) == "");
}

TEST_CASE("wrong fragments are all named at once", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 1, 1};
  REQUIRE(job.start().ok());
  const SaveTicket ticket = job.ranks[0].begin_save(10).value();
  ByteVector memory(400);
  const std::vector<Fragment> wrong{{"param", 0, 0, 100, memory}, {"param", 0, 50, 150, memory}, {"velocity", 0, 0, 100, memory},
                                    {"param", 9, 0, 100, memory}, {"param", 2, 0, 100, memory},  {"param", 1, 0, 99, memory}};
  const PartVote vote = job.ranks[0].write_part(ticket, wrong);
  REQUIRE(vote.refusal);
  CHECK_THAT(vote.refusal->what, Contains("overlap at element 50") && Contains("velocity") && Contains("unit 9") &&
                                     Contains("head is [0, 100)") && Contains("99 elements in 400 bytes"));
}

TEST_CASE("a full disk is met before the first byte, and says how much is missing", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 1, 1};
  REQUIRE(job.start().ok());
  files.space = 1_MiB;
  const auto begun = job.ranks[0].begin_save(10);
  REQUIRE_FALSE(begun.ok());
  CHECK(begun.failure().code == Code::no_space);
  CHECK_THAT(message(begun.failure()), Contains("/ckpts") && Contains("1048576 bytes are free") && Contains("needs 42"));
}

TEST_CASE("a damaged fence is passed over and said, and what it committed stays", "[checkpoint]") {
  FaultyFiles files;
  for (std::uint64_t n = 1; n <= 2; ++n) {
    TestJob job{files, 1, n};
    REQUIRE(job.start().ok());
    REQUIRE(said(job.save(10 * n)) == "");
  }
  files.overwrite("/ckpts/gens/g00000002.json", ByteVector(100));
  TestJob next{files, 1, 3};
  const Start start = next.start().value();
  CHECK(start.choice == CheckpointId{20, 2, 1});
  CHECK_THAT(start.notes.at(0), Contains("fence 2 is passed over") && Contains("g00000002.json"));
}

TEST_CASE("a root with checkpoints of which none can be used stops the job, also the second time", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 1, 1};
  REQUIRE(job.start().ok());
  REQUIRE(said(job.save(10)) == "");
  files.overwrite("/ckpts/ckpt/s000000000010.g00000001.a01/MANIFEST.json", ByteVector(10));
  for (std::uint64_t n = 2; n <= 3; ++n) {
    TestJob next{files, 1, n};
    const auto start = next.start();
    REQUIRE_FALSE(start.ok());
    CHECK(start.failure().code == Code::corrupt);
    CHECK_THAT(message(start.failure()), Contains("none of the 1 checkpoints") && Contains("s000000000010"));
  }
}

TEST_CASE("a checkpoint copied from elsewhere is neither used nor removed", "[checkpoint]") {
  FaultyFiles files;
  TestJob elsewhere{files, 1, 9, small_model(), 1, "other", "/other"};
  REQUIRE(elsewhere.start().ok());
  REQUIRE(said(elsewhere.save(5)) == "");
  TestJob job{files, 1, 1};
  REQUIRE(job.start().ok());
  REQUIRE(said(job.save(10)) == "");
  REQUIRE(said(files.make_directory("/ckpts/ckpt/s000000000005.g00000001.a01")) == "");
  for (const Path& path : files.all_files())
    if (path.string().starts_with("/other/ckpt/"))
      REQUIRE(said(files.write_durably("/ckpts/ckpt/s000000000005.g00000001.a01" / path.filename(), files.content(path))) == "");
  TestJob next{files, 1, 2};
  REQUIRE(next.start()->choice == CheckpointId{10, 1, 1});
  for (std::uint64_t step = 20; step <= 50; step += 10) {
    REQUIRE(said(next.save(step)) == "");
    REQUIRE(said(next.ranks[0].retain(2)) == "");
  }
  const auto names = files.list("/ckpts/ckpt").value();
  CHECK(std::find(names.begin(), names.end(), "s000000000005.g00000001.a01") != names.end());
}

TEST_CASE("a rank that sees another storage than the leader does not condemn a whole checkpoint", "[checkpoint]") {
  FaultyFiles shared, elsewhere;
  TestJob job{shared, 1, 1}, lost{elsewhere, 1, 1};
  REQUIRE(job.start().ok());
  REQUIRE(said(job.save(10)) == "");
  TestJob next{shared, 1, 2};
  const Start start = next.start().value();
  const auto loaded = lost.load(start);
  REQUIRE(loaded.failure().code == Code::not_found);
  const auto rejected = next.ranks[0].reject(start, loaded.failure());
  REQUIRE_FALSE(rejected.ok());
  CHECK_THAT(message(rejected.failure()), Contains("do all nodes see the same /ckpts?") && Contains("rank 0"));
  CHECK(next.start()->choice == CheckpointId{10, 1, 1});
}

TEST_CASE("a ticket is judged by its own fence, not by one that its process has claimed since", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 1, 1};
  REQUIRE(job.start().ok());
  const SaveTicket ticket = job.ranks[0].begin_save(10).value();
  const std::vector<PartVote> votes{job.ranks[0].write_part(ticket, job.held[0].fragments)};
  REQUIRE(job.ranks[0].start().ok());
  const auto late = job.ranks[0].commit(ticket, votes, [] { return Result<void>{}; });
  REQUIRE_FALSE(late.ok());
  CHECK(late.failure().code == Code::generation_over);  // its own later one: nobody else took the root
  CHECK_THAT(late.failure().what, Contains("fence 2 belongs to") && Contains("this job has fence 1"));
}

TEST_CASE("a save that fails before it has a name is called by none", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 1, 1}, later{files, 1, 2};
  REQUIRE(job.start().ok());
  REQUIRE(later.start().ok());
  CommitMachine save = job.ranks[0].new_save(10);
  for (auto next = save.start(Instant{}); next;) next = save.on(commit::Answered{next->number, job.ranks[0].perform(*next)}, Instant{});
  REQUIRE(save.is_over());
  CHECK_THAT(said(job.ranks[0].outcome(save)), Contains("fence 2 belongs to") && !Contains("was not saved"));
}

TEST_CASE("an attempt that was given up keeps its name, also where its directory is tried only when the next one has begun",
          "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 1, 1};
  REQUIRE(job.start().ok());
  Checkpointer& leader = job.ranks[0];
  const auto until_directory = [&](CommitMachine& save, std::optional<CommitAction> next) {
    while (next && !std::holds_alternative<commit::MakeDirectory>(next->what))
      next = save.on(commit::Answered{next->number, leader.perform(*next)}, Instant{});
    REQUIRE(next);
    return *std::move(next);
  };
  CommitMachine given_up = leader.new_save(10), next_one = leader.new_save(10);
  const CommitAction late = until_directory(given_up, given_up.start(Instant{}));
  files.arm(FaultyFiles::Fault{.at = 0, .error = EIO});
  REQUIRE(std::holds_alternative<Failure>(leader.perform(late)));
  files.arm({});
  CHECK(until_directory(next_one, next_one.start(Instant{})).ticket.id.attempt == late.ticket.id.attempt + 1);
}

TEST_CASE("a leader that cannot look gives no checkpoint up: only damage is a reason", "[checkpoint]") {
  FaultyFiles memory;
  Result<void> answer;
  ForwardingFiles files{memory, [&](const char* verb, const Path& path) {
                          return std::string_view{verb} == "read" && path.extension() == ".safetensors" ? answer : Result<void>{};
                        }};
  TestJob job{files, 1, 1};
  REQUIRE(job.start().ok());
  REQUIRE(said(job.save(10)) == "");
  REQUIRE(said(job.save(20)) == "");
  TestJob next{files, 1, 2};
  const Start start = next.start().value();
  REQUIRE(start.choice->step == 20);
  const Failure bad_block{Code::corrupt, Remedy::retry, "a block"};
  for (const Code code : {Code::deadline_passed, Code::exhausted, Code::io}) {
    answer = Failure{code, Remedy::retry, "not now"};
    const auto rejected = next.ranks[0].reject(start, bad_block);
    REQUIRE_FALSE(rejected.ok());
    CHECK(rejected.failure().code == code);
    CHECK(rejected.failure().remedy == Remedy::retry);
    answer = {};
    CHECK(next.start()->choice->step == 20);
  }
  answer = Failure{Code::corrupt, Remedy::retry, "a flipped bit"};
  CHECK(next.ranks[0].reject(start, bad_block).ok());
  answer = {};
  const Start older = next.start().value();
  CHECK(older.choice->step == 10);
  CHECK_THAT(older.notes.at(0), Contains("was found damaged before") && Contains("a flipped bit"));
}

TEST_CASE("a quarantined checkpoint is passed over, and the note has the first line of its mark, bounded and printable", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 1, 1};
  REQUIRE(job.start().ok());
  for (const std::uint64_t step : {10, 20}) REQUIRE(said(job.save(step)) == "");
  const Path mark = Path{"/ckpts/ckpt/s000000000020.g00000001.a01"} / quarantine_file;
  const auto note = [&](std::string_view text) {
    const auto bytes = as_bytes(text);
    REQUIRE(files.write_durably(mark, bytes).ok());
    const Start start = TestJob{files, 1, 2}.start().value();
    CHECK(start.choice->step == 10);
    return start.notes.at(0);
  };
  SECTION("by a start") {
    CHECK_THAT(note("corrupt: block 3 of x\nmore"),
               Contains("s000000000020.g00000001.a01 is passed over: it was found damaged before (corrupt: block 3 of x)"));
  }
  SECTION("by a person") { CHECK(note("").ends_with("it was found damaged before")); }
  SECTION("of odd bytes") {
    const std::string said = note(std::string(5000, '\x1b'));
    CHECK(said.find('\x1b') == std::string::npos);
  }
}

TEST_CASE("a leader that was frozen before it moves a damaged RUN.json away does not move the one of a later generation", "[checkpoint]") {
  FaultyFiles files;
  ForwardingFiles before{files};
  const auto generation = [](Files& storage, std::uint64_t number) {
    auto job = std::make_unique<TestJob>(storage, 2, 1);
    job->leader.generation.number += number;
    job->ranks.clear();
    job->add_ranks(2);
    return job;
  };
  const auto frozen = generation(before, 0), later = generation(files, 1), last = generation(files, 2);
  REQUIRE(said(frozen->start()) == "");
  REQUIRE(said(files.write_durably("/ckpts/RUN.json", as_bytes("damaged"))) == "");
  bool is_over = false;
  before.before = [&](const char* verb, const Path& path) -> Result<void> {
    if (std::string_view{verb} != "rename" || std::exchange(is_over, true)) return {};
    CAPTURE(path.string());
    CHECK(said(later->start()) == "");
    CHECK(said(later->save(40)) == "");
    return {};
  };
  CHECK_THAT(said(frozen->save(10)), Contains("was taken over: fence 2"));
  REQUIRE(is_over);
  const auto start = last->start();
  REQUIRE(said(start) == "");
  CHECK(start->choice == CheckpointId{40, 2, 1});
}
