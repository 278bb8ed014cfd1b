#include "launcher/process/orphan_owner.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>

#include "launcher/options/environment.hpp"

namespace elrun::inline v0::launcher {

OrphanOwner owner_in(std::string_view environment, std::string_view socket) {
  const std::string rank_mark = std::string{local_rank_variable} + "=", socket_mark = std::string{socket_variable} + "=";
  bool is_environment = false, is_marked = false, is_of_other_agent = false;
  std::optional<LocalRank> worker;
  while (!environment.empty()) {
    const std::string_view variable = environment.substr(0, environment.find('\0'));
    environment.remove_prefix(std::min(variable.size() + 1, environment.size()));
    const auto equals = variable.find('=');
    is_environment |= equals != variable.npos && equals > 0;
    if (variable.starts_with(socket_mark)) is_marked = true, is_of_other_agent = variable.substr(socket_mark.size()) != socket;
    if (!variable.starts_with(rank_mark)) continue;
    is_marked = true;
    std::uint32_t rank = 0;
    const char* const end = variable.data() + variable.size();
    if (std::from_chars(variable.data() + rank_mark.size(), end, rank).ptr == end) worker = LocalRank{rank};
  }
  if (is_marked) return {OrphanOwner::Kind::worker, is_of_other_agent ? std::nullopt : worker};
  return {is_environment ? OrphanOwner::Kind::unmarked : OrphanOwner::Kind::not_known, {}};
}

bool ends_already(std::string_view stat) {
  constexpr unsigned long exiting = 0x4;  // PF_EXITING of the kernel
  char state = 0;
  unsigned long flags = 0;
  const auto name_end = stat.rfind(')');   // the name may have blanks and brackets
  if (name_end == stat.npos) return true;  // there is no such process any more
  const std::string rest{stat.substr(name_end + 1)};
  if (std::sscanf(rest.c_str(), " %c %*d %*d %*d %*d %*d %lu", &state, &flags) != 2) return false;
  return state == 'Z' || state == 'X' || (flags & exiting) != 0;
}

OrphanFate fate_of(const OrphanOwner& owner, const std::vector<LocalRank>& stay, bool inherits_others) {
  if (owner.kind == OrphanOwner::Kind::ending) return OrphanFate::ends;
  if (owner.kind == OrphanOwner::Kind::unmarked && inherits_others) return OrphanFate::stays;
  if (owner.rank) return std::find(stay.begin(), stay.end(), *owner.rank) != stay.end() ? OrphanFate::stays : OrphanFate::ends;
  return stay.empty() ? OrphanFate::ends : OrphanFate::stays_unclear;
}

}  // namespace elrun::inline v0::launcher
