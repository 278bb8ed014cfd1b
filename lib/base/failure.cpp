#include "lib/base/failure.hpp"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace elrun::inline v0 {

std::string to_string(const Generation& generation) {
  return fmt::format("{}@{:08x}", generation.number, generation.lineage.bits[0] >> 32);
}

const char* to_string(Code code) noexcept {
  switch (code) {
    case Code::invalid_argument: return "invalid_argument";
    case Code::deadline_passed: return "deadline_passed";
    case Code::generation_over: return "generation_over";
    case Code::peer_lost: return "peer_lost";
    case Code::refused: return "refused";
    case Code::unreachable: return "unreachable";
    case Code::protocol: return "protocol";
    case Code::not_found: return "not_found";
    case Code::already_exists: return "already_exists";
    case Code::corrupt: return "corrupt";
    case Code::no_space: return "no_space";
    case Code::not_permitted: return "not_permitted";
    case Code::io: return "io";
    case Code::mismatch: return "mismatch";
    case Code::exhausted: return "exhausted";
    case Code::internal: return "internal";
  }
  return "unknown";
}

const char* to_string(Remedy remedy) noexcept {
  switch (remedy) {
    case Remedy::retry: return "try again";
    case Remedy::rejoin: return "rejoin";
    case Remedy::abort_group: return "give the process group up";
    case Remedy::fix_config: return "change the configuration";
    case Remedy::exit_process: return "exit";
  }
  return "unknown";
}

std::string message(const Failure& failure) {
  std::string text = fmt::format("{}: ", to_string(failure.code));
  if (failure.rank) text += fmt::format("rank {} ", failure.rank->value());
  if (failure.generation) text += fmt::format("{}generation {} ", failure.rank ? "of " : "", to_string(*failure.generation));
  if (failure.rank || failure.generation) text.back() = ':', text += ' ';
  text += failure.what;
  if (failure.peer) text += fmt::format(" [peer: rank {}]", failure.peer->value());
  if (!failure.node.empty()) text += fmt::format(" [node: {}]", failure.node);
  return text + "; " + to_string(failure.remedy);
}

Error::Error(Failure failure) : std::runtime_error{message(failure)}, failure_{std::move(failure)} {}

Failure from_errno(int error, std::string_view what) {
  const auto kind = [&]() -> std::pair<Code, Remedy> {
    switch (error) {
      case ENOENT: return {Code::not_found, Remedy::fix_config};
      case EEXIST: return {Code::already_exists, Remedy::fix_config};
      case EACCES:
      case EPERM:
      case EROFS:
      case ENOSYS:  // of a file system, or a sandbox: no other try changes that
      case EOPNOTSUPP: return {Code::not_permitted, Remedy::fix_config};
      case ENOSPC:
      case EDQUOT:
      case EFBIG: return {Code::no_space, Remedy::fix_config};
      case ENOTDIR:
      case ELOOP:
      case EISDIR:
      case ENAMETOOLONG:
      case EINVAL: return {Code::invalid_argument, Remedy::fix_config};
      case ECONNREFUSED:
      case EHOSTDOWN:
      case EHOSTUNREACH:
      case ENETDOWN:
      case ENETUNREACH:
      // Of a file: what is mounted there has lost its server, its device or its program. Nothing is known of the bytes.
      case ENODEV:
      case ENOLINK:
      case ENOTCONN:
      case EREMOTEIO:
      case ESHUTDOWN:
      case ESTALE: return {Code::unreachable, Remedy::retry};
      case ETIMEDOUT: return {Code::deadline_passed, Remedy::retry};
      case ECONNRESET:
      case EPIPE: return {Code::peer_lost, Remedy::rejoin};
      case EMFILE:
      case ENFILE:
      case ENOMEM: return {Code::exhausted, Remedy::fix_config};
      default: return {Code::io, Remedy::retry};
    }
  }();
  return {.code = kind.first, .remedy = kind.second, .what = fmt::format("{}: {}", what, std::strerror(error))};
}

Failure located(Failure failure, const Membership& me, std::string_view group) {
  failure.rank = me.rank;
  failure.generation = me.generation;
  if (!group.empty()) failure.what = fmt::format("in the group \"{}\": {}", group, failure.what);
  return failure;
}

Failure invalid(std::string what) { return {.code = Code::invalid_argument, .remedy = Remedy::fix_config, .what = std::move(what)}; }

Failure invalid(const std::vector<std::string>& problems) {
  if (problems.size() == 1) return invalid(problems.front());
  std::string all = fmt::format("{} problems:", problems.size());
  for (const std::string& problem : problems) all += "\n  " + problem;
  return invalid(std::move(all));
}

}  // namespace elrun::inline v0
