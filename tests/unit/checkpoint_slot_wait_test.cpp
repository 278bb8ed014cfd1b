// A save of sealed slots whose other writers are late or gone, or whose store is silent, on a clock that no test waits for.

#include <functional>
#include <optional>
#include <utility>

#include "checkpoint/staging/save_keys.hpp"
#include "checkpoint/staging/slot_save.hpp"
#include "lib/link/request_store.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/manual_clock.hpp"
#include "tests/unit/sealed_slots.hpp"

namespace elrun::test {
namespace {

/// The job's store, in one thread with a clock that goes on only while a call waits for its deadline. Then `waits` is asked first, and may change the store.
class StoreOnAClock final : public RequestStore {
 public:
  StoreOnAClock(ManualClock& clock, const Generation& generation) : RequestStore{clock, generation}, time_{clock} {
    (void)core_.begin_generation(generation);
  }
  std::function<void()> waits;
  bool answers = true;

 protected:
  Result<StoreReply> ask(StoreRequest request, Deadline deadline) override {
    const std::uint64_t id = request.id = ++last_id_;
    std::optional<StoreReply> reply;
    const auto deliver = [&](std::vector<StoreAnswer> all) {
      for (StoreAnswer& answer : all)
        if (answer.reply.id == id) reply = std::move(answer.reply);
    };
    if (answers) deliver(core_.call(StoreCaller{0}, std::move(request), time_.now()));
    if (reply) return *std::move(reply);
    if (waits) std::exchange(waits, {})();
    time_.advance(deadline.left(time_.now()));
    deliver(core_.expire(time_.now()));
    if (reply && answers) return *std::move(reply);
    return Failure{Code::unreachable, Remedy::retry, "the coordinator is silent"};
  }
  [[nodiscard]] std::uint32_t rank() const override { return 0; }

 private:
  ManualClock& time_;
  StoreCore core_;
  std::uint64_t last_id_ = 0;
};

/// A leader whose save has 3 s, with such a store.
struct LeaderOnAClock {
  explicit LeaderOnAClock(std::uint32_t world) : job{files, world, 8}, store{clock, job.leader.generation} {
    REQUIRE(said(job.start()) == "");
  }
  SaveOutcome save() {
    SlotRecord record = record_of(job, 0, 10, job.ranks[0].ownership());
    const SlotView slot = sealed_slot(job, record);
    const Instant deadline = clock.now() + 3s;
    return save_slot(slot, record,
                     {.files = files,
                      .clock = clock,
                      .log = job.log,
                      .store = store,
                      .sleep = [this](Duration d) { clock.advance(d); },
                      .cancel = [] { return std::optional<Failure>{}; },
                      .deadline = [deadline] { return deadline; }});
  }
  [[nodiscard]] NotedSave noted() { return noted_save(record_of(job, 0, 10, job.ranks[0].ownership())); }
  [[nodiscard]] Deadline by() { return Deadline::after(clock.now(), 1s); }
  void is_gone(std::uint32_t rank) {
    REQUIRE(tell_gone(store, noted(), rank, {Code::peer_lost, Remedy::retry, "elrun ckptd of this node ended"}, by()).ok());
  }
  void votes(std::uint32_t rank) {
    const SaveKeys keys{noted()};
    const Said ticket = decode_said(store.get(keys.ticket(1), by()).value()).value();
    fill(job.table, job.held[rank], 10);
    const PartVote vote = job.ranks[rank].write_part(decode_save_ticket(ticket.value).value(), job.held[rank].fragments, {});
    REQUIRE(store.set(keys.vote(1, rank), encode(vote), by()).ok());
  }

  FaultyFiles files;
  TestJob job;
  ManualClock clock{};
  StoreOnAClock store;
};

}  // namespace

TEST_CASE("a save ends at its deadline where the store no longer answers, and blames no rank for that", "[checkpoint][slot]") {
  LeaderOnAClock leader{40};
  leader.store.waits = [&] { leader.store.answers = false; };
  const Instant begun = leader.clock.now();
  const SaveOutcome outcome = leader.save();
  REQUIRE(outcome.failure.has_value());
  CHECK(outcome.failure->code == Code::deadline_passed);
  CHECK_FALSE(outcome.failure->rank.has_value());
  CHECK_THAT(outcome.failure->what, Catch::Contains("the job's store does not answer: the coordinator is silent"));
  CHECK(leader.clock.now() - begun <= 3s + 3s);  // one call for the names, one to tell the others, one to sweep
}

TEST_CASE("the part of a high rank that will not come is known as soon as that of a low one", "[checkpoint][slot]") {
  LeaderOnAClock leader{40};
  leader.is_gone(39);
  const Instant begun = leader.clock.now();
  const SaveOutcome outcome = leader.save();
  REQUIRE(outcome.failure.has_value());
  CHECK(outcome.failure->code == Code::peer_lost);
  CHECK(outcome.failure->rank == Rank{39});
  CHECK(leader.clock.now() - begun <= 1s);  // the call that waits for the first vote
}

TEST_CASE("a rank whose writer ends after its part is written has done its part", "[checkpoint][slot]") {
  LeaderOnAClock leader{3};
  leader.store.waits = [&] {
    leader.votes(1);
    leader.is_gone(1);
    leader.store.waits = [&] { leader.votes(2); };  // when the leader has looked who is gone
  };
  const SaveOutcome outcome = leader.save();
  CHECK(why(outcome) == "");
  CHECK(outcome.acknowledgement != "");
}

}  // namespace elrun::test
