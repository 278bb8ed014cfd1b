#include "checkpoint/format/shard.hpp"

#include <algorithm>
#include <cstring>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/format/boxes.hpp"
#include "checkpoint/format/json.hpp"
#include "checkpoint/format/plan.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr const char* table_name = "__elrun_crc32c";
constexpr const char* flat_prefix = "__elrun_flat/";  // no kind's name begins so

Failure corrupt(std::string_view what, std::string_view problem) {
  return {.code = Code::corrupt, .remedy = Remedy::fix_config, .what = fmt::format("{} {}", what, problem)};
}

TensorEntry read_entry(const std::string& name, const Json& value, const std::string& what, std::string& problem) {
  const Fields in{value, fmt::format("{} tensor {}", what, as_plain_text(name)), problem};
  TensorEntry entry{.name = name, .shape = {}};
  if (!dtype_from_name(in.text("dtype", 8), entry.dtype)) in.complain("has a dtype that elrun does not write");
  std::uint64_t size = size_of(entry.dtype);
  for (const Json& extent : in.list("shape", 8)) {
    entry.shape.push_back(number_of(extent, json_integer_max, in));
    if (__builtin_mul_overflow(size, entry.shape.back(), &size)) in.complain("is larger than any file");
  }
  const Json& offsets = in.list("data_offsets", 2);
  if (offsets.size() == 2) {
    entry.begin = number_of(offsets[0], json_integer_max, in);
    entry.end = number_of(offsets[1], json_integer_max, in);
  } else {
    in.complain("has no two data_offsets");
  }
  if (entry.begin > entry.end || entry.end - entry.begin != size) in.complain("has offsets that do not fit its shape");
  return entry;
}

}  // namespace

Result<std::uint64_t> shard_header_length(std::span<const std::byte, 8> start, std::uint64_t file_bytes, std::string_view what) {
  std::uint64_t length = 0;
  std::memcpy(&length, start.data(), sizeof length);
  if (length < 2 || length > shard_header_bytes_max || length > file_bytes || file_bytes - length < 8)
    return corrupt(what, fmt::format("says that its header has {} bytes, of {} in the file", length, file_bytes));
  return length + 8;
}

Result<ShardHeader> decode_shard_header(ByteSpan bytes, std::uint64_t file_bytes, std::string_view what) {
  if (bytes.size() < 8) return corrupt(what, "ends in its first 8 bytes");
  ELRUN_TRY_ASSIGN(const std::uint64_t length, shard_header_length(bytes.first<8>(), file_bytes, what));
  if (length != bytes.size()) return corrupt(what, "has a header of another length");
  if (bytes[8] != std::byte{'{'}) return corrupt(what, "has a header that does not begin with {");
  ELRUN_TRY_ASSIGN(const Json json, parse_json(bytes.subspan(8), what));
  std::string problem;
  ShardHeader header;
  for (const auto& [name, value] : json.items()) {
    if (name != "__metadata__") {
      header.tensors.push_back(read_entry(name, value, std::string{what}, problem));
    } else if (value.is_object()) {
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) return corrupt(what, "has metadata that is not text");
        header.metadata[key] = text.get<std::string>();
      }
    } else {
      return corrupt(what, "has metadata that is no object");
    }
    if (!problem.empty()) return Failure{Code::corrupt, Remedy::fix_config, problem};
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name); });
  std::uint64_t next = 0;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.begin != next) return corrupt(what, fmt::format("has a hole or an overlap before tensor {}", as_plain_text(entry.name)));
    next = entry.end;
  }
  if (next != file_bytes - length)
    return corrupt(what, fmt::format("has {} bytes of data, its header lists {}", file_bytes - length, next));
  return header;
}

ByteVector encode_shard_header(const ShardHeader& header) {
  const auto quoted = [](const std::string& text) { return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace); };
  std::string text = "{\"__metadata__\":{";
  for (const char* comma = ""; const auto& [key, value] : header.metadata) {
    text += fmt::format("{}{}:{}", comma, quoted(key), quoted(value));
    comma = ",";
  }
  text += "}";
  for (const TensorEntry& t : header.tensors)
    text += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", quoted(t.name), dtype_name(t.dtype),
                        fmt::join(t.shape, ","), t.begin, t.end);
  text += "}";
  text.resize(aligned_data(8 + text.size()) - 8, ' ');
  ByteWriter out;
  out.put(std::uint64_t{text.size()});
  out.put_raw(as_bytes(text));
  return out.take();
}

namespace {

/// What a rank writes of one fragment.
struct ShardPiece {
  FragmentRecord record;
  ByteSpan bytes;
};

/// By kind, unit and begin.
std::vector<ShardPiece> pieces_of(const ModelTable& model, std::span<const Fragment> fragments, std::uint32_t rank, std::uint32_t world) {
  std::vector<ShardPiece> pieces;
  for (const Fragment& f : fragments) {
    const auto [begin, end] = f.replicated ? slice_of(f.begin, f.end, rank, world) : std::pair{f.begin, f.end};
    if (begin == end) continue;
    const auto named = [&](const KindInfo& kind) { return kind.name == f.kind; };
    const auto kind = static_cast<std::uint32_t>(std::find_if(model.kinds.begin(), model.kinds.end(), named) - model.kinds.begin());
    const std::uint64_t size = size_of(model.kinds[kind].dtype);
    pieces.push_back({{.kind = kind, .unit = static_cast<std::uint32_t>(f.unit), .file = rank, .begin = begin, .end = end, .offset = 0},
                      ByteSpan{f.bytes}.subspan((begin - f.begin) * size, (end - begin) * size)});
  }
  std::sort(pieces.begin(), pieces.end(), [](const ShardPiece& a, const ShardPiece& b) {
    return std::tie(a.record.kind, a.record.unit, a.record.begin) < std::tie(b.record.kind, b.record.unit, b.record.begin);
  });
  return pieces;
}

std::vector<std::string> problems_of_host_state(std::uint32_t rank, std::span<const Aux> aux) {
  std::vector<std::string> wrong;
  std::set<std::string> names;
  if (rank == 0 && aux.size() > aux_max)
    wrong.push_back(fmt::format("{} entries of host state; at most {} can be saved", aux.size(), aux_max));
  for (const Aux& a : aux) {
    if (!is_plain_text(a.name) || !names.insert(a.name).second)
      wrong.push_back(fmt::format("host state \"{}\": use a printable name, once", as_plain_text(a.name)));
    if (a.bytes.size() > aux_bytes_max)
      wrong.push_back(fmt::format("host state {} has {} bytes; at most {} can be saved", a.name, a.bytes.size(), aux_bytes_max));
  }
  return wrong;
}

/// The data of a shard while it grows, in the file and in its header. Offsets count from the data's begin.
class ShardData {
 public:
  ShardData(const ModelTable& model, ShardLayout& shard, ShardHeader& header)
      : model_{model}, names_{model}, shard_{shard}, header_{header} {}

  void append(std::string name, DType dtype, std::vector<std::uint64_t> shape, std::uint64_t elements) {
    const std::uint64_t bytes = elements * size_of(dtype);
    header_.tensors.push_back({std::move(name), dtype, std::move(shape), offset_, offset_ + bytes});
    offset_ += bytes;
  }
  void append_bytes(std::string name, ByteSpan bytes) {
    append(std::move(name), DType::u8, {bytes.size()}, bytes.size());
    if (!bytes.empty()) shard_.data.push_back(Segment{.bytes = bytes});
  }
  void append(ShardPiece piece) {
    FragmentRecord& record = piece.record;
    if (!shard_.part.fragments.empty() && shard_.part.fragments.back().kind != record.kind) align();
    record.offset = offset_;
    shard_.part.fragments.push_back(record);
    shard_.data.push_back(Segment{.bytes = piece.bytes});
    const UnitInfo& unit = model_.units[record.unit];
    const KindInfo& kind = model_.kinds[record.kind];
    units_[unit.name] = unit.elements;
    for (NamedRun& run : names_.cut(record.unit, record.begin, record.end)) {
      if (run.is_tensor) {
        const TensorInfo& tensor = unit.tensors[run.tensor];
        tensors_[names_.name(record.unit, run.tensor)] = {
            {"unit", unit.name}, {"tensor", tensor.name}, {"offset", tensor.offset}, {"shape", tensor.shape}};
      }
      append(fmt::format("{}{}/{}", run.is_tensor ? "" : flat_prefix, kind.name, run.name), kind.dtype, std::move(run.shape), run.elements);
    }
  }

  [[nodiscard]] std::uint64_t bytes() const { return offset_; }
  [[nodiscard]] const Json& tensors() const { return tensors_; }
  [[nodiscard]] const Json& units() const { return units_; }

 private:
  void align() {
    const std::uint64_t pad = aligned_data(offset_) - offset_;
    if (pad == 0) return;
    append(fmt::format("__elrun_pad_{}", header_.tensors.size()), DType::u8, {pad}, pad);
    shard_.data.push_back(Segment{.zeros = pad});
  }

  const ModelTable& model_;
  TensorNames names_;
  ShardLayout& shard_;
  ShardHeader& header_;
  std::uint64_t offset_ = 0;
  Json tensors_ = Json::object(), units_ = Json::object();
};

/// Appends the block table to the header, and sets its lengths and its text. The table's length follows from the header's, and the header lists the
/// table: the second pass has the fixed point, for a header is a multiple of 4096 and the number of blocks changes its text by a digit or two at most.
Result<void> close_header(ShardHeader header, std::uint64_t data_bytes, ShardLayout& shard) {
  FileRecord& file = shard.part.file;
  header.tensors.push_back({table_name, DType::u8, {0}, data_bytes, data_bytes});
  TensorEntry& table = header.tensors.back();
  for (file.header_bytes = 0; shard.header.size() != file.header_bytes || file.header_bytes == 0;) {
    file.header_bytes = shard.header.empty() ? aligned_data(1) : shard.header.size();
    file.table_offset = file.header_bytes + data_bytes;
    table.shape = {4 * (block_count(file.table_offset, file.block_bytes) + 1)};
    table.end = table.begin + table.shape[0];
    shard.header = encode_shard_header(header);
    if (shard.header.size() > shard_header_bytes_max)
      return invalid(fmt::format("the header of {} would have {} bytes; use fewer and larger units", file.name, shard.header.size()));
  }
  file.bytes = file.table_offset + table.shape[0];
  file.header_crc = crc32c(shard.header);
  return {};
}

}  // namespace

Result<ShardLayout> lay_out_shard(const ModelTable& model, CheckpointId id, const std::string& root, const Author& author,
                                  std::uint32_t rank, std::uint32_t world, std::span<const Fragment> fragments, std::span<const Aux> aux,
                                  std::uint64_t bytes_per_block) {
  std::vector<std::string> wrong = problems(model, fragments);
  for (std::string& line : problems_of_host_state(rank, aux)) wrong.push_back(std::move(line));
  if (!wrong.empty()) return invalid(wrong);

  ShardLayout shard;
  shard.part = {.id = id,
                .root = root,
                .rank = rank,
                .world = world,
                .file = {.name = shard_name(rank, world), .block_bytes = bytes_per_block},
                .fragments = {},
                .aux = {}};
  ShardHeader header;
  ShardData data{model, shard, header};
  for (const ShardPiece& piece : pieces_of(model, fragments, rank, world)) data.append(piece);
  if (rank == 0)
    for (const Aux& a : aux) {
      shard.part.aux.push_back({a.name, rank, data.bytes(), a.bytes.size()});
      data.append_bytes("aux/" + a.name, a.bytes);
    }
  header.metadata = {{"elrun.format", std::to_string(checkpoint_format)},
                     {"elrun.root", root},
                     {"elrun.run", as_plain_text(author.run_id)},
                     {"elrun.ckpt", to_string(id)},
                     {"elrun.step", std::to_string(id.step)},
                     {"elrun.generation", std::to_string(author.generation.number)},
                     {"elrun.rank", std::to_string(rank)},
                     {"elrun.world", std::to_string(world)},
                     {"elrun.crc", fmt::format("crc32c;{}", shard.part.file.block_bytes)},
                     {"elrun.tensors", canonical(data.tensors())},
                     {"elrun.units", canonical(data.units())}};
  ELRUN_TRY(close_header(std::move(header), data.bytes(), shard));
  for (FragmentRecord& f : shard.part.fragments) f.offset += shard.part.file.header_bytes;
  for (AuxRecord& a : shard.part.aux) a.offset += shard.part.file.header_bytes;
  return shard;
}

ByteVector BlockTable::finish(std::uint32_t header_crc) const {
  ByteWriter out;
  for (const std::uint32_t crc : crcs_) out.put(crc);
  out.put(header_crc);
  return out.take();
}

std::uint32_t BlockTable::whole() const {
  if (crcs_.empty()) return 0;
  const Crc32cShift block{block_bytes_};
  std::uint32_t crc = 0;
  for (std::size_t i = 0; i + 1 < crcs_.size(); ++i) crc = block.combine(crc, crcs_[i]);
  return crc32c_combine(crc, crcs_.back(), bytes_ - (crcs_.size() - 1) * block_bytes_);
}

}  // namespace elrun::inline v0
