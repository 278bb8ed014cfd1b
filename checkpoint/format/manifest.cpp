// Parts and manifests: what a save wrote, by rank and as a whole.

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/format/corrupt.hpp"
#include "checkpoint/format/json.hpp"
#include "checkpoint/format/record_json.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/format/state_layout.hpp"

namespace elrun::inline v0 {
namespace {

// --- values to JSON ---

Json json_of(const FileRecord& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"header_bytes", file.header_bytes},
          {"table_offset", file.table_offset},
          {"header_crc", hex32(file.header_crc)},
          {"table_crc", hex32(file.table_crc)},
          {"file_crc", hex32(file.file_crc)},
          {"block_bytes", file.block_bytes}};
}

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

/// One value per rank, as [how many ranks, value] where neighbours have the same.
Json column(std::span<const FileRecord> files, std::uint64_t (*value)(const FileRecord&)) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < files.size();) {
    std::size_t next = i + 1;
    while (next < files.size() && value(files[next]) == value(files[i])) ++next;
    rows.push_back(Json::array({next - i, value(files[i])}));
    i = next;
  }
  return rows;
}

/// 8 digits per rank.
Json digits_column(std::span<const FileRecord> files, std::uint32_t FileRecord::*crc) {
  std::string digits;
  digits.reserve(8 * files.size());
  for (const FileRecord& file : files) digits += hex32(file.*crc);
  return digits;
}

Json json_of(const std::vector<FileRecord>& files) {
  return {{"block_bytes", files.empty() ? block_bytes : files.front().block_bytes},
          {"header_bytes", column(files, [](const FileRecord& f) { return f.header_bytes; })},
          {"data_bytes", column(files, [](const FileRecord& f) { return f.table_offset - f.header_bytes; })},
          {"header_crcs", digits_column(files, &FileRecord::header_crc)},
          {"table_crcs", digits_column(files, &FileRecord::table_crc)},
          {"file_crcs", digits_column(files, &FileRecord::file_crc)}};
}

Json json_of(const StateLayout& layout) {
  Json splits = Json::array();
  for (const UnitSplit& split : layout.splits) {
    Json rules = Json::array();
    for (const RankRuns& r : split) rules.push_back(Json::array({r.count, r.each, r.rank, r.step}));
    splits.push_back(std::move(rules));
  }
  return {{"splits", std::move(splits)}, {"split_of", layout.split_of}};
}

// --- JSON to values ---

/// The lengths of a file do not contradict each other.
bool is_sound(const FileRecord& file) {
  return std::has_single_bit(file.block_bytes) && file.block_bytes >= block_bytes_min && file.block_bytes <= block_bytes_max &&
         file.header_bytes >= 10 && file.header_bytes <= 100'000'008 && file.header_bytes <= file.table_offset &&
         file.bytes == file.table_offset + 4 * (block_count(file.table_offset, file.block_bytes) + 1);
}

FileRecord file_of(const Fields& in, std::uint64_t format) {
  FileRecord file{in.text("name", 64),
                  in.number("bytes"),
                  in.number("header_bytes"),
                  in.number("table_offset"),
                  small(in.hex("header_crc", 8)),
                  small(in.hex("table_crc", 8)),
                  small(in.hex("file_crc", 8)),
                  format == 1 ? block_bytes_format_1 : in.number("block_bytes")};
  if (!is_sound(file)) in.complain("has lengths that contradict each other");
  return file;
}

/// The inverse of `column`.
std::vector<std::uint64_t> column_of(const Fields& in, const char* key, std::uint32_t world) {
  std::vector<std::uint64_t> values;
  for (const Json& row : in.list(key, world)) {
    const bool is_pair = row.is_array() && row.size() == 2;
    const std::uint64_t count = is_pair ? number_of(row[0], world - values.size(), in) : 0;
    if (!is_pair || count == 0) {
      in.complain(fmt::format("has {} that are not [count, value] for {} ranks", key, world));
      return {};
    }
    values.insert(values.end(), count, number_of(row[1], json_integer_max, in));
  }
  if (values.size() != world) in.complain(fmt::format("has {} for {} ranks of {}", key, values.size(), world));
  return values;
}

std::vector<std::uint32_t> digits_of(const Fields& in, const char* key, std::uint32_t world) {
  const std::string text = in.text(key, std::size_t{8} * world);
  if (text.size() != std::size_t{8} * world || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    in.complain(fmt::format("has {} that are not 8 hexadecimal digits for each of {} ranks", key, world));
    return {};
  }
  std::vector<std::uint32_t> values;
  values.reserve(world);
  for (std::size_t i = 0; i < text.size(); i += 8) {
    std::uint32_t value = 0;
    for (const char c : std::string_view{text}.substr(i, 8))
      value = value << 4 | static_cast<std::uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    values.push_back(value);
  }
  return values;
}

std::vector<FileRecord> files_of(const Fields& in, std::uint32_t world, const std::string& problem) {
  const std::uint64_t block = in.number("block_bytes");
  const auto header_bytes = column_of(in, "header_bytes", world), data_bytes = column_of(in, "data_bytes", world);
  const auto header_crcs = digits_of(in, "header_crcs", world), table_crcs = digits_of(in, "table_crcs", world),
             file_crcs = digits_of(in, "file_crcs", world);
  std::vector<FileRecord> files;
  if (!problem.empty()) return files;  // a column is not as long as the world
  if (!std::has_single_bit(block)) return in.complain("has blocks of another size than a power of two"), files;
  files.reserve(world);
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const std::uint64_t table = header_bytes[rank] + data_bytes[rank];
    files.push_back({.name = shard_name(rank, world),
                     .bytes = table + 4 * (block_count(table, block) + 1),
                     .header_bytes = header_bytes[rank],
                     .table_offset = table,
                     .header_crc = header_crcs[rank],
                     .table_crc = table_crcs[rank],
                     .file_crc = file_crcs[rank],
                     .block_bytes = block});
    if (!is_sound(files.back())) in.complain("has lengths that contradict each other");
  }
  return files;
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

/// Says nothing about whether it fits a model: `problem_of` does. As large as its text at most, which was bounded.
StateLayout layout_of(const Fields& in) {
  StateLayout layout;
  for (const Json& rows : in.list("splits", manifest_bytes_max.value())) {
    UnitSplit& split = layout.splits.emplace_back();
    std::uint64_t begin = 0;
    if (!rows.is_array()) return in.complain("has a split that is no list of rules"), layout;
    split.reserve(rows.size());
    for (const Json& row : rows) {
      if (!row.is_array() || row.size() != 4) return in.complain("has a rule that is not four numbers"), layout;
      split.push_back({.begin = begin,
                       .each = number_of(row[1], json_integer_max, in),
                       .count = small(number_of(row[0], world_max, in)),
                       .rank = small(number_of(row[2], world_max, in)),
                       .step = small(number_of(row[3], world_max, in))});
      begin += split.back().each * split.back().count;  // problem_of sees an overflow
    }
  }
  for (const Json& row : in.list("split_of", kinds_max)) {
    if (!row.is_array() || row.size() > units_max) return in.complain("has a split_of that is not a list for each kind"), layout;
    auto& units = layout.split_of.emplace_back();
    units.reserve(row.size());
    for (const Json& number : row) units.push_back(small(number_of(number, manifest_bytes_max.value(), in)));
  }
  return layout;
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

/// What makes a manifest whole beside its layout: files named by rank, host state inside its file.
std::string problem_of_files(const Manifest& m) {
  if (m.files.size() != m.world) return fmt::format("lists {} files for a world of {}", m.files.size(), m.world);
  for (std::uint32_t rank = 0; rank < m.world; ++rank) {
    if (m.files[rank].name != shard_name(rank, m.world)) return fmt::format("names file {} {}", rank, m.files[rank].name);
    if (m.files[rank].block_bytes != m.files[0].block_bytes) return "has files with blocks of different sizes";
  }
  for (const AuxRecord& a : m.aux) {
    const bool has_file = a.file < m.files.size();
    const FileRecord& f = m.files[has_file ? a.file : 0];
    if (!has_file || a.offset < f.header_bytes || a.offset > f.table_offset || a.bytes > f.table_offset - a.offset)
      return fmt::format("places aux/{} outside the data of file {}", a.name, a.file);
  }
  std::vector<std::array<std::uint64_t, 3>> places;  // file, first byte, behind the last
  for (const AuxRecord& a : m.aux)
    if (a.bytes > 0) places.push_back({a.file, a.offset, a.offset + a.bytes});
  std::ranges::sort(places);
  for (std::size_t i = 1; i < places.size(); ++i)
    if (places[i][0] == places[i - 1][0] && places[i][1] < places[i - 1][2])
      return fmt::format("places two parts of the host state at byte {} of file {}", places[i][1], places[i][0]);
  return {};
}

/// Puts the files of format 1 into `m`, and its rows, one per fragment, as rules.
void read_rows(const Fields& in, std::string& problem, Manifest& m) {
  for (const Json& row : in.list("files", world_max)) m.files.push_back(file_of(Fields{row, in.where() + ".files", problem}, m.format));
  const std::vector<FragmentRecord> fragments = fragments_of(in, m.world);
  if (!problem.empty()) return;
  FoundLayout found = layout_of(m.model, m.files, fragments);
  if (!found.problem.empty()) return in.complain(found.problem);
  m.layout = std::move(found.layout);
}

/// The same for format 2.
void read_rules(const Fields& in, const std::string& problem, Manifest& m) {
  m.files = files_of(in.object("files"), m.world, problem);
  m.layout = layout_of(in.object("layout"));
  if (!problem.empty()) return;
  if (const std::string wrong = problem_of(m.layout, m.model, m.world); !wrong.empty()) in.complain(wrong);
}

}  // namespace

std::string encode(const PartRecord& r) {
  return seal(with_format(checkpoint_format, {{"checkpoint", to_string(r.id)},
                                              {"root", r.root},
                                              {"rank", r.rank},
                                              {"world", r.world},
                                              {"file", json_of(r.file)},
                                              {"fragments", json_of(r.fragments)},
                                              {"aux", json_of(r.aux)}}));
}

Result<PartRecord> decode_part(ByteSpan text, std::string_view what) {
  ELRUN_TRY_ASSIGN(const Json body, unseal(text, what));
  ELRUN_TRY_ASSIGN(const std::uint64_t format, check_format(body, checkpoint_format, what));
  std::string problem;
  const Fields in{body, std::string{what}, problem};
  PartRecord record;
  record.format = format;
  record.id = id_of(in, "checkpoint");
  record.root = root_of(in);
  record.world = world_of(in);
  record.rank = small(in.number("rank", record.world - 1));
  record.file = file_of(in.object("file"), format);
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
  std::vector<FragmentRecord> fragments;
  for (PartRecord& part : parts) {
    if (part.id != head.id || part.root != head.root || part.world != head.world)
      return corrupt(fmt::format("{} belongs to {} of a world of {}, not to {} of {}", part_name(part.rank, part.world), to_string(part.id),
                                 part.world, to_string(head.id), head.world));
    if (part.format != checkpoint_format)
      return Failure{Code::mismatch, Remedy::fix_config,
                     fmt::format("rank {} wrote format {}, and this elrun makes checkpoints of format {}: run the same elrun on all nodes",
                                 part.rank, part.format, checkpoint_format)};
    head.files.push_back(std::move(part.file));
    fragments.insert(fragments.end(), part.fragments.begin(), part.fragments.end());
    head.aux.insert(head.aux.end(), part.aux.begin(), part.aux.end());
  }
  const auto order = [](const FragmentRecord& f) { return std::tuple{f.kind, f.unit, f.begin}; };
  std::sort(fragments.begin(), fragments.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  // A program that saves the wrong ranges is a bug of the job, found before the commit and not at the restore.
  std::string problem = problem_of_files(head);
  if (problem.empty()) {
    FoundLayout found = layout_of(head.model, head.files, fragments);
    head.layout = std::move(found.layout);
    problem = std::move(found.problem);
  }
  if (!problem.empty())
    return Failure{Code::invalid_argument, Remedy::exit_process,
                   fmt::format("the ranks' parts of {} make no checkpoint: it {}", to_string(head.id), problem)};
  return head;
}

std::string encode(const Manifest& m) {
  return canonical(with_format(checkpoint_format, {{"checkpoint", to_string(m.id)},
                                                   {"step", m.id.step},
                                                   {"root", m.root},
                                                   {"author", json_of(m.author)},
                                                   {"parent", json_of(m.parent)},
                                                   {"world", m.world},
                                                   {"plan", json_of(m.plan)},
                                                   {"model", json_of(m.model)},
                                                   {"files", json_of(m.files)},
                                                   {"layout", json_of(m.layout)},
                                                   {"aux", json_of(m.aux)},
                                                   {"writer", "elrun 0.1"}})) +
         "\n";
}

Result<void> check_manifest_size(std::uint64_t runs, std::size_t text_bytes) {
  const auto refused = [](std::string what) { return Failure{Code::exhausted, Remedy::fix_config, std::move(what)}; };
  if (runs > runs_max)
    return refused(fmt::format("the state would lie in {} runs of elements, and at most {} can be read back: use fewer and larger units",
                               runs, runs_max));
  if (text_bytes > manifest_bytes_max.value()) return refused(fmt::format("the manifest would have {} bytes; use fewer units", text_bytes));
  return {};
}

Result<Manifest> decode_manifest(ByteSpan text, std::string_view what) {
  ELRUN_TRY_ASSIGN(const Json body, parse_json(text, what));
  if (!body.is_object()) return corrupt(fmt::format("{} is not an object", what));
  std::string problem;
  const Fields in{body, std::string{what}, problem};
  Manifest m;
  ELRUN_TRY_ASSIGN(m.format, check_format(body, checkpoint_format, what));
  m.id = id_of(in, "checkpoint");
  m.root = root_of(in);
  m.author = author_of(in.object("author"));
  if (!body.contains("parent") || !body["parent"].is_null()) m.parent = id_of(in, "parent");
  m.world = world_of(in);
  m.plan = plan_of(in.object("plan"));
  m.model = model_of(in.object("model"), problem);
  m.aux = aux_of(in, m.world, problem);
  if (problem.empty() && m.format == 1) read_rows(in, problem, m);
  else if (problem.empty()) read_rules(in, problem, m);
  if (problem.empty())
    if (const std::string wrong = problem_of_files(m); !wrong.empty()) in.complain(wrong);
  if (!problem.empty()) return corrupt(problem);
  return m;
}

}  // namespace elrun::inline v0
