#include "tests/fakegpu/runtime/history.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace fakegpu {
namespace {

constexpr std::uint32_t names_searched = 64;  // names repeat: a step is like the last one

}  // namespace

History::History() : operations_(1), turns_{{0, 0}}, names_{"nothing"} {}

History::Index History::begin(const PastOperation& operation, const std::string& name) {
  const auto index = static_cast<Index>(operations_.size());
  operations_.push_back(operation);
  const std::size_t oldest = names_.size() > names_searched ? names_.size() - names_searched : 0;
  std::size_t at = names_.size();
  while (at > oldest && names_[at - 1] != name) --at;
  if (at == oldest) names_.push_back(name), at = names_.size();
  operations_.back().name = static_cast<std::uint32_t>(at - 1);
  go_on(index);
  return index;
}

void History::go_on(Index operation) { turns_.push_back({tick(), operation}); }

History::Turn History::turn_of(Stamp stamp) const {
  const auto next = std::ranges::upper_bound(turns_, stamp, {}, &Begun::first);
  const auto turn = std::prev(next);
  return {turn->first, next == turns_.end() ? now_ + 1 : next->first, turn->operation};
}

std::string History::describe(Index index) const {
  const PastOperation& o = operations_[index];
  const std::string stream = o.stream == 0 ? "the legacy stream" : "stream " + std::to_string(o.stream);
  return "operation " + std::to_string(o.number) + ", " + names_[o.name] + ", on " + stream + " (device " + std::to_string(o.device) + ")";
}

Stamp History::overflow() {
  std::fputs("fakegpu: the process has run too many blocks and barriers to be told apart (4 billion)\n", stderr);
  std::abort();
}

}  // namespace fakegpu
