// Whether a node is about to be taken away: where notices come from, what counts as one, and what is told of a place that cannot be looked at.
#include "launcher/process/preempt_notice.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <csignal>

#include "lib/base/failure.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test::preempt_notice {
using namespace elrun::launcher;
using Found = NoticeLook::Found;
using Kind = NoticeSource::Kind;

namespace {

NoticeSource source(std::string_view text) {
  auto parsed = parse_notice_source(text);
  INFO(text);
  REQUIRE(parsed.ok());
  return *parsed;
}

std::string refusal(std::string_view text) {
  const auto parsed = parse_notice_source(text);
  INFO(text);
  REQUIRE_FALSE(parsed.ok());
  return parsed.failure().what;
}

NoticeLook reply(int status, std::string body = {}) { return look_of_reply(HttpReply{.status = status, .body = std::move(body)}); }

}  // namespace

TEST_CASE("a source of notices is a file, a URL or a command", "[notice]") {
  CHECK(source("/run/notice").kind == Kind::file);
  CHECK(source(" /run/a b ").text == "/run/a b");
  const NoticeSource aws = source("http://169.254.169.254/latest/meta-data/spot/instance-action");
  CHECK(aws.kind == Kind::url);
  CHECK(aws.url.server.host == "169.254.169.254");
  CHECK(aws.url.server.port == 80);
  CHECK(aws.url.path == "/latest/meta-data/spot/instance-action");
  CHECK(source("http://host:81").url.path == "/");
  CHECK(source("http://host:81?a=b").url.path == "/?a=b");
  CHECK(source("http://[fd00:ec2::254]/x").url.host_field() == "[fd00:ec2::254]");
  CHECK(source("cmd: test -e /x ").text == "test -e /x");
  CHECK(source("cmd:check").kind == Kind::command);
}

TEST_CASE("what is no source of notices is refused, with the remedy", "[notice]") {
  CHECK(refusal("notice").find("/PATH of a file") != std::string::npos);
  CHECK(refusal("https://host/x").find("cmd:COMMAND") != std::string::npos);
  CHECK(refusal("cmd: ").find("missing") != std::string::npos);
  for (const char* text : {"http://", "http:///x", "http://:80/x", "http://user@host/x", "http://host/a b", "http://host/\r\nX: y",
                           "http://host/x#y", "http://host:0/", "http://host:99999/", "http://ho$t/"})
    refusal(text);
  refusal("/" + std::string(notice_text_max, 'a'));
}

TEST_CASE("the answers of the clouds' metadata services", "[notice]") {
  CHECK(reply(404).found == Found::nothing);  // AWS: no interruption
  const NoticeLook aws = reply(200, R"({"action": "terminate", "time": "2026-11-25T08:22:00Z"})");
  CHECK(aws.found == Found::notice);
  CHECK(aws.words == R"(it answers {"action": "terminate", "time": "2026-11-25T08:22:00Z"})");
  for (const char* stays : {"FALSE", "false\n", "NONE", "MIGRATE_ON_HOST_MAINTENANCE", "", " \n"})
    CHECK(reply(200, stays).found == Found::nothing);
  for (const char* goes : {"TRUE", "TERMINATE_ON_HOST_MAINTENANCE"}) CHECK(reply(200, goes).found == Found::notice);
  CHECK(reply(204).found == Found::nothing);
}

TEST_CASE("an answer that is no notice ends no node", "[notice]") {
  for (const int status : {301, 302, 400, 401, 403, 500, 503}) CHECK(reply(status, "TRUE").found == Found::problem);
  CHECK(reply(302).words.find("not followed") != std::string::npos);
  CHECK(reply(200, "<html>log in</html>").found == Found::problem);
  CHECK(reply(200, std::string(notice_reply_max.value() + 1, 'x')).found == Found::problem);
  CHECK(look_of_reply(Failure{Code::unreachable, Remedy::retry, "nobody listens"}).found == Found::problem);
  // What it says is bounded, and harmless on a terminal.
  const NoticeLook loud = reply(200, "\x1b[2J" + std::string(10000, 'x'));
  CHECK(loud.found == Found::notice);
  CHECK(loud.words.size() < 2 * notice_words_max);
  CHECK(loud.words.find('\x1b') == std::string::npos);
}

TEST_CASE("a command says it by exit code 0 alone", "[notice]") {
  CHECK(look_of_command({.exit_code = 0}).found == Found::notice);
  for (const int code : {1, 2, 125}) CHECK(look_of_command({.exit_code = code}).found == Found::nothing);
  for (const int code : {126, 127}) CHECK(look_of_command({.exit_code = code}).found == Found::problem);
  CHECK(look_of_command({.signal = SIGKILL}).found == Found::problem);
}

TEST_CASE("a file says it by being there, and a directory in its place does not", "[notice]") {
  CHECK(look_of_file(0, ENOENT, {}).found == Found::nothing);
  CHECK(look_of_file(S_IFREG | 0600, 0, "").words == "it is there");
  CHECK(look_of_file(S_IFREG, 0, "by node-7\n").words == "it is there: by node-7");
  CHECK(look_of_file(S_IFREG, 0, {}).found == Found::notice);
  CHECK(look_of_file(S_IFDIR, 0, {}).found == Found::problem);  // a mount of a file that is missing on the host
  for (const int error : {EACCES, ENOTDIR, ELOOP, EIO}) CHECK(look_of_file(0, error, {}).found == Found::problem);
}

TEST_CASE("a notice is told once, and nothing is looked at after it", "[notice]") {
  NoticeWatch watch{source("/run/notice")};
  const Instant now{};
  CHECK(watch.on({}, now).again == notice_file_every);
  const auto turn = watch.on({Found::notice, "it is there"}, now);
  CHECK(turn.notice == "the file /run/notice: it is there");
  CHECK_FALSE(turn.again);
  CHECK_FALSE(watch.on({Found::notice, "it is there"}, now).notice);
}

TEST_CASE("a place that cannot be looked at is told of once, and goes on to be looked at", "[notice]") {
  NoticeWatch watch{source("http://host/x")};
  Instant now{};
  const auto first = watch.on({Found::problem, "nobody listens"}, now);
  CHECK(first.warning == "--preempt_notice: http://host/x cannot be looked at: nobody listens; the job goes on, and elrun keeps trying");
  CHECK(first.again == notice_poll_every);
  CHECK(watch.on({Found::problem, "another"}, now += 5s).warning.empty());
  CHECK(watch.on({}, now += 5s).info.find("again") != std::string::npos);
  CHECK(watch.on({}, now += 5s).info.empty());
  // One that comes and goes does not fill the log.
  for (int i = 0; i < 50; ++i) {
    CHECK(watch.on({Found::problem, "p"}, now += 5s).warning.empty());
    CHECK(watch.on({}, now).info.empty());
  }
  CHECK_FALSE(watch.on({Found::problem, "p"}, now += notice_problem_every).warning.empty());
  CHECK(watch.on({Found::notice, "TRUE"}, now).notice);
}

}  // namespace elrun::test::preempt_notice
