// A rank that computes longer than the others is named. Real launchers and workers.
#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;

namespace {

std::string output_of(const std::string& workers, const std::vector<std::string>& program) {
  std::vector<std::string> arguments{"--nproc_per_node", workers, "--no_python", test_program_path("ending_worker")};
  arguments.insert(arguments.end(), program.begin(), program.end());
  Job job{{.arguments = std::move(arguments)}};
  CHECK(job.wait() == 0);
  return job.output();
}

}  // namespace

TEST_CASE("a rank whose slots take 200 ms longer is named within 20 steps, with node and device", "[straggler][process]") {
  const std::string workers = GENERATE("2", "3"), rank = GENERATE("0", "1");
  const std::string output = output_of(workers, {"20", "slow", rank});
  INFO(output);
  CHECK(output.find("warning: rank " + rank + " (node ") != std::string::npos);
  CHECK(output.find(", on the CPU) is slow: a slot takes it ") != std::string::npos);
  CHECK(output.find("straggler: rank " + rank + " (node ") != std::string::npos);  // the agent, at the end
  CHECK(output.find(", cpu) was slow in ") != std::string::npos);
  CHECK(output.find("waiting for the slowest rank ") != std::string::npos);  // of the time that the job says it took
  CHECK(output.find("slowest ranks: rank " + rank + " finished last in ") != std::string::npos);
}

TEST_CASE("audits do not keep a slow rank from being named, nor have it named twice", "[straggler][process]") {
  const std::string output = output_of("2", {"40", "slow_audited", "1"});
  INFO(output);
  CHECK(output.find("warning: rank 1 (node ") != std::string::npos);
  // 30 steps are told of, and a row of 10 names it. A stall of the other rank may end a row; each of the 10 audits would have it named 8 times.
  std::size_t named = 0;
  for (auto at = output.find(" is slow: "); at != std::string::npos; at = output.find(" is slow: ", at + 1)) ++named;
  CHECK(named <= 3);
}

TEST_CASE("in a run that nothing disturbs, no rank is named", "[straggler][process]") {
  const std::string output = output_of("2", {"300", "train"});
  INFO(output);
  CHECK(output.find(" is slow: ") == std::string::npos);
  CHECK(output.find("straggler: ") == std::string::npos);
}
