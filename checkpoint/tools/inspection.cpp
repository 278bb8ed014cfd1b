#include "checkpoint/tools/inspection.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/tools/difference.hpp"
#include "checkpoint/tools/listing.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {
namespace {

std::uint64_t file_bytes(const Manifest& manifest) {
  std::uint64_t all = 0;
  for (const FileRecord& file : manifest.files) all += file.bytes;
  return all;
}

std::string head_text(const Inspection& one, std::int64_t now_wall_ns) {
  const Manifest& m = one.manifest;
  std::string text = fmt::format("checkpoint {}: step {}, fence {}, attempt {}\n", to_string(m.id), m.id.step, m.id.fence, m.id.attempt);
  text += fmt::format("  where   {}\n  state   {}\n", printable(one.where), printable(one.state));
  if (!one.problem.empty()) text += fmt::format("  damage  {}\n", printable(one.problem));
  text +=
      fmt::format("  saved   {} ago by {}, world {}\n", age_text(now_wall_ns - m.author.wall_ns), printable(to_string(m.author)), m.world);
  if (m.parent) text += fmt::format("  before  {}\n", to_string(*m.parent));
  text += fmt::format("  size    {} of state in {}, {} in all; manifest {}\n", size_text(state_bytes(m.model)),
                      count_of(m.files.size(), "file"), size_text(file_bytes(m)), size_text(one.manifest_bytes));
  text += fmt::format("  format  {}\n  root    {}\n", m.format, m.root);
  return text;
}

std::string plan_text(const PlanIdentity& plan) {
  std::string text = fmt::format("\nplan {}\n", printable(plan.hash));
  for (std::string_view rest = plan.description; !rest.empty();) {
    const auto end = std::min(rest.find('\n'), rest.size());
    text += fmt::format("  {}\n", printable(rest.substr(0, end)));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return text;
}

std::string tensors_text(const ModelTable& model) {
  std::string kinds;
  std::uint64_t each = 0;  // bytes of one element in all kinds
  for (const KindInfo& kind : model.kinds)
    kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", printable(kind.name), dtype_name(kind.dtype)), each += size_of(kind.dtype);
  std::vector<std::vector<std::string>> rows{{"  tensor", "dtype", "elements", "bytes", "shape"}};
  for (const UnitInfo& unit : model.units) {
    if (unit.tensors.empty())
      rows.push_back(
          {"  " + printable(unit.name), "", fmt::to_string(unit.elements), size_text(unit.elements * each), shape_text({unit.elements})});
    for (const TensorInfo& t : unit.tensors) {
      const std::uint64_t elements = element_count(t.shape);
      rows.push_back({fmt::format("  {}/{}", printable(unit.name), printable(t.name)), dtype_name(t.dtype), fmt::to_string(elements),
                      size_text(elements * each), shape_text(t.shape)});
    }
  }
  return fmt::format("\ntensors ({}; bytes are those of all kinds): {}\n{}", kinds, rows.size() - 1, table_text(rows, 1));
}

std::string shards_text(const Manifest& m) {
  std::vector<std::vector<std::string>> rows{{"  shard", "bytes", "blocks", "CRC-32C"}};
  for (const FileRecord& file : m.files)
    rows.push_back({"  " + file.name, fmt::to_string(file.bytes), fmt::to_string(block_count(file)), hex32(file.file_crc)});
  std::string text = fmt::format("\nshards: {}\n{}", m.files.size(), table_text(rows, 1));
  if (!m.aux.empty()) text += "\nstate of the host:\n";
  for (const AuxRecord& aux : m.aux) text += fmt::format("  {}, {} bytes\n", printable(aux.name), aux.bytes);
  return text;
}

struct Sum {
  std::uint64_t bytes = 0, read = 0;
};
Sum sum_of(const std::vector<ReaderShare>& shares) {
  Sum sum;
  for (const ReaderShare& s : shares) sum.bytes += s.bytes, sum.read += s.read;
  return sum;
}

std::string shares_text(const Inspection& one) {
  if (one.shares.empty()) return {};
  std::vector<std::vector<std::string>> rows{{"  rank", "needs", "reads", "files", "ranges"}};
  for (const ReaderShare& s : one.shares)
    rows.push_back({fmt::format("  {}", s.rank), size_text(s.bytes), size_text(s.read), fmt::to_string(s.files), fmt::to_string(s.ranges)});
  const Sum all = sum_of(one.shares);
  const auto state = static_cast<double>(std::max<std::uint64_t>(1, state_bytes(one.manifest.model)));
  return fmt::format(
      "\na world of {} would read (whole blocks of {}, with headers and block tables):\n{}  all ranks together: {}, {:.2f} times the state\n",
      one.shares.size(), size_text(one.manifest.files.front().block_bytes), table_text(rows, 1), size_text(all.read),
      static_cast<double>(all.read) / state);
}

}  // namespace

std::string inspection_text(const Inspection& one, std::int64_t now_wall_ns) {
  return head_text(one, now_wall_ns) + plan_text(one.manifest.plan) + tensors_text(one.manifest.model) + shards_text(one.manifest) +
         shares_text(one);
}

Json inspection_json(const Inspection& one) {
  const Manifest& m = one.manifest;
  Json kinds = Json::array(), units = Json::array(), files = Json::array(), aux = Json::array(), readers = Json::array();
  for (const KindInfo& kind : m.model.kinds) kinds.push_back({{"name", kind.name}, {"dtype", dtype_name(kind.dtype)}});
  for (const UnitInfo& unit : m.model.units) {
    Json tensors = Json::array();
    for (const TensorInfo& t : unit.tensors)
      tensors.push_back({{"name", t.name}, {"dtype", dtype_name(t.dtype)}, {"shape", t.shape}, {"offset", t.offset}});
    units.push_back({{"name", unit.name}, {"elements", unit.elements}, {"tensors", std::move(tensors)}});
  }
  for (const FileRecord& f : m.files)
    files.push_back({{"name", f.name}, {"bytes", f.bytes}, {"blocks", block_count(f)}, {"crc32c", hex32(f.file_crc)}});
  for (const AuxRecord& a : m.aux) aux.push_back({{"name", a.name}, {"bytes", a.bytes}});
  for (const ReaderShare& s : one.shares)
    readers.push_back({{"rank", s.rank}, {"needs_bytes", s.bytes}, {"reads_bytes", s.read}, {"files", s.files}, {"ranges", s.ranges}});
  Json out{{"checkpoint", to_string(m.id)},
           {"directory", one.where},
           {"format", m.format},
           {"state", one.state},
           {"step", m.id.step},
           {"fence", m.id.fence},
           {"attempt", m.id.attempt},
           {"world", m.world},
           {"root", m.root},
           {"run", m.author.run_id},
           {"generation", m.author.generation.number},
           {"saved_ns", m.author.wall_ns},
           {"before", m.parent ? Json(to_string(*m.parent)) : Json(nullptr)},
           {"plan", {{"hash", m.plan.hash}, {"description", m.plan.description}}},
           {"kinds", std::move(kinds)},
           {"units", std::move(units)},
           {"state_bytes", state_bytes(m.model)},
           {"file_bytes", file_bytes(m)},
           {"manifest_bytes", one.manifest_bytes},
           {"files", std::move(files)},
           {"host_state", std::move(aux)}};
  if (!one.problem.empty()) out["problem"] = one.problem;
  if (!one.shares.empty()) out["readers"] = std::move(readers);
  return out;
}

}  // namespace elrun::inline v0
