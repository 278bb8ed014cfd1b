#include "rendezvous/messages.hpp"

#include <algorithm>
#include <array>

namespace elrun::inline v0 {
namespace {

void keep_begin(std::string& text, std::size_t max) { text.resize(std::min(text.size(), max)); }
void keep_end(std::string& text, std::size_t max) { text.erase(0, text.size() - std::min(text.size(), max)); }

}  // namespace

WorkerDeath bounded(WorkerDeath death, std::size_t traceback_max, std::size_t last_lines_max) {
  for (std::string* line : {&death.host, &death.program, &death.error_file, &death.error, &death.evidence})
    keep_begin(*line, death_line_max);
  keep_end(death.traceback, traceback_max);
  keep_end(death.last_lines, last_lines_max);
  return death;
}

EndCause end_cause_of(const Revoke& revoke) {
  if (revoke.cause) return *revoke.cause;
  // Older coordinators send this code for growth, and to a node whose generation is stale. For both no member failed.
  if (revoke.why.code == Code::generation_over) return EndCause::growth;
  if (revoke.why.rank) return EndCause::failure;
  return revoke.why.code == Code::peer_lost ? EndCause::loss : EndCause::other;
}

std::string in_plain_words(std::string_view grpc_message) {
  constexpr std::string_view before = "Failed to connect to remote host: ";
  const auto at = grpc_message.rfind(before);
  return std::string{at == grpc_message.npos ? grpc_message : grpc_message.substr(at + before.size())};
}

bool tells_of_silence(std::string_view grpc_message) {
  constexpr std::array<std::string_view, 4> words{"keepalive", "Connection timed out", "No route to host",
                                                  silent_coordinator};  // ETIMEDOUT, EHOSTUNREACH
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) { return grpc_message.find(word) != grpc_message.npos; });
}

}  // namespace elrun::inline v0
