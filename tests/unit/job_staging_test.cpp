// Staging: this rank's slot and its line to the process that writes it, which is played here.

#include "lib/job/save/staging.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "checkpoint/staging/save_keys.hpp"
#include "checkpoint/staging/slot_save.hpp"
#include "lib/job/save/async_saves.hpp"
#include "lib/job/save/saves.hpp"
#include "lib/job/state/model_state.hpp"
#include "lib/link/request_store.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/forwarding_memory.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/unit/job_parts.hpp"
#include "tests/unit/played_ckptd.hpp"

namespace elrun::test {
namespace {

/// A worker with 64 MiB of state: its copy takes a while.
struct Worker {
  explicit Worker(const Path& socket) : staging{socket, clock} {
    REQUIRE(staging.make_room(1 << 16, layout.data_bytes).ok());
    REQUIRE(staging.connect().ok());
  }
  [[nodiscard]] SlotRecord record(std::uint64_t step) const {
    SlotRecord out{
        .run_id = "r", .generation = {1, {{1, 2}}}, .plan = {"abc", "seed: 7\n"}, .model = model, .directory = "/root", .step = step};
    out.ownership.fence = 1;
    out.fragments = layout.fragments;
    return out;
  }
  void begin(std::uint64_t step) { REQUIRE(staging.begin(record(step), layout, state).ok()); }
  std::optional<SaveOutcome> hear(Duration wait) { return staging.hear(*store, Deadline::after(clock.now(), wait)); }

  static constexpr std::uint64_t elements = 16u << 20;
  SteadyClock clock;
  ByteVector bytes = ByteVector(elements * 4, std::byte{7});
  ModelTable model{{{"unit", elements, {}}}, {{"param", DType::f32}}};
  std::vector<Fragment> fragments{{"param", 0, 0, elements, bytes, false}};
  HostFragments state{fragments, host_memory()};
  SlotLayout layout = lay_out_slot(model, fragments);
  SharedStore shared{clock, {1, {{1, 2}}}};
  std::unique_ptr<Store> store = shared.of(Rank{0});
  Staging staging;
};

}  // namespace

TEST_CASE("a slot holds the state as it was when its save began, whatever changes it after the copy", "[job_saves]") {
  Writer writer;
  Worker worker{writer.path};
  writer.accept();
  CHECK(writer.hear() == SlotWord::slot);
  for (const std::uint64_t step : {10u, 20u}) {
    std::ranges::fill(worker.bytes, static_cast<std::byte>(step));
    worker.begin(step);
    CHECK(worker.staging.is_busy());
    worker.staging.finish_copy();
    std::ranges::fill(worker.bytes, std::byte{99});  // the optimizer's update
    CHECK(writer.hear() == SlotWord::begin);
    CHECK(writer.hear() == SlotWord::sealed);  // once: the second save is in the same slot
    const auto record = writer.slot->record(SlotState::sealed);
    REQUIRE(record.ok());
    CHECK(record->step == step);
    const auto held = writer.slot->fragments(*record);
    REQUIRE(held.ok());
    CHECK(std::ranges::count(held->front().bytes, static_cast<std::byte>(step)) == static_cast<std::ptrdiff_t>(worker.bytes.size()));
    CHECK_FALSE(worker.hear(Duration{0}));
    writer.say(SaveOutcome{1, step, "acknowledged", {}});
    const auto outcome = worker.hear(10s);
    REQUIRE(outcome.has_value());
    CHECK(outcome->acknowledgement == "acknowledged");
    CHECK_FALSE(worker.staging.is_busy());
  }
}

TEST_CASE("a device whose copy fails fails the save by name, its part never comes, and the next save is begun anew", "[job_saves]") {
  struct BrokenDevice : ForwardingMemory {
    void read_beside(std::span<const std::byte> run, std::span<std::byte> to) override {
      if (is_broken) throw Error{Failure{Code::io, Remedy::exit_process, "an ECC error on device 1"}};
      ForwardingMemory::read_beside(run, to);
    }
    std::atomic<bool> is_broken = true;
  } device;
  Writer writer;
  Worker worker{writer.path};
  worker.state = HostFragments{worker.fragments, device};
  writer.accept();
  CHECK(writer.hear() == SlotWord::slot);
  worker.begin(10);
  worker.staging.finish_copy();
  CHECK(writer.hear() == SlotWord::begin);
  CHECK(writer.has_lost_its_worker());  // and so tells the others
  CHECK_FALSE(writer.slot->record(SlotState::sealed).ok());
  const auto outcome = worker.hear(10s);
  REQUIRE(outcome.has_value());
  REQUIRE(outcome->failure.has_value());
  CHECK(outcome->failure->what == "the copy of the state for a checkpoint failed: an ECC error on device 1");
  CHECK(outcome->failure->rank == Rank{0});
  CHECK_FALSE(worker.staging.is_busy());
  const auto is_saved = [&](std::uint64_t step) {
    worker.begin(step);
    worker.staging.finish_copy();
    writer.accept();
    CHECK(writer.hear() == SlotWord::slot);
    CHECK(writer.hear() == SlotWord::begin);
    CHECK(writer.hear() == SlotWord::sealed);
    writer.say(SaveOutcome{1, step, "acknowledged", {}});
    const auto end = worker.hear(10s);
    return end.has_value() && end->acknowledgement == "acknowledged";
  };
  device.is_broken = false;
  CHECK(is_saved(20));
  // The writer may give the part up before this rank has looked at its copy: that is over with the save.
  device.is_broken = true;
  worker.begin(30);
  CHECK(writer.hear() == SlotWord::begin);
  writer.say(SaveOutcome{1, 30, {}, Failure{Code::deadline_passed, Remedy::retry, "rank 0 was late"}});
  REQUIRE(worker.hear(10s));
  device.is_broken = false;
  CHECK(is_saved(40));
}

TEST_CASE("a writer that ends fails its save by name, unless the leader has told another end, and the next save has another writer",
          "[job_saves]") {
  Writer writer;
  Worker worker{writer.path};
  writer.accept();
  worker.begin(10);
  SECTION("nobody has told") {
    writer.line = Fd{};
    const auto outcome = worker.hear(10s);
    REQUIRE((outcome && outcome->failure));
    CHECK(outcome->failure->code == Code::peer_lost);
    CHECK(outcome->failure->what == "elrun ckptd of this node ended while it wrote the checkpoint");
    CHECK(worker.store->num_keys(SaveKeys{noted_save(worker.record(10))}.gone(0), Deadline::after(worker.clock.now(), 1s)).value() ==
          1);  // others do not wait
  }
  SECTION("it had been committed") {
    const ByteVector said = encode(Said{.value = ByteVector(4, std::byte{'x'})});
    REQUIRE(worker.store->set(SaveKeys{noted_save(worker.record(10))}.outcome(1), said, Deadline::after(worker.clock.now(), 1s)).ok());
    writer.line = Fd{};
    const auto outcome = worker.hear(10s);
    REQUIRE(outcome.has_value());
    CHECK_FALSE(outcome->failure);
    CHECK(outcome->acknowledgement == "xxxx");
  }
  CHECK_FALSE(worker.staging.is_busy());
  REQUIRE(worker.staging.connect().ok());
  writer.accept();
  CHECK(writer.hear() == SlotWord::slot);
}

TEST_CASE("who looks for a checkpoint waits until what was sealed before is settled, until its deadline at most", "[job_saves]") {
  Writer writer;
  Worker worker{writer.path};
  writer.accept();
  CHECK(writer.hear() == SlotWord::slot);
  writer.say(std::nullopt);
  (void)worker.staging.wait_until_settled(*worker.store, Deadline::after(worker.clock.now(), 60s));
  CHECK(writer.hear() == SlotWord::settle);
  (void)worker.staging.wait_until_settled(*worker.store, Deadline::after(worker.clock.now(), 10ms));  // nobody answers
  Staging none{"", worker.clock};
  CHECK_FALSE(none.has_writer());
  (void)none.wait_until_settled(*worker.store, Deadline::after(worker.clock.now(), 60s));
}

TEST_CASE("an answer to an earlier word is none to the newest: a save that was begun after it is waited for", "[job_saves]") {
  Writer writer;
  Worker worker{writer.path};
  writer.accept();
  worker.begin(10);
  worker.staging.finish_copy();
  worker.staging.settle();
  writer.say(SaveOutcome{1, 10, "acknowledged", {}});
  writer.say(std::nullopt);
  REQUIRE(worker.hear(10s));  // and reads no further
  worker.begin(20);
  worker.staging.finish_copy();
  (void)worker.staging.wait_until_settled(*worker.store, Deadline::after(worker.clock.now(), 10ms));
  CHECK(worker.staging.is_busy());  // the writer has not answered this one
  writer.say(SaveOutcome{1, 20, "acknowledged, too", {}});
  writer.say(std::nullopt);
  const auto outcome = worker.staging.wait_until_settled(*worker.store, Deadline::after(worker.clock.now(), 60s));
  CHECK(outcome == SaveOutcome{1, 20, "acknowledged, too", {}});
}

TEST_CASE("a worker whose writer ended, and which looks for a checkpoint before it heard so, is not busy for good", "[job_saves]") {
  Writer writer;
  Worker worker{writer.path};
  writer.accept();
  worker.begin(10);
  writer.line = Fd{};
  std::optional<SaveOutcome> outcome;
  std::thread looks{[&] { outcome = worker.staging.wait_until_settled(*worker.store, Deadline::after(worker.clock.now(), 60s)); }};
  writer.accept();  // the next ckptd, which has nothing to write
  const SlotWord first = writer.hear(), second = writer.hear();
  writer.say(std::nullopt);
  looks.join();
  CHECK(first == SlotWord::slot);
  CHECK(second == SlotWord::settle);
  REQUIRE((outcome && outcome->failure));
  CHECK(outcome->failure->code == Code::peer_lost);
  CHECK(worker.store->num_keys(SaveKeys{noted_save(worker.record(10))}.gone(0), Deadline::after(worker.clock.now(), 1s)).value() ==
        1);  // writers of other nodes do not wait
  CHECK_FALSE(worker.staging.is_busy());
}

TEST_CASE("a failed save is reported once per generation, because a new member has not received the report before", "[job_saves]") {
  Writer writer;
  FaultyFiles files;
  const SteadyClock clock;
  const Log log{"test", [](Level, std::string_view) {}};
  Place place;
  place.membership = {{1, {{1, 2}}}, Rank{0}, WorldSize{1}};
  SharedStore store{clock, place.membership.generation};
  TestSession session{place, store.of(Rank{0})};
  const JobHost host{.clock = clock,
                     .files = files,
                     .session = session,
                     .log = log,
                     .out = {},
                     .join = {},
                     .checkpoint_writer = writer.path,
                     .readers = 0};
  JobWorld world{session, {}};
  SharedBuffers buffers = private_memory();
  const ShardMap shards = one_node(Sharding::replicated, 1);
  ModelState state{lay_out(two_units()), zero(0), Optimizer::adamw, buffers};
  state.plan_world(shards, 0, Space::gradients);
  state.allocate(shards.cuts[0]);
  const Saver saver{"test",       place.membership.generation, Rank{0},
                    WorldSize{1}, {"abc", "seed: 7"},          model_table(two_units(), state.layout(), Optimizer::adamw)};
  Saves saves{files,
              clock,
              log,
              session,
              world,
              {.directory = "/root"},
              saver,
              HostFragments{state.to_save(shards, 0), host_memory()},
              HostFragments{state.to_load(), host_memory()},
              0};
  AsyncSaves async{host, world};
  async.open(saves, 0);
  async.take_memory();
  REQUIRE(async.agree_to_begin({}).possible);
  writer.accept();
  CHECK(writer.hear() == SlotWord::slot);
  const auto state_of_slot = [&] { return writer.slot->prefix().value().state; };
  CHECK(state_of_slot() == SlotState::promised);  // before the others hear that a save may begin
  CHECK(writer.slot->prefix().value().owner == SlotOwner{place.membership.generation, 0});
  async.withdraw();
  CHECK(state_of_slot() == SlotState::empty);
  const auto broken = [&] { return session.store().num_keys(broken_promise_key, Deadline::after(clock.now(), 1s)).value(); };
  async.open(saves, 0);
  CHECK(broken() == 0);
  async.take_memory();
  REQUIRE(async.agree_to_begin({}).possible);
  async.open(saves, 0);  // the generation ended here, and others may have begun
  CHECK(broken() == 1);
  CHECK(state_of_slot() == SlotState::empty);
  async.take_memory();
  REQUIRE(async.agree_to_begin({}).possible);
  REQUIRE(saves.claim(10).ok());
  const auto fails = [&] {
    async.begin(saves, 10, {});
    async.finish_copy();
    writer.say(SaveOutcome{1, 10, {}, Failure{Code::io, Remedy::retry, "a bad sector"}});
    REQUIRE(async.hear(Deadline::after(clock.now(), 10s)));
    return async.agree().failed.has_value();
  };
  CHECK(fails());
  CHECK_FALSE(async.agree().failed);
  CHECK_FALSE(fails());  // another rank says the same later
  async.open(saves, 0);
  async.take_memory();
  CHECK(fails());
}

TEST_CASE("a writer that says nothing for longer than a save may take has failed, once, and the slot stays its own", "[job_saves]") {
  Writer writer;
  Worker worker{writer.path};
  ManualClock clock;
  Staging staging{writer.path, clock};
  REQUIRE(staging.make_room(1 << 16, worker.layout.data_bytes).ok());
  REQUIRE(staging.connect().ok());
  writer.accept();  // the worker's own
  writer.accept();
  REQUIRE(staging.begin(worker.record(10), worker.layout, worker.state).ok());
  staging.finish_copy();
  const auto hear = [&] { return staging.hear(*worker.store, Deadline{clock.now()}); };
  clock.advance(save_deadline);
  CHECK_FALSE(hear());
  clock.advance(61s);
  const auto outcome = hear();
  REQUIRE((outcome && outcome->failure));
  CHECK(outcome->failure->code == Code::deadline_passed);
  CHECK(outcome->step == 10);
  CHECK(staging.is_busy());
  CHECK_FALSE(hear());
  writer.say(SaveOutcome{1, 10, "late", {}});
  const auto late = hear();
  REQUIRE(late.has_value());
  CHECK(late->acknowledgement == "late");
  CHECK_FALSE(staging.is_busy());
}

TEST_CASE("a forked child lets go of a copy that its parent makes", "[job_saves]") {
  struct HeldDevice : ForwardingMemory {
    void read_beside(std::span<const std::byte> run, std::span<std::byte> to) override {
      std::unique_lock lock{mutex};
      changed.wait_for(lock, 60s, [this] { return is_free; });
      ForwardingMemory::read_beside(run, to);
    }
    void let_go() {
      const std::lock_guard lock{mutex};
      is_free = true;
      changed.notify_all();
    }
    std::mutex mutex;
    std::condition_variable changed;
    bool is_free = false;
  } device;
  Writer writer;
  auto worker = std::make_unique<Worker>(writer.path);
  worker->state = HostFragments{worker->fragments, device};
  writer.accept();
  CHECK(writer.hear() == SlotWord::slot);
  worker->begin(10);
  CHECK(writer.hear() == SlotWord::begin);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(60);  // by default it ends the process
    worker.reset();
    ::_exit(0);
  }
  int status = -1;
  const bool ended = ::waitpid(child, &status, 0) == child;
  device.let_go();
  CHECK(ended);
  CHECK(status == 0);
  worker->staging.finish_copy();
  CHECK(writer.hear() == SlotWord::sealed);  // the child has left the parent's slot and line alone
  CHECK(writer.slot->record(SlotState::sealed).ok());
}

}  // namespace elrun::test
