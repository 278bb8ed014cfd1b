#include "launcher/death_notice.hpp"

#include "launcher/process/guard.hpp"
#include "rendezvous/net/wire.hpp"

namespace elrun::inline v0::launcher {

ByteVector encoded(const std::optional<DeathNotice>& death_notice) {
  if (!death_notice) return {};
  ByteWriter out;
  out.put_text(death_notice->target.address);
  out.put_text(death_notice->target.host);
  out.put_bytes(to_wire_bytes(NodeMessage{death_notice->ended}));
  ByteVector bytes = out.take();
  return bytes.size() <= death_notice_max ? bytes : ByteVector{};
}

std::optional<DeathNotice> death_notice_from(ByteSpan bytes) {
  ByteReader in{bytes};
  DeathNotice death_notice;
  death_notice.target.address = in.get_text(death_notice_max);
  death_notice.target.host = in.get_text(death_notice_max);
  const auto message = node_message_from_bytes(in.get_bytes(death_notice_max));
  if (!in.finish("a death notice").ok() || !message.ok() || !*message) return {};
  const auto* const ended = std::get_if<AgentEnded>(&**message);
  if (ended == nullptr) return {};
  death_notice.ended = *ended;
  return death_notice;
}

void send_death_notice(ByteSpan bytes, const Access& access, const Clock& clock) {
  if (const auto death_notice = death_notice_from(bytes))
    (void)tell_of_ended_agent(death_notice->target, access, death_notice->ended, death_notice_timeout,
                              clock);  // nobody is left to tell of a failure
}

}  // namespace elrun::inline v0::launcher
