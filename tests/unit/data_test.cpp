// Readers of data sets: what is in a file comes out, and a file that is not what it says is told by name.

#include <elrun/data.hpp>

#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "tests/support/gzip.hpp"
#include "tests/support/property.hpp"

namespace elrun::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

/// A folder that goes away with the test.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "elrun-data-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string put(const std::string& name, const std::string& content) const {
    std::ofstream{path_ / name, std::ios::binary} << content;
    return (path_ / name).string();
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

std::string idx(std::initializer_list<std::uint32_t> extents, const std::string& content, char type = 0x08) {
  std::string out{0, 0, type, static_cast<char>(extents.size())};
  for (const std::uint32_t e : extents)
    for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(e >> shift);
  return out + content;
}

std::string text_of(std::span<const unsigned char> bytes) { return {bytes.begin(), bytes.end()}; }

Failure refusal(const std::string& path) {
  const auto file = IdxFile::open(path);
  REQUIRE_FALSE(file.ok());
  CHECK(file.failure().remedy == Remedy::fix_config);
  return file.failure();
}

const std::string six = idx({3, 1, 2}, "aabbcc");

}  // namespace

TEST_CASE("an idx file gives its items, plain, packed, and by the name without .gz", "[data]") {
  const Folder folder;
  const std::string plain = folder.put("plain", six), packed = folder.put("packed.gz", gzipped(six));
  const auto hash = IdxFile::open(plain).value().hash();
  for (const std::string& path : {plain, packed, folder / "packed"}) {
    const IdxFile file = IdxFile::open(path).value();
    CHECK(file.shape() == Shape{3, 1, 2});
    CHECK(file.items() == 3);
    CHECK(file.item_bytes() == 2);
    CHECK(text_of(file.item(0)) == "aa");
    CHECK(text_of(file.item(2)) == "cc");
    CHECK(file.hash() == hash);
  }
  const IdxFile labels = IdxFile::open(folder.put("labels", idx({4}, "\x07\x02\x01\xff"))).value();
  CHECK(labels.item_bytes() == 1);
  CHECK(labels.item(3)[0] == 255);
}

TEST_CASE("a packed file may have several members", "[data]") {
  const Folder folder;
  const std::string padding(GENERATE(std::size_t{0}, std::size_t{1}, std::size_t{400}), '\0');  // as of a copy by blocks
  const IdxFile file = IdxFile::open(folder.put("two.gz", gzipped(six.substr(0, 5)) + gzipped(six.substr(5)) + padding)).value();
  CHECK(text_of(file.item(1)) == "bb");
}

TEST_CASE("another content or another shape has another hash", "[data]") {
  const Folder folder;
  const auto hash = [&](const std::string& content) { return IdxFile::open(folder.put("file", content)).value().hash(); };
  CHECK(hash(six) == hash(six));
  CHECK(hash(six) != hash(idx({3, 1, 2}, "aabbcd")));
  CHECK(hash(six) != hash(idx({3, 2, 1}, "aabbcc")));
  CHECK(hash(six) != hash(idx({6}, "aabbcc")));
}

TEST_CASE("a file that is not what its header says is refused by name, with the numbers", "[data]") {
  const Folder folder;
  const auto why = [&](const std::string& content) {
    const std::string path = folder.put("file", content);
    const Failure failure = refusal(path);
    CHECK(failure.code == Code::corrupt);
    CHECK_THAT(failure.what, Contains("'" + path + "'"));
    return failure.what;
  };
  CHECK_THAT(why(""), Contains("no idx file"));
  CHECK_THAT(why("\x1f\x8b\x08"), Contains("no idx file"));
  CHECK_THAT(why("a text"), Contains("no idx file"));
  CHECK_THAT(why(idx({2}, "xxxxxxxx", 0x0d)), Contains("0x0d"));
  CHECK_THAT(why(idx({}, "")), Contains("0 extents"));
  CHECK_THAT(why(idx({1, 1, 1, 1, 1, 1, 1, 1, 1}, "x")), Contains("9 extents"));
  CHECK_THAT(why(idx({2, 0}, "")), Contains("extent 1 is 0"));
  CHECK_THAT(why(idx({0xffffffff, 0xffffffff, 0xffffffff}, "xx")), Contains("limit"));
  CHECK_THAT(why(six.substr(0, 9)), Contains("within its header"));
  CHECK_THAT(why(six.substr(0, six.size() - 1)), Contains("5 bytes after its header") && Contains("6 (3 x 1 x 2)"));
  CHECK_THAT(why(six + "x"), Contains("7 bytes after its header"));
}

TEST_CASE("a packed file that is damaged is refused, and takes no more memory than it can hold", "[data]") {
  const Folder folder;
  const auto why = [&](const std::string& content) { return refusal(folder.put("file.gz", content)).what; };
  const std::string packed = gzipped(six);
  CHECK_THAT(why(""), Contains("no idx file"));
  CHECK_THAT(why(six), Contains("no gzip file"));
  CHECK_THAT(why(packed.substr(0, packed.size() - 9)), Contains("cut short"));
  CHECK_THAT(why(packed.substr(0, packed.size() - 1)), Contains("cut short"));
  CHECK_THAT(why(gzipped(six.substr(0, six.size() - 1))), Contains("cut short"));
  CHECK_THAT(why(gzipped(six + "x")), Contains("more than the 22 bytes"));
  std::string flipped = packed;
  flipped[packed.size() - 6] ^= 1;  // in the checksum
  CHECK_THAT(why(flipped), Contains("damaged"));
  CHECK_THAT(why(packed + "tail"), Contains("damaged"));
  CHECK_THAT(why(packed + std::string(500, '\0') + "tail"), Contains("damaged"));
  CHECK_THAT(why(gzipped(idx({1000, 1000, 1000}, "few"))), Contains("cannot hold"));
}

TEST_CASE("a file that cannot be had is told with what to do", "[data]") {
  const Folder folder;
  const Failure missing = refusal(folder / "nothing");
  CHECK(missing.code == Code::not_found);
  CHECK_THAT(missing.what, Contains("neither '" + (folder / "nothing") + "' nor") && Contains("on every node"));
  CHECK_THAT(refusal(folder / "nothing.gz").what, Contains("No such file"));
  CHECK_THAT(refusal(folder / "").what, Contains("not a regular file"));
}

// ---- texts

namespace {

std::string text_refusal(const std::string& path, std::uint64_t context) {
  const auto text = TextFile::open(path, context);
  REQUIRE_FALSE(text.ok());
  return text.failure().what;
}

}  // namespace

TEST_CASE("sample k of a text is bytes k*context to k*context + context, both ends included", "[data]") {
  const Folder folder;
  const TextFile text = TextFile::open(folder.put("text", "abcdefghij"), 3).value();
  CHECK(text.samples() == 3);
  CHECK(text_of(text.sample(0)) == "abcd");
  CHECK(text_of(text.sample(2)) == "ghij");
}

TEST_CASE("the number of samples is what the last byte to predict allows", "[data]") {
  const Folder folder;
  const auto samples = [&](std::size_t size, std::uint64_t context) {
    return TextFile::open(folder.put("text", std::string(size, 'x')), context).value().samples();
  };
  CHECK(samples(4, 3) == 1);
  CHECK(samples(6, 3) == 1);
  CHECK(samples(7, 3) == 2);
  CHECK(samples(2, 1) == 1);
}

TEST_CASE("a text that cannot be used is refused by name, with the size that it needs", "[data]") {
  const Folder folder;
  CHECK_THAT(text_refusal("/nonexistent/text", 8), Contains("'/nonexistent/text'") && Contains("No such file"));
  CHECK_THAT(text_refusal("/tmp", 8), Contains("not a regular file"));
  CHECK_THAT(text_refusal("/tmp", 0), Contains("context of 0"));
  const std::string empty = folder.put("empty", ""), eight = folder.put("eight", "12345678");
  CHECK_THAT(text_refusal(empty, 8), Contains("has 0 bytes") && Contains("at least 9") && Contains(empty));
  CHECK_THAT(text_refusal(eight, 8), Contains("has 8 bytes") && Contains("at least 9"));
  CHECK(TextFile::open(eight, 7).ok());
}

TEST_CASE("another text has another hash", "[data]") {
  const Folder folder;
  const auto hash_of = [&](const std::string& content) { return TextFile::open(folder.put("text", content), 1).value().hash(); };
  const std::uint64_t hash = hash_of("the quick brown fox");
  CHECK(hash == hash_of("the quick brown fox"));
  CHECK(hash != hash_of("the quick brown foy"));
  CHECK(hash != hash_of("the quick brown fo"));
  CHECK(hash != hash_of(std::string{"the quick brown fox\0", 20}));
  CHECK(hash_of("12345678abcdefgh") != hash_of("abcdefgh12345678"));
}

}  // namespace elrun::test
