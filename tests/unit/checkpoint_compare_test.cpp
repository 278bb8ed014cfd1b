// `elrun ckpt diff`: what differs between two checkpoints in memory.

#include <cstring>
#include <limits>
#include <map>

#include "checkpoint/tools/compare.hpp"
#include "checkpoint/tools/verify.hpp"
#include "tests/support/property.hpp"
#include "tests/support/read_checkpoints.hpp"

namespace elrun::test {
namespace {

template <class T>
ByteVector bytes_of(std::initializer_list<T> values) {
  ByteVector bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}

}  // namespace

TEST_CASE("checkpoints of one state are equal whatever worlds saved them, and one element is found where it differs", "[ckpt]") {
  for (std::uint64_t seed = 1; seed <= 12; seed += stride(1)) {
    FaultyFiles files;
    Rng rng{seed};
    const ModelTable model = seed == 1 ? small_model() : random_model(rng);
    const auto kinds = static_cast<std::uint32_t>(1) << model.kinds.size();
    TestJob one{files, static_cast<std::uint32_t>(1 + rng.below(4)), seed, model, static_cast<std::uint32_t>(rng.below(kinds)), "run",
                "/one"};
    TestJob two{files, static_cast<std::uint32_t>(1 + rng.below(6)), seed + 50, model, static_cast<std::uint32_t>(rng.below(kinds)), "run",
                "/two"};
    start_and_save(one, {10});
    start_and_save(two, {10, 11});
    INFO("seed " << seed);
    const auto same = compare(files, side(files, "/one"), side(files, "/two:10"));
    REQUIRE(said(same) == "");
    CHECK(same->equal());
    CHECK(comparison_text(*same, side(files, "/one"), side(files, "/two:10")).ends_with("The states are equal.\n"));
    const auto other = compare(files, side(files, "/one"), side(files, "/two:11"));
    REQUIRE(said(other) == "");
    CHECK_FALSE(other->equal());
  }
}

TEST_CASE("a tensor that differs has its first element, their number and the largest difference", "[ckpt]") {
  Difference d;
  d.add(DType::f32, bytes_of<float>({1, 2, 3}), bytes_of<float>({1, 2, 3}));
  CHECK(d.different == 0);
  d.add(DType::f32, bytes_of<float>({4, 5, 6}), bytes_of<float>({4, 5.5f, 2}));
  CHECK(d.elements == 6);
  CHECK(d.different == 2);
  CHECK(d.first == 4);
  CHECK(d.first_a == 5);
  CHECK(d.first_b == 5.5);
  CHECK(d.largest == 4);
  CHECK(d.not_numbers == 0);

  SECTION("bits count: -0 is not 0, and one NaN is equal to itself") {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    Difference bits;
    bits.add(DType::f32, bytes_of<float>({0, nan, nan, 1}), bytes_of<float>({-0.0f, nan, 1, 1}));
    CHECK(bits.different == 2);
    CHECK(bits.first == 0);
    CHECK(bits.largest == 0);
    CHECK(bits.not_numbers == 1);
  }
  SECTION("integers of 64 bits that a double cannot tell apart") {
    Difference wide;
    wide.add(DType::i64, bytes_of<std::int64_t>({(1LL << 60) + 1, std::numeric_limits<std::int64_t>::min()}),
             bytes_of<std::int64_t>({1LL << 60, std::numeric_limits<std::int64_t>::min()}));
    CHECK(wide.different == 1);
    CHECK(wide.largest == 1);
    wide.add(DType::u64, bytes_of<std::uint64_t>({0}), bytes_of<std::uint64_t>({~0ull}));
    CHECK(wide.largest == 0x1p64);
  }
  SECTION("bf16") {
    Difference half;
    half.add(DType::bf16, bytes_of<std::uint16_t>({0x3f80, 0x4000}), bytes_of<std::uint16_t>({0x3f80, 0x3f80}));
    CHECK(half.first_a == 2);
    CHECK(half.first_b == 1);
    CHECK(half.largest == 1);
  }
  CHECK(index_text(35, {2, 3, 10}) == "[1, 0, 5]");
  CHECK(index_text(0, {}) == "[]");
}

TEST_CASE("tensors that one side lacks, and those of another shape, are told apart from those that differ", "[ckpt]") {
  FaultyFiles files;
  ModelTable mine = small_model(), other = small_model();
  other.units[0].tensors[0].shape = {60, 50};
  other.units[1].tensors[1].name = "offset";
  TestJob one{files, 2, 1, mine, 1, "run", "/one"}, two{files, 1, 2, other, 1, "run", "/two"};
  start_and_save(one, {10});
  start_and_save(two, {10});
  const auto all = compare(files, side(files, "/one"), side(files, "/two"));
  REQUIRE(said(all) == "");
  std::map<std::string, TensorDifference::As> by_name;
  for (const TensorDifference& t : all->tensors) by_name[t.name] = t.as;
  using As = TensorDifference::As;
  CHECK(by_name["param/embed.weight"] == As::other_shape);
  CHECK(by_name["param/block.0.qkv"] == As::equal);
  CHECK(by_name["param/block.0.bias"] == As::only_in_a);
  CHECK(by_name["param/block.0.offset"] == As::only_in_b);
  CHECK(by_name["exp_avg/head"] == As::equal);
}

TEST_CASE("host state that one side lacks is a difference, but for what a job notes of its declarations", "[ckpt]") {
  FaultyFiles files;
  TestJob one{files, 2, 1, small_model(), 1, "run", "/one"}, two{files, 2, 2, small_model(), 1, "run", "/two"};
  start_and_save(one, {10});
  const auto is_equal = [&] {
    for (const auto& [a, b] : {std::pair{"/one", "/two"}, {"/two", "/one"}}) {
      const auto all = compare(files, side(files, a), side(files, b));
      REQUIRE(said(all) == "");
      if (!all->equal()) return false;
    }
    return true;
  };
  SECTION("a value of the program") {
    two.notes = {{"counter", ByteVector(8)}};
    start_and_save(two, {10});
    CHECK_FALSE(is_equal());
  }
  SECTION("which tensors were frozen, that versions before did not note") {
    two.notes = {{"elrun.tensors", ByteVector(8)}};
    start_and_save(two, {10});
    CHECK(is_equal());
  }
  SECTION("the model of GPU on which it was computed, that one of them or both note") {
    two.notes = {{"elrun.device_model", ByteVector(49)}};
    start_and_save(two, {10});
    CHECK(is_equal());
    TestJob three{files, 1, 3, small_model(), 1, "run", "/three"};
    three.notes = {{"elrun.device_model", ByteVector(50)}};
    start_and_save(three, {10});
    const auto all = compare(files, side(files, "/two"), side(files, "/three"));
    REQUIRE(said(all) == "");
    CHECK(all->equal());
  }
}

TEST_CASE("damage under a comparison is a failure that names the block, and no difference", "[ckpt]") {
  FaultyFiles files;
  TestJob job{files, 2, 1};
  start_and_save(job, {10, 20});
  const Side a = side(files, "/ckpts:10"), b = side(files, "/ckpts:20");
  flip(files, of({20, 1, 1}, b.manifest.files[0].name), b.manifest.files[0].header_bytes + 3);
  const auto all = compare(files, a, b);
  REQUIRE_FALSE(all.ok());
  CHECK(all.failure().code == Code::corrupt);
  CHECK(all.failure().what.find("block 0") != std::string::npos);
}

TEST_CASE("what COMMIT does not vouch for, and what is of another checkpoint, is not compared", "[ckpt]") {
  FaultyFiles files;
  TestJob job{files, 2, 1};
  start_and_save(job, {10, 20});
  const CheckpointId at_10{10, 1, 1}, at_20{20, 1, 1};
  const Path manifest = of(at_20, manifest_file);
  const auto problem = [&] {
    const auto one = inspect(files, found(files, "/ckpts:20"));
    REQUIRE(said(one) == "");
    return one->problem;
  };
  CHECK(problem().empty());
  CHECK(said(side_of(files, found(files, "/ckpts:20"))) == "");
  SECTION("the records of another checkpoint") {
    for (const char* file : {commit_file, manifest_file}) files.overwrite(of(at_20, file), files.content(of(at_10, file)));
    CHECK(problem().find(to_string(at_10)) != std::string::npos);
    // Both are named, by all who look: the root is the same.
    const std::string identity = facts_of(files).view.root;
    const std::string words =
        "is of " + to_string(at_10) + " of root " + identity + ", and this is " + to_string(at_20) + " of root " + identity;
    CHECK(problem().find(words) != std::string::npos);
    CHECK(list_checkpoints(facts_of(files))[0].why.find(words) != std::string::npos);
    const auto verified = verify_all(files, the_root / "ckpt" / to_string(at_20), at_20, identity, {.readers = 1});
    REQUIRE(said(verified) == "");
    for (const Damage& damage : verified->damage)
      if (damage.file == commit_file || damage.file == manifest_file) CHECK(damage.what.find(words) != std::string::npos);
  }
  SECTION("the manifest of another one, without a COMMIT") {
    files.overwrite(manifest, files.content(of(at_10, manifest_file)));
    REQUIRE(files.remove_file(of(at_20, commit_file)).ok());
    CHECK(problem().find(to_string(at_10)) != std::string::npos);
  }
  SECTION("one digit of the manifest") {
    const ByteVector whole = files.content(manifest);
    for (std::size_t at = whole.size(); at-- > 0;) {
      if (whole[at] < std::byte{'1'} || whole[at] > std::byte{'8'}) continue;
      ByteVector other = whole;
      other[at] = whole[at] == std::byte{'1'} ? std::byte{'2'} : std::byte{'1'};
      files.overwrite(manifest, other);
      if (const auto read = decode_manifest(other, "m"); read.ok() && read->id == at_20) break;  // it still decodes
    }
    CHECK(problem().find("is not the one that COMMIT vouches for") != std::string::npos);
  }
  const auto other = side_of(files, found(files, "/ckpts:20"));
  REQUIRE_FALSE(other.ok());
  CHECK(other.failure().code == Code::corrupt);
  CHECK(said(side_of(files, found(files, "/ckpts:10"))) == "");
}

}  // namespace elrun::test
