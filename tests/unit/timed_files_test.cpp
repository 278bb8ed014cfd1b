// A storage that hangs, as a twin in memory whose operations wait until the test lets them go on.

#include "lib/base/timed_files.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <thread>

#include "tests/support/checkpoint_job.hpp"
#include "tests/support/forwarding_files.hpp"

using namespace elrun;
using namespace elrun::test;
using Catch::Matchers::Contains;

namespace {

/// Of operations that hang. All others have minutes: how long they take is the machine's matter.
constexpr Duration limit = 1s;

/// Operations with these verbs hang until `release`. What hangs may outlive this, and has all that it touches.
class HangingStorage {
 public:
  HangingStorage() {
    auto behind = std::make_shared<FaultyFiles>();
    auto* const front = new ForwardingFiles(*behind, [state = state_](const char* verb, const Path&) -> Result<void> {
      std::unique_lock lock{state->mutex};
      ++state->begun;
      state->changed.wait(lock, [&] { return !state->hang.contains(verb); });
      return {};
    });
    files = std::shared_ptr<ForwardingFiles>(front, [behind](ForwardingFiles* f) { delete f; });
    memory = behind.get();
  }
  HangingStorage(const HangingStorage&) = delete;
  HangingStorage& operator=(const HangingStorage&) = delete;
  ~HangingStorage() { release(); }
  void hang(const char* verb) {
    const std::lock_guard lock{state_->mutex};
    state_->hang.insert(verb);
  }
  void release() {
    const std::lock_guard lock{state_->mutex};
    state_->hang.clear();
    state_->changed.notify_all();
  }
  [[nodiscard]] int begun() const {
    const std::lock_guard lock{state_->mutex};
    return state_->begun;
  }
  std::shared_ptr<ForwardingFiles> files;
  FaultyFiles* memory = nullptr;

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::set<std::string> hang;
    int begun = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

const ByteVector some_bytes(100'000, std::byte{7});

/// Does what is to hang, which is given up after `limit`. Begins again where this thread was not run meanwhile, so that there was no time left for it and nothing hangs.
template <class Call>
auto given_up(TimedFiles& files, const Call& call) {
  for (int tries = 1;; ++tries) {
    files.set_time_left(limit);
    auto result = call();
    files.set_time_left(std::nullopt);
    if (tries == 10 || !files.activity().longest.empty()) return result;
  }
}

/// The storage works again soon after the stuck operation has returned.
bool works_again(Files& files) {
  for (int i = 0; i < 20'000; ++i) {
    if (files.list("/").ok()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

}  // namespace

TEST_CASE("whoever asks hears which operation is under way for longest, also once it was given up, without waiting for the storage",
          "[timed_files]") {
  HangingStorage storage;
  TimedFiles files{storage.files};
  REQUIRE(files.list("/").ok());
  CHECK(files.activity().begun == 1);
  CHECK(files.activity().longest.empty());
  CHECK(files.activity().limit == StorageLimits{}.longest());
  storage.hang("list");
  bool is_listed = true;
  std::thread stuck{[&] { is_listed = given_up(files, [&] { return files.list("/").ok(); }); }};
  while (files.activity().begun < 2) std::this_thread::sleep_for(1ms);
  CHECK(files.activity().longest == "list /");
  CHECK(files.activity().for_long < 30s);
  stuck.join();
  CHECK_FALSE(is_listed);
  CHECK(files.activity().longest == "list /");  // it is given up, and still stuck
  CHECK(files.activity().for_long > Duration{0});
  CHECK_FALSE(files.open("/x").ok());  // and this was not begun
  CHECK(files.activity().begun == 2);
  storage.release();
  REQUIRE(works_again(files));
  CHECK(files.activity().longest.empty());
}

TEST_CASE("a storage that answers is the same behind a deadline", "[timed_files]") {
  FaultyFiles memory;
  TimedFiles files{std::make_shared<ForwardingFiles>(memory)};
  TestJob job{files, 3, 1};
  REQUIRE(said(job.start()) == "");
  REQUIRE(said(job.save(10)) == "");
  REQUIRE(said(job.save(20)) == "");
  TestJob next{files, 2, 2};
  const auto start = next.start();
  REQUIRE(said(start) == "");
  CHECK(start->choice->step == 20);
  CHECK(said(next.load(*start)) == "");
  CHECK(files.open("/no/such").failure().code == Code::not_found);
  CHECK(said(files.read_all("/ckpts/RUN.json", 10_B)) != "");
}

TEST_CASE("where there is less time for all operations together, none of them takes longer", "[timed_files]") {
  HangingStorage storage;
  TimedFiles files{storage.files, {.operation = 300s}};
  files.set_time_left(100s);
  CHECK(files.list("/").ok());
  storage.hang("list");
  const auto listed = given_up(files, [&] { return files.list("/"); });
  REQUIRE_FALSE(listed.ok());
  CHECK(listed.failure().code == Code::deadline_passed);
  CHECK_THAT(listed.failure().what, Contains("list / has not returned for") && Contains("the storage hangs"));
  storage.release();
  REQUIRE(works_again(files));
  files.set_time_left(Duration{0});
  const auto late = files.list("/");
  REQUIRE_FALSE(late.ok());
  CHECK(late.failure().code == Code::deadline_passed);
  CHECK_THAT(late.failure().what, Contains("no time left for \"list /\""));
  files.set_time_left(std::nullopt);
  CHECK(files.list("/").ok());
}

TEST_CASE("an operation that does not return fails in time, and all others at once until it has returned", "[timed_files]") {
  HangingStorage storage;
  TimedFiles files{storage.files};
  auto file = files.create("/a").value();
  REQUIRE(file->write_at(0, some_bytes).ok());
  storage.hang("sync");
  const auto synced = given_up(files, [&] { return file->sync(); });
  REQUIRE_FALSE(synced.ok());
  CHECK(synced.failure().code == Code::deadline_passed);
  CHECK_THAT(synced.failure().what, Contains("sync /a has not returned for") && Contains("the storage hangs"));
  const int begun = storage.begun();
  const auto other = files.link("/a", "/b");
  REQUIRE_FALSE(other.ok());
  CHECK_THAT(other.failure().what, Contains("sync /a has not returned for") && Contains("\"link /b\" was not begun"));
  CHECK_FALSE(files.open("/a").ok());
  CHECK(storage.begun() == begun);
  storage.release();
  REQUIRE(works_again(files));
  const auto again = file->sync();  // nobody knows what the one that was given up did
  REQUIRE_FALSE(again.ok());
  CHECK(again.failure().code == Code::deadline_passed);  // and no damage: what is damaged is given up
  CHECK(files.open("/a").ok());
}

TEST_CASE("a file of which an operation was not begun, because another one hangs, is as good as before", "[timed_files]") {
  HangingStorage storage;
  TimedFiles files{storage.files};
  auto file = files.create("/a").value(), other = files.create("/b").value();
  storage.hang("sync");
  REQUIRE_FALSE(given_up(files, [&] { return file->sync(); }).ok());
  REQUIRE_THAT(said(other->write_at(0, some_bytes)), Contains("was not begun"));
  storage.release();
  REQUIRE(works_again(files));
  CHECK(said(other->write_at(0, some_bytes)) == "");
}

TEST_CASE("an operation that runs out of memory fails, and ends no process", "[timed_files]") {
  FaultyFiles memory;
  TimedFiles files{std::make_shared<ForwardingFiles>(memory, [](const char* verb, const Path&) -> Result<void> {
    if (std::string_view{verb} == "list") throw std::bad_alloc{};
    return {};
  })};
  const auto listed = files.list("/");
  REQUIRE_FALSE(listed.ok());
  CHECK(listed.failure().code == Code::exhausted);
}

TEST_CASE("neither a file nor the storage waits at its end for what is stuck", "[timed_files]") {
  HangingStorage storage;
  {
    TimedFiles files{storage.files};
    auto file = files.create("/a").value();
    auto other = files.create("/b").value();
    storage.hang("sync");
    REQUIRE_FALSE(given_up(files, [&] { return file->sync(); }).ok());
  }
  storage.release();
}

TEST_CASE("a late read writes to no memory of the caller", "[timed_files]") {
  HangingStorage storage;
  REQUIRE(storage.memory->write_durably("/a", some_bytes).ok());
  TimedFiles files{storage.files};
  auto file = files.open("/a").value();
  ByteVector out(1000);
  storage.hang("read");
  CHECK_FALSE(given_up(files, [&] { return file->read_at(0, out); }).ok());
  storage.release();
  REQUIRE(works_again(files));
  CHECK(out == ByteVector(1000));
}

TEST_CASE("the limit of an operation grows with its bytes", "[timed_files]") {
  for (int tries = 1; tries <= 10; ++tries) {
    HangingStorage storage;
    TimedFiles files{storage.files, {.operation = limit, .rate = 100'000_B}};
    auto file = files.create("/a");
    if (!file.ok() || !(*file)->write_at(0, some_bytes).ok()) continue;  // which have 1 s and 2 s, and their thread was not run for so long
    storage.hang("sync");
    CHECK_THAT(said((*file)->sync()), Contains("has not returned for 2.0 s"));
    return;
  }
  FAIL("no file could be written");
}

TEST_CASE("no operation may take longer than some bytes do, however many a file has: it is synced as often as it has those",
          "[timed_files]") {
  constexpr Bytes rate = 100'000_B, at_once = 100'000_B;
  SECTION("in many writes, and in one") {
    HangingStorage storage;
    TimedFiles files{storage.files, {.rate = rate, .at_once = at_once}};
    auto file = files.create("/a").value();
    const auto operations = [&](const auto& call) {
      const int before = storage.begun();
      call();
      return storage.begun() - before;
    };
    const ByteVector part(40'000, std::byte{5}), many(250'000, std::byte{6});
    const auto writes = [&](std::uint64_t at, const ByteVector& bytes) {
      return operations([&] { REQUIRE(said(file->write_at(at, bytes)) == ""); });
    };
    CHECK(writes(0, part) == 1);
    CHECK(writes(40'000, part) == 1);
    CHECK(writes(80'000, part) == 2);  // and a sync of 120,000 bytes
    CHECK(writes(120'000, part) == 1);
    REQUIRE(file->sync().ok());
    CHECK(writes(160'000, many) == 5);  // three writes, two syncs
    REQUIRE(file->sync().ok());
    const ByteVector whole = storage.memory->content("/a");
    CHECK(whole.size() == 410'000);
    CHECK(std::equal(many.begin(), many.end(), whole.begin() + 160'000));
  }
  const StorageLimits limits{.operation = limit, .rate = rate, .at_once = at_once};
  CHECK(limits.longest() == 2s);
  // What `call` says of a new file. It is asked again where an operation before the one that hangs, which has 1 s or 2 s as well, was not run for so long.
  const auto said_of_hung = [&](const char* verb, const auto& call) {
    std::string says;
    for (int tries = 1; tries <= 10; ++tries) {
      HangingStorage hanging;
      TimedFiles files{hanging.files, limits};
      CHECK(files.activity().limit == 2s);
      auto file = files.create("/a");
      if (!file.ok()) continue;
      hanging.hang(verb);
      says = said(call(**file));
      if (says.find(verb) != says.npos) break;
    }
    return says;
  };
  SECTION("a sync in between that hangs or fails is the write's failure") {
    CHECK_THAT(said_of_hung("sync", [](WritableFile& file) { return file.write_at(0, some_bytes); }),
               Contains("sync /a has not returned for 2.0 s"));
  }
  SECTION("space for a large file") {
    CHECK_THAT(said_of_hung("reserve", [](WritableFile& file) { return file.reserve(1_GiB); }),
               Contains("reserve space for /a has not returned for 2.0 s"));
  }
}

TEST_CASE("a save or a start on a storage that hangs fails with rank, file and operation, and nothing is lost", "[timed_files]") {
  for (const std::string verb : {"write", "sync", "link", "list", "read"}) {
    HangingStorage storage;
    TimedFiles files{storage.files};
    bool hangs = false;
    ForwardingFiles of_job{files, [&](const char* next, const Path&) -> Result<void> {  // the operation that is to hang has 1 s for itself
                             files.set_time_left(hangs && next == verb ? std::optional{limit} : std::nullopt);
                             return {};
                           }};
    TestJob job{of_job, 2, 1};
    REQUIRE(said(job.start()) == "");
    REQUIRE(said(job.save(10)) == "");
    storage.hang(verb.c_str());
    hangs = true;
    const auto saved = given_up(files, [&] { return job.save(20); });
    INFO(verb << ": " << said(saved));
    REQUIRE_FALSE(saved.ok());
    CHECK(saved.failure().code == Code::deadline_passed);
    CHECK(saved.failure().rank.has_value());
    CHECK_THAT(saved.failure().what, Contains(verb) && Contains("/ckpts") && Contains("the storage hangs"));
    TestJob next{of_job, 2, 2};
    CHECK(next.start().failure().code == Code::deadline_passed);
    storage.release();
    hangs = false;
    files.set_time_left(std::nullopt);
    REQUIRE(works_again(files));
    const auto start = next.start();
    REQUIRE(said(start) == "");
    CHECK(start->choice->step >= 10);
    CHECK(said(next.load(*start)) == "");
  }
}

TEST_CASE("a forked child lets go of a storage whose threads wait for work in its parent", "[timed_files]") {
  HangingStorage storage;
  auto files = std::make_unique<TimedFiles>(storage.files);
  storage.hang("list");
  std::thread other{[&] { (void)files->list("/"); }};
  while (storage.begun() == 0) std::this_thread::yield();
  (void)files->space_left("/");  // so there are two threads
  storage.release();
  other.join();
  for (int i = 0; i < 20; ++i) {
    for (int operations = 0; operations < 3; ++operations) (void)files->space_left("/");  // each wakes one of them
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::alarm(20);  // by default it ends the process
      files.reset();
      ::_exit(0);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
  }
  CHECK(files->list("/").ok());
}
