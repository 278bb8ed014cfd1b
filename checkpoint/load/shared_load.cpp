#include "checkpoint/load/shared_load.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/format/corrupt.hpp"
#include "checkpoint/format/read_share.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

using SendParts = std::vector<std::vector<ByteSpan>>;                 // by rank
using ReceiveParts = std::vector<std::vector<std::span<std::byte>>>;  // likewise

/// Where bytes of files go in this rank's memory.
class Targets {
 public:
  /// `reads` ascend by file and offset.
  Targets(std::vector<ReadExtent> reads, std::vector<std::span<std::byte>> memory) : reads_{std::move(reads)}, memory_{std::move(memory)} {}

  /// Where all of `range` goes; nothing where not all of it is of one piece that this rank needs.
  [[nodiscard]] std::span<std::byte> of(const FileRange& range) const {
    const auto at = first_behind(range);
    if (at == reads_.end() || at->file != range.file || range.offset < at->offset || range.end() > at->offset + at->bytes) return {};
    return memory_[at->fragment].subspan(at->at + (range.offset - at->offset), range.bytes);
  }
  /// Calls `visit(part, memory)` for each part of `range` that this rank needs, ascending.
  template <class Visit>
  void each_part(const FileRange& range, const Visit& visit) const {
    for (auto at = first_behind(range); at != reads_.end() && at->file == range.file && at->offset < range.end(); ++at) {
      const std::uint64_t from = std::max(at->offset, range.offset), until = std::min(at->offset + at->bytes, range.end());
      visit(FileRange{range.file, from, until - from}, memory_[at->fragment].subspan(at->at + (from - at->offset), until - from));
    }
  }

 private:
  /// The first that ends behind the beginning of `range`.
  [[nodiscard]] std::vector<ReadExtent>::const_iterator first_behind(const FileRange& range) const {
    return std::partition_point(reads_.begin(), reads_.end(), [&](const ReadExtent& r) {
      return std::pair{r.file, r.offset + r.bytes} <= std::pair{range.file, range.offset};
    });
  }
  std::vector<ReadExtent> reads_;
  std::vector<std::span<std::byte>> memory_;
};

/// A part of a window that goes to another rank.
struct Passing {
  std::uint64_t window = 0;
  FileRange part;
};

/// The parts of `share.passed` that lie in each window, ascending: of shared ranges, in the same order.
std::vector<std::pair<Passing, std::size_t>> passings_of(const ReadShare& share, const std::vector<Window>& windows) {
  std::vector<std::pair<Passing, std::size_t>> all;  // with the number of the askers
  std::size_t first = 0;
  for (std::size_t w = 0; w < windows.size(); ++w)
    for (const FileRange& range : windows[w]) {
      while (first < share.passed.size() &&
             std::pair{share.passed[first].part.file, share.passed[first].part.end()} <= std::pair{range.file, range.offset})
        ++first;
      for (std::size_t i = first; i < share.passed.size(); ++i) {
        const FileRange& part = share.passed[i].part;
        if (part.file != range.file || part.offset >= range.end()) break;
        const std::uint64_t from = std::max(part.offset, range.offset), until = std::min(part.end(), range.end());
        all.push_back({{w, {part.file, from, until - from}}, share.passed[i].askers});
      }
    }
  return all;
}

// One load, from first to last. More fields than 15: each phase leaves what it found to the next ones.
class Load {
 public:
  explicit Load(const SharedLoad& load)
      : load_{load}, manifest_{load.manifest}, group_{load.group}, rank_{group_.rank()}, size_{group_.size()} {}

  Result<std::vector<Aux>> run() {
    ELRUN_TRY(agree(within_memory([&] { return find_targets(); })));
    ELRUN_TRY_ASSIGN(const auto told, group_.all_gather(encode(needs_)));
    ELRUN_TRY(agree(within_memory([&] { return find_share(told); })));
    ELRUN_TRY(announce());
    ELRUN_TRY(agree(within_memory([&] { return begin_to_read(); })));
    ELRUN_TRY(read_and_pass_on());
    return std::move(aux_);
  }

 private:
  [[nodiscard]] std::uint64_t block_bytes() const { return manifest_.files.empty() ? elrun::block_bytes : manifest_.files[0].block_bytes; }
  Result<void> agree(const Result<void>& mine) {
    if (mine.ok() || !load_.told) return group_.agree(mine);
    return group_.agree(load_.told(mine.failure()));
  }

  /// What one rank has no memory for fails the load of all, as what it cannot read does.
  static Result<void> within_memory(const std::function<Result<void>()>& step) {
    try {
      return step();
    } catch (const std::bad_alloc&) {
      return Failure{Code::exhausted, Remedy::retry, "there is no memory on the host to load a checkpoint"};
    }
  }

  /// Host state is small and everybody's; it rides along as fragments behind those of the caller.
  Result<void> find_targets() {
    ELRUN_TRY_ASSIGN(needs_, needs_of(manifest_.model, load_.fragments));
    ELRUN_TRY_ASSIGN(std::vector<ReadExtent> reads, plan_reads(manifest_, load_.fragments));
    std::vector<std::span<std::byte>> memory;
    for (const Fragment& fragment : load_.fragments) memory.push_back(fragment.bytes);
    for (const AuxRecord& a : manifest_.aux) aux_.push_back({a.name, ByteVector(a.bytes)});
    for (std::size_t i = 0; i < aux_.size(); ++i) {
      const AuxRecord& a = manifest_.aux[i];
      if (a.bytes > 0) reads.push_back({a.file, a.offset, a.bytes, memory.size(), 0});
      memory.emplace_back(aux_[i].bytes);
    }
    std::sort(reads.begin(), reads.end(),
              [](const ReadExtent& a, const ReadExtent& b) { return std::tie(a.file, a.offset) < std::tie(b.file, b.offset); });
    for (std::size_t i = 1; i < reads.size(); ++i)
      if (reads[i].file == reads[i - 1].file && reads[i].offset < reads[i - 1].offset + reads[i - 1].bytes)
        return corrupt(fmt::format("the manifest of checkpoint {} places two things at byte {} of file {}", to_string(manifest_.id),
                                   reads[i].offset, manifest_.files[reads[i].file].name));
    for (const ReadExtent& r : reads) needed_ += r.bytes;
    targets_.emplace(std::move(reads), std::move(memory));
    return {};
  }

  Result<void> find_share(std::span<const ByteVector> told) {
    std::vector<Needs> by_rank;
    for (const ByteVector& bytes : told) {
      ELRUN_TRY_ASSIGN(Needs needs, decode_needs(bytes, manifest_.model));
      by_rank.push_back(std::move(needs));
    }
    ELRUN_TRY_ASSIGN(share_, share_of(manifest_, by_rank, rank_));
    // In a large world every rank receives from very many in one round, and a round has a time limit.
    const std::uint64_t window = std::min(load_.limits.window_bytes, std::max(round_bytes / size_, block_bytes()));
    windows_ = windows_of(share_.shared, block_bytes(), window);
    alone_ = windows_of(share_.alone, block_bytes(), load_.limits.window_bytes);
    passings_ = passings_of(share_, windows_);
    return {};
  }

  /// Tells each rank what comes from this one, and hears what comes from the others.
  Result<void> announce() {
    receives_.assign(size_, {});
    rounds_ = windows_.size() + alone_.size();
    if (size_ == 1) return {};
    std::vector<ByteWriter> told(size_);
    for (const auto& [passing, askers] : passings_)
      for (const std::uint32_t to : share_.askers[askers])
        if (to != rank_)
          told[to].put(passing.window), told[to].put(passing.part.file), told[to].put(passing.part.offset),
              told[to].put(passing.part.bytes);
    std::vector<std::array<std::uint64_t, 3>> to(size_),
        from(size_);  // shared windows of the sender, all its windows, length of what it tells
    SendParts sends(size_);
    ReceiveParts receives(size_);
    for (std::uint32_t r = 0; r < size_; ++r) {
      to[r] = {windows_.size(), windows_.size() + alone_.size(), told[r].bytes().size()};
      if (r == rank_) continue;
      sends[r] = {std::as_bytes(std::span{to[r]})};
      receives[r] = {std::as_writable_bytes(std::span{from[r]})};
    }
    ELRUN_TRY(group_.exchange(sends, receives));
    std::vector<ByteVector> heard(size_);
    Result<void> sound;
    for (std::uint32_t r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      if (from[r][2] > told_bytes_max) {
        sound = disagreement(r);
        break;
      }
      rounds_ = std::max(rounds_, from[r][1]);
      heard[r].resize(from[r][2]);
      sends[r] = {ByteSpan{told[r].bytes()}};
      receives[r] = {std::span{heard[r]}};
    }
    ELRUN_TRY(agree(sound));
    ELRUN_TRY(group_.exchange(sends, receives));
    for (std::uint32_t r = 0; r < size_ && sound.ok(); ++r)
      if (r != rank_) sound = hear(r, heard[r], from[r][0]);
    return agree(sound);
  }

  Result<void> hear(std::uint32_t from, ByteSpan told, std::uint64_t windows) {
    ByteReader in{told};
    std::uint64_t window_before = 0;
    while (in.left() > 0 && !in.broken()) {
      Passing p;
      p.window = in.get<std::uint64_t>();
      p.part.file = in.get<std::uint32_t>(), p.part.offset = in.get<std::uint64_t>(), p.part.bytes = in.get<std::uint64_t>();
      const bool is_small = p.part.bytes <= needed_ && p.part.offset <= json_integer_limit;
      const std::span<std::byte> memory = is_small ? targets_->of(p.part) : std::span<std::byte>{};
      if (memory.empty() || p.window >= windows || p.window < window_before) return disagreement(from);
      window_before = p.window;
      receives_[from].push_back({p.window, memory});
      received_.push_back(p.part);
    }
    return in.finish("what a rank passes on of a checkpoint");
  }

  Result<void> begin_to_read() {
    ELRUN_TRY(check_coverage());
    reader_.emplace(
        load_.tier, load_.directory, manifest_, windows_, alone_,
        [this](const FileRange& range, ByteSpan bytes) {
          targets_->each_part(range, [&](const FileRange& part, std::span<std::byte> memory) {
            std::memcpy(memory.data(), bytes.data() + (part.offset - range.offset), part.bytes);
          });
        },
        load_.limits);
    return {};
  }

  /// Every byte that this rank needs comes from one rank.
  Result<void> check_coverage() {
    std::uint64_t bytes = 0;
    for (const FileRange& r : received_) bytes += r.bytes;
    for (const auto* own : {&share_.alone, &share_.shared})
      for (const FileRange& r : *own)
        targets_->each_part(r, [&](const FileRange& part, std::span<std::byte>) {
          received_.push_back(part);
          bytes += part.bytes;
        });
    std::sort(received_.begin(), received_.end());
    for (std::size_t i = 1; i < received_.size(); ++i)
      if (received_[i].file == received_[i - 1].file && received_[i].offset < received_[i - 1].end()) return disagreement(rank_);
    return bytes == needed_ ? Result<void>{} : disagreement(rank_);
  }

  Failure disagreement(std::uint32_t with) const {
    return {.code = Code::protocol,
            .remedy = Remedy::abort_group,
            .what = fmt::format("the ranks do not agree on who reads what of checkpoint {}; rank {} says otherwise",
                                to_string(manifest_.id), with)};
  }

  /// As many rounds as the rank with most windows needs: behind its shared windows a rank tells only how it does, one window of its own later each time.
  Result<void> read_and_pass_on() {
    bool failed = false;
    std::vector<std::size_t> next(size_, 0);  // of receives_
    std::size_t passed = 0;                   // of passings_
    for (std::uint64_t round = 0; round < rounds_ && !failed; ++round) {
      SendParts sends(size_);
      ReceiveParts receives(size_);
      ByteSpan bytes;
      if (round < windows_.size()) bytes = reader_->window(round);
      else reader_->read_alone(round + 1 - windows_.size());
      const std::uint8_t mine = reader_->result().ok() ? 0 : 1;
      std::vector<std::uint8_t> theirs(size_, 0);
      for (std::uint32_t r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        sends[r].push_back(std::as_bytes(std::span{&mine, 1}));
        receives[r].push_back(std::as_writable_bytes(std::span{&theirs[r], 1}));
        for (; next[r] < receives_[r].size() && receives_[r][next[r]].window == round; ++next[r])
          receives[r].push_back(receives_[r][next[r]].memory);
      }
      add_parts(round, bytes, passed, sends);
      ELRUN_TRY(group_.exchange(sends, receives));
      failed = mine != 0 || std::ranges::any_of(theirs, [](std::uint8_t f) { return f != 0; });
    }
    return agree(reader_->result());
  }

  /// What lies in the window of this round for each other rank.
  void add_parts(std::uint64_t round, ByteSpan bytes, std::size_t& passed, SendParts& sends) const {
    if (round >= windows_.size()) return;
    std::uint64_t at = 0;  // of the range in the window
    auto range = windows_[round].begin();
    for (; passed < passings_.size() && passings_[passed].first.window == round; ++passed) {
      const FileRange& part = passings_[passed].first.part;
      while (range->file != part.file || range->end() <= part.offset) at += range->bytes, ++range;
      const ByteSpan what = bytes.subspan(at + (part.offset - range->offset), part.bytes);
      for (const std::uint32_t to : share_.askers[passings_[passed].second])
        if (to != rank_) sends[to].push_back(what);
    }
  }

  static constexpr std::uint64_t told_bytes_max = 256u << 20;
  static constexpr std::uint64_t round_bytes = 1u << 30;  // that a rank receives in a round, but where a block from each is more
  static constexpr std::uint64_t json_integer_limit = std::uint64_t{1} << 53;

  struct Receiving {
    std::uint64_t window = 0;
    std::span<std::byte> memory;
  };

  const SharedLoad& load_;
  const Manifest& manifest_;
  LoadGroup& group_;
  const std::uint32_t rank_, size_;
  std::vector<Aux> aux_;
  Needs needs_;
  std::uint64_t needed_ = 0;  // bytes, with host state
  std::optional<Targets> targets_;
  ReadShare share_;
  std::vector<Window> windows_, alone_;                    // of what is shared, and what is for this rank alone
  std::vector<std::pair<Passing, std::size_t>> passings_;  // with their askers; by window, in its order
  std::uint64_t rounds_ = 0;
  std::vector<std::vector<Receiving>> receives_;  // by rank, in the order in which they come
  std::vector<FileRange> received_;
  std::optional<BlockReader> reader_;  // writes to what is above
};

}  // namespace

Result<std::vector<Aux>> load_shared(const SharedLoad& load) { return Load{load}.run(); }

}  // namespace elrun::inline v0
