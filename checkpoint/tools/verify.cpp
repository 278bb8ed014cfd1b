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

/// Some blocks of one shard.
struct Portion {
  const FileRecord* file = nullptr;
  std::uint64_t first = 0, end = 0;  // blocks
};

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
    add({std::move(file), block, std::move(what)});
  }
  /// Of a whole file: whichever of its readers finds it.
  void damaged_once(const std::string& file, std::string what) {
    const std::lock_guard lock{mutex_};
    Damage one{file, {}, std::move(what)};
    if (std::ranges::find(verified_.damage, one) == verified_.damage.end()) add(std::move(one));
  }
  void read(std::uint64_t bytes, std::uint64_t blocks) {
    const std::lock_guard lock{mutex_};
    verified_.bytes += bytes, verified_.blocks += blocks;
    if (options_.progress) options_.progress(verified_.bytes, all_);
  }
  Stop stop;

 private:
  void add(Damage one) {
    if (verified_.damage.size() < options_.damage_max) verified_.damage.push_back(std::move(one));
    else ++verified_.unlisted;
  }
  std::mutex mutex_;
  Verified& verified_;
  const VerifyOptions& options_;
  const std::uint64_t all_;
};

class ShardCheck {
 public:
  ShardCheck(Tier& tier, const Portion& portion, Tally& tally) : tier_{tier}, record_{*portion.file}, portion_{portion}, tally_{tally} {}

  void run() {
    auto opened = tier_.open(record_.name);
    if (!opened.ok()) return fail_once(opened.failure(), opened.failure().code == Code::not_found ? "is not there" : opened.failure().what);
    file_ = std::move(opened).value();
    const auto size = file_->size();
    if (!size.ok()) return fail_once(size.failure(), size.failure().what);
    if (*size != record_.bytes) say_once(fmt::format("has {} bytes, the manifest says {}", *size, record_.bytes));
    if (is_first() && *size >= record_.header_bytes) check_header();
    if (tally_.stop.is_set()) return;
    if (*size < record_.bytes) return say_once("its end with the block table is missing, so its blocks cannot be checked");
    if (!read_table()) return;
    for (std::uint64_t block = portion_.first; block < portion_.end && !tally_.stop.is_set(); block += read_blocks)
      check_blocks(block, std::min(portion_.end, block + read_blocks));
  }

 private:
  [[nodiscard]] bool is_first() const { return portion_.first == 0; }
  void say(std::optional<std::uint64_t> block, std::string what) { tally_.damaged(record_.name, block, std::move(what)); }
  /// Of the file: another portion may find the same, or not.
  void say_once(std::string what) { tally_.damaged_once(record_.name, std::move(what)); }

  void fail_once(const Failure& failure, std::string what) {
    if (tally_.stop.is_damage(failure)) say_once(std::move(what));
  }

  void check_header() {
    ByteVector header(record_.header_bytes);
    if (const auto read = file_->read_at(0, header); !read.ok()) return (void)tally_.stop.is_damage(read.failure());  // its blocks say so
    if (const std::uint32_t crc = crc32c(header); crc != record_.header_crc)
      say(std::nullopt, fmt::format("the header (bytes 0 to {}) has CRC-32C {:08x}, the manifest says {:08x}", record_.header_bytes, crc,
                                    record_.header_crc));
    else if (const auto parsed = decode_shard_header(header, record_.bytes, record_.name); !parsed.ok())
      say(std::nullopt, parsed.failure().what);
  }

  bool read_table() {
    ByteVector bytes(record_.bytes - record_.table_offset);
    if (const auto read = file_->read_at(record_.table_offset, bytes); !read.ok())
      return fail_once(read.failure(),
                       fmt::format("the block table cannot be read, so its blocks cannot be checked: {}", read.failure().what)),
             false;
    if (const std::uint32_t crc = crc32c(bytes); crc != record_.table_crc)
      return say_once(
                 fmt::format("the block table (bytes {} to {}) has CRC-32C {:08x}, the manifest says {:08x}; its blocks cannot be checked",
                             record_.table_offset, record_.bytes, crc, record_.table_crc)),
             false;
    table_.resize(bytes.size() / 4);
    std::memcpy(table_.data(), bytes.data(), table_.size() * 4);
    if (is_first()) tally_.read(bytes.size(), 0);
    return table_.size() >= block_count(record_);
  }

  [[nodiscard]] std::uint64_t end_of(std::uint64_t block) const {
    return std::min(record_.table_offset, (block + 1) * record_.block_bytes);
  }

  void check_blocks(std::uint64_t first, std::uint64_t end) {
    window_.resize(end_of(end - 1) - first * record_.block_bytes);
    const auto read = file_->read_at(first * record_.block_bytes, window_);
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
      if (crc != table_[block])
        say(block, fmt::format("block {} (bytes {} to {}) has CRC-32C {:08x}, expected {:08x}", block, from, until, crc, table_[block]));
    }
    tally_.read(window_.size(), end - first);
  }

  Tier& tier_;
  const FileRecord& record_;
  const Portion portion_;
  Tally& tally_;
  std::unique_ptr<ReadableFile> file_;
  std::vector<std::uint32_t> table_;
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
Result<std::vector<Portion>> portions_of(Tier& tier, const std::vector<FileRecord>& records, std::uint64_t portion_blocks) {
  std::vector<Portion> all;
  for (const FileRecord& file : records) {
    const auto opened = tier.open(file.name);
    const auto size = opened.ok() ? (*opened)->size() : opened.failure();
    if (!size.ok() && !is_damage(size.failure().code)) return size.failure();
    const std::uint64_t blocks = size.ok() && *size >= file.bytes ? block_count(file) : 0;
    for (std::uint64_t first = 0; first == 0 || first < blocks; first += portion_blocks)
      all.push_back({&file, first, std::min(blocks, first + portion_blocks)});
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
  ELRUN_TRY_ASSIGN(const std::vector<Portion> portions, portions_of(tier, records, std::max<std::uint64_t>(1, options.portion_blocks)));
  in_parallel(portions.size(), std::max(1u, options.readers), [&](std::size_t i) {
    if (tally.stop.is_set()) return;
    try {
      ShardCheck{tier, portions[i], tally}.run();
    } catch (const std::exception& error) {  // std::bad_alloc, as a rule: what was found before is still told
      (void)tally.stop.is_damage({.code = Code::exhausted,
                                  .remedy = Remedy::retry,
                                  .what = fmt::format("{} cannot be read: {}", portions[i].file->name, error.what())});
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
