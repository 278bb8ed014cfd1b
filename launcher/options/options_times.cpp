// Times, and access to the rendezvous: --rdzv_conf and what stands beside it.
#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>

#include "launcher/options/option_parser.hpp"
#include "launcher/options/option_values.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::array<std::string_view, 13> rdzv_conf_keys{"join_timeout",
                                                          "last_call_timeout",
                                                          "start_timeout",
                                                          "keep_alive_interval",
                                                          "keep_alive_max_attempt",
                                                          "coordinator_grace",
                                                          "lease_ttl",
                                                          "is_host",
                                                          "cacert",
                                                          "cert",
                                                          "key",
                                                          "token_file",
                                                          "token"};

// Of silence, until a node counts as lost. Its interval is bounded by itself, so that the product fits, and gRPC counts milliseconds in an int.
constexpr Duration silence_max = std::chrono::hours{24};
static_assert(silence_max / 1ms < std::numeric_limits<int>::max() && silence_max <= Duration::max() / 1000);

constexpr Duration leaving = 5s;  // of the time between the signal and SIGKILL, for workers that have saved a checkpoint to end

}  // namespace

void OptionParser::parse_times() {
  Timeouts& t = out_.timeouts;
  parse_rdzv_conf();
  parse_access();
  t.heartbeat_limit = t.heartbeat * heartbeats_missed_;
  if (t.heartbeat_limit > silence_max)
    problems_.value(fmt::format(
        "--rdzv_conf keep_alive_interval, keep_alive_max_attempt: their product, after which a silent node is lost, is {}, above a day",
        for_people(t.heartbeat_limit)));
  parse_stop_grace();
  // What depends on a time that was given follows it.
  t.drain = std::max(t.stop_grace - leaving, t.stop_grace * 5 / 6);
  t.revocation = std::min(t.revocation, t.join / 2);
  t.reconnect_grace = std::min({t.reconnect_grace, t.join / 2, t.heartbeat_limit / 2});
  t.recovery = std::min(std::max(t.recovery, t.heartbeat_limit + 5s), t.join / 2);  // a dead address costs one limit
  t.coordinator_grace = std::max(t.coordinator_grace, 2 * t.heartbeat_limit);
  if (t.lease == Timeouts{}.lease) t.lease = std::min(t.lease, t.coordinator_grace / 2);  // one that was given stays
  for (const std::string& p : t.problems()) problems_.contradiction("--rdzv_conf: " + p);
  out_.round.last_call = t.last_call;
  static_cast<void>(seconds("monitor_interval", Duration{1}));  // no more than that: nothing is polled
}

// KEY=VALUE,KEY=VALUE, as torchrun has it.
void OptionParser::parse_rdzv_conf() {
  std::string_view rest = unquoted(given_.get("rdzv_conf").text);
  for (int entry = 1; !trimmed(rest).empty(); ++entry) {
    const std::string_view pair = unquoted(rest.substr(0, rest.find(',')));
    rest = rest.find(',') == std::string_view::npos ? std::string_view{} : rest.substr(rest.find(',') + 1);
    const auto equals = pair.find('=');
    const std::string key{trimmed(pair.substr(0, equals))};
    if (equals == std::string_view::npos || key.empty()) {
      // What it says may be the rest of a token that has a comma inside.
      problems_.value(fmt::format("{}: entry {} is not KEY=VALUE", given_.shown("rdzv_conf"), entry));
      continue;
    }
    const std::string_view whole = trimmed(pair.substr(equals + 1));
    const std::string value{key == "token" ? whole : unquoted(whole)};  // a token may have any letters
    if (parse_conf_time(key, value) || parse_conf_access(key, value)) continue;
    const std::string_view meant = nearest(key, rdzv_conf_keys);
    out_.notes.push_back((out_.access.token.empty() ? fmt::format("--rdzv_conf {} has no effect here", key)
                                                    : fmt::format("entry {} of --rdzv_conf has no effect here", entry)) +
                         (meant.empty() ? std::string{} : fmt::format("; did you mean {}?", meant)));
  }
}

// Whether the key is one of a time, of a count of heartbeats, or is_host.
bool OptionParser::parse_conf_time(const std::string& key, const std::string& value) {
  Timeouts& t = out_.timeouts;
  const auto time = [&](Duration& into) {
    if (const auto seconds = to_seconds(value); seconds && *seconds > 0s) into = *seconds;
    else problems_.value(fmt::format("--rdzv_conf {}={}: must be seconds above 0", key, value));
  };
  if (key == "join_timeout") time(t.join);
  else if (key == "timeout") time(t.join), out_.notes.push_back("--rdzv_conf timeout is taken as join_timeout");
  else if (key == "last_call_timeout") time(t.last_call);
  else if (key == "start_timeout") time(t.session);
  else if (key == "keep_alive_interval") {
    time(t.heartbeat);
    if (t.heartbeat > silence_max)
      t.heartbeat = Timeouts{}.heartbeat, problems_.value(fmt::format("--rdzv_conf {}={}: must be a day (86400) at most", key, value));
  } else if (key == "coordinator_grace") time(t.coordinator_grace);
  else if (key == "lease_ttl") time(t.lease);
  else if (key == "keep_alive_max_attempt") {
    if (const auto n = to_integer(value); n && *n >= 2 && *n <= 1000) heartbeats_missed_ = static_cast<int>(*n);
    else problems_.value(fmt::format("--rdzv_conf keep_alive_max_attempt={}: must be a whole number from 2 to 1000", value));
  } else if (key == "is_host") {
    if (value == "1" || value == "true" || value == "True" || value == "yes") is_host_ = true;
    else if (value == "0" || value == "false" || value == "False" || value == "no") is_host_ = false;
    else problems_.value(fmt::format("--rdzv_conf is_host={}: must be 1 or 0", value));
  } else return false;
  return true;
}

// Whether the key is one of certificates or the token.
bool OptionParser::parse_conf_access(const std::string& key, const std::string& value) {
  if (std::string* path = access_path(key)) {
    *path = value;
    if (value.empty()) problems_.value(fmt::format("--rdzv_conf {}=: the path of a file is missing", key));
  } else if (key == "token") {
    out_.access.token = Secret{value};
    if (value.empty()) problems_.value("--rdzv_conf token=: the token is missing");
  } else return false;
  return true;
}

void OptionParser::parse_stop_grace() {
  std::string text = given_.get("shutdown_timeout").text, source = given_.shown("shutdown_timeout");
  if (const auto variable = given_.variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT"); variable && !given_.is_given("shutdown_timeout"))
    text = *variable, source = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=" + text;
  else if (!given_.is_given("shutdown_timeout")) return;
  const auto time = to_seconds(text);
  if (time) out_.timeouts.stop_grace = std::max<Duration>(*time, 1ms);  // 0: SIGKILL follows at once
  else bad_number(text, source + ": must be seconds, 0 or more");
}

// Where the file of a key of --rdzv_conf goes; none for other keys. torchrun's names for etcd and for etcd-v2, and
// token_file.
std::string* OptionParser::access_path(std::string_view key) {
  Access& access = out_.access;
  return key == "cacert" || key == "ca_cert"     ? &access.ca_file
         : key == "cert" || key == "ssl_cert"    ? &access.certificate_file
         : key == "key" || key == "ssl_cert_key" ? &access.key_file
         : key == "token_file"                   ? &access.token_file
                                                 : nullptr;
}

// --rdzv_conf, where it says something, over the environment: key by key, and token and token_file as one.
void OptionParser::parse_access() {
  Access& access = out_.access;
  if (!access.token.empty() && given_.get("rdzv_conf").source.starts_with("--"))
    out_.notes.push_back("a token on the command line is seen by everybody who may run ps here; prefer token_file, or ELRUN_RDZV_TOKEN");
  if (!access.has_token()) {
    access.token = Secret{given_.variable("ELRUN_RDZV_TOKEN").value_or("")};
    access.token_file = given_.variable("ELRUN_RDZV_TOKEN_FILE").value_or("");
  }
  for (const auto& [path, name] : {std::pair{&access.ca_file, "ELRUN_RDZV_CACERT"}, std::pair{&access.certificate_file, "ELRUN_RDZV_CERT"},
                                   std::pair{&access.key_file, "ELRUN_RDZV_KEY"}})
    if (path->empty()) *path = given_.variable(name).value_or("");
}

// A variable for the token that is there and empty, as of a secret that nobody has filled: whoever set it wants a token, so the rendezvous must not
// be open to all. With TLS it is not, for both sides show certificates.
void OptionParser::check_token() {
  if (!out_.access.is_open()) return;
  for (const char* name : {"ELRUN_RDZV_TOKEN", "ELRUN_RDZV_TOKEN_FILE"})
    if (const auto found = environment_.find(name); found != environment_.end() && found->second.empty())
      problems_.contradiction(fmt::format(
          "{} is set and empty: give it the job's token, or unset it if everybody who reaches the rendezvous may take part", name));
}

}  // namespace elrun::inline v0::launcher
