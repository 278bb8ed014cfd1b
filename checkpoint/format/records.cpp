#include "checkpoint/format/records.hpp"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "checkpoint/format/corrupt.hpp"
#include "checkpoint/format/json.hpp"
#include "checkpoint/format/record_json.hpp"
#include "lib/base/crc32c.hpp"

namespace elrun::inline v0 {
std::string to_string(const Author& author) {
  return fmt::format("run \"{}\", lineage {}, generation {}", author.run_id,
                     hex64(author.generation.lineage.bits[0]) + hex64(author.generation.lineage.bits[1]), author.generation.number);
}

std::string encode(const RunRecord& r) {
  return seal(
      with_format(root_format, {{"root", r.root}, {"author", json_of(r.author)}, {"plan", json_of(r.plan)}, {"model", json_of(r.model)}}));
}

Result<RunRecord> decode_run(ByteSpan text, std::string_view what) {
  ELRUN_TRY_ASSIGN(const Json body, unseal(text, what));
  ELRUN_TRY(check_format(body, root_format, what));
  std::string problem;
  const Fields in{body, std::string{what}, problem};
  RunRecord record{root_of(in), author_of(in.object("author")), plan_of(in.object("plan")), model_of(in.object("model"), problem)};
  if (!problem.empty()) return corrupt(problem);
  return record;
}

std::string encode(const ClaimRecord& r) { return seal(with_format(root_format, {{"number", r.number}, {"author", json_of(r.author)}})); }

Result<ClaimRecord> decode_claim(ByteSpan text, std::string_view what) {
  ELRUN_TRY_ASSIGN(const Json body, unseal(text, what));
  ELRUN_TRY(check_format(body, root_format, what));
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
  return seal(with_format(root_format, {{"number", r.number},
                                        {"author", json_of(r.author)},
                                        {"world", r.world},
                                        {"inherits", std::move(inherits)},
                                        {"gives_up", std::move(gives_up)},
                                        {"resumed_from", json_of(r.resumed_from)}}));
}

Result<FenceRecord> decode_fence(ByteSpan text, std::string_view what) {
  ELRUN_TRY_ASSIGN(const Json body, unseal(text, what));
  ELRUN_TRY(check_format(body, root_format, what));
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
  return seal(with_format(root_format, {{"checkpoint", to_string(r.id)},
                                        {"root", r.root},
                                        {"author", json_of(r.author)},
                                        {"directory", as_plain_text(r.directory)},
                                        {"plan", as_plain_text(r.plan)}}));
}

Result<Acknowledgement> decode_acknowledgement(ByteSpan text, std::string_view what) {
  ELRUN_TRY_ASSIGN(const Json body, unseal(text, what));
  ELRUN_TRY(check_format(body, root_format, what));
  std::string problem;
  const Fields in{body, std::string{what}, problem};
  Acknowledgement record{id_of(in, "checkpoint"), root_of(in), author_of(in.object("author")), in.text("directory", 4096),
                         in.text("plan", 256)};
  if (!problem.empty()) return corrupt(problem);
  return record;
}

bool is_under(const Acknowledgement& record, std::string_view directory) { return record.directory == as_plain_text(directory); }

bool was_acknowledged_before(std::string_view first, std::string_view second) {
  const auto a = decode_acknowledgement(as_bytes(first), "the first"), b = decode_acknowledgement(as_bytes(second), "the second");
  return a.ok() && b.ok() && a->root == b->root &&
         std::tie(a->id.fence, a->id.step, a->id.attempt) < std::tie(b->id.fence, b->id.step, b->id.attempt);
}

Result<void> check_run_size(std::size_t text_bytes) {
  if (text_bytes <= record_bytes_max.value()) return {};
  return Failure{Code::exhausted, Remedy::fix_config,
                 fmt::format("RUN.json would have {} bytes, and at most {} can be read back: use fewer units and tensors, or shorter names",
                             text_bytes, record_bytes_max.value())};
}

std::string encode(const CommitRecord& r) {
  const std::string line = canonical(with_format(r.format, {{"checkpoint", to_string(r.id)},
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
  ELRUN_TRY_ASSIGN(const std::uint64_t format, check_format(body, checkpoint_format, what));
  std::string problem;
  const Fields in{body, std::string{what}, problem};
  CommitRecord record{id_of(in, "checkpoint"),
                      root_of(in),
                      author_of(in.object("author")),
                      in.number("manifest_bytes", manifest_bytes_max.value()),
                      small(in.hex("manifest_crc", 8)),
                      in.text("manifest_sha256", 64),
                      in.number("files", world_max),
                      in.number("total_bytes"),
                      format};
  if (!problem.empty()) return corrupt(problem);
  return record;
}

}  // namespace elrun::inline v0
