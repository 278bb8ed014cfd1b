#include "checkpoint/tools/compare.hpp"

#include <algorithm>
#include <list>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/format/plan.hpp"
#include "checkpoint/storage/shard_file.hpp"
#include "checkpoint/tiers/files_tier.hpp"
#include "checkpoint/tools/listing.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::uint64_t chunk_bytes = 4u << 20;  // of one tensor, on each side
constexpr std::size_t open_shards_max = 16;      // on each side; each holds some blocks

/// Reads ranges of a checkpoint; the shards that were used last stay open.
class Reader {
 public:
  Reader(Files& files, const Side& side) : tier_{files, side.directory}, side_{side} {}

  Result<void> read(const std::string& kind, std::uint64_t unit, std::uint64_t begin, std::uint64_t end, std::span<std::byte> out) {
    const Fragment wanted{kind, unit, begin, end, out};
    ELRUN_TRY_ASSIGN(const auto reads, plan_reads(side_.manifest, {&wanted, 1}));
    return read(reads, out);
  }
  Result<void> read(const AuxRecord& aux, std::span<std::byte> out) {
    return read(std::vector<ReadExtent>{{aux.file, aux.offset, aux.bytes, 0, 0}}, out);
  }

 private:
  Result<void> read(const std::vector<ReadExtent>& reads, std::span<std::byte> out) {
    for (std::size_t from = 0, until = 0; from < reads.size(); from = until) {
      while (until < reads.size() && reads[until].file == reads[from].file) ++until;
      ELRUN_TRY_ASSIGN(ShardReader* const shard, open(reads[from].file));
      ELRUN_TRY(shard->read(std::span{reads}.subspan(from, until - from), {&out, 1}));
    }
    return {};
  }

  Result<ShardReader*> open(std::uint32_t file) {
    const auto at = std::find_if(shards_.begin(), shards_.end(), [&](const auto& s) { return s.first == file; });
    if (at != shards_.end()) {
      shards_.splice(shards_.begin(), shards_, at);
      return &shards_.front().second;
    }
    ELRUN_TRY_ASSIGN(ShardReader shard, ShardReader::open(tier_, "", side_.manifest.files[file]));
    if (shards_.size() == open_shards_max) shards_.pop_back();
    shards_.emplace_front(file, std::move(shard));
    return &shards_.front().second;
  }

  FilesTier tier_;
  const Side& side_;
  std::list<std::pair<std::uint32_t, ShardReader>> shards_;  // the last used one first
};

Result<Difference> compare_elements(Reader& a, Reader& b, const StoredTensor& of_a, const StoredTensor& of_b) {
  Difference found;
  const std::uint64_t size = size_of(of_a.dtype), all = of_a.elements();
  ByteVector left, right;
  for (std::uint64_t at = 0; at < all;) {
    const std::uint64_t count = std::min(all - at, chunk_bytes / size);
    left.resize(count * size), right.resize(count * size);
    ELRUN_TRY(a.read(of_a.kind, of_a.unit, of_a.begin + at, of_a.begin + at + count, left));
    ELRUN_TRY(b.read(of_b.kind, of_b.unit, of_b.begin + at, of_b.begin + at + count, right));
    found.add(of_a.dtype, left, right);
    at += count;
  }
  return found;
}

Result<std::vector<TensorDifference>> compare_tensors(Reader& a, Reader& b, const ModelTable& of_a, const ModelTable& of_b) {
  using As = TensorDifference::As;
  const std::vector<StoredTensor> left = tensors_of(of_a), right = tensors_of(of_b);
  std::vector<TensorDifference> all;
  for (const TensorPair& pair : pairs(left, right)) {
    const StoredTensor* x = pair.a < 0 ? nullptr : &left[static_cast<std::size_t>(pair.a)];
    const StoredTensor* y = pair.b < 0 ? nullptr : &right[static_cast<std::size_t>(pair.b)];
    TensorDifference one{.name = (x != nullptr ? x : y)->name};
    if (x != nullptr) one.dtype_a = x->dtype, one.shape_a = x->shape;
    if (y != nullptr) one.dtype_b = y->dtype, one.shape_b = y->shape;
    if (y == nullptr) one.as = As::only_in_a;
    else if (x == nullptr) one.as = As::only_in_b;
    else if (x->shape != y->shape || x->dtype != y->dtype) one.as = As::other_shape;
    else {
      ELRUN_TRY_ASSIGN(one.difference, compare_elements(a, b, *x, *y));
      if (one.difference.different > 0) one.as = As::different;
    }
    all.push_back(std::move(one));
  }
  return all;
}

/// What a job notes of its declarations, for messages alone. Checkpoints of versions before have no such entry, and equal state all the same.
bool is_note(const std::string& name) { return name == "elrun.tensors"; }
/// Where the state was computed is no part of it: two models of GPU that give the same bits give equal states.
bool is_state(const AuxRecord& record) { return record.name != "elrun.device_model"; }

Result<std::vector<TensorDifference>> compare_host_state(Reader& a, Reader& b, const Manifest& of_a, const Manifest& of_b) {
  using As = TensorDifference::As;
  std::vector<TensorDifference> all;
  const auto find = [](const Manifest& m, const std::string& name) {
    const auto at = std::find_if(m.aux.begin(), m.aux.end(), [&](const AuxRecord& r) { return r.name == name; });
    return at == m.aux.end() ? nullptr : &*at;
  };
  for (const AuxRecord& x : of_a.aux) {
    const AuxRecord* y = find(of_b, x.name);
    if (!is_state(x) || (y == nullptr && is_note(x.name))) continue;
    TensorDifference one{.name = x.name, .dtype_a = DType::u8, .dtype_b = DType::u8, .shape_a = {x.bytes}, .shape_b = {}};
    if (y != nullptr) one.shape_b = {y->bytes};
    if (y == nullptr) one.as = As::only_in_a;
    else if (x.bytes != y->bytes) one.as = As::other_shape;
    else if (x.bytes > 0) {
      ByteVector left(x.bytes), right(x.bytes);
      ELRUN_TRY(a.read(x, left));
      ELRUN_TRY(b.read(*y, right));
      one.difference.add(DType::u8, left, right);
      if (one.difference.different > 0) one.as = As::different;
    }
    all.push_back(std::move(one));
  }
  for (const AuxRecord& y : of_b.aux)
    if (is_state(y) && find(of_a, y.name) == nullptr && !is_note(y.name))
      all.push_back({.name = y.name, .as = As::only_in_b, .dtype_a = DType::u8, .dtype_b = DType::u8, .shape_a = {}, .shape_b = {y.bytes}});
  return all;
}

const char* word_for(TensorDifference::As as) {
  switch (as) {
    case TensorDifference::As::equal: return "equal";
    case TensorDifference::As::different: return "different";
    case TensorDifference::As::only_in_a: return "only in A";
    case TensorDifference::As::only_in_b: return "only in B";
    case TensorDifference::As::other_shape: return "another shape";
  }
  return "";
}

std::string line_of(const TensorDifference& one) {
  const Difference& d = one.difference;
  std::string text = fmt::format("  {}: {}", printable(one.name), word_for(one.as));
  if (one.as == TensorDifference::As::different) {
    text += fmt::format(", {} of {} elements, first at {}: {:.9g} and {:.9g}, largest difference {:.9g}", d.different, d.elements,
                        index_text(d.first, one.shape_a), d.first_a, d.first_b, d.largest);
    if (d.not_numbers > 0) text += fmt::format("; of {} the difference is no number (infinite, NaN)", d.not_numbers);
  }
  if (one.as == TensorDifference::As::other_shape)
    text += fmt::format(", {} {} and {} {}", dtype_name(one.dtype_a), shape_text(one.shape_a), dtype_name(one.dtype_b),
                        shape_text(one.shape_b));
  return text + "\n";
}

/// Lines of the plans' descriptions that one of them has alone, behind the side that has it.
std::vector<std::string> plan_differences(const PlanIdentity& a, const PlanIdentity& b) {
  std::vector<std::string> all;
  const auto add_missing = [&](const char* side, const std::string& from, const std::string& in) {
    for (std::size_t begin = 0; begin < from.size();) {
      const std::size_t end = std::min(from.find('\n', begin), from.size());
      const std::string line = from.substr(begin, end - begin);
      if (!line.empty() && ("\n" + in + "\n").find("\n" + line + "\n") == std::string::npos)
        all.push_back(fmt::format("{}: {}", side, line));
      begin = end + 1;
    }
  };
  add_missing("A", a.description, b.description);
  add_missing("B", b.description, a.description);
  return all;
}

std::size_t equal_count(const std::vector<TensorDifference>& all) {
  return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), [](const auto& t) { return t.as == TensorDifference::As::equal; }));
}

std::string part_text(const std::vector<TensorDifference>& all, std::string_view noun) {
  if (all.empty()) return {};
  std::string text = fmt::format("{} of {} {}\n", equal_count(all), count_of(all.size(), noun), all.size() == 1 ? "is equal" : "are equal");
  for (const TensorDifference& one : all)
    if (one.as != TensorDifference::As::equal) text += line_of(one);
  return text;
}

Json part_json(const std::vector<TensorDifference>& all) {
  Json out = Json::array();
  for (const TensorDifference& one : all) {
    Json row{{"name", one.name}, {"is", word_for(one.as)}};
    if (one.as != TensorDifference::As::only_in_b) row["shape_a"] = one.shape_a, row["dtype_a"] = dtype_name(one.dtype_a);
    if (one.as != TensorDifference::As::only_in_a) row["shape_b"] = one.shape_b, row["dtype_b"] = dtype_name(one.dtype_b);
    const Difference& d = one.difference;
    row["elements"] = d.elements;
    row["different"] = d.different;
    if (d.different > 0)
      row["first"] = d.first, row["first_a"] = d.first_a, row["first_b"] = d.first_b, row["largest"] = d.largest,
      row["not_numbers"] = d.not_numbers;
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace

Result<Side> side_of(Files& files, const ReadCheckpoint& checkpoint) {
  ELRUN_TRY_ASSIGN(auto one, inspect(files, checkpoint));
  if (!one.problem.empty())
    return Failure{Code::corrupt, Remedy::fix_config, fmt::format("{} is damaged, and not compared: {}", one.where, one.problem)};
  return Side{std::move(one.where), checkpoint.directory, std::move(one.manifest)};
}

bool Comparison::equal() const { return equal_count(tensors) == tensors.size() && equal_count(host_state) == host_state.size(); }

Result<Comparison> compare(Files& files, const Side& a, const Side& b) {
  Reader left{files, a}, right{files, b};
  Comparison all;
  ELRUN_TRY_ASSIGN(all.tensors, compare_tensors(left, right, a.manifest.model, b.manifest.model));
  ELRUN_TRY_ASSIGN(all.host_state, compare_host_state(left, right, a.manifest, b.manifest));
  return all;
}

std::string comparison_text(const Comparison& all, const Side& a, const Side& b) {
  std::string text = fmt::format("A {}: step {}, world {}\nB {}: step {}, world {}\n", printable(a.name), a.manifest.id.step,
                                 a.manifest.world, printable(b.name), b.manifest.id.step, b.manifest.world);
  for (const std::string& line : plan_differences(a.manifest.plan, b.manifest.plan)) text += fmt::format("  plan of {}\n", printable(line));
  text += part_text(all.tensors, "tensor") + part_text(all.host_state, "host value");
  return text + (all.equal() ? "The states are equal.\n" : "The states differ.\n");
}

Json comparison_json(const Comparison& all, const Side& a, const Side& b) {
  const auto side = [](const Side& s) {
    return Json{{"name", s.name}, {"checkpoint", to_string(s.manifest.id)}, {"step", s.manifest.id.step}, {"world", s.manifest.world}};
  };
  return {{"a", side(a)},
          {"b", side(b)},
          {"equal", all.equal()},
          {"plan", plan_differences(a.manifest.plan, b.manifest.plan)},
          {"tensors", part_json(all.tensors)},
          {"host_state", part_json(all.host_state)}};
}

}  // namespace elrun::inline v0
