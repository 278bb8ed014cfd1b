#include "samples/gpt/text.hpp"

#include <algorithm>

namespace gpt {

elrun::Result<Corpus> Corpus::open(const Options& options) {
  const std::uint64_t width = options.ids == 0 ? 1 : 2;
  ELRUN_TRY_ASSIGN(elrun::TextFile file, elrun::TextFile::open(options.data, width * (options.context + 1) - 1));
  if (file.bytes().size() % width != 0)
    return elrun::Failure{.code = elrun::Code::invalid_argument,
                          .remedy = elrun::Remedy::fix_config,
                          .what = "'" + options.data + "' has " + std::to_string(file.bytes().size()) +
                                  " bytes, an odd number: --ids is for a file of 16 bits per token, without it every byte is one"};
  return Corpus{std::move(file), options};
}

std::int32_t Corpus::token(std::uint64_t index) const {
  const auto bytes = file_.bytes();
  if (ids_ == 0) return bytes[index];
  const std::uint32_t id = bytes[2 * index] | static_cast<std::uint32_t>(bytes[2 * index + 1]) << 8;
  if (id >= ids_)
    throw elrun::Error{{.code = elrun::Code::invalid_argument,
                        .remedy = elrun::Remedy::fix_config,
                        .what = "token " + std::to_string(index) + " of the data is " + std::to_string(id) + ", and --ids " +
                                std::to_string(ids_) + " says that all are below that: give the tokenizer's number, or the file it wrote"}};
  return static_cast<std::int32_t>(id);
}

void Corpus::fetch(std::span<const std::uint64_t> samples, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
  for (std::size_t s = 0; s < samples.size(); ++s)
    for (std::size_t t = 0; t < context_; ++t) {
      inputs[s * context_ + t] = token(samples[s] * context_ + t);
      targets[s * context_ + t] = token(samples[s] * context_ + t + 1);
    }
}

std::string printable(std::span<const std::int32_t> tokens, const Options& options) {
  std::string text;
  for (const std::int32_t token : tokens) {
    const auto c = static_cast<unsigned char>(token);
    if (options.ids > 0) {
      if (!text.empty()) text += ' ';
      text += std::to_string(token);
    } else if (c == '\n' || (c >= 32 && c < 127 && c != '\\')) {
      text += static_cast<char>(c);
    } else {
      constexpr char digits[] = "0123456789abcdef";
      text += {'\\', 'x', digits[c / 16], digits[c % 16]};
    }
  }
  return text;
}

}  // namespace gpt
