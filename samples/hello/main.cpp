// The smallest worker: where am I? Try it bare, under `elrun --nproc_per_node 3 --no_python hello`, or with RANK,
// WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.

#include <cstdio>

#include <elrun/elrun.hpp>

int main() {
  using namespace std::chrono_literals;
  const elrun::Deadline deadline = elrun::deadline_in(60s);
  const auto session = elrun::Session::open(elrun::WorkerKind::program, deadline);
  if (!session.ok()) {
    std::fprintf(stderr, "hello: %s\n", elrun::message(session.failure()).c_str());
    return 1;
  }
  const elrun::Place& place = (*session)->place();
  std::printf("hello from rank %u of %u, generation %llu, %s\n", place.membership.rank.value(), place.membership.world.value(),
              static_cast<unsigned long long>(place.membership.generation.number),
              place.elastic                        ? "under elrun"
              : place.membership.world.value() > 1 ? "started by somebody else"
                                                   : "alone");
  return 0;
}
