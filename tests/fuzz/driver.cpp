/// \file Runs a libFuzzer target without libFuzzer: `name_fuzz [count [seed]]` feeds it the target's own examples,
/// mutated by seed. clang's -fsanitize=fuzzer brings a main of its own and explores further.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <elrun/philox.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
/// Valid inputs to start from; empty ones are skipped. Defined by each target.
std::vector<std::string> fuzz_examples();

namespace {

std::string mutated(std::string text, const std::vector<std::string>& examples, elrun::Rng& rng) {
  constexpr const char* tokens[] = {
      "18446744073709551615", "9007199254740992", "-1", "1e999", "null", "[", "{", "]", "}", "\"", ":", ",", "0", "\\u0000"};
  for (std::uint64_t edits = 1 + rng.below(4); edits != 0; --edits) {
    const std::size_t at = rng.below(text.size() + 1);
    switch (rng.below(6)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << rng.below(8)));
        break;
      case 1: text.insert(at, tokens[rng.below(std::size(tokens))]); break;
      case 2: text.erase(at, rng.below(16)); break;
      case 3: text.resize(at); break;
      case 4:
        if (at < text.size()) text[at] = static_cast<char>(rng.next());
        break;
      default: {
        const std::string& other = examples[rng.below(examples.size())];
        text.insert(at, other, rng.below(other.size() + 1), rng.below(64));
      }
    }
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 0) : 20'000;
  const std::uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 0;
  const auto run = [](const std::string& text) { LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()); };
  const std::vector<std::string> examples = fuzz_examples();
  if (examples.empty()) return std::puts("the target has no examples"), 1;
  for (const std::string& example : examples) run(example);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    elrun::Rng rng{seed};
    run(mutated(examples[rng.below(examples.size())], examples, rng));
  }
  std::printf("%llu inputs, seeds %llu and on: none of them did harm\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(first));
  return 0;
}
