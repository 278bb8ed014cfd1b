#pragma once
/// \file A member alone in its world, whose JobSaves a test drives.

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/job/save/job_saves.hpp"
#include "lib/job/state/model_state.hpp"
#include "lib/link/request_store.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/unit/job_parts.hpp"

namespace elrun::test {

/// A member alone in its world, with a state to save, on a storage that several can share.
struct Saving {
  Saving(Files& storage, std::uint64_t generation, CheckpointOptions options, Path writer = {}, JobSaves::Then then = JobSaves::Then::saves,
         std::uint64_t host_bytes = 0)
      : files{storage}, number{generation}, ckptd{std::move(writer)} {
    state.plan_world(shards, 0, Space::gradients);
    state.allocate(shards.cuts[0]);
    saves.configure(options);
    saves.open(saver(), HostFragments{state.to_save(shards, 0), host_memory()}, HostFragments{state.to_load(), host_memory()}, host_bytes,
               then);
  }
  [[nodiscard]] Saver saver() const {
    return {"test",           session.place().membership.generation,
            Rank{0},          WorldSize{1},
            identity(plan()), model_table(two_units(), state.layout(), Optimizer::adamw)};
  }
  [[nodiscard]] Place place() const {
    Place out;
    out.membership = {{number, {{0x1234, number}}}, Rank{0}, WorldSize{1}};
    return out;
  }
  [[nodiscard]] static Plan plan() {
    Plan p;
    p.global_batch = 8, p.micro_batch = 2, p.samples = 50, p.steps = 7;
    return p;
  }
  [[nodiscard]] bool said(std::string_view part) const {
    return std::ranges::any_of(lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
  }

  Files& files;
  std::uint64_t number;
  Path ckptd;
  ManualClock clock;
  std::vector<std::string> lines;
  std::function<void()> while_waiting = [] {};
  Log log{"test", [this](Level, std::string_view line) { lines.emplace_back(line); }};
  SharedStore store{clock, place().membership.generation};
  TestSession session{place(), store.of(Rank{0})};
  JobHost host{.clock = clock,
               .files = files,
               .session = session,
               .log = log,
               .out = {},
               .join = {},
               .checkpoint_writer = ckptd,
               .storage_report_every = 1ms,
               .sleep = [this](Duration time) { clock.advance(time), while_waiting(); }};
  JobWorld world{session, {}};
  ProgramTimeout program_timeout{clock, session, world};
  Departure departure{session};
  SharedBuffers buffers = private_memory();
  ShardMap shards = one_node(Sharding::replicated, 1);
  ModelState state{lay_out(two_units()), zero(0), Optimizer::adamw, buffers};
  JobSaves saves{host, world, program_timeout, departure};
};

}  // namespace elrun::test
