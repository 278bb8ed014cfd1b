#pragma once
/// \file SharedWorld: the file through which the ranks of one communicator meet, in one process or several. Words that ranks read, and for each ordered pair of
/// ranks a mailbox that holds one message.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace fakenccl {

inline constexpr int ranks_max = 16;

/// One message from one rank to another. The sender writes `posted` and the text, the receiver `wanted` and `taken`. All count messages.
struct Mailbox {
  std::atomic<std::uint64_t> wanted, posted, taken;
  std::atomic<std::uint32_t> sender_came,
      receiver_came;  ///< To a first send, and to its receive: with both the two are connected, for good.
  char text[1000];    ///< The sender's calls, in words: what the receiver expects has to be the same.
};

struct RankWords {
  std::atomic<std::uint32_t> joined, finalized;
  std::atomic<std::uint64_t> splits;  ///< How many it has begun; the colors of the last.
  int color, key;
  char device[32];
};

class SharedWorld {
 public:
  /// Makes or opens the file. Null: the system refused.
  static std::shared_ptr<SharedWorld> open(const std::string& path, int ranks, std::uint64_t slot);
  ~SharedWorld();
  SharedWorld(const SharedWorld&) = delete;
  SharedWorld& operator=(const SharedWorld&) = delete;

  [[nodiscard]] RankWords& rank(int rank) const;
  [[nodiscard]] Mailbox& mailbox(int from, int to) const;
  [[nodiscard]] std::byte* data(int from, int to) const;
  [[nodiscard]] bool all_joined() const;
  [[nodiscard]] bool all_finalized() const;
  /// Nobody else can join: the file's name goes.
  void forget_name();

 private:
  SharedWorld(std::string path, int ranks, std::uint64_t slot) : path_{std::move(path)}, ranks_{ranks}, slot_{slot} {}
  const std::string path_;
  const int ranks_;
  const std::uint64_t slot_;
  std::byte* map_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace fakenccl
