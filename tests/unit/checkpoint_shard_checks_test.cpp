// The shards of a checkpoint are looked into by all ranks before a start goes on from it; the leader has the last word.

#include <atomic>
#include <cerrno>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/forwarding_files.hpp"

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

namespace {

using Sees = std::function<Result<void>(std::uint32_t rank, const char* verb, const Path& path)>;

/// A world that starts on a storage of memory; each rank has its own view of it, and its operations are counted.
struct StartingWorld {
  StartingWorld(FaultyFiles& files, std::uint32_t world, Sees sees = {}) : job{files, 1, 5}, operations(world), opened(world) {
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      views.push_back(std::make_unique<ForwardingFiles>(files, [this, rank, sees](const char* verb, const Path& path) {
        ++operations[rank];
        if (std::string_view{verb} == "open" && path.extension() == ".safetensors") ++opened[rank];
        return sees ? sees(rank, verb, path) : Result<void>{};
      }));
      Saver saver = job.leader;
      saver.rank = Rank{rank}, saver.world = WorldSize{world};
      ranks.emplace_back(*views.back(), job.clock, job.log, "/ckpts", saver);
    }
  }
  Result<Start> start() {
    return ranks[0].start({}, [this](const ShardQuestion& asked) -> Result<std::vector<ShardFindings>> {
      const ShardQuestion check = decode_shard_question(encode(asked)).value();
      std::vector<ShardFindings> all;
      std::uint64_t most = 0;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const std::uint64_t before = operations[rank];
        all.push_back(decode_shard_findings(encode(ranks[rank].check_shards(check))).value());
        if (rank > 0) most = std::max(most, operations[rank] - before);
      }
      others += most;
      return all;
    });
  }
  [[nodiscard]] bool has_said(std::string_view part) const {
    return std::ranges::any_of(job.lines, [&](const std::string& line) { return line.find(part) != line.npos; });
  }

  TestJob job;
  std::vector<std::uint64_t> operations, opened;  // by rank
  std::uint64_t others = 0;                       // operations of the slowest other rank, in all questions
  std::vector<std::unique_ptr<ForwardingFiles>> views;
  std::vector<Checkpointer> ranks;
};

/// Steps 10 and 20, by so many ranks.
void save_two(FaultyFiles& files, std::uint32_t world) {
  TestJob job{files, world, 1};
  REQUIRE(said(job.start()) == "");
  REQUIRE(said(job.save(10)) == "");
  REQUIRE(said(job.save(20)) == "");
}

Path shard_of(std::uint64_t step, std::uint32_t rank, std::uint32_t world) {
  return Path{"/ckpts/ckpt"} / to_string(CheckpointId{step, 1, 1}) / shard_name(rank, world);
}

}  // namespace

TEST_CASE("each rank looks into its share of the shards, and each shard is opened once", "[checkpoint]") {
  FaultyFiles files;
  save_two(files, 7);
  StartingWorld world{files, 3};
  const auto start = world.start();
  REQUIRE(said(start) == "");
  CHECK(start->choice->step == 20);
  CHECK(world.opened == std::vector<std::uint64_t>{3, 2, 2});
}

TEST_CASE("a shard that one rank finds bad is looked into by the leader, which decides", "[checkpoint]") {
  FaultyFiles files;
  save_two(files, 4);
  SECTION("it is damaged: it is marked, and the checkpoint before it is gone on from") {
    ByteVector content = files.content(shard_of(20, 1, 4));
    content[100] ^= std::byte{1};
    files.overwrite(shard_of(20, 1, 4), content);
    StartingWorld world{files, 4};
    const auto start = world.start();
    REQUIRE(said(start) == "");
    CHECK(start->choice->step == 10);
    CHECK_THAT(start->notes.at(0), Contains("s000000000020.g00000001.a01 cannot be used") && Contains(shard_name(1, 4)));
    CHECK(world.opened == std::vector<std::uint64_t>{3, 2, 2, 2});  // the leader opened that one, too
    CHECK(files.content(shard_of(20, 1, 4).parent_path() / quarantine_file).size() > 0);
  }
  SECTION("it is whole: that rank sees another storage, and the checkpoint is not condemned") {
    StartingWorld world{files, 4, [](std::uint32_t rank, const char* verb, const Path& path) {
                          const bool is_hidden = rank == 2 && path.extension() == ".safetensors";
                          return is_hidden ? Result<void>{from_errno(ENOENT, std::string{verb} + " " + path.string())} : Result<void>{};
                        }};
    const auto start = world.start();
    REQUIRE(said(start) == "");
    CHECK(start->choice->step == 20);
    CHECK(start->notes.empty());
    CHECK(world.has_said("rank 2 cannot read all of checkpoint s000000000020.g00000001.a01, but the leader can"));
  }
  SECTION("the leader cannot read it either, twice: it is passed over without a mark") {
    StartingWorld world{files, 4, [](std::uint32_t, const char* verb, const Path& path) {
                          const bool is_bad = path == shard_of(20, 3, 4);
                          return is_bad ? Result<void>{from_errno(EIO, std::string{verb} + " " + path.string())} : Result<void>{};
                        }};
    const auto start = world.start();
    REQUIRE(said(start) == "");
    CHECK(start->choice->step == 10);
    const auto names = files.list(shard_of(20, 3, 4).parent_path()).value();
    CHECK(std::ranges::find(names, quarantine_file) == names.end());
  }
}

TEST_CASE("a rank that cannot read the manifest leaves its share of the shards to the leader", "[checkpoint]") {
  FaultyFiles files;
  save_two(files, 4);
  ByteVector content = files.content(shard_of(20, 1, 4));
  content[100] ^= std::byte{1};
  for (const bool is_damaged : {false, true}) {
    if (is_damaged) files.overwrite(shard_of(20, 1, 4), content);
    StartingWorld world{files, 4, [](std::uint32_t rank, const char* verb, const Path& path) {
                          const bool is_hidden = rank == 1 && path.filename() == manifest_file;
                          return is_hidden ? Result<void>{from_errno(ENOENT, std::string{verb} + " " + path.string())} : Result<void>{};
                        }};
    const auto start = world.start();
    REQUIRE(said(start) == "");
    CHECK(start->choice->step == (is_damaged ? 10 : 20));
  }
}

TEST_CASE("at 1 ms per operation a start over 4,096 shards takes at most 2 s", "[checkpoint]") {
  constexpr std::uint32_t writers = 4096;
  FaultyFiles files;
  TestJob job{files, writers, 1};
  REQUIRE(said(job.start()) == "");
  REQUIRE(said(job.save(10)) == "");
  for (const std::uint32_t readers : {4096u, 64u}) {
    StartingWorld world{files, readers};
    const auto start = world.start();
    REQUIRE(said(start) == "");
    REQUIRE(start->choice->step == 10);
    const std::uint64_t ms = world.operations[0] + world.others;  // one behind the other: more than it takes
    WARN(fmt::format("{} shards, {} ranks: {} ms of a start, at 1 ms per operation", writers, readers, ms));
    CHECK(ms <= 2000);
  }
}

TEST_CASE("what ranks find is checked before it is used", "[checkpoint]") {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng{seed};
    ByteVector bytes = encode(ShardFindings{.rank = 3, .is_blind = rng.chance(0.5), .bad = {1, 4, 9}, .why = "it is damaged"});
    if (rng.chance(0.5)) bytes.resize(rng.below(bytes.size() + 1));
    for (auto n = rng.below(4); n > 0 && !bytes.empty(); --n) bytes[rng.below(bytes.size())] ^= std::byte(1u << rng.below(8));
    const auto found = decode_shard_findings(bytes);
    if (found.ok()) REQUIRE(std::ranges::is_sorted(found->bad));
    (void)decode_shard_question(bytes);
  }
}
