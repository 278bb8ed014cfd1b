#include "launcher/http/status_command.hpp"

#include <algorithm>
#include <cstdio>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "launcher/http/ask.hpp"
#include "launcher/http/pages.hpp"
#include "launcher/output/print_out.hpp"
#include "launcher/process/agent_directory.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0::launcher {
namespace {

class Inquiry {
 public:
  Inquiry(const StatusOptions& options, const Clock& clock) : options_{options}, clock_{clock} {}

  void ask_at(std::span<const SocketAddress> places, bool may_be_gone) {
    SocketAddress where = places.front();
    const auto reply = ask_first(places, options_.timeout, clock_, [&](const SocketAddress& place, Duration time) {
      where = place;
      return ask(place, {.path = "/statusz"}, time, clock_);
    });
    // An agent that was killed together with its guard leaves its directory behind.
    if (!reply.ok() && may_be_gone && has_no_listener(reply.failure())) return;
    if (!reply.ok()) return fail(message(reply.failure()));
    const auto text = status_for_people(reply->body);
    if (reply->status != 200 || !text.ok()) return fail(fmt::format("{} is no agent of elrun", to_string(where)));
    const auto processes = processes_in(reply->body);
    if (options_.pid && std::find(processes.begin(), processes.end(), *options_.pid) == processes.end()) return;
    if (!options_.as_json) print_out((answers_.empty() ? "" : "\n") + *text);
    answers_.push_back(reply->body);
  }

  void fail(std::string_view why) {
    std::fflush(stdout);
    fmt::print(stderr, "elrun: {}\n", why);
    problems_.emplace_back(why);
  }

  /// What is left to say, and the exit code.
  [[nodiscard]] int end() {
    if (answers_.empty() && problems_.empty())
      fail(options_.pid ? fmt::format("no agent of this user on this machine has the process {}", *options_.pid)
                        : "no agent of this user runs on this machine; XDG_RUNTIME_DIR must be as it was when the agent started");
    if (options_.as_json) print_out(status_document(answers_, problems_));
    return problems_.empty() ? 0 : exit_code::unavailable;
  }

 private:
  const StatusOptions& options_;
  const Clock& clock_;
  std::vector<std::string> answers_, problems_;
};

}  // namespace

int run_status(const StatusOptions& options, const Variables& environment, const Clock& clock) {
  Inquiry inquiry{options, clock};
  if (options.endpoint) {
    const auto addresses = resolve(options.endpoint->host, options.endpoint->port);
    if (addresses.ok()) inquiry.ask_at(*addresses, false);
    else inquiry.fail(message(addresses.failure()));
    return inquiry.end();
  }
  for (const Path& directory : agent_directories(environment))
    if (const auto address = unix_address(directory / status_socket_name); address.ok()) inquiry.ask_at({&*address, 1}, true);
  return inquiry.end();
}

}  // namespace elrun::inline v0::launcher
