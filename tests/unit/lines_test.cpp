#include "launcher/output/lines.hpp"

#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::launcher;
using elrun::test::for_all_seeds;

namespace {

struct Shown {
  std::string lines, filtered;
  friend bool operator==(const Shown&, const Shown&) = default;
};

Shown whole(const std::string& input, const std::string& prefix = "[p]:", std::vector<std::string> filters = {},
            std::size_t line_max = line_bytes_max) {
  Lines lines{prefix, std::move(filters), line_max};
  Shown out;
  lines.feed(input, out.lines, out.filtered);
  lines.end(out.lines, out.filtered);
  return out;
}

// What Lines promises, in a slow and obvious way: one byte after the other, with the whole input at hand.
Shown slow(const std::string& input, const std::string& prefix, const std::vector<std::string>& filters, std::size_t line_max) {
  Shown out;
  std::string line;
  const auto put = [&](const std::string& ending) {
    const bool matches =
        std::any_of(filters.begin(), filters.end(), [&](const std::string& f) { return line.find(f) != std::string::npos; });
    out.lines += prefix + line + ending;
    if (matches) out.filtered += prefix + line + ending;
    line.clear();
  };
  for (std::size_t i = 0; i < input.size(); ++i) {
    if (input[i] == '\n') put("\n");
    else if (input.compare(i, 2, "\r\n") == 0) put("\r\n"), ++i;
    else if (input[i] == '\r') line.empty() ? void() : put("\n");
    else {
      if (line.size() == line_max) put("\n");
      line += input[i];
    }
  }
  if (!line.empty()) put("\n");
  return out;
}

std::size_t below(Rng& rng, std::size_t n) { return static_cast<std::size_t>(rng.below(n)); }

}  // namespace

TEST_CASE("each line gets the prefix and keeps its bytes", "[lines]") {
  CHECK(whole("a\n\nb\n").lines == "[p]:a\n[p]:\n[p]:b\n");
  CHECK(whole("").lines.empty());
  CHECK(whole("windows\r\n").lines == "[p]:windows\r\n");
  CHECK(whole(std::string{"nul\0byte\n", 9}).lines == "[p]:" + std::string{"nul\0byte\n", 9});
  CHECK(whole("\xff\xfe half a letter \xe2\x82\n").lines == "[p]:\xff\xfe half a letter \xe2\x82\n");
}

TEST_CASE("what has no newline at the end gets one, so that the next prefix begins a line", "[lines]") {
  CHECK(whole("no newline").lines == "[p]:no newline\n");
  CHECK(whole("return\r").lines == "[p]:return\n");
}

TEST_CASE("the states of a progress bar are lines", "[lines]") {
  CHECK(whole("\r 10%\r 20%\r100%\ndone\n").lines == "[p]: 10%\n[p]: 20%\n[p]:100%\n[p]:done\n");
  CHECK(whole("\r\r\rx\r\r\n").lines == "[p]:x\n[p]:\r\n");
}

TEST_CASE("a state of a progress bar is shown when the next one begins", "[lines]") {
  Lines lines{"[p]:"};
  Shown out;
  lines.feed(" 10%\r", out.lines, out.filtered);
  CHECK(out.lines.empty());  // a newline may follow
  lines.feed(" 20%", out.lines, out.filtered);
  CHECK(out.lines == "[p]: 10%\n");
}

TEST_CASE("a line that is too long comes in pieces, of bounded memory", "[lines]") {
  CHECK(whole("12345", "", {}, 5).lines == "12345\n");
  CHECK(whole("12345\n", "", {}, 5).lines == "12345\n");
  CHECK(whole("123456\n", ">", {}, 5).lines == ">12345\n>6\n");
  CHECK(whole(std::string(12, 'x'), ">", {}, 5).lines == ">xxxxx\n>xxxxx\n>xx\n");
}

TEST_CASE("lines that contain one of the filters are told apart, with their prefix", "[lines]") {
  const Shown shown = whole("loss 1\nother\nacc 2\r\nloss", "[p]:", {"loss", "acc"});
  CHECK(shown.filtered == "[p]:loss 1\n[p]:acc 2\r\n[p]:loss\n");
  CHECK(whole("[p]:\n", "[p]:", {"[p]:"}).filtered == "[p]:[p]:\n");
  CHECK(whole("x\n", "[p]:", {"p"}).filtered.empty());  // the prefix is nothing that the worker said
}

TEST_CASE("lines do not depend on how the bytes were cut into chunks", "[lines]") {
  for_all_seeds(2000, [](Rng& rng) {
    const std::string alphabet = "\r\n\r\nab \xff";
    std::string input;
    for (std::size_t left = below(rng, 60); left > 0; --left) input += alphabet[below(rng, alphabet.size())];
    const std::size_t line_max = below(rng, 3) == 0 ? 1 + below(rng, 5) : 1000;
    const std::vector<std::string> filters{"ab", "\xff"};
    const Shown expected = slow(input, "[0]:", filters, line_max);
    CHECK(whole(input, "[0]:", filters, line_max) == expected);
    Lines lines{"[0]:", filters, line_max};
    Shown out;
    for (std::string_view rest = input; !rest.empty();) {
      const std::size_t size = std::min(rest.size(), below(rng, 4));
      lines.feed(rest.substr(0, size), out.lines, out.filtered);
      rest.remove_prefix(size);
    }
    lines.end(out.lines, out.filtered);
    CHECK(out == expected);
  });
}

TEST_CASE("the last lines are what a terminal would show", "[lines]") {
  using Texts = std::vector<std::string>;
  CHECK(last_lines("a\nb\nc\n", true, 2) == Texts{"b", "c"});
  CHECK(last_lines("a\nb", true, 5) == Texts{"a", "b"});
  CHECK(last_lines("cut off\nb\n", false, 5) == Texts{"b"});
  CHECK(last_lines("a very long line", false, 5) == Texts{"a very long line"});
  CHECK(last_lines(" 10%\r 20%\r 30%\nerror\r\n\n\n", true, 5) == Texts{" 30%", "error"});
  CHECK(last_lines("", true, 5).empty());
  CHECK(last_lines("a\n\nb\n", true, 5) == Texts{"a", "", "b"});
}
