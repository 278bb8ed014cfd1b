#pragma once
/// \file Process groups of several ranks in one process, each on a thread of its own, and what their tests have in common.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <elrun/philox.hpp>
#include <elrun/process_group.hpp>

#include "tests/support/local_world.hpp"

namespace elrun::test {

/// Catch2 counts from one thread: ranks leave their complaints here.
class Complaints {
 public:
  void operator()(bool rule, const std::string& text) {
    if (rule) return;
    const std::lock_guard lock{mutex_};
    texts_ += text + "\n";
  }
  void must(const Result<void>& result, const std::string& what) {
    (*this)(result.ok(), what + ": " + (result.ok() ? "" : message(result.failure())));
  }
  [[nodiscard]] std::string all() {
    const std::lock_guard lock{mutex_};
    return texts_;
  }

 private:
  std::mutex mutex_;
  std::string texts_;
};

inline const GroupOptions patient{.connect = 30s, .collective = 60s};

/// How the ranks of a world reach each other: two that both leave it open do through memory, all others over TCP.
using Transports = std::vector<Transport>;
inline Transports any_transports(Rng& rng, std::uint32_t world) {
  Transports transports(world, rng.chance(0.5) ? Transport::automatic : Transport::tcp);
  if (rng.chance(0.5)) std::ranges::generate(transports, [&] { return rng.chance(0.3) ? Transport::tcp : Transport::automatic; });
  return transports;
}

/// Every rank joins, and runs its part on a thread of its own.
template <class Body>
std::string run_group(std::uint32_t world, Body body, const Transports& transports = {}) {
  LocalWorld local{world};
  Complaints complaints;
  local.run([&](std::uint32_t rank, Session& session) {
    GroupOptions options = patient;
    if (!transports.empty()) options.transport = transports[rank];
    auto group = ProcessGroup::join(session, options);
    if (!group.ok()) return complaints(false, message(group.failure()));
    body(rank, *group, complaints);
  });
  return complaints.all();
}

/// Where a rank keeps what it gives and gets: in a buffer that its peers read in place, or in memory of its own.
class Room {
 public:
  Room(ProcessGroup& group, Rng rng, Bytes size, Complaints& complaints) : rng_{rng} {
    if (!rng_.chance(0.6)) return;
    buffer_.emplace(SharedBuffer::make(size).value());
    complaints.must(group.share(*buffer_), "share");
    if (rng_.chance(0.2)) complaints.must(group.share(*buffer_), "share again");
  }
  /// At any place that suits a T, most of them in the buffer.
  template <class T>
  std::span<T> take(std::size_t count) {
    const std::size_t begin = (used_ + rng_.below(100) * sizeof(T) + alignof(T) - 1) / alignof(T) * alignof(T), bytes = count * sizeof(T);
    if (!buffer_ || bytes > buffer_->bytes().size() || begin > buffer_->bytes().size() - bytes || rng_.chance(0.2)) {
      own_.push_back(std::make_unique<std::byte[]>(bytes + sizeof(T)));
      return {reinterpret_cast<T*>(own_.back().get()), count};
    }
    used_ = begin + bytes;
    return {reinterpret_cast<T*>(buffer_->bytes().data() + begin), count};
  }

 private:
  Rng rng_;
  std::optional<SharedBuffer> buffer_;
  std::size_t used_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> own_;
};

inline std::byte byte_at(std::uint64_t seed, std::uint32_t from, std::uint32_t to, std::size_t i) {
  return static_cast<std::byte>(seed * 7 + from * 31 + to * 101 + i * 3 + (i >> 8));
}

}  // namespace elrun::test
