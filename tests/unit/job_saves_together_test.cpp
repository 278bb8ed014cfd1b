// Saves of several ranks, each in a thread, on one storage: in which order they hear of a save, and what is done meanwhile.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "lib/job/save/host_fragments.hpp"
#include "lib/job/save/saves.hpp"
#include "lib/job/state/model_state.hpp"
#include "lib/link/request_store.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/unit/job_parts.hpp"

namespace elrun::test {
namespace {

constexpr std::uint32_t world_size = 2;

/// A moment that threads wait for.
class Moment {
 public:
  void comes() {
    const std::lock_guard lock{mutex_};
    has_come_ = true;
    changed_.notify_all();
  }
  /// False: it has not come for a while.
  bool wait() {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, 10s, [&] { return has_come_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_come_ = false;
};

}  // namespace

TEST_CASE("all ranks hear the outcome of a save before old checkpoints go", "[job_saves]") {
  const TemporaryDirectory root;
  PosixFiles storage;
  Moment told;
  std::atomic<bool> goes{false}, was_told{false};
  // The leader's: what goes first of an old checkpoint is its acknowledgement.
  ForwardingFiles files{
      storage, [&](const char* verb, const Path& path) -> Result<void> {
        if (verb == std::string_view{"remove"} && path.filename() == acknowledgement_name({1, 1, 1}) && !goes.exchange(true))
          was_told = told.wait();
        return {};
      }};
  const SteadyClock clock;
  const Generation generation{1, {{1, 2}}};
  SharedStore store{clock, generation};
  MemoryNet net{world_size};
  std::vector<std::string> failures(world_size);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] {
      Place place;
      place.membership = {generation, Rank{rank}, WorldSize{world_size}};
      TestSession session{place, store.of(Rank{rank})};
      JobWorld world{session, [&](Session&) -> Result<std::unique_ptr<Peers>> {
                       return std::unique_ptr<Peers>{std::make_unique<MemoryPeers>(net, rank, std::nullopt)};
                     }};
      if (!world.join().ok()) return;
      SharedBuffers buffers = private_memory();
      const ShardMap shards = one_node(Sharding::sharded, world_size);
      ModelState state{lay_out(two_units()), zero(1), Optimizer::adamw, buffers};
      state.plan_world(shards, rank, Space::gradients);
      state.allocate(shards.cuts[rank]);
      const Saver saver{"test",
                        generation,
                        Rank{rank},
                        WorldSize{world_size},
                        {"abc", "seed: 7"},
                        model_table(two_units(), state.layout(), Optimizer::adamw)};
      Saves saves{files,
                  clock,
                  quiet(),
                  session,
                  world,
                  {.directory = root.path(), .keep = 2},
                  saver,
                  HostFragments{state.to_save(shards, rank), host_memory()},
                  HostFragments{state.to_load(), host_memory()},
                  0};
      for (const std::uint64_t step : {1u, 2u, 3u})
        if (const auto saved = saves.save(step, {}, [] { return Result<void>{}; }); !saved.ok()) failures[rank] += message(saved.failure());
      if (rank != 0) told.comes();
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) CHECK(failure.empty());
  CHECK(goes);
  CHECK(was_told);
}

TEST_CASE("of replicated state a rank writes its slice alone, and all ranks together write each element once", "[job]") {
  std::vector<std::byte> bytes(5000 * sizeof(float));
  std::vector<int> written(5000);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto slices =
        slices_to_write({{"param", 0, 100, 5100, bytes, true}, {"exp_avg", 0, 7, 11, std::span{bytes}.first(16), false}}, rank, 3);
    for (const Fragment& f : slices) {
      CHECK(!f.replicated);
      CHECK(f.bytes.size() == (f.end - f.begin) * sizeof(float));
      if (f.kind != "param") {
        CHECK((f.begin == 7 && f.end == 11));
        continue;
      }
      CHECK(f.bytes.data() == bytes.data() + (f.begin - 100) * sizeof(float));
      for (std::uint64_t i = f.begin; i < f.end; ++i) ++written[i - 100];
    }
  }
  CHECK(std::ranges::all_of(written, [](int times) { return times == 1; }));
}

}  // namespace elrun::test
