#include "lib/comm/tcp/frame.hpp"

#include <set>
#include <vector>

#include "lib/comm/connect/handshake.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

const Generation generation{7, {{11, 22}}};
FrameHeader header_of(std::uint64_t total, std::uint32_t length) {
  return {.generation = 7, .lineage = lineage_word(generation.lineage), .call = 3, .total = total, .length = length, .checksum = 99};
}

}  // namespace

TEST_CASE("a frame's header comes out as it went in, for its own generation alone", "[frame]") {
  const FrameHeader header = header_of(1000, 500);
  const FrameHeaderBytes bytes = encode(header);
  CHECK(decode_frame_header(bytes, generation).value() == header);
  CHECK(decode_frame_header(bytes, {8, {{11, 22}}}).failure().code == Code::refused);
  CHECK(decode_frame_header(bytes, {7, {{11, 23}}}).failure().code == Code::refused);  // two coordinators, one number
  CHECK(decode_frame_header(bytes, {7, {{22, 11}}}).failure().code == Code::refused);
}

TEST_CASE("a frame says whether its payload has a checksum", "[frame]") {
  FrameHeader header = header_of(1000, 500);
  header.checked = false;
  CHECK(decode_frame_header(encode(header), generation).failure().code == Code::protocol);  // and then has none
  header.checksum = 0;
  CHECK(decode_frame_header(encode(header), generation).value() == header);
}

TEST_CASE("a flipped bit anywhere in a header is seen", "[frame]") {
  const FrameHeaderBytes good = encode(header_of(1000, 500));
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    FrameHeaderBytes bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    const auto decoded = decode_frame_header(bad, generation);
    REQUIRE(!decoded.ok());
    CHECK(decoded.failure().code == Code::protocol);
  }
}

TEST_CASE("a header out of bounds is refused though its checksum matches", "[frame]") {
  const auto refused = [](const FrameHeader& header) { return !decode_frame_header(encode(header), generation).ok(); };
  const auto most = static_cast<std::uint32_t>(frame_payload_max.value());
  CHECK(!refused(header_of(most, most)));
  CHECK(refused(header_of(most + std::uint64_t{1}, most + 1)));
  CHECK(refused(header_of(10, 0)));
  CHECK(refused(header_of(10, 11)));
  CHECK(refused(header_of(call_payload_max + 1, 5)));
  CHECK(!decode_frame_header(ByteSpan{encode(header_of(10, 5))}.first(47), generation).ok());
  CHECK(!decode_frame_header({}, generation).ok());
}

TEST_CASE("a cursor gives all bytes of its pieces once, in order, within its bounds", "[frame]") {
  for_all_seeds(500, [](Rng& rng) {
    std::vector<std::byte> memory(rng.below(2000));
    std::vector<std::span<const std::byte>> pieces;
    for (std::size_t at = 0; at < memory.size();) {
      const std::size_t size = std::min<std::size_t>(memory.size() - at, rng.below(100));
      pieces.push_back(std::span<const std::byte>{memory}.subspan(at, size));
      at += size;
    }
    pieces.resize(pieces.size() + rng.below(3));  // empty ones at the end
    Cursor<std::span<const std::byte>> cursor{pieces};
    std::size_t at = 0;
    std::array<std::span<const std::byte>, 5> room{};
    while (!cursor.done()) {
      const std::uint64_t bytes_max = 1 + rng.below(150);
      const std::uint64_t left = cursor.left();
      const auto taken = cursor.take(bytes_max, std::span{room}.first(1 + rng.below(room.size())));
      std::uint64_t bytes = 0;
      for (const auto piece : taken) {
        REQUIRE(!piece.empty());
        REQUIRE(piece.data() == memory.data() + at);
        at += piece.size();
        bytes += piece.size();
      }
      REQUIRE(bytes > 0);
      REQUIRE(bytes <= bytes_max);
      REQUIRE(cursor.left() == left - bytes);
    }
    CHECK(at == memory.size());
  });
}

TEST_CASE("an introduction comes out as it went in, and nothing else is taken for one", "[frame]") {
  Introduction introduction{generation, WorldSize{5}, Rank{4}, Rank{2}, {}};
  introduction.nonce.fill(std::byte{5});
  auto bytes = encode(introduction);
  CHECK(decode_introduction(bytes).value() == introduction);
  bytes[0] ^= std::byte{1};
  CHECK(!decode_introduction(bytes).ok());
  CHECK(!decode_introduction(ByteSpan{bytes}.first(79)).ok());
}

TEST_CASE("a proof fits one key, role, pair, generation and connection alone", "[frame]") {
  Key256 key{}, other_key{};
  key.fill(std::byte{1});
  other_key.fill(std::byte{2});
  Nonce nonce{}, other_nonce{};
  other_nonce.fill(std::byte{3});
  const Introduction said{generation, WorldSize{5}, Rank{4}, Rank{2}, {}};
  std::set<Sha256> proofs{proof_of(Role::listener, key, said, nonce)};
  const auto fresh = [&](const Sha256& proof) { return proofs.insert(proof).second; };
  CHECK(!fresh(proof_of(Role::listener, key, said, nonce)));
  CHECK(fresh(proof_of(Role::dialer, key, said, nonce)));
  CHECK(fresh(proof_of(Role::listener, other_key, said, nonce)));
  CHECK(fresh(proof_of(Role::listener, key, said, other_nonce)));
  for (auto change : std::vector<void (*)(Introduction&)>{
           [](Introduction& i) { i.from = Rank{3}; }, [](Introduction& i) { i.to = Rank{1}; },
           [](Introduction& i) { i.generation.number = 8; }, [](Introduction& i) { i.generation.lineage.bits[1] = 1; },
           [](Introduction& i) { i.world = WorldSize{6}; }, [](Introduction& i) { i.nonce[31] = std::byte{1}; }}) {
    Introduction changed = said;
    change(changed);
    CHECK(fresh(proof_of(Role::listener, key, changed, nonce)));
  }
}
