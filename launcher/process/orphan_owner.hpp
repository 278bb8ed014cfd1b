#pragma once
/// \file OrphanOwner: whose an orphan is, by its environment, and what becomes of it when workers end. Pure.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <elrun/ids.hpp>

namespace elrun::inline v0::launcher {

/// A mark is a variable that only workers have in their environment, and what they start inherits.
struct OrphanOwner {
  enum class Kind : std::uint8_t {
    ending,     ///< It ends already. Its environment is gone, and it is waited for whosever it is.
    worker,     ///< The environment has a worker's mark.
    not_known,  ///< It cannot be read, or there is none any more (a program may write its title over it).
    unmarked,   ///< It is one, and has no mark.
  };
  Kind kind = Kind::not_known;
  std::optional<LocalRank> rank;  ///< Of a worker; none: its mark does not say which
  friend bool operator==(const OrphanOwner&, const OrphanOwner&) = default;
};
/// `environment`: as /proc/PID/environ has it. `socket`: the agent's own, as its workers find it in theirs. With another one the process is of a job that a worker
/// runs itself, and the rank is one of that job: it does not say which worker here.
[[nodiscard]] OrphanOwner owner_in(std::string_view environment, std::string_view socket);
/// Whether the process ends, or has ended and is not collected: its environment is gone. `stat`: as /proc/PID/stat has it.
[[nodiscard]] bool ends_already(std::string_view stat);

enum class OrphanFate : std::uint8_t {
  ends,
  stays,
  stays_unclear,  ///< Nobody can say whether it is a worker's that lives.
};
/// `stay`: workers that live on; their orphans do. `inherits_others`: orphans of processes that no worker started may be this process's, too. Elsewhere each
/// orphan is a worker's, also one that was started with another environment.
[[nodiscard]] OrphanFate fate_of(const OrphanOwner& owner, const std::vector<LocalRank>& stay, bool inherits_others);

}  // namespace elrun::inline v0::launcher
