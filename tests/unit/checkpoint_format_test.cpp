/// \file Format 2, and format 1 that is read for good: the example of FORMAT.md, hostile manifests, and a root that an elrun before format 2 wrote.

#include <filesystem>
#include <functional>

#include <fmt/format.h>

#include "checkpoint/format/boxes.hpp"
#include "checkpoint/format/json.hpp"
#include "checkpoint/format/plan.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/format/shard.hpp"
#include "checkpoint/storage/shard_file.hpp"
#include "checkpoint/storage/shard_writer.hpp"
#include "checkpoint/storage/storage.hpp"
#include "checkpoint/tiers/files_tier.hpp"
#include "lib/base/crc32c.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/format_one.hpp"
#include "tests/support/large_model.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

namespace {

const std::string some_root(32, 'a');
const Author some_author{"r", Generation{1, {{1, 2}}}, 5};

/// The worked example of FORMAT.md.
ModelTable example_model() {
  return {.units = {{"w", 70, {{"a", DType::f32, {3, 20}, 0}, {"b", DType::f32, {6}, 64}}}}, .kinds = {{"param", DType::f32}}};
}

Manifest manifest_of(const ModelTable& model, std::vector<PartRecord> parts) {
  Manifest head{.format = checkpoint_format,
                .id = parts.at(0).id,
                .root = some_root,
                .author = some_author,
                .parent = {},
                .world = parts.at(0).world,
                .plan = {"abc", "seed: 7"},
                .model = model,
                .files = {},
                .layout = {},
                .aux = {}};
  return merge(std::move(head), std::move(parts)).value();
}

std::vector<std::string> keys_of(const ShardLayout& shard) {
  std::vector<std::string> keys;
  const ShardHeader header = decode_shard_header(shard.header, shard.part.file.bytes, "shard").value();
  for (const TensorEntry& entry : header.tensors) keys.push_back(entry.name);
  return keys;
}

/// Why the example's manifest is refused after a change.
std::string refusal(const std::function<void(Json&)>& change) {
  ByteVector memory(70 * 4);
  std::vector<PartRecord> parts;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const std::uint64_t begin = rank * 50, end = rank == 0 ? 50 : 70;
    const std::vector<Fragment> mine{{"param", 0, begin, end, std::span{memory}.first((end - begin) * 4), false}};
    parts.push_back(lay_out_shard(example_model(), {3, 1, 1}, some_root, some_author, rank, 2, mine, {})->part);
  }
  Json body = parse_json(as_bytes(encode(manifest_of(example_model(), parts))), "example").value();
  change(body);
  return said(decode_manifest(as_bytes(canonical(body)), "MANIFEST.json"));
}

void copy_root(const Path& to) {
  std::filesystem::copy(Path{ELRUN_SOURCE} / "tests/data/checkpoint_format_1", to, std::filesystem::copy_options::recursive);
}

}  // namespace

TEST_CASE("the worked example of FORMAT.md is what is written", "[checkpoint]") {
  ByteVector memory(70 * 4);
  const std::vector<Fragment> first{{"param", 0, 0, 50, std::span{memory}.first(200), false}};
  const std::vector<Fragment> second{{"param", 0, 50, 70, std::span{memory}.last(80), false}};
  const ShardLayout zero = lay_out_shard(example_model(), {3, 1, 1}, some_root, some_author, 0, 2, first, {}).value();
  const ShardLayout one = lay_out_shard(example_model(), {3, 1, 1}, some_root, some_author, 1, 2, second, {}).value();
  CHECK(keys_of(zero) == std::vector<std::string>{"param/w.a[0:2,0:20]", "param/w.a[2:3,0:10]", "__elrun_crc32c"});
  CHECK(keys_of(one) == std::vector<std::string>{"param/w.a[2:3,10:20]", "__elrun_flat/param/w[60:64]", "param/w.b", "__elrun_crc32c"});
  CHECK(zero.part.file.bytes + one.part.file.bytes == 8488);
  CHECK(zero.part.file.table_offset == 4296);
  const std::string text = encode(manifest_of(example_model(), {zero.part, one.part}));
  CHECK_THAT(text, Contains(R"("layout":{"split_of":[[0]],"splits":[[[1,50,0,0],[1,20,1,0]]]})") &&
                       Contains(R"("header_bytes":[[2,4096]])") && Contains(R"("data_bytes":[[1,200],[1,80]])") &&
                       Contains(R"("format":2,)"));
}

TEST_CASE("no two tensors have one name in the shards, whatever a model calls them", "[checkpoint]") {
  const ModelTable model{.units = {{"a", 8, {{"b.c", DType::f32, {3}, 0}, {"w[0:1]", DType::f32, {1}, 3}, {"w", DType::f32, {2}, 4}}},
                                   {"a.b", 4, {{"c", DType::f32, {3}, 0}}},
                                   {"50%", 1, {{"x", DType::f32, {}, 0}}}},
                         .kinds = {{"param", DType::f32}}};
  const TensorNames names{model};
  CHECK(names.name(0, 0) == "a.b.c");
  CHECK(names.name(1, 0) == "a.b.c#2");
  CHECK(names.cut(0, 3, 5)[0].name == "a.w%5B0:1]");
  CHECK(names.cut(0, 3, 5)[1].name == "a.w[0:1]");
  CHECK(names.cut(0, 6, 8)[0].name == "a[6:8]");
  CHECK_FALSE(names.cut(0, 6, 8)[0].is_tensor);
  CHECK(names.cut(2, 0, 1)[0].name == "50%25.x");
  CHECK(names.cut(2, 0, 1)[0].shape.empty());
}

TEST_CASE("the manifest of 70 billion parameters at 4,096 ranks is smaller than 1 MB, and one rank's plan is short", "[checkpoint]") {
  const ModelTable model = model_of_70b();
  const Manifest manifest = even_manifest(model, 4096);
  const std::string text = encode(manifest);
  CHECK(text.size() < 1'000'000);
  CHECK(manifest.layout.splits.size() == 3);  // a layer, the norm, and the two of the vocabulary
  REQUIRE(run_count(manifest.layout) > 900'000);
  REQUIRE(decode_manifest(as_bytes(text), "manifest").value() == manifest);
  std::vector<Wanted> wanted;
  for (std::uint32_t kind = 0; kind < 3; ++kind)
    for (std::uint32_t unit = 0; unit < model.units.size(); ++unit) {
      const auto [begin, end] = slice_of(0, model.units[unit].elements, 1000, 4095);
      wanted.push_back({kind, unit, begin, end, wanted.size()});
    }
  const auto located = locate(manifest.layout, model, manifest.files, wanted);
  CHECK(located.size() >= 3 * 82);
  for (const Located& l : located) CHECK((l.file == 1000 || l.file == 1001));
}

TEST_CASE("a manifest whose rules do not fit its model and its world is refused", "[checkpoint]") {
  CHECK(refusal([](Json&) {}) == "");
  const auto split = [](Json rules) { return [rules](Json& m) { m["layout"]["splits"][0] = rules; }; };
  for (const Json& rules : {Json{{1, 50, 0, 0}}, Json{{1, 50, 0, 0}, {1, 21, 1, 0}}, Json::array()})
    CHECK_THAT(refusal(split(rules)), Contains("corrupt") && Contains("does not fit its 70 elements"));
  for (const Json& rules : {Json{{2, 35, 1, 1}}, Json{{2, 35, 0, 0}}, Json{{1, 70, 0, 1}}, Json{{1, 70, 2, 0}},
                            Json{{0, 70, 0, 0}, {1, 70, 0, 0}}, Json{{1, 0, 0, 0}, {1, 70, 0, 0}}, Json{{2, 35, 0, 99'999}}})
    CHECK_THAT(refusal(split(rules)), Contains("gives no rank of its world"));
  CHECK(refusal(split({{2, 35, 0, 1}})) == "");
  for (const Json& rules : {Json{{1, 70, 0}}, Json{{1, 70, 0, -1}}, Json{{1.5, 70, 0, 0}}, Json{{100'000, 70, 0, 1}}, Json{7}, Json("x")})
    CHECK_THAT(refusal(split(rules)), Contains("corrupt"));
  CHECK_THAT(refusal(split({{2, 9'007'199'254'740'991, 0, 1}})), Contains("corrupt"));
  CHECK_THAT(refusal([](Json& m) { m["layout"]["split_of"] = {{1}}; }), Contains("does not fit"));
  CHECK_THAT(refusal([](Json& m) { m["layout"]["split_of"] = {{0, 0}}; }), Contains("2 of 1 units"));
  CHECK_THAT(refusal([](Json& m) { m["layout"]["split_of"] = Json::array(); }), Contains("0 kinds of 1"));
  CHECK_THAT(refusal([](Json& m) { m.erase("layout"); }), Contains("has no layout"));
  CHECK_THAT(refusal([](Json& m) { m["files"]["header_bytes"] = {{1, 4096}}; }), Contains("for 1 ranks of 2"));
  CHECK_THAT(refusal([](Json& m) { m["files"]["header_bytes"] = {{3, 4096}}; }), Contains("corrupt"));
  CHECK_THAT(refusal([](Json& m) { m["files"]["data_bytes"] = {{2, 9'007'199'254'740'991}, {0, 1}}; }), Contains("corrupt"));
  CHECK_THAT(refusal([](Json& m) { m["files"]["table_crcs"] = "0123456"; }), Contains("table_crcs"));
  CHECK_THAT(refusal([](Json& m) { m["files"]["table_crcs"] = std::string(16, 'G'); }), Contains("table_crcs"));
  for (const std::uint64_t bytes : {0u, 2048u, 5000u, 1u << 23})
    CHECK_THAT(refusal([&](Json& m) { m["files"]["block_bytes"] = bytes; }), Contains("corrupt"));
  CHECK(refusal([](Json& m) { m["something new"] = 1; }) == "");
}

TEST_CASE("host state of which two parts share bytes of a file is damage", "[checkpoint]") {
  const auto aux = [](std::uint64_t offset) {
    return [offset](Json& m) {
      m["aux"] = {{{"name", "a"}, {"file", 0}, {"offset", 4096}, {"bytes", 8}},
                  {{"name", "b"}, {"file", 0}, {"offset", offset}, {"bytes", 8}}};
    };
  };
  CHECK(refusal(aux(4104)) == "");
  CHECK_THAT(refusal(aux(4103)), Contains("corrupt") && Contains("two parts of the host state at byte 4103"));
  CHECK_THAT(refusal(aux(4096)), Contains("two parts of the host state"));
}

TEST_CASE("what its files have no room for is not read", "[checkpoint]") {
  ByteVector memory(70 * 4);
  const std::vector<Fragment> all{{"param", 0, 0, 70, memory, false}};
  const ShardLayout shard = lay_out_shard(example_model(), {3, 1, 1}, some_root, some_author, 0, 1, all, {}).value();
  Json body = parse_json(as_bytes(encode(manifest_of(example_model(), {shard.part}))), "example").value();
  body["files"]["data_bytes"] = {{1, 276}};
  const auto manifest = decode_manifest(as_bytes(canonical(body)), "MANIFEST.json");
  REQUIRE(said(manifest) == "");
  const auto plan = plan_reads(*manifest, all);
  CHECK_THAT(said(plan), Contains("corrupt") && Contains("behind the data of r00000-of-00001.safetensors"));
}

TEST_CASE("a checkpoint of a later format, or with an extension, asks for a newer elrun and is not called damaged", "[checkpoint]") {
  CHECK_THAT(refusal([](Json& m) { m["format"] = 3; }),
             Contains("mismatch") && Contains("reads formats 1 to 2") && Contains("newer elrun"));
  CHECK_THAT(refusal([](Json& m) { m["requires"] = {"zstd"}; }), Contains("mismatch") && Contains("zstd"));
  const std::string commit = encode(CommitRecord{{3, 1, 1}, some_root, some_author, 10, 1, std::string(64, 'b'), 1, 100});
  CHECK_THAT(commit, Contains(R"("format":2,)"));
  const std::string later = commit.substr(0, commit.size() - 9).replace(commit.find(R"("format":2)"), 10, R"("format":3)");
  CHECK_THAT(said(decode_commit(as_bytes(later + hex32(crc32c(as_bytes(later))) + "\n"), "COMMIT")),
             Contains("mismatch") && Contains("format 3"));
}

TEST_CASE("ranks that write different formats make no checkpoint", "[checkpoint]") {
  ByteVector memory(70 * 4);
  const std::vector<Fragment> all{{"param", 0, 0, 70, memory, false}};
  const ShardLayout shard = lay_out_shard(example_model(), {3, 1, 1}, some_root, some_author, 0, 1, all, {}).value();
  Json body = unseal(as_bytes(encode(shard.part)), "part").value();
  body["format"] = 1;
  const PartRecord older = decode_part(as_bytes(seal(body)), "r00000-of-00001.part.json").value();
  CHECK(older.format == 1);
  Manifest head;
  head.id = older.id;
  head.root = older.root;
  head.model = example_model();
  CHECK_THAT(said(merge(std::move(head), {older})), Contains("mismatch") && Contains("rank 0") && Contains("the same elrun on all nodes"));
}

TEST_CASE("a shard with smaller blocks than this elrun writes is read and checked by them", "[checkpoint]") {
  FaultyFiles files;
  REQUIRE(files.make_directories("/c").ok());
  const ModelTable model{.units = {{"u", 100'000, {}}}, .kinds = {{"param", DType::f32}}};
  ByteVector memory(400'000);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = expected_byte(1, 0, 0, i);
  const std::vector<Fragment> all{{"param", 0, 0, 100'000, memory, false}};
  const ShardLayout shard = lay_out_shard(model, {3, 1, 1}, some_root, some_author, 0, 1, all, {}, 16384).value();
  FilesTier tier{files, "/c"};
  const PartRecord part = write_shard(tier, "", shard).value();
  const Manifest manifest = decode_manifest(as_bytes(encode(manifest_of(model, {part}))), "MANIFEST.json").value();
  REQUIRE(manifest.files[0].block_bytes == 16384);
  REQUIRE(manifest.files[0] == part.file);
  ByteVector out(4000);
  const std::vector<Fragment> wanted{{"param", 0, 50'000, 51'000, out, false}};
  const auto reads = plan_reads(manifest, wanted).value();
  const auto read = [&]() -> Result<std::uint64_t> {
    ELRUN_TRY_ASSIGN(ShardReader reader, ShardReader::open(tier, "", manifest.files[0]));
    const std::uint64_t before = reader.bytes_read();
    const std::span<std::byte> targets[] = {out};
    ELRUN_TRY(reader.read(reads, targets));
    return reader.bytes_read() - before;
  };
  CHECK(read().value() <= 2 * 16384);
  CHECK(std::equal(out.begin(), out.end(), memory.begin() + 200'000));
  ByteVector bad = files.content("/c/r00000-of-00001.safetensors");
  bad[manifest.files[0].header_bytes + 200'001] ^= std::byte{1};
  files.overwrite("/c/r00000-of-00001.safetensors", bad);
  CHECK_THAT(said(read()), Contains("block 12"));
}

TEST_CASE("a job continues from a root of format 1 with the same bits at any world size, and saves in format 2", "[checkpoint]") {
  const TemporaryDirectory directory;
  const Path root = Path{directory.path()} / "root";
  copy_root(root);
  PosixFiles files;
  for (const std::uint32_t world : {1u, 2u, 3u, 5u}) {
    TestJob job{files, world, 10 + world, small_model(), world % 3, "run", root};
    const Start start = job.start().value();
    REQUIRE(start.choice == CheckpointId{20, 1, 1});
    REQUIRE(said(job.load(start)) == "");
  }
  FilesTier tier{files, root};
  const auto read = read_manifest(tier, "ckpt/s000000000020.g00000001.a01").value();
  CHECK(read.manifest.format == 1);
  CHECK(read_commit(tier, "ckpt/s000000000020.g00000001.a01")->format == 1);
  const ByteVector run = files.read_all(root / "RUN.json", 1_MiB).value();

  TestJob job{files, 3, 20, small_model(), 1, "run", root};
  REQUIRE(said(job.start()) == "");
  REQUIRE(said(job.save(30)) == "");
  REQUIRE(said(job.ranks[0].retain(2)) == "");
  const auto names = files.list(root / "ckpt").value();
  REQUIRE(names.size() == 2);
  CHECK(names.front() == "s000000000020.g00000001.a01");  // the older one went, whatever its format
  CHECK(read_manifest(tier, "ckpt/" + names.back())->manifest.format == 2);
  CHECK(files.read_all(root / "RUN.json", 1_MiB).value() == run);
  TestJob next{files, 4, 30, small_model(), 1, "run", root};
  const Start start = next.start().value();
  REQUIRE(start.choice->step == 30);
  REQUIRE(said(next.load(start)) == "");
  // And back again, where the new one is damaged.
  std::filesystem::resize_file(root / "ckpt" / names.back() / "MANIFEST.json", 100);
  TestJob back{files, 2, 40, small_model(), 1, "run", root};
  const Start older = back.start().value();
  REQUIRE(older.choice->step == 20);
  REQUIRE(said(back.load(older)) == "");
}

TEST_CASE("a manifest that was written in format 1 says the same as ever", "[checkpoint]") {
  PosixFiles files;
  const Path checkpoint = Path{ELRUN_SOURCE} / "tests/data/checkpoint_format_1/ckpt/s000000000020.g00000001.a01";
  const ByteVector text = files.read_all(checkpoint / "MANIFEST.json", 1_MiB).value();
  const Manifest manifest = decode_manifest(text, "MANIFEST.json").value();
  CHECK(manifest_in_format_one(manifest) == as_text(text));  // each row, its offset, each checksum
}
