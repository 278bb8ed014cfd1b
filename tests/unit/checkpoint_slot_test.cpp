// Staging slots: what explains itself, what a reader refuses, and the save of sealed slots by their writers alone, which meet in a store.

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "checkpoint/staging/save_keys.hpp"
#include "checkpoint/staging/slot.hpp"
#include "checkpoint/staging/slot_messages.hpp"
#include "checkpoint/staging/slot_save.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/link/request_store.hpp"
#include "tests/support/checkpoint_job.hpp"
#include "tests/support/file_size_limit.hpp"
#include "tests/support/shared_files.hpp"
#include "tests/unit/sealed_slots.hpp"

namespace elrun::test {
namespace {

const std::uint32_t root_tag = crc32c(as_bytes(std::string_view{"/ckpts"}));  // of a TestJob

/// Of all saves under a fence.
std::string keys_under(FenceNumber fence) { return fmt::format("job/elrun/save/r{:08x}/g{:08}/", root_tag, fence); }

/// The writers of a world's slots, each on a thread, as the ckptd of each node runs them.
struct Writers {
  explicit Writers(TestJob& of) : job{of}, own{std::make_unique<SharedStore>(clock, of.leader.generation)}, store{*own} {}
  /// Processes that know of no save before, with the job's store.
  Writers(TestJob& of, SharedStore& of_job) : job{of}, store{of_job} {}
  std::vector<SaveOutcome> save(std::uint64_t step, const Ownership& ownership, const std::vector<std::uint32_t>& ranks) {
    std::vector<SlotRecord> records;
    std::vector<SlotView> slots;
    for (const std::uint32_t rank : ranks) {
      records.push_back(record_of(job, rank, step, ownership));
      slots.push_back(sealed_slot(job, records.back()));
    }
    std::vector<SaveOutcome> outcomes(ranks.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      threads.emplace_back([&, i] {
        const auto mine = store.of(Rank{ranks[i]});
        const SlotSaveHost host{.files = shared,
                                .clock = clock,
                                .log = job.log,
                                .store = *mine,
                                .sleep = [](Duration) { std::this_thread::yield(); },
                                .cancel = cancel,
                                .deadline = deadline,
                                .acknowledged =
                                    [&](const std::string& text) {
                                      const std::lock_guard lock{mutex};
                                      acknowledged.push_back(text);
                                    }};
        outcomes[i] = save_slot(slots[i], records[i], host);
      });
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  TestJob& job;
  SharedFiles shared{static_cast<FaultyFiles&>(*job.files)};
  SteadyClock clock;
  std::function<Instant()> deadline = [late = clock.now() + 600s] { return late; };
  std::unique_ptr<SharedStore> own;
  SharedStore& store;
  std::function<std::optional<Failure>()> cancel = [] { return std::optional<Failure>{}; };
  std::mutex mutex;
  std::vector<std::string> acknowledged;
};

}  // namespace

TEST_CASE("a slot's record is read as it was written, and nothing of it is taken on trust", "[checkpoint][slot]") {
  FaultyFiles files;
  TestJob job{files, 2, 3};
  REQUIRE(said(job.start()) == "");
  SlotRecord record = record_of(job, 0, 40, job.ranks[0].ownership());
  record.ownership.timeline = {{10, 1, 1}, {20, 1, 2}};
  record.ownership.whole = {{20, 1, 2}};
  record.ownership.gives_up = {{{5, 1, 1}, std::string(32, 'a')}};
  record.fragments = {{"param", 1, 10, 20, 64, 40}, {"exp_avg", 0, 0, 100, 128, 200}};
  const ByteVector bytes = encode(record);
  REQUIRE(decode_slot_record(bytes, 4096).ok());
  CHECK(decode_slot_record(bytes, 4096).value() == record);

  const auto refused = [](SlotRecord wrong, std::uint64_t data_bytes = 4096) {
    return !decode_slot_record(encode(wrong), data_bytes).ok();
  };
  const auto with = [&](const std::function<void(SlotRecord&)>& change) {
    SlotRecord wrong = record;
    change(wrong);
    return wrong;
  };
  CHECK(refused(record, 300));  // its data would end before
  CHECK(refused(with([](auto& r) { r.rank = 2; })));
  CHECK(refused(with([](auto& r) { r.world = 0; })));
  CHECK(refused(with([](auto& r) { r.directory.clear(); })));
  CHECK(refused(with([](auto& r) { r.ownership.fence = 0; })));
  CHECK(refused(with([](auto& r) { r.step = step_max + 1; })));
  CHECK(refused(with([](auto& r) { r.ownership.timeline[0].attempt = 0; })));
  CHECK(refused(with([](auto& r) { r.fragments[0].kind = "momentum"; })));
  CHECK(refused(with([](auto& r) { r.fragments[0].unit = 3; })));
  CHECK(refused(with([](auto& r) { r.fragments[0].end = 1501; })));
  CHECK(refused(with([](auto& r) { r.fragments[0].begin = 21; })));
  CHECK(refused(with([](auto& r) { r.fragments[0].bytes = 44; })));
  CHECK(refused(with([](auto& r) { r.fragments[0].offset = ~std::uint64_t{0} - 10; })));
  for (std::size_t cut = 0; cut < bytes.size(); cut += 7) CHECK(!decode_slot_record(ByteSpan{bytes}.first(cut), 4096).ok());
}

TEST_CASE("what host state adds to a record is known before it is written", "[checkpoint][slot]") {
  SlotRecord record;
  record.directory = "/root";
  record.aux.clear();
  const std::size_t without = encode(record).size();
  record.aux = {{"elrun.step", {}}, {"state.history", std::vector<std::byte>(12'345)}};
  CHECK(encode(record).size() == without + bytes_in_record(record.aux));
}

TEST_CASE("a slot's head names only bytes inside of it, and matches its checksum", "[checkpoint][slot]") {
  const SlotPrefix good{SlotState::filling, 7, 1000, 8192, 4000, {{3, {{1, 2}}}, 5}};
  ByteVector page = encode(good);
  page.resize(slot_page);
  REQUIRE(decode_slot_prefix(page, 16384).ok());
  CHECK(decode_slot_prefix(page, 16384).value() == good);
  CHECK(!decode_slot_prefix(page, 12000).ok());  // the data would end outside
  CHECK(!decode_slot_prefix(ByteSpan{page}.first(100), 16384).ok());
  const auto refused = [](const SlotPrefix& wrong) {
    ByteVector bytes = encode(wrong);
    bytes.resize(slot_page);
    return !decode_slot_prefix(bytes, 16384).ok();
  };
  CHECK(refused({SlotState::filling, 7, 5000, 8192, 100}));                      // the record in the data
  CHECK(refused({SlotState::filling, 7, 1000, 8000, 100}));                      // unaligned
  CHECK(refused({SlotState::filling, 7, ~std::uint64_t{0} - 4000, 8192, 100}));  // sums that overflow
  CHECK(refused({SlotState::filling, 7, 1000, 8192, ~std::uint64_t{0}}));
  CHECK(refused({static_cast<SlotState>(9), 7, 1000, 8192, 100}));
  CHECK(refused({SlotState::promised, 0, 0, 8192, 0, {{3, {{1, 2}}}, world_max}}));
  for (std::size_t at = 12; at < 72; ++at) {
    ByteVector flipped = page;
    flipped[at] ^= std::byte{16};
    CHECK(!decode_slot_prefix(flipped, 16384).ok());
  }
}

TEST_CASE("a slot is read in the state that its reader waits for, and only from memory that cannot shrink", "[checkpoint][slot]") {
  FaultyFiles files;
  TestJob job{files, 1, 4};
  REQUIRE(said(job.start()) == "");
  SlotRecord record = record_of(job, 0, 7, job.ranks[0].ownership());
  const ByteVector encoded = encode(record);
  StagingSlot slot = StagingSlot::make(encoded.size() + 5000, 100'000).value();
  CHECK(slot.has_room(encoded.size() + 5000, 100'000));
  CHECK(!slot.has_room(encoded.size() + 10'000, 100'000));
  CHECK(!slot.has_room(encoded.size(), 10'000'000));
  const auto view = SlotView::open(Fd{::fcntl(slot.file(), F_DUPFD_CLOEXEC, 0)});
  REQUIRE(view.ok());
  CHECK(!view->record(SlotState::filling).ok());
  CHECK(slot.begin(encoded, 100'000).size() == 100'000);
  CHECK(view->record(SlotState::filling).ok());
  CHECK(!view->record(SlotState::sealed).ok());
  slot.seal();
  REQUIRE(view->record(SlotState::sealed).ok());
  CHECK(view->record(SlotState::sealed).value() == record);
  const SlotOwner owner{{4, {{7, 8}}}, 6};
  slot.promise(owner);
  CHECK(view->prefix().value().state == SlotState::promised);
  CHECK(view->prefix().value().owner == owner);
  for (const SlotState state : {SlotState::sealed, SlotState::filling}) CHECK(!view->record(state).ok());
  slot.withdraw();
  CHECK(view->prefix().value().state == SlotState::empty);

  Fd loose{::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  REQUIRE(::ftruncate(loose.get(), 8192) == 0);
  CHECK(!SlotView::open(std::move(loose)).ok());
  CHECK(!SlotView::open(Fd{::open("/dev/null", O_RDONLY | O_CLOEXEC)}).ok());
}

TEST_CASE("a staging slot that is larger than files may be is a failure, and no signal", "[checkpoint][slot]") {
  const test::FileSizeLimit limit{1_MiB};
  CHECK(StagingSlot::make(100, 4 << 20).failure().code == Code::no_space);
}

TEST_CASE("words, outcomes and keys are read as they were written, and nothing else is", "[checkpoint][slot]") {
  for (int byte = 0; byte < 256; ++byte) {
    const ByteVector packet{static_cast<std::byte>(byte)};
    CHECK(parse_slot_word(packet).has_value() == (byte >= 1 && byte <= 5));
  }
  CHECK(!parse_slot_word({}));
  const SaveOutcome good{3, 40, "acknowledged", {}};
  CHECK(decode_save_outcome(encode(std::optional{good})).value() == good);
  CHECK(!decode_save_outcome(encode(std::optional<SaveOutcome>{})).value());
  const SaveOutcome bad{3, 40, {}, Failure{.code = Code::no_space, .remedy = Remedy::fix_config, .what = "full", .rank = Rank{5}}};
  const auto read = decode_save_outcome(encode(std::optional{bad}));
  REQUIRE((read.ok() && *read && (*read)->failure));
  CHECK((*read)->failure->code == Code::no_space);
  CHECK((*read)->failure->rank == Rank{5});
  const ByteVector bytes = encode(std::optional{bad});
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) CHECK(!decode_save_outcome(ByteSpan{bytes}.first(cut)).ok());
  const auto told = decode_said(encode(Said{.failure = bad.failure, .again = true}));
  REQUIRE((told.ok() && told->failure));
  CHECK(told->again);
  const ByteVector promise = encode(BrokenPromise{{7, {{8, 9}}}, 5, *bad.failure});
  CHECK(decode_broken_promise(promise)->generation == Generation{7, {{8, 9}}});
  CHECK(decode_broken_promise(promise)->why.rank == Rank{5});
  for (std::size_t cut = 0; cut < promise.size(); ++cut) CHECK(!decode_broken_promise(ByteSpan{promise}.first(cut)).ok());
  const std::vector<NotedSave> noted{{1, 3, 40, 2}, {1, 4, 50, 3}};
  CHECK(decode_noted_saves(encode(noted)).value() == noted);
  for (std::size_t cut = 0; cut < encode(noted).size(); ++cut) CHECK(!decode_noted_saves(ByteSpan{encode(noted)}.first(cut)).ok());
  CHECK(!decode_noted_saves(encode(std::vector<NotedSave>(noted_saves_max + 1))).ok());
  CHECK(!decode_noted_saves(encode(std::vector<NotedSave>{{1, 3, 40, world_max + 1}})).ok());
  CHECK(SaveKeys{{0xab, 3, 40, 8}}.vote(2, 7) == "job/elrun/save/r000000ab/g00000003/s000000000040/t2/vote/00007");
  CHECK(SaveKeys{{0xab, 3, 40, 8}}.gone(7) == "job/elrun/save/r000000ab/g00000003/s000000000040/gone/00007");
}

TEST_CASE("sealed slots are saved by their writers alone, and retention and acknowledgements are as ever", "[checkpoint][slot]") {
  FaultyFiles files;
  TestJob job{files, 3, 5};
  REQUIRE(said(job.start()) == "");
  Writers writers{job};
  Ownership ownership = job.ranks[0].ownership();
  for (const std::uint64_t step : {10u, 20u, 30u, 40u}) {
    for (const SaveOutcome& outcome : writers.save(step, ownership, {0, 1, 2})) {
      CHECK(why(outcome) == "");
      CHECK(outcome.acknowledgement != "");
      job.ranks[0].committed_elsewhere({step, ownership.fence, 1});
    }
    ownership = job.ranks[0].ownership();
  }
  CHECK(ownership.timeline.size() == 4);
  CHECK(writers.acknowledged.size() == 12);  // each agent hears of each
  TestJob next{files, 3, 6};                 // a start of another generation
  const auto start = next.start();
  REQUIRE(said(start) == "");
  REQUIRE(start->choice.has_value());
  CHECK(start->choice->step == 40);
  CHECK(said(next.load(*start)) == "");
  std::size_t commits = 0;
  for (const Path& path : files.all_files()) commits += path.filename() == commit_file;
  CHECK(commits == 2);
}

TEST_CASE("the outcome of a save is told to all writers before old checkpoints go", "[checkpoint][slot]") {
  FaultyFiles files;
  TestJob job{files, 2, 9};
  REQUIRE(said(job.start()) == "");
  Writers writers{job};
  const CheckpointId oldest{10, 1, 1};
  bool goes = false, was_told = false;
  for (const std::uint64_t step : {10u, 20u, 30u}) {
    writers.acknowledged.clear();
    files.broken = [&](const Path& path) {  // the first that goes of the oldest, in the leader's thread
      if (step != 30 || path.filename() != acknowledgement_name(oldest) || std::exchange(goes, true)) return 0;
      const Instant until = writers.clock.now() + 10s;  // the other one needs no file to hear it
      while (!was_told && writers.clock.now() < until) {
        std::this_thread::sleep_for(1ms);
        const std::lock_guard lock{writers.mutex};
        was_told = writers.acknowledged.size() == 2;
      }
      return 0;
    };
    for (const SaveOutcome& outcome : writers.save(step, job.ranks[0].ownership(), {0, 1})) REQUIRE(why(outcome) == "");
    job.ranks[0].committed_elsewhere({step, 1, 1});
  }
  CHECK(goes);
  CHECK(was_told);
}

TEST_CASE("a save is tried again under another name after a bad moment, and named when it cannot be", "[checkpoint][slot]") {
  FaultyFiles files;
  TestJob job{files, 2, 7};
  REQUIRE(said(job.start()) == "");
  Writers writers{job};
  SECTION("one EIO, or one stale handle, costs no save") {
    bool failed = false;
    const int error = GENERATE(EIO, ESTALE);
    files.broken = [&](const Path& path) { return path.filename() == shard_name(1, 2) && !std::exchange(failed, true) ? error : 0; };
    for (const SaveOutcome& outcome : writers.save(10, job.ranks[0].ownership(), {0, 1})) CHECK(why(outcome) == "");
    CHECK(failed);
  }
  SECTION("a full storage is told to all, with the rank that met it") {
    files.broken = [](const Path& path) { return path.filename() == shard_name(1, 2) ? ENOSPC : 0; };
    for (const SaveOutcome& outcome : writers.save(10, job.ranks[0].ownership(), {0, 1})) {
      REQUIRE(outcome.failure.has_value());
      CHECK(outcome.failure->code == Code::no_space);
      CHECK(outcome.failure->rank == Rank{1});
    }
    files.broken = {};
    for (const SaveOutcome& outcome : writers.save(20, job.ranks[0].ownership(), {0, 1})) CHECK(why(outcome) == "");
  }
}

TEST_CASE("the keys of a save are removed from the store by the next one, also where it failed", "[checkpoint][slot]") {
  FaultyFiles files;
  TestJob job{files, 2, 13};
  REQUIRE(said(job.start()) == "");
  Writers writers{job};
  const Ownership ownership = job.ranks[0].ownership();
  const auto store = writers.store.of(Rank{0});
  const auto keys = [&](const std::string& below) {
    return store->num_keys(keys_under(1) + below, Deadline::after(writers.clock.now(), 5s)).value();
  };
  files.broken = [](const Path& path) { return path.filename() == shard_name(1, 2) ? EIO : 0; };
  for (const SaveOutcome& outcome : writers.save(10, ownership, {0, 1})) REQUIRE(outcome.failure.has_value());
  CHECK(keys("") == 9);  // of three tries
  files.broken = {};
  const Failure gone{Code::peer_lost, Remedy::retry, "this worker ended"};
  REQUIRE(tell_gone(*store, noted_save(record_of(job, 1, 20, ownership)), 1, gone, Deadline::after(writers.clock.now(), 5s)).ok());
  for (const SaveOutcome& outcome : writers.save(20, ownership, {0})) REQUIRE(outcome.failure.has_value());
  CHECK(keys("s000000000010/") == 0);
  CHECK(keys("") == 3);
  for (const SaveOutcome& outcome : writers.save(30, ownership, {0, 1})) CHECK(why(outcome) == "");
  CHECK(keys("s000000000020/") == 0);
  CHECK(keys("") == 3);
}

TEST_CASE("the store keeps only the keys of the newest save, whenever generations end and whoever leads the next one",
          "[checkpoint][slot]") {
  FaultyFiles files;
  const SteadyClock clock;
  const auto by = [&] { return Deadline::after(clock.now(), 5s); };
  SharedStore store{clock, {}};
  const auto keys = [&] { return store.of(Rank{0})->num_keys("job/", by()).value(); };
  std::uint64_t most = 0;
  for (std::uint64_t generation = 20; generation <= 44; ++generation) {
    TestJob job{files, 2, generation};
    REQUIRE(said(job.start()) == "");
    store.begin_generation(job.leader.generation);
    Writers writers{job, store};
    const Ownership ownership = job.ranks[0].ownership();
    const auto word = store.of(Rank{1});
    const Failure gone{Code::peer_lost, Remedy::retry, "this worker ended"};
    switch (generation % 4) {
      case 0:
        for (const SaveOutcome& outcome : writers.save(generation, ownership, {0, 1})) CHECK(why(outcome) == "");
        break;
      case 1: REQUIRE(tell_gone(*word, noted_save(record_of(job, 0, generation, ownership)), 0, gone, by()).ok()); break;
      case 2:
        for (std::uint32_t rank = 0; rank < 2; ++rank) REQUIRE(tell_broken_promise(*word, {job.leader.generation, rank}, by()).ok());
        break;
      case 3:
        files.broken = [](const Path& path) { return path.filename() == shard_name(1, 2) ? EIO : 0; };
        for (const SaveOutcome& outcome : writers.save(generation, ownership, {0, 1})) CHECK(outcome.failure);
        files.broken = {};
        break;
    }
    most = std::max(most, keys());
  }
  CHECK(most <= 12);  // three tries of three keys, the list of saves, the newest checkpoint, a broken promise
  CHECK(keys() == 6);
}

TEST_CASE("what a writer that was frozen says late is removed by a later save, and it removes nothing of that", "[checkpoint][slot]") {
  FaultyFiles files;
  const SteadyClock clock;
  const auto by = [&] { return Deadline::after(clock.now(), 5s); };
  TestJob old{files, 2, 50};
  REQUIRE(said(old.start()) == "");
  SharedStore store{clock, old.leader.generation};
  const auto keys = [&](FenceNumber fence) { return store.of(Rank{0})->num_keys(keys_under(fence), by()).value(); };
  Writers frozen{old, store};
  const Ownership before = old.ranks[0].ownership();
  for (const SaveOutcome& outcome : frozen.save(10, before, {0, 1})) REQUIRE(why(outcome) == "");
  TestJob next{files, 2, 51};
  REQUIRE(said(next.start()) == "");
  Writers writers{next, store};
  for (const SaveOutcome& outcome : writers.save(20, next.ranks[0].ownership(), {0, 1})) REQUIRE(why(outcome) == "");
  CHECK(keys(1) == 0);
  CHECK(keys(2) == 3);
  SECTION("the leader") {
    for (const SaveOutcome& outcome : frozen.save(11, before, {0, 1})) CHECK(why(outcome).find("was taken over") != std::string::npos);
  }
  SECTION("another rank") { REQUIRE(store.of(Rank{1})->set(SaveKeys{{root_tag, 1, 10, 2}}.vote(1, 1), as_bytes("late"), by()).ok()); }
  CHECK(keys(1) > 0);
  CHECK(keys(2) == 3);
  for (const SaveOutcome& outcome : writers.save(30, next.ranks[0].ownership(), {0, 1})) CHECK(why(outcome) == "");
  CHECK(keys(1) == 0);
  CHECK(keys(2) == 3);
}

TEST_CASE("a save of another root removes what the one before has left, also under a higher fence", "[checkpoint][slot]") {
  const SteadyClock clock;
  const auto by = [&] { return Deadline::after(clock.now(), 5s); };
  SharedStore store{clock, {1, {{1, 2}}}};
  const auto mine = store.of(Rank{0});
  const NotedSave first{1, 7, 100, 1}, second{2, 3, 50, 1};
  for (const NotedSave& save : {first, second}) {
    REQUIRE(note_save(*mine, save, by()).ok());
    REQUIRE(mine->set(SaveKeys{save}.ticket(1), as_bytes("ticket"), by()).ok());
  }
  const auto keys = [&] { return mine->num_keys("job/elrun/save/r", by()).value(); };
  sweep_saves(*mine, first, by);  // its leader was frozen
  CHECK(keys() == 2);
  sweep_saves(*mine, second, by);
  CHECK(keys() == 1);
  const NotedSave forgotten{2, 2, 40, 1};  // its leader thaws after so many saves that the list has lost it
  REQUIRE(mine->set(SaveKeys{forgotten}.outcome(1), as_bytes("outcome"), by()).ok());
  sweep_saves(*mine, forgotten, by);
  CHECK(keys() == 2);
  sweep_saves(*mine, second, by);
  CHECK(keys() == 1);
}

TEST_CASE("a broken promise concerns the saves of its own generation, and one that is told late hides no newer one", "[checkpoint][slot]") {
  FaultyFiles files;
  TestJob job{files, 2, 14};
  REQUIRE(said(job.start()) == "");
  Writers writers{job};
  const auto store = writers.store.of(Rank{1});
  const auto by = [&] { return Deadline::after(writers.clock.now(), 5s); };
  const Generation now = job.leader.generation, before{now.number - 1, {{1, 2}}};
  REQUIRE(tell_broken_promise(*store, {before, 1}, by()).ok());
  CHECK_FALSE(broken_promise(*store, now, by()));
  for (const SaveOutcome& outcome : writers.save(10, job.ranks[0].ownership(), {0, 1})) CHECK(why(outcome) == "");
  REQUIRE(tell_broken_promise(*store, {now, 1}, by()).ok());
  REQUIRE(tell_broken_promise(*store, {before, 0}, by()).ok());
  REQUIRE(tell_broken_promise(*store, {now, 0}, by()).ok());
  const auto broken = broken_promise(*store, now, by());
  REQUIRE(broken);
  CHECK(broken->rank == Rank{1});
  CHECK(store->num_keys("job/elrun/save/promised", by()).value() == 1);
}

TEST_CASE("a rank whose part does not come is named, by the deadline or at once when somebody knows", "[checkpoint][slot]") {
  FaultyFiles files;
  TestJob job{files, 3, 8};
  REQUIRE(said(job.start()) == "");
  Writers writers{job};
  SECTION("by the deadline of the save") {
    // Which has passed once rank 1 has said that its part is written.
    const Instant begun = writers.clock.now();
    const auto store = writers.store.of(Rank{2});
    const SaveKeys keys{noted_save(record_of(job, 1, 10, job.ranks[0].ownership()))};
    writers.deadline = [&] {
      const auto votes = store->num_keys(keys.vote(1, 1), Deadline::after(writers.clock.now(), 60s));
      return votes.ok() && *votes > 0 ? begun : begun + 600s;
    };
    const auto outcomes = writers.save(10, job.ranks[0].ownership(), {0, 1});
    REQUIRE(outcomes[0].failure.has_value());
    CHECK(outcomes[0].failure->code == Code::deadline_passed);
    CHECK(outcomes[0].failure->what.find("missing: rank 2") != std::string::npos);
    CHECK(outcomes[1].failure.has_value());
  }
  SECTION("at once, where its worker ended before its slot was whole") {
    const auto store = writers.store.of(Rank{2});
    const Failure gone{Code::peer_lost, Remedy::retry, "this worker ended before its part of the checkpoint was in its staging slot"};
    REQUIRE(
        tell_gone(*store, noted_save(record_of(job, 2, 10, job.ranks[0].ownership())), 2, gone, Deadline::after(writers.clock.now(), 5s))
            .ok());
    for (const SaveOutcome& outcome : writers.save(10, job.ranks[0].ownership(), {0, 1})) {
      REQUIRE(outcome.failure.has_value());
      CHECK(outcome.failure->code == Code::peer_lost);
      CHECK(outcome.failure->rank == Rank{2});
    }
  }
  SECTION("at once, where its worker ended or left its generation before it had begun its part") {
    const auto store = writers.store.of(Rank{2});
    const auto by = [&] { return Deadline::after(writers.clock.now(), 5s); };
    REQUIRE(tell_broken_promise(*store, {job.leader.generation, 2}, by()).ok());
    for (const SaveOutcome& outcome : writers.save(10, job.ranks[0].ownership(), {0, 1})) {
      REQUIRE(outcome.failure.has_value());
      CHECK(outcome.failure->code == Code::peer_lost);
      CHECK(outcome.failure->rank == Rank{2});
      CHECK(outcome.failure->what.find("before it had begun its part") != std::string::npos);
    }
  }
  for (const Path& path : files.all_files()) CHECK(path.filename() != commit_file);
}

TEST_CASE("a save whose fence is no longer the newest is not acknowledged and changes nothing", "[checkpoint][slot]") {
  FaultyFiles files;
  TestJob job{files, 2, 9};
  REQUIRE(said(job.start()) == "");
  const Ownership old = job.ranks[0].ownership();
  TestJob next{files, 2, 10};
  REQUIRE(said(next.start()) == "");
  Writers writers{job};
  for (const SaveOutcome& outcome : writers.save(10, old, {0, 1})) CHECK(why(outcome).find("was taken over") != std::string::npos);
  CHECK(writers.acknowledged.empty());
  REQUIRE(said(next.save(5)) == "");
  TestJob last{files, 2, 11};
  const auto start = last.start();
  REQUIRE(said(start) == "");
  CHECK(start->choice->step == 5);
}

TEST_CASE("how a save ended is still known when its writer died after it", "[checkpoint][slot]") {
  FaultyFiles files;
  TestJob job{files, 1, 12};
  REQUIRE(said(job.start()) == "");
  Writers writers{job};
  const Ownership ownership = job.ranks[0].ownership();
  const auto store = writers.store.of(Rank{0});
  const auto soon = [&] { return Deadline::after(writers.clock.now(), 20ms); };
  CHECK(!told_outcome(*store, {root_tag, ownership.fence, 10, 1}, soon));
  const auto outcomes = writers.save(10, ownership, {0});
  const auto told = told_outcome(*store, {root_tag, ownership.fence, 10, 1}, soon);
  REQUIRE(told.has_value());
  CHECK(*told == outcomes[0]);
}

}  // namespace elrun::test
