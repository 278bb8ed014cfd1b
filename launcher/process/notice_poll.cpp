#include "launcher/process/notice_poll.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <boost/asio/post.hpp>

#include "launcher/http/ask.hpp"
#include "launcher/report/evidence.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::string_view shell = "/bin/sh";

NoticeLook look_at_file(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return look_of_file(0, errno, {});
  const auto contents = read_regular_file(path, notice_words_max + 1);
  return look_of_file(info.st_mode, 0, contents.value_or(""));
}

// Google Cloud wants the field; others ignore it. AWS, where only its second version is allowed, answers 401 to those who have no token of it,
// and gives one to whoever asks.
Result<HttpReply> ask_server(const NoticeSource& source, const SocketAddress& where, const Clock& clock) {
  const std::string host = source.url.host_field();
  const auto put = [&](const HttpQuestion& question) { return ask(where, question, notice_question_limit, clock, host, notice_reply_max); };
  HttpQuestion question{.path = source.url.path, .fields = {{"Metadata-Flavor", "Google"}}};
  auto reply = put(question);
  if (!reply.ok() || reply->status != 401) return reply;
  const auto token = put({.method = "PUT", .path = "/latest/api/token", .fields = {{"X-aws-ec2-metadata-token-ttl-seconds", "60"}}});
  if (!token.ok() || token->status != 200 || !is_field_value(token->body)) return reply;
  question.fields.emplace_back("X-aws-ec2-metadata-token", token->body);
  return put(question);
}

NoticeLook look_at_url(const NoticeSource& source, const Clock& clock) {
  const auto found = resolve(source.url.server.host, source.url.server.port);
  if (!found.ok()) return look_of_reply(found.failure());
  Result<HttpReply> reply = ask_server(source, found->front(), clock);
  // A name with two addresses, of which the first one leads nowhere.
  if (!reply.ok() && reply.failure().code != Code::protocol && found->size() > 1) reply = ask_server(source, (*found)[1], clock);
  return look_of_reply(reply);
}

}  // namespace

NoticePoll::NoticePoll(boost::asio::io_context& loop, const Guard& guard, const Clock& clock, const Log& log, Setting setting,
                       std::function<void(std::string)> came)
    : loop_{loop},
      guard_{guard},
      clock_{clock},
      log_{log},
      setting_{std::move(setting)},
      came_{std::move(came)},
      watch_{setting_.source},
      pause_{loop},
      limit_{loop},
      call_{loop} {}

NoticePoll::~NoticePoll() {
  if (command_) command_->abandon();
}

void NoticePoll::look() {
  limit_.expires_after(notice_look_limit);
  limit_.async_wait([this](const boost::system::error_code& error) {
    if (!error) is_late();
  });
  if (setting_.source.kind == NoticeSource::Kind::command) run_command();
  else look_on_thread();
}

void NoticePoll::look_on_thread() {
  try {
    call_.call(
        [source = setting_.source] {
          const SteadyClock clock;
          return source.kind == NoticeSource::Kind::file ? look_at_file(source.text) : look_at_url(source, clock);
        },
        [this](const NoticeLook& look) { found(look); });
  } catch (const std::system_error& error) {
    found({NoticeLook::Found::problem, fmt::format("no thread can be started: {}", error.what())});
  }
}

void NoticePoll::run_command() {
  was_killed_ = false;
  const Fd in{::open("/dev/null", O_RDONLY | O_CLOEXEC)}, out{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
  const Execution execution{.path = std::string{shell},
                            .arguments = {std::string{shell}, "-c", setting_.source.text},
                            .environment = setting_.environment,
                            .out = out.get(),
                            .err = out.get(),
                            .in = in.get()};
  auto started = Child::start(loop_, guard_, execution, [this](Ending ending) {
    boost::asio::post(loop_, [weak = std::weak_ptr{command_}, this, ending] {  // the child may not be destroyed in its own call
      if (weak.expired()) return;                                              // so is this object
      command_.reset();
      if (was_killed_) return wait(notice_poll_every);  // which was told
      found(look_of_command(ending));
    });
  });
  if (!started.ok()) return found({NoticeLook::Found::problem, message(started.failure())});
  command_ = std::move(*started);
}

// A thread that does not answer is left alone, and its answer is taken whenever it comes.
void NoticePoll::is_late() {
  const NoticeWatch::Turn turn = watch_.on(look_without_answer(setting_.source.kind), clock_.now());
  if (!turn.warning.empty()) log_.warning(turn.warning);
  if (!command_) return;
  was_killed_ = true;
  command_->signal(SIGKILL);
}

void NoticePoll::found(const NoticeLook& look) {
  limit_.cancel();
  NoticeWatch::Turn turn = watch_.on(look, clock_.now());
  if (!turn.warning.empty()) log_.warning(turn.warning);
  if (!turn.info.empty()) log_.info(turn.info);
  if (turn.again) wait(*turn.again);
  if (turn.notice) came_(*std::move(turn.notice));
}

void NoticePoll::wait(Duration time) {
  pause_.expires_after(time);
  pause_.async_wait([this](const boost::system::error_code& error) {
    if (!error) look();
  });
}

}  // namespace elrun::inline v0::launcher
