/// The idea: the file is cut at multiples of a chunk, which no block of the checksums crosses. So chunks know nothing of each other, and are summed and written by as
/// many threads as there are, in any order.

#include "checkpoint/storage/shard_writer.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include "checkpoint/storage/in_parallel.hpp"
#include "lib/base/assert.hpp"
#include "lib/base/crc32c.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::array<std::byte, data_alignment> zeros{};
constexpr std::uint64_t chunk_bytes = 1u << 20;  // in one write: what was just summed or copied is still in the cache

/// Aligned memory of one chunk, used again and again: fresh pages would cost more than the copy.
class ChunkBuffers {
 public:
  explicit ChunkBuffers(std::uint64_t bytes) : bytes_{bytes} {}
  ChunkBuffers(const ChunkBuffers&) = delete;
  ChunkBuffers& operator=(const ChunkBuffers&) = delete;
  ~ChunkBuffers() {
    for (std::byte* buffer : free_) ::operator delete(buffer, alignment);
  }
  /// Throws std::bad_alloc.
  std::byte* take() {
    const std::lock_guard lock{mutex_};
    if (free_.empty()) {
      free_.reserve(++count_);  // so that giving back takes no memory
      return static_cast<std::byte*>(::operator new(bytes_, alignment));
    }
    std::byte* const buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  void give_back(std::byte* buffer) {
    const std::lock_guard lock{mutex_};
    free_.push_back(buffer);
  }

 private:
  static constexpr std::align_val_t alignment{WritableFile::direct_alignment};
  const std::uint64_t bytes_;
  std::mutex mutex_;
  std::vector<std::byte*> free_;
  std::size_t count_ = 0;
};

class Writing {
 public:
  Writing(WritableFile& file, const ShardLayout& layout, const ShardWriting& how)
      : file_{file},
        layout_{layout},
        how_{how},
        header_bytes_{layout.header.size()},
        end_{layout.part.file.table_offset},
        block_{layout.part.file.block_bytes},
        chunk_{std::max(chunk_bytes, block_)},
        buffers_{chunk_},
        crcs_(block_count(layout.part.file)) {
    for (std::uint64_t at = header_bytes_; const Segment& segment : layout.data) {
      if (size_of(segment) == 0) continue;
      if (!runs_.empty() && follows(runs_.back().segment, segment)) {
        ByteSpan& before = runs_.back().segment.bytes;
        before = {before.data(), before.size() + segment.bytes.size()};
      } else {
        runs_.push_back({at, segment});
      }
      at += size_of(segment);
    }
    ELRUN_ASSERT(chunk_ % block_ == 0 && chunk_ % WritableFile::direct_alignment == 0 && header_bytes_ % data_alignment == 0);
  }

  Result<PartRecord> write() {
    ELRUN_TRY(file_.reserve(Bytes{layout_.part.file.bytes}));
    in_parallel((end_ + chunk_ - 1) / chunk_, how_.threads, [this](std::size_t i) { write_chunk(i); });
    if (failure_) return *std::move(failure_);
    PartRecord part = layout_.part;
    BlockTable table{block_, std::move(crcs_), end_};
    const ByteVector sums = table.finish(part.file.header_crc);
    part.file.table_crc = crc32c(sums);
    part.file.file_crc = crc32c_combine(table.whole(), part.file.table_crc, sums.size());
    ELRUN_TRY(file_.write_at(part.file.table_offset, sums));
    ELRUN_TRY(file_.write_at(0, layout_.header));
    ELRUN_TRY(file_.sync());
    ELRUN_TRY(file_.close());
    return part;
  }

 private:
  /// Of the data, from `at` in the file on.
  struct Run {
    std::uint64_t at = 0;
    Segment segment{};
  };
  static std::uint64_t size_of(const Segment& segment) { return segment.bytes.size() + segment.zeros; }
  static bool follows(const Segment& before, const Segment& segment) {
    return before.zeros == 0 && segment.zeros == 0 && before.bytes.data() + before.bytes.size() == segment.bytes.data();
  }

  void write_chunk(std::size_t number) {
    if (has_failed_) return;
    const std::uint64_t begin = number * chunk_, end = std::min(end_, begin + chunk_), from = std::clamp(header_bytes_, begin, end);
    if (from > begin) sum(begin, ByteSpan{layout_.header}.subspan(begin, from - begin));
    std::byte* copy = nullptr;
    try {
      if (file_.likes_aligned()) write_at_once(from, end, copy);
      else each_piece(from, end, [this](std::uint64_t at, ByteSpan bytes) { write_data(at, bytes); });
    } catch (const std::bad_alloc&) {
      note(std::move(no_memory_));
    }
    if (copy != nullptr) buffers_.give_back(copy);
  }
  /// Bytes [from, end) of the file, all of them data: from where they are, or by way of `copy`.
  void write_at_once(std::uint64_t from, std::uint64_t end, std::byte*& copy) {
    if (from == end) return;
    const Run& run = *run_of(from);
    if (run.segment.zeros == 0 && run.at + run.segment.bytes.size() >= end) {
      const ByteSpan there = run.segment.bytes.subspan(from - run.at, end - from);
      const bool is_aligned = reinterpret_cast<std::uintptr_t>(there.data()) % WritableFile::direct_alignment == 0;
      if (is_aligned || there.size() < WritableFile::direct_bytes_min) return write_data(from, there);
    }
    copy = buffers_.take();
    each_piece(from, end, [&](std::uint64_t at, ByteSpan bytes) { std::memcpy(copy + (at - from), bytes.data(), bytes.size()); });
    write_data(from, {copy, static_cast<std::size_t>(end - from)});
  }
  void write_data(std::uint64_t offset, ByteSpan data) {
    if (has_failed_) return;
    sum(offset, data);
    if (how_.pace)
      if (auto waited = how_.pace(data.size()); !waited.ok()) return note(std::move(waited).failure());
    if (auto written = file_.write_at(offset, data); !written.ok()) note(std::move(written).failure());
  }
  void note(Failure&& why) {
    const std::lock_guard lock{mutex_};
    if (!failure_) failure_ = std::move(why);  // the first is the cause
    has_failed_ = true;
  }

  [[nodiscard]] std::vector<Run>::const_iterator run_of(std::uint64_t at) const {
    return std::upper_bound(runs_.begin(), runs_.end(), at, [](std::uint64_t a, const Run& r) { return a < r.at; }) - 1;
  }
  template <class Call>
  void each_piece(std::uint64_t from, std::uint64_t end, const Call& call) const {
    if (from == end) return;
    auto run = run_of(from);
    for (std::uint64_t at = from; at < end; ++run) {
      const std::uint64_t stop = std::min(end, run->at + size_of(run->segment));
      if (run->segment.zeros == 0) call(at, run->segment.bytes.subspan(at - run->at, stop - at));
      for (; run->segment.zeros != 0 && at < stop; at += zeros.size())
        call(at, ByteSpan{zeros}.first(std::min<std::uint64_t>(zeros.size(), stop - at)));
      at = stop;
    }
  }

  /// Of one chunk from one thread, in the order of the file.
  void sum(std::uint64_t at, ByteSpan bytes) {
    while (!bytes.empty()) {
      const ByteSpan now = bytes.first(std::min<std::uint64_t>(bytes.size(), block_ - at % block_));
      crcs_[at / block_] = crc32c(now, crcs_[at / block_]);
      at += now.size();
      bytes = bytes.subspan(now.size());
    }
  }

  WritableFile& file_;
  const ShardLayout& layout_;
  const ShardWriting& how_;
  const std::uint64_t header_bytes_, end_, block_, chunk_;
  ChunkBuffers buffers_;
  std::vector<Run> runs_;
  std::vector<std::uint32_t> crcs_;  // by block, each written by one thread
  std::mutex mutex_;
  std::optional<Failure> failure_;
  Failure no_memory_{Code::exhausted, Remedy::retry, "there is no memory on the host to write a checkpoint from"};  // while there is some
  std::atomic<bool> has_failed_{false};
};

}  // namespace

Result<PartRecord> write_shard(Tier& tier, const std::string& directory, const ShardLayout& layout, const ShardWriting& how) {
  const std::string name = name_in(directory, layout.part.file.name);
  ELRUN_TRY(decode_shard_header(layout.header, layout.part.file.bytes, tier.where(name)));
  ELRUN_TRY_ASSIGN(auto file, tier.create(name));
  auto part = Writing{*file, layout, how}.write();
  if (!part.ok()) {
    file.reset();
    (void)tier.discard(name);
  }
  return part;
}

}  // namespace elrun::inline v0
