#include "launcher/process/preempt_notice.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "launcher/options/option_values.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

using enum NoticeLook::Found;

constexpr std::string_view command_prefix = "cmd:";
// What Google Cloud answers while the machine stays: `preempted`, `maintenance-event`.
constexpr std::array<std::string_view, 4> no_notice{"", "FALSE", "NONE", "MIGRATE_ON_HOST_MAINTENANCE"};

std::string upper(std::string_view text) {
  std::string out{text};
  for (char& c : out)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return out;
}

// Without blanks and line ends at both ends.
std::string_view bare(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const auto begin = text.find_first_not_of(blanks);
  return begin == std::string_view::npos ? std::string_view{} : text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

std::string quoted_words(std::string_view text) {
  std::string words{bare(text.substr(0, notice_words_max))};
  std::replace(words.begin(), words.end(), '\n', ' ');
  return printable(words) + (text.size() > notice_words_max ? "..." : "");
}

}  // namespace

Result<NoticeSource> parse_notice_source(std::string_view text) {
  text = trimmed(text);
  if (text.size() > notice_text_max || text.find('\0') != text.npos)
    return invalid(fmt::format("at most {} bytes of text", notice_text_max));
  if (is_url(text)) {
    ELRUN_TRY_ASSIGN(Url url, parse_url(text));
    if (!url.is_secure) return NoticeSource{NoticeSource::Kind::url, std::string{text}, std::move(url)};
    return invalid("only plain http:// is asked, as the metadata services of clouds speak it; use cmd:COMMAND for another server");
  }
  if (text.starts_with(command_prefix)) {
    const std::string_view command = trimmed(text.substr(command_prefix.size()));
    if (command.empty()) return invalid("the command after cmd: is missing");
    return NoticeSource{NoticeSource::Kind::command, std::string{command}};
  }
  if (text.starts_with('/')) return NoticeSource{NoticeSource::Kind::file, std::string{text}};
  return invalid("must be /PATH of a file, http://HOST[:PORT]/PATH or cmd:COMMAND");
}

std::string to_string(const NoticeSource& source) {
  switch (source.kind) {
    case NoticeSource::Kind::file: return "the file " + printable(source.text);
    case NoticeSource::Kind::url: return source.text;
    case NoticeSource::Kind::command: break;
  }
  return fmt::format("`{}`", printable(source.text));
}

NoticeLook look_of_reply(const Result<HttpReply>& reply) {
  if (!reply.ok()) return {problem, message(reply.failure())};
  const int status = reply->status;
  if (status == 404 || status == 204) return {};
  if (status != 200)
    return {problem, fmt::format("it answers {}{}", status, status >= 300 && status < 400 ? ", a redirection, which is not followed" : "")};
  const std::string_view body = bare(reply->body);
  if (body.size() > notice_reply_max.value()) return {problem, fmt::format("it answers with {} bytes, too much for a notice", body.size())};
  if (body.starts_with('<')) return {problem, "it answers with a page, which is no notice"};
  if (std::find(no_notice.begin(), no_notice.end(), upper(body)) != no_notice.end()) return {};
  return {notice, "it answers " + quoted_words(body)};
}

NoticeLook look_of_command(const Ending& ending) {
  if (ending.ok()) return {notice, "it ended with exit code 0"};
  if (ending.signal != 0 || ending.exit_code == exit_code::cannot_execute || ending.exit_code == exit_code::not_found)
    return {problem, "it ended by " + describe(ending)};
  return {};
}

NoticeLook look_without_answer(NoticeSource::Kind kind) {
  const std::string after = for_people(notice_look_limit);
  switch (kind) {
    case NoticeSource::Kind::file: return {problem, fmt::format("its file system has not answered for {}", after)};
    case NoticeSource::Kind::url: return {problem, fmt::format("no answer after {}, the resolution of its name included", after)};
    case NoticeSource::Kind::command: break;
  }
  return {problem, fmt::format("it had not ended after {}, and was killed", after)};
}

NoticeLook look_of_file(std::uint32_t type, int error, std::string_view contents) {
  if (error == ENOENT) return {};
  if (error != 0) return {problem, message(from_errno(error, "look at it"))};
  // A mount whose file is missing on the host makes a directory there.
  if (S_ISDIR(type)) return {problem, "it is a directory, and no file"};
  const std::string words = quoted_words(contents);
  return {notice, words.empty() ? "it is there" : "it is there: " + words};
}

NoticeWatch::Turn NoticeWatch::on(const NoticeLook& look, Instant now) {
  if (has_notice_) return {};
  const std::string name = to_string(source_);
  if (look.found == notice) {
    has_notice_ = true;
    return {.notice = fmt::format("{}: {}", name, look.words)};
  }
  Turn turn{.again = source_.kind == NoticeSource::Kind::file ? notice_file_every : notice_poll_every};
  if (look.found == problem && !is_blind_ && (!logged_at_ || now - *logged_at_ >= notice_problem_every)) {
    is_blind_ = true;
    logged_at_ = now;
    turn.warning = fmt::format("--preempt_notice: {} cannot be looked at: {}; the job goes on, and elrun keeps trying", name, look.words);
  } else if (look.found == nothing && std::exchange(is_blind_, false)) {
    turn.info = fmt::format("--preempt_notice: {} can be looked at again", name);
  }
  return turn;
}

}  // namespace elrun::inline v0::launcher
