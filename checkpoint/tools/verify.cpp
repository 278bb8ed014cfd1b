#include "checkpoint/tools/verify.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/format/shard.hpp"
#include "checkpoint/storage/in_parallel.hpp"
#include "checkpoint/storage/storage.hpp"
#include "checkpoint/tiers/files_tier.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/base/digest.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::uint64_t read_blocks = 4;  // in one call: the checksum finds them in the cache

/// Until the first failure that is no damage: all behind it fails alike.
class Stop {
 public:
  /// True: it is damage, which `failure` tells.
  bool is_damage(const Failure& failure) {
    if (elrun::is_damage(failure.code)) return true;
    const std::lock_guard lock{mutex_};
    if (!why_) why_ = failure;
    is_set_ = true;
    return false;
  }
  [[nodiscard]] bool is_set() const { return is_set_; }
  /// After the readers.
  [[nodiscard]] const std::optional<Failure>& why() const { return why_; }

 private:
  std::mutex mutex_;
  std::atomic<bool> is_set_{false};
  std::optional<Failure> why_;
};

/// What readers share.
class Tally {
 public:
  Tally(Verified& verified, const VerifyOptions& options, std::uint64_t all) : verified_{verified}, options_{options}, all_{all} {}
  void damaged(std::string file, std::optional<std::uint64_t> block, std::string what) {
    const std::lock_guard lock{mutex_};
    if (verified_.damage.size() < options_.damage_max) verified_.damage.push_back({std::move(file), block, std::move(what)});
    else ++verified_.unlisted;
  }
  void read(std::uint64_t bytes, std::uint64_t blocks) {
    const std::lock_guard lock{mutex_};
    verified_.bytes += bytes, verified_.blocks += blocks;
    if (options_.progress) options_.progress(verified_.bytes, all_);
  }
  Stop stop;

 private:
  std::mutex mutex_;
  Verified& verified_;
  const VerifyOptions& options_;
  const std::uint64_t all_;
};

/// One shard, for all who read its blocks.
class ShardFile {
 public:
  ShardFile(Tier& tier, const FileRecord& record, Tally& tally) : tier_{tier}, record_{record}, tally_{tally} {}
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;

  /// False: its blocks cannot be checked, and it is told why. The first reader looks at length, header and block table, which has 4 bytes for each block; the others wait for that. What is thrown
  /// there, the first one tells.
  [[nodiscard]] bool is_open() {
    const std::lock_guard lock{mutex_};
    if (!std::exchange(is_looked_at_, true)) is_open_ = open();
    return is_open_;
  }
  /// Once it is open, also beside other readers.
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) { return file_->read_at(offset, out); }
  [[nodiscard]] std::uint32_t crc_of(std::uint64_t block) const {
    std::uint32_t crc = 0;
    std::memcpy(&crc, table_.data() + block * sizeof crc, sizeof crc);
    return crc;
  }
  [[nodiscard]] const FileRecord& record() const { return record_; }

 private:
  bool open() {
    auto opened = tier_.open(record_.name);
    if (!opened.ok()) return fail(opened.failure(), opened.failure().code == Code::not_found ? "is not there" : opened.failure().what);
    file_ = std::move(opened).value();
    const auto size = file_->size();
    if (!size.ok()) return fail(size.failure(), size.failure().what);
    if (*size != record_.bytes) say(fmt::format("has {} bytes, the manifest says {}", *size, record_.bytes));
    if (*size >= record_.header_bytes) check_header();
    if (tally_.stop.is_set()) return false;
    if (*size < record_.bytes) return say("its end with the block table is missing, so its blocks cannot be checked"), false;
    return read_table();
  }

  void say(std::string what) { tally_.damaged(record_.name, {}, std::move(what)); }
  bool fail(const Failure& failure, std::string what) {
    if (tally_.stop.is_damage(failure)) say(std::move(what));
    return false;
  }

  void check_header() {
    ByteVector header(record_.header_bytes);
    if (const auto read = file_->read_at(0, header); !read.ok()) return (void)tally_.stop.is_damage(read.failure());  // its blocks say so
    if (const std::uint32_t crc = crc32c(header); crc != record_.header_crc)
      say(fmt::format("the header (bytes 0 to {}) has CRC-32C {:08x}, the manifest says {:08x}", record_.header_bytes, crc,
                      record_.header_crc));
    else if (const auto parsed = decode_shard_header(header, record_.bytes, record_.name); !parsed.ok()) say(parsed.failure().what);
  }

  bool read_table() {
    table_.resize(record_.bytes - record_.table_offset);
    if (const auto read = file_->read_at(record_.table_offset, table_); !read.ok())
      return fail(read.failure(), fmt::format("the block table cannot be read, so its blocks cannot be checked: {}", read.failure().what));
    if (const std::uint32_t crc = crc32c(table_); crc != record_.table_crc)
      return say(fmt::format("the block table (bytes {} to {}) has CRC-32C {:08x}, the manifest says {:08x}; its blocks cannot be checked",
                             record_.table_offset, record_.bytes, crc, record_.table_crc)),
             false;
    tally_.read(table_.size(), 0);
    return table_.size() / sizeof(std::uint32_t) >= block_count(record_);
  }

  Tier& tier_;
  const FileRecord& record_;
  Tally& tally_;
  std::mutex mutex_;
  bool is_looked_at_ = false, is_open_ = false;
  std::unique_ptr<ReadableFile> file_;
  ByteVector table_;
};

/// Some blocks of one shard. The last portion that is gone closes the file.
struct Portion {
  std::shared_ptr<ShardFile> shard;
  std::uint64_t first = 0, end = 0;  // blocks
};

class ShardCheck {
 public:
  ShardCheck(const Portion& portion, Tally& tally)
      : shard_{*portion.shard}, record_{shard_.record()}, first_{portion.first}, end_{portion.end}, tally_{tally} {}

  void run() {
    if (!shard_.is_open()) return;
    for (std::uint64_t block = first_; block < end_ && !tally_.stop.is_set(); block += read_blocks)
      check_blocks(block, std::min(end_, block + read_blocks));
  }

 private:
  void say(std::uint64_t block, std::string what) { tally_.damaged(record_.name, block, std::move(what)); }

  [[nodiscard]] std::uint64_t end_of(std::uint64_t block) const {
    return std::min(record_.table_offset, (block + 1) * record_.block_bytes);
  }

  void check_blocks(std::uint64_t first, std::uint64_t end) {
    window_.resize(end_of(end - 1) - first * record_.block_bytes);
    const auto read = shard_.read_at(first * record_.block_bytes, window_);
    if (!read.ok() && !tally_.stop.is_damage(read.failure())) return;
    if (!read.ok() && end - first > 1) {  // which of them?
      for (std::uint64_t block = first; block < end; ++block) check_blocks(block, block + 1);
      return;
    }
    for (std::uint64_t block = first; block < end; ++block) {
      const std::uint64_t from = block * record_.block_bytes, until = end_of(block);
      if (!read.ok()) {
        say(block, fmt::format("block {} (bytes {} to {}) cannot be read: {}", block, from, until, read.failure().what));
        continue;
      }
      const std::uint32_t crc = crc32c(ByteSpan{window_}.subspan(from - first * record_.block_bytes, until - from));
      if (const std::uint32_t expected = shard_.crc_of(block); crc != expected)
        say(block, fmt::format("block {} (bytes {} to {}) has CRC-32C {:08x}, expected {:08x}", block, from, until, crc, expected));
    }
    tally_.read(window_.size(), end - first);
  }

  ShardFile& shard_;
  const FileRecord& record_;
  const std::uint64_t first_, end_;
  Tally& tally_;
  ByteVector window_;
};

/// The shards by what their ranks wrote of them, for a checkpoint without a manifest.
Result<std::vector<FileRecord>> by_parts(Tier& tier, const CheckpointId& id, const std::vector<std::string>& names) {
  std::vector<FileRecord> records;
  for (const std::string& name : names) {
    if (!name.ends_with(".part.json")) continue;
    const auto text = read_record(tier, name, record_bytes_max);
    if (!text.ok() && !is_damage(text.failure().code)) return text.failure();
    if (!text.ok()) continue;
    if (auto part = decode_part(*text, name); part.ok() && part->id == id && part->file.name == shard_name(part->rank, part->world))
      records.push_back(std::move(part->file));
  }
  return records;
}

/// The records, from COMMIT down; what they say of the shards, or the next best.
Result<std::vector<FileRecord>> check_records(Tier& tier, const CheckpointId& id, const std::string& root,
                                              const std::vector<std::string>& names, std::vector<Damage>& damage) {
  const auto say = [&](const char* file, std::string what) { damage.push_back({file, {}, std::move(what)}); };
  const auto commit = read_commit(tier, "");
  if (!commit.ok() && !is_damage(commit.failure().code)) return commit.failure();
  if (!commit.ok())
    say(commit_file, commit.failure().code == Code::not_found ? "is not there: this save was never committed" : commit.failure().what);
  else if (commit->id != id || (!root.empty() && commit->root != root))
    say(commit_file, in_wrong_place(commit->id, commit->root, id, root));
  const auto text = read_record(tier, manifest_file, manifest_bytes_max);
  if (!text.ok() && !is_damage(text.failure().code)) return text.failure();
  if (!text.ok()) {
    say(manifest_file, text.failure().code == Code::not_found ? "is not there" : text.failure().what);
    return by_parts(tier, id, names);
  }
  const std::uint32_t crc = crc32c(*text);
  if (commit.ok() && text->size() != commit->manifest_bytes)
    say(manifest_file, fmt::format("has {} bytes, COMMIT says {}", text->size(), commit->manifest_bytes));
  else if (commit.ok() && (crc != commit->manifest_crc || to_hex(sha256(*text)) != commit->manifest_sha256))
    say(manifest_file, fmt::format("has CRC-32C {:08x}, COMMIT says {:08x} (or their SHA-256 differ)", crc, commit->manifest_crc));
  auto manifest = decode_manifest(*text, manifest_file);
  if (!manifest.ok()) {
    say(manifest_file, manifest.failure().what);
    return by_parts(tier, id, names);
  }
  if (manifest->id != id) say(manifest_file, in_wrong_place(manifest->id, manifest->root, id, root));
  return std::move(manifest->files);
}

/// A file that is shorter than its record says gets one portion, which finds that out: no record makes the list longer than the files are.
Result<std::vector<Portion>> portions_of(Tier& tier, const std::vector<FileRecord>& records, std::uint64_t portion_blocks, Tally& tally) {
  std::vector<Portion> all;
  for (const FileRecord& file : records) {
    const auto opened = tier.open(file.name);
    const auto size = opened.ok() ? (*opened)->size() : opened.failure();
    if (!size.ok() && !is_damage(size.failure().code)) return size.failure();
    const std::uint64_t blocks = size.ok() && *size >= file.bytes ? block_count(file) : 0;
    const auto shard = std::make_shared<ShardFile>(tier, file, tally);
    for (std::uint64_t first = 0; first == 0 || first < blocks; first += portion_blocks)
      all.push_back({shard, first, std::min(blocks, first + portion_blocks)});
  }
  return all;
}

}  // namespace

bool is_damage(Code why) {
  // `invalid_argument`: something else than a file has its name.
  return why == Code::corrupt || why == Code::not_found || why == Code::io || why == Code::invalid_argument;
}

namespace {

Result<void> read_all(Tier& tier, const CheckpointId& id, const std::string& root, const VerifyOptions& options,
                      const std::vector<std::string>& names, Verified& verified) {
  ELRUN_TRY_ASSIGN(const std::vector<FileRecord> records, check_records(tier, id, root, names, verified.damage));
  std::uint64_t all = 0;
  for (const FileRecord& file : records) all += file.bytes;
  verified.files = records.size();
  Tally tally{verified, options, all};
  ELRUN_TRY_ASSIGN(std::vector<Portion> portions, portions_of(tier, records, std::max<std::uint64_t>(1, options.portion_blocks), tally));
  in_parallel(portions.size(), std::max(1u, options.readers), [&](std::size_t i) {
    if (tally.stop.is_set()) return;
    const Portion portion = std::move(portions[i]);
    try {
      ShardCheck{portion, tally}.run();
    } catch (const std::exception& error) {  // std::bad_alloc, as a rule: what was found before is still told
      (void)tally.stop.is_damage({.code = Code::exhausted,
                                  .remedy = Remedy::retry,
                                  .what = fmt::format("{} cannot be read: {}", portion.shard->record().name, error.what())});
    }
  });
  std::stable_sort(verified.damage.begin(), verified.damage.end(), [](const Damage& a, const Damage& b) {
    const auto key = [](const Damage& d) { return std::tuple{d.block.has_value(), d.block.value_or(0)}; };
    return a.file != b.file ? a.file < b.file : key(a) < key(b);
  });
  if (tally.stop.why()) return *tally.stop.why();
  return {};
}

}  // namespace

Result<Verified> verify_all(Files& files, const Path& directory, const CheckpointId& id, const std::string& root,
                            const VerifyOptions& options) {
  FilesTier tier{files, directory};
  Verified verified;
  const auto names = tier.list("");
  const auto read =
      names.ok() ? with_memory([&] { return read_all(tier, id, root, options, *names, verified); }) : Result<void>{names.failure()};
  if (!read.ok() && is_damage(read.failure().code)) verified.damage.push_back({".", {}, read.failure().what});
  else if (!read.ok()) verified.cut_off = read.failure();
  if (verified.is_whole()) return verified;
  const auto is_missing = [](const auto& looked) { return !looked.ok() && looked.failure().code == Code::not_found; };
  if (options.was_committed && is_missing(tier.open(commit_file)))
    return Failure{Code::not_found, Remedy::fix_config, fmt::format("the job removed {} meanwhile", to_string(id))};
  if (is_missing(names)) return names.failure();
  return verified;
}

}  // namespace elrun::inline v0
