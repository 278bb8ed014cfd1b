#include "lib/comm/connect/handshake.hpp"

#include <algorithm>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::uint64_t handshake_magic = 0x3130'4d4d'4f43'4c45;  // "ELCOMM01": the last two digits are the version

template <std::size_t size>
std::array<std::byte, size> fixed(const ByteVector& bytes) {
  ELRUN_ASSERT(bytes.size() == size);
  std::array<std::byte, size> out{};
  std::ranges::copy(bytes, out.begin());
  return out;
}

}  // namespace

std::array<std::byte, introduction_size> encode(const Introduction& introduction) {
  ByteWriter out;
  out.put(handshake_magic);
  out.put(introduction.generation.number);
  for (const std::uint64_t bits : introduction.generation.lineage.bits) out.put(bits);
  out.put(introduction.world.value());
  out.put(introduction.from.value());
  out.put(introduction.to.value());
  out.put(std::uint32_t{0});
  out.put_raw(introduction.nonce);
  return fixed<introduction_size>(out.bytes());
}

Result<Introduction> decode_introduction(ByteSpan bytes) {
  ByteReader in{bytes};
  if (in.get<std::uint64_t>() != handshake_magic) in.mark_broken();
  Introduction introduction;
  introduction.generation.number = in.get<std::uint64_t>();
  for (std::uint64_t& bits : introduction.generation.lineage.bits) bits = in.get<std::uint64_t>();
  introduction.world = WorldSize{in.get<std::uint32_t>()};
  introduction.from = Rank{in.get<std::uint32_t>()};
  introduction.to = Rank{in.get<std::uint32_t>()};
  (void)in.get<std::uint32_t>();
  if (const ByteSpan nonce = in.get_raw(introduction.nonce.size()); !nonce.empty()) std::ranges::copy(nonce, introduction.nonce.begin());
  ELRUN_TRY(in.finish("the introduction of a rank"));
  return introduction;
}

Sha256 proof_of(Role role, const Key256& key, const Introduction& introduction, const Nonce& listeners) {
  ByteWriter said;
  said.put(static_cast<std::uint8_t>(role));
  said.put_raw(encode(introduction));
  said.put_raw(listeners);
  return hmac_sha256(key, said.bytes());
}

}  // namespace elrun::inline v0
