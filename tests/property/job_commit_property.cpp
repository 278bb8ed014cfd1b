// Small worlds, exhaustively: every order of voting, hearing, applying, crashing and of new generations. The checkers
// stand outside the code: they see the state of each member as the list of steps that were put into it.

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "lib/job/commit/commit.hpp"
#include "tests/support/property.hpp"

namespace elrun::test {
namespace {

struct Member {
  bool alive = true;
  bool newcomer = false;
  StepCommit commit;
  std::uint64_t state = 0;  // steps that were really applied to its state; compared with what the core believes
};

struct World {
  std::uint64_t generation = 1;
  std::vector<Member> members;
  std::vector<std::vector<Vote>> sent;         // sent[from]: votes in order
  std::vector<std::vector<std::size_t>> read;  // read[to][from]: how many were heard
  int crashes_left = 0;

  [[nodiscard]] auto key() const {
    std::vector<std::uint64_t> k{generation, static_cast<std::uint64_t>(crashes_left)};
    for (std::size_t i = 0; i < members.size(); ++i) {
      const Member& m = members[i];
      const Knowledge& n = m.commit.knowledge();
      k.insert(k.end(), {m.alive, n.applied, n.decided, n.voted, m.state, sent[i].size()});
      for (std::size_t from = 0; from < members.size(); ++from) k.push_back(read[i][from] * 2 + m.commit.received()[from]);
    }
    return k;
  }
};

Generation number(std::uint64_t n) { return {n, {{4, 2}}}; }

void begin_generation(World& w, std::vector<Member> members) {
  const auto count = static_cast<std::uint32_t>(members.size());
  w.members = std::move(members);
  w.sent.assign(count, {});
  w.read.assign(count, std::vector<std::size_t>(count, 0));
}

constexpr std::uint64_t steps = 2;

struct Explorer {
  std::set<std::vector<std::uint64_t>> seen;
  std::uint64_t finished = 0, redone = 0, applied_after_recovery = 0;

  void visit(const World& w) {
    if (!seen.insert(w.key()).second) return;
    check(w);
    bool moved = false;
    const std::size_t n = w.members.size();
    for (std::size_t i = 0; i < n; ++i) {
      const Member& m = w.members[i];
      if (!m.alive) continue;
      const Knowledge& k = m.commit.knowledge();
      if (k.voted == k.applied && k.applied < steps) moved = true, visit(voted(w, i));
      if (m.commit.decided()) moved = true, visit(applied(w, i));
      for (std::size_t from = 0; from < n; ++from)
        if (w.read[i][from] < w.sent[from].size() && w.sent[from][w.read[i][from]].step == k.applied && k.voted > k.applied)
          moved = true, visit(heard(w, i, from));
      if (w.crashes_left > 0) moved = true, visit(crashed(w, i));
    }
    if (std::any_of(w.members.begin(), w.members.end(), [](const Member& m) { return !m.alive; }) &&
        std::any_of(w.members.begin(), w.members.end(), [](const Member& m) { return m.alive; })) {
      moved = true;
      visit(next_generation(w, false));
      visit(next_generation(w, true));
    }
    if (!moved && std::all_of(w.members.begin(), w.members.end(), [](const Member& m) { return m.alive; })) {
      ++finished;
      for (const Member& m : w.members) REQUIRE(m.state == steps);  // nobody is stuck
    }
  }

  void check(const World& w) const {
    std::uint64_t decided = 0;
    for (const Member& m : w.members) {
      const Knowledge& k = m.commit.knowledge();
      REQUIRE(m.state == k.applied);  // each step is put into a state exactly once, in order
      REQUIRE((k.applied <= k.decided && k.decided <= k.voted && k.voted <= k.applied + 1));
      if (m.alive) decided = std::max(decided, k.decided);
    }
    for (const Member& m : w.members)  // whoever lives holds what is needed for every step that a living one knows
      if (m.alive) REQUIRE(m.commit.knowledge().voted >= decided);
  }

  static World voted(World w, std::size_t i) {
    w.sent[i].push_back(w.members[i].commit.vote(true));
    return w;
  }
  static World heard(World w, std::size_t to, std::size_t from) {
    REQUIRE(w.members[to].commit.hear(Rank{static_cast<std::uint32_t>(from)}, w.sent[from][w.read[to][from]++]));
    return w;
  }
  static World applied(World w, std::size_t i) {
    w.members[i].commit.applied();
    ++w.members[i].state;
    return w;
  }
  static World crashed(World w, std::size_t i) {
    w.members[i].alive = false;
    --w.crashes_left;
    return w;
  }

  World next_generation(World w, bool with_newcomer) {
    std::vector<Member> members;
    for (const Member& m : w.members)
      if (m.alive) members.push_back(m);
    if (with_newcomer) members.push_back({.newcomer = true, .commit = StepCommit{Membership{}, 0}});
    std::vector<Knowledge> brought;
    for (const Member& m : members) brought.push_back(m.commit.knowledge());
    const Recovered r = recover(brought, Sums::alike);
    // Who lives was in all generations: everybody's sums are those of the newest.
    REQUIRE(recover(brought, Sums::of_generation).members == r.members);
    for (const Knowledge& k : brought) redone += k.voted > r.next_step;
    ++w.generation;
    for (std::size_t i = 0; i < members.size(); ++i) {
      Member& m = members[i];
      if (r.members[i] == Recovery::apply) {
        REQUIRE_FALSE(m.newcomer);
        REQUIRE(m.commit.knowledge().voted == r.next_step);  // it holds the bytes
        m.commit.learn(r.next_step, r.decided_in);
        m.commit.applied();
        ++m.state;
        ++applied_after_recovery;
      } else if (r.members[i] == Recovery::fetch) {
        REQUIRE(m.newcomer);  // no survivor ever needs a state from others
        m.state = r.next_step;
      }
      m.newcomer = false;
      m.commit =
          StepCommit{{number(w.generation), Rank{static_cast<std::uint32_t>(i)}, WorldSize{static_cast<std::uint32_t>(members.size())}},
                     r.next_step,
                     r.decided_in};
      REQUIRE(m.state == r.next_step);  // all begin the same step, each sample in one decided step
    }
    begin_generation(w, std::move(members));
    return w;
  }
};

}  // namespace

TEST_CASE("a step is decided once, whatever crashes when", "[job]") {
  for (const auto& [world, crashes] : std::vector<std::pair<std::uint32_t, int>>{{1, 0}, {2, 2}, {3, 2}}) {
    World w;
    w.crashes_left = crashes;
    std::vector<Member> members(world);
    for (std::uint32_t i = 0; i < world; ++i) members[i].commit = StepCommit{{number(1), Rank{i}, WorldSize{world}}, 0};
    begin_generation(w, std::move(members));
    Explorer e;
    e.visit(w);
    INFO("world " << world << ": " << e.seen.size() << " states");
    CHECK(e.finished > 0);
    if (crashes > 0) {  // the interesting cases were met
      CHECK(e.redone > 0);
      CHECK(e.applied_after_recovery > 0);
    }
  }
}

}  // namespace elrun::test
