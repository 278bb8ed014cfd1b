/// \file What stands in names, records and messages of checkpoints, and what a reader refuses.

#include "checkpoint/commit/messages.hpp"
#include "checkpoint/format/json.hpp"
#include "checkpoint/format/records.hpp"
#include "lib/base/crc32c.hpp"
#include "tests/support/checkpoint_job.hpp"

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

TEST_CASE("a checkpoint's name says step, fence and attempt, and nothing else is one", "[checkpoint]") {
  const CheckpointId id{12000, 7, 1};
  CHECK(to_string(id) == "s000000012000.g00000007.a01");
  CHECK(parse_checkpoint_id(to_string(id)) == id);
  for (const char* other : {"", "s1.g1.a1", "s000000012000.g00000007.a01.tmp", "s00000001200x.g00000007.a01", "s000000012000.g00000007.a1",
                            "S000000012000.g00000007.a01", "s+00000012000.g00000007.a01"})
    CHECK_FALSE(parse_checkpoint_id(other));
  CHECK(parse_fence_number(claim_name(7)) == FenceNumber{7});
  CHECK(parse_fence_number("g00000007.json") == FenceNumber{7});
  CHECK_FALSE(parse_fence_number("g00000007.json.tmp-1"));
}

TEST_CASE("JSON from anybody is bounded", "[checkpoint]") {
  const auto parse = [](std::string_view text) { return parse_json(as_bytes(text), "file"); };
  CHECK(parse("{\"a\":[1,2]}").ok());
  CHECK_THAT(said(parse("{\"a\":1,\"a\":2}")), Contains("key \"a\" twice"));
  CHECK_THAT(said(parse("{\"b\":{\"a\":1},\"c\":{\"a\":1,\"a\":2}}")), Contains("twice"));
  CHECK_THAT(said(parse(std::string(100'000, '['))), Contains("nested too deeply") || Contains("not valid"));
  CHECK_THAT(said(parse(std::string(100, '[') + std::string(100, ']'))), Contains("nested too deeply"));
  CHECK_FALSE(parse("{\"a\":\"\xff\"}").ok());
  CHECK_FALSE(parse("").ok());
  CHECK_FALSE(parse("{} {}").ok());
  const auto number = [&](std::string_view text) {
    std::string problem;
    const Json json = parse(text).value();
    (void)Fields{json, "x", problem}.number("n");
    return problem;
  };
  CHECK(number("{\"n\":9007199254740991}").empty());
  for (const char* bad : {"{\"n\":9007199254740992}", "{\"n\":-1}", "{\"n\":1.5}", "{\"n\":\"1\"}", "{}", "{\"n\":1e30}"})
    CHECK_FALSE(number(bad).empty());
}

TEST_CASE("a sealed record notices every flipped bit", "[checkpoint]") {
  const std::string text = encode(ClaimRecord{7, {"run 1", Generation{12, {{0x89ab, 0xcdef}}}, 1'700'000'000'000'000'000}});
  REQUIRE(decode_claim(as_bytes(text), "claim").value().author.generation.lineage.bits[1] == 0xcdef);
  for (std::size_t byte = 0; byte < text.size(); ++byte)
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = text;
      other[byte] = static_cast<char>(other[byte] ^ (1 << bit));
      CHECK_FALSE(decode_claim(as_bytes(other), "claim").ok());
    }
}

TEST_CASE("what a reader would refuse is not written", "[checkpoint]") {
  CHECK(check_manifest_size(runs_max, manifest_bytes_max.value()).ok());
  for (const auto& refused : {check_manifest_size(runs_max + 1, 1000), check_manifest_size(1, manifest_bytes_max.value() + 1),
                              check_run_size(record_bytes_max.value() + 1)}) {
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.failure().code == Code::exhausted);
    CHECK_THAT(refused.failure().what, Contains("use fewer"));
  }
  CHECK(check_run_size(record_bytes_max.value()).ok());

  // A model at the limits of problems() is accepted by the reader of records, and one above by neither.
  const auto with_kinds = [](std::size_t count) {
    ModelTable model{.units = {{"unit", 1, {}}}, .kinds = {}};
    for (std::size_t i = 0; i < count; ++i) model.kinds.push_back({"kind" + std::to_string(i), DType::u8});
    return model;
  };
  const auto with_tensors = [](std::size_t count) {
    ModelTable model{.units = {{"unit", count, {}}}, .kinds = {{"param", DType::u8}}};
    for (std::size_t i = 0; i < count; ++i) model.units[0].tensors.push_back({std::to_string(i), DType::u8, {1}, i});
    return model;
  };
  const auto read = [](const ModelTable& model) {
    return decode_run(as_bytes(encode(RunRecord{std::string(32, 'a'), {.run_id = "run"}, {"h", "d"}, model})), "RUN.json");
  };
  for (const std::size_t above : {0, 1}) {
    const ModelTable kinds = with_kinds(kinds_max + above);
    CHECK(problems(kinds).empty() == (above == 0));
    CHECK(read(kinds).ok() == (above == 0));
  }
  CHECK(problems(with_tensors(tensors_max)).empty());
  CHECK_FALSE(problems(with_tensors(tensors_max + 1)).empty());
  ModelTable units{.units = std::vector<UnitInfo>(units_max + 1), .kinds = {{"param", DType::u8}}};
  for (std::size_t i = 0; i < units.units.size(); ++i) units.units[i].name = std::to_string(i);
  CHECK_THAT(problems(units).at(0), Contains("use fewer and larger"));
}

TEST_CASE("of a table from a file with many contradictions the first 64 are told, and how many more there are", "[checkpoint]") {
  ModelTable model{.units = {{std::string(256, 'u'), 1, {}}}, .kinds = {{"param", DType::u8}}};
  for (int i = 0; i < 1000; ++i) model.units[0].tensors.push_back({std::to_string(i), DType::u8, {1}, 1});
  const std::vector<std::string> told = problems(model);
  REQUIRE(told.size() == 65);
  CHECK_THAT(told.front(), Contains("tensor 0 reaches beyond"));
  CHECK(told.back() == "and 936 more");
}

TEST_CASE("a kind of state has no bracket in its name, which begins a box in a shard", "[checkpoint]") {
  const ModelTable model{.units = {{"unit", 1, {}}}, .kinds = {{"param[0]", DType::u8}}};
  REQUIRE(problems(model).size() == 1);
  CHECK_THAT(problems(model).front(), Contains("param[0]") && Contains("'['"));
}

TEST_CASE("a format from the future is refused as such, not called damage", "[checkpoint]") {
  CHECK_THAT(said(decode_claim(as_bytes(seal({{"format", 2}, {"requires", Json::array()}})), "claim")),
             Contains("mismatch") && Contains("newer elrun"));
  CHECK_THAT(said(decode_claim(as_bytes(seal({{"format", 1}, {"requires", {"zstd"}}})), "claim")), Contains("zstd"));
}

TEST_CASE("votes, starts and tickets come back from their bytes, and from no prefix of them", "[checkpoint]") {
  PartVote vote{{10, 3, 1}, 5, 1234, 99, Failure{.code = Code::no_space, .remedy = Remedy::fix_config, .what = "full", .node = "n1"}};
  const ByteVector bytes = encode(vote);
  CHECK(decode_part_vote(bytes)->refusal->node == "n1");
  for (std::size_t n = 0; n < bytes.size(); ++n) CHECK_FALSE(decode_part_vote(ByteSpan{bytes}.first(n)).ok());
  const Start start{4, CheckpointId{10, 3, 1}, 77, "it is the newest", 2, {"a", "b"}};
  CHECK(decode_start(encode(start))->notes == start.notes);
  CHECK(decode_start(encode(start))->why == start.why);
  CHECK(decode_start(encode(start))->steps_again == 2);
  CHECK(decode_start(encode(start))->choice == start.choice);
  CHECK_FALSE(decode_start(encode(Start{4}))->choice);
}

TEST_CASE("acknowledgements of one root are ordered by fence, then by save", "[checkpoint]") {
  const std::string here(32, 'a'), elsewhere(32, 'b');
  const auto text = [](CheckpointId id, const std::string& root) {
    return encode(Acknowledgement{id, root, {"run", Generation{3, {{1, 2}}}, 1}, "/ck", "abc"});
  };
  const std::string now = text({30, 5, 2}, here);
  for (const CheckpointId& older : {CheckpointId{90, 4, 1}, {20, 5, 7}, {30, 5, 1}}) {
    CHECK(was_acknowledged_before(text(older, here), now));
    CHECK_FALSE(was_acknowledged_before(now, text(older, here)));
    CHECK_FALSE(was_acknowledged_before(text(older, elsewhere), now));  // of another root
  }
  for (const std::string& other : {now, std::string{}, std::string{"no record"}}) {
    CHECK_FALSE(was_acknowledged_before(now, other));
    CHECK_FALSE(was_acknowledged_before(other, now));
  }
}
