#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "samples/gpt/text.hpp"
#include "tests/support/catch.hpp"

using gpt::Text;

namespace {

// A file that goes away with the test.
struct TemporaryFile {
  std::filesystem::path path;
  explicit TemporaryFile(const std::string& content) {
    std::string name = (std::filesystem::temp_directory_path() / "elrun-text-XXXXXX").string();
    close(mkstemp(name.data()));
    path = name;
    std::ofstream{path, std::ios::binary} << content;
  }
  ~TemporaryFile() { std::filesystem::remove(path); }
};

std::string refusal(const std::string& path, std::uint64_t context) {
  const auto text = Text::open(path, context);
  REQUIRE_FALSE(text.ok());
  return text.failure().what;
}

std::uint64_t hash_of(const std::string& content) {
  const TemporaryFile file{content};
  return Text::open(file.path, 1).value().hash();
}

}  // namespace

TEST_CASE("sample k is bytes k*context to k*context + context, both ends included", "[gpt]") {
  const TemporaryFile file{"abcdefghij"};
  const Text text = Text::open(file.path, 3).value();
  CHECK(text.samples() == 3);
  const std::vector<std::uint64_t> ids{2, 0};
  std::vector<std::int32_t> inputs(6), targets(6);
  text.fetch(ids, inputs, targets);
  CHECK(inputs == std::vector<std::int32_t>{'g', 'h', 'i', 'a', 'b', 'c'});
  CHECK(targets == std::vector<std::int32_t>{'h', 'i', 'j', 'b', 'c', 'd'});
}

TEST_CASE("the number of samples is what the last byte to predict allows", "[gpt]") {
  const auto samples = [](std::size_t size, std::uint64_t context) {
    const TemporaryFile file{std::string(size, 'x')};
    return Text::open(file.path, context).value().samples();
  };
  CHECK(samples(4, 3) == 1);
  CHECK(samples(6, 3) == 1);
  CHECK(samples(7, 3) == 2);
  CHECK(samples(2, 1) == 1);
}

TEST_CASE("bytes above 127 are tokens like others", "[gpt]") {
  const TemporaryFile file{"\xff\x80\x01"};
  std::vector<std::int32_t> inputs(2), targets(2);
  const std::vector<std::uint64_t> ids{0};
  Text::open(file.path, 2).value().fetch(ids, inputs, targets);
  CHECK(inputs == std::vector<std::int32_t>{255, 128});
  CHECK(targets == std::vector<std::int32_t>{128, 1});
}

TEST_CASE("a text that cannot be used is refused by name, with the size that it needs", "[gpt]") {
  using Catch::Matchers::Contains;
  CHECK_THAT(refusal("/nonexistent/text", 8), Contains("'/nonexistent/text'") && Contains("No such file"));
  CHECK_THAT(refusal("/tmp", 8), Contains("not a regular file"));
  const TemporaryFile empty{""}, eight{"12345678"};
  CHECK_THAT(refusal(empty.path, 8),
             Contains("has 0 bytes") && Contains("at least 9") && Contains(empty.path.string()));
  CHECK_THAT(refusal(eight.path, 8), Contains("has 8 bytes") && Contains("at least 9"));
  CHECK(Text::open(eight.path, 7).ok());
}

TEST_CASE("another content has another hash", "[gpt]") {
  const std::uint64_t hash = hash_of("the quick brown fox");
  CHECK(hash == hash_of("the quick brown fox"));
  CHECK(hash != hash_of("the quick brown foy"));
  CHECK(hash != hash_of("the quick brown fo"));
  CHECK(hash != hash_of(std::string{"the quick brown fox\0", 20}));
  CHECK(hash_of("12345678abcdefgh") != hash_of("abcdefgh12345678"));
}

TEST_CASE("generated text is safe for a terminal", "[gpt]") {
  const std::string raw = "a\x1b[31m\n\\\xff";
  CHECK(gpt::printable({reinterpret_cast<const unsigned char*>(raw.data()), raw.size()}) == "a\\x1b[31m\n\\x5c\\xff");
}
