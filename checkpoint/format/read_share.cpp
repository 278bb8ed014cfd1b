#include "checkpoint/format/read_share.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/format/corrupt.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

bool is_before(const Wanted& a, const Wanted& b) { return std::tie(a.kind, a.unit, a.begin) < std::tie(b.kind, b.unit, b.begin); }

/// Sets of ranks, each once.
class AskerSets {
 public:
  std::uint32_t number_of(std::vector<std::uint32_t> ranks) {
    const auto [at, is_new] = numbers_.try_emplace(std::move(ranks), static_cast<std::uint32_t>(sets_.size()));
    if (is_new) sets_.push_back(&at->first);
    return at->second;
  }
  std::uint32_t united(std::uint32_t a, std::uint32_t b) {
    if (a == b) return a;
    const auto [at, is_new] = unions_.try_emplace(std::minmax(a, b), 0);
    if (is_new) {
      std::vector<std::uint32_t> ranks;
      std::set_union(sets_[a]->begin(), sets_[a]->end(), sets_[b]->begin(), sets_[b]->end(), std::back_inserter(ranks));
      at->second = number_of(std::move(ranks));
    }
    return at->second;
  }
  [[nodiscard]] const std::vector<std::uint32_t>& ranks(std::uint32_t number) const { return *sets_[number]; }

 private:
  std::map<std::vector<std::uint32_t>, std::uint32_t> numbers_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> unions_;
  std::vector<const std::vector<std::uint32_t>*> sets_;
};

/// Elements of one unit that the same ranks need.
struct Common {
  std::uint64_t begin = 0, end = 0;
  std::uint32_t askers = 0;
};

/// What ranks need of one kind of one unit.
struct Asked {
  std::uint64_t begin = 0, end = 0;
  std::uint32_t rank = 0;
};

/// Equal ranges as one, ascending.
std::vector<Common> equal_ranges(std::vector<Asked> asked, AskerSets& sets) {
  std::sort(asked.begin(), asked.end(),
            [](const Asked& a, const Asked& b) { return std::tie(a.begin, a.end, a.rank) < std::tie(b.begin, b.end, b.rank); });
  std::vector<Common> ranges;
  for (std::size_t i = 0; i < asked.size();) {
    std::vector<std::uint32_t> ranks;
    std::size_t next = i;
    for (; next < asked.size() && asked[next].begin == asked[i].begin && asked[next].end == asked[i].end; ++next)
      ranks.push_back(asked[next].rank);
    ranges.push_back({asked[i].begin, asked[i].end, sets.number_of(std::move(ranks))});
    i = next;
  }
  return ranges;
}

/// The same elements in ranges that do not overlap.
std::vector<Common> apart(const std::vector<Common>& ranges, AskerSets& sets) {
  bool overlap = false;
  for (std::size_t i = 1; i < ranges.size(); ++i) overlap |= ranges[i].begin < ranges[i - 1].end;
  if (!overlap) return ranges;
  std::vector<std::uint64_t> bounds;
  for (const Common& r : ranges) bounds.insert(bounds.end(), {r.begin, r.end});
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  std::vector<Common> cut;
  std::vector<std::size_t> open;  // ranges that have elements from the bound on
  std::size_t next = 0;
  for (std::size_t b = 0; b + 1 < bounds.size(); ++b) {
    std::erase_if(open, [&](std::size_t i) { return ranges[i].end <= bounds[b]; });
    for (; next < ranges.size() && ranges[next].begin == bounds[b]; ++next) open.push_back(next);
    if (open.empty()) continue;
    std::uint32_t askers = ranges[open[0]].askers;
    for (const std::size_t i : open) askers = sets.united(askers, ranges[i].askers);
    cut.push_back({bounds[b], bounds[b + 1], askers});
  }
  return cut;
}

/// Bytes of a file that the same ranks need.
struct Piece {
  FileRange range;
  std::uint32_t askers = 0;
};

/// Blocks of a file with the same askers.
struct Blocks {
  std::uint32_t file = 0;
  std::uint64_t first = 0, count = 0;
  std::uint32_t askers = 0;
};

/// What the ranks need of one kind: `index` is the number of the askers.
std::vector<Wanted> asked_of_kind(std::span<const Needs> by_rank, std::uint32_t kind, std::vector<std::size_t>& next, AskerSets& sets) {
  std::vector<Wanted> all;
  std::vector<std::pair<std::uint32_t, Asked>> asked;  // with the unit
  for (std::uint32_t rank = 0; rank < by_rank.size(); ++rank)
    for (; next[rank] < by_rank[rank].size() && by_rank[rank][next[rank]].kind == kind; ++next[rank]) {
      const Wanted& w = by_rank[rank][next[rank]];
      if (w.begin != w.end) asked.push_back({w.unit, {w.begin, w.end, rank}});
    }
  std::stable_sort(asked.begin(), asked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < asked.size();) {
    const std::uint32_t unit = asked[i].first;
    std::vector<Asked> here;
    for (; i < asked.size() && asked[i].first == unit; ++i) here.push_back(asked[i].second);
    for (const Common& c : apart(equal_ranges(std::move(here), sets), sets)) all.push_back({kind, unit, c.begin, c.end, c.askers});
  }
  return all;
}

/// The work on one plan.
class Sharing {
 public:
  Sharing(const Manifest& manifest, std::span<const Needs> by_rank) : manifest_{manifest}, by_rank_{by_rank} {}

  Result<ReadShare> of(std::uint32_t rank) {
    rank_ = rank;
    find_my_blocks();
    ELRUN_TRY(find_pieces([&](const FileRange& range) { return is_in_my_blocks(range); }));
    find_blocks();
    const auto askers_have_me = [&](const Blocks& run) { return std::ranges::binary_search(sets_.ranks(run.askers), rank); };
    deal(askers_have_me, [&](std::uint32_t reader, const FileRange& range, bool alone) {
      if (reader == rank) append(alone ? share_.alone : share_.shared, range);
    });
    pass_on();
    return std::move(share_);
  }

  Result<std::vector<std::vector<FileRange>>> of_all() {
    ELRUN_TRY(find_pieces([](const FileRange&) { return true; }));
    find_blocks();
    std::vector<std::vector<FileRange>> reads(by_rank_.size());
    deal([](const Blocks&) { return true; }, [&](std::uint32_t reader, const FileRange& range, bool) { append(reads[reader], range); });
    return reads;
  }

 private:
  [[nodiscard]] std::uint64_t block_bytes(std::uint32_t file) const { return manifest_.files[file].block_bytes; }
  [[nodiscard]] FileRange range_of(const Located& found) const {
    const auto& [kind, unit, begin, end, index] = found.part;
    return {found.file, found.offset, (end - begin) * size_of(manifest_.model.kinds[kind].dtype)};
  }

  /// Of which this rank is an asker.
  void find_my_blocks() {
    std::vector<FileRange> mine;
    for (const Located& found : locate(manifest_.layout, manifest_.model, manifest_.files, by_rank_[rank_]))
      mine.push_back(range_of(found));
    for (const AuxRecord& a : manifest_.aux)
      if (a.bytes > 0) mine.push_back({a.file, a.offset, a.bytes});
    std::sort(mine.begin(), mine.end());
    for (const FileRange& r : mine) {
      const std::uint64_t block = block_bytes(r.file), from = r.offset / block * block, until = (r.end() + block - 1) / block * block;
      if (!my_blocks_.empty() && my_blocks_.back().file == r.file && from <= my_blocks_.back().end())
        my_blocks_.back().bytes = std::max(my_blocks_.back().end(), until) - my_blocks_.back().offset;
      else my_blocks_.push_back({r.file, from, until - from});
    }
  }

  [[nodiscard]] bool is_in_my_blocks(const FileRange& range) const {
    auto after = std::upper_bound(my_blocks_.begin(), my_blocks_.end(), range, [](const FileRange& a, const FileRange& b) {
      return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
    });
    if (after != my_blocks_.end() && after->file == range.file && after->offset < range.end()) return true;
    return after != my_blocks_.begin() && (--after)->file == range.file && range.offset < after->end();
  }

  /// What anybody needs of my blocks.
  template <class Keep>
  Result<void> find_pieces(const Keep& keep) {
    std::vector<std::size_t> next(by_rank_.size(), 0);
    for (std::uint32_t kind = 0; kind < manifest_.model.kinds.size(); ++kind)
      for (const Located& found : locate(manifest_.layout, manifest_.model, manifest_.files, asked_of_kind(by_rank_, kind, next, sets_)))
        if (const FileRange range = range_of(found); keep(range)) pieces_.push_back({range, static_cast<std::uint32_t>(found.part.index)});
    std::vector<std::uint32_t> all(by_rank_.size());
    std::iota(all.begin(), all.end(), 0u);
    const std::uint32_t everybody = sets_.number_of(std::move(all));
    for (const AuxRecord& a : manifest_.aux)
      if (a.bytes > 0) pieces_.push_back({{a.file, a.offset, a.bytes}, everybody});
    std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.range < b.range; });
    for (const Piece& p : pieces_) {
      const FileRecord& file = manifest_.files[p.range.file];
      if (p.range.offset > file.table_offset || p.range.bytes > file.table_offset - p.range.offset)
        return corrupt(fmt::format("the manifest of {} places bytes {} to {} of {} behind its data", to_string(manifest_.id),
                                   p.range.offset, p.range.end(), file.name));
    }
    return {};
  }

  void add(const Blocks& more) {
    if (more.count == 0) return;
    if (!blocks_.empty()) {
      Blocks& last = blocks_.back();
      if (last.file == more.file && last.askers == more.askers && last.first + last.count == more.first) {
        last.count += more.count;
        return;
      }
    }
    blocks_.push_back(more);
  }

  void find_blocks() {
    Blocks edge{};  // the last block so far, of which the next piece may have some, too
    for (const Piece& p : pieces_) {
      const std::uint64_t block = block_bytes(p.range.file);
      const std::uint64_t first = p.range.offset / block, last = (p.range.end() - 1) / block;
      if (edge.count != 0 && edge.file == p.range.file && edge.first == first) {
        edge.askers = sets_.united(edge.askers, p.askers);
      } else {
        add(edge);
        edge = {p.range.file, first, 1, p.askers};
      }
      if (last == first) continue;
      add(edge);
      add({p.range.file, first + 1, last - first - 1, p.askers});
      edge = {p.range.file, last, 1, p.askers};
    }
    add(edge);
  }

  /// Cuts the blocks of each set of askers into equal runs, one for each reader, and calls `visit(reader, range, alone)`.
  template <class Concerns, class Visit>
  void deal(const Concerns& concerns, const Visit& visit) {
    struct OfSet {
      std::uint64_t count = 0, passed = 0;
      std::size_t first = 0;  // of blocks_
    };
    std::map<std::uint32_t, OfSet> sets;
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      sets.try_emplace(blocks_[i].askers, OfSet{.first = i}).first->second.count += blocks_[i].count;
    for (const Blocks& run : blocks_) {
      if (!concerns(run)) continue;
      const std::vector<std::uint32_t>& askers = sets_.ranks(run.askers);
      OfSet& of = sets[run.askers];
      const Blocks& first = blocks_[of.first];
      const std::uint64_t block = block_bytes(run.file), least = std::max<std::uint64_t>(1, read_run_bytes_min / block);
      const std::uint64_t readers = std::clamp<std::uint64_t>(of.count / least, 1, askers.size());
      const std::uint64_t turn = first.file + first.first;  // small sets do not all burden the same ranks
      const std::uint64_t from = of.passed, until = from + run.count;
      of.passed = until;
      for (std::uint64_t j = from * readers / of.count; j < readers && j * of.count / readers < until; ++j) {
        const std::uint64_t begin = std::max(from, j * of.count / readers), end = std::min(until, (j + 1) * of.count / readers);
        if (begin >= end) continue;
        const std::uint64_t offset = (run.first + begin - from) * block;
        const std::uint64_t stop = std::min((run.first + end - from) * block, manifest_.files[run.file].table_offset);
        visit(askers[(j * askers.size() / readers + turn) % askers.size()], FileRange{run.file, offset, stop - offset}, askers.size() == 1);
      }
    }
  }

  static void append(std::vector<FileRange>& list, const FileRange& range) {
    if (!list.empty() && list.back().file == range.file && list.back().end() == range.offset) list.back().bytes += range.bytes;
    else list.push_back(range);
  }

  void pass_on() {
    std::map<std::uint32_t, std::size_t> numbers;
    std::size_t first = 0;
    for (const FileRange& r : share_.shared) {
      while (first < pieces_.size() && std::pair{pieces_[first].range.file, pieces_[first].range.end()} <= std::pair{r.file, r.offset})
        ++first;
      for (std::size_t i = first; i < pieces_.size(); ++i) {
        const Piece& p = pieces_[i];
        if (p.range.file != r.file || p.range.offset >= r.end()) break;
        const std::vector<std::uint32_t>& askers = sets_.ranks(p.askers);
        if (askers.size() == 1 && askers[0] == rank_) continue;
        const std::uint64_t from = std::max(p.range.offset, r.offset), until = std::min(p.range.end(), r.end());
        const auto [at, is_new] = numbers.try_emplace(p.askers, share_.askers.size());
        if (is_new) share_.askers.push_back(askers);
        share_.passed.push_back({{r.file, from, until - from}, at->second});
      }
    }
  }

  const Manifest& manifest_;
  std::span<const Needs> by_rank_;
  std::uint32_t rank_ = 0;
  AskerSets sets_;
  std::vector<FileRange> my_blocks_;
  std::vector<Piece> pieces_;   // ascending
  std::vector<Blocks> blocks_;  // likewise
  ReadShare share_;
};

}  // namespace

Result<Needs> needs_of(const ModelTable& model, std::span<const Fragment> fragments) {
  if (const auto wrong = problems(model, fragments); !wrong.empty()) return invalid(wrong);
  std::map<std::string, std::uint32_t> kinds;
  for (std::uint32_t k = 0; k < model.kinds.size(); ++k) kinds.try_emplace(model.kinds[k].name, k);
  Needs needs;
  for (std::size_t i = 0; i < fragments.size(); ++i)
    if (const Fragment& f = fragments[i]; f.begin != f.end)
      needs.push_back({kinds.at(f.kind), static_cast<std::uint32_t>(f.unit), f.begin, f.end, i});
  std::sort(needs.begin(), needs.end(), is_before);
  return needs;
}

ByteVector encode(const Needs& needs) {
  ByteWriter out;
  out.put(static_cast<std::uint32_t>(needs.size()));
  for (const Wanted& w : needs) out.put(w.kind), out.put(w.unit), out.put(w.begin), out.put(w.end);
  return out.take();
}

Result<Needs> decode_needs(ByteSpan bytes, const ModelTable& model) {
  ByteReader in{bytes};
  const auto count = in.get<std::uint32_t>();
  Needs needs;
  for (std::uint32_t i = 0; i < count && !in.broken(); ++i) {
    Wanted w;
    w.kind = in.get<std::uint32_t>(), w.unit = in.get<std::uint32_t>();
    w.begin = in.get<std::uint64_t>(), w.end = in.get<std::uint64_t>();
    const bool is_in_model =
        w.kind < model.kinds.size() && w.unit < model.units.size() && w.begin < w.end && w.end <= model.units[w.unit].elements;
    const bool is_behind = needs.empty() || std::tie(needs.back().kind, needs.back().unit) < std::tie(w.kind, w.unit) ||
                           (needs.back().kind == w.kind && needs.back().unit == w.unit && needs.back().end <= w.begin);
    if (!is_in_model || !is_behind) in.mark_broken();
    needs.push_back(w);
  }
  ELRUN_TRY(in.finish("what a rank needs of a checkpoint"));
  return needs;
}

Result<ReadShare> share_of(const Manifest& manifest, std::span<const Needs> by_rank, std::uint32_t rank) {
  return Sharing{manifest, by_rank}.of(rank);
}

Result<std::vector<std::vector<FileRange>>> all_reads(const Manifest& manifest, std::span<const Needs> by_rank) {
  return Sharing{manifest, by_rank}.of_all();
}

}  // namespace elrun::inline v0
