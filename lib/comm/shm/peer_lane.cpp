#include "lib/comm/shm/peer_lane.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/pass_descriptors.hpp"

namespace elrun::inline v0 {

Result<void> PeerLane::open_post() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return from_errno(errno, "make a socket for shared memory");
  to_it_ = Fd{ends[0]};
  its_end_ = Fd{ends[1]};
  return {};
}

Result<void> PeerLane::show(std::span<const std::byte> words, int file) const {
  auto sent = send_with(to_it_.get(), words, std::array{file});
  if (sent.ok() || is_lost()) return {};
  return Failure{.code = Code::exhausted,
                 .remedy = Remedy::fix_config,
                 .what = fmt::format("rank {} cannot be shown another shared buffer: {}", rank_.value(), sent.failure().what),
                 .peer = rank_};
}

Result<void> PeerLane::attach(const Membership& me, std::size_t index, std::size_t local, Fd file, Bytes size, Fd doorbell, Fd post) {
  if (!post) return Failure{Code::protocol, Remedy::abort_group, "shared memory that was not expected"};
  ELRUN_TRY(region_.attach({.owner = {me.generation, rank_, me.world}, .local = local, .reader = index}, std::move(file), size,
                           std::move(doorbell)));
  buffers_ = PeerBuffers{rank_, std::move(post)};
  return {};
}

Result<std::span<const std::byte>> PeerLane::head(const CallLabel& label) {
  const std::uint64_t ahead = region_.lane().posted.load() - taken_;
  const Chunk chunk = region_.lane().chunks[taken_ % chunks_max];
  const SharedMemory* memory = &region_.memory();
  reads_in_place_ = chunk.buffer != 0;
  if (reads_in_place_) {
    ELRUN_TRY_ASSIGN(memory, buffers_.find(chunk.buffer));
  }
  if (ahead > chunks_max || chunk.length == 0 || chunk.offset > memory->size() || chunk.length > memory->size() - chunk.offset) {
    return Failure{.code = Code::protocol,
                   .remedy = Remedy::abort_group,
                   .what = fmt::format("rank {} posted an invalid chunk", rank_.value()),
                   .peer = rank_};
  }
  if (chunk.call != call_word(call_, label) || chunk.total != total_) return not_of_call(chunk, label);
  return std::span<const std::byte>{memory->data() + chunk.offset, chunk.length};
}

Result<const std::byte*> PeerLane::head_of(std::size_t size, const CallLabel& label) {
  ELRUN_TRY_ASSIGN(const std::span<const std::byte> first, head(label));
  const Chunk chunk = region_.lane().chunks[taken_ % chunks_max];
  ELRUN_TRY_ASSIGN(const SharedMemory* const memory, buffers_.find(chunk.buffer));
  const auto offset = static_cast<std::size_t>(first.data() - memory->data());
  if (first.data() < memory->data() || offset > memory->size() || memory->size() - offset < size)
    return differing(chunk.total, call_of(chunk.call));
  return first.data();
}

Result<void> PeerLane::still_valid() const {
  if (!reads_in_place_) return {};
  fence();
  if (!region_.is_withdrawn()) return {};
  return Failure{.code = Code::peer_lost,
                 .remedy = Remedy::rejoin,
                 .what = fmt::format("rank {} has given up the call", rank_.value()),
                 .peer = rank_};
}

Failure PeerLane::not_of_call(const Chunk& chunk, const CallLabel& label) const {
  if (const std::uint16_t theirs = label_of(chunk.call); theirs != label.number) return differing_labels(rank_, theirs, label);
  if (const CallKind theirs = kind_of(chunk.call); call_of(chunk.call) == call_ && theirs != label.kind)
    return differing_kinds(rank_, theirs, label.kind);
  return differing(chunk.total, call_of(chunk.call));
}

Failure PeerLane::differing(std::uint64_t sent, std::uint64_t in_call) const {
  return {.code = Code::protocol,
          .remedy = Remedy::abort_group,
          .what = fmt::format("rank {} sent {} bytes in its call {} where {} bytes belong in call {}: the ranks make different calls",
                              rank_.value(), sent, in_call, total_, call_),
          .peer = rank_};
}

}  // namespace elrun::inline v0
