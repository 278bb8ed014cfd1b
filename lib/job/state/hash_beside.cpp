#include "lib/job/state/hash_beside.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "lib/base/assert.hpp"
#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t block = 4 << 20;         // bytes between two looks at whether anybody still needs the hash
constexpr std::size_t at_once_most = 1 << 20;  // bytes
constexpr auto look = std::chrono::milliseconds{10};

std::size_t total_bytes(std::span<const HashedRun> runs) {
  std::size_t bytes = 0;
  for (const HashedRun& run : runs) bytes += run.bytes.size();
  return bytes;
}

}  // namespace

std::uint64_t hash_of(Memory& memory, std::span<const HashedRun> runs) {
  std::uint64_t sum = 0;
  for (const HashedRun& run : runs) sum += memory.hash(run.bytes, run.first_word, 0);
  return sum;
}

void HashBeside::begin(Memory& memory, std::vector<HashedRun> runs) {
  give_up();
  begun_ = true;
  if (memory.device().kind != DeviceKind::host || total_bytes(runs) <= at_once_most) {
    hash_ = hash_of(memory, runs);
    return;
  }
  const auto work = [this, &memory, runs = std::move(runs)] {
    std::uint64_t sum = 0;
    for (const HashedRun& run : runs)
      for (std::size_t at = 0; at < run.bytes.size() && !stopped_; at += block)
        sum += memory.hash(run.bytes.subspan(at, std::min(block, run.bytes.size() - at)), run.first_word + at / sizeof(std::uint64_t), 0);
    const std::lock_guard lock{mutex_};
    hash_ = sum;
    made_.notify_all();
  };
  try {
    owner_ = ::getpid();
    thread_ = quiet_thread(work);
  } catch (const std::system_error&) {  // no thread: it is made here
    work();
  }
}

void HashBeside::finish() { join_or_leak(thread_, owner_); }

std::optional<std::uint64_t> HashBeside::result(const std::function<bool()>& over) {
  ELRUN_ASSERT(begun_);
  std::unique_lock lock{mutex_};
  while (!made_.wait_for(lock, look, [this] { return hash_.has_value(); }))
    if (over()) return {};
  return hash_;
}

void HashBeside::give_up() {
  stopped_ = true;
  finish();
  stopped_ = false, begun_ = false;
  hash_.reset();
}

}  // namespace elrun::inline v0
