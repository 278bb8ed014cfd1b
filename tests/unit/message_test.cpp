#include "lib/link/message.hpp"

#include "lib/base/crc32c.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

std::string any_text(Rng& rng, std::uint64_t length_max) {
  std::string text(rng.below(length_max + 1), ' ');
  for (char& c : text) c = static_cast<char>(rng.next());
  return text;
}
ByteVector any_bytes(Rng& rng, std::uint64_t length_max) {
  const std::string text = any_text(rng, length_max);
  return {as_bytes(text).begin(), as_bytes(text).end()};
}
Generation any_generation(Rng& rng) { return {rng.next64(), {{rng.next64(), rng.next64()}}}; }
Failure any_failure(Rng& rng) {
  Failure failure{static_cast<Code>(rng.below(16)), static_cast<Remedy>(rng.below(5)), any_text(rng, 100)};
  if (rng.chance(0.5)) failure.rank = Rank{rng.next()};
  if (rng.chance(0.5)) failure.peer = Rank{rng.next()};
  if (rng.chance(0.5)) failure.generation = any_generation(rng);
  failure.node = any_text(rng, 20);
  return failure;
}
Message any_message(Rng& rng) {
  switch (rng.below(19)) {
    case 18:
      return RankIsSlow{any_generation(rng),
                        {rng.next(), any_text(rng, 50), any_text(rng, 20), rng.next64(), rng.next(), static_cast<float>(rng.below(1000)),
                         Duration{static_cast<std::int64_t>(rng.next64() >> 1)}}};
    case 17: return WaitsForStorage{any_generation(rng), {any_text(rng, 200), any_text(rng, 300)}};
    case 16: {
      PartVoted voted{rng.next64(), rng.next(), rng.next64(), Duration{static_cast<std::int64_t>(rng.next64() >> 1)}, {}};
      if (rng.chance(0.5)) voted.refusal = any_failure(rng);
      return voted;
    }
    case 15: return SaveLeftOut{any_generation(rng), rng.next64(), rng.next64()};
    case 14: return SaveFailed{any_generation(rng), rng.next64(), rng.next64(), any_failure(rng)};
    case 13: {
      WentOnFrom went{any_generation(rng), {any_text(rng, 200), rng.next64(), rng.next64(), any_text(rng, 90), {}}};
      for (std::uint64_t n = rng.below(4); n > 0; --n) went.restoration.notes.push_back(any_text(rng, 90));
      return went;
    }
    case 12: return CheckpointSaved{any_text(rng, 200)};
    case 0:
      return Hello{static_cast<std::uint16_t>(rng.next()),
                   any_text(rng, 30),
                   rng.next64(),
                   rng.next(),
                   rng.next(),
                   rng.chance(0.5),
                   rng.chance(0.5),
                   rng.chance(0.5),
                   rng.chance(0.5),
                   any_text(rng, 30),
                   rng.next64()};
    case 1: {
      Place place;
      const std::uint32_t rank = rng.next() >> 1;
      place.membership = {any_generation(rng), Rank{rank}, WorldSize{rank + 1}};
      place.local_rank = LocalRank{static_cast<std::uint32_t>(rng.below(8))};
      place.local_world = 8;
      place.run = RunId{any_text(rng, 20)};
      place.node = NodeId{any_text(rng, 20)};
      place.address = any_text(rng, 20);
      for (std::byte& b : place.key) b = static_cast<std::byte>(rng.next());
      place.restart_count = rng.next();
      place.elastic = rng.chance(0.5);
      Welcome welcome{place, {rng.next64(), any_text(rng, 200)}};
      for (std::uint64_t n = rng.below(4); n > 0; --n)
        welcome.remembered.failures.push_back({any_text(rng, 90), rng.next64(), rng.next64(), any_text(rng, 20)});
      return welcome;
    }
    case 2: return Refusal{any_failure(rng)};
    case 3: return Alive{};
    case 4:
      return StepDecided{any_generation(rng),
                         rng.next64(),
                         rng.next64(),
                         rng.chance(0.5) ? std::optional{static_cast<float>(rng.next()) / 7} : std::nullopt,
                         {Duration{rng.next()}, Duration{rng.next()}, Duration{rng.next()}, Duration{rng.next()}, Duration{rng.next()}}};
    case 5: return JobOver{any_generation(rng)};
    case 6: return GenerationOver{any_generation(rng), any_failure(rng), Duration{rng.next()}, rng.chance(0.5), rng.chance(0.5)};
    case 9: return PrepareToLeave{any_generation(rng)};
    case 10: return Returned{any_generation(rng)};
    case 11: return ReadyForPlace{any_generation(rng)};
    case 7: {
      StoreRequest request{rng.next64(), static_cast<StoreOp>(1 + rng.below(11)), any_generation(rng), Duration{rng.next()}};
      for (std::uint64_t n = rng.below(4); n > 0; --n) request.keys.push_back(any_text(rng, 50));
      request.value = any_bytes(rng, 200);
      request.expected = any_bytes(rng, 200);
      request.amount = static_cast<std::int64_t>(rng.next64());
      request.rank = rng.next();
      request.count = rng.next();
      request.caller = rng.next64();
      request.turn = rng.next64();
      request.absent = rng.chance(0.5);
      request.replay = rng.chance(0.5);
      request.version = rng.next64();
      return request;
    }
    default: {
      StoreReply reply{
          rng.next64(), rng.chance(0.5), static_cast<Code>(rng.below(16)), any_text(rng, 50), {}, static_cast<std::int64_t>(rng.next64())};
      for (std::uint64_t n = rng.below(4); n > 0; --n) reply.values.push_back(any_bytes(rng, 100));
      reply.version = rng.next64();
      return reply;
    }
  }
}

/// Every value has exactly one encoding, so equal bytes are equal messages.
bool same(const Message& a, const Message& b) { return a.index() == b.index() && encode(a) == encode(b); }

ByteVector frame(std::uint16_t version, std::uint16_t type, ByteSpan payload) {
  ByteWriter checked;
  checked.put(version);
  checked.put(type);
  checked.put_raw(payload);
  ByteWriter out;
  out.put(static_cast<std::uint32_t>(checked.bytes().size()));
  out.put(crc32c(checked.bytes()));
  out.put_raw(checked.bytes());
  return out.take();
}

}  // namespace

TEST_CASE("a message comes out of the stream as it went in, however the stream is cut", "[message]") {
  for_all_seeds(2000, [](Rng& rng) {
    std::vector<Message> sent;
    ByteVector stream;
    for (std::uint64_t n = rng.below(5); n > 0; --n) {
      sent.push_back(any_message(rng));
      const ByteVector bytes = encode(sent.back());
      stream.insert(stream.end(), bytes.begin(), bytes.end());
    }
    MessageReader reader;
    std::vector<Message> received;
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t piece = std::min<std::size_t>(stream.size() - at, 1 + rng.below(64));
      reader.feed(ByteSpan{stream}.subspan(at, piece));
      at += piece;
      for (;;) {
        auto message = reader.next();
        REQUIRE(message.ok());
        if (!*message) break;
        received.push_back(std::move(**message));
      }
    }
    REQUIRE(received.size() == sent.size());
    for (std::size_t i = 0; i < sent.size(); ++i) CHECK(same(received[i], sent[i]));
  });
}

TEST_CASE("every field of a place and of a failure arrives", "[message]") {
  Place place;
  place.membership = {{7, {{1, 2}}}, Rank{3}, WorldSize{4}};
  place.local_rank = LocalRank{1};
  place.local_world = 2;
  place.run = RunId{"run"};
  place.node = NodeId{"node-b"};
  place.address = "10.0.0.2";
  place.key.fill(std::byte{9});
  place.restart_count = 5;
  place.elastic = true;
  MessageReader reader;
  reader.feed(encode(Welcome{place, {55, "step 40 was acknowledged"}}));
  const Failure why{Code::peer_lost, Remedy::rejoin, "heard nothing", Rank{3}, Rank{5}, Generation{7, {{1, 2}}}, "node-b"};
  reader.feed(encode(GenerationOver{{7, {{1, 2}}}, why}));
  const Welcome welcome = std::get<Welcome>(*reader.next().value());
  const Place& got = welcome.place;
  CHECK(welcome.remembered.decided == 55);
  CHECK(welcome.remembered.checkpoint == "step 40 was acknowledged");
  CHECK(got.membership == place.membership);
  CHECK(got.local_rank == place.local_rank);
  CHECK(got.local_world == 2);
  CHECK(got.run == place.run);
  CHECK(got.node == place.node);
  CHECK(got.address == place.address);
  CHECK(got.key == place.key);
  CHECK(got.restart_count == 5);
  CHECK(got.elastic);
  const auto over = std::get<GenerationOver>(*reader.next().value());
  CHECK(over.generation.number == 7);
  CHECK(message(over.why) == message(why));
}

TEST_CASE("a flipped bit is never taken for a message", "[message]") {
  for_all_seeds(2000, [](Rng& rng) {
    ByteVector bytes = encode(any_message(rng));
    const std::uint64_t bit = 32 + rng.below(bytes.size() * 8 - 32);  // any but those of the length
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    MessageReader reader;
    reader.feed(bytes);
    const auto first = reader.next();
    REQUIRE(!first.ok());
    CHECK(first.failure().code == Code::protocol);
    reader.feed(encode(Alive{}));
    CHECK(!reader.next().ok());  // broken for good
  });
}

TEST_CASE("a length out of bounds ends the stream before it is waited for", "[message]") {
  for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{3}, message_max.value() + 1, std::uint64_t{0xffffffff}}) {
    ByteWriter header;
    header.put(static_cast<std::uint32_t>(length));
    header.put(std::uint32_t{0});
    MessageReader reader;
    reader.feed(header.bytes());
    CHECK(!reader.next().ok());
  }
}

TEST_CASE("from where a job goes on, and how it failed before, arrive; what is too much of it is left out", "[message]") {
  MessageReader reader;
  const auto sent_back = [&](const Message& message) {
    reader.feed(encode(message));
    return *reader.next().value();
  };
  Place place;
  place.membership.world = WorldSize{1}, place.local_world = 1;
  const std::vector<FailureAfter> failures{{"/ck/ckpt/s40", 3, 41, "exit code 3"}, {"/ck/ckpt/s40", 4, 41, "signal 11 (SIGSEGV)"}};
  CHECK(std::get<Welcome>(sent_back(Welcome{place, {41, "", failures}})).remembered.failures == failures);
  const std::vector<FailureAfter> many(1000, failures[0]);
  CHECK(std::get<Welcome>(sent_back(Welcome{place, {41, "", many}})).remembered.failures.size() == 64);
  Restoration from{"/ck/ckpt/s40", 40, 3, "a newer one is passed over", {"checkpoint s60 cannot be used"}};
  CHECK(std::get<WentOnFrom>(sent_back(WentOnFrom{{1, {{2, 3}}}, from})).restoration == from);
  from.notes.assign(1000, std::string(100'000, 'x'));
  const Restoration got = std::get<WentOnFrom>(sent_back(WentOnFrom{{1, {{2, 3}}}, from})).restoration;
  CHECK(got.notes.size() == 64);
  CHECK(got.notes[63].size() == 4096);
}

TEST_CASE("a Welcome of an agent that remembers no failures is read", "[message]") {
  Place place;
  place.membership.world = WorldSize{1}, place.local_world = 1;
  const ByteVector whole = encode(Welcome{place, {41, "step 40"}});
  MessageReader reader;
  reader.feed(frame(1, 2, ByteSpan{whole}.subspan(12, whole.size() - 12 - 4)));  // without the number of failures
  const auto welcome = std::get<Welcome>(*reader.next().value());
  CHECK(welcome.remembered.checkpoint == "step 40");
  CHECK(welcome.remembered.failures.empty());
}

TEST_CASE("what a later version adds does no harm", "[message]") {
  MessageReader reader;
  SECTION("a type") {
    reader.feed(frame(2, 999, as_bytes("from the future")));
    reader.feed(encode(Alive{}));
    CHECK(std::holds_alternative<Alive>(*reader.next().value()));
  }
  SECTION("a field at the end") {
    const StepDecided sent{{3, {{1, 2}}}, 44, 50, 2.5f, {1ms, 2ms, 3ms, 4ms, 5ms, 6ms, 7}};
    ByteWriter payload;
    payload.put(sent.generation.number);
    for (const std::uint64_t bits : sent.generation.lineage.bits) payload.put(bits);
    payload.put(sent.step);
    payload.put(sent.steps);
    payload.put(std::uint8_t{1});
    payload.put(std::bit_cast<std::uint32_t>(*sent.loss));
    SECTION("that is all of an earlier version") {
      reader.feed(frame(2, 5, payload.bytes()));
      CHECK(same(*reader.next().value(), StepDecided{sent.generation, sent.step, sent.steps, sent.loss}));
    }
    for (const Duration time : {sent.times.step, sent.times.waiting, sent.times.saves, sent.times.restore, sent.times.connect})
      payload.put(std::int64_t{time.count()});
    SECTION("that does not say who came last") {
      reader.feed(frame(2, 5, payload.bytes()));
      StepTimes without = sent.times;
      without.behind = {}, without.last_rank = 0;
      CHECK(same(*reader.next().value(), StepDecided{sent.generation, sent.step, sent.steps, sent.loss, without}));
    }
    payload.put(std::int64_t{sent.times.behind.count()});
    payload.put(sent.times.last_rank);
    payload.put(std::uint64_t{123});
    reader.feed(frame(2, 5, payload.bytes()));
    const Message got = *reader.next().value();
    CHECK(same(got, sent));
    CHECK(std::get<StepDecided>(got).times == sent.times);
  }
  SECTION("a code of failure is an internal one here") {
    Failure unknown{Code{200}, Remedy{200}, "?"};
    reader.feed(encode(Refusal{unknown}));
    const auto got = std::get<Refusal>(*reader.next().value());
    CHECK(got.failure.code == Code::internal);
    CHECK(got.failure.remedy == Remedy::exit_process);
  }
}

TEST_CASE("a payload that breaks a rule is refused", "[message]") {
  const auto refused = [](const Message& message) {
    MessageReader reader;
    reader.feed(encode(message));
    const auto got = reader.next();
    return !got.ok() && got.failure().code == Code::protocol;
  };
  Place place;
  place.membership = {{1, {}}, Rank{2}, WorldSize{2}};
  CHECK(refused(Welcome{place}));  // a rank outside its world
  place.membership.rank = Rank{1};
  CHECK(!refused(Welcome{place}));
  place.local_rank = LocalRank{1};
  CHECK(refused(Welcome{place}));                                   // a local rank outside its node
  CHECK(!refused(StoreRequest{.op = StoreOp{77}, .keys = {"k"}}));  // a later version's: for the store to refuse
  CHECK(refused(StoreRequest{.wait = Duration{-1}, .keys = {"k"}}));
  CHECK(refused(StoreRequest{.op = StoreOp::wait, .keys = std::vector<std::string>(store_keys_per_call_max + 1, "k")}));
  CHECK(refused(StoreRequest{.op = StoreOp::set, .keys = {"k"}, .value = ByteVector(store_value_max.value() + 1)}));
  CHECK(!refused(StoreRequest{.op = StoreOp::compare_set,
                              .keys = {std::string(store_key_max.value(), 'k')},
                              .value = ByteVector(store_value_max.value()),
                              .expected = ByteVector(store_value_max.value())}));
}

TEST_CASE("store calls of a release that knew fewer fields are read", "[message]") {
  StoreRequest request{
      .id = 3, .op = StoreOp::barrier, .keys = {"b"}, .count = 2, .caller = 5, .turn = 6, .absent = true, .replay = true, .version = 7};
  ByteVector bytes = encode_payload(request);
  bytes.resize(bytes.size() - 26);  // caller, turn, absent, replay, version
  const StoreRequest old = decode_store_request(bytes).value();
  CHECK(old.id == 3);
  CHECK(old.count == 2);
  CHECK(old.caller == 0);
  CHECK_FALSE(old.replay);
  bytes.resize(bytes.size() + 5);  // a field that is cut short is not one that is absent
  CHECK_FALSE(decode_store_request(bytes).ok());
  ByteVector answer = encode_payload(StoreReply{.id = 4, .number = 9, .version = 8});
  answer.resize(answer.size() - 8);
  CHECK(decode_store_reply(answer).value().number == 9);
  CHECK(decode_store_reply(answer).value().version == 0);
}

TEST_CASE("an answer too large for a message becomes a failure, not a broken connection", "[message]") {
  StoreReply reply{.id = 9};
  reply.values.assign(3, ByteVector(store_value_max.value()));
  const auto got = decode_store_reply(encode_payload(reply)).value();
  CHECK(got.id == 9);
  CHECK(!got.ok);
  CHECK(got.code == Code::exhausted);
}
