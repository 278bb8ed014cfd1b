// JobSaves of two ranks, each with an `elrun ckptd` of its own, which is played here: what one of them hears, all act on.

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "checkpoint/staging/slot_save.hpp"
#include "lib/job/save/job_saves.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/unit/played_ckptd.hpp"
#include "tests/unit/saving_member.hpp"

namespace elrun::test {
namespace {

constexpr std::uint32_t pair_size = 2;
const std::vector<Aux> only_step{{"elrun.step", {}}};
const Failure taken_over{Code::refused, Remedy::fix_config, "checkpoint root /root was taken over"};

/// Time passes by each look at it: who waits for a save by it waits, but not for minutes, and gets to wait however slow the machine is.
class LookClock final : public Clock {
 public:
  [[nodiscard]] Instant now() const override { return Instant{} + Duration{passed_ += Duration{100ms}.count()}; }
  [[nodiscard]] std::int64_t wall_ns() const override { return now().time_since_epoch().count(); }
  void advance(Duration by) { passed_ += by.count(); }

 private:
  mutable std::atomic<Duration::rep> passed_ = 0;
};

/// One rank of the world.
class RankSaving {
 public:
  RankSaving(Files& files, SharedStore& store, MemoryNet& net, std::uint32_t rank)
      : session_{place(rank), store.of(Rank{rank})},
        host_{.clock = clock, .files = files, .session = session_, .log = quiet(), .out = {}, .join = {}, .checkpoint_writer = writer.path},
        world_{session_,
               [&net, rank](Session&) -> Result<std::unique_ptr<Peers>> {
                 return std::unique_ptr<Peers>{std::make_unique<MemoryPeers>(net, rank, std::nullopt)};
               }},
        program_timeout_{clock, session_, world_} {}
  void open() {
    if (!world_.join().ok()) return;
    state_.plan_world(shards_, world_.rank(), Space::gradients);
    state_.allocate(shards_.cuts[world_.rank()]);
    saves.configure({.directory = "/root", .every = 3, .async = true});
    const Saver saver{"test",
                      session_.place().membership.generation,
                      Rank{world_.rank()},
                      WorldSize{pair_size},
                      identity(Saving::plan()),
                      model_table(two_units(), state_.layout(), Optimizer::adamw)};
    saves.open(saver, HostFragments{state_.to_save(shards_, world_.rank()), host_memory()}, HostFragments{state_.to_load(), host_memory()},
               0, JobSaves::Then::saves);
  }
  void save(std::uint64_t step) {
    saves.save(step, only_step);
    saves.finish_copy();
  }
  [[nodiscard]] Duration saves_told() const { return session_.saves_told; }
  [[nodiscard]] bool has_told_of_a_failure() const { return !session_.failed_saves.empty(); }

  LookClock clock;
  Writer writer;
  std::optional<Failure> ended_by{};

 private:
  static Place place(std::uint32_t rank) {
    Place out;
    out.membership = {{1, {{0x1234, 1}}}, Rank{rank}, WorldSize{pair_size}};
    return out;
  }
  TestSession session_;
  JobHost host_;
  JobWorld world_;
  ProgramTimeout program_timeout_;
  Departure departure_{session_};
  SharedBuffers buffers_ = private_memory();
  ShardMap shards_ = one_node(Sharding::replicated, pair_size);
  ModelState state_{lay_out(two_units()), zero(0), Optimizer::adamw, buffers_};

 public:
  JobSaves saves{host_, world_, program_timeout_, departure_};
};

/// Both, on one storage.
struct Together {
  Together() {
    for (std::uint32_t rank = 0; rank < pair_size; ++rank) ranks[rank] = std::make_unique<RankSaving>(files, store, net, rank);
    both([](RankSaving& rank) { rank.open(); });
  }
  /// Each in a thread.
  void both(const std::function<void(RankSaving&)>& call) {
    std::vector<std::thread> threads;
    for (auto& rank : ranks)
      threads.emplace_back([&] {
        try {
          call(*rank);
        } catch (const Error& error) {
          rank->ended_by = error.failure();
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
  [[nodiscard]] bool all_ended_by(Code why) const {
    return std::ranges::all_of(ranks, [&](const auto& rank) { return rank->ended_by && rank->ended_by->code == why; });
  }

  FaultyFiles files;
  const ManualClock clock;  // of the store
  SharedStore store{clock, {1, {{0x1234, 1}}}};
  MemoryNet net{pair_size};
  std::array<std::unique_ptr<RankSaving>, pair_size> ranks;
};

}  // namespace

TEST_CASE("a newer job that one rank hears of ends all at once, also where another rank hears nothing, and keeps the root", "[job_saves]") {
  Together job;
  const std::uint32_t hears = GENERATE(0u, 1u);
  const Duration silence = GENERATE(Duration{0}, Duration{save_deadline + 61s});
  const bool at_the_end = GENERATE(false, true);
  CAPTURE(hears, silence, at_the_end);
  job.both([](RankSaving& rank) { rank.save(3); });
  for (auto& rank : job.ranks) rank->writer.accept();
  Saving newer{job.files, 2, {.directory = "/root", .every = 3}};
  newer.saves.save(5, only_step);
  REQUIRE(newer.saves.saved_step() == 5);
  job.ranks[hears]->writer.say(SaveOutcome{1, 3, {}, taken_over});
  for (auto& rank : job.ranks) rank->clock.advance(silence);
  job.both([&](RankSaving& rank) { at_the_end ? rank.saves.save_at_the_end(6, only_step) : rank.save(6); });
  CHECK(job.all_ended_by(Code::refused));
  CHECK(job.ranks[1 - hears]->has_told_of_a_failure() == (silence > Duration{0}));  // it was not waited for
  // The other one has waited for its save, which is no step that is done again.
  if (at_the_end && silence == Duration{0}) CHECK(job.ranks[1 - hears]->saves_told() > Duration{0});
  newer.saves.save(7, only_step);
  CHECK(newer.saves.saved_step() == 7);
}

}  // namespace elrun::test
