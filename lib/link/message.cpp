/// The idea: each message lists its fields once, in `fields`, and two codecs walk that list, `Put` towards bytes and `Get`
/// from bytes that may come from anybody. What one writes, the other reads; a field cannot be forgotten on one side.

#include "lib/link/message.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <concepts>
#include <type_traits>

#include "lib/base/assert.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/base/printable.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t header_size = 8;              // length, checksum
constexpr std::size_t kind_size = 4;                // version, type
constexpr std::size_t name_max = 4096;              // a node, a run, an address, a release
constexpr std::size_t text_max = 65536;             // what went wrong
constexpr std::size_t acknowledgement_max = 16384;  // of a checkpoint
constexpr std::size_t path_max = 4096;              // of a checkpoint
constexpr std::size_t clause_max = 512;             // why, or how
constexpr std::size_t proof_max = 64;               // a digest in hex
constexpr std::uint32_t values_max = 1 << 20;
constexpr std::uint32_t failures_max = 64;  // after checkpoints
constexpr std::uint32_t notes_max = 64;     // on where a job goes on from

static_assert(message_max.value() >= 2 * store_value_max.value() + store_key_max.value() + 4096,
              "the largest compare_set fits into a message");
static_assert(message_max.value() >= std::uint64_t{store_keys_per_call_max} * (store_key_max.value() + 4) + 4096,
              "the largest wait fits into a message");

// The wire's numbers of the messages: never reused, in the order of the variant.
enum class Type : std::uint16_t {
  hello = 1,
  welcome,
  refusal,
  alive,
  step_decided,
  job_over,
  generation_over,
  store_request,
  store_reply,
  prepare_to_leave,
  returned,
  ready_for_place,
  checkpoint_saved,
  went_on_from,
  save_failed,
  save_left_out,
  part_voted,
  waits_for_storage,
  rank_is_slow
};

/// Writes fields. Texts beyond their bound are cut: they are for people.
struct Put {
  ByteWriter out;
  template <std::integral T>
  void number(const T& value) {
    out.put(value);
  }
  void flag(const bool& value) { out.put(static_cast<std::uint8_t>(value)); }
  template <class E>
  void choice(const E& value, E /*last*/, E /*otherwise*/) {
    out.put(static_cast<std::uint8_t>(value));
  }
  void text(const std::string& value, std::size_t max) { out.put_text(std::string_view{value}.substr(0, max)); }
  void blob(const ByteVector& value, Bytes) { out.put_bytes(value); }
  void key(const std::array<std::byte, 32>& value) { out.put_raw(value); }
  template <class T, class Each>
  void list(const std::vector<T>& values, std::uint32_t, Each each) {
    out.put(static_cast<std::uint32_t>(values.size()));
    for (const T& value : values) each(value);
  }
  /// Values beyond the bound are left out: they are for people.
  template <class T, class Each>
  void list_cut(const std::vector<T>& values, std::uint32_t max, Each each) {
    const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(values.size(), max));
    out.put(count);
    for (std::uint32_t i = 0; i < count; ++i) each(values[i]);
  }
  template <class T, class Each>
  void maybe(const std::optional<T>& value, Each each) {
    flag(value.has_value());
    if (value) each(*value);
  }
  void require(bool) {}
  template <class Each>
  void appended(Each each) {
    each();
  }
};

/// Reads fields. What is out of bounds marks the reader as broken before anything is allocated for it.
struct Get {
  ByteReader in;
  template <std::integral T>
  void number(T& value) {
    value = in.get<T>();
  }
  void flag(bool& value) { value = in.get<std::uint8_t>() != 0; }
  /// A value that only a later version knows becomes `otherwise`.
  template <class E>
  void choice(E& value, E last, E otherwise) {
    const auto raw = in.get<std::uint8_t>();
    value = raw <= static_cast<std::uint8_t>(last) ? static_cast<E>(raw) : otherwise;
  }
  void text(std::string& value, std::size_t max) { value = in.get_text(max); }
  void blob(ByteVector& value, Bytes max) {
    const ByteSpan bytes = in.get_bytes(max.value());
    value.assign(bytes.begin(), bytes.end());
  }
  void key(std::array<std::byte, 32>& value) {
    if (const ByteSpan bytes = in.get_raw(value.size()); bytes.size() == value.size()) std::ranges::copy(bytes, value.begin());
  }
  template <class T, class Each>
  void list(std::vector<T>& values, std::uint32_t max, Each each) {
    const auto count = in.get<std::uint32_t>();
    require(count <= max && count <= in.left() / 4);  // each element has at least its length
    for (std::uint32_t i = 0; i < count && !in.broken(); ++i) each(values.emplace_back());
  }
  template <class T, class Each>
  void list_cut(std::vector<T>& values, std::uint32_t max, Each each) {
    list(values, max, each);
  }
  template <class T, class Each>
  void maybe(std::optional<T>& value, Each each) {
    bool there = false;
    flag(there);
    if (there) each(value.emplace());
  }
  void require(bool rule) {
    if (!rule) in.mark_broken();
  }
  /// Fields that an earlier version does not send: they keep what they were.
  template <class Each>
  void appended(Each each) {
    if (in.left() > 0) each();
  }
};

/// `M` is `T`, const or not: one list of fields serves both codecs.
template <class M, class T>
concept Is = std::same_as<std::remove_const_t<M>, T>;

/// The value inside a Strong, by way of a plain one.
template <class Strong>
void strong_number(Put& c, const Strong& value) {
  c.number(value.value());
}
template <class Strong>
void strong_number(Get& c, Strong& value) {
  typename Strong::rep raw{};
  c.number(raw);
  value = Strong{raw};
}
template <class Strong>
void strong_text(Put& c, const Strong& value) {
  c.text(value.value(), name_max);
}
template <class Strong>
void strong_text(Get& c, Strong& value) {
  std::string raw;
  c.text(raw, name_max);
  value = Strong{std::move(raw)};
}
/// Any bits are a float: who uses it looks whether it is finite.
void real(Put& c, const float& value) { c.number(std::bit_cast<std::uint32_t>(value)); }
void real(Get& c, float& value) {
  std::uint32_t raw = 0;
  c.number(raw);
  value = std::bit_cast<float>(raw);
}
void duration(Put& c, const Duration& value) { c.number(std::int64_t{value.count()}); }
void duration(Get& c, Duration& value) {
  std::int64_t raw = 0;
  c.number(raw);
  value = Duration{raw};
  c.require(raw >= 0);
}

template <class C, Is<Generation> M>
void fields(C& c, M& m) {
  c.number(m.number);
  c.number(m.lineage.bits[0]);
  c.number(m.lineage.bits[1]);
}
template <class C, Is<Failure> M>
void fields(C& c, M& m) {
  c.choice(m.code, Code::internal, Code::internal);
  c.choice(m.remedy, Remedy::exit_process, Remedy::exit_process);
  c.text(m.what, text_max);
  c.maybe(m.rank, [&](auto& rank) { strong_number(c, rank); });
  c.maybe(m.peer, [&](auto& rank) { strong_number(c, rank); });
  c.maybe(m.generation, [&](auto& generation) { fields(c, generation); });
  c.text(m.node, name_max);
}
template <class C, Is<StepTimes> M>
void fields(C& c, M& m) {
  for (auto* time : {&m.step, &m.waiting, &m.saves, &m.restore, &m.connect}) duration(c, *time);
}
template <class C, Is<Place> M>
void fields(C& c, M& m) {
  fields(c, m.membership.generation);
  strong_number(c, m.membership.rank);
  strong_number(c, m.membership.world);
  strong_number(c, m.local_rank);
  c.number(m.local_world);
  strong_text(c, m.run);
  strong_text(c, m.node);
  c.text(m.address, name_max);
  c.key(m.key);
  c.number(m.restart_count);
  c.flag(m.elastic);
  c.require(m.membership.rank.value() < m.membership.world.value() && m.local_rank.value() < m.local_world);
}

template <class C, Is<FailureAfter> M>
void fields(C& c, M& m) {
  c.text(m.checkpoint, path_max);
  c.number(m.generation);
  c.number(m.step);
  c.text(m.how, clause_max);
}
template <class C, Is<Restoration> M>
void fields(C& c, M& m) {
  c.text(m.checkpoint, path_max);
  c.number(m.step);
  c.number(m.steps_again);
  c.text(m.why, clause_max);
  c.list_cut(m.notes, notes_max, [&](auto& note) { c.text(note, name_max); });
}

template <class C, Is<Hello> M>
void fields(C& c, M& m) {
  c.number(m.version);
  c.text(m.release, name_max);
  c.number(m.pid);
  c.number(m.rank);
  c.number(m.world);
  c.flag(m.is_job);
  c.appended([&] { c.flag(m.stays); });
  c.appended([&] { c.flag(m.says_ready); });
  c.appended([&] { c.flag(m.says_end); });
  c.appended([&] { c.text(m.proof, proof_max); });
  c.appended([&] { c.number(m.session); });
}
template <class C, Is<Welcome> M>
void fields(C& c, M& m) {
  fields(c, m.place);
  c.appended([&] {
    c.number(m.remembered.decided);
    c.text(m.remembered.checkpoint, acknowledgement_max);
  });
  c.appended([&] { c.list_cut(m.remembered.failures, failures_max, [&](auto& failure) { fields(c, failure); }); });
}
template <class C, Is<CheckpointSaved> M>
void fields(C& c, M& m) {
  c.text(m.acknowledgement, acknowledgement_max);
}
template <class C, Is<WentOnFrom> M>
void fields(C& c, M& m) {
  fields(c, m.generation);
  fields(c, m.restoration);
}
template <class C, Is<SaveFailed> M>
void fields(C& c, M& m) {
  fields(c, m.generation);
  c.number(m.step);
  c.number(m.count);
  fields(c, m.why);
}
template <class C, Is<SaveLeftOut> M>
void fields(C& c, M& m) {
  fields(c, m.generation);
  c.number(m.step);
  c.number(m.count);
}
template <class C, Is<WaitsForStorage> M>
void fields(C& c, M& m) {
  fields(c, m.generation);
  c.text(m.waiting.directory, path_max);
  c.text(m.waiting.why, name_max);
}
template <class C, Is<RankIsSlow> M>
void fields(C& c, M& m) {
  fields(c, m.generation);
  c.number(m.slow.rank);
  c.text(m.slow.node, name_max);
  c.text(m.slow.device, clause_max);
  c.number(m.slow.step);
  c.number(m.slow.steps);
  real(c, m.slow.times);
  duration(c, m.slow.lost);
}
template <class C, Is<PartVoted> M>
void fields(C& c, M& m) {
  c.number(m.step);
  c.number(m.rank);
  c.number(m.bytes);
  duration(c, m.took);
  c.maybe(m.refusal, [&](auto& refusal) { fields(c, refusal); });
}
template <class C, Is<Refusal> M>
void fields(C& c, M& m) {
  fields(c, m.failure);
}
template <class C, Is<Alive> M>
void fields(C&, M&) {}
template <class C, Is<StepDecided> M>
void fields(C& c, M& m) {
  fields(c, m.generation);
  c.number(m.step);
  c.appended([&] {
    c.number(m.steps);
    c.maybe(m.loss, [&](auto& loss) { real(c, loss); });
  });
  c.appended([&] { fields(c, m.times); });
  c.appended([&] {
    duration(c, m.times.behind);
    c.number(m.times.last_rank);
  });
}
template <class C, Is<JobOver> M>
void fields(C& c, M& m) {
  fields(c, m.generation);
}
template <class C, Is<PrepareToLeave> M>
void fields(C& c, M& m) {
  fields(c, m.generation);
}
template <class C, Is<GenerationOver> M>
void fields(C& c, M& m) {
  fields(c, m.generation);
  fields(c, m.why);
  c.appended([&] { duration(c, m.returns_within); });
  c.appended([&] { c.flag(m.unreachable); });
  c.appended([&] { c.flag(m.own); });
}
template <class C, Is<Returned> M>
void fields(C& c, M& m) {
  fields(c, m.generation);
}
template <class C, Is<ReadyForPlace> M>
void fields(C& c, M& m) {
  fields(c, m.generation);
}
template <class C, Is<StoreRequest> M>
void fields(C& c, M& m) {
  c.number(m.id);
  c.choice(m.op, StoreOp::relearned, StoreOp{0});  // a later version's: the store refuses it, and the connection lives
  fields(c, m.generation);
  duration(c, m.wait);
  c.list(m.keys, store_keys_per_call_max, [&](auto& key) { c.text(key, store_key_max.value()); });
  c.blob(m.value, store_value_max);
  c.blob(m.expected, store_value_max);
  c.number(m.amount);
  c.number(m.rank);
  c.number(m.count);
  c.appended([&] {
    c.number(m.caller);
    c.number(m.turn);
    c.flag(m.absent);
    c.flag(m.replay);
    c.number(m.version);
  });
}
template <class C, Is<StoreReply> M>
void fields(C& c, M& m) {
  c.number(m.id);
  c.flag(m.ok);
  c.choice(m.code, Code::internal, Code::internal);
  c.text(m.what, text_max);
  c.list(m.values, values_max, [&](auto& value) { c.blob(value, store_value_max); });
  c.number(m.number);
  c.appended([&] { c.number(m.version); });
}

template <class M>
ByteVector payload_of(const M& message) {
  Put put;
  fields(put, message);
  return put.out.take();
}

/// Fields that only a later version knows may follow; they are ignored.
template <class M>
Result<M> from_payload(ByteSpan payload, std::string_view name) {
  M message{};
  Get get{ByteReader{payload}};
  fields(get, message);
  if (get.in.broken()) {
    return Failure{Code::protocol, Remedy::abort_group, fmt::format("a {} of the worker protocol is cut short or out of bounds", name)};
  }
  return message;
}

template <class M>
Result<std::optional<Message>> message_from(ByteSpan payload, std::string_view name) {
  ELRUN_TRY_ASSIGN(M message, from_payload<M>(payload, name));
  return std::optional<Message>{std::move(message)};
}

/// Nothing for a type that only a later version knows.
Result<std::optional<Message>> decode(std::uint16_t type, ByteSpan payload) {
  switch (Type{type}) {
    case Type::hello: return message_from<Hello>(payload, "Hello");
    case Type::welcome: return message_from<Welcome>(payload, "Welcome");
    case Type::refusal: return message_from<Refusal>(payload, "Refusal");
    case Type::alive: return message_from<Alive>(payload, "Alive");
    case Type::step_decided: return message_from<StepDecided>(payload, "StepDecided");
    case Type::job_over: return message_from<JobOver>(payload, "JobOver");
    case Type::prepare_to_leave: return message_from<PrepareToLeave>(payload, "PrepareToLeave");
    case Type::returned: return message_from<Returned>(payload, "Returned");
    case Type::ready_for_place: return message_from<ReadyForPlace>(payload, "ReadyForPlace");
    case Type::generation_over: return message_from<GenerationOver>(payload, "GenerationOver");
    case Type::store_request: return message_from<StoreRequest>(payload, "StoreRequest");
    case Type::store_reply: return message_from<StoreReply>(payload, "StoreReply");
    case Type::checkpoint_saved: return message_from<CheckpointSaved>(payload, "CheckpointSaved");
    case Type::went_on_from: return message_from<WentOnFrom>(payload, "WentOnFrom");
    case Type::save_failed: return message_from<SaveFailed>(payload, "SaveFailed");
    case Type::save_left_out: return message_from<SaveLeftOut>(payload, "SaveLeftOut");
    case Type::part_voted: return message_from<PartVoted>(payload, "PartVoted");
    case Type::waits_for_storage: return message_from<WaitsForStorage>(payload, "WaitsForStorage");
    case Type::rank_is_slow: return message_from<RankIsSlow>(payload, "RankIsSlow");
  }
  return std::optional<Message>{};
}

std::uint32_t u32_at(ByteSpan bytes, std::size_t offset) { return ByteReader{bytes.subspan(offset)}.get<std::uint32_t>(); }

Failure broken(std::string what) { return {Code::protocol, Remedy::abort_group, std::move(what)}; }

}  // namespace

std::optional<Failure> incompatible(const Hello& hello) {
  if (hello.version == protocol_version) return {};
  return Failure{.code = Code::mismatch,
                 .remedy = Remedy::fix_config,
                 .what = fmt::format(
                     "rank {} speaks version {} of the worker protocol (libelrun {}), the other end version {}: use one release of elrun",
                     hello.rank, hello.version, printable(hello.release), protocol_version)};
}

ByteVector encode_payload(const StoreRequest& request) { return payload_of(request); }

ByteVector encode_payload(const StoreReply& reply) {
  std::uint64_t size = 0;
  for (const ByteVector& value : reply.values) size += value.size() + 4;
  if (size + text_max + 64 <= message_max.value() && reply.values.size() <= values_max) return payload_of(reply);
  // An all_gather of many large values: the caller gets an answer that says so, and the connection lives.
  return payload_of(StoreReply{.id = reply.id,
                               .ok = false,
                               .code = Code::exhausted,
                               .what = fmt::format("an answer of {} values and {} bytes is beyond the {} bytes of a message",
                                                   reply.values.size(), size, message_max.value())});
}

Result<StoreRequest> decode_store_request(ByteSpan payload) { return from_payload<StoreRequest>(payload, "StoreRequest"); }
Result<StoreReply> decode_store_reply(ByteSpan payload) { return from_payload<StoreReply>(payload, "StoreReply"); }

ByteVector encode(const Message& message) {
  const ByteVector payload = std::visit(
      [](const auto& m) {
        if constexpr (std::is_same_v<std::decay_t<decltype(m)>, StoreReply>) return encode_payload(m);
        else return payload_of(m);
      },
      message);
  ELRUN_ASSERT(payload.size() + kind_size <= message_max.value());  // bounds of the store keep every message below
  ByteWriter checked;
  checked.put(protocol_version);
  checked.put(static_cast<std::uint16_t>(message.index() + 1));
  const std::uint32_t crc = crc32c(payload, crc32c(checked.bytes()));
  ByteWriter frame;
  frame.put(static_cast<std::uint32_t>(payload.size() + kind_size));
  frame.put(crc);
  frame.put_raw(checked.bytes());
  frame.put_raw(payload);
  return frame.take();
}

static_assert(std::is_same_v<std::variant_alternative_t<static_cast<std::size_t>(Type::hello) - 1, Message>, Hello> &&
              std::is_same_v<std::variant_alternative_t<static_cast<std::size_t>(Type::part_voted) - 1, Message>, PartVoted> &&
              std::variant_size_v<Message> == static_cast<std::size_t>(Type::rank_is_slow));

void MessageReader::feed(ByteSpan bytes) {
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(begin_));
  begin_ = 0;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<Message>> MessageReader::next() {
  while (buffer_.size() - begin_ >= header_size) {
    const ByteSpan rest = ByteSpan{buffer_}.subspan(begin_);
    const std::uint32_t length = u32_at(rest, 0);
    if (length < kind_size || length > frame_max_.value()) {
      return broken(
          fmt::format("a frame of the worker protocol has {} bytes; {} to {} are possible", length, kind_size, frame_max_.value()));
    }
    if (rest.size() < header_size + length) break;
    const ByteSpan checked = rest.subspan(header_size, length);
    if (crc32c(checked) != u32_at(rest, 4)) return broken("a frame of the worker protocol does not match its checksum");
    ByteReader kind{checked};
    (void)kind.get<std::uint16_t>();  // the version counts in Hello and Welcome; fields are only ever appended
    const auto type = kind.get<std::uint16_t>();
    ELRUN_TRY_ASSIGN(std::optional<Message> message, decode(type, checked.subspan(kind_size)));
    begin_ += header_size + length;  // only now: a broken frame stays, so that the stream is broken for good
    if (message) return message;
  }
  return std::optional<Message>{};
}

}  // namespace elrun::inline v0
