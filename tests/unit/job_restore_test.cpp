// A load by all ranks of a world together, over a storage of memory: what it reads, and what a rank that cannot read does to the others.

#include <atomic>
#include <cerrno>

#include "checkpoint/commit/checkpointer.hpp"
#include "lib/base/failure.hpp"
#include "lib/job/save/world_loads.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/job_parts.hpp"

namespace elrun::test {
namespace {

/// Of 13 MB, in units that no world cuts evenly.
ModelTable megabytes() {
  return {.units = {{"a", 1'100'001, {}}, {"b", 700'000, {}}, {"c", 5, {}}, {"d", 400'003, {}}},
          .kinds = {{"param", DType::f32}, {"exp_avg", DType::bf16}}};
}

/// What the ranks of a job hold, as the kinds of `sharded` say: cut evenly, in groups of `parts` ranks.
std::vector<Held> held_by(const ModelTable& model, std::uint32_t world, unsigned sharded, std::uint32_t parts) {
  std::vector<Held> all(world);
  for (std::uint32_t rank = 0; rank < world; ++rank)
    for (std::uint64_t kind = 0; kind < model.kinds.size(); ++kind)
      for (std::uint64_t unit = 0; unit < model.units.size(); ++unit) {
        const std::uint64_t elements = model.units[unit].elements;
        const bool is_sharded = sharded >> kind & 1;
        const auto [begin, end] = is_sharded ? slice_of(0, elements, rank % parts, parts) : std::pair{std::uint64_t{0}, elements};
        if (begin < end) all[rank].add(model, kind, unit, begin, end, !is_sharded);
      }
  return all;
}

/// A checkpoint of step 7 in memory, and worlds that load it.
struct Restoring {
  explicit Restoring(std::uint32_t writers) {
    TestJob job{files, writers, 1, model};
    job.held = held_by(model, writers, 0, 1);  // all replicated: each writes its slice
    REQUIRE(said(job.start()) == "");
    REQUIRE(said(job.save(7)) == "");
  }

  /// What each rank's load came to. `seen_by`: the storage as a rank sees it. `of_the_last`: another storage, for the last rank.
  std::vector<Result<void>> load(std::uint32_t readers, unsigned sharded, std::uint32_t parts, LoadLimits limits,
                                 const std::function<Result<void>(std::uint32_t rank, const char* verb, const Path& path)>& seen_by = {},
                                 FaultyFiles* of_the_last = nullptr) {
    TestJob job{files, readers, 2, model};
    job.held = held_by(model, readers, sharded, parts);
    start = job.start().value();
    std::vector<std::unique_ptr<ForwardingFiles>> views;
    std::vector<Checkpointer> ranks;
    for (std::uint32_t rank = 0; rank < readers; ++rank) {
      views.push_back(std::make_unique<ForwardingFiles>(
          of_the_last != nullptr && rank + 1 == readers ? *of_the_last : files,
          [=](const char* verb, const Path& path) { return seen_by ? seen_by(rank, verb, path) : Result<void>{}; }));
      Saver saver = job.leader;
      saver.rank = Rank{rank};
      ranks.emplace_back(*views.back(), job.clock, job.log, "/ckpts", saver);
    }
    files.bytes_read = 0;
    std::vector<Result<void>> results(readers);
    in_world(readers, [&](JobWorld& world, std::uint32_t rank) {
      WorldLoads together{world};
      const auto aux = ranks[rank].load(*start, job.held[rank].fragments, together, limits);
      if (!aux.ok()) results[rank] = aux.failure();
      else if (*aux != aux_of_step(7) || !holds(model, job.held[rank], 7))
        results[rank] = Failure{Code::internal, Remedy::exit_process, "wrong bytes"};
    });
    return results;
  }
  [[nodiscard]] double times_the_state() const { return static_cast<double>(files.bytes_read) / static_cast<double>(state_bytes(model)); }

  const ModelTable model = megabytes();
  FaultyFiles files;
  std::optional<Start> start;
};

bool is_shard(const Path& path) { return path.extension() == ".safetensors"; }

}  // namespace

TEST_CASE("ranks that load together hold every byte, and read the state once", "[job_restore]") {
  Selection selection;
  for (const std::uint32_t writers : {1u, 3u, 8u}) {
    Restoring job{writers};
    for (const std::uint32_t readers : {1u, 2u, 3u, 6u})
      for (const auto& [sharded, parts] : {std::pair{0u, 1u}, {2u, readers}, {3u, readers}, {3u, std::min(readers, 2u)}})
        for (const unsigned threads : {0u, 3u}) {
          if (!selection.takes()) continue;
          INFO(writers << " ranks saved, " << readers << " read with " << threads << " threads, kinds " << sharded << " in " << parts
                       << " parts");
          for (const auto& result : job.load(readers, sharded, parts, {.readers = threads, .window_bytes = 512 << 10}))
            REQUIRE(said(result) == "");
          REQUIRE(job.times_the_state() <= 1.02);
        }
  }
}

TEST_CASE("where one rank cannot read, all ranks fail alike, and none waits", "[job_restore]") {
  Restoring job{2};
  for (const unsigned sharded : {0u, 3u}) {
    int met = 0;
    for (std::uint64_t at = 0;; at += stride(1)) {
      std::atomic<std::uint64_t> operations{0};
      const auto results =
          job.load(3, sharded, 3, {.readers = 2, .window_bytes = 512 << 10}, [&](std::uint32_t rank, const char* verb, const Path& path) {
            if (rank != 1 || !is_shard(path) || operations++ != at) return Result<void>{};
            return Result<void>{from_errno(EIO, std::string{verb} + " " + path.string())};
          });
      if (operations <= at) break;
      ++met;
      for (const auto& result : results) {
        INFO("operation " << at);
        REQUIRE_FALSE(result.ok());
        CHECK(result.failure().code == Code::io);
        CHECK(result.failure().rank == Rank{1});
        CHECK_THAT(result.failure().what, Catch::Contains(to_string(*job.start->choice)) && Catch::Contains("-of-00002.safetensors"));
      }
    }
    CHECK(met >= 5);
  }
}

TEST_CASE("where one rank cannot read, the others do not read all that is for them alone first", "[job_restore]") {
  Restoring job{3};
  const auto results = job.load(3, 3, 3, {.readers = 0, .window_bytes = 64 << 10}, [&](std::uint32_t rank, const char*, const Path& path) {
    const bool hit = rank == 1 && path.filename().string().starts_with("r00001");  // the host state, for all, is in another
    return hit ? Result<void>{from_errno(EIO, "open " + path.string())} : Result<void>{};
  });
  for (const auto& result : results) {
    REQUIRE_FALSE(result.ok());
    CHECK(result.failure().rank == Rank{1});
  }
  CHECK(job.times_the_state() < 0.1);
}

TEST_CASE("a read that fails names its range of bytes", "[job_restore]") {
  Restoring job{1};
  std::atomic<int> reads{0};
  const auto results = job.load(2, 0, 1, {}, [&](std::uint32_t rank, const char* verb, const Path& path) {
    const bool hit = rank == 1 && is_shard(path) && std::string_view{verb} == "read" && reads++ == 2;  // behind header and table
    return hit ? Result<void>{from_errno(EIO, "read " + path.string())} : Result<void>{};
  });
  REQUIRE_FALSE(results[0].ok());
  CHECK_THAT(results[0].failure().what, Catch::Contains("bytes ") && Catch::Contains(" to ") && Catch::Contains("read /ckpts"));
}

TEST_CASE("a block that is damaged fails the load of all, whoever read it", "[job_restore]") {
  Restoring job{2};
  const Path shard = Path{"/ckpts/ckpt"} / to_string(CheckpointId{7, 1, 1}) / "r00001-of-00002.safetensors";
  const ByteVector whole = job.files.content(shard);
  for (std::size_t at = 20'000; at < whole.size(); at += 777'777) {
    ByteVector damaged = whole;
    damaged[at] ^= std::byte{4};
    job.files.overwrite(shard, damaged);
    for (const auto& result : job.load(3, 2, 3, {.readers = 2, .window_bytes = 512 << 10})) {
      REQUIRE_FALSE(result.ok());
      CHECK(result.failure().code == Code::corrupt);
      CHECK_THAT(result.failure().what, Catch::Contains("block " + std::to_string(at / block_bytes) + " "));
    }
    job.files.overwrite(shard, whole);
  }
}

TEST_CASE("a rank that sees another manifest, or none, fails the load of all before anything else is read", "[job_restore]") {
  Restoring job{2}, other{3};  // checkpoints of one name
  for (const bool is_there : {false, true}) {
    const auto results = job.load(
        3, 0, 1, {},
        [&](std::uint32_t rank, const char*, const Path& path) {
          return !is_there && rank == 2 && path.filename() == manifest_file ? Result<void>{from_errno(ENOENT, "open " + path.string())}
                                                                            : Result<void>{};
        },
        is_there ? &other.files : nullptr);
    for (const auto& result : results) {
      REQUIRE_FALSE(result.ok());
      CHECK(result.failure().rank == Rank{2});
      CHECK(result.failure().code == (is_there ? Code::corrupt : Code::not_found));
    }
    CHECK(job.times_the_state() < 0.01);
  }
}

}  // namespace elrun::test
