#pragma once
/// \file Samples of a text as tokens, and tokens as text again.

#include <cstdint>
#include <span>
#include <string>

#include <elrun/data.hpp>
#include <elrun/result.hpp>

#include "samples/gpt/options.hpp"

namespace gpt {

/// The file that is learned: every byte is a token, or every 16 bits (little-endian, as tokenizers write files for training).
class Corpus {
 public:
  /// Fails as elrun::TextFile::open does, and where 16-bit ids are wanted and the file has an odd number of bytes.
  static elrun::Result<Corpus> open(const Options& options);

  /// Of `context` tokens; each has one more to predict, which is the next one's first.
  [[nodiscard]] std::uint64_t samples() const { return (file_.bytes().size() / width() - 1) / context_; }
  /// Of content and length. As ids the same bytes are other tokens, and give another hash.
  [[nodiscard]] std::uint64_t hash() const { return ids_ == 0 ? file_.hash() : file_.hash() + ids_; }
  /// Both spans have samples.size() · context elements. Throws elrun::Error for an id that the vocabulary does not have.
  void fetch(std::span<const std::uint64_t> samples, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

 private:
  Corpus(elrun::TextFile file, const Options& options) : file_{std::move(file)}, context_{options.context}, ids_{options.ids} {}
  [[nodiscard]] std::uint64_t width() const { return ids_ == 0 ? 1 : 2; }
  [[nodiscard]] std::int32_t token(std::uint64_t index) const;
  elrun::TextFile file_;
  std::uint64_t context_, ids_;
};

/// Text for a terminal, in lines: what does not print becomes \xNN. Ids are written as numbers: what they mean is the tokenizer's to say.
[[nodiscard]] std::string printable(std::span<const std::int32_t> tokens, const Options& options);

}  // namespace gpt
