// WriterMachine: what `elrun ckptd` decides, without slots, sockets, threads and a storage.

#include "launcher/ckptd/writer_machine.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"

namespace elrun::test::writer_machine {
namespace {

using namespace launcher;

constexpr WorkerLine first{1}, second{2};

SlotSave save_of(std::uint64_t step, FenceNumber fence = 1, std::uint32_t rank = 0, std::string root = "/ck") {
  return {std::move(root), {.root = 7, .fence = fence, .step = step, .world = 2}, rank};
}
SlotSeen seen(SlotState state, SlotSave save) { return {.state = state, .save = std::move(save)}; }

/// A ckptd of which the actions of the newest event are kept.
struct Ckptd {
  Ckptd() {
    for (const WorkerLine line : {first, second}) {
      on(LineOpened{line});
      on(SlotCame{line});
      CHECK(has<KeepSlot>());
    }
  }
  void on(const WriterEvent& event) { actions = machine.on(event, now); }
  /// A worker begins and seals its slot; the save.
  SaveNumber save(WorkerLine line, const SlotSave& what) {
    on(SlotBegun{line});
    on(SlotSealed{line, what});
    REQUIRE(has<StartSave>());
    return one<StartSave>().save;
  }
  void end(SaveNumber save, std::optional<Failure> why = {}) { on(SaveEnded{save, {.fence = 1, .step = 10, .failure = std::move(why)}}); }
  template <class Action>
  [[nodiscard]] std::vector<Action> all() const {
    std::vector<Action> out;
    for (const WriterAction& action : actions)
      if (const auto* one = std::get_if<Action>(&action)) out.push_back(*one);
    return out;
  }
  template <class Action>
  [[nodiscard]] bool has() const {
    return !all<Action>().empty();
  }
  template <class Action>
  [[nodiscard]] Action one() const {
    REQUIRE(all<Action>().size() == 1);
    return all<Action>().front();
  }

  Instant now = Instant{} + 1h;
  WriterMachine machine;
  std::vector<WriterAction> actions;
};

}  // namespace

TEST_CASE("a sealed slot is saved, and its worker hears of the outcome", "[writer_machine]") {
  Ckptd ckptd;
  const SaveNumber save = ckptd.save(first, save_of(10));
  CHECK(ckptd.one<StartSave>().line == first);
  CHECK(ckptd.one<StartSave>().deadline == ckptd.now + save_deadline);
  CHECK_FALSE(ckptd.one<StartSave>().hurries);
  ckptd.end(save);
  CHECK(ckptd.one<TellOutcome>().line == first);
  CHECK(ckptd.one<TellOutcome>().outcome.step == 10);
  CHECK(ckptd.save(first, save_of(20)) != save);  // in the same slot
}

TEST_CASE("a line that says what no worker says is closed", "[writer_machine]") {
  Ckptd ckptd;
  SECTION("a seal without a begin") { ckptd.on(SlotSealed{first, save_of(10)}); }
  SECTION("a begin without a slot") {
    ckptd.on(LineOpened{WorkerLine{3}});
    ckptd.on(SlotBegun{WorkerLine{3}});
  }
  SECTION("a word with a slot that brings none") { ckptd.on(SlotCame{.line = first, .has_file = false}); }
  SECTION("a slot that cannot be opened, and the log says why") {
    ckptd.on(SlotCame{first, Failure{Code::corrupt, Remedy::retry, "it may shrink"}});
    CHECK(ckptd.one<WarnOf>().text.find("it may shrink") != std::string::npos);
  }
  SECTION("a seal of a slot that cannot be read, and the log says why") {
    ckptd.on(SlotBegun{first});
    ckptd.on(SlotSealed{first, Failure{Code::corrupt, Remedy::retry, "a wrong checksum"}});
    CHECK(ckptd.one<WarnOf>().text.find("a wrong checksum") != std::string::npos);
  }
  SECTION("a begin while its slot is being written") {
    (void)ckptd.save(first, save_of(10));
    ckptd.on(SlotBegun{first});
  }
  SECTION("another slot while its slot is being written") {
    (void)ckptd.save(first, save_of(10));
    ckptd.on(SlotCame{first});
  }
  CHECK(ckptd.has<CloseLine>());
  CHECK_FALSE(ckptd.has<StartSave>());
}

TEST_CASE("of a worker that is gone, what was sealed is saved, and what was not the others hear of", "[writer_machine]") {
  Ckptd ckptd;
  SECTION("sealed, and its word was lost with it") {
    ckptd.on(SlotBegun{first});
    ckptd.on(LineClosed{first, seen(SlotState::sealed, save_of(10))});
    const SaveNumber save = ckptd.one<StartSave>().save;
    CHECK_FALSE(ckptd.has<TellGone>());
    ckptd.end(save, Failure{Code::io, Remedy::retry, "no space"});
    CHECK_FALSE(ckptd.has<TellOutcome>());
    CHECK(ckptd.one<WarnOf>().text.find("no space") != std::string::npos);
  }
  SECTION("its save is under way: it goes on, and is not begun again") {
    const SaveNumber save = ckptd.save(first, save_of(10));
    ckptd.on(LineClosed{first, seen(SlotState::sealed, save_of(10))});
    CHECK(ckptd.actions.empty());
    ckptd.end(save);
    CHECK(ckptd.actions.empty());
  }
  SECTION("sealed, but the record is damaged") {
    ckptd.on(SlotBegun{first});
    ckptd.on(LineClosed{first, {.state = SlotState::sealed, .trouble = "a wrong checksum"}});
    CHECK(ckptd.one<WarnOf>().text.find("a wrong checksum") != std::string::npos);
    CHECK_FALSE(ckptd.has<StartSave>());
  }
  SECTION("it was being filled, whether its worker had said so or not") {
    if (GENERATE(true, false)) ckptd.on(SlotBegun{first});
    ckptd.on(LineClosed{first, seen(SlotState::filling, save_of(10, 4, 1))});
    CHECK(ckptd.one<TellGone>().rank == 1);
    CHECK(ckptd.one<TellGone>().save.step == 10);
    CHECK(ckptd.one<TellGone>().save.fence == 4);
    CHECK(ckptd.one<TellGone>().why.code == Code::peer_lost);
  }
  SECTION("it was promised") {
    const SlotOwner owner{{3, {{1, 2}}}, 1};
    ckptd.on(LineClosed{first, {.state = SlotState::promised, .owner = owner}});
    CHECK(ckptd.one<TellBrokenPromise>().owner == owner);
  }
  SECTION("it was empty") {
    ckptd.on(LineClosed{first, {}});
    CHECK(ckptd.actions.empty());
  }
}

TEST_CASE("whoever settles hears that all saves are over, at once where there is none", "[writer_machine]") {
  Ckptd ckptd;
  CHECK_FALSE(ckptd.machine.has_settled());
  SECTION("there is none") {
    ckptd.on(WorkerSettles{second});
    CHECK(ckptd.actions.empty());
    CHECK(ckptd.machine.has_settled());
    ckptd.on(AllIsRead{});
    CHECK(ckptd.one<TellSettled>().line == second);
    CHECK_FALSE(ckptd.machine.has_settled());  // it was told
  }
  SECTION("a save of another worker has a last minute, and no bound on bytes") {
    const SaveNumber save = ckptd.save(first, save_of(10));
    ckptd.now += 10s;
    ckptd.on(WorkerSettles{second});
    CHECK(ckptd.one<EndSaveBy>().deadline == ckptd.now + settle_wait);
    CHECK(ckptd.one<HurrySave>().save == save);
    CHECK(ckptd.has<ForgetBytes>());
    CHECK_FALSE(ckptd.machine.has_settled());
    ckptd.now += 50s;
    ckptd.on(WorkerSettles{second});  // by another word it gets no longer one
    CHECK(ckptd.one<EndSaveBy>().deadline == ckptd.now + 10s);
    ckptd.end(save);
    CHECK(ckptd.machine.has_settled());
  }
  SECTION("a slot that is filled at that moment has a last minute from its seal on") {
    ckptd.on(SlotBegun{first});
    ckptd.on(WorkerSettles{second, {seen(SlotState::filling, save_of(10))}});
    CHECK(ckptd.machine.has_settled());  // but its seal may be among the words that are unread
    ckptd.on(SlotSealed{first, save_of(10)});
    CHECK(ckptd.one<StartSave>().deadline == ckptd.now + settle_wait);
    CHECK(ckptd.one<StartSave>().hurries);
    CHECK_FALSE(ckptd.machine.has_settled());
  }
  SECTION("a save of a later generation has all its time") {
    const SaveNumber old = ckptd.save(first, save_of(10));
    ckptd.on(WorkerSettles{second});
    (void)ckptd.save(second, save_of(20, 2));
    CHECK(ckptd.one<StartSave>().deadline == ckptd.now + save_deadline);
    CHECK_FALSE(ckptd.one<StartSave>().hurries);
    ckptd.end(old);
    CHECK_FALSE(ckptd.machine.has_settled());
  }
}

TEST_CASE("a later fence ends the saves of older ones of its root", "[writer_machine]") {
  Ckptd ckptd;
  const SaveNumber old = ckptd.save(first, save_of(10, 1));
  SECTION("those under way") {
    (void)ckptd.save(second, save_of(20, 2));
    CHECK(ckptd.one<ReplaceSave>().save == old);
    CHECK(ckptd.one<ReplaceSave>().by == 2);
    CHECK(ckptd.has<ForgetBytes>());
    CHECK_FALSE(ckptd.one<StartSave>().replaced_by);
  }
  SECTION("and those that come late") {
    ckptd.end(ckptd.save(second, save_of(20, 2)));
    (void)ckptd.save(second, save_of(11, 1));
    CHECK(ckptd.one<StartSave>().replaced_by == FenceNumber{2});
    CHECK_FALSE(ckptd.has<ReplaceSave>());
  }
  SECTION("of no other root") {
    (void)ckptd.save(second, save_of(20, 2, 0, "/other"));
    CHECK_FALSE(ckptd.has<ReplaceSave>());
  }
  SECTION("the same fence ends none, and takes nothing from the bound on bytes") {
    (void)ckptd.save(second, save_of(10, 1, 1));
    CHECK_FALSE(ckptd.has<ReplaceSave>());
    CHECK_FALSE(ckptd.has<ForgetBytes>());
  }
}

TEST_CASE("a worker whose training waits hurries its own save", "[writer_machine]") {
  Ckptd ckptd;
  const SaveNumber mine = ckptd.save(first, save_of(10));
  (void)ckptd.save(second, save_of(10, 1, 1));
  ckptd.on(WorkerHurries{first});
  CHECK(ckptd.one<HurrySave>().save == mine);
  CHECK(ckptd.has<ForgetBytes>());
}

TEST_CASE("each word that settles has an answer of its own", "[writer_machine]") {
  Ckptd ckptd;
  const SaveNumber save = ckptd.save(first, save_of(10));
  ckptd.on(WorkerSettles{first});
  ckptd.on(WorkerSettles{first});
  ckptd.end(save);
  ckptd.on(AllIsRead{});
  CHECK(ckptd.all<TellSettled>().size() == 2);
}

TEST_CASE("a last minute is for saves with the fences that were known when their generation ended, root by root", "[writer_machine]") {
  LastMinutes last;
  CHECK_FALSE(last.has("/ck", 1));
  last.settle("/ck", 3), last.settle("/ck", 2), last.settle("/other", 9);
  for (const FenceNumber fence : {1u, 2u, 3u}) CHECK(last.has("/ck", fence));
  CHECK_FALSE(last.has("/ck", 4));
  CHECK(last.has("/other", 9));
}

}  // namespace elrun::test::writer_machine
