/// A worker of an operator's job: joins, meets the others at the store, and ends, or waits to be killed.
#include <cstdio>
#include <string>

#include <elrun/session.hpp>

#include "lib/base/bytes.hpp"
#include "lib/base/clock.hpp"

using namespace elrun;

namespace {
int fail(const Failure& failure) {
  std::printf("failed %s\n", message(failure).c_str());
  return failure.remedy == Remedy::fix_config ? 78 : 1;
}
}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string mode = argc > 1 ? argv[1] : "";
  const SteadyClock clock;
  const auto within = [&](Duration wait) { return Deadline::after(clock.now(), wait); };
  auto session = Session::open(WorkerKind::program, within(mode == "impatient" ? 500ms : 30s));
  if (!session.ok()) return fail(session.failure());
  const Place& place = (*session)->place();
  Store& store = (*session)->store();
  const std::string name = "rank " + std::to_string(place.membership.rank.value());
  const auto all = store.all_gather("names", place.membership.rank, place.membership.world, as_bytes(name), within(30s));
  if (!all.ok()) return fail(all.failure());
  std::printf("met");
  for (const auto& value : *all) std::printf(" [%s]", std::string{as_text(value)}.c_str());
  std::printf(" at %s\n", place.address.c_str());
  if (mode == "wait") {
    const auto never = store.get("never", within(60s));
    return never.ok() ? 2 : fail(never.failure());
  }
  if (const auto done = (*session)->finished(within(30s)); !done.ok()) return fail(done.failure());
  std::printf("done\n");
}
