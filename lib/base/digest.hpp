#pragma once
/// \file SHA-256 of OpenSSL, HMAC with it, and random bytes of the system.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace elrun::inline v0 {

using Sha256 = std::array<std::byte, 32>;
using Key256 = std::array<std::byte, 32>;  ///< A secret of one generation.

[[nodiscard]] Sha256 sha256(std::span<const std::byte> data);
[[nodiscard]] Sha256 hmac_sha256(const Key256& key, std::span<const std::byte> data);
/// Takes the same time wherever they differ.
[[nodiscard]] bool equal_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;
/// From the system's generator; throws Error when it has none.
void random_bytes(std::span<std::byte> out);
[[nodiscard]] std::string to_hex(std::span<const std::byte> data);

}  // namespace elrun::inline v0
