// One agent's part in an election: what it asks etcd for, and what it makes of the answers.

#include <map>

#include "rendezvous/election/election.hpp"
#include "tests/support/catch.hpp"

using namespace elrun;
using namespace elrun::election;

namespace {

constexpr Instant start{1000s};
const Leader other{Revision{7}, LeaseId{70}, "10.0.0.7:4711"};

/// An agent and its clock. It keeps the actions of the last event.
struct Agent {
  Election election;
  Instant now = start;
  std::vector<Action> actions{};

  explicit Agent(const ElectionOptions& options = {.lease = 5s, .seed = 1}) : election{options} {}
  Agent& on(const Event& event) {
    actions = election.on(event, now);
    return *this;
  }
  Agent& tick() {
    REQUIRE(election.wake_at());
    now = *election.wake_at();
    return on(Tick{});
  }
  Agent& later(Duration wait) {
    now += wait;
    return on(Tick{});
  }
  template <class A>
  [[nodiscard]] const A* did() const {
    for (const Action& action : actions)
      if (const auto* found = std::get_if<A>(&action)) return found;
    return nullptr;
  }
  /// Elected with lease 50 at revision 9.
  Agent& win(std::optional<std::string> state = {}) {
    on(Begin{}).on(Found{}).tick().on(Found{}).on(Granted{{LeaseId{50}, 5s}});
    REQUIRE(did<Campaign>());
    return on(Counted{Leader{Revision{9}, LeaseId{50}, ""}, std::move(state)});
  }
  Agent& lead() {
    win().on(Serving{"10.0.0.1:1"});
    REQUIRE(did<Publish>());
    return on(Published{true});
  }
};

}  // namespace

TEST_CASE("an agent follows the leader that is there", "[election]") {
  Agent agent;
  agent.on(Begin{});
  REQUIRE(agent.did<Look>());
  agent.on(Found{other});
  REQUIRE(agent.did<Follow>());
  CHECK(agent.did<Follow>()->address == other.address);

  SECTION("and asks nothing once the line is up") {
    agent.on(LineUp{});
    CHECK_FALSE(agent.election.wake_at());
  }
  SECTION("and looks again until it is") {
    agent.tick();
    CHECK(agent.did<Look>());
    agent.on(Found{other});
    CHECK_FALSE(agent.did<Follow>());  // the line tries by itself
  }
  SECTION("and looks at once when the line breaks, and follows the next one") {
    agent.on(LineUp{}).on(LineDown{});
    CHECK(agent.did<Look>());
    agent.on(Found{Leader{Revision{8}, LeaseId{80}, other.address}});
    CHECK(agent.did<Follow>());
  }
  SECTION("and one of an etcd that was begun anew, whose revisions say nothing") {
    agent.on(LineUp{}).on(LineDown{}).on(Found{Leader{other.created, LeaseId{71}, "10.0.0.8:4711"}});
    REQUIRE(agent.did<Follow>());
    CHECK(agent.did<Follow>()->address == "10.0.0.8:4711");
  }
  SECTION("and when the line comes back by itself, looks whether that one still holds the leadership") {
    agent.on(LineUp{}).on(LineDown{}).on(Found{other}).on(LineUp{});
    REQUIRE(agent.did<Look>());
    SECTION("it does") {
      agent.on(Found{other});
      CHECK(agent.actions.empty());
      CHECK_FALSE(agent.election.wake_at());
    }
    SECTION("another was elected while it was frozen") {
      agent.on(Found{Leader{Revision{8}, LeaseId{80}, "10.0.0.8:4711"}});
      REQUIRE(agent.did<Follow>());
      CHECK(agent.did<Follow>()->address == "10.0.0.8:4711");
      agent.on(LineUp{});
      CHECK_FALSE(agent.did<Look>());
    }
    SECTION("nobody does, or etcd is away: it looks again") {
      if (GENERATE(true, false)) agent.on(Found{});
      else agent.on(Unanswered{"no answer"});
      agent.tick();
      REQUIRE(agent.did<Look>());
      CHECK_FALSE(agent.did<Grant>());
      agent.on(Found{Leader{Revision{8}, LeaseId{80}, "10.0.0.8:4711"}});
      CHECK(agent.did<Follow>());
    }
  }
  SECTION("and asks also when the first line comes up after the leadership was lost: it was frozen while it was dialled") {
    agent.tick();
    if (GENERATE(true, false)) agent.on(Found{});
    else agent.on(Unanswered{"no answer"});
    agent.on(LineUp{});
    REQUIRE(agent.did<Look>());
    agent.on(Found{Leader{Revision{8}, LeaseId{80}, "10.0.0.8:4711"}});
    REQUIRE(agent.did<Follow>());
    CHECK(agent.did<Follow>()->address == "10.0.0.8:4711");
  }
  SECTION("but not one that has no address yet") {
    agent.on(LineUp{}).on(LineDown{}).on(Found{Leader{Revision{8}, LeaseId{80}, ""}});
    CHECK_FALSE(agent.did<Follow>());
    CHECK(agent.did<Explain>());
  }
}

TEST_CASE("a leader key without a lease is no agent's: who finds it says so and waits until it is gone", "[election]") {
  const Leader restored{Revision{7}, LeaseId{}, GENERATE("", "10.0.0.7:4711")};
  Agent agent;
  agent.on(Begin{}).on(Found{restored});
  REQUIRE(agent.did<Explain>());
  CHECK(
      agent.did<Explain>()->why ==
      "the leader key in etcd, /elrun/<run id>/leader, has no lease: no agent made it, and it never expires. Delete it, or use another run id");
  CHECK_FALSE(agent.did<Revoke>());
  CHECK_FALSE(agent.did<Follow>());
  for (int i = 0; i < 20; ++i) {
    agent.tick();
    REQUIRE(agent.did<Look>());
    agent.on(Found{restored});
    CHECK(agent.actions.empty());
  }
  agent.tick().on(Found{}).tick().on(Found{});
  CHECK(agent.did<Grant>());
}

TEST_CASE("nobody leaves a coordinator for a leader key without a lease", "[election]") {
  Agent agent;
  agent.on(Begin{}).on(Found{}).tick().on(Found{}).on(Granted{{LeaseId{50}, 5s}}).on(Counted{other, {}});
  REQUIRE(agent.did<Follow>());
  agent.on(LineUp{}).on(LineDown{}).on(Found{other}).on(LineUp{});
  agent.on(Found{Leader{Revision{9}, LeaseId{}, "10.0.0.9:1"}});
  CHECK_FALSE(agent.did<Follow>());
  agent.tick();
  CHECK(agent.did<Look>());
}

TEST_CASE("an agent campaigns when it has looked twice and found no leader", "[election]") {
  Agent agent;
  agent.on(Begin{}).on(Found{});
  CHECK(agent.actions.empty());
  agent.tick();
  CHECK(agent.now - start <= campaign_jitter);
  REQUIRE(agent.did<Look>());

  SECTION("and asks for a lease, then for the key") {
    agent.on(Found{});
    REQUIRE(agent.did<Grant>());
    CHECK(agent.did<Grant>()->lease == 5s);
    agent.on(Granted{{LeaseId{50}, 6s}});
    REQUIRE(agent.did<Campaign>());
    CHECK(agent.did<Campaign>()->lease == LeaseId{50});
  }
  SECTION("but not when one came meanwhile") {
    agent.on(Found{other});
    CHECK(agent.did<Follow>());
    CHECK_FALSE(agent.did<Grant>());
  }
}

TEST_CASE("an agent that may not coordinate waits, and says for what", "[election]") {
  Agent agent{{.campaigns = false}};
  agent.on(Begin{}).on(Found{});
  CHECK(agent.did<Explain>());
  for (int i = 0; i < 20; ++i) {
    agent.tick();
    REQUIRE(agent.did<Look>());
    agent.on(Found{});
    CHECK(agent.actions.empty());
  }
}

TEST_CASE("who made the key coordinates", "[election]") {
  Agent agent;
  SECTION("above the state's generation") {
    agent.win("12 00000000000000010000000000000002");
    REQUIRE(agent.did<Lead>());
    CHECK(agent.did<Lead>()->generation_floor == 12);
    CHECK(agent.did<Lead>()->created == Revision{9});
    CHECK_FALSE(agent.did<Publish>());  // nobody is sent to it before it serves
    agent.on(Serving{"10.0.0.1:1"});
    REQUIRE(agent.did<Publish>());
    CHECK(agent.did<Publish>()->address == "10.0.0.1:1");
    CHECK(agent.did<Publish>()->created == Revision{9});
  }
  SECTION("but not above a state that nobody can read") {
    agent.win("twelve");
    CHECK_FALSE(agent.did<Lead>());
    CHECK(agent.did<Revoke>());
    REQUIRE(agent.did<Explain>());
    CHECK(agent.did<Explain>()->why.find("twelve") != std::string::npos);
  }
  SECTION("and who did not gives its lease back and follows") {
    agent.on(Begin{}).on(Found{}).tick().on(Found{}).on(Granted{{LeaseId{50}, 5s}}).on(Counted{other, {}});
    CHECK_FALSE(agent.did<Lead>());
    REQUIRE(agent.did<Revoke>());
    CHECK(agent.did<Revoke>()->lease == LeaseId{50});
    CHECK(agent.did<Follow>());
  }
  SECTION("and who cannot serve leaves it to others for a while") {
    agent.win().on(CannotServe{"no port"});
    CHECK(agent.did<Revoke>());
    CHECK(agent.did<StepDown>());
    const Instant then = agent.now;
    agent.on(Found{});
    while (agent.now < then + campaign_pause) {
      CHECK_FALSE(agent.did<Grant>());
      agent.tick().on(Found{});
    }
    agent.tick().on(Found{});
    CHECK(agent.did<Grant>());
  }
}

TEST_CASE("a campaign whose outcome was not heard is given up, and nobody waits for it", "[election]") {
  Agent agent;
  agent.on(Begin{}).on(Found{}).tick().on(Found{}).on(Granted{{LeaseId{50}, 5s}}).on(Unanswered{"etcd is away"});
  CHECK(agent.did<Revoke>());
  CHECK(agent.did<Explain>());
  agent.tick();
  CHECK(agent.did<Look>());
  agent.on(Found{Leader{Revision{9}, LeaseId{50}, ""}});  // it had won
  REQUIRE(agent.did<Revoke>());
  CHECK(agent.did<Revoke>()->lease == LeaseId{50});
}

TEST_CASE("a leader keeps its lease", "[election]") {
  Agent agent;
  agent.lead();
  const Instant elected = agent.now;
  CHECK(agent.election.certain(agent.now));
  agent.tick();
  REQUIRE(agent.did<KeepAlive>());
  CHECK(agent.now - elected < 5s / 2);

  SECTION("which counts from the asking, not from the answer") {
    const Instant asked = agent.now;
    agent.now += 2s;
    agent.on(Kept{5s});
    CHECK(agent.election.certain(asked + 5s - 1ns));
    CHECK_FALSE(agent.election.certain(asked + 5s));
  }
  SECTION("and steps down at once when etcd has ended it") {
    agent.on(Kept{0s});
    CHECK(agent.did<StepDown>());
    CHECK(agent.did<Look>());
    CHECK_FALSE(agent.election.leads());
  }
  SECTION("and steps down at once when a write is refused, whatever is under way") {
    agent.on(WriteRefused{});
    REQUIRE(agent.did<StepDown>());
    CHECK(agent.did<StepDown>()->why == "the leader key in etcd is not this agent's any more");
    CHECK_FALSE(agent.election.leads());
    agent.on(Kept{5s});
    CHECK_FALSE(agent.election.leads());
    CHECK(agent.did<Look>());
  }
  SECTION("and steps down when its address is refused") {
    Agent late;
    late.win().on(Serving{"10.0.0.1:1"}).on(Published{false});
    CHECK(late.did<StepDown>());
  }
}

TEST_CASE("an etcd whose answers all come late keeps one coordinator", "[election]") {
  const Duration late = GENERATE(0ms, 1s, 1150ms, 1300ms, 1500ms, 1600ms);  // a call may take a third of the lease, 1667 ms
  Agent agent;
  std::multimap<Instant, Event> answers;
  LeaseId granted;
  Instant lease_until{};
  std::optional<Leader> key;
  int terms = 0, steps_down = 0;
  std::string said;
  // It does at once what it is asked. Only the answers are late.
  const auto ask_etcd = [&] {
    for (const Action& action : agent.actions) {
      if (agent.now >= lease_until) key.reset();
      const auto answer = [&](const Event& event) { answers.emplace(agent.now + late, event); };
      if (std::holds_alternative<Look>(action)) answer(Found{key});
      else if (std::holds_alternative<Grant>(action)) {
        granted = LeaseId{granted.value() + 1}, lease_until = agent.now + 5s;
        answer(Granted{{granted, 5s}});
      } else if (const auto* campaign = std::get_if<Campaign>(&action)) {
        if (!key && agent.now < lease_until) key = Leader{Revision{granted.value()}, campaign->lease, ""};
        answer(Counted{key, {}});
      } else if (std::holds_alternative<Publish>(action)) answer(Published{key.has_value()});
      else if (std::holds_alternative<KeepAlive>(action)) {
        if (key) lease_until = agent.now + 5s;
        answer(Kept{key ? Duration{5s} : Duration{0}});
      } else if (std::holds_alternative<Lead>(action)) {
        ++terms;
        answers.emplace(agent.now, Serving{"10.0.0.1:1"});
      } else if (std::holds_alternative<StepDown>(action)) ++steps_down;
      else if (const auto* say = std::get_if<Say>(&action)) said += say->text + "\n";
    }
  };
  agent.on(Begin{});
  ask_etcd();
  while (agent.now < start + 300s) {
    const auto wake = agent.election.wake_at();
    if (wake && (answers.empty() || *wake < answers.begin()->first)) {
      agent.now = std::max(agent.now, *wake);
      agent.on(Tick{});
    } else {
      REQUIRE_FALSE(answers.empty());
      const auto first = answers.extract(answers.begin());
      agent.now = std::max(agent.now, first.key());
      agent.on(first.mapped());
    }
    ask_etcd();
  }
  CAPTURE(late, said);
  CHECK(terms == 1);
  CHECK(steps_down == 0);
  CHECK(said.find("has not answered") == std::string::npos);  // it answered each call within its limit
  CHECK((said.find("so late that the lease in it was not renewed") != std::string::npos) == (late > 1250ms));
}

TEST_CASE("a leader without etcd goes on with what runs", "[election]") {
  Agent agent;
  agent.lead();
  agent.tick();
  bool said = false;
  const auto without_etcd = [&](Duration time) {
    const Instant end = agent.now + time;
    while (agent.now < end) {
      agent.on(Unanswered{"etcd is away"});
      do {
        agent.tick();
        said = said || agent.did<Say>();
        if (agent.did<StepDown>()) return false;
      } while (!agent.did<KeepAlive>());
    }
    return true;
  };

  SECTION("for as long as nothing new is to be written, and says so") {
    CHECK(without_etcd(300s));
    CHECK(said);
    CHECK_FALSE(agent.election.certain(agent.now));
    agent.on(Kept{5s});
    CHECK(agent.did<Say>());
    CHECK(agent.election.certain(agent.now));
  }
  SECTION("and gives way when it could not write for a lease more") {
    CHECK(without_etcd(20s));
    const Instant began = agent.now;
    agent.on(WriteBegan{});
    CHECK_FALSE(without_etcd(60s));
    CHECK(agent.now - began == 5s);
    CHECK_FALSE(agent.election.leads());
    agent.on(Unanswered{"etcd is away"}).tick().on(Found{Leader{Revision{9}, LeaseId{50}, "10.0.0.1:1"}});
    CHECK(agent.did<Revoke>());  // nobody is to wait for its lease to end
    CHECK_FALSE(agent.did<Follow>());
  }
  SECTION("and keeps its leadership when the write was done in time") {
    CHECK(without_etcd(20s));
    agent.on(WriteBegan{});
    CHECK(without_etcd(4s));
    agent.on(WriteDone{});
    CHECK(without_etcd(60s));
  }
}

TEST_CASE("an agent that ends gives its leadership up, and does nothing more", "[election]") {
  Agent agent;
  agent.lead().on(Resign{});
  REQUIRE(agent.did<Revoke>());
  CHECK(agent.did<Revoke>()->lease == LeaseId{50});
  CHECK_FALSE(agent.election.wake_at());
  CHECK(agent.on(Kept{5s}).actions.empty());
}

TEST_CASE("an agent that leaves campaigns no more", "[election]") {
  Agent agent;
  SECTION("it never campaigned") {
    agent.on(Withdraw{}).on(Begin{}).on(Found{});
    REQUIRE(agent.did<Explain>());
    CHECK(agent.did<Explain>()->why == "no agent coordinates, and this one leaves");
    for (int i = 0; i < 20; ++i) {
      agent.tick();
      REQUIRE(agent.did<Look>());
      agent.on(Found{});
      CHECK(agent.actions.empty());
    }
    CHECK(agent.tick().on(Found{other}).did<Follow>());
  }
  SECTION("it wins meanwhile, and gives the leadership back") {
    agent.on(Begin{}).on(Found{}).tick().on(Found{}).on(Withdraw{}).on(Granted{{LeaseId{50}, 5s}});
    REQUIRE(agent.did<Campaign>());
    CHECK(agent.election.is_campaigning());
    agent.on(Counted{Leader{Revision{9}, LeaseId{50}, ""}, {}});
    CHECK_FALSE(agent.did<Lead>());
    REQUIRE(agent.did<Revoke>());
    CHECK(agent.did<Revoke>()->lease == LeaseId{50});
    CHECK_FALSE(agent.election.is_campaigning());
  }
  SECTION("it leads, and goes on until it resigns") {
    agent.lead().on(Withdraw{});
    CHECK(agent.actions.empty());
    CHECK(agent.election.leads());
    CHECK(agent.on(Resign{}).did<Revoke>());
  }
}

TEST_CASE("the state is read as it was written, and nothing else is", "[election]") {
  const Generation generation{12, {{0x89ab012345678901, 0x1}}};
  CHECK(state_text(generation) == "12 89ab0123456789010000000000000001");
  CHECK(generation_from_state(state_text(generation)).value() == generation);
  for (const char* text : {"", "12", "12 ", "12 89ab", " 12 89ab0123456789010000000000000001", "12 89ab0123456789010000000000000001 ",
                           "12 89ab012345678901000000000000000g", "99999999999999999999 89ab0123456789010000000000000001",
                           "4611686018427387905 89ab0123456789010000000000000001", "-1 89ab0123456789010000000000000001"})
    CHECK_FALSE(generation_from_state(text).ok());
}

TEST_CASE("one call to etcd is under way at most, and its answer or a plan says when the next one is due", "[election]") {
  EtcdCalls calls{1};
  CHECK_FALSE(calls.next_at());
  calls.plan(start);
  CHECK(calls.next_at() == start);
  calls.begin(start + 1s);
  CHECK(calls.under_way());
  CHECK(calls.begun_at() == start + 1s);
  calls.plan(start + 2s);
  CHECK_FALSE(calls.next_at());  // not while one is under way
  calls.end();
  CHECK(calls.next_at() == start + 2s);
  calls.plan_nothing();
  CHECK_FALSE(calls.next_at());
}

TEST_CASE("failures of etcd in a row wait longer, half of it by chance, until it answers", "[election]") {
  EtcdCalls calls{1};
  Duration most = etcd_backoff_min;
  for (int i = 0; i < 10; ++i) {
    const Duration wait = calls.after_failure();
    CHECK(wait >= most / 2);
    CHECK(wait <= most);
    most = std::min(most * 2, etcd_backoff_max);
  }
  calls.succeeded();
  CHECK(calls.after_failure() <= etcd_backoff_min);
}

TEST_CASE("a leadership is given up in doubt, with something to write, a whole lease after both", "[election]") {
  Leadership leadership{Revision{9}};
  CHECK_FALSE(leadership.is_published());
  CHECK_FALSE(leadership.given_up_at(start, 5s));
  leadership.doubt();
  CHECK_FALSE(leadership.given_up_at(start, 5s));
  leadership.begin_write(start + 3s);
  CHECK(leadership.given_up_at(start, 5s) == start + 8s);
  CHECK(leadership.given_up_at(start + 4s, 5s) == start + 9s);
  SECTION("etcd answers again") {
    leadership.trust();
    CHECK_FALSE(leadership.given_up_at(start, 5s));
  }
  SECTION("it is written") {
    leadership.end_write();
    CHECK_FALSE(leadership.given_up_at(start, 5s));
  }
}
