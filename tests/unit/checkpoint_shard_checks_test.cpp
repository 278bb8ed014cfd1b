// The shards of a checkpoint are looked into: by all ranks before a start goes on from it, where the leader has the last word, and by the leader before a COMMIT.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <functional>
#include <mutex>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/support/property.hpp"

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
  SECTION("the leader cannot read it either, twice: the start fails, without a mark, and goes back to no older one") {
    StartingWorld world{files, 4, [](std::uint32_t, const char* verb, const Path& path) {
                          const bool is_bad = path == shard_of(20, 3, 4);
                          return is_bad ? Result<void>{from_errno(EIO, std::string{verb} + " " + path.string())} : Result<void>{};
                        }};
    const auto start = world.start();
    REQUIRE_FALSE(start.ok());
    CHECK(start.failure().code == Code::io);
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
  constexpr std::uint32_t writers = is_sanitized ? 512 : 4096;
  FaultyFiles files;
  TestJob job{files, writers, 1};
  REQUIRE(said(job.start()) == "");
  REQUIRE(said(job.save(10)) == "");
  for (const std::uint32_t readers : {writers, 64u}) {
    StartingWorld world{files, readers};
    const auto start = world.start();
    REQUIRE(said(start) == "");
    REQUIRE(start->choice->step == 10);
    const std::uint64_t ms = world.operations[0] + world.others;  // one behind the other: more than it takes
    WARN(fmt::format("{} shards, {} ranks: {} ms of a start, at 1 ms per operation", writers, readers, ms));
    CHECK(ms <= 2000);
  }
}

TEST_CASE("a rank that votes yes and whose files the leader does not see ends the save before its COMMIT, by name", "[checkpoint]") {
  FaultyFiles files;
  TestJob job{files, 3, 1};
  REQUIRE(job.start().ok());
  const SaveTicket ticket = job.ranks[0].begin_save(10).value();
  std::vector<PartVote> votes;
  FaultyFiles own_disk;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    fill(job.table, job.held[rank], 10);
    if (rank == 2) {  // what is mounted there is not what the others have mounted
      const Path directory = job.ranks[0].path_of(ticket.id);
      REQUIRE(own_disk.make_directories(directory).ok());
      Saver saver = job.leader;
      saver.rank = Rank{2};
      votes.push_back(Checkpointer{own_disk, job.clock, job.log, "/ckpts", saver}.write_part(ticket, job.held[2].fragments));
    } else {
      votes.push_back(job.ranks[rank].write_part(ticket, job.held[rank].fragments));
    }
    REQUIRE_FALSE(votes.back().refusal);
  }
  const auto owner = [] { return Result<void>{}; };
  const Path directory = job.ranks[0].path_of(ticket.id);
  const auto copy = [&](const std::string& name) {
    REQUIRE(files.write_durably(directory / name, own_disk.content(directory / name)).ok());
  };
  Failure why;
  SECTION("neither part nor shard is there") { why = job.ranks[0].commit(ticket, votes, owner).failure(); }
  SECTION("the part is there, the shard is not") {
    copy(part_name(2, 3));
    why = job.ranks[0].commit(ticket, votes, owner).failure();
  }
  SECTION("the shard is shorter") {
    copy(part_name(2, 3)), copy(shard_name(2, 3));
    ByteVector content = files.content(directory / shard_name(2, 3));
    content.resize(content.size() - 1);
    files.overwrite(directory / shard_name(2, 3), content);
    why = job.ranks[0].commit(ticket, votes, owner).failure();
  }
  CHECK(why.rank == Rank{2});
  CHECK_THAT(message(why), Contains("rank 2") && Contains(part_name(2, 3)) && Contains("do all nodes see the same /ckpts?"));
  CHECK(files.list("/ckpts/ckpt").value().empty());
  CHECK(said(job.save(10)) == "");
}

namespace {

/// How many operations one process has under way at a time. The first ones of each kind wait for others of it until there are `most`, so a process that makes fewer is
/// found out.
class AtOnce {
 public:
  struct Kind {
    std::string verb, in_path;
    std::uint64_t count = 0;
    std::size_t waiting = 0, seen = 0;  // at a time
    bool has_waited_in_vain = false;
  };
  AtOnce(std::size_t most, std::vector<Kind> kinds) : most_{most}, kinds_{std::move(kinds)} {}
  Result<void> operator()(const char* verb, const Path& path) {
    std::unique_lock lock{mutex_};
    ++operations_;
    for (Kind& kind : kinds_) {
      if (kind.verb != verb || path.string().find(kind.in_path) == std::string::npos) continue;
      ++kind.count;
      kind.seen = std::max(kind.seen, ++kind.waiting);
      changed_.notify_all();
      const bool in_vain = !changed_.wait_for(lock, 20s, [&] { return kind.seen >= most_ || kind.has_waited_in_vain; });
      kind.has_waited_in_vain |= in_vain;
      --kind.waiting;
    }
    return {};
  }
  [[nodiscard]] const std::vector<Kind>& kinds() const { return kinds_; }
  [[nodiscard]] std::uint64_t operations() const { return operations_; }

 private:
  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Kind> kinds_;
  std::uint64_t operations_ = 0;
};

}  // namespace

TEST_CASE("with 4,096 shards and 1 ms per operation, checks before COMMIT and retention each take at most 2 s", "[checkpoint]") {
  constexpr std::uint32_t ranks = is_sanitized ? 512 : 4096, at_once = storage_operations_at_once;
  FaultyFiles files;
  TestJob job{files, ranks, 1};
  REQUIRE(said(job.start()) == "");
  for (const std::uint64_t step : {10, 20, 30}) REQUIRE(said(job.save(step)) == "");

  // What comes next is a process of its own, which has looked into none of them.
  ForwardingFiles view{files};
  Checkpointer leader{view, job.clock, job.log, "/ckpts", job.leader, at_once};
  REQUIRE(said(leader.start_with_state(30)) == "");
  const SaveTicket ticket = leader.begin_save(40).value();
  std::vector<PartVote> votes;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    fill(job.table, job.held[rank], 40);
    votes.push_back(job.ranks[rank].write_part(ticket, job.held[rank].fragments));
  }
  // `per_shard` operations of a shard are among those that are made at once.
  const auto ms = [&](const AtOnce& counted, std::uint64_t per_shard) {
    for (const AtOnce::Kind& kind : counted.kinds()) {
      INFO(kind.verb << " " << kind.in_path);
      CHECK(kind.count >= ranks);
      CHECK(kind.seen == at_once);
    }
    const std::uint64_t in_parallel = per_shard * ranks;
    REQUIRE(counted.operations() >= in_parallel);
    return counted.operations() - in_parallel + (in_parallel + at_once - 1) / at_once;
  };
  AtOnce looks{at_once, {{"open", "part.json"}, {"open", ".safetensors"}}};
  view.before = std::ref(looks);
  REQUIRE(said(leader.commit(ticket, votes, [] { return Result<void>{}; })) == "");
  const std::uint64_t before_commit = ms(looks, 3 + 4);  // a part is opened and read, a shard, too: length, header and table
  WARN(fmt::format("{} shards: {} ms from the votes to the acknowledgement, at 1 ms per operation and {} at once", ranks, before_commit,
                   at_once));
  CHECK(before_commit <= 2000);

  AtOnce removals{at_once, {{"open", ".safetensors"}, {"remove", fmt::format("-of-{:05}.", ranks)}}};
  view.before = std::ref(removals);
  REQUIRE(said(leader.retain(3)) == "");
  const std::uint64_t retention = ms(removals, 2 * 4 + 2);  // two that are kept are looked into; the shards and parts of one go
  WARN(fmt::format("{} shards: {} ms of the first retention after a start, at 1 ms per operation and {} at once", ranks, retention,
                   at_once));
  CHECK(retention <= 2000);
  CHECK(files.list("/ckpts/ckpt").value().size() == 3);
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
