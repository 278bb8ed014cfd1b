#include "launcher/supervise/events.hpp"

#include <utility>

namespace elrun::inline v0::launcher {

// Out of line: inlined, g++ 12 takes the moved variant for a read of what was never written.
void add(Actions& actions, Action action) { actions.push_back(std::move(action)); }

void add_all(Actions& actions, Actions more) {
  for (Action& action : more) add(actions, std::move(action));
}

}  // namespace elrun::inline v0::launcher
