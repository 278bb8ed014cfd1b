// How fast does a world restore, and how much does it read? A checkpoint is written to a directory of a real disk. Then worlds of several ranks load it, each
// rank in a thread of its own with the job's transport between them, out of a cold page cache; before and after that, 4 threads read
// the same files with O_DIRECT.
//
//   restore_bench [DIRECTORY [MEGABYTES [RANKS THAT SAVE]]]     /tmp, 1024 and 4 without arguments
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/commit/checkpointer.hpp"
#include "checkpoint/commit/resume.hpp"
#include "checkpoint/format/plan.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "lib/job/group_peers.hpp"
#include "lib/job/save/world_loads.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/support/local_world.hpp"

using namespace elrun;
using Steady = std::chrono::steady_clock;

namespace {

constexpr unsigned readers = 4;

template <class T>
T must(Result<T> result) {
  if (result.ok()) {
    if constexpr (std::is_void_v<T>) return;
    else return std::move(result).value();
  }
  fmt::print(stderr, "{}\n", message(result.failure()));
  std::exit(1);
}

ModelTable model_of(std::uint64_t bytes) {
  ModelTable model{.units = {}, .kinds = {{"param", DType::f32}, {"exp_avg", DType::f32}, {"exp_avg_sq", DType::f32}}};
  const std::uint64_t elements = bytes / (3 * 4 * 16);
  for (int u = 0; u < 16; ++u) model.units.push_back({"unit." + std::to_string(u), elements + 1000u * u, {}});
  return model;
}

/// What a rank has, with memory for it.
struct Part {
  Part(const ModelTable& model, std::uint32_t rank, std::uint32_t world, bool is_sharded) {
    for (std::size_t kind = 0; kind < model.kinds.size(); ++kind)
      for (std::uint64_t unit = 0; unit < model.units.size(); ++unit) {
        const std::uint64_t elements = model.units[unit].elements;
        const auto [begin, end] = is_sharded ? slice_of(0, elements, rank, world) : std::pair{std::uint64_t{0}, elements};
        if (begin == end) continue;
        memory.push_back(std::make_unique<ByteVector>((end - begin) * 4));
        fragments.push_back({model.kinds[kind].name, unit, begin, end, *memory.back(), false});
      }
  }
  void fill(std::uint32_t rank) const {
    std::uint64_t x = rank + 1;
    for (const auto& part : memory)
      for (std::size_t i = 0; i + 8 <= part->size(); i += 8) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        std::memcpy(part->data() + i, &x, 8);
      }
  }
  std::vector<std::unique_ptr<ByteVector>> memory;
  std::vector<Fragment> fragments;
};

void forget_pages(const std::vector<Path>& files) {
  for (const Path& path : files) {
    const Fd fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    (void)::fsync(fd.get());
    (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

/// GB per second of 4 threads that read the files once.
double direct_rate(const std::vector<Path>& files) {
  constexpr std::uint64_t piece = 4u << 20;
  std::vector<std::pair<const Path*, std::uint64_t>> pieces;
  std::uint64_t bytes = 0;
  for (const Path& path : files) {
    const std::uint64_t size = std::filesystem::file_size(path);
    for (std::uint64_t at = 0; at < size; at += piece) pieces.emplace_back(&path, at);
    bytes += size;
  }
  std::atomic<std::size_t> next{0};
  const auto begin = Steady::now();
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < readers; ++t)
    threads.emplace_back([&] {
      const std::unique_ptr<std::byte, decltype(&std::free)> buffer{static_cast<std::byte*>(std::aligned_alloc(4096, piece)), &std::free};
      const Path* open = nullptr;
      Fd fd;
      for (std::size_t i = next++; i < pieces.size(); i = next++) {
        if (open != pieces[i].first) fd = Fd{::open((open = pieces[i].first)->c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)};
        if (::pread(fd.get(), buffer.get(), piece, static_cast<off_t>(pieces[i].second)) <= 0) std::abort();
      }
    });
  for (std::thread& t : threads) t.join();
  return static_cast<double>(bytes) / 1e9 / std::chrono::duration<double>(Steady::now() - begin).count();
}

Saver saver_of(const ModelTable& model, std::uint64_t generation, std::uint32_t rank, std::uint32_t world) {
  return {"bench", Generation{generation, {{generation, 1}}}, Rank{rank}, WorldSize{world}, {"abc", "seed: 7"}, model};
}

void save(Files& files, const Clock& clock, const Log& log, const Path& root, const ModelTable& model, std::uint32_t world) {
  std::vector<Checkpointer> ranks;
  for (std::uint32_t rank = 0; rank < world; ++rank) ranks.emplace_back(files, clock, log, root, saver_of(model, 1, rank, world));
  must(ranks[0].start());
  const SaveTicket ticket = must(ranks[0].begin_save(1));
  std::vector<PartVote> votes;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const Part part{model, rank, world, true};
    part.fill(rank);
    votes.push_back(ranks[rank].write_part(ticket, part.fragments));
  }
  must(ranks[0].commit(ticket, votes, [] { return Result<void>{}; }));
}

struct Measured {
  double seconds = 0;
  std::uint64_t bytes = 0;  // from the storage
};
Measured load(const Clock& clock, const Log& log, const Path& root, const ModelTable& model, std::uint32_t world, bool is_sharded,
              std::uint64_t generation) {
  PosixFiles disk;
  test::ForwardingFiles files{disk};
  const Start start = must(Checkpointer{files, clock, log, root, saver_of(model, generation, 0, world)}.start());
  std::vector<Part> parts;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    parts.emplace_back(model, rank, world, is_sharded);
    for (const auto& memory : parts.back().memory) std::memset(memory->data(), 1, memory->size());  // its pages are there
  }
  files.bytes_read = 0;
  test::LocalWorld ranks{world};
  std::atomic<std::int64_t> slowest{0};
  ranks.run([&](std::uint32_t rank, Session& session) {
    JobWorld together{session, join_process_group};
    must(together.join());
    WorldLoads loads{together};
    Checkpointer one{files, clock, log, root, saver_of(model, generation, rank, world)};
    must(together.agree({}));
    const auto begin = Steady::now();
    must(one.load(start, parts[rank].fragments, loads, {.readers = readers}));
    const auto took = (Steady::now() - begin).count();
    for (auto before = slowest.load(); before < took && !slowest.compare_exchange_weak(before, took);) {
    }
  });
  return {std::chrono::duration<double>(Steady::duration{slowest.load()}).count(), files.bytes_read};
}

}  // namespace

int main(int argc, char** argv) {
  const Path directory = argc > 1 ? argv[1] : "/tmp";
  const std::uint64_t megabytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1024;
  const auto writers = static_cast<std::uint32_t>(argc > 3 ? std::atoi(argv[3]) : 4);
  const Path root = directory / fmt::format("restore-bench-{}", ::getpid());
  const ModelTable model = model_of(megabytes << 20);
  const SteadyClock clock;
  const Log log{"bench", [](Level, std::string_view) {}};
  PosixFiles disk;
  save(disk, clock, log, root, model, writers);
  std::vector<Path> shards;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root))
    if (entry.path().extension() == ".safetensors") shards.push_back(entry.path());
  const double state = static_cast<double>(state_bytes(model));
  fmt::print("{:.2f} GB of state, saved by {} ranks\n", state / 1e9, writers);
  std::uint64_t generation = 1;
  for (const bool is_sharded : {false, true})
    for (const std::uint32_t world : {1u, 2u, 3u, 6u}) {
      forget_pages(shards);
      const double before = direct_rate(shards);
      forget_pages(shards);
      const Measured m = load(clock, log, root, model, world, is_sharded, ++generation);
      forget_pages(shards);
      const double after = direct_rate(shards), rate = state / 1e9 / m.seconds;
      fmt::print(
          "{} ranks, {}: {:.2f} GB/s of state in {:.2f} s; O_DIRECT {:.2f} and {:.2f} GB/s, ratio {:.2f}; read {:.4f} times the state\n",
          world, is_sharded ? "sharded" : "replicated", rate, m.seconds, before, after, rate / ((before + after) / 2),
          static_cast<double>(m.bytes) / state);
      std::fflush(stdout);
    }
  std::filesystem::remove_all(root);
  return 0;
}
