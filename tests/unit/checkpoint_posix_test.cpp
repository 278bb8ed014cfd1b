/// \file The checkpointer on the real file system, and its shards as other programs see them.

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/digest.hpp"
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

namespace {

/// Lines as read_shards.py prints them, of what `step` has to hold.
std::string expected_tensors(const ModelTable& model, std::uint64_t step) {
  std::vector<std::string> lines;
  for (std::uint64_t k = 0; k < model.kinds.size(); ++k)
    for (std::uint64_t u = 0; u < model.units.size(); ++u)
      for (const TensorInfo& tensor : model.units[u].tensors) {
        const std::uint64_t size = size_of(model.kinds[k].dtype);
        ByteVector bytes(element_count(tensor.shape) * size);
        for (std::uint64_t i = 0; i < bytes.size(); ++i) bytes[i] = expected_byte(step, k, u, tensor.offset * size + i);
        lines.push_back(fmt::format("{}/{}.{} {} [{}] {}\n", model.kinds[k].name, model.units[u].name, tensor.name,
                                    dtype_name(model.kinds[k].dtype), fmt::join(tensor.shape, ","), to_hex(sha256(bytes))));
      }
  std::sort(lines.begin(), lines.end());
  return fmt::format("{}", fmt::join(lines, ""));
}

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  for (char part[4096]; std::fgets(part, sizeof part, pipe) != nullptr;) text += part;
  CHECK(::pclose(pipe) == 0);
  return text;
}

/// Saves with three ranks, whose shares begin and end within rows of tensors, and has Python read it.
void check_python(const char* reader, const ModelTable& model) {
  const TemporaryDirectory directory;
  PosixFiles files;
  TestJob job{files, 3, 1, model, 0, "run", directory.path()};
  REQUIRE(said(job.start()) == "");
  REQUIRE(said(job.save(10)) == "");
  CHECK(output_of(fmt::format("python3 -B {}/tests/support/read_shards.py {} {}/ckpt/s000000000010.g00000001.a01", ELRUN_SOURCE, reader,
                              directory.path())) == expected_tensors(model, 10));
}

bool python_has(const char* modules) {
  if (std::system(fmt::format("python3 -c 'import {}' >/dev/null 2>&1", modules).c_str()) == 0) return true;
  WARN("not run here: python3 cannot import " << modules);
  return false;
}

}  // namespace

TEST_CASE("Python puts each tensor together from the shards alone", "[checkpoint]") {
  ModelTable model = small_model();
  model.units[1].tensors.push_back({"scale", DType::f32, {}, 1472});
  model.units[1].tensors.push_back({"cube", DType::f32, {2, 3, 4}, 1474});
  SECTION("a program of a page") {
    if (python_has("json")) check_python("plain", model);
  }
  SECTION("the package safetensors, through torch") {
    if (python_has("safetensors, torch")) check_python("torch", model);
  }
  SECTION("the package safetensors, through numpy") {
    model.kinds[1].dtype = DType::f32;  // numpy has no bf16
    if (python_has("safetensors.numpy")) check_python("numpy", model);
  }
}
