/// \file The checkpointer on the real file system, and its shards as other programs see them.

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include <fmt/format.h>

#include "tests/support/checkpoint_job.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

TEST_CASE("a real directory holds what was saved, for any world, and keeps the last k", "[checkpoint]") {
  const TemporaryDirectory directory;
  PosixFiles files;
  const Path root = Path{directory.path()} / "deep" / "root";
  ModelTable model = small_model();
  model.units.push_back({"large", 700'000, {}});  // several blocks
  TestJob first{files, 4, 1, model, 1, "run", root};
  REQUIRE(said(first.start()) == "");
  for (std::uint64_t step = 10; step <= 40; step += 10) {
    REQUIRE(said(first.save(step)) == "");
    REQUIRE(said(first.ranks[0].retain(2)) == "");
  }
  CHECK(files.list(root / "ckpt").value() == std::vector<std::string>{"s000000000030.g00000001.a01", "s000000000040.g00000001.a01"});
  for (const std::uint32_t world : {1u, 2u, 3u, 5u}) {
    TestJob next{files, world, 10 + world, model, 0, "run", root};
    const Start start = next.start().value();
    REQUIRE(start.choice->step == 40);
    CHECK(said(next.load(start)) == "");
  }
  const Path shard = root / "ckpt/s000000000040.g00000001.a01/r00002-of-00004.safetensors";
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
  TestJob next{files, 2, 20, model, 0, "run", root};
  const Start start = next.start().value();
  CHECK(start.choice->step == 30);
  CHECK_THAT(start.notes.at(0), Contains("r00002-of-00004.safetensors") && Contains("s000000000040"));
  CHECK(said(next.load(start)) == "");
}

TEST_CASE("a directory that cannot be read or written is a failure that says what to do", "[checkpoint]") {
  std::size_t reads = 0, writes = 0;
  for (std::uint64_t at = 0;; ++at) {
    FaultyFiles files;
    files.arm(FaultyFiles::Fault{.at = at, .error = EACCES, .sticky = true});
    TestJob job{files, 1, 1};
    const auto start = job.start();
    if (!files.fired()) break;
    if (start.ok()) continue;  // met after the claim, in what is tidied up
    INFO("refused from operation " << at);
    CHECK(start.failure().code == Code::not_permitted);
    const std::string told = message(start.failure());
    CHECK_THAT(told, Contains("/ckpts") && Contains("Permission denied") && Contains("rank 0"));
    const bool write = told.find("let this user write there") != std::string::npos;
    CHECK((write || told.find("let this user read the checkpoint root") != std::string::npos));
    ++(write ? writes : reads);
  }
  CHECK(reads > 0);
  CHECK(writes > 0);
  PosixFiles real;
  TestJob elsewhere{real, 1, 1, small_model(), 1, "run", "/dev/null/checkpoints"};
  CHECK_THAT(said(elsewhere.start()), Contains("/dev/null"));
}

TEST_CASE("a disk that fills up during a save is a failure that says how much was needed", "[checkpoint]") {
  for (std::uint64_t at = 0;; ++at) {
    FaultyFiles files;
    TestJob job{files, 1, 1};
    REQUIRE(job.start().ok());
    files.arm(FaultyFiles::Fault{.at = at, .error = ENOSPC, .sticky = true});
    files.space = 100_MiB;
    const auto saved = job.save(10);
    if (!files.fired()) break;
    if (saved.ok()) continue;  // met after the commit, in the removal of the prepared name
    INFO("disk full from operation " << at);
    CHECK_THAT(message(saved.failure()),
               Contains("/ckpts") && Contains("bytes are free") && Contains("needs") && Contains("another directory"));
  }
}

TEST_CASE("Python's safetensors opens every shard", "[checkpoint]") {
  if (std::system("python3 -c 'import safetensors.numpy' >/dev/null 2>&1") != 0) {
    WARN("not run here: python3 has no safetensors package");
    return;
  }
  const TemporaryDirectory directory;
  PosixFiles files;
  ModelTable model = small_model();
  model.kinds[1].dtype = DType::f32;  // numpy has no bf16
  TestJob job{files, 2, 1, model, 0, "run", directory.path()};
  REQUIRE(said(job.start()) == "");
  REQUIRE(said(job.save(10)) == "");
  const std::string script = fmt::format(
      "import glob, safetensors.numpy as s, sys\n"
      "files = glob.glob('{}/ckpt/*/*.safetensors')\n"
      "assert len(files) == 2\n"
      "names = [n for f in files for n in s.load_file(f)]\n"
      "assert any(n.startswith('param/embed@') for n in names), names\n",
      directory.path());
  CHECK(std::system(fmt::format("python3 -c \"{}\"", script).c_str()) == 0);
}
