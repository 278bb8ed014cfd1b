#include <array>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "samples/gpt/text.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temporary_directory.hpp"

namespace {

std::string written(const elrun::test::TemporaryDirectory& folder, std::initializer_list<unsigned char> bytes) {
  const std::string path = folder.path() + "/data";
  std::ofstream out{path, std::ios::binary};
  for (const unsigned char byte : bytes) out.put(static_cast<char>(byte));
  return path;
}

}  // namespace

TEST_CASE("generated text is safe for a terminal, and ids are numbers", "[gpt]") {
  const std::vector<std::int32_t> tokens{'a', 0x1b, '[', '3', '1', 'm', '\n', '\\', 0xff};
  CHECK(gpt::printable(tokens, {}) == "a\\x1b[31m\n\\x5c\\xff");
  CHECK(gpt::printable(std::vector<std::int32_t>{464, 0, 50256}, {.ids = 50257}) == "464 0 50256");
}

TEST_CASE("a sample is its tokens and those that follow them, of bytes and of ids", "[gpt]") {
  const elrun::test::TemporaryDirectory folder;
  gpt::Options options{.data = written(folder, {1, 0, 0x51, 0xc4, 2, 0, 3, 0, 4, 0, 9, 0}), .context = 2};
  const std::array<std::uint64_t, 2> samples{1, 0};
  std::vector<std::int32_t> inputs(4), targets(4);
  const auto bytes = gpt::Corpus::open(options);
  REQUIRE(bytes.ok());
  CHECK(bytes->samples() == 5);
  bytes->fetch(samples, inputs, targets);
  CHECK(inputs == std::vector<std::int32_t>{0x51, 0xc4, 1, 0});
  CHECK(targets == std::vector<std::int32_t>{0xc4, 2, 0, 0x51});
  options.ids = 50258;
  CHECK(gpt::vocabulary(options) == 50304);
  const auto ids = gpt::Corpus::open(options);
  REQUIRE(ids.ok());
  CHECK(ids->samples() == 2);
  CHECK(ids->hash() != bytes->hash());
  ids->fetch(samples, inputs, targets);
  CHECK(inputs == std::vector<std::int32_t>{2, 3, 1, 50257});
  CHECK(targets == std::vector<std::int32_t>{3, 4, 50257, 2});
}

TEST_CASE("a file of ids that is none is refused with what to do", "[gpt]") {
  const elrun::test::TemporaryDirectory folder;
  gpt::Options options{.data = written(folder, {1, 0, 2, 0, 3}), .ids = 50257, .context = 1};
  CHECK(gpt::Corpus::open(options).failure().what.find("has 5 bytes, an odd number") != std::string::npos);
  options.data = written(folder, {1, 0, 2, 0});
  options.context = 2;
  CHECK(!gpt::Corpus::open(options).ok());  // two ids are no sample of two and the one that follows
  options.data = written(folder, {1, 0, 2, 0, 0x51, 0xc4});
  const auto corpus = gpt::Corpus::open(options);
  REQUIRE(corpus.ok());
  std::vector<std::int32_t> inputs(2), targets(2);
  const std::array<std::uint64_t, 1> first{0};
  CHECK_THROWS_WITH(corpus->fetch(first, inputs, targets),
                    Catch::Contains("token 2 of the data is 50257") && Catch::Contains("--ids 50257"));
}
