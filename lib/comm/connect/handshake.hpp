#pragma once
/// \file How two ranks prove to each other that they belong to one generation, before any frame. Pure.
///
/// The dialer introduces itself with a nonce; the listener answers with a nonce and its proof; the dialer answers with
/// its own. A proof is the HMAC, by the generation's key, of the role, the whole introduction (who, to whom, which
/// generation) and both nonces: it fits no other role, pair, generation or connection.

#include <array>
#include <cstdint>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>

#include "lib/base/bytes.hpp"
#include "lib/base/digest.hpp"

namespace elrun::inline v0 {

using Nonce = std::array<std::byte, 32>;

struct Introduction {
  Generation generation;
  WorldSize world{1};
  Rank from, to;
  Nonce nonce{};
  friend bool operator==(const Introduction&, const Introduction&) = default;
};
constexpr std::size_t introduction_size = 80;
constexpr std::size_t answer_size = sizeof(Nonce) + sizeof(Sha256);  ///< The listener's nonce and proof.
constexpr std::size_t proof_size = sizeof(Sha256);

[[nodiscard]] std::array<std::byte, introduction_size> encode(const Introduction& introduction);
[[nodiscard]] Result<Introduction> decode_introduction(ByteSpan bytes);

enum class Role : std::uint8_t { listener = 1, dialer = 2 };
[[nodiscard]] Sha256 proof_of(Role role, const Key256& key, const Introduction& introduction, const Nonce& listeners);

}  // namespace elrun::inline v0
