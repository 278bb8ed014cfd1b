#pragma once
/// \file Checkpoints in memory as `elrun ckpt` reads them, for its tests.

#include <initializer_list>
#include <string>
#include <utility>

#include "checkpoint/tools/compare.hpp"
#include "checkpoint/tools/read_root.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/manual_clock.hpp"

namespace elrun::test {

inline const Path the_root{"/ckpts"};
inline Path of(const CheckpointId& id, const std::string& file) { return the_root / "ckpt" / to_string(id) / file; }

inline void flip(FaultyFiles& files, const Path& path, std::uint64_t byte) {
  ByteVector content = files.content(path);
  REQUIRE(byte < content.size());
  content[byte] ^= std::byte{4};
  files.overwrite(path, std::move(content));
}

inline RootFacts facts_of(FaultyFiles& files) {
  const ManualClock clock;
  auto facts = read_root(files, clock, the_root.string());
  REQUIRE(said(facts) == "");
  return *std::move(facts);
}

inline ReadCheckpoint found(FaultyFiles& files, const std::string& name) {
  const ManualClock clock;
  auto one = find_checkpoint(files, clock, parse_checkpoint_name(name));
  REQUIRE(said(one) == "");
  return *std::move(one);
}

inline Side side(FaultyFiles& files, const std::string& name) {
  const ReadCheckpoint one = found(files, name);
  auto read = inspect(files, one);
  REQUIRE(said(read) == "");
  return {name, one.directory, read->manifest};
}

inline void start_and_save(TestJob& job, std::initializer_list<std::uint64_t> steps) {
  REQUIRE(said(job.start()) == "");
  for (const std::uint64_t step : steps) REQUIRE(said(job.save(step)) == "");
}

}  // namespace elrun::test
