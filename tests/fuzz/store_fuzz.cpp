/// \file Requests to the store as they may come from anybody, fed to its core: no call does harm, each is answered once,
/// and when all callers are gone nothing is left of their waits.
/// Input: records of one byte (who, in which scope, and what happens before), two of length, and a StoreRequest.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/base/assert.hpp"
#include "lib/link/message.hpp"
#include "lib/link/store_core.hpp"

using namespace elrun;

namespace {

constexpr std::size_t records_max = 64;
constexpr std::uint64_t callers = 4;
const Generation generations[] = {{1, {{7, 8}}}, {2, {{7, 8}}}};

/// What is understood is written as it was read.
void judge(ByteSpan bytes) {
  if (const auto request = decode_store_request(bytes); request.ok()) {
    const ByteVector again = encode_payload(*request);
    const auto reread = decode_store_request(again);
    ELRUN_ASSERT(reread.ok() && encode_payload(*reread) == again);
  }
  if (const auto reply = decode_store_reply(bytes); reply.ok()) {
    const ByteVector again = encode_payload(*reply);
    const auto reread = decode_store_reply(again);
    ELRUN_ASSERT(reread.ok() && encode_payload(*reread) == again);
  }
}

/// Who waits for an answer, as the callers see it.
class Callers {
 public:
  void called(StoreCaller who, std::uint64_t id) { ++open_[{who, id}]; }
  void heard(const std::vector<StoreAnswer>& answers) {
    for (const StoreAnswer& answer : answers) {
      const auto call = open_.find({answer.to, answer.reply.id});
      ELRUN_ASSERT(call != open_.end());
      if (--call->second == 0) open_.erase(call);
      const ByteVector sent = encode_payload(answer.reply);
      ELRUN_ASSERT(decode_store_reply(sent).ok());  // its node understands what it is told
    }
  }
  void forgotten(StoreCaller who) {
    std::erase_if(open_, [&](const auto& call) { return call.first.first == who; });
  }
  [[nodiscard]] bool all_answered() const { return open_.empty(); }

 private:
  std::map<std::pair<StoreCaller, std::uint64_t>, std::uint64_t> open_;
};

void feed(ByteSpan bytes) {
  StoreCore store;
  Callers waiting;
  Instant now{};
  waiting.heard(store.begin_generation(generations[0]));
  for (std::size_t record = 0; record < records_max && bytes.size() >= 3; ++record) {
    const auto what = static_cast<std::uint8_t>(bytes[0]);
    const std::size_t length = std::min(static_cast<std::size_t>(bytes[1]) | static_cast<std::size_t>(bytes[2]) << 8, bytes.size() - 3);
    const ByteSpan payload = bytes.subspan(3, length);
    bytes = bytes.subspan(3 + length);
    const StoreCaller who{1 + what % callers};
    const StoreScope scope = (what & 4) != 0 ? StoreScope::job : StoreScope::generation;
    now += 10ms;
    waiting.heard(store.expire(now));
    switch (what >> 5) {
      case 1: waiting.heard(store.begin_generation(generations[1])); break;
      case 2: waiting.heard(store.adopt_generation(generations[1], 1 + what % 2)); break;
      case 3: waiting.heard(store.end_generation("for a reason")); break;
      case 4:
        store.forget(who);
        waiting.forgotten(who);
        break;
      default: break;
    }
    judge(payload);
    if (auto request = decode_store_request(payload); request.ok()) {
      if (!request->replay) waiting.called(who, request->id);
      waiting.heard(store.call(who, *std::move(request), now, scope));
    }
    ELRUN_ASSERT(store.kept() <= store_kept_max);
  }
  waiting.heard(store.end_generation("the end"));
  waiting.heard(store.expire(now + 2 * store_wait_max));
  ELRUN_ASSERT(waiting.all_answered() && !store.next_expiry());
  for (std::uint64_t who = 1; who <= callers; ++who) store.forget(StoreCaller{who});
}

std::string record(std::uint8_t what, const StoreRequest& request) {
  const ByteVector payload = encode_payload(request);
  std::string text{static_cast<char>(what), static_cast<char>(payload.size() & 255), static_cast<char>(payload.size() >> 8)};
  return text.append(as_text(payload));
}

StoreRequest call(StoreOp op, std::string key, std::uint64_t id = 1) {
  StoreRequest request{.id = id, .op = op, .generation = generations[0], .wait = 1s};
  request.keys.push_back(std::move(key));
  return request;
}

ByteVector value(std::string_view text) { return {as_bytes(text).begin(), as_bytes(text).end()}; }

StoreRequest arrival(StoreOp op, std::uint32_t rank, std::uint32_t count, std::uint64_t id = 1) {
  StoreRequest request = call(op, "room", id);
  request.rank = rank;
  request.count = count;
  request.caller = 40 + rank;
  request.turn = 3;
  if (op == StoreOp::all_gather) request.value = value("of rank");
  return request;
}

StoreRequest replayed(StoreRequest request, std::uint64_t version) {
  request.generation = generations[1];
  request.replay = true;
  request.version = version;
  return request;
}

}  // namespace

std::vector<std::string> fuzz_examples() {
  StoreRequest set = call(StoreOp::set, "key");
  set.value = value("12");
  StoreRequest add = call(StoreOp::add, "key");
  add.amount = -5;
  StoreRequest compare = call(StoreOp::compare_set, "key");
  compare.expected = value("7");
  compare.value = value("8");
  StoreRequest watch = call(StoreOp::watch, "key", 2);
  watch.absent = true;
  StoreRequest known = call(StoreOp::watch, "key", 3);
  known.expected = value("8");
  StoreRequest wait = call(StoreOp::wait, "key", 4);
  wait.keys.emplace_back("other");
  StoreRequest count = call(StoreOp::num_keys, "");
  const StoreRequest get = call(StoreOp::get, "key", 5), remove = call(StoreOp::remove, "key");
  StoreRequest relearned = call(StoreOp::relearned, "");
  std::vector<std::string> examples{
      record(0, set) + record(0, add) + record(0, compare) + record(0, get) + record(0, remove) + record(0, count),
      record(0, watch) + record(1, wait) + record(2, get) + record(3, set) + record(0, known) + record(3, add),
      record(4, watch) + record(5, get) + record(5, set) + record(6, remove) + record(6, count),
  };
  for (const StoreOp op : {StoreOp::barrier, StoreOp::all_gather}) {
    // Both come; one asks again; in another generation; one after the loss of a store.
    examples.push_back(record(0, arrival(op, 0, 2)) + record(1, arrival(op, 1, 2)) + record(1, arrival(op, 1, 2, 2)));
    examples.push_back(record(0, arrival(op, 0, 2)) + record(0, arrival(op, 0, 2, 2)) + record(4 << 5, get) + record(3 << 5, get));
    examples.push_back(record(4, arrival(op, 0, 2)) + record(5, arrival(op, 0, 2)));
    const std::string past = record(0, replayed(arrival(op, 0, 2), 9)) + record(0, replayed(set, 4)) + record(0, replayed(remove, 3));
    examples.push_back(record(2 << 5, get) + past + record(0, replayed(relearned, 9)) + record(1, arrival(op, 1, 2)));
  }
  // A caller outside that never asks again, another one beside it that gives up, and a third one.
  const auto from = [](std::uint64_t caller, std::uint64_t id, Duration patience) {
    StoreRequest request = arrival(StoreOp::barrier, 0, 3, id);
    request.caller = caller, request.wait = patience;
    return request;
  };
  examples.push_back(record(4, from(0, 1, 1s)) + record(4, from(7, 2, 5ms)) + record(4, from(9, 3, 1s)) + record(4, from(8, 4, 1s)));
  StoreReply reply{
      .id = 8, .ok = false, .code = Code::deadline_passed, .what = "waited", .values = {value("a"), {}}, .number = -1, .version = 5};
  const ByteVector answer = encode_payload(reply);
  examples.push_back(std::string{'\0', static_cast<char>(answer.size()), '\0'}.append(as_text(answer)));
  return examples;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size <= 1 << 16) feed(std::as_bytes(std::span{data, size}));
  return 0;
}
