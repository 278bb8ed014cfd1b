/// \file What others than a job's agents may put before elrun: the first bytes of a connection (D), the calls of a program
/// that is no worker (C) and the answers that such a program gets (A), the state of a job in etcd (S).

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/assert.hpp"
#include "lib/link/message.hpp"
#include "lib/link/store_core.hpp"
#include "rendezvous.pb.h"
#include "rendezvous/election/election.hpp"
#include "rendezvous/net/acceptor.hpp"

using namespace elrun;

namespace {

constexpr std::string_view http2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// However the bytes come in, the acceptor decides the same, and once it has decided more bytes change nothing.
void knock(ByteSpan bytes) {
  FirstBytes decided = FirstBytes::unfinished;
  for (std::size_t size = 1; size <= bytes.size(); ++size) {
    const FirstBytes now = first_bytes(bytes.first(size));
    ELRUN_ASSERT(decided == FirstBytes::unfinished || now == decided);
    decided = now;
  }
  ELRUN_ASSERT(bytes.size() < first_bytes_size || decided != FirstBytes::unfinished);
  ELRUN_ASSERT((decided == FirstBytes::http2) == as_text(bytes).starts_with(http2));
}

void read_state(std::string_view text) {
  const auto state = generation_from_state(text);
  if (!state.ok()) return ELRUN_ASSERT(state.failure().what.size() < 300);
  ELRUN_ASSERT(state->number <= state_number_max);
  const auto again = generation_from_state(state_text(*state));
  ELRUN_ASSERT(again.ok() && *again == *state);
}

void call(std::string_view batch) {
  wire::StoreCalls calls;
  if (!calls.ParseFromArray(batch.data(), static_cast<int>(batch.size()))) return;
  StoreCore store;
  const auto understood = [](const std::vector<StoreAnswer>& answers) {
    for (const StoreAnswer& answer : answers) ELRUN_ASSERT(decode_store_reply(encode_payload(answer.reply)).ok());
    return answers.size();
  };
  std::size_t asked = 0, answered = 0;
  for (const wire::StoreCall& call : calls.calls()) {
    auto request = decode_store_request(as_bytes(call.request()));
    if (!request.ok() || request->replay) break;  // the service ends the stream
    ++asked;
    answered += understood(store.call(StoreCaller{1 + call.worker() % 8}, *std::move(request), {}, StoreScope::job));
  }
  // Nothing of a generation can be read or spoilt from outside: its keys vanish with it, these do not.
  answered += understood(store.begin_generation({1, {}}));
  answered += understood(store.expire(Instant{} + 2 * store_wait_max));
  ELRUN_ASSERT(answered == asked && !store.next_expiry());
}

void hear(std::string_view batch) {
  wire::StoreResults results;
  if (!results.ParseFromArray(batch.data(), static_cast<int>(batch.size()))) return;
  for (const wire::StoreResult& result : results.results())
    if (const auto reply = decode_store_reply(as_bytes(result.reply())); reply.ok())
      ELRUN_ASSERT(decode_store_reply(encode_payload(*reply)).ok());
}

template <class Payload>
void put(const Payload& payload, auto& out) {
  const ByteVector bytes = encode_payload(payload);
  out.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::string calls_of_a_client() {
  wire::StoreCalls calls;
  for (const StoreOp op : {StoreOp::watch, StoreOp::set, StoreOp::add, StoreOp::get, StoreOp::compare_set, StoreOp::num_keys,
                           StoreOp::remove, StoreOp::wait, StoreOp::barrier, StoreOp::all_gather}) {
    StoreRequest request{.id = static_cast<std::uint64_t>(calls.calls_size()), .op = op, .wait = 1s, .keys = {"key"}, .absent = true};
    if (gathers(op)) request.count = 2, request.caller = 9, request.turn = 4;
    wire::StoreCall& call = *calls.add_calls();
    call.set_worker(calls.calls_size() % 3);
    put(request, *call.mutable_request());
  }
  return calls.SerializeAsString();
}

std::string answers_to_a_client() {
  wire::StoreResults results;
  wire::StoreResult& result = *results.add_results();
  result.set_worker(1);
  put(StoreReply{.id = 3, .values = {ByteVector(3), {}}, .number = -1, .version = 5}, *result.mutable_reply());
  put(StoreReply{.id = 4, .ok = false, .code = Code::exhausted, .what = "full"}, *results.add_results()->mutable_reply());
  return results.SerializeAsString();
}

}  // namespace

std::vector<std::string> fuzz_examples() {
  const Generation newest{state_number_max, {{~std::uint64_t{0}, 1}}};
  const auto tagged = [](char tag, std::string_view text) { return std::string(1, tag).append(text); };
  return {tagged('D', std::string{http2}.append("and more")),
          tagged('D', "\x16\x03\x01\x02 the beginning of TLS"),
          tagged('D', "GET / HTTP/1.1\r\nHost: node-a\r\n\r\n"),
          tagged('C', calls_of_a_client()),
          tagged('A', answers_to_a_client()),
          tagged('S', state_text({12, {{0x0123456789abcdef, 0xfedcba9876543210}}})),
          tagged('S', state_text(newest)),
          tagged('S', state_text({}))};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan rest = std::as_bytes(std::span{data + 1, size - 1});
  switch (data[0]) {
    case 'D': knock(rest); break;
    case 'C': call(as_text(rest)); break;
    case 'A': hear(as_text(rest)); break;
    default: read_state(as_text(rest));
  }
  return 0;
}
