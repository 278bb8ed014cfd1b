#pragma once
/// \file Samples of a text as tokens, and tokens as text again.

#include <cstdint>
#include <span>
#include <string>

#include <elrun/data.hpp>

namespace gpt {

/// Every byte is a token. Both spans have samples.size() · context elements.
void fetch(const elrun::TextFile& text, std::span<const std::uint64_t> samples, std::span<std::int32_t> inputs,
           std::span<std::int32_t> targets);

/// Text for a terminal, in lines: what does not print becomes \xNN.
[[nodiscard]] std::string printable(std::span<const unsigned char> bytes);

}  // namespace gpt
