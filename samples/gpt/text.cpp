#include "samples/gpt/text.hpp"

namespace gpt {

void fetch(const elrun::TextFile& text, std::span<const std::uint64_t> samples, std::span<std::int32_t> inputs,
           std::span<std::int32_t> targets) {
  for (std::size_t s = 0; s < samples.size(); ++s) {
    const auto bytes = text.sample(samples[s]);
    for (std::size_t t = 0; t < text.context(); ++t) {
      inputs[s * text.context() + t] = bytes[t];
      targets[s * text.context() + t] = bytes[t + 1];
    }
  }
}

std::string printable(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char c : bytes) {
    if (c == '\n' || (c >= 32 && c < 127 && c != '\\')) {
      text += static_cast<char>(c);
    } else {
      constexpr char digits[] = "0123456789abcdef";
      text += {'\\', 'x', digits[c / 16], digits[c % 16]};
    }
  }
  return text;
}

}  // namespace gpt
