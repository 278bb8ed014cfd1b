#pragma once
/// \file Preempt notice: whether this node is about to be taken away, from what was seen where notices come. Pure.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "launcher/http/http.hpp"
#include "launcher/http/url.hpp"
#include "launcher/report/endings.hpp"

namespace elrun::inline v0::launcher {

constexpr std::size_t notice_text_max = 4096;   ///< Bytes of `--preempt_notice`.
constexpr Bytes notice_reply_max = 64_KiB;      ///< Of a reply; a longer one is none.
constexpr std::size_t notice_words_max = 200;   ///< Of what a notice says, in the log.
constexpr Duration notice_file_every = 1s;      ///< Between two looks at a file ...
constexpr Duration notice_poll_every = 5s;      ///< ... and between two questions or commands.
constexpr Duration notice_question_limit = 2s;  ///< One question is answered within this.
constexpr Duration notice_look_limit =
    10s;  ///< A whole look ends within this: a command is killed, and a silent file system or name server is told of.
constexpr Duration notice_problem_every = 10 * 60s;  ///< Problems are told no more often than this.

/// Where a notice comes from.
struct NoticeSource {
  enum class Kind { file, url, command };
  Kind kind = Kind::file;
  std::string text;  ///< As it was given, without `cmd:`.
  Url url{};         ///< Of that kind.
};
/// `/an/absolute/path`, `http://HOST[:PORT][/PATH]`, `cmd:COMMAND`.
[[nodiscard]] Result<NoticeSource> parse_notice_source(std::string_view text);
/// For people.
[[nodiscard]] std::string to_string(const NoticeSource& source);

/// What one look has found.
struct NoticeLook {
  enum class Found { nothing, notice, problem };
  Found found = Found::nothing;
  std::string words{};  ///< What the notice or the problem is.
};
/// Of a URL. AWS's spot/instance-action is 404 until it is a JSON object; Google Cloud's `preempted` is 200 all the time, with FALSE and then TRUE.
[[nodiscard]] NoticeLook look_of_reply(const Result<HttpReply>& reply);
/// Of a command: exit code 0 is a notice.
[[nodiscard]] NoticeLook look_of_command(const Ending& ending);
/// Of a command, a question or a file system that had not answered after `notice_look_limit`.
[[nodiscard]] NoticeLook look_without_answer(NoticeSource::Kind kind);
/// Of a file, from the type that the system tells (`S_IFREG`, ...) and the error where it tells none.
[[nodiscard]] NoticeLook look_of_file(std::uint32_t type, int error, std::string_view contents);

/// What follows from one look after the other: a notice holds for good, and problems are told once.
class NoticeWatch {
 public:
  explicit NoticeWatch(NoticeSource source) : source_{std::move(source)} {}
  struct Turn {
    std::optional<std::string> notice{};  ///< The node is to leave, and why.
    std::string warning{}, info{};        ///< For the log; mostly empty.
    std::optional<Duration> again{};      ///< When to look again; nothing after a notice.
  };
  [[nodiscard]] Turn on(const NoticeLook& look, Instant now);
  [[nodiscard]] const NoticeSource& source() const { return source_; }

 private:
  NoticeSource source_;
  bool has_notice_ = false, is_blind_ = false;  // blind: a problem was told, and no look was good since
  std::optional<Instant> logged_at_;
};

}  // namespace elrun::inline v0::launcher
