/// The idea: every rank has a region (see region.hpp) that it alone writes and its peers read: for each peer a lane (a ring of references
/// to chunks in the region, and two counters) and slots, where bytes wait that others are to read. Whoever has bytes for
/// others copies them into a slot once, whatever the number of readers, and posts the chunk in their lanes; a reader
/// copies out, or folds straight from the slot, and raises its own counter of chunks taken, which the writer reads. No
/// word is written by two processes, so there is no lock, and nothing that a dead or thawed process could leave torn.
///
/// The copy into the slot costs little: it is a read of the source, which comes once from memory for all readers (for what
/// this rank gives to itself too, when it is the same bytes), and the slots stay in the second cache. What is dear in large
/// calls is memory; so their targets are written past the caches.
///
/// A buffer that was shared is lent instead (see lent.hpp): the chunk that is posted names the buffer, and peers copy or fold out of it
/// through mappings of their own. Whoever lends waits at the end of its call until all have taken what they were lent. Where
/// its call fails before that, its owner may write there again while a peer still reads: so it first withdraws, by a word
/// in its region, and who reads looks at that word after it has read, before it makes any use of it (as with a seqlock).
///
/// Who finds nothing to do says so in its region (`asleep`) and waits for its doorbell; who has moved a counter rings the
/// doorbell of a peer that is asleep. Both first write, then read the other's word, in one total order: one of them sees the
/// other. The communication thread rings too, when a peer's connection ends or the generation is over.
///
/// A reduction goes by the rounds of ReduceSchedule. In a round each rank posts the others' blocks of the next round, folds
/// its own of this one, posts the result, and reads the others' results of the round before. Each step waits only for
/// steps that stand earlier in this order, so waiting for one peer after the other cannot close a circle, as long as the
/// slots suffice for what may be under way: the blocks of two rounds and the results of two.

#include "lib/comm/shm/lanes.hpp"

#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <thread>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/failure.hpp"
#include "lib/comm/copy.hpp"
#include "lib/comm/cursor.hpp"
#include "lib/comm/fold.hpp"
#include "lib/comm/schedule.hpp"
#include "lib/comm/shm/buffer_registry.hpp"
#include "lib/comm/shm/descriptors.hpp"
#include "lib/comm/shm/doorbell.hpp"
#include "lib/comm/shm/region.hpp"
#include "lib/comm/shm/shared_buffer.hpp"
#include "lib/comm/shm/shared_memory.hpp"
#include "lib/link/roll_call.hpp"

namespace elrun::inline v0 {
namespace {

using SendPiece = std::span<const std::byte>;
using ReceivePiece = std::span<std::byte>;

constexpr Bytes slot_most = 64_KiB;  // so that a region stays in the second cache, and readers begin early
constexpr Bytes slot_least = 16_KiB;
constexpr Bytes slots_max = 32_MiB;         // of one region, as long as slots can become smaller
constexpr std::size_t step_most = 1 << 20;  // read at once out of what is lent: then one looks whether all is over
constexpr std::size_t results_posted = 8;   // chunks of one rank's results, about, where they are lent
constexpr int spins_alone = 2000;           // looks before sleeping, where every rank can have a core
constexpr int yields_crowded = 4;           // and where they cannot: the peer may need this very core

int cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

class Lanes::State {
 public:
  State(const Membership& me, std::vector<Rank> local, SharedMemory region, Doorbell doorbell, std::size_t slot_size, std::size_t slots)
      : me_{me},
        local_{std::move(local)},
        region_{std::move(region)},
        doorbell_{std::move(doorbell)},
        slot_size_{slot_size},
        peers_(local_.size() - 1),
        inputs_(me_.world.value()) {
    header_ = new (region_.data()) RegionHeader{};
    header_->size = region_.size();
    header_->generation = me_.generation.number;
    header_->lineage = me_.generation.lineage.bits;
    header_->rank = me_.rank.value();
    header_->world = me_.world.value();
    header_->local = static_cast<std::uint32_t>(local_.size());
    for (std::size_t i = 0; i < local_.size(); ++i) new (lane_at(region_.data(), i)) Lane{};
    header_->magic = region_magic;
    const std::size_t mine = index_of(me_.rank).value();
    // Beginning after this rank, so that not everybody turns to the same peer first.
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const std::size_t index = (mine + 1 + i) % local_.size();
      peers_[i].rank = local_[index];
      peers_[i].out = lane_at(region_.data(), index);
    }
    for (std::size_t i = 0; i < slots; ++i) {
      slots_.push_back({.offset = slots_offset(local_.size()) + i * slot_size_, .holders = {}});
      slots_.back().holders.reserve(peers_.size());
    }
    streams_.resize(peers_.size());
    for (Stream& stream : streams_) stream.to.reserve(peers_.size());
    everybody_.reserve(peers_.size());
    const bool alone = cores() >= static_cast<int>(local_.size());
    spins_ = alone ? spins_alone : 0;
    yields_ = alone ? 0 : yields_crowded;
  }

  /// Before the first offer.
  Result<void> open_posts() {
    for (Peer& peer : peers_) {
      std::array<int, 2> ends{};
      if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
        return from_errno(errno, "make a socket for shared memory");
      peer.to_it = Fd{ends[0]};
      peer.its_end = Fd{ends[1]};
    }
    return {};
  }

  Offer offer(Rank whom) const {
    const auto peer = std::ranges::find(peers_, whom, &Peer::rank);
    return {region_.file(), doorbell_.file(), peer == peers_.end() ? -1 : peer->its_end.get(), Bytes{region_.size()}};
  }

  Result<void> share(const SharedBuffer& buffer) {
    return lent_.share(buffer.state_, buffer.state_->memory(), [&](std::span<const std::byte> words, int file) -> Result<void> {
      for (const Peer* const peer : everybody_) {
        auto sent = send_with(peer->to_it.get(), words, std::array{file});
        if (sent.ok() || peer->lost.load()) continue;
        return Failure{.code = Code::exhausted,
                       .remedy = Remedy::fix_config,
                       .what = fmt::format("rank {} cannot be shown another shared buffer: {}", peer->rank.value(), sent.failure().what),
                       .peer = peer->rank};
      }
      return {};
    });
  }

  Result<void> attach(Rank whom, Fd file, Bytes size, Fd doorbell, Fd post) {
    Peer* const peer = find(whom);
    if (peer == nullptr || peer->view || !doorbell || !post)
      return Failure{Code::protocol, Remedy::abort_group, "shared memory that nobody expected"};
    if (size.value() < slots_offset(local_.size()))
      return Failure{Code::protocol, Remedy::abort_group, "shared memory without room for its lanes"};
    ELRUN_TRY_ASSIGN(SharedMemory view, SharedMemory::view(std::move(file), size));
    const auto* const header = reinterpret_cast<const RegionHeader*>(view.data());
    if (header->magic != region_magic || header->size != size.value() || header->rank != whom.value() ||
        header->world != me_.world.value() || header->local != local_.size()) {
      return Failure{Code::protocol, Remedy::abort_group, fmt::format("shared memory that is not rank {}'s", whom.value())};
    }
    if (header->generation != me_.generation.number || header->lineage != me_.generation.lineage.bits) {
      return Failure{Code::refused, Remedy::abort_group,
                     fmt::format("shared memory of generation {}, which is not {}", header->generation, to_string(me_.generation))};
    }
    peer->header = header;
    peer->in = reinterpret_cast<const Lane*>(lane_at(view.data(), index_of(me_.rank).value()));
    peer->doorbell.emplace(std::move(doorbell));
    peer->shown = ShownBuffers{whom, std::move(post)};
    peer->view = std::move(view);
    everybody_.clear();  // in the order of peers_, whatever the order of attaching
    for (Peer& each : peers_)
      if (each.view) everybody_.push_back(&each);
    return {};
  }

  bool attached(Rank whom) const {
    return std::ranges::any_of(peers_, [&](const Peer& peer) { return peer.rank == whom && peer.view; });
  }

  void lose(Rank whom) noexcept {
    if (Peer* const peer = find(whom)) peer->lost.store(true);
    doorbell_.ring();
  }

  void end() noexcept {
    over_.store(true);
    doorbell_.ring();
  }

  Result<void> transfer(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom, Duration limit,
                        const CallLabel& label) {
    label_ = label;
    return or_withdraw(try_transfer(sends, receives, whom, limit));
  }
  Result<void> reduce(const std::byte* in, std::byte* out, std::size_t count, DType type, ReduceOp op, bool gather, Duration limit,
                      const CallLabel& label) {
    label_ = label;
    return or_withdraw(try_reduce(in, out, count, type, op, gather, limit));
  }

 private:
  // --- transfer ---

  Result<void> try_transfer(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom,
                            Duration limit) {
    const Limit until{Deadline::after(clock_.now(), limit), limit};
    streams_used_ = 0;
    own_ = Cursor<ReceivePiece>{};
    std::uint64_t wanted = Cursor<ReceivePiece>{receives[me_.rank.value()]}.left();
    for (Peer* const peer : everybody_) {
      peer->pending = Cursor<ReceivePiece>{};
      if (whom && peer->rank != *whom) continue;
      ++peer->call;
      peer->pending = Cursor<ReceivePiece>{receives[peer->rank.value()]};
      peer->total = peer->pending.left();
      wanted += peer->total;
      send_by_stream(*peer, sends[peer->rank.value()]);
    }
    const std::span<Stream> streams = std::span{streams_}.first(streams_used_);
    streaming_ = wanted >= streamed_least;
    // First what others can read in place: they do so while this rank copies its own.
    for (Stream& stream : streams)
      while (lent_next(stream) && has_room(stream)) lend_next(stream);
    take_own(sends[me_.rank.value()], receives[me_.rank.value()]);
    for (;;) {
      bool moved = false, open = false;
      for (Peer* const peer : everybody_) {
        if (peer->pending.done()) continue;
        if (available(*peer)) {
          ELRUN_TRY(copy_step(*peer));
          moved = true;
        }
        open = open || !peer->pending.done();
      }
      for (Stream& stream : streams) {
        if (stream.left.done()) continue;
        moved = give(stream) || moved;
        open = open || !stream.left.done();
      }
      if (over_.load()) return over();  // also at the end: peers that heard of it may have reused what was just read
      if (!open) return until_taken(until);
      if (moved) continue;
      ELRUN_TRY(wait(
          until,
          [&] {
            return std::ranges::any_of(everybody_, [&](const Peer* peer) { return !peer->pending.done() && available(*peer); }) ||
                   std::ranges::any_of(streams, [&](const Stream& stream) { return !stream.left.done() && can_give(stream); });
          },
          [&](const Peer& peer) {
            return !peer.pending.done() || std::ranges::any_of(streams, [&](const Stream& stream) {
              return !stream.left.done() && std::ranges::find(stream.to, &peer) != stream.to.end() &&
                     under_way(peer) >= most_under_way(stream);
            });
          }));
    }
  }

  // --- reduction ---

  Result<void> try_reduce(const std::byte* in, std::byte* out, std::size_t count, DType type, ReduceOp op, bool gather, Duration limit) {
    ELRUN_ASSERT(everybody_.size() + 1 == me_.world.value());
    const Limit until{Deadline::after(clock_.now(), limit), limit};
    const std::size_t width = size_of(type);
    const ReduceSchedule schedule{me_.world, count, slot_size_ / width};
    const Range part = part_of(me_.rank, me_.world, count);
    for (Peer* const peer : everybody_) {
      ++peer->call;
      peer->total = count * width;
    }
    const std::optional<LentPlace> lent_in = lent_.place_of({in, count * width}),
                                   lent_out = gather ? lent_.place_of({out, count * width}) : std::nullopt;
    const auto contribute = [&](std::uint64_t round) -> Result<void> {
      for (Peer* const peer : everybody_) {
        const Range theirs = schedule.folded(peer->rank, round);
        if (theirs.size() == 0) continue;
        if (lent_in) {
          ELRUN_TRY(room(std::span{&peer, 1}, until));
          lend(lent_in->after(theirs.begin * width), theirs.size() * width, count * width, std::span{&peer, 1});
          continue;
        }
        ELRUN_TRY_ASSIGN(Slot* const slot, any_slot(std::span{&peer, 1}, until));
        std::memcpy(place(*slot), in + theirs.begin * width, theirs.size() * width);
        post(*slot, theirs.size() * width, count * width, std::span{&peer, 1});
      }
      return {};
    };
    ELRUN_TRY(contribute(0));
    if (lent_in && (lent_out || !gather) && count >= me_.world.value()) {
      ELRUN_TRY_ASSIGN(const bool all, all_lend(until));
      if (all) return reduce_lent({in, out, lent_out, count, type, op}, until);
    }
    for (std::uint64_t round = 0; round < schedule.rounds() + (gather ? 1 : 0); ++round) {
      ELRUN_TRY(contribute(round + 1));
      if (const Range fold = schedule.folded(me_.rank, round); fold.size() > 0) {
        for (Peer* const peer : everybody_) {
          ELRUN_TRY_ASSIGN(const SendPiece theirs, expect(*peer, fold.size() * width, until));
          inputs_[peer->rank.value()] = theirs.data();
        }
        inputs_[me_.rank.value()] = in + fold.begin * width;
        Slot* result = nullptr;
        std::byte* const mine = out + (gather ? fold.begin : fold.begin - part.begin) * width;
        if (lent_out) {
          ELRUN_TRY(room(everybody_, until));
          fold_ranks(inputs_, mine, fold.size(), type, op);
        } else if (gather) {
          ELRUN_TRY_ASSIGN(result, any_slot(everybody_, until));
          fold_ranks(inputs_, place(*result), fold.size(), type, op);
          std::memcpy(mine, place(*result), fold.size() * width);
        } else {
          fold_ranks(inputs_, mine, fold.size(), type, op);
        }
        for (Peer* const peer : everybody_) {
          ELRUN_TRY(still_lent(*peer));
          took(*peer);
        }
        if (lent_out) lend(lent_out->after(fold.begin * width), fold.size() * width, count * width, everybody_);
        else if (gather) post(*result, fold.size() * width, count * width, everybody_);
      }
      if (gather && round > 0) {
        for (Peer* const peer : everybody_) {
          const Range given = schedule.folded(peer->rank, round - 1);
          if (given.size() == 0) continue;
          ELRUN_TRY_ASSIGN(const SendPiece theirs, expect(*peer, given.size() * width, until));
          std::memcpy(out + given.begin * width, theirs.data(), theirs.size());
          ELRUN_TRY(still_lent(*peer));
          took(*peer);
        }
      }
      if (over_.load()) return over();
    }
    return until_taken(until);
  }

  struct Peer {
    Rank rank{};
    Lane* out = nullptr;  // in this rank's region
    SharedMemory view;
    const RegionHeader* header = nullptr;  // in the peer's region, as all that follows
    const Lane* in = nullptr;
    std::optional<Doorbell> doorbell;
    std::atomic<bool> lost{false};
    Fd to_it, its_end;   // through which it is shown buffers
    ShownBuffers shown;  // which it has shown
    std::uint64_t call = 0, posted = 0, taken = 0;
    std::uint64_t lent_until = 0;  // of what was posted, the last that is lent
    std::uint64_t used = 0;        // bytes of the next chunk that were copied already
    bool lends = false;            // the chunk that was looked at last
    std::uint64_t total = 0;       // that belongs to the call from this peer
    Cursor<ReceivePiece> pending;
    ReceivePiece result;  // where pending goes, in a reduction
  };
  struct Holder {
    const Peer* peer = nullptr;
    std::uint64_t until = 0;  // that peer has taken so many chunks
  };
  struct Slot {
    std::size_t offset = 0;
    std::vector<Holder> holders;
  };
  /// Bytes that go to one peer, or the same ones to several.
  struct Stream {
    std::span<const SendPiece> list;
    Cursor<SendPiece> left;
    std::uint64_t total = 0;
    std::vector<Peer*> to;
  };
  struct Limit {
    Deadline at;
    Duration whole;
  };

  // --- reduction where every rank lends ---

  struct Reduction {
    const std::byte* in;
    std::byte* out;
    std::optional<LentPlace> lent_out;  // where all get everything
    std::size_t count;
    DType type;
    ReduceOp op;
  };

  /// What each rank posts first tells everybody whether it lends: all come to the same answer.
  Result<bool> all_lend(const Limit& limit) {
    bool all = true;
    for (Peer* const peer : everybody_) {
      if (!available(*peer))
        ELRUN_TRY(wait(
            limit, [&] { return available(*peer); }, [&](const Peer& other) { return &other == peer; }));
      ELRUN_TRY(head(*peer));
      all = all && peer->in->chunks[peer->taken % chunks_max].buffer != 0;
    }
    return all;
  }

  /// No blocks, and no rounds: each rank folds its whole part out of everybody's memory, then reads the others' results.
  /// What a peer has just written is dear to read while it is in that peer's cache, so the second begins when the first is over.
  Result<void> reduce_lent(const Reduction& call, const Limit& limit) {
    const std::size_t width = size_of(call.type);
    const Range part = part_of(me_.rank, me_.world, call.count);
    const std::size_t size = part.size() * width, total = call.count * width;
    std::byte* const mine = call.out + (call.lent_out ? part.begin * width : 0);
    const auto inputs_at = [&](std::size_t offset) -> Result<void> {
      for (Peer* const peer : everybody_) {
        ELRUN_TRY_ASSIGN(const std::byte* const theirs, lent_part(*peer, size));
        inputs_[peer->rank.value()] = theirs + offset;
      }
      inputs_[me_.rank.value()] = call.in + part.begin * width + offset;
      return {};
    };
    const std::size_t step = step_most / 4 / width * width, piece = std::max<std::size_t>(size / results_posted, step_most);
    for (std::size_t at = 0, posted = 0; at < size;) {
      const std::size_t bytes = std::min(step, size - at);
      ELRUN_TRY(inputs_at(at));
      fold_ranks(inputs_, mine + at, bytes / width, call.type, call.op);
      for (const Peer* const peer : everybody_) ELRUN_TRY(still_lent(*peer));
      if (over_.load()) return over();
      at += bytes;
      if (!call.lent_out || (at - posted < piece && at < size)) continue;
      ELRUN_TRY(room(everybody_, limit));
      lend(call.lent_out->after(part.begin * width + posted), at - posted, total, everybody_);
      posted = at;
    }
    for (Peer* const peer : everybody_) took(*peer);
    if (!call.lent_out) return until_taken(limit);
    streaming_ = total >= 8 * streamed_least;
    for (Peer* const peer : everybody_) {
      const Range theirs = part_of(peer->rank, me_.world, call.count);
      peer->result = {call.out + theirs.begin * width, theirs.size() * width};
      peer->pending = Cursor<ReceivePiece>{std::span{&peer->result, 1}};
    }
    const auto readable = [](const Peer* peer) { return !peer->pending.done() && available(*peer); };
    while (!std::ranges::all_of(everybody_, [](const Peer* peer) { return peer->pending.done(); })) {
      for (Peer* const peer : everybody_)
        if (readable(peer)) ELRUN_TRY(copy_step(*peer));
      if (over_.load()) return over();
      ELRUN_TRY(wait(
          limit,
          [&] {
            return std::ranges::any_of(everybody_, readable) ||
                   std::ranges::all_of(everybody_, [](const Peer* peer) { return peer->pending.done(); });
          },
          [](const Peer& peer) { return !peer.pending.done(); }));
    }
    return until_taken(limit);
  }

  /// The whole part of this rank in the peer's input, of which the next chunk shows the beginning.
  Result<const std::byte*> lent_part(Peer& peer, std::size_t size) const {
    ELRUN_TRY_ASSIGN(const SendPiece first, head(peer));
    const Chunk chunk = peer.in->chunks[peer.taken % chunks_max];
    ELRUN_TRY_ASSIGN(const SharedMemory* const memory, peer.shown.find(chunk.buffer));
    const auto offset = static_cast<std::size_t>(first.data() - memory->data());
    if (first.data() < memory->data() || offset > memory->size() || memory->size() - offset < size) return differing(peer, chunk);
    return first.data();
  }

  std::byte* place(const Slot& slot) const { return region_.data() + slot.offset; }

  std::optional<std::size_t> index_of(Rank rank) const {
    const auto at = std::ranges::find(local_, rank);
    if (at == local_.end()) return std::nullopt;
    return static_cast<std::size_t>(at - local_.begin());
  }
  Peer* find(Rank rank) {
    const auto at = std::ranges::find(peers_, rank, &Peer::rank);
    return at == peers_.end() ? nullptr : &*at;
  }

  // --- sending ---

  static bool same(std::span<const SendPiece> a, std::span<const SendPiece> b) {
    return std::ranges::equal(a, b, [](SendPiece x, SendPiece y) { return x.data() == y.data() && x.size() == y.size(); });
  }

  void send_by_stream(Peer& peer, const SendList& list) {
    const Cursor<SendPiece> left{list};
    if (left.done()) return;
    for (Stream& stream : std::span{streams_}.first(streams_used_)) {
      if (same(stream.list, list)) return stream.to.push_back(&peer);
    }
    Stream& stream = streams_[streams_used_++];
    stream.list = list;
    stream.left = left;
    stream.total = left.left();
    stream.to.assign(1, &peer);
  }

  static std::uint64_t under_way(const Peer& peer) { return peer.posted - peer.in->taken.load(); }

  /// One peer that is slow may hold its share of the slots, and not those that others wait for.
  std::uint64_t most_under_way(const Stream& stream) const {
    if (lent_next(stream)) return chunks_max;
    return std::min<std::uint64_t>(chunks_max, std::max<std::size_t>(2, slots_.size() * stream.to.size() / peers_.size()));
  }

  static bool is_free(const Slot& slot) {
    return std::ranges::all_of(
        slot.holders, [](const Holder& holder) { return holder.peer->in->taken.load() >= holder.until || holder.peer->lost.load(); });
  }

  Slot* free_slot() {
    const auto slot = std::ranges::find_if(slots_, is_free);
    return slot == slots_.end() ? nullptr : &*slot;
  }

  bool has_room(const Stream& stream) const {
    const std::uint64_t most = most_under_way(stream);
    return std::ranges::all_of(stream.to, [&](const Peer* peer) { return under_way(*peer) < most; });
  }

  bool can_give(const Stream& stream) { return has_room(stream) && (lent_next(stream) || free_slot() != nullptr); }

  bool give(Stream& stream) {
    if (!can_give(stream)) return false;
    if (lent_next(stream)) lend_next(stream);
    else stage(stream, *free_slot());
    return true;
  }

  static SendPiece next_piece(Cursor<SendPiece> left) {
    SendPiece piece;
    (void)left.take(call_payload_max, std::span{&piece, 1});
    return piece;
  }

  std::optional<LentPlace> lent_next(const Stream& stream) const {
    if (lent_.empty()) return std::nullopt;
    return lent_.place_of(next_piece(stream.left));
  }

  void lend_next(Stream& stream) {
    const LentPlace place = lent_next(stream).value();
    SendPiece piece;
    (void)stream.left.take(call_payload_max, std::span{&piece, 1});
    lend(place, piece.size(), stream.total, stream.to);
  }

  void lend(const LentPlace& place, std::uint64_t length, std::uint64_t total, std::span<Peer* const> to) {
    for (Peer* const peer : to) {
      post_chunk(
          *peer,
          {.call = call_word(peer->call, label_.number), .total = total, .offset = place.offset, .length = length, .buffer = place.buffer});
      peer->lent_until = peer->posted;
    }
  }

  void stage(Stream& stream, Slot& slot) {
    std::size_t filled = 0;
    while (filled < slot_size_ && !stream.left.done() && !lent_next(stream)) {
      SendPiece piece;
      (void)stream.left.take(slot_size_ - filled, std::span{&piece, 1});
      std::memcpy(place(slot) + filled, piece.data(), piece.size());
      filled += piece.size();
    }
    post(slot, filled, stream.total, stream.to);
    if (&stream == own_stream_) copy_out({place(slot), filled}, own_);
  }

  void copy_out(SendPiece from, Cursor<ReceivePiece>& to) const {
    while (!from.empty()) {
      ReceivePiece into;
      (void)to.take(from.size(), std::span{&into, 1});
      copy_bytes(into.data(), from.data(), into.size(), streaming_);
      from = from.subspan(into.size());
    }
  }

  /// What this rank gives itself: with a stream of the same bytes, out of its slots, as they are in the cache then.
  void take_own(const SendList& from, const ReceiveList& to) {
    own_stream_ = nullptr;
    if (from.size() != 1 || to.size() != 1) return copy_lists(from, to);
    const SendPiece source = from.front(), target = to.front();
    if (source.data() == target.data()) return;
    const bool apart = source.data() + source.size() <= target.data() || target.data() + target.size() <= source.data();
    const auto streams = std::span{streams_}.first(streams_used_);
    const auto stream = std::ranges::find_if(
        streams, [&](const Stream& each) { return same(each.list, from) && each.left.left() == each.total && !lent_next(each); });
    if (!apart || stream == streams.end()) return copy_lists(from, to);
    own_stream_ = &*stream;
    own_ = Cursor<ReceivePiece>{to};
  }

  void post(Slot& slot, std::uint64_t length, std::uint64_t total, std::span<Peer* const> to) {
    slot.holders.clear();
    for (Peer* const peer : to) {
      post_chunk(*peer, {.call = call_word(peer->call, label_.number), .total = total, .offset = slot.offset, .length = length});
      slot.holders.push_back({peer, peer->posted});
    }
  }

  static void post_chunk(Peer& peer, const Chunk& chunk) {
    peer.out->chunks[peer.posted % chunks_max] = chunk;
    peer.out->posted.store(++peer.posted);
    wake(peer);
  }

  static void wake(const Peer& peer) {
    if (peer.header->asleep.load() != 0) peer.doorbell->ring();
  }

  // --- receiving ---

  static bool available(const Peer& peer) { return peer.in->posted.load() != peer.taken; }

  /// The next chunk, which is there, judged: nothing of it is believed.
  Result<SendPiece> head(Peer& peer) const {
    const std::uint64_t ahead = peer.in->posted.load() - peer.taken;
    const Chunk chunk = peer.in->chunks[peer.taken % chunks_max];
    const SharedMemory* memory = &peer.view;
    peer.lends = chunk.buffer != 0;
    if (peer.lends) {
      ELRUN_TRY_ASSIGN(memory, peer.shown.find(chunk.buffer));
    }
    if (ahead > chunks_max || chunk.length == 0 || chunk.offset > memory->size() || chunk.length > memory->size() - chunk.offset) {
      return Failure{.code = Code::protocol,
                     .remedy = Remedy::abort_group,
                     .what = fmt::format("rank {} posted a chunk that is none", peer.rank.value()),
                     .peer = peer.rank};
    }
    if (const std::uint16_t theirs = label_of(chunk.call); theirs != label_.number) return differing_labels(peer.rank, theirs, label_);
    if (call_of(chunk.call) != peer.call || chunk.total != peer.total) return differing(peer, chunk);
    return SendPiece{memory->data() + chunk.offset, chunk.length};
  }

  /// After the peer's memory was read, before anything is done with it. What lies in slots stays, whatever becomes of the peer.
  static Result<void> still_lent(const Peer& peer) {
    if (!peer.lends) return {};
    fence();
    if (peer.header->withdrawn.load() == 0) return {};
    return Failure{.code = Code::peer_lost,
                   .remedy = Remedy::rejoin,
                   .what = fmt::format("rank {} has given up the call", peer.rank.value()),
                   .peer = peer.rank};
  }

  /// The last thing of a call that fails: what it lent is its caller's again, who may write there.
  Result<void> or_withdraw(Result<void> result) {
    if (!result.ok()) {
      header_->withdrawn.store(1);
      fence();
    }
    return result;
  }

  /// Peers have read what they were lent in this call.
  Result<void> until_taken(const Limit& limit) {
    const auto reads = [](const Peer& peer) { return peer.in->taken.load() < peer.lent_until; };
    const auto ready = [&] { return std::ranges::none_of(everybody_, [&](const Peer* peer) { return reads(*peer); }); };
    if (!ready()) ELRUN_TRY(wait(limit, ready, reads));
    if (over_.load()) return over();
    return {};
  }

  static Failure differing(const Peer& peer, const Chunk& chunk) {
    return {.code = Code::protocol,
            .remedy = Remedy::abort_group,
            .what = fmt::format("rank {} sent {} bytes in its call {} where {} bytes belong in call {}: the ranks make different calls",
                                peer.rank.value(), chunk.total, call_of(chunk.call), peer.total, peer.call),
            .peer = peer.rank};
  }

  static void took(Peer& peer) {
    peer.out->taken.store(++peer.taken);
    wake(peer);
  }

  /// The next chunk, or as much of it as may be copied before looking around.
  Result<void> copy_step(Peer& peer) {
    ELRUN_TRY_ASSIGN(const SendPiece chunk, head(peer));
    const SendPiece rest = chunk.subspan(std::min<std::size_t>(peer.used, chunk.size()));
    if (rest.size() > peer.pending.left()) return differing(peer, {.call = peer.call, .total = peer.total + rest.size()});
    const SendPiece step = rest.first(std::min(rest.size(), step_most));
    copy_out(step, peer.pending);
    ELRUN_TRY(still_lent(peer));
    peer.used += step.size();
    if (peer.used < chunk.size()) return {};
    peer.used = 0;
    took(peer);
    return {};
  }

  // --- waiting ---

  Failure over() const { return {.code = Code::generation_over, .remedy = Remedy::rejoin, .what = "the generation is over"}; }

  /// Until `ready()`, or there is a reason why it never will be: `needed(peer)` says who would have to do something.
  template <class Ready, class Needed>
  Result<void> wait(const Limit& limit, Ready ready, Needed needed) {
    for (int i = 0; i < spins_; ++i) {
      if (ready()) return {};
      pause();
    }
    for (int i = 0; i < yields_; ++i) {
      std::this_thread::yield();
      if (ready()) return {};
    }
    for (;;) {
      header_->asleep.store(1);
      // First who is gone, then what is there: what a peer posted before it went counts.
      const auto gone = std::ranges::find_if(everybody_, [&](const Peer* peer) { return peer->lost.load() && needed(*peer); });
      const bool over_now = over_.load();
      const bool is_ready = ready();
      const Duration left = limit.at.left(clock_.now());
      if (!is_ready && !over_now && gone == everybody_.end() && left > Duration{0}) doorbell_.wait(left);
      header_->asleep.store(0, std::memory_order_relaxed);
      if (is_ready) return {};
      if (over_now) return over();
      if (gone != everybody_.end()) {
        return Failure{.code = Code::peer_lost,
                       .remedy = Remedy::rejoin,
                       .what = fmt::format("rank {} is gone", (*gone)->rank.value()),
                       .peer = (*gone)->rank};
      }
      if (left == Duration{0}) return late(limit.whole, needed);
    }
  }

  template <class Needed>
  Failure late(Duration limit, Needed needed) const {
    std::vector<Rank> missing;
    for (const Peer* const peer : everybody_)
      if (needed(*peer)) missing.push_back(peer->rank);
    std::ranges::sort(missing);
    return {.code = Code::deadline_passed,
            .remedy = Remedy::abort_group,
            .what = fmt::format("a collective call was not over within {} ms; missing: {}", limit / 1ms, list_ranks(missing)),
            .peer = missing.empty() ? std::nullopt : std::optional{missing.front()}};
  }

  /// A slot for a chunk to these peers, in whose lanes there is room for it.
  Result<Slot*> any_slot(std::span<Peer* const> to, const Limit& limit) {
    Slot* slot = nullptr;
    const auto ready = [&] {
      return std::ranges::all_of(to, [](const Peer* peer) { return under_way(*peer) < chunks_max; }) && (slot = free_slot()) != nullptr;
    };
    if (!ready()) ELRUN_TRY(wait(limit, ready, [](const Peer& peer) { return under_way(peer) > 0; }));
    return slot;
  }

  /// Room for one more chunk in the lanes of these peers.
  Result<void> room(std::span<Peer* const> to, const Limit& limit) {
    const auto ready = [&] { return std::ranges::all_of(to, [](const Peer* peer) { return under_way(*peer) < chunks_max; }); };
    if (!ready()) ELRUN_TRY(wait(limit, ready, [](const Peer& peer) { return under_way(peer) > 0; }));
    return {};
  }

  Result<SendPiece> expect(Peer& peer, std::uint64_t length, const Limit& limit) {
    if (!available(peer))
      ELRUN_TRY(wait(
          limit, [&] { return available(peer); }, [&](const Peer& other) { return &other == &peer; }));
    ELRUN_TRY_ASSIGN(const SendPiece piece, head(peer));
    if (piece.size() != length) {
      return Failure{
          .code = Code::protocol,
          .remedy = Remedy::abort_group,
          .what = fmt::format("rank {} posted a block of {} bytes in a reduction where one of {} belongs: the ranks make different calls",
                              peer.rank.value(), piece.size(), length),
          .peer = peer.rank};
    }
    return piece;
  }

  SteadyClock clock_;
  const Membership me_;
  const std::vector<Rank> local_;
  SharedMemory region_;
  const Doorbell doorbell_;
  const std::size_t slot_size_;
  RegionHeader* header_ = nullptr;
  std::vector<Peer> peers_;
  std::vector<Peer*> everybody_;  // who is attached
  std::vector<Slot> slots_;
  LentBuffers lent_;
  CallLabel label_;
  std::atomic<bool> over_{false};
  int spins_ = 0, yields_ = 0;

  // Kept between calls, so that a call allocates nothing.
  std::vector<Stream> streams_;
  std::size_t streams_used_ = 0;
  Cursor<ReceivePiece> own_;            // what this rank gives itself, out of the slots of
  const Stream* own_stream_ = nullptr;  // this
  bool streaming_ = false;              // past the caches
  std::vector<const std::byte*> inputs_;
};

Lanes::Lanes(std::unique_ptr<State> state) : state_{std::move(state)} {}
Lanes::~Lanes() = default;

Result<std::unique_ptr<Lanes>> Lanes::make(const Membership& me, std::vector<Rank> local) {
  ELRUN_ASSERT(local.size() > 1 && std::ranges::is_sorted(local));
  // What two rounds of a reduction have under way (what others fold, and what was folded), twice, so that nobody sleeps early.
  const std::size_t slots = 4 * local.size();
  const std::size_t most = std::min<std::size_t>(slot_most.value(), slots_max.value() / slots) / page * page;
  const std::size_t slot_size = std::max<std::size_t>(slot_least.value(), most);
  ELRUN_TRY_ASSIGN(SharedMemory region, SharedMemory::make(Bytes{slots_offset(local.size()) + slots * slot_size}));
  ELRUN_TRY_ASSIGN(Doorbell doorbell, Doorbell::make());
  auto state = std::make_unique<State>(me, std::move(local), std::move(region), std::move(doorbell), slot_size, slots);
  ELRUN_TRY(state->open_posts());
  return std::unique_ptr<Lanes>{new Lanes{std::move(state)}};
}

Lanes::Offer Lanes::offer(Rank peer) const { return state_->offer(peer); }
Result<void> Lanes::attach(Rank peer, Fd region, Bytes size, Fd doorbell, Fd post) {
  return state_->attach(peer, std::move(region), size, std::move(doorbell), std::move(post));
}
Result<void> Lanes::share(const SharedBuffer& buffer) { return state_->share(buffer); }
bool Lanes::attached(Rank peer) const { return state_->attached(peer); }
void Lanes::lose(Rank peer) noexcept { state_->lose(peer); }
void Lanes::end() noexcept { state_->end(); }
Result<void> Lanes::transfer(std::span<const SendList> sends, std::span<const ReceiveList> receives, std::optional<Rank> whom,
                             Duration limit, const CallLabel& label) {
  return state_->transfer(sends, receives, whom, limit, label);
}
Result<void> Lanes::reduce(const std::byte* in, std::byte* out, std::size_t count, DType type, ReduceOp op, bool gather, Duration limit,
                           const CallLabel& label) {
  return state_->reduce(in, out, count, type, op, gather, limit, label);
}

}  // namespace elrun::inline v0
