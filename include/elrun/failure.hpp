#pragma once
/// \file One record for all that goes wrong: what, who, whom, in which generation, and what to do next.

#include <optional>
#include <stdexcept>
#include <string>

#include <elrun/export.hpp>
#include <elrun/ids.hpp>

namespace elrun::inline v0 {

/// What went wrong, translated once at the edge from errno, gRPC or NCCL.
enum class Code {
  invalid_argument,  ///< The caller's input breaks a rule; `what` names the value and the rule.
  deadline_passed,   ///< A wait ended by its deadline; `what` names who is missing.
  generation_over,   ///< The generation was revoked: nothing more can be done for it.
  peer_lost,         ///< A peer's process or host is gone.
  refused,           ///< Somebody who is there said no: stale, wrong version, wrong key, closed.
  unreachable,       ///< Nobody answers at an address, or behind a mount.
  protocol,          ///< Bytes from a wire that no correct peer sends.
  not_found,         ///< A file, key or checkpoint that should be there is not.
  already_exists,    ///< A name that is used once was used before.
  corrupt,           ///< Stored bytes do not match their checksum or format.
  no_space,          ///< The disk or a quota is full.
  not_permitted,     ///< The system's permissions forbid it.
  io,                ///< Any other error of the system.
  mismatch,          ///< Two things that must agree (plan, model, version) do not.
  exhausted,         ///< A budget (restarts, memory, a bound) is used up.
  internal,          ///< A state that should not exist; please report it.
};

/// What the caller can do about it.
enum class Remedy {
  retry,         ///< The same call may succeed later.
  rejoin,        ///< Wait for the next generation and go on there.
  abort_group,   ///< Give this process group up; the process is fine.
  fix_config,    ///< A person must change an option, a path or a file.
  exit_process,  ///< This process cannot go on.
};

[[nodiscard]] ELRUN_API const char* to_string(Code code) noexcept;
[[nodiscard]] ELRUN_API const char* to_string(Remedy remedy) noexcept;

/// One failure. `what` is a whole sentence part for people; the fields are for programs.
struct Failure {
  Code code = Code::internal;
  Remedy remedy = Remedy::exit_process;
  std::string what;
  std::optional<Rank> rank{}, peer{};
  std::optional<Generation> generation{};
  std::string node{};  ///< Empty when it plays no part.
};

/// `peer_lost: rank 3 of generation 12@89ab0123 heard nothing from rank 5 (node-b) for 15 s; rejoin`.
[[nodiscard]] ELRUN_API std::string message(const Failure& failure);

/// For what no caller can go on from: a constructor without its resource, a lost device.
class ELRUN_API Error : public std::runtime_error {
 public:
  explicit Error(Failure failure);
  [[nodiscard]] const Failure& failure() const noexcept { return failure_; }

 private:
  Failure failure_;
};

}  // namespace elrun::inline v0
