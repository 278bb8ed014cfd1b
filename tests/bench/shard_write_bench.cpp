// How fast does a rank's part get onto the storage, and what does that take of the processor? A part is written as saves write it, beside plain O_DIRECT writes of
// as many bytes from the same memory, and beside a warm copy.
//
//   shard_write_bench [DIRECTORY [MEGABYTES [ROUNDS]]]     /tmp, 512 and 5 without arguments
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/staging/slot.hpp"
#include "checkpoint/storage/shard_writer.hpp"
#include "checkpoint/tiers/files_tier.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/timed_files.hpp"

using namespace elrun;

namespace {

template <class T>
T must(Result<T> result) {
  if (result.ok()) {
    if constexpr (std::is_void_v<T>) return;
    else return std::move(result).value();
  }
  fmt::print(stderr, "{}\n", message(result.failure()));
  std::exit(1);
}

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

struct Cost {
  double wall = 0, cpu = 0;  // seconds
};
Cost cost_of(const std::function<void()>& call) {
  const double cpu = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  call();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), cpu_seconds() - cpu};
}

/// As few instructions as there can be: no header, no checksum.
void write_plainly(const Path& path, ByteSpan bytes, unsigned threads) {
  constexpr std::size_t piece = 1u << 20;
  const Fd fd{::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0666)};
  if (!fd || ::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes.size())) != 0) std::abort();
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> all;
  for (unsigned t = 0; t < threads; ++t)
    all.emplace_back([&] {
      for (std::size_t at = next.fetch_add(piece); at < bytes.size(); at = next.fetch_add(piece))
        if (::pwrite(fd.get(), bytes.data() + at, piece, static_cast<off_t>(at)) != static_cast<ssize_t>(piece)) std::abort();
    });
  for (std::thread& t : all) t.join();
  if (::fsync(fd.get()) != 0) std::abort();
}

void print(const std::string& what, std::vector<Cost> costs, double gb) {
  std::sort(costs.begin(), costs.end(), [](const Cost& a, const Cost& b) { return a.wall < b.wall; });
  const double wall = costs[costs.size() / 2].wall;
  std::sort(costs.begin(), costs.end(), [](const Cost& a, const Cost& b) { return a.cpu < b.cpu; });
  fmt::print("{:<58} {:5.2f} GB/s, {:.3f} CPU s per GB (medians of {})\n", what, gb / wall, costs[costs.size() / 2].cpu / gb, costs.size());
}

}  // namespace

int main(int argc, char** argv) {
  const Path directory = (argc > 1 ? Path{argv[1]} : Path{"/tmp"}) / fmt::format("shard-write-bench-{}", ::getpid());
  const std::uint64_t bytes = (argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 512) << 20;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  const double gb = static_cast<double>(bytes) / 1e9;
  std::filesystem::create_directory(directory);
  const auto files = std::make_shared<PosixFiles>([](const std::string& note) { fmt::print("{}\n", note); });
  TimedFiles timed{files};
  const ModelTable model{{{"unit", bytes / 4, {}}}, {{"param", DType::f32}}};

  StagingSlot slot = must(StagingSlot::make(4096, bytes + 4096));
  const std::span<std::byte> data = slot.begin({}, bytes + 4096);
  for (std::size_t i = 0; i < data.size(); i += 8) std::memcpy(data.data() + i, &i, 8);
  const auto write = [&](const std::string& what, Files& to, std::size_t shift, unsigned threads) {
    std::vector<Cost> costs;
    FilesTier tier{to, directory};
    for (int i = 0; i < rounds; ++i) {
      const std::vector<Fragment> fragments{{"param", 0, 0, bytes / 4, data.subspan(shift, bytes), false}};
      const ShardLayout layout = must(lay_out_shard(model, {1, 1, 1}, std::string(32, 'a'), {}, 0, 1, fragments, {}));
      costs.push_back(cost_of([&] { must(write_shard(tier, "", layout, {.threads = threads})); }));
      std::filesystem::remove(directory / layout.part.file.name);
    }
    print(what, costs, gb);
  };
  const auto plain = [&](unsigned threads) {
    std::vector<Cost> costs;
    for (int i = 0; i < rounds; ++i) {
      costs.push_back(cost_of([&] { write_plainly(directory / "plain", data.first(bytes), threads); }));
      std::filesystem::remove(directory / "plain");
    }
    print(fmt::format("plain O_DIRECT, {} thread(s)", threads), costs, gb);
  };
  const auto repeat = [&](const std::string& what, const std::function<void()>& call) {
    std::vector<Cost> costs;
    for (int i = 0; i < rounds; ++i) costs.push_back(cost_of(call));
    print(what, costs, gb);
  };
  std::vector<std::byte> to(bytes);
  volatile std::uint32_t crc = 0;
  repeat("warm copy", [&] { std::memcpy(to.data(), data.data(), bytes); });
  repeat("CRC-32C", [&] { crc = crc32c(data.first(bytes)); });
  std::vector<std::byte>{}.swap(to);
  for (const unsigned threads : {1u, 4u}) plain(threads);
  for (const unsigned threads : {1u, 2u, 4u}) write(fmt::format("a part from a slot, {} thread(s)", threads), timed, 0, threads);
  write("a part from a slot, 2 threads, no deadlines", *files, 0, 2);
  write("a part from memory that is not aligned, 2 threads", timed, 4, 2);
  for (const unsigned threads : {1u, 4u}) plain(threads);
  std::filesystem::remove_all(directory);
  return 0;
}
