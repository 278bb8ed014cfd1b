#include "checkpoint/format/record_json.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/format/corrupt.hpp"

namespace elrun::inline v0 {

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

Json json_of(const std::optional<CheckpointId>& id) { return id ? Json(to_string(*id)) : Json(nullptr); }

Json with_format(std::uint64_t format, Json body) {
  body["format"] = format;
  body["requires"] = Json::array();
  return body;
}

Result<std::uint64_t> check_format(const Json& body, std::uint64_t newest, std::string_view what) {
  std::string problem;
  const Fields fields{body, std::string{what}, problem};
  const std::uint64_t format = fields.number("format");
  const Json& needs = fields.list("requires", 64);
  if (!problem.empty()) return corrupt(problem);
  if (format >= 1 && format <= newest && needs.empty()) return format;
  return Failure{Code::mismatch, Remedy::fix_config,
                 fmt::format("{} has format {} and requires {}; this elrun reads {} without extensions: use a newer elrun", what, format,
                             canonical(needs), newest == 1 ? "format 1" : fmt::format("formats 1 to {}", newest))};
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

namespace {

DType dtype_of(const Fields& in) {
  DType type{};
  if (!dtype_from_name(in.text("dtype", 8), type)) in.complain("has an unknown dtype");
  return type;
}

}  // namespace

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

std::uint32_t world_of(const Fields& in) {
  const std::uint64_t world = in.number("world", world_max);
  if (world == 0) in.complain("has a world of 0");
  return std::max(small(world), 1u);
}

}  // namespace elrun::inline v0
