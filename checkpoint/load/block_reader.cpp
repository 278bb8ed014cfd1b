#include "checkpoint/load/block_reader.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::uint64_t read_bytes =
    1u << 20;  // in one call, or one block: what was just read is still in the cache when it is summed and copied
constexpr std::size_t open_files_max = 64;

}  // namespace

std::vector<Window> windows_of(std::span<const FileRange> ranges, std::uint64_t block, std::uint64_t bytes) {
  ELRUN_ASSERT(bytes >= block);
  std::vector<Window> windows;
  std::uint64_t left = 0;  // of the last one
  for (FileRange rest : ranges)
    while (rest.bytes > 0) {
      if (left < std::min(rest.bytes, block)) windows.emplace_back(), left = bytes;
      const std::uint64_t now = rest.bytes <= left ? rest.bytes : left / block * block;
      windows.back().push_back({rest.file, rest.offset, now});
      rest.offset += now, rest.bytes -= now, left -= now;
    }
  return windows;
}

BlockReader::BlockReader(Tier& tier, const std::string& directory, const Manifest& manifest, std::vector<Window> shared,
                         std::vector<Window> alone, Got got, LoadLimits limits)
    : manifest_{manifest}, got_{std::move(got)}, shards_{tier, directory, manifest} {
  shared_ = items_of(shared, true);
  alone_ = items_of(alone, false);
  for (std::size_t w = 0; w < window_bytes_.size(); ++w) buffers_[w % 2].grow(window_bytes_[w]);
  const std::size_t useful = std::min<std::size_t>(limits.readers, shared_.size() + alone_.size());
  threads_.reserve(useful);
  try {
    while (threads_.size() < useful) threads_.push_back(quiet_thread([this] { work(); }));
  } catch (const std::exception&) {  // those that could be started do the work, else the calling thread
  }
}

BlockReader::~BlockReader() {
  {
    const std::lock_guard lock{mutex_};
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

BlockReader::Items BlockReader::items_of(const std::vector<Window>& windows, bool is_shared) {
  Items items;
  for (std::size_t w = 0; w < windows.size(); ++w) {
    std::uint64_t at = 0;
    const std::size_t before = items.size();
    for (FileRange rest : windows[w])
      while (rest.bytes > 0) {
        const std::uint64_t now = std::min(rest.bytes, std::max(read_bytes, manifest_.files[rest.file].block_bytes));
        items.push_back({{rest.file, rest.offset, now}, is_shared ? std::optional{w} : std::nullopt, is_shared ? at : 0});
        rest.offset += now, rest.bytes -= now, at += now;
      }
    if (!is_shared) {
      alone_items_.push_back(items.size());
      continue;
    }
    window_bytes_.push_back(at);
    missing_.push_back(items.size() - before);
  }
  return items;
}

/// An item that may be read now. The lock is held.
std::optional<BlockReader::Item> BlockReader::take() {
  if (stop_ || !result_.ok()) return std::nullopt;
  Items* from = nullptr;
  if (!shared_.empty() && *shared_.front().window < in_use_ + 2) from = &shared_;
  else if (!alone_.empty()) from = &alone_;
  if (from == nullptr) return std::nullopt;
  const Item item = from->front();
  from->pop_front();
  ++busy_;
  return item;
}

void BlockReader::work() {
  AlignedBytes own;
  for (std::unique_lock lock{mutex_};;) {
    std::optional<Item> item;
    changed_.wait(lock, [&] { return stop_ || !result_.ok() || is_done() || (item = take()); });
    if (!item) return;
    lock.unlock();
    read(*item, own);
    lock.lock();
  }
}

void BlockReader::read(const Item& item, AlignedBytes& own) {
  auto done = [&]() -> Result<void> {
    try {
      if (!item.window) own.grow(item.range.bytes);
      return try_to_read(item, (item.window ? buffers_[*item.window % 2] : own).bytes().subspan(item.at, item.range.bytes));
    } catch (const std::bad_alloc&) {
      return Failure{Code::exhausted, Remedy::retry, "there is no memory on the host to read a checkpoint"};
    }
  }();
  {
    const std::lock_guard lock{mutex_};
    --busy_;
    if (item.window) --missing_[*item.window];
    else ++alone_read_;
    if (!done.ok() && result_.ok()) result_ = std::move(done);
  }
  changed_.notify_all();
}

Result<void> BlockReader::try_to_read(const Item& item, std::span<std::byte> out) {
  ELRUN_TRY_ASSIGN(const auto reader, shards_.open(item.range.file));
  ELRUN_TRY(reader->read_blocks(item.range.offset, out));
  got_(item.range, out);
  return {};
}

Result<std::shared_ptr<const ShardReader>> OpenShards::open(std::uint32_t file) {
  std::shared_ptr<Open> slot;
  {
    const std::lock_guard lock{mutex_};
    auto [at, is_new] = open_.try_emplace(file);
    if (is_new) {
      at->second = std::make_shared<Open>();
      opened_.push_back(file);
    }
    slot = at->second;
    if (opened_.size() > open_files_max) open_.erase(opened_.front()), opened_.pop_front();
  }
  const std::lock_guard lock{slot->mutex};
  if (slot->reader == nullptr) {
    ELRUN_TRY_ASSIGN(ShardReader opened, ShardReader::open(tier_, directory_, manifest_.files[file]));
    slot->reader = std::make_shared<const ShardReader>(std::move(opened));
  }
  return slot->reader;
}

ByteSpan BlockReader::window(std::size_t number) {
  std::unique_lock lock{mutex_};
  in_use_ = number;
  if (threads_.empty()) {
    while (missing_[number] > 0 && result_.ok()) {
      const std::optional<Item> item = take();  // of this window: windows come in order
      lock.unlock();
      AlignedBytes none;
      read(*item, none);
      lock.lock();
    }
  } else {
    changed_.notify_all();
    changed_.wait(lock, [&] { return missing_[number] == 0 || (!result_.ok() && busy_ == 0); });
  }
  return ByteSpan{buffers_[number % 2].bytes()}.first(window_bytes_[number]);
}

void BlockReader::read_alone(std::size_t windows) {
  std::unique_lock lock{mutex_};
  in_use_ = window_bytes_.size();
  const std::size_t wanted = windows == 0 || alone_items_.empty() ? 0 : alone_items_[std::min(windows, alone_items_.size()) - 1];
  if (!threads_.empty()) {
    changed_.notify_all();
    changed_.wait(lock, [&] { return alone_read_ >= wanted || (!result_.ok() && busy_ == 0); });
    return;
  }
  AlignedBytes own;
  while (alone_read_ < wanted && result_.ok()) {
    const std::optional<Item> item = take();
    lock.unlock();
    read(*item, own);
    lock.lock();
  }
}

Result<void> BlockReader::result() {
  const std::lock_guard lock{mutex_};
  return result_;
}

}  // namespace elrun::inline v0
