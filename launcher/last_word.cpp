#include "launcher/last_word.hpp"

#include "launcher/process/guard.hpp"
#include "rendezvous/net/wire.hpp"

namespace elrun::inline v0::launcher {

ByteVector encoded(const std::optional<LastWord>& last_word) {
  if (!last_word) return {};
  ByteWriter out;
  out.put_text(last_word->target.address);
  out.put_text(last_word->target.host);
  out.put_bytes(to_wire_bytes(NodeMessage{last_word->ended}));
  ByteVector bytes = out.take();
  return bytes.size() <= last_word_max ? bytes : ByteVector{};
}

std::optional<LastWord> last_word_from(ByteSpan bytes) {
  ByteReader in{bytes};
  LastWord last_word;
  last_word.target.address = in.get_text(last_word_max);
  last_word.target.host = in.get_text(last_word_max);
  const auto message = node_message_from_bytes(in.get_bytes(last_word_max));
  if (!in.finish("a last word").ok() || !message.ok() || !*message) return {};
  const auto* const ended = std::get_if<AgentEnded>(&**message);
  if (ended == nullptr) return {};
  last_word.ended = *ended;
  return last_word;
}

void say_last_word(ByteSpan bytes, const Access& access, const Clock& clock) {
  if (const auto last_word = last_word_from(bytes))
    (void)tell_of_ended_agent(last_word->target, access, last_word->ended, last_word_limit, clock);  // nobody is left to tell of a failure
}

}  // namespace elrun::inline v0::launcher
