// The cores of lib/comm/nccl: versions, what ranks say of themselves, and the life of a communicator.

#include <algorithm>

#include "lib/comm/nccl/communicator_life.hpp"
#include "lib/comm/nccl/facts.hpp"
#include "lib/comm/nccl/version.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using Next = CommunicatorLife::Next;
using State = CommunicatorState;

namespace {

constexpr Generation generation{12, {{0x89ab'0123'0000'0000, 5}}};
constexpr CommunicatorLimits limits{.abort = 2s, .ahead = 20s, .loss = 1s};

Instant at(Duration time) { return Instant{} + 100s + time; }

/// A life with short words for what its owner sees.
struct Owner {
  CommunicatorLife life{
      {.me = {generation, Rank{3}, WorldSize{8}}, .device = {DeviceKind::cuda, 1}, .group = "weights", .settings = "NCCL_DEBUG=WARN"},
      limits,
      at(0s),
      60s};
  Next look(Duration now, NcclResult answer = NcclResult::success, CommunicatorView view = {}) {
    view.now = at(now);
    view.answer = answer;
    return life.look(view);
  }
  std::uint64_t call(Duration now, Duration limit = 600s) {
    const std::uint64_t number = life.begin_call("ncclAllGather", at(now), limit).value();
    look(now);
    return number;
  }
  std::string why() const { return message(life.failure_so_far()); }
};

Owner ready() {
  Owner owner;
  owner.look(1s);
  return owner;
}

NcclFacts facts(std::uint32_t rank) {
  NcclFacts facts{.version = {22809}, .host = "boot", .device = "0000:0" + std::to_string(rank) + ":00.0", .has_id = rank == 0};
  if (rank == 0) facts.id.fill(std::byte{9});
  return facts;
}

}  // namespace

TEST_CASE("NCCL 2.26 and newer can be used, and every other case says what to do", "[nccl]") {
  CHECK(to_string(NcclVersion{22809}) == "2.28.9");
  CHECK(!unusable_nccl({{"/a/libnccl.so.2", {22602}}}, "libnccl.so.2"));
  CHECK(!unusable_nccl({{"/a/libnccl.so.2", {22809}}, {"/b/libnccl.so.2", {22809}}}, "libnccl.so.2"));
  const auto none = unusable_nccl({}, "libnccl.so.2").value();
  CHECK((none.code == Code::not_found && none.remedy == Remedy::fix_config));
  CHECK_THAT(none.what, Catch::Contains("libnccl.so.2 was not found") && Catch::Contains("2.26.0") && Catch::Contains("LD_LIBRARY_PATH"));
  const auto old = unusable_nccl({{"/a/libnccl.so.2", {22501}}}, "libnccl.so.2").value();
  CHECK(old.code == Code::mismatch);
  CHECK_THAT(old.what, Catch::Contains("NCCL 2.25.1 (/a/libnccl.so.2) is too old"));
  const auto two = unusable_nccl({{"/a/libnccl.so.2", {22809}}, {"/b/libnccl.so.2", {22602}}}, "libnccl.so.2").value();
  CHECK(two.remedy == Remedy::fix_config);
  CHECK_THAT(two.what, Catch::Contains("2.28.9 (/a/libnccl.so.2) and 2.26.2 (/b/libnccl.so.2)"));
}

TEST_CASE("what a rank says of itself comes back as it was, and nothing else is taken", "[nccl]") {
  NcclFacts root = facts(0);
  const NcclFacts other = facts(1);
  root.problem = "late", root.process = 3, root.late_of = ~std::uint64_t{7};
  CHECK(decode_nccl_facts(encode(root)).value() == root);
  CHECK(decode_nccl_facts(encode(other)).value() == other);
  auto bytes = encode(root);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    INFO(size);
    CHECK(!decode_nccl_facts(std::span{bytes}.first(size)).ok());
  }
  bytes.push_back({});
  CHECK(!decode_nccl_facts(bytes).ok());
  auto wrong = encode(root);
  wrong[0] = std::byte{1};
  CHECK(!decode_nccl_facts(wrong).ok());
}

TEST_CASE("a world that cannot make a communicator is told which rank is the reason", "[nccl]") {
  std::vector<NcclFacts> all{facts(0), facts(1), facts(2)};
  const auto why = [&] {
    const auto agreed = agree_on_nccl(all);
    REQUIRE(!agreed.ok());
    return agreed.failure();
  };
  SECTION("all is well: the ids of the roots, in order") {
    CHECK(agree_on_nccl(all).value() == std::vector<NcclId>{all[0].id});
    CHECK(nccl_roots(WorldSize{128}) == std::vector<Rank>{Rank{0}});
    CHECK(nccl_roots(WorldSize{257}) == std::vector<Rank>{Rank{0}, Rank{128}, Rank{256}});
  }
  SECTION("one has no library") {
    all[1].problem = "libnccl.so.2 was not found";
    CHECK((why().peer == Rank{1} && why().remedy == Remedy::fix_config));
    CHECK_THAT(why().what, Catch::Contains("rank 1 cannot use NCCL: libnccl.so.2 was not found"));
  }
  SECTION("one was late in a generation, as long as the ranks are those of that one") {
    for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank].process = 50 - rank;
    all[1].problem = "not made in time", all[1].late_of = processes_of(all);
    CHECK_THAT(why().what, Catch::Contains("rank 1 cannot use NCCL: not made in time; another rank may have stalled"));
    SECTION("in other places, too") {
      std::swap(all[1], all[2]);
      CHECK_THAT(why().what, Catch::Contains("rank 2 cannot use NCCL: not made in time; another rank may have stalled"));
    }
    SECTION("not beside another one in the place of one of them, were it a spare that had been a member long before") {
      all[2].process = 7;
      CHECK(agree_on_nccl(all).ok());
    }
    SECTION("not without one of them") {
      all.pop_back();
      CHECK(agree_on_nccl(all).ok());
    }
    SECTION("but for good the second time") {
      all[1].late_of = 0, all[2].process = 7;
      CHECK_THAT(why().what, !Catch::Contains("stalled"));
    }
  }
  SECTION("one has another version") {
    all[2].version = {22707};
    CHECK(why().code == Code::mismatch);
    CHECK_THAT(why().what, Catch::Contains("rank 0 has NCCL 2.28.9, and rank 2 has 2.27.7"));
  }
  SECTION("two share a device, which a later version allows where the user does, on both") {
    all[2].device = all[1].device;
    CHECK_THAT(why().what, Catch::Contains("ranks 1 and 2 use one device (0000:01:00.0)"));
    CHECK_THAT(why().what, Catch::Contains("NCCL_HOSTID"));
    for (NcclFacts& each : all) each.version = nccl_shares_devices;
    CHECK_THAT(why().what, Catch::Contains("ranks 1 and 2 use one device"));
    all[1].shares_device = true;
    CHECK_THAT(why().what, Catch::Contains("ranks 1 and 2 use one device"));
    all[2].shares_device = true;
    CHECK(agree_on_nccl(all).ok());
    all[0].version = all[1].version = all[2].version = {22907};
    CHECK_THAT(why().what, Catch::Contains("ranks 1 and 2 use one device"));
  }
  SECTION("the same address on another host is another device") {
    all[2].device = all[1].device;
    all[2].host = "another boot";
    CHECK(agree_on_nccl(all).ok());
  }
  SECTION("the root gave no id") {
    all[0].has_id = false;
    CHECK((why().code == Code::protocol && why().peer == Rank{0}));
  }
}

TEST_CASE("a communicator that is made takes calls, one at a time on their way to a stream", "[nccl]") {
  Owner owner;
  CHECK(owner.look(0s, NcclResult::in_progress) == Next::look_again);
  CHECK(owner.life.state() == State::making);
  CHECK(owner.look(1s) == Next::rest);
  CHECK(owner.life.state() == State::ready);
  const auto first = owner.life.begin_call("ncclAllGather", at(2s), 600s).value();
  CHECK(owner.look(2s, NcclResult::in_progress) == Next::look_again);
  CHECK(owner.life.state() == State::issuing);
  CHECK(owner.look(2s) == Next::look_again);  // it runs
  CHECK(owner.life.state() == State::ready);
  const auto second = owner.call(3s);
  CHECK(owner.life.call_ended(second, NcclResult::success));
  CHECK(owner.look(4s) == Next::look_again);
  CHECK(owner.life.call_ended(first, NcclResult::in_progress));  // a later call is on its way
  CHECK(owner.look(4s) == Next::rest);
  CHECK(owner.life.begin_close(at(5s), 2s).ok());
  CHECK(owner.look(5s, NcclResult::in_progress) == Next::look_again);
  CHECK(owner.look(6s) == Next::end);
  CHECK(owner.life.state() == State::gone);
}

TEST_CASE("each wait for NCCL ends by its deadline, and names rank, generation, device and remedy", "[nccl]") {
  Owner owner;
  SECTION("making") {
    CHECK(owner.look(60s - 1ns, NcclResult::in_progress) == Next::look_again);
    CHECK(owner.look(60s, NcclResult::in_progress) == Next::give_up);
    CHECK_THAT(owner.why(), Catch::Contains("making the communicator on cuda:1 with 8 ranks was not over within 60000 ms"));
  }
  SECTION("issuing") {
    owner.look(1s);
    CHECK(owner.life.begin_call("ncclAllGather", at(2s), 10s).ok());
    CHECK(owner.look(12s - 1ns, NcclResult::in_progress) == Next::look_again);
    CHECK(owner.look(12s, NcclResult::in_progress) == Next::give_up);
    CHECK_THAT(owner.why(), Catch::Contains("ncclAllGather on cuda:1"));
  }
  SECTION("running in its stream") {
    owner.look(1s);
    owner.call(2s, 10s);
    CHECK(owner.look(12s - 1ns) == Next::look_again);
    CHECK(owner.look(12s) == Next::give_up);
    CHECK_THAT(owner.why(), Catch::Contains("ncclAllGather on cuda:1"));
  }
  SECTION("closing") {
    owner.look(1s);
    CHECK(owner.life.begin_close(at(2s), 10s).ok());
    CHECK(owner.look(12s, NcclResult::in_progress) == Next::give_up);
    CHECK_THAT(owner.why(), Catch::Contains("orderly end"));
  }
  CHECK_THAT(owner.why(), Catch::Contains("deadline_passed: rank 3 of generation 12@89ab0123") && Catch::Contains("\"weights\"") &&
                              Catch::Contains("(set by the user: NCCL_DEBUG=WARN)") && Catch::Contains("give the process group up"));
}

TEST_CASE("a call that was under way when something failed never succeeds, whatever its event says", "[nccl]") {
  Owner owner = ready();
  const auto number = owner.call(2s);
  const Failure lost{.code = Code::peer_lost, .remedy = Remedy::rejoin, .what = "node-b died"};
  SECTION("the generation is over") {
    CHECK(owner.look(3s, NcclResult::success, {.over = &lost}) == Next::give_up);
    CHECK_THAT(owner.why(), Catch::Contains("generation_over") && Catch::Contains("node-b died") && Catch::Contains("rejoin"));
  }
  SECTION("NCCL says so when it is asked after the event") {
    CHECK(!owner.life.call_ended(number, NcclResult::remote_error));
    CHECK(owner.look(3s, NcclResult::remote_error, {.detail = "socket closed"}) == Next::give_up);
    CHECK_THAT(owner.why(), Catch::Contains("peer_lost") && Catch::Contains("ncclAllGather on cuda:1") && Catch::Contains("socket closed"));
  }
  CHECK(!owner.life.call_ended(number, NcclResult::success));
  CHECK(!owner.life.begin_call("ncclAllGather", at(3s), 1s).ok());
  CHECK(!owner.life.begin_close(at(3s), 1s).ok());
  CHECK(owner.look(4s, NcclResult::success, {.abort_returned = true}) == Next::end);
  CHECK(!owner.life.call_ended(number, NcclResult::success));
}

TEST_CASE("a peer that left fails only what is not over a second later", "[nccl]") {
  Owner owner = ready();
  const CommunicatorView left{.lost = Rank{5}};
  SECTION("nothing is under way: it may leave") { CHECK(owner.look(100s, NcclResult::success, left) == Next::rest); }
  SECTION("what it sent arrives in time") {
    const auto number = owner.call(2s);
    CHECK(owner.look(3s, NcclResult::success, left) == Next::look_again);
    CHECK(owner.life.call_ended(number, NcclResult::success));
    CHECK(owner.look(9s, NcclResult::success, left) == Next::rest);
  }
  SECTION("NCCL's own error follows from it") {
    owner.call(2s);
    const auto answer = GENERATE(NcclResult::system_error, NcclResult::internal_error, NcclResult::remote_error);
    CHECK(owner.look(2s + 10ms, answer, {.detail = "socket closed", .lost = Rank{5}}) == Next::give_up);
    CHECK_THAT(owner.why(), Catch::Contains("peer_lost") && Catch::Contains("rank 5 is gone") && Catch::Contains("socket closed") &&
                                Catch::Contains("rejoin"));
    CHECK(owner.life.failure_so_far().peer == Rank{5});
  }
  SECTION("an error of the device does not") {
    owner.call(2s);
    CHECK(owner.look(2s + 10ms, NcclResult::unhandled_cuda_error, {.lost = Rank{5}}) == Next::give_up);
    CHECK_FALSE(owner.life.failure_so_far().peer);
  }
  SECTION("the call still needs it") {
    owner.call(2s);
    CHECK(owner.look(3s, NcclResult::success, left) == Next::look_again);
    CHECK(owner.look(4s - 1ns, NcclResult::success, left) == Next::look_again);
    CHECK(owner.look(4s, NcclResult::success, left) == Next::give_up);
    CHECK_THAT(owner.why(), Catch::Contains("peer_lost") && Catch::Contains("rank 5 is gone") && Catch::Contains("rejoin"));
  }
}

TEST_CASE("an abort that does not return in time means that the process has to end", "[nccl]") {
  Owner owner = ready();
  owner.call(2s, 1s);
  CHECK(owner.look(3s) == Next::give_up);
  CHECK(owner.look(3s + 1ms) == Next::look_again);  // given up once
  SECTION("it returns in time") {
    CHECK(owner.look(5s - 1ns, NcclResult::success, {.abort_returned = true}) == Next::end);
    CHECK(owner.life.state() == State::gone);
    CHECK(owner.life.failure_so_far().remedy == Remedy::abort_group);
  }
  SECTION("it returns, but a kernel stays in its stream") {
    CHECK(owner.look(5s - 1ns, NcclResult::success, {.abort_returned = true, .drained = false}) == Next::look_again);
    CHECK(owner.look(5s, NcclResult::success, {.abort_returned = true, .drained = false}) == Next::end);
    CHECK(owner.life.state() == State::stuck);
    CHECK_THAT(owner.why(), Catch::Contains("did not leave its streams") && Catch::Contains("; exit"));
  }
  SECTION("the streams are empty, but it does not return") {
    CHECK(owner.look(5s - 1ns, NcclResult::success, {.drained = true}) == Next::look_again);
    CHECK(owner.look(5s, NcclResult::success, {.drained = true}) == Next::end);
    CHECK(owner.life.state() == State::stuck);
  }
  SECTION("it does not") {
    CHECK(owner.look(5s - 1ns) == Next::look_again);
    CHECK(owner.look(5s) == Next::end);
    CHECK(owner.life.state() == State::stuck);
    CHECK(owner.life.failure_so_far().remedy == Remedy::exit_process);
    CHECK_THAT(owner.why(), Catch::Contains("ncclCommAbort did not return on cuda:1 within 2000 ms") &&
                                Catch::Contains("ncclAllGather on cuda:1 with 8 ranks was not over"));
    CHECK(owner.look(6s, NcclResult::success, {.abort_returned = true}) == Next::end);
    CHECK(owner.life.state() == State::stuck);  // what was told stays true
    CHECK(owner.life.begin_call("ncclAllGather", at(7s), 1s).failure().remedy == Remedy::exit_process);
  }
}

TEST_CASE("an abort may take as long as the program's own work ahead of a call does", "[nccl]") {
  Owner owner = ready();
  const CommunicatorView ahead{.drained = false, .ahead = true}, begun{.drained = false};
  SECTION("it counts once that is over") {
    owner.call(2s);
    owner.look(3s, NcclResult::success, {.lost = Rank{5}});
    CHECK(owner.look(4s, NcclResult::success, {.lost = Rank{5}}) == Next::give_up);
    CHECK(owner.look(23s, NcclResult::success, ahead) == Next::look_again);
    CHECK(owner.look(25s - 1ns, NcclResult::success, begun) == Next::look_again);
    SECTION("and is in time") { CHECK(owner.look(25s - 1ns, NcclResult::success, {.abort_returned = true}) == Next::end); }
    SECTION("or not") {
      CHECK(owner.look(25s, NcclResult::success, begun) == Next::end);
      CHECK(owner.life.state() == State::stuck);
    }
  }
  SECTION("but not without an end") {
    owner.call(2s);
    CHECK(owner.look(4s, NcclResult::remote_error) == Next::give_up);
    CHECK(owner.look(24s - 1ns, NcclResult::success, ahead) == Next::look_again);
    CHECK(owner.look(26s - 2ns, NcclResult::success, ahead) == Next::look_again);
    CHECK(owner.look(26s, NcclResult::success, ahead) == Next::end);
    CHECK(owner.life.state() == State::stuck);
  }
  SECTION("nor longer than a call's own limit") {
    owner.call(2s, 1s);
    CHECK(owner.look(3s) == Next::give_up);
    CHECK(owner.look(5s, NcclResult::success, ahead) == Next::end);
    CHECK(owner.life.state() == State::stuck);
  }
}

TEST_CASE("the first failure stays, and the generation's end is named before what follows from it", "[nccl]") {
  Owner owner = ready();
  owner.call(2s, 1s);
  const Failure over{.code = Code::generation_over, .remedy = Remedy::rejoin, .what = "rank 5 was killed"};
  CHECK(owner.look(10s, NcclResult::remote_error, {.over = &over, .lost = Rank{5}}) == Next::give_up);
  CHECK_THAT(owner.why(), Catch::Contains("rank 5 was killed"));
  owner.life.fail({.code = Code::io, .what = "later"});
  owner.life.answered("ncclGroupEnd", NcclResult::system_error, "later");
  CHECK_THAT(owner.why(), Catch::Contains("rank 5 was killed"));
}

TEST_CASE("every answer of NCCL that is an error has a code, a remedy and a sentence", "[nccl]") {
  for (const NcclResult result : {NcclResult::unhandled_cuda_error, NcclResult::system_error, NcclResult::internal_error,
                                  NcclResult::invalid_argument, NcclResult::invalid_usage, NcclResult::remote_error}) {
    CHECK(is_error(result));
    const Failure failure = from_nccl(result, "ncclGroupEnd", "cuda:2", "its own words");
    CHECK_THAT(failure.what, Catch::Contains("ncclGroupEnd on cuda:2: ") && Catch::Contains("its own words"));
    CHECK((failure.remedy == Remedy::exit_process) == (result == NcclResult::unhandled_cuda_error));
  }
  CHECK(!is_error(NcclResult::success));
  CHECK(!is_error(NcclResult::in_progress));
  CHECK_THAT(from_nccl(static_cast<NcclResult>(42), "ncclGroupEnd", "cuda:2", "").what, Catch::Contains("result 42"));
}

TEST_CASE("nothing follows gone and stuck, and every other state can fail", "[nccl]") {
  const State states[] = {State::making,  State::ready,    State::issuing, State::closing,
                          State::revoked, State::aborting, State::gone,    State::stuck};
  for (const State to : states) CHECK((!may_follow(State::gone, to) && !may_follow(State::stuck, to)));
  for (const State from : {State::making, State::ready, State::issuing, State::closing}) CHECK(may_follow(from, State::revoked));
  CHECK(!may_follow(State::aborting, State::ready));
  CHECK(!may_follow(State::revoked, State::ready));
}
