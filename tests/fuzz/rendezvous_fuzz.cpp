// Any bytes as messages of a stream, then whatever they mean fed to the round: nothing may crash, and what was
// understood can be said again in the same bytes. Built with libFuzzer where there is one; otherwise a short run by seed.

#include <cstdint>
#include <cstdlib>

#include "rendezvous/round.hpp"
#include "rendezvous/wire.hpp"

namespace elrun::inline v0 {
namespace {

void demand(bool so) {
  if (!so) std::abort();
}

void feed(ByteSpan bytes) {
  if (const auto message = coordinator_message_from_bytes(bytes); message.ok() && message.value()) {
    const ByteVector again = to_wire_bytes(**message);
    const auto back = coordinator_message_from_bytes(again);
    demand(back.ok() && back.value() && to_wire_bytes(**back) == again);
  }
  // A stream: length bytes in front of each message, alternating between two streams.
  RoundSetup setup;
  setup.version = "0.1.0";
  Round round{setup};
  Instant now{};
  for (const std::uint64_t stream : {1, 2}) (void)round.step(StreamOpened{StreamNumber{stream}, false}, now);
  for (std::uint64_t turn = 0; !bytes.empty() && turn < 64; ++turn) {
    const std::size_t length = std::min(static_cast<std::size_t>(bytes[0]), bytes.size() - 1);
    const auto message = node_message_from_bytes(bytes.subspan(1, length));
    bytes = bytes.subspan(1 + length);
    now += 100ms;
    if (message.ok() && message.value()) (void)round.step(FromNode{StreamNumber{1 + turn % 2}, **message}, now);
    else (void)round.step(RoundTick{}, now);
  }
}

}  // namespace
}  // namespace elrun::inline v0

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  elrun::feed(std::as_bytes(std::span{data, size}));
  return 0;
}

#ifndef ELRUN_LIBFUZZER
#include "tests/support/property.hpp"

namespace elrun::test {
TEST_CASE("the rendezvous survives what a fuzzer of small means says", "[fuzz]") {
  for_all_seeds(3000, [](Rng& rng) {
    ByteVector input;
    for (std::uint64_t messages = rng.below(12); messages > 0; --messages) {
      Join join;
      join.who = {NodeId{std::string(1, static_cast<char>('a' + rng.below(3)))}, rng.below(3)};
      join.version = "0.2.0";
      join.options = {.nodes_min = 1, .nodes_max = 2, .last_call = 0s};
      join.last = {rng.below(3), {}};
      join.resuming = rng.chance(0.3);
      const Generation generation{rng.below(4), {}};
      const NodeMessage any[] = {join, join, Acknowledge{generation}, WorkerFailed{generation, 0, 1, "x", true}, WorkersDone{generation},
                                 JobFinished{generation}, Progress{generation, 1}, Leave{"bye"}, NodeAlive{}};
      ByteVector bytes = to_wire_bytes(any[rng.below(std::size(any))]);
      if (rng.chance(0.1) && !bytes.empty()) bytes[rng.below(bytes.size())] ^= std::byte{0x10};
      if (bytes.size() > 255) continue;
      input.push_back(static_cast<std::byte>(bytes.size()));
      input.insert(input.end(), bytes.begin(), bytes.end());
    }
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  });
}
}  // namespace elrun::test
#endif
