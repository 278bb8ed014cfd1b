// A shard on its way to the storage: the same file whatever threads write it, wherever its bytes lie in memory, and whether they go past the page cache.

#include <fcntl.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "checkpoint/staging/slot_record.hpp"
#include "checkpoint/storage/shard_writer.hpp"
#include "checkpoint/tiers/files_tier.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/timed_files.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/support/mounted.hpp"
#include "tests/support/property.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

const std::string root_identity(32, 'a');

/// The file, byte after byte.
ByteVector expected_file(const ShardLayout& layout) {
  ByteVector file = layout.header;
  for (const Segment& segment : layout.data) {
    file.insert(file.end(), segment.bytes.begin(), segment.bytes.end());
    file.resize(file.size() + segment.zeros);
  }
  const std::uint64_t block = layout.part.file.block_bytes;
  ByteWriter table;
  for (std::uint64_t at = 0; at < file.size(); at += block)
    table.put(crc32c(ByteSpan{file}.subspan(at, std::min<std::uint64_t>(block, file.size() - at))));
  table.put(layout.part.file.header_crc);
  const ByteVector sums = table.take();
  file.insert(file.end(), sums.begin(), sums.end());
  return file;
}

/// One rank's part of a random model, in memory that begins anywhere.
struct RandomPart {
  explicit RandomPart(Rng& rng) : model{random_model(rng)} {
    if (rng.chance(0.5)) model.units.push_back({"large", 900'000 + rng.below(900'000), {}});
    for (const KindInfo& kind : model.kinds)
      for (std::uint64_t unit = 0; unit < model.units.size(); ++unit) {
        const std::uint64_t elements = model.units[unit].elements;
        if (elements > 0) fragments.push_back({kind.name, unit, 0, elements, {}, false});
      }
    bytes_per_block = std::uint64_t{4096} << rng.below(11);
  }
  /// Where each fragment begins is `place`'s to say.
  template <class Place>
  void put(ByteVector& memory, Rng& rng, const Place& place) {
    memory.resize(2 * WritableFile::direct_alignment + bytes() + fragments.size() * 8192);
    std::byte* const base = aligned(memory.data());
    for (std::size_t i = 0; i < fragments.size(); ++i) {
      Fragment& f = fragments[i];
      const auto kind = std::find_if(model.kinds.begin(), model.kinds.end(), [&](const KindInfo& k) { return k.name == f.kind; });
      f.bytes = {base + place(i), (f.end - f.begin) * size_of(kind->dtype)};
      for (std::byte& b : f.bytes) b = static_cast<std::byte>(rng.below(256));
    }
  }
  [[nodiscard]] ShardLayout layout() const {
    return lay_out_shard(model, {3, 1, 1}, root_identity, {}, 0, 1, fragments, aux, bytes_per_block).value();
  }
  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t all = 0;
    for (const Fragment& f : fragments) all += (f.end - f.begin) * 8;
    return all;
  }
  static std::byte* aligned(std::byte* at) {
    const std::uintptr_t page = WritableFile::direct_alignment;
    return reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(at) + page - 1) / page * page);
  }
  ModelTable model;
  std::vector<Fragment> fragments;
  std::vector<Aux> aux{{"sampler", ByteVector(777, std::byte{5})}};
  std::uint64_t bytes_per_block = 0;
};

/// None of it is in the page cache.
bool is_past_the_cache(const Path& path, std::uint64_t offset) {
  const Fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  std::byte page[4096];
  const iovec into{page, sizeof page};
  return ::preadv2(file.get(), &into, 1, static_cast<off_t>(offset), RWF_NOWAIT) < 0 && errno == EAGAIN;
}

}  // namespace

TEST_CASE("a shard is the same file whatever threads write it and wherever its bytes lie, with the checksums of its blocks",
          "[checkpoint]") {
  for_all_seeds(60, [](Rng& rng) {
    const TemporaryDirectory directory;
    RandomPart part{rng};
    ByteVector memory;
    SlotLayout slot;
    const bool in_slot = rng.chance(0.5);
    if (in_slot) {
      std::vector<Fragment> sized = part.fragments;  // their sizes count, and no bytes
      for (Fragment& f : sized) {
        const auto kind =
            std::find_if(part.model.kinds.begin(), part.model.kinds.end(), [&](const KindInfo& k) { return k.name == f.kind; });
        f.bytes = {static_cast<std::byte*>(nullptr) + 1, (f.end - f.begin) * size_of(kind->dtype)};
      }
      slot = lay_out_slot(part.model, sized);
      part.put(memory, rng, [&](std::size_t i) { return slot.fragments[i].offset; });
    } else {
      std::uint64_t at = 0;
      std::vector<std::uint64_t> places;
      for (const Fragment& f : part.fragments) places.push_back(at += rng.below(8192)), at += (f.end - f.begin) * 8;
      part.put(memory, rng, [&](std::size_t i) { return places[i]; });
    }
    const ShardLayout layout = part.layout();
    const ByteVector expected = expected_file(layout);
    const auto real = std::make_shared<PosixFiles>();
    TimedFiles timed{real};
    FaultyFiles in_memory;
    REQUIRE(in_memory.make_directories("/c").ok());
    const auto check = [&](Files& files, const Path& where, unsigned threads) {
      std::atomic<std::uint64_t> paced{0};
      FilesTier tier{files, where};
      const auto written = write_shard(tier, "", layout, {.threads = threads, .pace = [&](std::uint64_t bytes) {
                                                            paced += bytes;
                                                            return Result<void>{};
                                                          }});
      REQUIRE(written.ok());
      const Path path = where / layout.part.file.name;
      const ByteVector file = files.read_all(path, Bytes{expected.size() + 1}).value();
      CHECK((file == expected));
      CHECK(written->file.file_crc == crc32c(file));
      CHECK(written->file.table_crc == crc32c(ByteSpan{file}.subspan(layout.part.file.table_offset)));
      CHECK(paced == layout.part.file.table_offset - layout.header.size());
      REQUIRE(files.remove_file(path).ok());
    };
    check(in_memory, "/c", 0);
    check(*real, directory.path(), 0);
    check(timed, directory.path(), 1 + static_cast<unsigned>(rng.below(4)));
    // A slot is laid out as its shard, page by page.
    if (in_slot)
      for (std::size_t i = 0; i < part.fragments.size(); ++i) {
        const auto of = std::find_if(layout.part.fragments.begin(), layout.part.fragments.end(), [&](const FragmentRecord& f) {
          return part.model.kinds[f.kind].name == part.fragments[i].kind && f.unit == part.fragments[i].unit;
        });
        REQUIRE(of != layout.part.fragments.end());
        CHECK(of->offset % 4096 == slot.fragments[i].offset % 4096);
      }
  });
}

TEST_CASE("what is written from a slot goes past the page cache, and a file system that does not have that is named once", "[checkpoint]") {
  Rng rng{1};
  RandomPart part{rng};
  part.model = {{{"large", 2'000'000, {}}}, {{"param", DType::f32}}};
  part.fragments = {{"param", 0, 0, 2'000'000, {}, false}};
  part.aux.clear();
  ByteVector memory;
  part.put(memory, rng, [](std::size_t) { return std::uint64_t{0}; });
  const ShardLayout layout = part.layout();
  std::vector<std::string> notes;
  PosixFiles files{[&](const std::string& note) { notes.push_back(note); }};
  const TemporaryDirectory directory;
  const auto write = [&](const Path& where) {
    FilesTier tier{files, where};
    REQUIRE(write_shard(tier, "", layout, {.threads = 2}).ok());
    const Path path = where / layout.part.file.name;
    const bool is_past = is_past_the_cache(path, layout.header.size() + (4u << 20));
    CHECK((files.read_all(path, 1_GiB).value() == expected_file(layout)));
    REQUIRE(files.remove_file(path).ok());
    return is_past;
  };
  if (write(directory.path())) {
    CHECK(notes.empty());
  } else {
    WARN("SKIPPED: " << directory.path() << " is on a file system that takes no direct writes");
    notes.clear();
  }
  const TemporaryDirectory other;
  const auto mounted = Mounted::ramfs(other.path());
  if (!mounted) return;
  (void)write(other.path());
  (void)write(other.path());
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Catch::Contains(other.path()) && Catch::Contains("O_DIRECT: Invalid argument"));
}

TEST_CASE("the first write of a shard that fails is its failure: no other is begun after it, and the file is removed", "[checkpoint]") {
  Rng rng{2};
  RandomPart part{rng};
  part.model = {{{"large", 20'000'000, {}}}, {{"param", DType::u8}}};
  part.fragments = {{"param", 0, 0, 20'000'000, {}, false}};
  ByteVector memory;
  part.put(memory, rng, [](std::size_t) { return std::uint64_t{0}; });
  const ShardLayout layout = part.layout();
  const TemporaryDirectory directory;
  PosixFiles disk;
  for (const unsigned threads : {0u, 3u}) {
    std::atomic<int> writes{0};
    ForwardingFiles files{disk, [&](const char* verb, const Path& path) -> Result<void> {
                            if (std::string{verb} != "write" || ++writes != 5) return {};
                            return Failure{Code::io, Remedy::retry, fmt::format("write {}: planted", path.string())};
                          }};
    FilesTier tier{files, directory.path()};
    const auto written = write_shard(tier, "", layout, {.threads = threads});
    REQUIRE_FALSE(written.ok());
    CHECK_THAT(written.failure().what, Catch::Contains("planted"));
    CHECK(writes < 5 + 4);
    CHECK(disk.list(directory.path()).value().empty());
  }
  FilesTier tier{disk, directory.path()};
  const auto refused = write_shard(tier, "", layout, {.threads = 2, .pace = [](std::uint64_t) -> Result<void> {
                                                        return Failure{Code::generation_over, Remedy::rejoin, "given up"};
                                                      }});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.failure().code == Code::generation_over);
  CHECK(disk.list(directory.path()).value().empty());
}
