// What does a start cost in every rank before it reads its first byte of state? A model of 70 billion parameters with AdamW's moments was saved by 4,096 ranks.
// Each measurement is a process of its own: the manifest from a file, checksum, decoded, and planned for one rank of the world that reads.
//
//   manifest_bench [RANKS [READERS]]     4096 and as many without arguments
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/crc32c.hpp"
#include "tests/support/format_one.hpp"
#include "tests/support/large_model.hpp"

using namespace elrun;
using Clock = std::chrono::steady_clock;

extern char** environ;

namespace {

double milliseconds(Clock::time_point from, Clock::time_point until) {
  return std::chrono::duration<double, std::milli>(until - from).count();
}

/// The most memory that this process had, in MB.
double peak() {
  std::ifstream status{"/proc/self/status"};
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::strtod(line.c_str() + 6, nullptr) * 1024 / 1e6;
  return 0;
}

/// What a rank asks for: memory that nobody touches.
std::vector<Fragment> wanted_by(const ModelTable& model, std::uint32_t rank, std::uint32_t world, std::vector<std::byte>& one_byte) {
  std::vector<Fragment> wanted = test::even_share(model, rank, world);
  for (Fragment& f : wanted) {
    const auto kind = std::find_if(model.kinds.begin(), model.kinds.end(), [&](const KindInfo& k) { return k.name == f.kind; });
    f.bytes = {one_byte.data(), (f.end - f.begin) * size_of(kind->dtype)};
  }
  return wanted;
}

int measure(const char* path, std::uint32_t rank, std::uint32_t world) {
  const ModelTable model = test::model_of_70b();
  std::vector<std::byte> nothing(1);
  const std::vector<Fragment> wanted = wanted_by(model, rank, world, nothing);
  const double memory_before = peak();
  const auto begin = Clock::now();
  ByteVector text(std::filesystem::file_size(path));
  std::ifstream{path, std::ios::binary}.read(reinterpret_cast<char*>(text.data()), static_cast<std::streamsize>(text.size()));
  const std::uint32_t crc = crc32c(text);
  const auto read = Clock::now();
  const auto manifest = decode_manifest(text, path);
  const auto decoded = Clock::now();
  if (!manifest.ok()) return std::fprintf(stderr, "%s\n", manifest.failure().what.c_str()), 1;
  const auto reads = plan_reads(*manifest, wanted);
  const auto planned = Clock::now();
  if (!reads.ok()) return std::fprintf(stderr, "%s\n", reads.failure().what.c_str()), 1;
  std::vector<double> again;
  for (int i = 0; i < 5; ++i) {
    const auto from = Clock::now();
    (void)plan_reads(decode_manifest(text, path).value(), wanted);
    again.push_back(milliseconds(from, Clock::now()));
  }
  std::sort(again.begin(), again.end());
  std::printf(
      "format %d: manifest of %.3f MB (CRC %08x); first time: read %.1f ms, decoded %.1f ms, planned %.2f ms for %zu reads of %zu ranges; "
      "decoded and planned again: median %.1f ms; memory: %.1f MB\n",
      static_cast<int>(manifest->format), static_cast<double>(text.size()) / 1e6, crc, milliseconds(begin, read),
      milliseconds(read, decoded), milliseconds(decoded, planned), reads->size(), wanted.size(), again[2], peak() - memory_before);
  return 0;
}

int run_again(const char* self, const std::string& path, const std::string& rank, const std::string& world) {
  const std::string words[] = {self, "--measure", path, rank, world};
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  int status = 1;
  if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ) != 0) return 1;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::string_view{argv[1]} == "--measure")
    return measure(argv[2], static_cast<std::uint32_t>(std::atoi(argv[3])), static_cast<std::uint32_t>(std::atoi(argv[4])));
  const auto ranks = static_cast<std::uint32_t>(argc > 1 ? std::atoi(argv[1]) : 4096);
  const auto readers = static_cast<std::uint32_t>(argc > 2 ? std::atoi(argv[2]) : static_cast<int>(ranks));
  char directory[] = "/tmp/manifest-bench-XXXXXX";
  if (::mkdtemp(directory) == nullptr) return 1;
  const auto begin = Clock::now();
  const Manifest manifest = test::even_manifest(test::model_of_70b(), ranks);
  const auto merged = Clock::now();
  std::size_t tensors = 0;
  for (const UnitInfo& unit : manifest.model.units) tensors += unit.tensors.size();
  const std::string two = encode(manifest);
  const std::string one = test::manifest_in_format_one(test::even_manifest(test::model_of_70b(), ranks, block_bytes_format_1));
  std::printf(
      "%u ranks, %zu tensors in %zu units, %zu kinds, %llu runs of elements, %zu different splits; parts made and merged in %.0f ms\n",
      ranks, tensors, manifest.model.units.size(), manifest.model.kinds.size(), static_cast<unsigned long long>(run_count(manifest.layout)),
      manifest.layout.splits.size(), milliseconds(begin, merged));
  std::fflush(stdout);
  int failed = 0;
  for (const auto& [name, text] : {std::pair{"one", &one}, std::pair{"two", &two}}) {
    const std::string path = std::string{directory} + "/" + name;
    std::ofstream{path, std::ios::binary} << *text;
    for (const std::uint32_t rank : {readers / 2, readers / 2 + 1})
      failed |= run_again(argv[0], path, std::to_string(rank), std::to_string(readers));
  }
  std::filesystem::remove_all(directory);
  return failed;
}
