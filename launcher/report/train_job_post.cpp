#include "launcher/report/train_job_post.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "launcher/http/ask.hpp"
#include "launcher/http/ask_tls.hpp"
#include "launcher/report/evidence.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::size_t token_file_max = 16 << 10;

// The file changes while the job runs: Kubernetes renews such tokens within the hour.
Result<std::string> token_of(const TrainJobServer& server) {
  std::string token = server.token;
  if (token.starts_with('/')) {
    const auto text = read_regular_file(token, token_file_max);
    if (!text) return invalid(fmt::format("the token's file {} cannot be read", token));
    token = text->substr(0, text->find_last_not_of(" \t\r\n") + 1);
  }
  if (!is_field_value(token)) return invalid("the token is empty, or no text that a header may hold");
  return token;
}

Result<HttpReply> put(const TrainJobServer& server, std::string body) {
  const SteadyClock clock;
  ELRUN_TRY_ASSIGN(const std::string token, token_of(server));
  ELRUN_TRY_ASSIGN(const auto addresses, resolve(server.url.server.host, server.url.server.port));
  const HttpQuestion question{.method = "POST",
                              .path = server.url.path,
                              .fields = {{"Authorization", "Bearer " + token}, {"Content-Type", "application/json"}},
                              .body = std::move(body)};
  return ask_first(addresses, train_job_limit, clock, [&](const SocketAddress& where, Duration time) {
    return ask_tls({where, server.url.server.host, server.ca_file}, question, time, clock, train_job_reply_max);
  });
}

}  // namespace

TrainJobPost::TrainJobPost(boost::asio::io_context& loop, const Clock& clock, const Log& log, TrainJobServer server,
                           std::function<void()> done)
    : clock_{clock}, log_{log}, server_{std::move(server)}, done_{std::move(done)}, timer_{loop}, end_{loop}, call_{loop} {}

void TrainJobPost::decided(const StepProgress& progress) {
  const bool was_due = status_.due_at().has_value();
  status_.decided(progress, clock_.now());
  if (!was_due) arm();
}

void TrainJobPost::finish() {
  status_.finish();
  arm();
  end_.expires_after(train_job_limit);  // a resolver has limits of its own
  end_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    status_.give_up();
    done_();
  });
}

void TrainJobPost::arm() {
  const auto at = status_.due_at();
  if (!at) return;
  timer_.expires_after(std::max(*at - clock_.now(), Duration{0}));
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) post();
  });
}

void TrainJobPost::post() {
  if (!status_.due_at()) return;
  try {
    call_.call([server = server_, body = status_.begin(clock_.now(), clock_.wall_ns())] { return put(server, body); },
               [this](const Result<HttpReply>& reply) { answered(reply); });
  } catch (const std::system_error& error) {
    answered(Failure{Code::exhausted, Remedy::retry, fmt::format("no thread can be started: {}", error.what())});
  }
}

void TrainJobPost::answered(const Result<HttpReply>& reply) {
  if (const auto told = status_.answered(reply, clock_.now())) log_(told->level, told->text);
  arm();
  done_();
}

}  // namespace elrun::inline v0::launcher
