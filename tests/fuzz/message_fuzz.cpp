// Any bytes on a worker's connection are whole messages, or an end with a reason; what is read can be written again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/assert.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/link/message.hpp"

using namespace elrun;

namespace {

ByteVector framed(ByteSpan kind_and_payload) {
  ByteWriter out;
  out.put(static_cast<std::uint32_t>(kind_and_payload.size()));
  out.put(crc32c(kind_and_payload));
  out.put_raw(kind_and_payload);
  return out.take();
}

void read_all(ByteSpan stream) {
  MessageReader reader;
  reader.feed(stream);
  for (;;) {
    const auto message = reader.next();
    if (!message.ok()) {
      ELRUN_ASSERT(message.failure().code == Code::protocol && !reader.next().ok());
      return;
    }
    if (!*message) return;
    const ByteVector again = encode(**message);
    MessageReader second;
    second.feed(again);
    const auto copy = second.next();
    ELRUN_ASSERT(copy.ok() && *copy && encode(**copy) == again);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan bytes = std::as_bytes(std::span{data, size});
  read_all(bytes);
  read_all(framed(bytes));  // past the checksum, which mutation never gets right
  (void)decode_store_request(bytes);
  (void)decode_store_reply(bytes);
  return 0;
}

std::vector<std::string> fuzz_examples() {
  Place place;
  place.run = RunId{"run"};
  place.address = "10.0.0.1";
  const Failure why{Code::peer_lost, Remedy::rejoin, "it was killed", Rank{1}, Rank{2}, Generation{3, {{4, 5}}}, "node-a"};
  const std::vector<Message> messages{Hello{.release = "0.1.0", .pid = 7, .rank = 1, .world = 2},
                                      Welcome{place},
                                      Welcome{place, {41, "step 40", {{"/ck/ckpt/s40", 2, 41, "exit code 3"}, {"/ck/ckpt/s20", 3, 0, ""}}}},
                                      Refusal{why},
                                      Alive{},
                                      StepDecided{{1, {{2, 3}}}, 4},
                                      JobOver{},
                                      GenerationOver{{}, why},
                                      PrepareToLeave{},
                                      Returned{{1, {{2, 3}}}},
                                      ReadyForPlace{{1, {{2, 3}}}},
                                      CheckpointSaved{"step 40"},
                                      WentOnFrom{{1, {{2, 3}}}, {"/ck/ckpt/s40", 40, 3, "the newest checkpoint", {"one", "two"}}},
                                      SaveFailed{{1, {{2, 3}}}, 40, 2, why},
                                      SaveLeftOut{{1, {{2, 3}}}, 40, 2},
                                      WaitsForStorage{{1, {{2, 3}}}, {"/ck", "list /ck/gens has not returned for 5.0 s"}},
                                      RankIsSlow{{1, {{2, 3}}}, {3, "node-a", "cuda:1", 40, 20, 1.5f, Duration{5}}},
                                      PartVoted{40, 1, 4096, Duration{5}, why},
                                      StoreRequest{.id = 1, .op = StoreOp::wait, .keys = {"a", "b"}, .value = ByteVector(5)},
                                      StoreReply{.id = 1, .what = "x", .values = {ByteVector(3), {}}}};
  std::vector<std::string> examples;
  for (const Message& message : messages) {
    const ByteVector frame = encode(message);
    examples.emplace_back(as_text(frame));
    examples.emplace_back(as_text(ByteSpan{frame}.subspan(8)));  // type and payload alone
  }
  return examples;
}
