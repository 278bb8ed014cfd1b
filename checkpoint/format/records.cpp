#include "checkpoint/format/records.hpp"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "checkpoint/format/corrupt.hpp"
#include "checkpoint/format/json.hpp"
#include "lib/base/crc32c.hpp"

namespace elrun::inline v0 {
namespace {

// --- values to JSON ---

Json json_of(const Author& author) {
  return {{"run", as_plain_text(author.run_id)},
          {"generation", author.generation.number},
          {"lineage", hex64(author.generation.lineage.bits[0]) + hex64(author.generation.lineage.bits[1])},
          {"wall_ns", hex64(static_cast<std::uint64_t>(author.wall_ns))}};  // nanoseconds need more than 53 bits
}

Json json_of(const PlanIdentity& plan) { return {{"hash", as_plain_text(plan.hash)}, {"description", as_plain_text(plan.description)}}; }

Json json_of(const ModelTable& model) {
  Json kinds = Json::array(), units = Json::array();
  for (const KindInfo& kind : model.kinds) kinds.push_back({{"name", kind.name}, {"dtype", dtype_name(kind.dtype)}});
  for (const UnitInfo& unit : model.units) {
    Json tensors = Json::array();
    for (const TensorInfo& t : unit.tensors)
      tensors.push_back({{"name", t.name}, {"dtype", dtype_name(t.dtype)}, {"shape", t.shape}, {"offset", t.offset}});
    units.push_back({{"name", unit.name}, {"elements", unit.elements}, {"tensors", std::move(tensors)}});
  }
  return {{"kinds", std::move(kinds)}, {"units", std::move(units)}};
}

Json json_of(const FileRecord& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"header_bytes", file.header_bytes},
          {"table_offset", file.table_offset},
          {"header_crc", hex32(file.header_crc)},
          {"table_crc", hex32(file.table_crc)},
          {"file_crc", hex32(file.file_crc)}};
}

/// Columns, so that a large manifest does not repeat the names of its fields.
Json json_of(const std::vector<FragmentRecord>& fragments) {
  Json rows = Json::array();
  for (const FragmentRecord& f : fragments) rows.push_back(Json::array({f.kind, f.unit, f.begin, f.end, f.file, f.offset}));
  return rows;
}

Json json_of(const std::vector<AuxRecord>& aux) {
  Json rows = Json::array();
  for (const AuxRecord& a : aux) rows.push_back({{"name", a.name}, {"file", a.file}, {"offset", a.offset}, {"bytes", a.bytes}});
  return rows;
}

Json json_of(const std::optional<CheckpointId>& id) { return id ? Json(to_string(*id)) : Json(nullptr); }

Json with_format(Json body) {
  body["format"] = checkpoint_format;
  body["requires"] = Json::array();
  return body;
}

// --- JSON to values ---

/// Says what went wrong first, or nothing.
Result<void> check_format(const Json& body, std::string_view what) {
  std::string problem;
  const Fields fields{body, std::string{what}, problem};
  const std::uint64_t format = fields.number("format");
  const Json& needs = fields.list("requires", 64);
  if (!problem.empty()) return corrupt(problem);
  if (format == checkpoint_format && needs.empty()) return {};
  return Failure{Code::mismatch, Remedy::fix_config,
                 fmt::format("{} has format {} and requires {}; this elrun reads format {} without extensions: use a newer elrun", what,
                             format, canonical(needs), checkpoint_format)};
}

Author author_of(const Fields& in) {
  Author author;
  author.run_id = in.text("run", 4096);
  author.generation.number = in.number("generation");
  const std::string lineage = in.text("lineage", 32);
  const Json halves{{"a", lineage.substr(0, std::min<std::size_t>(16, lineage.size()))},
                    {"b", lineage.size() > 16 ? lineage.substr(16) : ""}};
  std::string problem;
  const Fields parts{halves, in.where(), problem};
  author.generation.lineage.bits = {parts.hex("a", 16), parts.hex("b", 16)};
  if (!problem.empty()) in.complain("has a lineage that is not 32 hexadecimal digits");
  author.wall_ns = static_cast<std::int64_t>(in.hex("wall_ns", 16));
  return author;
}

PlanIdentity plan_of(const Fields& in) { return {in.text("hash", 256), in.text("description", 1 << 16)}; }

DType dtype_of(const Fields& in) {
  DType type{};
  if (!dtype_from_name(in.text("dtype", 8), type)) in.complain("has an unknown dtype");
  return type;
}

ModelTable model_of(const Fields& in, std::string& problem) {
  ModelTable model;
  for (const Json& row : in.list("kinds", kinds_max)) {
    const Fields kind{row, in.where() + ".kinds", problem};
    model.kinds.push_back({kind.text("name", 256), dtype_of(kind)});
  }
  for (const Json& row : in.list("units", units_max)) {
    const Fields unit{row, in.where() + ".units", problem};
    UnitInfo info{unit.text("name", 256), unit.number("elements"), {}};
    for (const Json& tensor_row : unit.list("tensors", tensors_max)) {
      const Fields tensor{tensor_row, unit.where() + ".tensors", problem};
      TensorInfo t{tensor.text("name", 256), dtype_of(tensor), {}, tensor.number("offset")};
      for (const Json& extent : tensor.list("shape", 8)) t.shape.push_back(number_of(extent, json_integer_max, tensor));
      info.tensors.push_back(std::move(t));
    }
    model.units.push_back(std::move(info));
    if (!problem.empty()) return model;
  }
  if (const auto wrong = problems(model); problem.empty() && !wrong.empty()) in.complain(": " + wrong.front());
  return model;
}

std::string root_of(const Fields& in) {
  std::string root = in.text("root", 32);
  if (root.size() != 32 || root.find_first_not_of("0123456789abcdef") != std::string::npos)
    in.complain("has a root that is not 32 hexadecimal digits");
  return root;
}

CheckpointId id_of(const Json& value, const Fields& owner) {
  const auto id = value.is_string() ? parse_checkpoint_id(value.get_ref<const std::string&>()) : std::nullopt;
  if (!id) owner.complain("has something that is not a checkpoint's name");
  return id.value_or(CheckpointId{});
}

CheckpointId id_of(const Fields& in, const char* key) { return id_of(Json(in.text(key, 64)), in); }

std::uint32_t small(std::uint64_t value) { return static_cast<std::uint32_t>(value); }  // bounded by its reader

FileRecord file_of(const Fields& in) {
  FileRecord file{in.text("name", 64),
                  in.number("bytes"),
                  in.number("header_bytes"),
                  in.number("table_offset"),
                  small(in.hex("header_crc", 8)),
                  small(in.hex("table_crc", 8)),
                  small(in.hex("file_crc", 8))};
  const bool sound = file.header_bytes >= 10 && file.header_bytes <= 100'000'008 && file.header_bytes <= file.table_offset &&
                     file.bytes == file.table_offset + 4 * (block_count(file.table_offset) + 1);
  if (!sound) in.complain("has lengths that contradict each other");
  return file;
}

std::vector<FragmentRecord> fragments_of(const Fields& in, std::uint32_t files) {
  std::vector<FragmentRecord> fragments;
  for (const Json& row : in.list("fragments", fragments_max)) {
    if (!row.is_array() || row.size() != 6) {
      in.complain("has a fragment that is not six numbers");
      return {};
    }
    fragments.push_back({.kind = small(number_of(row[0], kinds_max - 1, in)),
                         .unit = small(number_of(row[1], units_max - 1, in)),
                         .file = small(number_of(row[4], files - 1, in)),
                         .begin = number_of(row[2], json_integer_max, in),
                         .end = number_of(row[3], json_integer_max, in),
                         .offset = number_of(row[5], json_integer_max, in)});
    if (fragments.back().begin >= fragments.back().end) in.complain("has an empty fragment");
  }
  return fragments;
}

std::vector<AuxRecord> aux_of(const Fields& in, std::uint32_t files, std::string& problem) {
  std::vector<AuxRecord> aux;
  for (const Json& row : in.list("aux", aux_max)) {
    const Fields entry{row, in.where() + ".aux", problem};
    aux.push_back(
        {entry.text("name", 256), small(entry.number("file", files - 1)), entry.number("offset"), entry.number("bytes", aux_bytes_max)});
    for (std::size_t i = 0; i + 1 < aux.size(); ++i)
      if (aux[i].name == aux.back().name) entry.complain("has a name that occurs twice");
  }
  return aux;
}

std::uint32_t world_of(const Fields& in) {
  const std::uint64_t world = in.number("world", world_max);
  if (world == 0) in.complain("has a world of 0");
  return std::max(small(world), 1u);
}

/// What makes a manifest whole: files named by rank, each range inside its file, each kind of each unit covered once.
std::string whole(const Manifest& m) {
  if (m.files.size() != m.world) return fmt::format("lists {} files for a world of {}", m.files.size(), m.world);
  for (std::uint32_t rank = 0; rank < m.world; ++rank)
    if (m.files[rank].name != shard_name(rank, m.world)) return fmt::format("names file {} {}", rank, m.files[rank].name);
  const auto inside = [&](std::uint32_t file, std::uint64_t offset, std::uint64_t bytes) {
    if (file >= m.files.size()) return false;
    const FileRecord& f = m.files[file];
    return offset >= f.header_bytes && offset <= f.table_offset && bytes <= f.table_offset - offset;
  };
  std::size_t next = 0;
  for (std::uint32_t kind = 0; kind < m.model.kinds.size(); ++kind)
    for (std::uint32_t unit = 0; unit < m.model.units.size(); ++unit) {
      std::uint64_t covered = 0;
      const std::uint64_t elements = m.model.units[unit].elements;
      const auto where = [&] { return fmt::format("{} of {}", m.model.kinds[kind].name, m.model.units[unit].name); };
      for (; next < m.fragments.size() && m.fragments[next].kind == kind && m.fragments[next].unit == unit; ++next) {
        const FragmentRecord& f = m.fragments[next];
        if (f.begin < covered) return fmt::format("has elements from {} of {} twice", f.begin, where());
        if (f.begin > covered) return fmt::format("lacks elements {} to {} of {}", covered, f.begin, where());
        if (f.end > elements) return fmt::format("has elements beyond the {} of {}", elements, where());
        if (!inside(f.file, f.offset, (f.end - f.begin) * size_of(m.model.kinds[kind].dtype)))
          return fmt::format("places elements from {} of {} outside the data of file {}", f.begin, where(), f.file);
        covered = f.end;
      }
      if (covered != elements) return fmt::format("lacks elements {} to {} of {}", covered, elements, where());
    }
  if (next != m.fragments.size()) return "has fragments out of order, or of a kind or unit that it does not list";
  for (const AuxRecord& a : m.aux)
    if (!inside(a.file, a.offset, a.bytes)) return fmt::format("places aux/{} outside the data of file {}", a.name, a.file);
  return {};
}

}  // namespace

std::string to_string(const Author& author) {
  return fmt::format("run \"{}\", lineage {}, generation {}", author.run_id,
                     hex64(author.generation.lineage.bits[0]) + hex64(author.generation.lineage.bits[1]), author.generation.number);
}

std::string encode(const RunRecord& r) {
  return seal(with_format({{"root", r.root}, {"author", json_of(r.author)}, {"plan", json_of(r.plan)}, {"model", json_of(r.model)}}));
}

Result<RunRecord> decode_run(ByteSpan text, std::string_view what) {
  ELRUN_TRY_ASSIGN(const Json body, unseal(text, what));
  ELRUN_TRY(check_format(body, what));
  std::string problem;
  const Fields in{body, std::string{what}, problem};
  RunRecord record{root_of(in), author_of(in.object("author")), plan_of(in.object("plan")), model_of(in.object("model"), problem)};
  if (!problem.empty()) return corrupt(problem);
  return record;
}

std::string encode(const ClaimRecord& r) { return seal(with_format({{"number", r.number}, {"author", json_of(r.author)}})); }

Result<ClaimRecord> decode_claim(ByteSpan text, std::string_view what) {
  ELRUN_TRY_ASSIGN(const Json body, unseal(text, what));
  ELRUN_TRY(check_format(body, what));
  std::string problem;
  const Fields in{body, std::string{what}, problem};
  ClaimRecord record{in.number("number", fence_max), author_of(in.object("author"))};
  if (!problem.empty()) return corrupt(problem);
  return record;
}

std::string encode(const FenceRecord& r) {
  Json inherits = Json::array();
  for (const CheckpointId& id : r.inherits) inherits.push_back(to_string(id));
  Json gives_up = Json::array();
  for (const GivenUp& g : r.gives_up) gives_up.push_back({{"checkpoint", to_string(g.id)}, {"root", g.root}});
  return seal(with_format({{"number", r.number},
                           {"author", json_of(r.author)},
                           {"world", r.world},
                           {"inherits", std::move(inherits)},
                           {"gives_up", std::move(gives_up)},
                           {"resumed_from", json_of(r.resumed_from)}}));
}

Result<FenceRecord> decode_fence(ByteSpan text, std::string_view what) {
  ELRUN_TRY_ASSIGN(const Json body, unseal(text, what));
  ELRUN_TRY(check_format(body, what));
  std::string problem;
  const Fields in{body, std::string{what}, problem};
  FenceRecord record{in.number("number", fence_max), author_of(in.object("author")), world_of(in), {}, {}, {}};
  for (const Json& id : in.list("inherits", 1 << 20)) record.inherits.push_back(id_of(id, in));
  if (!std::is_sorted(record.inherits.begin(), record.inherits.end())) in.complain("inherits in no order");
  if (!body.contains("resumed_from") || !body["resumed_from"].is_null()) record.resumed_from = id_of(in, "resumed_from");
  if (body.contains("gives_up"))  // not in the fences of elrun 0.1.0
    for (const Json& row : in.list("gives_up", given_up_max)) {
      const Fields given{row, in.where() + ".gives_up", problem};
      record.gives_up.push_back({id_of(given, "checkpoint"), given.text("root", 32)});
    }
  if (!problem.empty()) return corrupt(problem);
  return record;
}

std::string encode(const Acknowledgement& r) {
  return seal(with_format({{"checkpoint", to_string(r.id)},
                           {"root", r.root},
                           {"author", json_of(r.author)},
                           {"directory", as_plain_text(r.directory)},
                           {"plan", as_plain_text(r.plan)}}));
}

Result<Acknowledgement> decode_acknowledgement(ByteSpan text, std::string_view what) {
  ELRUN_TRY_ASSIGN(const Json body, unseal(text, what));
  ELRUN_TRY(check_format(body, what));
  std::string problem;
  const Fields in{body, std::string{what}, problem};
  Acknowledgement record{id_of(in, "checkpoint"), root_of(in), author_of(in.object("author")), in.text("directory", 4096),
                         in.text("plan", 256)};
  if (!problem.empty()) return corrupt(problem);
  return record;
}

std::string encode(const PartRecord& r) {
  return seal(with_format({{"checkpoint", to_string(r.id)},
                           {"root", r.root},
                           {"rank", r.rank},
                           {"world", r.world},
                           {"file", json_of(r.file)},
                           {"fragments", json_of(r.fragments)},
                           {"aux", json_of(r.aux)}}));
}

Result<PartRecord> decode_part(ByteSpan text, std::string_view what) {
  ELRUN_TRY_ASSIGN(const Json body, unseal(text, what));
  ELRUN_TRY(check_format(body, what));
  std::string problem;
  const Fields in{body, std::string{what}, problem};
  PartRecord record;
  record.id = id_of(in, "checkpoint");
  record.root = root_of(in);
  record.world = world_of(in);
  record.rank = small(in.number("rank", record.world - 1));
  record.file = file_of(in.object("file"));
  record.fragments = fragments_of(in, record.world);
  record.aux = aux_of(in, record.world, problem);
  for (const FragmentRecord& f : record.fragments)
    if (f.file != record.rank) in.complain("lists a range of another rank's file");
  for (const AuxRecord& a : record.aux)
    if (a.file != record.rank) in.complain("lists host state in another rank's file");
  if (!problem.empty()) return corrupt(problem);
  return record;
}

Result<Manifest> merge(Manifest head, std::vector<PartRecord> parts) {
  std::sort(parts.begin(), parts.end(), [](const PartRecord& a, const PartRecord& b) { return a.rank < b.rank; });
  for (PartRecord& part : parts) {
    if (part.id != head.id || part.root != head.root || part.world != head.world)
      return corrupt(fmt::format("{} belongs to {} of a world of {}, not to {} of {}", part_name(part.rank, part.world), to_string(part.id),
                                 part.world, to_string(head.id), head.world));
    head.files.push_back(std::move(part.file));
    head.fragments.insert(head.fragments.end(), part.fragments.begin(), part.fragments.end());
    head.aux.insert(head.aux.end(), part.aux.begin(), part.aux.end());
  }
  const auto order = [](const FragmentRecord& f) { return std::tuple{f.kind, f.unit, f.begin}; };
  std::sort(head.fragments.begin(), head.fragments.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  // A program that saves the wrong ranges is a bug of the job, found before the commit and not at the restore.
  if (const std::string problem = whole(head); !problem.empty())
    return Failure{Code::invalid_argument, Remedy::exit_process,
                   fmt::format("the ranks' parts of {} make no checkpoint: it {}", to_string(head.id), problem)};
  return head;
}

std::string encode(const Manifest& m) {
  Json files = Json::array();
  for (const FileRecord& file : m.files) files.push_back(json_of(file));
  return canonical(with_format({{"checkpoint", to_string(m.id)},
                                {"step", m.id.step},
                                {"root", m.root},
                                {"author", json_of(m.author)},
                                {"parent", json_of(m.parent)},
                                {"world", m.world},
                                {"plan", json_of(m.plan)},
                                {"model", json_of(m.model)},
                                {"files", std::move(files)},
                                {"fragments", json_of(m.fragments)},
                                {"aux", json_of(m.aux)},
                                {"writer", "elrun 0.1"}})) +
         "\n";
}

Result<void> check_manifest_size(std::size_t fragments, std::size_t text_bytes) {
  const auto refused = [](std::string what) { return Failure{Code::exhausted, Remedy::fix_config, std::move(what)}; };
  if (fragments > fragments_max)
    return refused(fmt::format("the manifest would list {} ranges of elements, and at most {} can be read back: use fewer and larger units",
                               fragments, fragments_max));
  if (text_bytes > manifest_bytes_max.value()) return refused(fmt::format("the manifest would have {} bytes; use fewer units", text_bytes));
  return {};
}

Result<void> check_run_size(std::size_t text_bytes) {
  if (text_bytes <= record_bytes_max.value()) return {};
  return Failure{Code::exhausted, Remedy::fix_config,
                 fmt::format("RUN.json would have {} bytes, and at most {} can be read back: use fewer units and tensors, or shorter names",
                             text_bytes, record_bytes_max.value())};
}

Result<Manifest> decode_manifest(ByteSpan text, std::string_view what) {
  ELRUN_TRY_ASSIGN(const Json body, parse_json(text, what));
  if (!body.is_object()) return corrupt(fmt::format("{} is not an object", what));
  ELRUN_TRY(check_format(body, what));
  std::string problem;
  const Fields in{body, std::string{what}, problem};
  Manifest m;
  m.id = id_of(in, "checkpoint");
  m.root = root_of(in);
  m.author = author_of(in.object("author"));
  if (!body.contains("parent") || !body["parent"].is_null()) m.parent = id_of(in, "parent");
  m.world = world_of(in);
  m.plan = plan_of(in.object("plan"));
  m.model = model_of(in.object("model"), problem);
  for (const Json& row : in.list("files", world_max)) m.files.push_back(file_of(Fields{row, in.where() + ".files", problem}));
  m.fragments = fragments_of(in, m.world);
  m.aux = aux_of(in, m.world, problem);
  if (problem.empty())
    if (const std::string hole = whole(m); !hole.empty()) in.complain(hole);
  if (!problem.empty()) return corrupt(problem);
  return m;
}

std::string encode(const CommitRecord& r) {
  const std::string line = canonical(with_format({{"checkpoint", to_string(r.id)},
                                                  {"root", r.root},
                                                  {"author", json_of(r.author)},
                                                  {"manifest_bytes", r.manifest_bytes},
                                                  {"manifest_crc", hex32(r.manifest_crc)},
                                                  {"manifest_sha256", r.manifest_sha256},
                                                  {"files", r.files},
                                                  {"total_bytes", r.total_bytes}})) +
                           "\n";
  return line + hex32(crc32c(as_bytes(line))) + "\n";
}

Result<CommitRecord> decode_commit(ByteSpan text, std::string_view what) {
  constexpr std::size_t tail = 9;  // eight digits and a newline
  if (text.size() <= tail || as_text(text.last(tail)) != hex32(crc32c(text.first(text.size() - tail))) + "\n")
    return corrupt(fmt::format("{} does not match its checksum", what));
  ELRUN_TRY_ASSIGN(const Json body, parse_json(text.first(text.size() - tail), what));
  if (!body.is_object()) return corrupt(fmt::format("{} is not an object", what));
  ELRUN_TRY(check_format(body, what));
  std::string problem;
  const Fields in{body, std::string{what}, problem};
  CommitRecord record{id_of(in, "checkpoint"),          root_of(in),
                      author_of(in.object("author")),   in.number("manifest_bytes", manifest_bytes_max.value()),
                      small(in.hex("manifest_crc", 8)), in.text("manifest_sha256", 64),
                      in.number("files", world_max),    in.number("total_bytes")};
  if (!problem.empty()) return corrupt(problem);
  return record;
}

}  // namespace elrun::inline v0
