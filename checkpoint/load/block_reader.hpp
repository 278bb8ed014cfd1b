#pragma once
/// \file Shell: BlockReader reads ranges of shards, several at once, and checks every block. What others wait for comes first, in windows of
/// bounded memory, one ahead of the one that is sent on; what is for this rank alone is read meanwhile.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "checkpoint/format/read_share.hpp"
#include "checkpoint/storage/shard_file.hpp"

namespace elrun::inline v0 {

/// Memory that storage can be read into directly.
class AlignedBytes {
 public:
  /// Contents unspecified afterwards. Throws std::bad_alloc.
  void grow(std::uint64_t bytes) {
    if (bytes <= size_) return;
    data_.reset();
    size_ = (bytes + alignment - 1) / alignment * alignment;
    data_.reset(static_cast<std::byte*>(::operator new (size_, std::align_val_t{alignment})));
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_.get(), size_}; }

 private:
  static constexpr std::size_t alignment = 4096;
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete (bytes, std::align_val_t{alignment}); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::uint64_t size_ = 0;
};

struct LoadLimits {
  unsigned readers = 0;  ///< Threads that read; 0: the calling one does.
  std::uint64_t window_bytes =
      32u
      << 20;  ///< Of what is read for others, of which there are two in memory, and between two looks at how the others do. At least a block.
};

/// Ranges that are read into one buffer, one behind the other.
using Window = std::vector<FileRange>;
/// `ranges` in order, in windows of at most `bytes`; cut where blocks begin.
[[nodiscard]] std::vector<Window> windows_of(std::span<const FileRange> ranges, std::uint64_t block, std::uint64_t bytes);

/// The newest of a checkpoint's shards that were opened, a bounded number of them. Any thread: the first who needs a file opens it, and only those who need that one wait.
class OpenShards {
 public:
  /// All outlive it.
  OpenShards(Tier& tier, const std::string& directory, const Manifest& manifest)
      : tier_{tier}, directory_{directory}, manifest_{manifest} {}
  Result<std::shared_ptr<const ShardReader>> open(std::uint32_t file);

 private:
  struct Open {
    std::mutex mutex;
    std::shared_ptr<const ShardReader> reader;
  };
  Tier& tier_;
  const std::string& directory_;
  const Manifest& manifest_;
  std::mutex mutex_;
  std::map<std::uint32_t, std::shared_ptr<Open>> open_;
  std::deque<std::uint32_t> opened_;  // the oldest first
};

/// Not thread-safe. `got` is called for all ranges that were read and are whole, by any thread, in any order, with their bytes. The destructor waits
/// for reads that are under way. More fields than 15: what is to be read, how far each window is, and the threads that read, most of it under one lock.
class BlockReader {
 public:
  using Got = std::function<void(const FileRange& range, ByteSpan bytes)>;
  /// What it is given outlives it.
  BlockReader(Tier& tier, const std::string& directory, const Manifest& manifest, std::vector<Window> shared, std::vector<Window> alone,
              Got got, LoadLimits limits);
  ~BlockReader();
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;

  /// All of shared window `number`. Windows are asked for in order; the bytes stay until the next one is. After a failure the bytes of a window are
  /// there, and unspecified.
  ByteSpan window(std::size_t number);
  /// Waits until `windows` windows of what is for this rank alone, or all of them, are read, or something has failed. After the last shared window.
  void read_alone(std::size_t windows);
  /// The first failure.
  [[nodiscard]] Result<void> result();

 private:
  struct Item {
    FileRange range;
    std::optional<std::size_t> window{};  // of the shared ones; nothing: it is for this rank alone
    std::uint64_t at = 0;                 // in the window
  };
  using Items = std::deque<Item>;
  [[nodiscard]] Items items_of(const std::vector<Window>& windows, bool is_shared);
  void work();
  std::optional<Item> take();
  [[nodiscard]] bool is_done() const { return shared_.empty() && alone_.empty(); }
  void read(const Item& item, AlignedBytes& own);
  Result<void> try_to_read(const Item& item, std::span<std::byte> out);

  const Manifest& manifest_;
  const Got got_;
  OpenShards shards_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Items shared_, alone_;                     // not begun
  std::vector<std::uint64_t> window_bytes_;  // by shared window
  std::vector<std::size_t> missing_;         // items, likewise
  std::vector<std::size_t> alone_items_;     // in the first windows of what is for this rank alone, by their number
  std::size_t alone_read_ = 0;               // items
  std::size_t in_use_ = 0;                   // the window that was asked for
  std::size_t busy_ = 0;                     // items that are being read
  AlignedBytes buffers_[2];
  Result<void> result_{};
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace elrun::inline v0
