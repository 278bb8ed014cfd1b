// A sum over all workers, and what to do when one of them dies. With --crash the last rank leaves without a word in the
// first generation: the call of the others fails, or elrun ends them first, whichever is faster; elrun starts all of
// them again, and in the next generation the sum succeeds:
//
//   elrun --nproc_per_node 3 --max_restarts 1 --no_python all_reduce --crash

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <elrun/elrun.hpp>

namespace {

elrun::Result<void> program(bool crash) {
  using namespace std::chrono_literals;
  const elrun::Deadline deadline = elrun::deadline_in(60s);
  ELRUN_TRY_ASSIGN(const auto session, elrun::Session::open(elrun::WorkerKind::program, deadline));
  const elrun::Place& place = session->place();
  const auto [generation, rank, world] = place.membership;

  ELRUN_TRY_ASSIGN(elrun::ProcessGroup group, elrun::ProcessGroup::join(*session));
  if (crash && place.restart_count == 0 && rank.value() + 1 == world.value()) std::_Exit(1);

  std::vector<float> data(1 << 20, static_cast<float>(rank.value() + 1));
  ELRUN_TRY(group.all_reduce(std::span{data}));
  // Everybody's rank + 1, added up.
  const float expected = static_cast<float>(world.value()) * static_cast<float>(world.value() + 1) / 2;
  std::printf("rank %u of %u, generation %llu: sum %.0f, expected %.0f\n", rank.value(), world.value(),
              static_cast<unsigned long long>(generation.number), static_cast<double>(data.front()), static_cast<double>(expected));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const elrun::Result<void> result = program(argc == 2 && std::strcmp(argv[1], "--crash") == 0);
  if (result.ok()) return 0;
  // The message names who was lost and in which generation. There is nothing to repair in this process: it ends, and
  // what comes next is up to the launcher.
  std::fprintf(stderr, "all_reduce: %s\n", elrun::message(result.failure()).c_str());
  return 1;
}
